"""``halfmq context``: names for brokers, so that commands need no ``--url``."""

from typing import Annotated, Final

import msgspec
import typer

from halfmq.cli import contexts, output
from halfmq.cli.exit_status import ExitStatus
from halfmq.cli.requests import Commands, Json
from halfmq.model.address import parse_url

_COMMANDS: Final = Commands("halfmq context")
app = _COMMANDS.group("Name brokers, and choose the one that commands talk to.")

_Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the context.")]


@app.command()
def add(
    name: _Name,
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Of the broker, such as rocketmq://HOST:PORT. Secrets stay in files.")
    ],
    use: Annotated[bool, typer.Option("--use", help="Also use it from now on.")] = False,
) -> None:
    """Save a context, or change it."""
    if not name.isprintable() or not name.strip():
        _COMMANDS.fail("a name has printable characters", ExitStatus.USAGE)
    with _COMMANDS.reported():
        parse_url(url)
        saved = contexts.load()
        saved.urls[name] = url
        saved.current = name if use else saved.current
        contexts.save(saved)
    output.say(f"{name} is {url}{', and in use' if saved.current == name else ''}")


@app.command()
def use(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Name of the context; none: use no context.")] = "",
) -> None:
    """Let commands without --url and HALFMQ_URL talk to this broker from now on."""
    with _COMMANDS.reported():
        saved = contexts.load()
        if name and name not in saved.urls:
            _COMMANDS.fail(f"there is no context {name!r}: see `halfmq context list`", ExitStatus.NOT_FOUND)
        saved.current = name
        contexts.save(saved)
    output.say(f"{name} is in use: {saved.urls[name]}" if name else "no context is in use")


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the contexts; the one in use has a star."""
    with _COMMANDS.reported():
        saved = contexts.load()
    if as_json:
        output.document(msgspec.json.encode(saved))
    elif saved.urls:
        rows = [("*" if name == saved.current else "", name, url) for name, url in sorted(saved.urls.items())]
        output.table(("", "NAME", "URL"), rows)
    else:
        output.note("no contexts: halfmq context add NAME URL --use")


@app.command()
def remove(name: _Name) -> None:
    """Remove a context."""
    with _COMMANDS.reported():
        saved = contexts.load()
        if saved.urls.pop(name, None) is None:
            _COMMANDS.fail(f"there is no context {name!r}: see `halfmq context list`", ExitStatus.NOT_FOUND)
        if saved.current == name:
            saved.current = ""
        contexts.save(saved)
    output.say(f"{name} is removed")
