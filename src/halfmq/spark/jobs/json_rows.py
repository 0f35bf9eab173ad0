"""JSON bodies to typed rows: the columns of a schema, and for each body that does not fit the reason why.

Spark's own ``from_json`` yields null for a value of a wrong type, and rounds decimals. Here nothing is converted that the schema does not
say: a body fits completely, or it is rejected with a reason and the path of the first value that does not. What a type accepts:

    byte short int long    whole numbers in the range of the type: not 1.0, not "1"
    float double           numbers
    decimal(p,s)           numbers or texts with one ("12.5", "+1", "1e3"; no blanks, no "1_000"), of at most s digits after the point
    string                 texts
    boolean                true, false
    binary                 texts in Base64
    date                   "2026-11-24"
    timestamp              "2026-11-24T15:40:29Z", with 'T' or a space, with fractions and an offset; without an offset it is UTC. At most
                           six digits of a fraction are not zero; years 1 to 9999 in UTC
    timestamp_ntz          the same without an offset
    array, struct, map     of these; names of a map are strings

Null and a missing name are equal. Other names of a body are ignored. Of a name that occurs twice, the last value counts.
"""

import datetime
import decimal
import re
from abc import ABC
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Annotated, Any, Final, NamedTuple, TypedDict

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

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
#: A body without any of these has no decimal or timestamp that msgspec accepts and ``_exact`` refuses: an escape; a long fraction; an edge
#: year; a text of nothing but digits and what Python's ``Decimal`` skips. Most bodies have none, and ``_exact`` triples their time. For
#: RE2, which searches four times as fast as Python.
_TO_BE_EXAMINED: Final = r'\\|\.[0-9]{7}|"(?:0001|9999)-|"[-+.0-9eE]*[_ \x80-\xff][-+.0-9eE_ \x80-\xff]*"'
#: Python's ``Decimal`` also takes blanks, underscores, digits of other scripts, and NaN.
_DECIMAL: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
#: Digits of a fraction that msgspec rounds away.
_BELOW_MICROSECOND: Final = re.compile(r"\.\d{6}\d*[1-9]", re.ASCII)
#: Only in the first and the last year can the year in UTC be another one, which neither Python nor Spark can show.
_EDGE_YEARS: Final = (datetime.MINYEAR, datetime.MAXYEAR)


class _Decimal(ABC):  # noqa: B024 - registered below
    """Types that msgspec does not know are converted by ``_exact``, whose result must be an instance of them."""


class _UtcTime(ABC):  # noqa: B024
    """As ``_Decimal``."""


class _LocalTime(ABC):  # noqa: B024
    """As ``_Decimal``."""


_EXACT: Final[dict[Any, Any]] = {
    pa.timestamp("us", tz="UTC"): _UtcTime,
    pa.timestamp("us"): _LocalTime,
}
_Decimal.register(decimal.Decimal)
_UtcTime.register(datetime.datetime)
_LocalTime.register(datetime.datetime)


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

    def __reduce__(self) -> tuple[Any, ...]:
        return JsonRows, (self.schema, self.required)

    @cached_property
    def _decode(self) -> Callable[[bytes], Any]:
        return msgspec.json.Decoder(self._body(exact=False)).decode

    @cached_property
    def _decode_exactly(self) -> Callable[[bytes], Any]:
        return msgspec.json.Decoder(self._body(exact=True), dec_hook=_exact, float_hook=decimal.Decimal).decode

    def _body(self, *, exact: bool) -> type[msgspec.Struct]:
        fields: list[Any] = []
        for number, field in enumerate(self.schema):
            kind = _python_type(field.type, field.name, exact=exact)
            fields.append((f"f{number}", kind) if field.name in self.required else (f"f{number}", kind | None, None))
        names = {f"f{number}": field.name for number, field in enumerate(self.schema)}
        return msgspec.defstruct("Body", fields, rename=names, kw_only=True, gc=False)

    def parse(self, bodies: Sequence[bytes | None]) -> Parsed:
        """The rows of bodies that fit, and the reasons of the others."""
        decode, to_be_examined, rejected = self._decode, _to_be_examined(bodies), {}
        fits, rows = [], []
        for number, body in enumerate(bodies):
            try:
                rows.append((self._decode_exactly if number in to_be_examined else decode)(body or b""))
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


