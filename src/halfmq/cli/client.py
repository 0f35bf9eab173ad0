"""``halfmq client``: who is connected to a broker, and closing the connections of one client. Needs a running halfmq broker."""

from typing import Annotated, Final

import msgspec
import typer

from halfmq.cli import output
from halfmq.cli.exit_status import ExitStatus
from halfmq.cli.requests import TIMEOUT_S, URL, Commands, Json, Operator, Preview, Reason, Timeout, Url, Yes
from halfmq.model.pending import ClientInfo
from halfmq.model.text_fields import PageFields, read_fields, write_fields
from halfmq.wire.remoting.clients import CLIENTS, KickClientFields, KickedReply
from halfmq.wire.remoting.codes import HMQ_CLIENTS, HMQ_KICK_CLIENT

_COMMANDS: Final = Commands("halfmq client")
app = _COMMANDS.group("List who is connected to a broker; close the connections of a client.")
_ask, _fail = _COMMANDS.ask, _COMMANDS.fail

_Selected = Annotated[str, typer.Argument(metavar="CLIENT", help="Client id, or number of a connection.")]


@app.command("list")
def list_(
    group: Annotated[str, typer.Option(help="Only clients of this consumer or producer group.")] = "",
    url: Url = URL,
    timeout: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """List connections: whose they are, of which groups, and whether their requests wait."""
    rows = [row for row in _all(url, timeout) if not group or group in (*row.consumes, *row.produces)]
    if as_json:
        output.document(msgspec.json.encode({"total": len(rows), "clients": rows}))
        return
    if rows:
        head = ("CONNECTION", "ADDRESS", "USER", "CLIENT", "SOFTWARE", "CONSUMES", "PRODUCES", "WAITING")
        output.table(head, map(_row, rows))
    output.note(f"{len(rows)} connections, of {len({row.client_id for row in rows if row.client_id})} clients")


@app.command()
def kick(
    selected: _Selected,
    operator: Operator,
    reason: Reason,
    preview: Preview = False,
    yes: Yes = False,
    url: Url = URL,
    timeout: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Close the connections of a client, or one connection.

    Its queues go to other members of its group at once; nothing that was confirmed is lost. A client of this kind connects again within
    seconds, so stop the program itself, or change what its user may, to keep it away.
    """
    rows = _all(url, timeout)
    found = [row for row in rows if row.client_id == selected]
    fields = KickClientFields(client_id=selected, operator=operator, reason=reason)
    if not found and selected.isdecimal():
        found = [row for row in rows if row.connection == int(selected)]
        fields = KickClientFields(connection=int(selected), operator=operator, reason=reason)
    if not found:
        _fail(f"no client {selected} is connected", ExitStatus.NOT_FOUND)
    if not as_json:
        for row in found:
            output.note(f"connection {row.connection} from {row.address}: {_groups(row)}")
    closed = 0
    if not preview:
        if not yes:
            _COMMANDS.require_typed(selected, "Type the client id or the number again to close its connections")
        answer = _ask(url, HMQ_KICK_CLIENT, write_fields(fields), timeout, changes=True)
        with _COMMANDS.reported():
            closed = read_fields(KickedReply, answer.ext).closed
    if as_json:
        output.document(msgspec.json.encode({"client": selected, "connections": found, "closed": closed}))
    elif preview:
        output.say(f"{len(found)} connections of {selected} would be closed")
    else:
        output.say(f"{selected} is closed: {closed} connections")


def _row(row: ClientInfo) -> tuple[str, ...]:
    waiting = f"{row.pending}{' (does not read)' if row.is_stalled else ''}"
    software = f"{row.language} {row.version}" if row.language else "-"
    return (
        str(row.connection), row.address, row.user or "-", row.client_id or "-", software,
        ",".join(row.consumes) or "-", ",".join(row.produces) or "-", waiting,
    )  # fmt: skip


def _groups(row: ClientInfo) -> str:
    kinds = (
        (f"consumes as {', '.join(row.consumes)}", row.consumes),
        (f"produces as {', '.join(row.produces)}", row.produces),
    )
    return "; ".join(text for text, names in kinds if names) or "in no group"


def _all(url: str, timeout: float) -> list[ClientInfo]:
    pages = _COMMANDS.pages(url, HMQ_CLIENTS, lambda start: write_fields(PageFields(start=start)), timeout)
    return list({row.connection: row for page in pages for row in CLIENTS.decode(page.body)}.values())
