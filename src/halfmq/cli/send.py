"""``halfmq send``: sends one message, plainly or as a transaction."""

import sys
from typing import Annotated, Any, Final

import msgspec
import typer

from halfmq.cli import output
from halfmq.cli.exit_status import ExitStatus, exit_text
from halfmq.cli.requests import TIMEOUT_S, URL, Commands, Json, Preview, Timeout, Url, has_terminal
from halfmq.client.outgoing import compose
from halfmq.client.sync import Client
from halfmq.errors import OutcomeUnknown

_COMMANDS: Final = Commands("halfmq send")
app = typer.Typer(help="Send one message.", add_completion=False)
_fail = _COMMANDS.fail

_GROUP: Final = "halfmq-tools"


@app.command(epilog=exit_text("halfmq send"))
def send(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic of the message.")],
    body: Annotated[
        str, typer.Argument(metavar="[BODY|-]", help="The body; -: standard input, every byte of it.")
    ] = "-",
    key: Annotated[list[str] | None, typer.Option(help="A key by which it can be found; may be repeated.")] = None,
    tag: Annotated[str, typer.Option(help="Its tag, by which consumers filter.")] = "",
    property_: Annotated[
        list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="A property; may be repeated.")
    ] = None,
    sharding_key: Annotated[
        str | None, typer.Option(help="Messages with the same one are in one queue, in order.")
    ] = None,
    tx: Annotated[
        bool, typer.Option("--tx", help="Send it as a half message, and commit it at once: does that work here?")
    ] = False,
    rollback: Annotated[
        bool, typer.Option("--rollback", help="With --tx: roll it back, so that nobody reads it.")
    ] = False,
    group: Annotated[str, typer.Option(help="Producer group.")] = _GROUP,
    preview: Preview = False,
    url: Url = URL,
    timeout: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Send one message, and print where it is stored. With --tx as a transaction of its own."""
    if rollback and not tx:
        _fail("--rollback requires --tx", ExitStatus.USAGE)
    if body == "-":
        if has_terminal():
            output.note("reading the body from the terminal, up to the end of the file (Ctrl-D)")
        content = sys.stdin.buffer.read()
    else:
        content = body.encode()
    pairs = dict(_pair(one) for one in property_ or ())
    with _COMMANDS.reported():
        named: dict[str, Any] = {
            "tag": tag or None, "keys": key or (), "sharding_key": sharding_key, "properties": pairs or None,
        }  # fmt: skip
        message = compose(topic, content, **named)
        if preview:
            done: dict[str, Any] = {"topic": topic, "bytes": len(content), "sent": False}
            text = f"{len(content)} bytes would be sent to topic {topic}"
        else:
            try:
                with Client(url, group=group, timeout=timeout) as client:
                    if tx:
                        prepared = client.prepare([message], tx_id=client.new_transaction_id())
                        receipt = client.rollback(prepared) if rollback else client.commit(prepared)
                        done = {"topic": topic, "transaction": receipt.tx_id, "verdict": receipt.verdict, "sent": True}
                        text = f"transaction {receipt.tx_id} is {receipt.verdict}"
                    else:
                        sent = client.send(topic, content, **named)
                        done = {
                            "topic": topic, "id": sent.message_id, "broker": sent.broker, "queue": sent.queue, "offset": sent.offset,
                            "status": sent.status, "sent": True,
                        }  # fmt: skip
                        text = f"{topic}[{sent.queue}]@{sent.offset} on broker {sent.broker}, id {sent.message_id}"
            except OutcomeUnknown as error:
                _fail(str(error), ExitStatus.UNKNOWN_OUTCOME)
    if as_json:
        output.document(msgspec.json.encode(done))
    else:
        output.say(text)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        _fail(f"{text!r} is not NAME=VALUE", ExitStatus.USAGE)
    return name, value