def _to_be_examined(bodies: Sequence[bytes | None]) -> frozenset[int]:
    found = pc.match_substring_regex(pa.array(bodies, pa.large_binary()), _TO_BE_EXAMINED)
    return frozenset(pc.indices_nonzero(found).to_pylist())


def _why(error: msgspec.DecodeError) -> Rejected:
    text = str(error)
    if not isinstance(error, msgspec.ValidationError):
        return Rejected(NOT_JSON, text)
    if text.startswith("Expected `object`") and "`$." not in text:
        return Rejected(NOT_AN_OBJECT, text)
    if text.startswith("Object missing required field") or text.partition(" - at ")[0].endswith("got `null`"):
        return Rejected(MISSING, text)
    return Rejected(WRONG_TYPE, text)


def _exact(kind: type, value: Any) -> decimal.Decimal | datetime.datetime:
    """A value of one of the types above. Raises ValueError: it is not one in the form that is accepted; msgspec adds the path."""
    if kind is _Decimal:
        return _decimal(value)
    if not isinstance(value, str):
        raise ValueError(f"Expected `datetime`, got `{_json_name(value)}`")
    if _BELOW_MICROSECOND.search(value):
        raise ValueError(f"{value} has digits below a microsecond, which would be lost")
    try:
        time: datetime.datetime = msgspec.convert(
            value, _PLAIN[pa.timestamp("us") if kind is _LocalTime else pa.timestamp("us", tz="UTC")]
        )
    except msgspec.ValidationError as error:  # would be passed on without the path
        raise ValueError(str(error)) from None
    if time.year in _EDGE_YEARS and time.tzinfo is not None:
        try:
            time.astimezone(datetime.UTC)
        except OverflowError:
            raise ValueError(f"{value} is not in the years 1 to 9999 in UTC") from None
    return time


def _decimal(value: Any) -> decimal.Decimal:
    if isinstance(value, decimal.Decimal):  # a number with a point or an exponent
        return value
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"Expected `decimal`, got `{_json_name(value)}`")
    if isinstance(value, str) and not _DECIMAL.fullmatch(value):
        raise ValueError(f"{value!r} is not a decimal number")
    try:
        return decimal.Decimal(value)
    except decimal.InvalidOperation:  # an exponent that Python cannot represent
        raise ValueError(f"{value!r} is not a decimal number") from None


def _json_name(value: Any) -> str:
    match value:
        case None:
            return "null"
        case dict():
            return "object"
        case list():
            return "array"
        case decimal.Decimal():
            return "float"
        case _:
            return type(value).__name__


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


def _python_type(kind: pa.DataType, name: str, *, exact: bool = False) -> Any:
    """The type to which msgspec decodes a value, with ``exact`` by ``_exact``; ``name``: for errors."""
    if kind in _INTEGERS:
        bits = _INTEGERS[kind]
        return Annotated[int, msgspec.Meta(ge=-(1 << bits - 1), le=(1 << bits - 1) - 1)]
    if exact and kind in _EXACT:
        return _EXACT[kind]
    if kind in _PLAIN:
        return _PLAIN[kind]
    if pa.types.is_decimal(kind):
        return _Decimal if exact else decimal.Decimal
    if pa.types.is_list(kind):
        return list[_python_type(kind.value_type, name, exact=exact) | None]  # type: ignore[misc]
    if pa.types.is_map(kind) and kind.key_type == pa.string():
        return dict[str, _python_type(kind.item_type, name, exact=exact) | None]  # type: ignore[misc]
    if pa.types.is_struct(kind):
        fields = {field.name: _python_type(field.type, f"{name}.{field.name}", exact=exact) | None for field in kind}
        return TypedDict("Struct", fields, total=False)  # type: ignore[operator]
    raise UsageError(
        f"column {name} has type {kind}, which JSON bodies are not converted to",
        hint="byte, short, int, long, float, double, decimal, string, boolean, binary, date, timestamp, array, map<string, ...>, struct",
    )
