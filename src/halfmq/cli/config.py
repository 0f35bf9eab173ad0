"""``halfmq config``: the settings of a broker, and where each comes from."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from halfmq.cli import output
from halfmq.cli.exit_status import ExitStatus, exit_text
from halfmq.cli.main import with_options
from halfmq.cli.requests import Json
from halfmq.cli.serve import KINDS, OPTIONS, configuration
from halfmq.cli.setting_sources import ConfiguredCommand, sources
from halfmq.errors import UsageError

# No rich markup, as `halfmq serve`, whose options it has.
app = typer.Typer(
    help="Show the settings of `halfmq serve`, and where each comes from.",
    epilog=exit_text("halfmq config"),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


def show(ctx: typer.Context, **given: Any) -> None:
    """Show the settings that `halfmq serve` would have with the same options, environment and file; none is started.

    Exit status 2 if it would refuse them.
    """
    as_json, with_sources = given.pop("as_json"), given.pop("with_sources")
    found = sources(ctx, KINDS)
    checked = {**given, "data": given["data"] or Path()}  # the other settings can be shown without it
    try:
        given["host"] = list(configuration(checked).checked().hosts)
    except UsageError as error:
        output.note(f"halfmq config show: {error}")
        raise typer.Exit(ExitStatus.USAGE) from error
    if as_json:
        document = {
            name: {"value": _plain(given[name]), "source": found[name].kind.value, "from": found[name].name or None}
            for name in KINDS
        }
        output.document(msgspec.json.encode(document))
        return
    rows = [(name, _text(given[name]), str(found[name])) for name in KINDS]
    columns = ("SETTING", "VALUE", "SOURCE")[: 3 if with_sources else 2]
    output.table(columns, [row[: len(columns)] for row in rows])


def _plain(value: Any) -> Any:
    """As JSON, and as in a file."""
    if isinstance(value, Path):
        return str(value)
    return getattr(value, "value", value)


def _text(value: Any) -> str:
    plain = _plain(value)
    if plain is None:
        return "-"
    if isinstance(plain, bool):
        return str(plain).lower()
    return ",".join(plain) if isinstance(plain, list) else str(plain)


_Sources = Annotated[bool, typer.Option("--sources", help="Also show where each value comes from.")]
app.command("show", cls=ConfiguredCommand)(
    with_options(
        show,
        {
            "ctx": (typer.Context, ...),
            **OPTIONS,
            "data": (OPTIONS["data"][0], None),
            "with_sources": (_Sources, False),
            "as_json": (Json, False),
        },
    )
)


@app.callback()
def _root() -> None:  # with a callback it is a group, though it has one command of its own
    pass
