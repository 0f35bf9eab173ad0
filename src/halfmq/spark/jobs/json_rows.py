"""JSON bodies to typed rows: the columns of a schema, and for each body that does not fit the reason why.

Spark's own ``from_json`` yields null for a value of a wrong type, and rounds decimals. Here nothing is converted that the schema does not
say: a body fits completely, or it is rejected with a reason and the path of the first value that does not. What a type accepts:

    byte short int long    whole numbers in the range of the type: not 1.0, not "1"
    float double           numbers
    decimal(p,s)           numbers or texts, of at most s digits after the point
    string                 texts
    boolean                true, false
    binary                 texts in Base64
    date                   "2026-11-24"
    timestamp              "2026-11-24T15:40:29Z", with 'T' or a space, with fractions and an offset; without an offset it is UTC
    timestamp_ntz          the same without an offset
    array, struct, map     of these; names of a map are strings

Null and a missing name are equal. Other names of a body are ignored. Of a name that occurs twice, the last value counts.
"""

import datetime
import decimal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Annotated, Any, Final, NamedTuple, TypedDict

import msgspec
import pyarrow as pa

from halfmq.errors import UsageError

#: Values of column ``reason``.
NOT_JSON: Final = "not JSON"
NOT_AN_OBJECT: Final = "not an object"
MISSING: Final = "missing"
WRONG_TYPE: Final = "wrong type"
TOO_DEEP: Final = "nested too deeply"

_INTEGERS: Final = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
_FLOAT_MAX: Final = 3.4028234663852886e38
_PLAIN: Final[dict[pa.DataType, Any]] = {
    pa.float32(): Annotated[float, msgspec.Meta(ge=-_FLOAT_MAX, le=_FLOAT_MAX)],
    pa.float64(): float,
    pa.string(): str,
    pa.bool_(): bool,
    pa.binary(): bytes,
    pa.date32(): datetime.date,
    pa.timestamp("us", tz="UTC"): datetime.datetime,
    pa.timestamp("us"): Annotated[datetime.datetime, msgspec.Meta(tz=False)],
}


class Rejected(NamedTuple):
    """Why a body does not fit. ``detail``: a sentence for people."""

    reason: str
    detail: str


class Parsed(NamedTuple):
    """``fits``: the numbers of the bodies that fit, ascending; ``columns``: their values. ``rejected``: number -> why, of all others."""

    fits: list[int]
    columns: list[pa.Array]
    rejected: dict[int, Rejected]


@dataclass(frozen=True)
class JsonRows:
    """``schema``: the columns, of Arrow. ``required``: those that must be there and not null. Can be pickled.

    Raises:
        UsageError: a type is not supported.
    """

    schema: pa.Schema
    required: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in self.schema:
            _python_type(field.type, field.name)

    def __getstate__(self) -> tuple[pa.Schema, tuple[str, ...]]:
        return self.schema, self.required

    def __setstate__(self, state: tuple[pa.Schema, tuple[str, ...]]) -> None:
        for name, value in zip(("schema", "required"), state, strict=True):
            object.__setattr__(self, name, value)

    @cached_property
    def _decode(self) -> Callable[[bytes], Any]:
        fields: list[Any] = []
        for number, field in enumerate(self.schema):
            kind = _python_type(field.type, field.name)
            fields.append((f"f{number}", kind) if field.name in self.required else (f"f{number}", kind | None, None))
        names = {f"f{number}": field.name for number, field in enumerate(self.schema)}
        made = msgspec.defstruct("Body", fields, rename=names, kw_only=True, gc=False)
        return msgspec.json.Decoder(made).decode

    def parse(self, bodies: Sequence[bytes | None]) -> Parsed:
        """The rows of bodies that fit, and the reasons of the others."""
        decode, rejected = self._decode, {}
        fits, rows = [], []
        for number, body in enumerate(bodies):
            try:
                rows.append(decode(body or b""))
            except msgspec.DecodeError as error:
                rejected[number] = _why(error)
            except UnicodeDecodeError as error:
                rejected[number] = Rejected(NOT_JSON, f"a text is not UTF-8: {error}")
            except RecursionError:
                # The decoder calls itself for each level, also below names that are ignored. Its limit is Python's for calls.
                rejected[number] = Rejected(
                    TOO_DEEP, "arrays and objects have more levels than can be read, about 1,000"
                )
            else:
                fits.append(number)
        columns = []
        wrong: dict[int, Rejected] = {}
        for number, field in enumerate(self.schema):
            values = list(map(attrgetter(f"f{number}"), rows))
            column, failed = _column(values, field.type)
            columns.append(column)
            for row, text in failed.items():
                wrong.setdefault(row, Rejected(WRONG_TYPE, f"{text} - at `$.{field.name}`"))
        if wrong:
            keep = pa.array([row for row in range(len(rows)) if row not in wrong], pa.int64())
            columns = [column.take(keep) for column in columns]
            rejected |= {fits[row]: why for row, why in wrong.items()}
            fits = [fits[row] for row in keep.to_pylist()]
        return Parsed(fits, columns, rejected)


def _why(error: msgspec.DecodeError) -> Rejected:
    text = str(error)
    if not isinstance(error, msgspec.ValidationError):
        return Rejected(NOT_JSON, text)
    if text.startswith("Expected `object`") and "`$." not in text:
        return Rejected(NOT_AN_OBJECT, text)
    if text.startswith("Object missing required field") or text.partition(" - at ")[0].endswith("got `null`"):
        return Rejected(MISSING, text)
    return Rejected(WRONG_TYPE, text)


def _column(values: list[Any], kind: pa.DataType) -> tuple[pa.Array, dict[int, str]]:
    """The values, null where one cannot be represented, and why."""
    try:
        return pa.array(values, kind), {}
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        failed = {}
    for row, value in enumerate(values):
        try:
            pa.array([value], kind)
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            failed[row] = f"{value} does not fit {kind}"
    return pa.array([None if row in failed else value for row, value in enumerate(values)], kind), failed


def _python_type(kind: pa.DataType, name: str) -> Any:
    """The type to which msgspec decodes a value; ``name``: for errors."""
    if kind in _INTEGERS:
        bits = _INTEGERS[kind]
        return Annotated[int, msgspec.Meta(ge=-(1 << bits - 1), le=(1 << bits - 1) - 1)]
    if kind in _PLAIN:
        return _PLAIN[kind]
    if pa.types.is_decimal(kind):
        return decimal.Decimal
    if pa.types.is_list(kind):
        return list[_python_type(kind.value_type, name) | None]  # type: ignore[misc]
    if pa.types.is_map(kind) and kind.key_type == pa.string():
        return dict[str, _python_type(kind.item_type, name) | None]  # type: ignore[misc]
    if pa.types.is_struct(kind):
        fields = {field.name: _python_type(field.type, f"{name}.{field.name}") | None for field in kind}
        return TypedDict("Struct", fields, total=False)  # type: ignore[operator]
    raise UsageError(
        f"column {name} has type {kind}, which JSON bodies are not converted to",
        hint="byte, short, int, long, float, double, decimal, string, boolean, binary, date, timestamp, array, map<string, ...>, struct",
    )
