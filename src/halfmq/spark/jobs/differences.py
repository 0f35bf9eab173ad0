"""Rows of a table against messages, key by key, as one Spark aggregation: both sides in one shuffle, nothing collected.

The sides become rows of one shape, are united, and grouped by key: a group knows how many rows and messages it has, and one of each.
"""

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from halfmq.errors import UsageError
from halfmq.spark.jobs.reconciliation import Kind

#: Where a message was read, under the names that the table ``silver`` of ingest has.
PLACE: Final = ("message_time", "message_topic", "message_queue", "message_offset")
#: Why the body of a message is not one of the schema, or null.
REASON: Final = "_halfmq_reason"
#: Struct of texts, one for each key, ``k0`` and so on: what the body of such a message has as its key, whatever its type.
KEY_TEXTS: Final = "_halfmq_keys"

#: With a tolerance, numbers are compared as decimals with this many places, as far as they fit.
_SCALE: Final = 12
_DIGITS: Final = 38
#: Of a tolerance, before and after the point: Spark's decimals have 38.
_TOLERANCE_DIGITS: Final = 18
_MICROS: Final = 1_000_000
#: The longest difference of two times, microseconds: more is no tolerance.
_MICROS_MAX: Final = (1 << 63) - 1
_INTEGERS: Final = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)
_FLOATS: Final = (t.FloatType, t.DoubleType)
_TEMPORAL: Final = (t.TimestampType, t.TimestampNTZType, t.DateType)
#: Types whose values have an order, which the choice of one message of several needs.
_COMPARABLE: Final = (
    *_INTEGERS,
    *_FLOATS,
    *_TEMPORAL,
    t.DecimalType,
    t.StringType,
    t.BooleanType,
    t.BinaryType,
    t.NullType,
)


class Pair(NamedTuple):
    """A column of the table, and its name in messages (with dots: a field inside)."""

    table: str
    messages: str


class Plan(NamedTuple):
    keys: tuple[Pair, ...]
    compare: tuple[Pair, ...]
    sums: tuple[Pair, ...]
    #: Column of the table -> how far values may differ: numbers, or seconds of times.
    tolerances: dict[str, Decimal]

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """All columns, each once."""
        return tuple(dict.fromkeys((*self.keys, *self.compare, *self.sums)))


def plan(keys: Sequence[str], compare: Sequence[str], sums: Sequence[str], tolerances: dict[str, str]) -> Plan:
    """Raises UsageError: no key, a wrong mapping, a tolerance of a column that is not compared, or that is no number."""
    if not keys:
        raise UsageError("--key is empty", hint="--key basket_id, or --key basket_id=order_id if messages name it so")
    found = Plan(_pairs(keys), _pairs(compare), _pairs(sums), _numbers(tolerances))
    names = {one.table for one in (*found.compare, *found.sums)}
    for name in found.tolerances:
        if name not in names:
            raise UsageError(f"--tolerance of {name}, which is not compared", hint="add it to --compare")
    for given in (found.keys, found.compare, found.sums):
        if len({one.table for one in given}) < len(given):
            raise UsageError(f"a column is named twice: {', '.join(one.table for one in given)}")
    return found


def _pairs(texts: Sequence[str]) -> tuple[Pair, ...]:
    found = []
    for text in texts:
        table, equals, messages = (part.strip() for part in text.partition("="))
        if not table or (equals and not messages):
            raise UsageError(f"{text!r} is no column", hint="NAME, or TABLE_NAME=MESSAGE_NAME")
        found.append(Pair(table, messages or table))
    return tuple(found)


def _numbers(tolerances: dict[str, str]) -> dict[str, Decimal]:
    found = {}
    for name, text in tolerances.items():
        try:
            number = Decimal(text)
        except InvalidOperation:
            number = Decimal(-1)
        if not number.is_finite() or number < 0:
            raise UsageError(f"--tolerance {name}={text} is no number", hint="such as total=0.01; seconds for times")
        if number.adjusted() >= _TOLERANCE_DIGITS or _places(number) > _TOLERANCE_DIGITS:
            raise UsageError(
                f"--tolerance {name}={text} has too many digits",
                hint=f"{_TOLERANCE_DIGITS} on either side of the point",
            )
        found[name] = number
    return found


def _places(number: Decimal) -> int:
    exponent = number.normalize().as_tuple().exponent
    return -exponent if isinstance(exponent, int) else 0


