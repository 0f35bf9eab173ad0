"""``halfmq config``: the settings of a broker, where each comes from, and changes while it runs."""

import math
from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import msgspec
import typer
from msgspec.structs import replace as replace_fields

from halfmq.cli import output
from halfmq.cli.exit_status import ExitStatus, exit_text
from halfmq.cli.main import with_options
from halfmq.cli.moment import moment_text
from halfmq.cli.requests import TIMEOUT_S, URL, Commands, Json, Operator, Preview, Reason, Timeout, Url, Yes, ask
from halfmq.cli.serve import KINDS, OPTIONS, configuration, converted
from halfmq.cli.setting_sources import ConfiguredCommand, shown
from halfmq.errors import UsageError
from halfmq.model.address import parse_url
from halfmq.model.runtime_settings import KIND_IN_WORDS, RUNTIME, Changes
from halfmq.model.shown_settings import ShownSetting
from halfmq.model.text_fields import write_fields
from halfmq.wire.remoting.codes import HMQ_SET_SETTING, HMQ_SETTINGS, ResponseCode
from halfmq.wire.remoting.configuration import EXT_WARNING, SETTINGS, SetSettingFields

_COMMANDS: Final = Commands("halfmq config")
# No rich markup, as `halfmq serve`, whose options it has.
app = typer.Typer(
    help="Show the settings of a broker that runs, or of one that is to be started, and where each comes from; change them while it runs.",
    epilog=exit_text("halfmq config"),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
_Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of a setting, as in a configuration file.")]
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
    """Show the settings of a running broker. The sources are those of its start, or who set it since then."""
    found = _settings(url, timeout)
    for name in names or ():
        if name not in found:
            _unknown(name, found)
    _print({name: found[name] for name in names or found}, with_sources=with_sources, as_json=as_json)


@app.command("set")
def set_(
    name: _Name,
    value: Annotated[
        str, typer.Argument(metavar="VALUE", help="As the option of `halfmq serve` takes it; yes or no: true, false.")
    ],
    operator: Operator = "",
    reason: Reason = "",
    preview: Preview = False,
    yes: Yes = False,
    url: Url = URL,
    timeout: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Give a setting of a running broker another value, at once and for later starts.

    The value holds until it is unset, or until a start at which the configuration (option, environment or file) says something else than
    when it was set. Which settings may change, and since when a change counts: docs/configuration.md. A negative value: after --.
    """
    given = _typed(name, value)
    fields = SetSettingFields(
        name, msgspec.json.encode(given).decode(), operator=operator, reason=reason, preview=preview
    )
    _change(fields, ShownSetting(given, "recorded"), yes, url, timeout, as_json)


def _typed(name: str, text: str) -> Any:
    """The value of a setting that may change, which ``text`` means; of others: the text.

    Raises:
        typer.Exit: it means none.
    """
    row = RUNTIME.get(name)
    if not isinstance(row, Changes):
        return text
    given = None
    with suppress(typer.BadParameter):  # its text names the option of `halfmq serve`, which was not given
        given = converted(name, text)
    if given is None or (isinstance(given, float) and not math.isfinite(given)):  # JSON has no such number
        _COMMANDS.fail(f"{name}: {KIND_IN_WORDS[row.kind]} is expected, not {text!r}", ExitStatus.USAGE)
    return given


@app.command()
def unset(
    name: _Name,
    operator: Operator = "",
    reason: Reason = "",
    preview: Preview = False,
    yes: Yes = False,
    url: Url = URL,
    timeout: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Give a setting of a running broker the value of its configuration again."""
    fields = SetSettingFields(name, unset=True, operator=operator, reason=reason, preview=preview)
    _change(fields, None, yes, url, timeout, as_json)


def _change(
    fields: SetSettingFields,
    then: ShownSetting | None,
    yes: bool,
    url: str,
    timeout: float,
    as_json: bool,
) -> None:
    """``then``: the new value; None: that of the configuration."""
    name = fields.setting
    found = _settings(url, timeout)
    before = found.get(name)
    if before is None and then is not None:
        _unknown(name, found)
    if before is None:
        # One that a later version set may be unset, though this broker does not know it.
        with _COMMANDS.reported():
            asked = ask(parse_url(url), HMQ_SET_SETTING, write_fields(replace_fields(fields, preview=True)), timeout)
        if asked.code == ResponseCode.SYSTEM_ERROR:  # nothing to unset
            _unknown(name, found)
        before = ShownSetting(None, "recorded")
    if then is None:
        configured = before.value if before.configured is msgspec.UNSET else before.configured
        then = ShownSetting(configured, "configuration")
    if not as_json:
        output.note(f"{name} is {before} ({_where(before)})")
    if not fields.preview and not yes:
        _COMMANDS.require_typed(name, "Type the name of the setting again to change it")
    answer = _COMMANDS.ask(url, HMQ_SET_SETTING, write_fields(fields), timeout, changes=not fields.preview)
    warning = answer.ext.get(EXT_WARNING)
    if warning:
        output.note(f"warning: {warning}")
    if as_json:
        document = {"setting": name, "before": before.value, "value": then.value, "changed": not fields.preview}
        output.document(msgspec.json.encode(document))
    else:
        as_configured = ", as configured" if fields.unset else ""
        output.say(f"{name} {'would be' if fields.preview else 'is'} {then}{as_configured}")


def _settings(url: str, timeout: float) -> dict[str, ShownSetting]:
    with _COMMANDS.reported():
        return SETTINGS.decode(_COMMANDS.ask(url, HMQ_SETTINGS, {}, timeout).body)


def _unknown(name: str, found: Mapping[str, ShownSetting]) -> NoReturn:
    nearest = get_close_matches(name, sorted(found), 1)
    text = f"the broker has no setting {name}"
    _COMMANDS.fail(f"{text}; the nearest one is {nearest[0]}" if nearest else text, ExitStatus.NOT_FOUND)


def _where(setting: ShownSetting) -> str:
    """The source on one line."""
    if setting.source == "recorded" and isinstance(setting.set_at_ms, int):
        return f"set at {moment_text(setting.set_at_ms)} by {setting.set_by}"
    return setting.where


def _print(settings: Mapping[str, ShownSetting], *, with_sources: bool, as_json: bool) -> None:
    if as_json:
        output.document(msgspec.json.encode(settings))
        return
    columns = 3 if with_sources else 2
    rows = [(name, str(one), _where(one))[:columns] for name, one in settings.items()]
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
