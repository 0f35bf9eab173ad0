"""Where the settings of `halfmq serve` come from: an option, else the environment, else a file, else the default.

The table of options is in ``cli/serve.py``; this module reads environment and file, and knows what each setting was taken from. What is
unknown there is refused: a misspelled name would otherwise leave a default in place, and nobody would notice.
"""

import os
import re
import tomllib
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, get_args

import typer
from typer.core import TyperCommand

from halfmq.client.credentials import VARIABLE as SECRET
from halfmq.errors import UsageError
from halfmq.model.shown_settings import ShownSetting

PREFIX: Final = "HALFMQ_"
#: The variable that names the file.
CONFIG: Final = f"{PREFIX}CONFIG"
#: Of clients and of other commands: a process that serves may have them.
_OF_OTHERS: Final = frozenset(
    {f"{PREFIX}{name}" for name in ("URL", "GROUP", "OPERATOR", "DATABASE_URL", "CONTEXT")} | {CONFIG, SECRET}
)
#: Of test suites: a broker that they start inherits them.
_OF_TESTS: Final = f"{PREFIX}TEST_"
#: Kubernetes gives each container such variables of a service with the name `halfmq`, or one that begins with it.
_OF_KUBERNETES: Final = re.compile(
    rf"{PREFIX}(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
#: And this value for HALFMQ_PORT, which would else be the setting `port`, or for HALFMQ_HTTP_PORT.
_LINK: Final = re.compile(r"(tcp|udp|sctp)://")
#: Given by an option only: what a file says holds for every start.
_NOT_IN_FILES: Final = {"trust_clock": "it is for one start only; use --trust-clock"}
_SOURCES: Final = "halfmq.sources"


class SourceKind(Enum):
    """Kinds of sources, the strongest first."""

    OPTION = "option"
    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"


class Source(NamedTuple):
    """Where a value comes from. ``name``: the option, the variable, or the file; empty for a default."""

    kind: SourceKind
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind.value} {self.name}".rstrip()


class Given(NamedTuple):
    """A value as it stands in the environment (text) or in a file, and where."""

    value: Any
    source: Source


def option_name(setting: str) -> str:
    return f"--{setting.replace('_', '-')}"


def variable_name(setting: str) -> str:
    return f"{PREFIX}{setting.upper()}"


def from_environment(environment: Mapping[str, str], kinds: Mapping[str, Any]) -> dict[str, Given]:
    """Settings that variables set. ``kinds``: the type of each setting. An empty variable is as good as none.

    Raises:
        UsageError: a variable with our prefix is none of a setting.
    """
    settings = {variable_name(name): name for name in kinds}
    found: dict[str, Given] = {}
    for variable, text in environment.items():
        if not variable.startswith(PREFIX) or not text or _is_foreign(variable, text):
            continue
        if variable not in settings:
            raise UsageError(f"there is no variable {variable}", hint=_nearest(variable, {*settings, *_OF_OTHERS}))
        name = settings[variable]
        value = [item for part in text.split(",") if (item := part.strip())] if _is_list(kinds[name]) else text
        found[name] = Given(value, Source(SourceKind.ENVIRONMENT, variable))
    return found


def _is_foreign(variable: str, text: str) -> bool:
    if variable in _OF_OTHERS or variable.startswith(_OF_TESTS):
        return True
    return _OF_KUBERNETES.fullmatch(variable) is not None or (
        variable.endswith("PORT") and _LINK.match(text) is not None
    )


