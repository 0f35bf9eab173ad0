"""``halfmq coordinator``: other systems' coordinators that decide transactions of this broker. Needs a running broker."""

from typing import Annotated, Final

import msgspec
import typer

from halfmq.cli import output
from halfmq.cli.exit_status import ExitStatus
from halfmq.cli.requests import TIMEOUT_S, URL, Commands, Json, Operator, Reason, Timeout, Url, Yes
from halfmq.model.durations import span
from halfmq.model.pending import CoordinatorInfo
from halfmq.model.text_fields import PageFields, write_fields
from halfmq.wire.remoting import coordinators as wire
from halfmq.wire.remoting.codes import HMQ_COORDINATORS, HMQ_FORGET_COORDINATOR

_COMMANDS: Final = Commands("halfmq coordinator")
app = _COMMANDS.group(
    "List the coordinators of other systems that decide transactions here, with their epochs; let the broker forget one."
)
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
    fields = write_fields(wire.ForgetCoordinatorFields(group, coordinator, operator, reason))
    _ask(url, HMQ_FORGET_COORDINATOR, fields, timeout, changes=True)
    output.say(f"{what} is forgotten")


def _all(url: str, timeout: float) -> list[CoordinatorInfo]:
    pages = _COMMANDS.pages(url, HMQ_COORDINATORS, lambda start: write_fields(PageFields(start=start)), timeout)
    return list(
        {(row.group, row.coordinator): row for page in pages for row in wire.COORDINATORS.decode(page.body)}.values()
    )
