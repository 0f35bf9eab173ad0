"""Settings of a job: a frozen struct, read from a TOML file and from command line options, with one description for each field.

    class CopySettings(JobSettings, frozen=True, kw_only=True):
        url: Annotated[str, Meta(description="name server of the broker")]

    settings = load(CopySettings, "copy", file=Path("pipeline.toml"), given={"url": "rocketmq://127.0.0.1:9876"})

A file has a table for each job, ``[ingest]``, and optionally ``[spark]`` with ``master`` and ``conf``, which all jobs use. Options of the
command line override the file. Unknown names are errors.
"""

import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from halfmq.errors import UsageError

#: The table of a settings file that all jobs use.
SPARK: Final = "spark"


class JobSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of each job's settings. Field names are keys of the file; options replace ``_`` by ``-``.

    A field is annotated ``Annotated[type, msgspec.Meta(description="...")]``; types are str, int, float, bool, ``X | None``,
    ``tuple[str, ...]`` (on the command line: separated by commas), ``dict[str, str]`` (``NAME=VALUE``, repeated) and ``Literal``.
    """


class SparkSettings(JobSettings, frozen=True, kw_only=True):
    """Where a job runs. None: the master of spark-submit, without it this machine."""

    master: str | None = None
    #: Spark's configuration, such as ``spark.driver.memory``.
    conf: dict[str, str] = {}


class Field(NamedTuple):
    """A field of a settings struct, for a command line and for documentation."""

    name: str
    #: Without ``None`` and ``Annotated``.
    type: Any
    description: str
    required: bool
    default: Any


Settings = TypeVar("Settings", bound=JobSettings)


def fields_of(kind: type[JobSettings]) -> list[Field]:
    hints = get_type_hints(kind, include_extras=True)
    found = []
    for field in msgspec.structs.fields(kind):
        plain, description = _unwrapped(hints[field.name])
        required = field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT
        default = None
        if field.default is not msgspec.NODEFAULT:
            default = field.default
        elif field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        found.append(Field(field.name, plain, description, required, default))
    return found


def _unwrapped(hint: Any) -> tuple[Any, str]:
    description = ""
    if hasattr(hint, "__metadata__"):
        description = next((one.description or "" for one in hint.__metadata__ if isinstance(one, msgspec.Meta)), "")
        hint = hint.__origin__
    members = [one for one in get_args(hint) if one is not type(None)]
    if type(None) in get_args(hint) and len(members) == 1:
        hint = members[0]
    return hint, description


def load(
    kind: type[Settings], job: str, *, file: Path | None = None, given: Mapping[str, Any] | None = None
) -> Settings:
    """Settings of ``job``: its table in ``file``, overridden by ``given`` (already typed; None: not given).

    Raises:
        UsageError: the file cannot be read or is not TOML; a name is unknown, a value has the wrong type, a required one is missing.
    """
    from_file = _table(file, job) if file is not None else {}
    values = {**from_file, **{name: value for name, value in (given or {}).items() if value is not None}}
    missing = [field.name for field in fields_of(kind) if field.required and field.name not in values]
    if missing:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise UsageError(
            f"{job}: {names} missing", hint=f"give the option, or write it into [{job}] of the --config file"
        )
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"settings of {job}: {error}", hint=f"halfmq pipeline {job} --help lists them") from error


def check_tables(file: Path, jobs: Collection[str]) -> None:
    """Raises UsageError: the file cannot be read, or has something besides the tables of ``jobs`` and [spark]."""
    known = [SPARK, *jobs]
    unknown = [name for name in _read(file) if name not in known]
    if unknown:
        raise UsageError(
            f"{file}: unknown {', '.join(unknown)}",
            hint=f"settings stand below one of the lines {', '.join(f'[{name}]' for name in known)}",
        )


def load_spark(file: Path | None, *, master: str | None = None, conf: Mapping[str, str] | None = None) -> SparkSettings:
    """The table ``[spark]`` of ``file``, overridden. Raises as ``load`` does."""
    from_file = load(SparkSettings, SPARK, file=file)
    return SparkSettings(master=master or from_file.master, conf={**from_file.conf, **(conf or {})})


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} is not TOML: {error}") from error


def _table(file: Path, job: str) -> dict[str, Any]:
    table = _read(file).get(job, {})
    if not isinstance(table, dict):
        raise UsageError(f"{file}: [{job}] is not a table", hint=f"write its settings below a line [{job}]")
    return table


def parse_list(text: str) -> tuple[str, ...]:
    """Items separated by commas, without empty ones."""
    return tuple(item for part in text.split(",") if (item := part.strip()))


def parse_pairs(items: Sequence[str]) -> dict[str, str]:
    """``NAME=VALUE`` items.

    Raises:
        UsageError: an item has no ``=``.
    """
    pairs = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise UsageError(f"{item!r} is not NAME=VALUE")
        pairs[name] = value
    return pairs


def is_list(kind: Any) -> bool:
    return get_origin(kind) is tuple


def is_pairs(kind: Any) -> bool:
    return get_origin(kind) is dict