def from_file(file: Path, kinds: Mapping[str, Any]) -> dict[str, Given]:
    """Settings of a TOML file without tables, under the names of ``kinds``, with their types.

    Raises:
        UsageError: it cannot be read, is not TOML, has an unknown name, or a value of another type.
    """
    try:
        content = tomllib.loads(file.read_text())
    except OSError as error:
        raise UsageError(f"it cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"it is not TOML: {error}", hint="each line is NAME = VALUE") from error
    source = Source(SourceKind.FILE, str(file))
    found: dict[str, Given] = {}
    for name, value in content.items():
        if name not in kinds:
            raise UsageError(f"there is no setting {name}", hint=_nearest(name, kinds))
        if name in _NOT_IN_FILES:
            raise UsageError(f"{name} cannot be set in a file", hint=_NOT_IN_FILES[name])
        found[name] = Given(_typed(name, value, kinds[name]), source)
    return found


def _typed(name: str, value: Any, kind: Any) -> Any:
    """Strictly by type: the conversion of options would make 5 of 5.7, and a string of a number."""
    kind = next((one for one in get_args(kind) if one is not type(None)), kind) if not _is_list(kind) else list
    if kind is list:
        value = [value] if isinstance(value, str) else value
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return value
        raise UsageError(f"{name} must be an array of strings", hint=f'{name} = ["...", "..."]')
    for accepted, types, words in (
        (bool, bool, "true or false"),
        (int, int, "an integer"),
        (float, (int, float), "a number"),
    ):
        if kind is accepted:
            if isinstance(value, types) and (kind is bool or not isinstance(value, bool)):
                return value
            raise UsageError(f"{name} must be {words}", hint="without quotation marks")
    if isinstance(value, str):
        return value
    raise UsageError(f"{name} must be a string", hint=f'{name} = "..."')


def _is_list(kind: Any) -> bool:
    return any(getattr(one, "__origin__", one) is list for one in (kind, *get_args(kind)))


def _nearest(name: str, known: Collection[str]) -> str:
    nearest = get_close_matches(name, sorted(known), 1, 0)
    return f"the nearest one is {nearest[0]}; `halfmq config show` lists all settings"


class ConfiguredCommand(TyperCommand):
    """A command whose options may also be in the environment and in a file. A value that cannot be used is refused with its source."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            given: Mapping[str, Given] = ctx.meta.get(_SOURCES, {})
            name = getattr(error.param, "name", None) or ""
            if name in given and not _is_option(ctx, name):
                error.message = f"{error.message} (from {given[name].source})"
            raise


def config_option(kinds: Mapping[str, Any]) -> tuple[Any, None]:
    """The option ``--config``, which reads environment and file before other options get their values."""

    def read(ctx: typer.Context, file: Path | None) -> Path | None:
        if ctx.resilient_parsing:  # the shell completes a line; nothing is run
            return file
        given: dict[str, Given] = {}
        where = f"--config {file}"
        try:
            if file is not None:
                given |= from_file(file, kinds)
            where = "the environment"
            given |= from_environment(os.environ, kinds)
        except UsageError as error:
            raise typer.BadParameter(str(error), param_hint=where) from error
        ctx.meta[_SOURCES] = given
        ctx.default_map = {name: one.value for name, one in given.items()}
        return file

    # An unset shell variable, as with other paths: --config "" is a mistake and not "no file".
    def parser(text: str) -> Path:
        if not text:
            raise typer.BadParameter("an empty path")
        return Path(text)

    help_ = (
        "TOML file with settings: the names of the options, with _ for -. Options override the environment (HALFMQ_NAME), which overrides the"
        " file."
    )
    return Annotated[
        Path | None, typer.Option(envvar=CONFIG, is_eager=True, callback=read, parser=parser, help=help_)
    ], None


def shown(ctx: typer.Context, values: Mapping[str, Any], names: Collection[str]) -> dict[str, ShownSetting]:
    """Each setting of a command with ``config_option``, and where it comes from. ``values``: the command's parameters."""
    given: Mapping[str, Given] = ctx.meta.get(_SOURCES, {})
    found = {}
    for name in names:
        source = Source(SourceKind.DEFAULT)
        if _is_option(ctx, name):
            source = Source(SourceKind.OPTION, option_name(name))
        elif name in given:
            source = given[name].source
        found[name] = ShownSetting(_plain(values[name]), source.kind.value, source.name or None)
    return found


def _plain(value: Any) -> Any:
    """As in a file."""
    return str(value) if isinstance(value, Path) else getattr(value, "value", value)


def _is_option(ctx: Any, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