class Sides(NamedTuple):
    """Both inputs. ``messages`` has the columns of ``PLACE`` if it has a place, ``REASON`` and ``KEY_TEXTS`` if it may be unreadable."""

    rows: DataFrame
    messages: DataFrame


def classify(sides: Sides, planned: Plan, newer_than: Any | None) -> DataFrame:
    """One row for each key, and for each message without one, with column ``kind``: of ``Kind``, null if both sides are equal.

    What keys alone decide does not depend on the rest of a body: a message whose key can be read counts for its key, also if its body is
    not one of the schema. It then differs from the row, since what it says is not known.

    ``newer_than``: a time; messages without a row that became visible then or later are ``NEWER``. None: all count.

    Columns: ``kind``, ``key`` (struct), ``rows``, ``messages``, ``table_values``, ``message_values`` (structs of the compared columns),
    ``differing`` (names), ``first_message``, ``last_message`` (structs of ``PLACE``), ``reason``, ``sum_names``.

    Raises:
        UsageError: a column does not exist, or its types on both sides cannot be compared.
    """
    kinds = {pair: _types(sides, pair) for pair in planned.pairs}
    rows = sides.rows.select(
        *_key(planned, kinds, 0),
        f.lit(None).cast("string").alias("reason"),
        f.lit(None).cast(sides.messages.select(_place(sides.messages)).schema[0].dataType).alias("place"),
        f.lit(1).cast("long").alias("rows"),
        f.lit(0).cast("long").alias("messages"),
        _values(planned.compare, 0).alias("table_values"),
        *_summands(planned, kinds, 0),
    )
    messages = sides.messages.select(
        *_key(planned, kinds, 1, sides.messages.columns),
        _reason(sides.messages, planned).alias("reason"),
        _place(sides.messages).alias("place"),
        f.lit(0).cast("long").alias("rows"),
        f.lit(1).cast("long").alias("messages"),
        _values(planned.compare, 1).alias("message_values"),
        *_summands(planned, kinds, 1),
    )
    names = [f"key_{n}" for n in range(len(planned.keys))]
    # A message without a key is a group of its own, as far as its place is known.
    alone = (f.col("messages") > 0) & _no_key(names)
    grouped = (
        rows.unionByName(messages, allowMissingColumns=True)
        .groupBy(*names, *(f.when(alone, f.col(name)).alias(f"alone_{name}") for name in ("place", "reason")))
        .agg(
            f.min("reason").alias("reason"),
            f.sum("rows").alias("rows"),
            f.sum("messages").alias("messages"),
            f.min("place").alias("first_message"),
            f.max("place").alias("last_message"),
            f.min("table_values").alias("table_values"),
            f.min("message_values").alias("message_values"),
            *((f.try_sum if "_exact_" in name else f.sum)(name).alias(name) for name in sum_names(planned)),
        )
    )
    differing = f.array_compact(
        f.array(
            f.lit(None).cast("string"),
            *(
                f.when(~_equal(n, pair, kinds[pair], planned.tolerances.get(pair.table)), f.lit(pair.table))
                for n, pair in enumerate(planned.compare)
            ),
        )
    )
    # Comparing null structs of a group with one side only would say that everything differs.
    both = (f.col("rows") > 0) & (f.col("messages") > 0)
    return grouped.withColumn("differing", f.when(both, differing)).select(
        _kind(names, newer_than).alias("kind"),
        f.struct(*(f.col(name).alias(pair.table) for name, pair in zip(names, planned.keys, strict=True))).alias("key"),
        "rows",
        "messages",
        "table_values",
        "message_values",
        "differing",
        "first_message",
        "last_message",
        "reason",
        *sum_names(planned),
    )


SIDES: Final = ("table", "message")


def sum_names(planned: Plan) -> list[str]:
    """Columns of ``classify`` with sums: ``table_sum_0``, and ``table_exact_0``, where doubles are added as decimals, as far as they are
    such.
    """
    return [f"{side}_{what}_{n}" for side in SIDES for n in range(len(planned.sums)) for what in ("sum", "exact")]


def _kind(keys: Sequence[str], newer_than: Any | None) -> Column:
    rows, messages = f.col("rows"), f.col("messages")
    is_newer = f.lit(False)
    if newer_than is not None:
        is_newer = f.coalesce(f.col("first_message.message_time") >= f.lit(newer_than), f.lit(False))
    return (
        f.when(_no_key(keys) & (messages > 0), Kind.UNREADABLE.value)
        .when(_no_key(keys), Kind.ROW_WITHOUT_KEY.value)
        .when(rows > 1, Kind.REPEATED_ROW.value)
        .when(messages == 0, Kind.MISSING.value)
        .when((rows == 0) & is_newer, Kind.NEWER.value)
        .when(rows == 0, Kind.PHANTOM.value)
        .when(messages > 1, Kind.DUPLICATED.value)
        .when(f.col("reason").isNotNull() | (f.size("differing") > 0), Kind.DIFFERENT.value)
    )


