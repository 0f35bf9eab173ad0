"""``halfmq config``: the settings of a broker, and where each comes from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from halfmq.cli import output
from halfmq.cli.exit_status import ExitStatus, exit_text
from halfmq.cli.main import with_options
from halfmq.cli.requests import TIMEOUT_S, URL, Commands, Json, Timeout, Url
from halfmq.cli.serve import KINDS, OPTIONS, configuration
from halfmq.cli.setting_sources import ConfiguredCommand, shown
from halfmq.errors import UsageError
from halfmq.model.shown_settings import ShownSetting
from halfmq.wire.remoting.codes import HMQ_SETTINGS
from halfmq.wire.remoting.configuration import SETTINGS

_COMMANDS: Final = Commands("halfmq config")
# No rich markup, as `halfmq serve`, whose options it has.
app = typer.Typer(
    help="Show the settings of a broker that runs, or of one that is to be started, and where each comes from.",
    epilog=exit_text("halfmq config"),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
_Sources = Annotated[bool, typer.Option("--sources", help="Also show where each value comes from.")]


def show(ctx: typer.Context, *, with_sources: bool, as_json: bool, **given: Any) -> None:
    """Show the settings that `halfmq serve` would have with the same options, environment and file; none is started.

    Exit status 2 if it would refuse them.
    """
    checked = {**given, "data": given["data"] or Path()}  # the other settings can be shown without it
    try:
        given["host"] = list(configuration(checked).checked().hosts)
    except UsageError as error:
        _COMMANDS.fail(str(error), ExitStatus.USAGE)
    _print(shown(ctx, given, KINDS), with_sources=with_sources, as_json=as_json)


@app.command()
def get(
    names: Annotated[list[str] | None, typer.Argument(metavar="[SETTING...]", help="Names of settings; all.")] = None,
    with_sources: _Sources = False,
    url: Url = URL,
    timeout: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show the settings of a running broker. The sources are those of its start."""
    found = SETTINGS.decode(_COMMANDS.ask(url, HMQ_SETTINGS, {}, timeout).body)
    for name in names or ():
        if name not in found:
            _COMMANDS.fail(f"the broker has no setting {name}", ExitStatus.NOT_FOUND)
    _print({name: found[name] for name in names or found}, with_sources=with_sources, as_json=as_json)


def _print(settings: Mapping[str, ShownSetting], *, with_sources: bool, as_json: bool) -> None:
    if as_json:
        output.document(msgspec.json.encode(settings))
        return
    columns = 3 if with_sources else 2
    rows = [(name, str(one), one.where)[:columns] for name, one in settings.items()]
    output.table(("SETTING", "VALUE", "SOURCE")[:columns], rows)


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
