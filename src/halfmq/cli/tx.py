"""``halfmq tx``: list, explain and settle undecided transactions; limits and policy of producer groups. Needs a running broker."""

import time
from collections.abc import Sequence
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import typer

from halfmq.cli import output
from halfmq.cli.exit_status import ExitStatus
from halfmq.cli.requests import TIMEOUT_S, URL, Commands, Json, Operator, Reason, Timeout, Url, Yes, number_in, seconds
from halfmq.core.transaction.listing import UNDECIDED, UNKNOWN
from halfmq.model.durations import span
from halfmq.model.pending import DamagedTransaction, GroupStats, PendingTransaction
from halfmq.model.text_fields import PageFields, write_fields
from halfmq.wire.remoting import operators as wire
from halfmq.wire.remoting import producer_groups as groups
from halfmq.wire.remoting.codes import (
    EXT_POSITION,
    EXT_REPEATED,
    EXT_VERDICT,
    HMQ_ASK,
    HMQ_ASK_PARKED,
    HMQ_DAMAGED,
    HMQ_FORGET_DAMAGE,
    HMQ_PRODUCER,
    HMQ_RESOLVE,
    HMQ_STATS,
    HMQ_STORY,
    HMQ_TRANSACTIONS,
    HMQ_UNDECIDED,
)

_, FAILED, USAGE, NOT_FOUND, REFUSED, UNKNOWN_OUTCOME, STILL_UNDECIDED, DAMAGE_FOUND = ExitStatus
#: Values of `--past-limit` that the protocol and the log name differently.
_POLICY_NAMES: Final = {"set-aside": "park"}
_NO_POLICY: Final = "none"
_COMMANDS: Final = Commands("halfmq tx")
app = _COMMANDS.group("List, explain and settle undecided transactions; set limits and policies of producer groups.")
_ask, _require_typed, _fail = _COMMANDS.ask, _COMMANDS.require_typed, _COMMANDS.fail
_span_ms: Final = _COMMANDS.span_ms

_Id = Annotated[str, typer.Argument(metavar="TX_ID", help="Transaction id; with RocketMQ clients, the UNIQ_KEY.")]
_Group = Annotated[str, typer.Option(help="Producer group; required only if several groups have this id.")]
_IdOrAll = Annotated[
    str, typer.Argument(metavar="[TX_ID]", help="Transaction id; with RocketMQ clients, the UNIQ_KEY.")
]
_GroupOrAll = Annotated[
    str, typer.Option(help="Producer group; with TX_ID, required only if several groups have this id.")
]
_All = Annotated[bool, typer.Option("--all", help="All undecided transactions of --group, oldest first.")]
_Older = Annotated[
    str, typer.Option(metavar="SPAN", help="With --all: only transactions older than this, such as 90s, 5m, 2h, 1d.")
]
_Most = Annotated[int, typer.Option("--max", help="With --all: maximum number of transactions; 0: no limit.", min=0)]
_Topic = Annotated[str, typer.Option(help="With --all: only transactions with messages of this topic.")]
_OnlyParked = Annotated[bool, typer.Option("--parked", help="With --all: only transactions that a policy parked.")]
_Preview = Annotated[bool, typer.Option("--preview", help="Show which transactions it would be, and change nothing.")]
#: How often `check` polls for the outcome, seconds.
_POLL_S = 0.2
#: Transactions that `--all` lists and settles per page.
_PAGE: Final = 500
#: Rejections that `--all` prints.
_SHOWN_MAX: Final = 5