def _no_key(keys: Sequence[str]) -> Column:
    return f.greatest(*(f.col(name).isNull() for name in (*keys, keys[0])))


# --- the shape of both sides --------------------------------------------------------------------------------------


def _reason(messages: DataFrame, planned: Plan) -> Column:
    """``REASON``, also for messages without a key."""
    known = f.col(REASON) if REASON in messages.columns else f.lit(None).cast("string")
    absent = (f.when(f.col(pair.messages).isNull(), f.lit(f"no {pair.messages}")) for pair in planned.keys)
    return f.coalesce(known, *absent)


def _place(messages: DataFrame) -> Column:
    empty = {"message_time": "timestamp", "message_topic": "string", "message_queue": "int", "message_offset": "long"}
    return f.struct(
        *(
            (f.col(name) if name in messages.columns else f.lit(None)).cast(kind).alias(name)
            for name, kind in empty.items()
        )
    )


def _source(pair: Pair, side: int) -> Column:
    return f.col(pair.messages) if side else f.col(f"`{pair.table}`")


def _key(planned: Plan, kinds: dict[Pair, "_Types"], side: int, columns: Sequence[str] = ()) -> list[Column]:
    found = []
    for n, pair in enumerate(planned.keys):
        kind = _key_type(pair, kinds[pair])
        key = _source(pair, side).cast(kind)
        # Binary values are base64 in JSON: their text is another value.
        if KEY_TEXTS in columns and kind != "binary":
            key = f.coalesce(key, _of_text(f.col(KEY_TEXTS).getField(f"k{n}"), kind))
        found.append(key.alias(f"key_{n}"))
    return found


def _of_text(text: Column, kind: str) -> Column:
    """The key that a text means; null: none. Whole numbers may have become floats, 104.0."""
    if kind != "long":
        return text.try_cast(kind)
    number = text.try_cast(f"decimal({_DIGITS},{_SCALE})")
    return f.when(number == f.floor(number), number.try_cast(kind))


def _values(pairs: Sequence[Pair], side: int) -> Column:
    # The constant keeps the struct from being empty, and its presence tells a row of nulls from no row.
    return f.struct(
        f.lit(True).alias("is_there"), *(_source(pair, side).alias(f"c{n}") for n, pair in enumerate(pairs))
    )


def value(side: str, number: int) -> Column:
    """Compared column ``number`` of a side, ``table`` or ``message``, in the rows of ``classify``."""
    return f.col(f"{side}_values").getField(f"c{number}")


def _summands(planned: Plan, kinds: "dict[Pair, _Types]", side: int) -> list[Column]:
    found = []
    for n, pair in enumerate(planned.sums):
        if any(not isinstance(one, (*_INTEGERS, *_FLOATS, t.DecimalType, t.NullType)) for one in kinds[pair]):
            raise _unequal_types(pair, kinds[pair], "--sum needs numbers")
        own = kinds[pair][side]
        # Each side with its own decimal places: with those of the other one, large values would not fit, and be left out.
        scale = own.scale if isinstance(own, t.DecimalType) else 0
        is_float = isinstance(own, _FLOATS)
        kind = "double" if is_float else f"decimal({_DIGITS},{scale})"
        # The double 0.1 is the decimal 0.1 here: Spark converts by its shortest text.
        exact = (
            _source(pair, side).try_cast(f"decimal({_DIGITS},{_SCALE})")
            if is_float
            else f.lit(None).cast(f"decimal({_DIGITS},{_SCALE})")
        )
        found += [
            _source(pair, side).cast(kind).alias(f"{SIDES[side]}_sum_{n}"),
            exact.alias(f"{SIDES[side]}_exact_{n}"),
        ]
    return found


# --- types --------------------------------------------------------------------------------------------------------


class _Types(NamedTuple):
    """Of one column, in the table and in messages."""

    table: t.DataType
    messages: t.DataType


