"""``halfmq asyncapi MODULE:APP``: the AsyncAPI document of an application."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Final

import msgspec
import typer

from halfmq.cli import output
from halfmq.cli.application import AppArgument, load_app
from halfmq.cli.exit_status import ExitStatus, exit_text
from halfmq.cli.requests import Commands
from halfmq.client.asyncapi import document
from halfmq.errors import UsageError

_COMMANDS: Final = Commands("halfmq asyncapi")
#: Keys that YAML reads as text without quotes, in all of its versions.
_PLAIN: Final = re.compile(r"(?!(?:true|false|null|yes|no|on|off|y|n)$)[A-Za-z_][A-Za-z0-9_.-]*", re.IGNORECASE)

# No rich markup: as `halfmq serve`.
app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog=exit_text("halfmq asyncapi"))
def asyncapi(
    target: AppArgument,
    title: Annotated[str, typer.Option(help="Title of the application. Default: MODULE.")] = "",
    version: Annotated[str, typer.Option(help="Version of the application's interface.")] = "0.0.0",
    as_yaml: Annotated[bool, typer.Option("--yaml", help="YAML instead of JSON.")] = False,
) -> None:
    """Print the AsyncAPI 3.0 document of an application: what it receives and sends, with the schemas of the bodies.

    It asks no broker. In the document are consumers, transactions that name a topic, and what App.publishes declares; no user, secret or
    file of the URL.
    """
    found = load_app(_COMMANDS, target)
    try:
        made = document(found, title=title or target.partition(":")[0], version=version)
    except UsageError as error:
        _COMMANDS.fail(f"{target}: {error}", ExitStatus.USAGE)
    text = "\n".join(_yaml(made)).encode() if as_yaml else msgspec.json.format(msgspec.json.encode(made), indent=2)
    output.document(text)


def _yaml(value: dict[str, Any], indent: str = "") -> Iterator[str]:
    """Lines of a dictionary. Scalars are as in JSON, which YAML contains."""
    for key, one in value.items():
        name = key if _PLAIN.fullmatch(key) else _scalar(key)
        if isinstance(one, dict) and one:
            yield f"{indent}{name}:"
            yield from _yaml(one, f"{indent}  ")
        elif isinstance(one, list) and any(isinstance(part, dict) and part for part in one):
            yield f"{indent}{name}:"
            for part in one:
                yield from _item(part, f"{indent}  ")
        else:
            yield f"{indent}{name}: {_scalar(one)}"


def _item(part: Any, indent: str) -> Iterator[str]:
    if not (isinstance(part, dict) and part):
        yield f"{indent}- {_scalar(part)}"
        return
    first, *rest = _yaml(part, f"{indent}  ")
    yield f"{indent}- {first.lstrip(' ')}"
    yield from rest


def _scalar(value: Any) -> str:
    return msgspec.json.encode(value).decode()
