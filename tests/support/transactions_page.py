"""The parts of ``docs/transactions.md`` that are generated from the code: settings, states, diagram.

python -m tests.support.transactions_page        regenerates them; a test fails while page and code differ
"""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from halfmq import limits
from halfmq.client import async_client
from halfmq.core.decision import Why
from halfmq.model.message_facts import GRACE_MAX_MS
from halfmq.model.settings import BrokerSettings, PastLimit, ProducerSettings
from tests.support.transitions import TRANSITIONS, Cell, Event, Said, Stage

PAGE = Path(__file__).parents[2] / "docs" / "transactions.md"


class Knob(NamedTuple):
    name: str
    #: Where it is set, as the user types it.
    where: str
    unit: str
    default: str
    #: The corresponding setting of RocketMQ or FMQ.
    precedent: str


def _broker(field: str, unit: str, precedent: str) -> Knob:
    default = getattr(BrokerSettings(), field)
    return Knob(field, f"`halfmq serve --{field.replace('_', '-')}`", unit, f"{default:,}", precedent)


def _group(field: str, unit: str, precedent: str) -> Knob:
    flag = field.removesuffix("_ms").replace("_", "-")
    default = getattr(ProducerSettings(""), field)
    shown = f"`{default.value}`" if isinstance(default, PastLimit) else str(default)
    return Knob(field, f"`halfmq tx limits GROUP --{flag}`", unit, shown, precedent)


KNOBS: tuple[Knob, ...] = (
    _broker("check_immunity_ms", "ms", "RocketMQ `transactionTimeOut` = 6,000"),
    Knob(
        "CHECK_IMMUNITY_TIME_IN_SECONDS",
        "property of the half message",
        f"s, at most {GRACE_MAX_MS // 1_000:,}",
        "the broker's",
        "RocketMQ, the same property; there it counts on the client's clock",
    ),
    _broker("check_interval_ms", "ms; doubles from check to check", "RocketMQ `transactionCheckInterval` = 30,000"),
    _broker("check_interval_max_ms", "ms", "none: RocketMQ asks at one interval"),
    _broker("check_answer_ms", "ms; also the lease of a fetched check", "FMQ Feedback waits 5 s (3.3.5.1)"),
    _broker("checks_in_flight_max", "checks of one group", "RocketMQ `checkRequestHoldMax` = 2,000, on the client"),
    _group("check_limit", "checks; 0: none", "RocketMQ `transactionCheckMax` = 15, for every group"),
    _group(
        "past_limit",
        "`rollback`, `park` or `wait`",
        "RocketMQ moves the half to TRANS_CHECK_MAX_TIME_TOPIC; FMQ: the broker never decides (3.3)",
    ),
    _group(
        "skip_age_ms",
        f"a span such as 72h, at least {limits.SKIP_AGE_MIN_MS // 1_000} s; 0s: never",
        "RocketMQ `needSkip`: `fileReservedTime` = 72 hours, for every group",
    ),
    _broker("undecided_max", "transactions of one group; 0: none at all", "FMQ 3.3.2; RocketMQ `rejectTransactionMessage`"),
    _broker("undecided_bytes_max", "bytes of one group", "FMQ 3.3.2"),
    _broker("undecided_total_max", "transactions of all groups", "none"),
    _broker("undecided_total_bytes_max", "bytes of all groups", "none"),
    _broker("undecided_groups_max", "groups that have any", "none"),
    _group("undecided_max", "transactions; -1: as the broker's", "FMQ 3.3.2"),
    _group("undecided_bytes_max", "bytes; -1: as the broker's", "FMQ 3.3.2"),
    Knob(
        "messages of one transaction",
        "fixed",
        "messages, and bytes",
        f"{limits.TRANSACTION_BYTES_MAX:,} bytes; and {limits.TRANSACTION_MESSAGES_MAX:,} messages if one is delayed",
        "RocketMQ: one message",
    ),
    Knob("tx_id", "`begin(tx_id=)`, `send_in_transaction(tx_id=)`, `prepare(tx_id=)`", f"1 to {limits.TRANSACTION_ID_CHARS_MAX} of `A-Za-z0-9._:-`", "made by the client",
         "FMQ 3.2.3: of the application, or client version, address, start, process, connection, number"),
    Knob("query_id", "`begin(query_id=)`, `prepare(query_id=)`", "text", "none", "FMQ 3.2.2 `queryId`"),
    Knob("advice, comment", "`begin(advice=, comment=)`; also `transaction`, `prepare`, `send_in_transaction`, `@app.transaction`",
         f"`Outcome.COMMIT` or `ROLLBACK`; printable text, at most {limits.COMMENT_CHARS_MAX} characters", "none",
         "Oracle `ADVISE`, `COMMIT COMMENT` (`DBA_2PC_PENDING`)"),
    Knob("name", "`begin(name)`, `prepare(name=)`", "text", "none", "RocketMQ: one listener for each producer"),
    Knob("checks", "`AsyncClient(checks=)`", "checks answered at once", str(async_client.CHECKS),
         "RocketMQ `checkThreadPoolMaxSize` = 1"),
    Knob("timeout", "`begin(timeout=)`, `transaction(timeout=)`, `prepare(timeout=)`", "s, for each of two calls: sending the halves, settling them",
         f"the client's, {async_client.TIMEOUT_S:g}", "RocketMQ `sendMsgTimeout` = 3,000 ms for one attempt"),
    Knob("fetches_checks", "`AsyncClient(fetches_checks=)`", "yes or no", "no: checks are pushed", "FMQ Feedback, 3.3.5"),
    Knob("count, wait", "`fetch_checks(count=, wait=)`",
         f"checks, at most {limits.CHECK_POLL_CHECKS_MAX}; s, at most {limits.CHECK_POLL_WAIT_MAX_MS // 1_000}", "32; 20",
         "FMQ 3.3.5.1 polls each 100 ms and waits 5 s"),
    Knob("deduplication", "`halfmq serve --dedup-window-ms`; the ids are fixed", "ms, and ids", f"{limits.DEDUP_WINDOW_MS:,}, and {limits.DEDUP_IDS_MAX:,}",
         "none: a half that is sent again is a second half in RocketMQ"),
)  # fmt: skip