def _types(sides: Sides, pair: Pair) -> _Types:
    row, message = sides.rows.schema, _type_of(sides.messages.schema, pair.messages.split("."))
    if pair.table not in row.fieldNames():
        raise UsageError(f"the table has no column {pair.table}", hint=f"it has {', '.join(row.fieldNames())}")
    if message is None:
        known = [name for name in sides.messages.columns if name not in (REASON, KEY_TEXTS)]
        raise UsageError(
            f"messages have no column {pair.messages}",
            hint=f"they have {', '.join(known)}; {pair.table}=NAME if they name it otherwise",
        )
    found = _Types(row[pair.table].dataType, message)
    if any(not isinstance(one, _COMPARABLE) for one in found):
        raise _unequal_types(pair, found, "such columns cannot be compared")
    return found


def _type_of(schema: t.DataType, names: Sequence[str]) -> t.DataType | None:
    """Of a column, or of a field inside it; None: there is none."""
    if not names:
        return schema
    if not isinstance(schema, t.StructType) or names[0] not in schema.fieldNames():
        return None
    return _type_of(schema[names[0]].dataType, names[1:])


def _unequal_types(pair: Pair, kinds: _Types, why: str) -> UsageError:
    return UsageError(
        f"{pair.table} is {kinds.table.simpleString()} in the table, {kinds.messages.simpleString()} in messages: {why}",
        hint="another type in --schema, or CAST in --query",
    )


def _all(kinds: _Types, wanted: Any) -> bool:
    return all(isinstance(one, (wanted, t.NullType)) for one in kinds)


def _scale(kinds: _Types) -> int:
    return max(one.scale if isinstance(one, t.DecimalType) else 0 for one in kinds)


def _key_type(pair: Pair, kinds: _Types) -> str:
    if _all(kinds, _INTEGERS):
        return "long"
    if _all(kinds, (*_INTEGERS, t.DecimalType)):
        return f"decimal({_DIGITS},{_scale(kinds)})"
    if _all(kinds, (*_INTEGERS, t.StringType)):
        return "string"
    if _all(kinds, _TEMPORAL):
        return "timestamp"
    if kinds.table == kinds.messages and not isinstance(kinds.table, _FLOATS):
        return kinds.table.simpleString()
    raise _unequal_types(pair, kinds, "no type of a key fits both")


def _equal(number: int, pair: Pair, kinds: _Types, tolerance: Decimal | None) -> Column:
    """Whether the values are equal, never null; NULL equals NULL only."""
    a, b = value("table", number), value("message", number)
    close = _close(pair, kinds, tolerance, a, b)
    return (a.isNull() & b.isNull()) | (a.isNotNull() & b.isNotNull() & f.coalesce(close, f.lit(False)))


def _close(pair: Pair, kinds: _Types, tolerance: Decimal | None, a: Column, b: Column) -> Column:
    if _all(kinds, (*_INTEGERS, *_FLOATS, t.DecimalType)):
        return _close_numbers(kinds, tolerance, a, b)
    if _all(kinds, (*_TEMPORAL, t.StringType)) and any(isinstance(one, _TEMPORAL) for one in kinds):
        a, b = a.try_cast("timestamp"), b.try_cast("timestamp")
        if tolerance is None:
            return a == b
        return f.abs(f.unix_micros(a) - f.unix_micros(b)) <= min(int(tolerance * _MICROS), _MICROS_MAX)
    if tolerance is not None:
        raise _unequal_types(pair, kinds, "a tolerance is for numbers and times")
    if kinds.table == kinds.messages or any(isinstance(one, t.NullType) for one in kinds):
        return a == b
    # Databases without booleans store 0 and 1.
    if _all(kinds, (t.BooleanType, *_INTEGERS)):
        return a.cast("long") == b.cast("long")
    raise _unequal_types(pair, kinds, "such values are never equal")


def _close_numbers(kinds: _Types, tolerance: Decimal | None, a: Column, b: Column) -> Column:
    floating = any(isinstance(one, _FLOATS) for one in kinds)
    if tolerance is None:
        return a.cast("double") == b.cast("double") if floating else a == b
    # As decimals, the double 1000000.01 is a cent away from 1000000.00, and not 0.01000000001.
    kind = f"decimal({_DIGITS},{_SCALE if floating else _scale(kinds)})"
    off = f.abs(f.try_subtract(a.try_cast(kind), b.try_cast(kind)))
    as_doubles = f.abs(a.cast("double") - b.cast("double")) <= float(tolerance)
    return (a == b) | f.coalesce(off <= f.lit(tolerance), as_doubles)
