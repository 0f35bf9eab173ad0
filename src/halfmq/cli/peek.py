"""``halfmq peek``: looks at stored messages. Reads by pull and query, and commits nothing: no consumer notices."""

import time
from typing import Annotated, Final

import msgspec
import typer

from halfmq.cli import output, reading
from halfmq.cli.cluster import Cluster
from halfmq.cli.exit_status import ExitStatus, exit_text
from halfmq.cli.moment import moment_ms
from halfmq.cli.requests import TIMEOUT_S, URL, Commands, Json, Timeout, Url

_COMMANDS: Final = Commands("halfmq peek")
app = typer.Typer(help="Look at stored messages.", add_completion=False)
_fail = _COMMANDS.fail

#: Messages of a request by key.
_MOST: Final = 1_000


@app.command(epilog=exit_text("halfmq peek"))
def peek(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic of the messages.")],
    last: Annotated[int | None, typer.Option(metavar="N", help="The newest N messages.", min=1, max=_MOST)] = None,
    at: Annotated[
        str,
        typer.Option("--time", metavar="TIME", help="From this time on: 2026-11-28T09:30Z, or 2h for two hours ago."),
    ] = "",
    key: Annotated[str, typer.Option(help="Those with this key.")] = "",
    message_id: Annotated[str, typer.Option("--id", help="The one with this message id or offset id.")] = "",
    count: Annotated[int, typer.Option("--max", help="With --time or --key: maximum number.", min=1, max=_MOST)] = 10,
    url: Url = URL,
    timeout: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Look at stored messages by time, key or id, or at the newest ones. Changes nothing."""
    if sum((last is not None, bool(at), bool(key), bool(message_id))) != 1:
        _fail("say which messages: one of --last, --time, --key and --id", ExitStatus.USAGE)
    with Cluster(_COMMANDS, url, timeout) as cluster:
        reader = reading.Reader(_COMMANDS, cluster)
        if last is not None:
            found = reader.last(topic, last)
        elif at:
            found = reader.since(topic, moment_ms(_COMMANDS, at, time.time_ns() // 1_000_000), count)
        elif key:
            found = reader.by_key(topic, key, count, is_unique=False)
        else:
            found = reader.by_key(topic, message_id, count, is_unique=True) or reader.by_offset_id(topic, message_id)
    reading.require(_COMMANDS, found, f"topic {topic} has no such message")
    if as_json:
        rows = [reading.row_of(one) for one in found]
        output.document(msgspec.json.encode({"total": len(rows), "messages": rows}))
        return
    for one in found:
        reading.say(one)
    output.note(f"{len(found)} messages")