_REASONS = {
    Why.INVALID_PARAMETER: "refused (29)",
    Why.STILL_UNDECIDED: "refused (29), undecided",
    Why.ALREADY_SETTLED: "refused (604), verdict named",
    Why.VERDICT_CONFLICT: "refused (604), verdict named",
    Why.INCOMPLETE: "refused (604), incomplete",
    Why.NOT_FOUND: "refused (1), not found",
}


def knob_table() -> str:
    rows = [(f"`{knob.name}`" if "_" in knob.name else knob.name, *knob[1:]) for knob in KNOBS]
    return table(("name", "where it is set", "unit", "default", "precedent"), rows)


def state_table() -> str:
    """Events are rows, stages are columns. A cell contains records, reply and, if it changes, the next stage."""
    head = ("event", *[stage.value for stage in Stage])
    return table(
        head, [(event.value, *[_cell(TRANSITIONS[event][stage], stage) for stage in Stage]) for event in Event]
    )


def _cell(cell: Cell | None, stage: Stage) -> str:
    if cell is None:
        return "cannot be"
    parts = [kind.name for kind in cell.records]
    if cell.next is not stage:
        parts.append(f"→ **{cell.next.value}**")
    reply = cell.reply.value if isinstance(cell.reply, Said) else _REASONS[cell.reply]
    if reply:
        parts.append(f"*{reply}*")
    return "<br>".join(parts) or "nothing"


def diagram() -> str:
    """Every transition from one stage to another, for Mermaid."""
    ways: dict[tuple[Stage, Stage], list[Event]] = {}
    for event, row in TRANSITIONS.items():
        for stage, cell in row.items():
            if cell is not None and cell.next is not stage and stage is not Stage.PAST:
                ways.setdefault((stage, cell.next), []).append(event)
    names = {stage: stage.name.lower() for stage in Stage} | {Stage.ABSENT: "[*]"}
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f'    state "{stage.value}" as {names[stage]}' for stage in Stage if stage is not Stage.ABSENT]
    for (stage, following), events in ways.items():
        said = " / ".join(event.value.replace(":", "").replace(",", "") for event in events)
        lines.append(f"    {names[stage]} --> {names[following]} : {said}")
    return "\n".join([*lines, "```"])


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


PARTS: dict[str, Callable[[], str]] = {"knobs": knob_table, "states": state_table, "diagram": diagram}


def made(page: str, parts: Mapping[str, Callable[[], str]] = PARTS) -> str:
    """``page`` with its generated parts as of the current code."""
    for name, make in parts.items():
        pattern = re.compile(rf"(<!-- made: {name} -->\n).*?(<!-- end: {name} -->)", re.DOTALL)
        places = pattern.findall(page)
        if len(places) != 1:
            raise ValueError(f"the page has {len(places)} places for {name}")
        begin, end = places[0]
        page = pattern.sub(lambda _, text=f"{begin}{make()}\n{end}": text, page)  # noqa: B008 - made once, as it should
    return page


def fields_of_settings() -> set[str]:
    """All fields of the settings that concern transactions."""
    own = {"name", "set_by"}
    groups: set[Any] = set(ProducerSettings.__dataclass_fields__) - own
    broker = {name for name in BrokerSettings.__dataclass_fields__ if name.startswith(("check", "undecided"))}
    return groups | broker


if __name__ == "__main__":
    PAGE.write_text(made(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