@app.command("list")
def list_(
    group: Annotated[str, typer.Option(help="Only this producer group.")] = "",
    older: Annotated[
        str, typer.Option(metavar="SPAN", help="Only transactions older than this, such as 90s, 5m, 2h, 1d.")
    ] = "0s",
    count: Annotated[
        int, typer.Option("--max", help="Maximum number of transactions, 1 to 1000.", min=1, max=1_000)
    ] = 100,
    start: Annotated[int, typer.Option("--from", help="With --group: skip this many, for the next page.", min=0)] = 0,
    url: Url = URL,
    timeout: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """List undecided transactions, oldest first."""
    older_ms = _span_ms(older)
    if start and not group:
        _fail("--from requires --group GROUP: the order across groups changes while transactions are settled", USAGE)
    page = _page(url, group, count, start, timeout)
    total, following = page.total, page.following
    if following and not group:
        rows, following = _oldest_of_all(url, page, count, timeout), 0
    else:
        rows = page.rows
    rows = [row for row in rows if row.age_ms >= older_ms]
    if as_json:
        document = {"total": total, "transactions": rows, **({"next": following} if following else {})}
        output.document(msgspec.json.encode(document))
        return
    if rows:
        head = [*_HEAD]
        lines = [[*_row(row)] for row in rows]
        if any(row.coordinator for row in rows):
            head += ["COORDINATOR", "BRANCH"]
            lines = [[*line, row.coordinator or "-", row.branch] for line, row in zip(lines, rows, strict=True)]
        if any(row.advice or row.comment for row in rows):
            head += ["ADVICE", "COMMENT"]
            lines = [[*line, row.advice or "-", row.comment] for line, row in zip(lines, rows, strict=True)]
        output.table(head, lines)
    output.note(f"{total} undecided, {len(rows)} shown")
    if following and rows:
        output.note(f"next page: --from {following}")
    elif total > count and not group:
        output.note("for the rest use --group GROUP; `halfmq tx stats` lists the groups")


class _Page(NamedTuple):
    total: int
    rows: list[PendingTransaction]
    #: Start of the next page; 0: this is the last one.
    following: int
    #: Broker time at which the ages of the rows were computed, ms.
    at_ms: int


def _page(url: str, group: str, count: int, start: int, timeout: float) -> _Page:
    fields = write_fields(wire.TransactionsFields(count, start, group))
    answer = _ask(url, HMQ_TRANSACTIONS, fields, timeout)
    return _Page(
        *wire.decode_pending(answer.ext, answer.body),
        _COMMANDS.following(answer, start),
        number_in(answer, wire.EXT_AT),
    )


def _oldest_of_all(url: str, page: _Page, count: int, timeout: float) -> list[PendingTransaction]:
    """Each page holds the oldest transactions of some groups; merge all pages and keep the oldest ``count``."""
    found: list[tuple[int, str, str, PendingTransaction]] = []
    while True:
        found += [(page.at_ms - row.age_ms, row.group, row.tx_id, row) for row in page.rows]
        found = sorted(found, key=lambda one: one[:3])[:count]
        if not page.following:
            return [row for _, _, _, row in found]
        page = _page(url, "", count, page.following, timeout)


_HEAD: Final = ("AGE", "GROUP", "TRANSACTION", "MESSAGES", "TOPICS", "CHECKS", "NEXT CHECK", "PRODUCERS")


def _row(row: PendingTransaction) -> tuple[str, ...]:
    if row.parked:
        following = f"parked ({row.parked})"
    elif row.coordinator:
        following = "its coordinator decides"
    elif not row.producers:
        following = "no reachable producer"
    else:
        following = f"in {span(row.next_check_in_ms)}" if row.next_check_in_ms else "due"
    return (
        span(row.age_ms),
        row.group,
        row.tx_id,
        f"{row.messages} of {row.expected or '?'}",
        ",".join(row.topics),
        str(row.checks),
        following,
        str(row.producers),
    )


@app.command()
def show(tx_id: _Id, group: _Group = "", url: Url = URL, timeout: Timeout = TIMEOUT_S, as_json: Json = False) -> None:
    """Explain one transaction: who prepared it, how often it was checked, why it waits, and who decided it."""
    found, state, sentences, _ = _story(url, tx_id, group, timeout)
    if as_json:
        output.document(msgspec.json.encode({"tx_id": tx_id, "group": found, "state": state, "story": sentences}))
    else:
        output.say(*sentences)
    if state == UNKNOWN:
        raise typer.Exit(NOT_FOUND)


@app.command()
def check(
    tx_id: _IdOrAll = "",
    group: _GroupOrAll = "",
    parked: Annotated[
        bool,
        typer.Option("--parked", help="All transactions of --group that a policy parked, in the order of parking."),
    ] = False,
    count: Annotated[
        int, typer.Option("--max", help="With --parked: maximum number of transactions; 0: no limit.")
    ] = 0,
    wait: Annotated[float, typer.Option(callback=seconds, help="Seconds to wait for the producer's answer.")] = 10.0,
    url: Url = URL,
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Check one transaction now, parked or not; or all parked transactions of a group with --parked.

    Rejected while the grace period of the transaction lasts. Exit status 6 if a checked transaction is still undecided.
    """
    if parked:
        if not group or tx_id or count < 0:
            _fail("--parked requires --group GROUP, takes no TX_ID, and --max must not be negative", USAGE)
        _check_parked(url, group, count, wait, timeout)
        return
    if not tx_id or count:
        _fail("name a transaction: TX_ID, or --group GROUP --parked [--max NUMBER]", USAGE)
    found, state, sentences, _ = _story(url, tx_id, group, timeout)
    if state == UNKNOWN:  # a check of it would fail with a less specific status
        output.note(*sentences)
        raise typer.Exit(NOT_FOUND)
    answer = _ask(url, HMQ_ASK, write_fields(wire.TransactionFields(found, tx_id)), timeout)
    found = answer.ext.get(wire.EXT_GROUP, found)
    whom = answer.ext.get(wire.EXT_CLIENT) or "the next client that fetches checks"
    output.note(f"check {answer.ext.get(wire.EXT_CHECKS)} sent to {whom}")
    until = time.monotonic() + wait
    while True:
        found, state, sentences, check_open = _story(url, tx_id, found, timeout)
        if state != UNDECIDED or not check_open or time.monotonic() >= until:
            break
        time.sleep(_POLL_S)
    output.say(*sentences)
    if state == UNDECIDED:
        raise typer.Exit(STILL_UNDECIDED)


def _check_parked(url: str, group: str, count: int, wait: float, timeout: float) -> None:
    """Check everything that is parked now, once; then wait for the outcomes and print a summary."""
    asked: dict[str, None] = {}
    wanted: int | None = None
    moved = time.monotonic()
    while True:
        most = min(wire.LISTED_MAX, (wanted or count or wire.LISTED_MAX) - len(asked))
        answer = _ask(url, HMQ_ASK_PARKED, write_fields(wire.AskParkedFields(group, most)), timeout)
        ids = wire.decode_ids(answer.body)
        left = int(answer.ext.get(wire.EXT_LEFT, "0"))
        if wanted is None:
            wanted = min(count or len(ids) + left, len(ids) + left)
            if not wanted:
                output.note(f"group {group} has no parked transactions")
                return
        before = len(asked)
        asked.update(dict.fromkeys(ids))
        if len(asked) > before:
            moved = time.monotonic()
            output.note(f"{len(asked)} of {wanted} checked")
        if len(asked) >= wanted or not left or time.monotonic() - moved >= wait:
            break
        if not ids:
            time.sleep(_POLL_S)
    until = time.monotonic() + wait
    while (open_ := _undecided_among(url, group, list(asked), timeout)) and time.monotonic() < until:
        time.sleep(_POLL_S)
    output.say(f"{len(asked)} checked: {len(asked) - open_} settled, {open_} still undecided")
    if len(asked) < wanted:
        output.note(
            f"{wanted - len(asked)} not checked: too many checks are in flight, or grace periods have not ended; run the command again later"
        )
    if open_ or len(asked) < wanted:
        raise typer.Exit(STILL_UNDECIDED)


def _undecided_among(url: str, group: str, ids: list[str], timeout: float) -> int:
    found = 0
    for at in range(0, len(ids), wire.UNDECIDED_IDS_MAX):
        body = wire.encode_ids(ids[at : at + wire.UNDECIDED_IDS_MAX])
        found += len(
            wire.decode_ids(_ask(url, HMQ_UNDECIDED, write_fields(wire.GroupFields(group)), timeout, body).body)
        )
    return found


@app.command()
def damaged(url: Url = URL, timeout: Timeout = TIMEOUT_S, as_json: Json = False) -> None:
    """List transactions that are settled against what their application's database did, and those that nobody can compare any more.

    Such a verdict was given by an operator, a policy or a coordinator. Exit status 7 if there is a finding.
    """
    rows, waiting = _all_damaged(url, timeout)
    found = sum(bool(row.local) for row in rows)
    if as_json:
        output.document(msgspec.json.encode({"findings": found, "waiting": waiting, "transactions": rows}))
    else:
        if rows:
            head = ("SETTLED", "GROUP", "TRANSACTION", "VERDICT", "BY", "DATABASE", "REPORTED BY")
            output.table(head, map(_damage, rows))
        output.note(f"{found} findings, {len(rows) - found} not compared, {waiting} still to be compared")
    if found:
        raise typer.Exit(DAMAGE_FOUND)


def _all_damaged(url: str, timeout: float) -> tuple[list[DamagedTransaction], int]:
    """(findings and what cannot be compared any more, number of those that are still to be compared)."""
    rows: list[DamagedTransaction] = []
    waiting = 0
    for page in _COMMANDS.pages(url, HMQ_DAMAGED, lambda start: write_fields(PageFields(start=start)), timeout):
        rows += wire.DAMAGED.decode(page.body)
        waiting = number_in(page, wire.EXT_WAITING)
    return rows, waiting


def _damage(row: DamagedTransaction) -> tuple[str, ...]:
    by = f"{row.decided_by} {row.by}" if row.by else row.decided_by
    return (
        f"{span(row.settled_ago_ms)} ago", row.group, row.tx_id, row.verdict, by, row.local or "not compared", row.source or "-",
    )  # fmt: skip


@app.command()
def forget(
    operator: Operator,
    reason: Reason,
    tx_ids: Annotated[list[str] | None, typer.Argument(metavar="[TX_ID...]", help="Transaction ids.")] = None,
    group: _GroupOrAll = "",
    every: Annotated[bool, typer.Option("--all", help="All that `damaged` lists of --group.")] = False,
    yes: Yes = False,
    url: Url = URL,
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Let the broker forget findings of `halfmq tx damaged`, because they are repaired, or were seen. The verdicts stay.

    Several at once: TX_ID TX_ID..., or --group GROUP --all. Those that are not known, or not to be forgotten yet, are named, and the others
    forgotten. A later report of the same contradiction is a finding again.
    """
    ids = list(dict.fromkeys(tx_ids or ()))
    if bool(ids) == every or (every and not group):
        _fail("name transactions: TX_ID..., or --group GROUP --all", USAGE)
    listed, waiting = _all_damaged(url, timeout)
    known = [row for row in listed if group in ("", row.group)]
    if every and not known:
        others = f"{len(listed)} of others, and counts {waiting} verdicts that are still to be compared"
        output.note(f"group {group} has no findings; `halfmq tx damaged` lists {others}")
        return
    rows = known if every else [row for row in known if row.tx_id in ids]
    unknown = set(ids).difference(row.tx_id for row in rows)
    if len(rows) > len(ids) - len(unknown) and not every:
        _fail("several groups have findings of one of these ids: name one with --group", USAGE)
    for tx_id in ids:
        if tx_id in unknown:
            output.note(f"no damage of transaction {tx_id} is known", *_story(url, tx_id, group, timeout)[2])
    if rows and not yes:
        if every:
            _require_typed(group, f"Type the group name to forget its {len(rows)} findings")
        elif len(ids) == 1:
            _require_typed(ids[0], "Type the transaction id to forget its damage")
        else:
            _require_typed(str(len(rows)), f"Type the number of transactions, {len(rows)}, to forget their damage")
    refused = _forget(rows, operator, reason, url, timeout)
    if every or len(ids) > 1:
        output.note(f"{len(rows) - refused} forgotten, {refused} rejected, {len(unknown)} not known")
    if refused or unknown:
        raise typer.Exit(REFUSED if refused else NOT_FOUND)


def _forget(rows: Sequence[DamagedTransaction], operator: str, reason: str, url: str, timeout: float) -> int:
    """Forget each, and say so. Returns how many were rejected."""
    fields = [write_fields(wire.ForgetDamageFields(row.group, row.tx_id, operator, reason)) for row in rows]
    refused = 0
    answers = _COMMANDS.each(url, HMQ_FORGET_DAMAGE, fields, timeout, "run the command again") if rows else ()
    for row, (answer, why) in zip(rows, answers, strict=True):
        if why:
            refused += 1
            output.note(f"{row.tx_id}: {why}")
        else:
            output.say(
                f"the damage of {row.tx_id} of group {row.group} is forgotten; it stays {answer.ext.get(EXT_VERDICT)}"
            )
    return refused


@app.command()
def stats(
    group: Annotated[str, typer.Option(help="Only this producer group.")] = "",
    count: Annotated[
        int,
        typer.Option(
            "--max", help="Maximum number of groups, those with most undecided transactions; 0: no limit.", min=0
        ),
    ] = 0,
    url: Url = URL,
    timeout: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Statistics of producer groups: undecided transactions, reachable producers, recent verdicts, limits and policy."""
    rows: list[GroupStats] = []
    undecided = of_groups = 0
    for answer in _COMMANDS.pages(
        url, HMQ_STATS, lambda start: write_fields(wire.GroupPageFields(group, start)), timeout
    ):
        page = groups.STATS.decode(answer.body)
        undecided += sum(row.undecided for row in page)
        of_groups += len(page)
        rows = sorted([*rows, *page], key=lambda row: (-row.undecided, row.group))[: count or None]
    if as_json:
        output.document(msgspec.json.encode(rows))
        return
    if rows:
        head = (
            "GROUP", "UNDECIDED", "OLDEST", "PARKED", "IN CHECK", "PRODUCERS", "BYTES", "COMMITTED", "ROLLED BACK", "POLICY",
        )  # fmt: skip
        output.table(head, map(_figures, rows))
        if rows[0].counted_ms:
            output.note(f"COMMITTED and ROLLED BACK count the last {span(rows[0].counted_ms)}")
    shown = f", {len(rows)} shown" if len(rows) < of_groups else ""
    output.note(f"{undecided} undecided in {of_groups} groups{shown}")


def _figures(row: GroupStats) -> tuple[str, ...]:
    return (
        row.group,
        f"{row.undecided} of {row.undecided_max}",
        span(row.oldest_ms) if row.undecided else "-",
        str(row.parked),
        str(row.in_flight),
        str(row.producers),
        str(row.message_bytes),
        str(row.committed),
        str(row.rolled_back),
        _policy(row.check_limit, row.past_limit, row.skip_age_ms),
    )


def _policy(check_limit: int, past_limit: str, skip_age_ms: int) -> str:
    parts = []
    if check_limit:
        parts.append(f"{_POLICY_NAMES.get(past_limit, past_limit)} after {check_limit} checks")
    if skip_age_ms:
        parts.append(f"park at {span(skip_age_ms)}")
    return ", ".join(parts) or _NO_POLICY


@app.command("limits")
def limits_(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="Producer group.")],
    check_limit: Annotated[
        int | None,
        typer.Option(
            help="Checks before --past-limit applies, up to 1,000,000; 0: no limit, transactions wait for ever."
        ),
    ] = None,
    past_limit: Annotated[
        str | None,
        typer.Option(metavar="rollback|park|wait", help="What happens to a transaction past the check limit."),
    ] = None,
    skip_age: Annotated[
        str | None,
        typer.Option(metavar="SPAN", help="Park transactions older than this, such as 72h; at least 60s; 0s: never."),
    ] = None,
    undecided_max: Annotated[
        int | None, typer.Option(help="Maximum of undecided transactions; 0: no transactions; -1: the broker's limit.")
    ] = None,
    undecided_bytes_max: Annotated[
        int | None, typer.Option(help="Maximum bytes of undecided messages; -1: the broker's limit.")
    ] = None,
    operator: Operator = "",
    reason: Reason = "",
    yes: Yes = False,
    url: Url = URL,
    timeout: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show the limits and the policy of a producer group, or set those that are given.

    Without a policy an undecided transaction waits for ever.
    """
    if check_limit == 0 and past_limit is None:
        past_limit = "wait"
    if past_limit == "wait" and check_limit is None:
        check_limit = 0
    if past_limit not in (None, "wait", "rollback", "park"):
        _fail(f"--past-limit must be rollback, park or wait, not {past_limit!r}", USAGE)
    change = groups.ProducerChange(
        check_limit,
        "set-aside" if past_limit == "park" else past_limit,  # type: ignore[arg-type]  # checked above
        None if skip_age is None else _span_ms(skip_age),
        undecided_max,
        undecided_bytes_max,
    )
    if not change.is_empty and not operator:
        _fail("a change requires --operator NAME", USAGE)
    if past_limit == "rollback" and not yes:
        output.note(
            "the broker will roll back undecided transactions past the limit, even if the application's database committed them"
        )
        _require_typed(group, f"Type the group name to set this policy for {group}")
    fields = write_fields(groups.ProducerFields(group, operator, reason))
    try:
        body = b"" if change.is_empty else groups.encode_change(change)
    except OverflowError:
        _fail("a limit is too large: the maximum is a 64-bit integer", USAGE)
    limits = groups.LIMITS.decode(_ask(url, HMQ_PRODUCER, fields, timeout, body, changes=bool(body)).body)
    if as_json:
        output.document(msgspec.json.encode(limits))
        return
    by = f" (set by {limits.set_by})" if limits.set_by else ""
    policy = _policy(limits.check_limit, limits.past_limit, limits.skip_age_ms)
    meaning = "; undecided transactions wait for ever" if policy == _NO_POLICY else ""
    output.say(f"policy: {policy}{meaning}{by}")
    for what, own, brokers in (
        ("undecided transactions", limits.undecided_max, limits.broker_undecided_max),
        ("bytes of undecided messages", limits.undecided_bytes_max, limits.broker_undecided_bytes_max),
    ):
        output.say(f"{what}: at most {brokers} (the broker's limit)" if own < 0 else f"{what}: at most {own}")


class _Order(NamedTuple):
    """What an operator decides in the place of an application."""

    verdict: wire.OutcomeName
    operator: str
    reason: str
    group: str
    #: Without a confirmation.
    yes: bool
    url: str
    timeout: float
    #: Only say what it would change.
    preview: bool = False

    @property
    def done(self) -> str:
        """What the transactions are then."""
        return "COMMITTED" if self.verdict == "COMMIT" else "ROLLED_BACK"

    def fields(self, group: str, tx_id: str) -> dict[str, Any]:
        """Of the request for one transaction."""
        return write_fields(
            wire.ResolveFields(
                group=group, tx_id=tx_id, verdict=self.verdict, operator=self.operator, reason=self.reason
            )
        )

    def require_typed(self, name: str, what: str) -> None:
        """Raises typer.Exit: the operator does not type ``name``, the ``what``."""
        if not self.yes:
            output.note(
                f"{self.verdict} overrides the application's database. If a producer of the group can be started, start it "
                "instead: it answers the check."
            )
            _require_typed(name, f"Type the {what} to confirm the {self.verdict}")


def _decision(verdict: wire.OutcomeName, help_: str) -> None:
    """Add the command that gives ``verdict``."""

    @app.command(verdict.lower(), help=help_)
    def decide(
        operator: Operator,
        tx_id: _IdOrAll = "",
        reason: Reason = "",
        group: _GroupOrAll = "",
        every: _All = False,
        older: _Older = "",
        topic: _Topic = "",
        parked: _OnlyParked = False,
        most: _Most = 0,
        preview: _Preview = False,
        yes: Yes = False,
        url: Url = URL,
        timeout: Timeout = TIMEOUT_S,
    ) -> None:
        order = _Order(verdict, operator, reason, group, yes, url, timeout, preview)
        if not every:
            if not tx_id or older or most or topic or parked:
                _fail(f"name a transaction: TX_ID, or {_OF_A_GROUP}", USAGE)
            _resolve(order, tx_id)
        elif tx_id or not group:
            _fail("--all requires --group GROUP and takes no TX_ID", USAGE)
        else:
            wanted = _Wanted(_span_ms(older or "0s"), topic, parked)
            (_preview_all if preview else _resolve_all)(order, wanted, most)


_OF_A_GROUP: Final = "--group GROUP --all [--older SPAN] [--topic TOPIC] [--parked] [--max NUMBER]"
_EVERY: Final = (
    f"For all undecided transactions of a group, or some: {_OF_A_GROUP}. With --preview they are only shown."
)
_decision(
    "COMMIT",
    f"Commit a transaction in place of its producer: its messages become visible. This cannot be undone.\n\n{_EVERY}",
)
_decision(
    "ROLLBACK",
    f"Roll back a transaction in place of its producer: its messages are never delivered. This cannot be undone.\n\n{_EVERY}",
)


def _resolve(order: _Order, tx_id: str) -> None:
    found, state, sentences, _ = _story(order.url, tx_id, order.group, order.timeout)
    output.note(*sentences)
    if state == UNKNOWN:
        raise typer.Exit(NOT_FOUND)
    if order.preview:
        would = f"would be {order.done}" if state == UNDECIDED else f"is {state}, and would stay so"
        output.say(f"{tx_id} of group {found} {would}; nothing was changed")
        return
    if state == UNDECIDED:
        order.require_typed(tx_id, "transaction id")
    ext = _ask(order.url, HMQ_RESOLVE, order.fields(found, tx_id), order.timeout, changes=True).ext
    already = "already " if ext.get(EXT_REPEATED) == "true" else ""
    output.say(f"{tx_id} of group {found} is {already}{ext.get(EXT_VERDICT)}, at log position {ext.get(EXT_POSITION)}")


class _Wanted(NamedTuple):
    """Which of a group's undecided transactions."""

    older_ms: int
    #: "": of any topic.
    topic: str
    is_parked: bool

    def has(self, row: PendingTransaction, passed_ms: int = 0) -> bool:
        """Whether it is one of them. ``passed_ms``: since the first was looked at; who reached the age since then is not."""
        is_of_topic = not self.topic or self.topic in row.topics
        return row.age_ms - passed_ms >= self.older_ms and is_of_topic and (bool(row.parked) or not self.is_parked)

    def __str__(self) -> str:
        texts = [f"older than {span(self.older_ms)}"] * bool(self.older_ms)
        texts += [f"with messages of topic {self.topic}"] * bool(self.topic)
        texts += ["that are parked"] * self.is_parked
        return f"those {' and '.join(texts)}" if texts else "all of them"


def _preview_all(order: _Order, which: _Wanted, most: int) -> None:
    """Show what ``_resolve_all`` would settle."""
    start, found = 0, list[PendingTransaction]()
    while True:
        _, rows, following, _ = _page(order.url, order.group, _PAGE, start, order.timeout)
        found += [row for row in rows if which.has(row)]
        if not following or (most and len(found) >= most):
            break
        start = following
    found = found[: most or None]
    if found:
        output.table(_HEAD, map(_row, found))
    output.note(f"{len(found)} transactions of group {order.group} would be {order.done}; nothing was changed")


def _resolve_all(order: _Order, which: _Wanted, most: int) -> None:
    """Settle the undecided transactions of a group page by page, each with its own verdict. Rejected ones stay undecided."""
    verdict, group, url, timeout = order.verdict, order.group, order.url, order.timeout
    began = time.monotonic()
    total = _page(url, group, 1, 0, timeout).total
    if not total:
        output.note(f"group {group} has no undecided transactions")
        return
    output.note(f"group {group} has {total} undecided transactions; {verdict} applies to {which}")
    order.require_typed(group, "group name")
    settled, refused = 0, dict[str, str]()
    start = refused_before = 0
    while not most or settled + len(refused) < most:
        _, rows, following, _ = _page(url, group, _PAGE, start, timeout)
        passed_ms = int((time.monotonic() - began) * 1_000)
        wanted = [row.tx_id for row in rows if which.has(row, passed_ms) and row.tx_id not in refused]
        wanted = wanted[: most - settled - len(refused)] if most else wanted
        before = settled
        again = f"{before} were settled before this page; check with `halfmq tx list`, then run the command again"
        answers = _COMMANDS.each(url, HMQ_RESOLVE, [order.fields(group, one) for one in wanted], timeout, again)
        for tx_id, (_, why) in zip(wanted, answers, strict=True):
            if why:
                refused[tx_id] = why
            else:
                settled += 1
        start += len(rows) - (settled - before)
        if wanted:
            output.note(f"{settled} settled, {len(refused)} rejected")
        start = following and start
        if not following:
            if len(refused) == refused_before:
                break
            refused_before = len(refused)  # others may have settled some, which shifts the pages: start over
    for tx_id, why in list(refused.items())[:_SHOWN_MAX]:
        output.note(f"{tx_id}: {why}")
    left = _page(url, group, 1, 0, timeout).total
    output.say(
        f"{settled} transactions of group {group} are {order.done}, {len(refused)} were rejected, {left} are undecided"
    )
    if refused:
        raise typer.Exit(REFUSED)


def _story(url: str, tx_id: str, group: str, timeout: float) -> tuple[str, str, list[str], bool]:
    """(group, state, sentences, a check of it is open)."""
    answer = _ask(url, HMQ_STORY, write_fields(wire.TransactionFields(group, tx_id)), timeout)
    return (
        answer.ext.get(wire.EXT_GROUP, group),
        answer.ext.get(wire.EXT_STATE, UNKNOWN),
        wire.STORY.decode(answer.body),
        wire.EXT_CHECK_OPEN in answer.ext,
    )
