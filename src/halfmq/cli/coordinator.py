"""``halfmq coordinator``: other systems' coordinators that decide transactions of this broker. Needs a running broker.

Exit status: ``exit_status``. Data goes to standard output, everything else to standard error.
"""

from typing import Annotated, Final

import msgspec
import typer

from halfmq.cli import output
from halfmq.cli.exit_status import ExitStatus, exit_text
from halfmq.cli.requests import TIMEOUT_S, URL, Commands, Json, Operator, Reason, Timeout, Url, Yes
from halfmq.model.durations import span
from halfmq.model.pending import CoordinatorInfo
from halfmq.wire.remoting import coordinators as wire
from halfmq.wire.remoting.codes import HMQ_COORDINATORS, HMQ_FORGET_COORDINATOR
from halfmq.wire.remoting.operators import EXT_COORDINATOR, EXT_FROM, EXT_GROUP, EXT_NEXT, EXT_OPERATOR, EXT_REASON

app = typer.Typer(
    help="List the coordinators of other systems that decide transactions here, with their epochs; let the broker forget one.",
    epilog=exit_text("halfmq coordinator"),
    no_args_is_help=True,
    add_completion=False,
)

_COMMANDS: Final = Commands("halfmq coordinator")
_ask, _fail = _COMMANDS.ask, _COMMANDS.fail


@app.command("list")
def list_(url: Url = URL, timeout: Timeout = TIMEOUT_S, as_json: Json = False) -> None:
    """List coordinators: the newest epoch of each, the process that took it, and how many transactions wait for it."""
    rows = _all(url, timeout)
    if as_json:
        output.document(msgspec.json.encode({"total": len(rows), "coordinators": rows}))
        return
    if rows:
        output.table(("COORDINATOR", "GROUP", "EPOCH", "TAKEN BY", "AGO", "UNDECIDED"), map(_row, rows))
    output.note(f"{len(rows)} coordinators")


def _row(row: CoordinatorInfo) -> tuple[str, ...]:
    return row.coordinator, row.group, str(row.epoch), row.taken_by, span(row.age_ms), str(row.undecided)


@app.command()
def forget(
    coordinator: Annotated[str, typer.Argument(metavar="COORDINATOR", help="Name of the coordinator.")],
    group: Annotated[str, typer.Option(help="Its producer group.")],
    operator: Operator,
    reason: Reason,
    yes: Yes = False,
    url: Url = URL,
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Let the broker forget a coordinator that will not come back. Refused while transactions wait for it.

    A process of it that is still at work is refused from then on, until one calls recover() again.
    """
    what = f"coordinator {coordinator} of group {group}"
    if not any((row.coordinator, row.group) == (coordinator, group) for row in _all(url, timeout)):
        _fail(f"the broker knows no {what}", ExitStatus.NOT_FOUND)
    if not yes:
        _COMMANDS.require_typed(coordinator, "Type the name of the coordinator to let the broker forget it")
    fields = {EXT_GROUP: group, EXT_COORDINATOR: coordinator, EXT_OPERATOR: operator, EXT_REASON: reason}
    _ask(url, HMQ_FORGET_COORDINATOR, fields, timeout, changes=True)
    output.say(f"{what} is forgotten")


def _all(url: str, timeout: float) -> list[CoordinatorInfo]:
    rows: dict[tuple[str, str], CoordinatorInfo] = {}
    start = 0
    while True:
        answer = _ask(url, HMQ_COORDINATORS, {EXT_FROM: str(start)} if start else {}, timeout)
        rows |= {(row.group, row.coordinator): row for row in wire.COORDINATORS.decode(answer.body)}
        following = answer.ext.get(EXT_NEXT, "0")
        if not following.isdecimal() or int(following) <= start:
            return list(rows.values())
        start = int(following)
