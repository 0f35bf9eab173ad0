"""The columns that the sink writes, and their conversion into bodies, property strings and queues, a whole record batch at a time.

What each column is: docs/spark-options.md, Columns of writing. A row has ``properties`` or ``headers``, ``delay_ms`` or ``deliver_at``;
``queue`` overrides ``sharding_key``. Names and meaning are those of the source, so that its rows can be written again, and in capital
letters too, as Spark resolves names. Empty texts count as null, as in RocketMQ, where a property without a value does not exist. Keys and
headers are text there: see docs/decisions/0061-rows-as-messages.md.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from halfmq import limits
from halfmq.client.outgoing import checked_topic
from halfmq.errors import MessageTooLarge, UsageError
from halfmq.model.properties import (
    CARRIED,
    KEYS,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    SHARDING_KEY,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELIVER_MS,
    is_reserved,
)
from halfmq.spark.rows.byte_slices import Ints
from halfmq.spark.sink.hashes import java_hashes

_BYTES: Final = (BinaryType, StringType)
_INTEGERS: Final = (ByteType, ShortType, IntegerType, LongType)
#: Name -> (Spark types, as text).
COLUMNS: Final[dict[str, tuple[tuple[type[DataType], ...], str]]] = {
    "value": (_BYTES, "binary or string"),
    "topic": ((StringType,), "string"),
    "key": (_BYTES, "binary or string"),
    "keys": ((StringType,), "string"),
    "tag": ((StringType,), "string"),
    "properties": ((MapType,), "map<string,string>"),
    "headers": ((ArrayType, MapType), "array<struct<key: string, value: binary>> or map<string,string>"),
    "sharding_key": ((StringType,), "string"),
    "queue": (_INTEGERS, "int"),
    "delay_ms": (_INTEGERS, "long"),
    "deliver_at": ((TimestampType,), "timestamp"),
}
_DELAYS: Final = frozenset({"delay_ms", "deliver_at"})
#: As in the client: reserved for properties that are added.
_OWN_PROPERTIES_BYTES: Final = 1_536
PROPERTIES_BYTES_MAX: Final = limits.PROPERTIES_BYTES_MAX - _OWN_PROPERTIES_BYTES
_DELETED: Final = (
    "to tell consumers that a key was deleted, write a body that says it: coalesce(value, cast('null' as binary))"
)
_BINARY_KEY: Final = "a key is text, and a word: write base64(key), and read unbase64(cast(key as string))"
#: Hint for programs about a queue that does not exist; jobs replace it by what they offer.
WITHOUT_QUEUE: Final = "omit the column: the messages are then distributed"
#: No queue was chosen.
ANY_QUEUE: Final = -1
#: ``body``; ``properties``: the property string without UNIQ_KEY; ``tag_hash``: of TAGS; ``delay``: as ``message_facts.delay_in`` reads it.
ROWS: Final = pa.schema(
    [("body", pa.binary()), ("properties", pa.binary()), ("tag_hash", pa.int32()), ("delay", pa.int64())]
)


class Group(NamedTuple):
    """Rows for one queue, in order. ``queue`` may be ANY_QUEUE; ``is_delayed``: all of them have a delay, or none; ``rows``: of schema
    ROWS, without nulls.
    """

    topic: str
    queue: int
    is_delayed: bool
    rows: pa.RecordBatch


def check_columns(schema: StructType, topic: str, *, with_delays: bool = True) -> None:
    """Check the columns of a query; ``topic``: the option; ``with_delays``: whether messages may have delays.

    Raises:
        UsageError: one is unknown, missing or of the wrong type; the text lists the valid ones.
    """
    valid = ", ".join(f"{name} ({text})" for name, (_, text) in COLUMNS.items())
    names = [field.name.lower() for field in schema.fields]
    delays = [name for name in names if name in _DELAYS]
    if delays and not with_delays:
        raise UsageError(
            f"column {delays[0]}: with guarantee=atLeastOnce no message can have a delay, since RocketMQ's batches of messages must not contain any",
            hint="remove the column; halfmq.Client sends delayed messages to RocketMQ",
        )
    unknown = [field.name for field in schema.fields if field.name.lower() not in COLUMNS]
    if unknown:
        raise UsageError(f"unknown column {', '.join(unknown)}", hint=f"columns are {valid}")
    if len(set(names)) < len(names):
        raise UsageError(f"a column occurs twice: {', '.join(names)}", hint=f"columns are {valid}")
    for field in schema.fields:
        types, text = COLUMNS[field.name.lower()]
        if not isinstance(field.dataType, types) or not _has_text_properties(field.dataType):
            raise UsageError(f"column {field.name} is {field.dataType.simpleString()}", hint=f"it must be {text}")
    if {"properties", "headers"} <= {*names}:
        raise UsageError(
            "there are columns properties and headers", hint="one of them: both are properties of the message"
        )
    if "value" not in names:
        raise UsageError("there is no column value, which becomes the body", hint=f"columns are {valid}")
    if "topic" not in names and not topic:
        raise UsageError("there is neither option topic nor column topic", hint="one of them names the topic")


def _has_text_properties(kind: DataType) -> bool:
    """True also for what has none."""
    if isinstance(kind, MapType):
        return isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)
    if not isinstance(kind, ArrayType):
        return True
    element = kind.elementType
    return (
        isinstance(element, StructType)
        and [field.name.lower() for field in element.fields] == ["key", "value"]
        and isinstance(element.fields[0].dataType, StringType)
        and isinstance(element.fields[1].dataType, _BYTES)
    )


def groups_of(
    batch: pa.RecordBatch, topic: str, queues_of: Callable[[str], int],
    complete: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda rows: rows,
) -> Iterable[Group]:  # fmt: skip
    """Validate and convert the rows, divided by topic and queue; the order of rows of one queue stays.

    ``topic``: the option, which overrides the column. ``queues_of``: number of queues to write to; called only where rows name a queue
    or a sharding key. ``complete``: called once with all rows in their order, of schema ROWS; may change their properties.

    Raises:
        UsageError, InvalidName, MessageTooLarge: a row is invalid; the text says how many are.
    """
    if not batch.num_rows:
        return ()
    given = {name.lower(): batch.column(index) for index, name in enumerate(batch.schema.names)}
    shards = _text(given, "sharding_key")
    delays = _delays(given)
    rows = pa.RecordBatch.from_arrays([_bodies(given["value"]), *_properties(given, shards, delays)], schema=ROWS)
    _check_sizes(rows)
    rows = complete(rows)
    topics = None if topic else _topics(given)
    if topics is None and shards is None and "queue" not in given and delays is None:
        return (Group(checked_topic(topic), ANY_QUEUE, False, rows),)
    codes, names = (np.zeros(batch.num_rows, np.int64), [checked_topic(topic)]) if topics is None else topics
    return _divided(rows, codes, names, _queues(given, shards, codes, names, queues_of), delays)


def _divided(
    rows: pa.RecordBatch, codes: Ints, topics: Sequence[str], queues: Ints, delays: Ints | None
) -> Iterable[Group]:
    labels = codes << 33 | (queues + 1) << 1
    if delays is not None:
        labels |= delays != 0
    order = np.argsort(labels, kind="stable")
    labels = labels[order]
    begins = np.flatnonzero(np.diff(labels, prepend=-1))
    sorted_rows = rows.take(pa.array(order)) if len(begins) > 1 else rows
    for begin, end in zip(begins, [*begins[1:], len(labels)], strict=True):
        label = int(labels[begin])
        yield Group(
            topics[label >> 33],
            (label >> 1 & 0xFFFFFFFF) - 1,
            bool(label & 1),
            sorted_rows.slice(begin, end - begin),
        )


def _topics(given: dict[str, pa.Array]) -> tuple[Ints, list[str]]:
    """(index into the names for each row, names)."""
    column = _text(given, "topic")
    if column is None or column.null_count:
        nulls = len(given["topic"]) if column is None else column.null_count
        raise UsageError(f"topic is null or empty in {nulls} rows", hint="every row needs a topic")
    found = column.dictionary_encode()
    names = [checked_topic(name) for name in found.dictionary.cast(pa.string()).to_pylist()]
    return found.indices.to_numpy().astype(np.int64), names


def _queues(
    given: dict[str, pa.Array], shards: pa.BinaryArray | None, codes: Ints, topics: Sequence[str],
    queues_of: Callable[[str], int],
) -> Ints:  # fmt: skip
    """The queue of each row, or ANY_QUEUE."""
    chosen = np.full(len(codes), ANY_QUEUE, np.int64)
    column = given.get("queue")
    if column is not None:
        there = column.is_valid().to_numpy(zero_copy_only=False)
        chosen[there] = column.drop_null().cast(pa.int64()).to_numpy()
    sharded = np.zeros(len(codes), np.bool_)
    if shards is not None:
        sharded = shards.is_valid().to_numpy(zero_copy_only=False)
        if column is not None:
            sharded &= ~there
    if shards is None and column is None:
        return chosen
    named = sharded if column is None else sharded | there
    counts = np.ones(len(topics), np.int64)
    for code in np.unique(codes[named]):
        counts[code] = queues_of(topics[code])
    if column is not None:
        wrong = there & ((chosen < 0) | (chosen >= counts[codes]))
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise UsageError(
                f"queue {chosen[row]} does not exist in {int(wrong.sum())} rows: topic {topics[codes[row]]} has write queues "
                f"0 to {counts[codes[row]] - 1}",
                hint=WITHOUT_QUEUE,
            )
    if shards is not None:
        # Precedent: RocketMQ SelectMessageQueueByHash, so that all producers choose the same queue.
        chosen[sharded] = (np.abs(java_hashes(shards).astype(np.int64)) % counts[codes])[sharded]
    return chosen


# --- values ----------------------------------------------------------------------------------------------------


def _bodies(column: pa.Array) -> pa.BinaryArray:
    if column.null_count:
        raise UsageError(
            f"value is null in {column.null_count} of {len(column)} rows",
            hint=f"filter them, since brokers reject a message without a body; {_DELETED}",
        )
    return column.cast(pa.binary())


def _check_sizes(rows: pa.RecordBatch) -> None:
    sizes = pc.binary_length(rows.column("body")).to_numpy()
    if sizes.min() == 0:
        raise UsageError(
            f"value is empty in {int((sizes == 0).sum())} of {len(sizes)} rows", hint="brokers reject an empty body"
        )
    if sizes.max() > limits.BODY_BYTES_MAX:
        raise MessageTooLarge(
            f"value has {sizes.max()} bytes; {limits.BODY_BYTES_MAX} are allowed, and more are in "
            f"{int((sizes > limits.BODY_BYTES_MAX).sum())} of {len(sizes)} rows"
        )
    largest = pc.max(pc.binary_length(rows.column("properties"))).as_py()
    if largest > PROPERTIES_BYTES_MAX:
        raise MessageTooLarge(f"the properties of a row take {largest} bytes; {PROPERTIES_BYTES_MAX} are allowed")


def _text(given: dict[str, pa.Array], name: str) -> pa.BinaryArray | None:
    """The texts of a column, as UTF-8; null where null or empty; None if there are none.

    Raises:
        UsageError: one contains a separator of the property string, or is not UTF-8, which Spark does not verify.
    """
    column = given.get(name)
    if column is None or column.null_count == len(column):
        return None
    raw = column.cast(pa.binary())
    try:
        raw.cast(pa.string())
    except pa.ArrowInvalid as error:
        hint = _BINARY_KEY if name == "key" else ""
        raise UsageError(f"column {name} contains bytes that are not UTF-8", hint=hint) from error
    if pc.any(pc.match_substring(raw, PROPERTY_SEPARATOR)).as_py():
        raise UsageError(f"column {name} contains the separator byte 0x02")
    empty = pc.equal(pc.binary_length(raw), 0)
    if pc.any(empty).as_py():
        raw = pc.if_else(empty, pa.scalar(None, pa.binary()), raw)
    return raw if raw.null_count < len(raw) else None


def _delays(given: dict[str, pa.Array]) -> Ints | None:
    """The delay of each row, as in ROWS; None if no row has one."""
    found = None
    for name in _DELAYS & given.keys():
        column = given[name]
        if name == "deliver_at":
            column = pc.ceil_temporal(column, unit="millisecond").cast(pa.timestamp("ms", tz="UTC"))
        values = column.cast(pa.int64())
        chosen = pc.greater(pc.fill_null(values, 0), 0).to_numpy(zero_copy_only=False)
        if not chosen.any():
            continue
        numbers: Ints = np.where(chosen, values.fill_null(0).to_numpy(), 0)
        if name == "deliver_at":
            numbers = -numbers
        if found is not None and (both := chosen & (found != 0)).any():
            raise UsageError(
                f"delay_ms and deliver_at are both set in {int(both.sum())} rows", hint="set one of them to null"
            )
        found = numbers if found is None else found + numbers
    if found is not None and (long := found > limits.TIMER_DELAY_MAX_MS).any():
        raise UsageError(
            f"delay_ms is up to {found.max()} in {int(long.sum())} of {len(found)} rows; at most {limits.TIMER_DELAY_MAX_MS} (3 days) are "
            "allowed"
        )
    if found is not None and (late := -found > time.time_ns() // 1_000_000 + limits.TIMER_DELAY_MAX_MS).any():
        raise UsageError(f"deliver_at is more than 3 days ahead in {int(late.sum())} of {len(found)} rows")
    return found


def _delay_pairs(delays: Ints) -> pa.BinaryArray:
    """The property of each row that delays it; empty where it has no delay."""
    texts = pa.array(np.abs(delays)).cast(pa.string()).cast(pa.binary())
    names = np.where(delays > 0, TIMER_DELAY_MS, TIMER_DELIVER_MS).tolist()
    names = pa.array(names, pa.string()).cast(pa.binary())
    joined = pc.binary_join_element_wise(
        names, pa.scalar(NAME_VALUE_SEPARATOR), texts, pa.scalar(PROPERTY_SEPARATOR), b""
    )
    return pc.if_else(pa.array(delays != 0), joined, pa.scalar(b"", pa.binary()))


def _properties(
    given: dict[str, pa.Array], shards: pa.BinaryArray | None, delays: Ints | None
) -> tuple[pa.BinaryArray, pa.Int32Array, pa.Int64Array]:
    """(property strings without UNIQ_KEY, tag hashes, delays)."""
    rows = len(given["value"])
    tags = _text(given, "tag")
    pieces = []
    hashes = np.zeros(rows, np.int32)
    if tags is not None:
        _refuse(tags, r"\|", "a tag contains '|', so it cannot be subscribed to")
        _refuse(tags, r"^[[:space:]]|[[:space:]]$", "a tag has blanks around it")
        pieces.append(_pairs(TAGS, tags))
        hashes = java_hashes(tags)
    keys = _keys(given)
    if keys is not None:
        pieces.append(_pairs(KEYS, keys))
    if shards is not None:
        pieces.append(_pairs(SHARDING_KEY, shards))
    if delays is not None:
        pieces.append(_delay_pairs(delays))
    pieces.extend(_other_properties(given[name], name) for name in ("properties", "headers") if name in given)
    if not pieces:
        joined = pa.Array.from_buffers(
            pa.binary(), rows, [None, pa.py_buffer(np.zeros(rows + 1, np.int32)), pa.py_buffer(b"")]
        )
    else:
        joined = pieces[0] if len(pieces) == 1 else pc.binary_join_element_wise(*pieces, b"")
    return joined, pa.array(hashes), pa.array(np.zeros(rows, np.int64) if delays is None else delays)


def _keys(given: dict[str, pa.Array]) -> pa.BinaryArray | None:
    first, others = _text(given, "key"), _text(given, "keys")
    if first is None:
        return others
    _refuse(first, r"[[:space:]]", "a key contains a space: keys are separated by spaces", _BINARY_KEY)
    if others is None:
        return first
    # The source's ``key`` is the first of ``keys``: writing both of a row again must not add it a second time.
    with_space = pc.binary_join_element_wise(first, b"", b" ")
    padded = pc.binary_join_element_wise(others, b"", b" ")
    there = _starts_with(padded, with_space)
    both = pc.binary_join_element_wise(first, others, b" ")
    return pc.if_else(there, others, pc.coalesce(both, first, others))


def _starts_with(texts: pa.BinaryArray, prefixes: pa.BinaryArray) -> pa.BooleanArray:
    """False where one is null. One by one: Arrow has no function for it."""
    pairs = zip(texts.to_pylist(), prefixes.to_pylist(), strict=True)
    return pa.array([a is not None and b is not None and a.startswith(b) for a, b in pairs])


def _pairs(name: str, values: pa.BinaryArray) -> pa.BinaryArray:
    """``name 0x01 value 0x02`` for each row; empty where null."""
    joined = pc.binary_join_element_wise(
        pa.scalar(name.encode() + NAME_VALUE_SEPARATOR), values, pa.scalar(PROPERTY_SEPARATOR), b""
    )
    return joined.fill_null(b"") if joined.null_count else joined


def _other_properties(column: pa.MapArray | pa.ListArray, name: str) -> pa.BinaryArray:
    if column.null_count:
        column = pc.if_else(column.is_valid(), column, pa.array([[]] * len(column), column.type))
    offsets = column.offsets
    begin, end = offsets[0].as_py(), offsets[-1].as_py()
    if isinstance(column, pa.MapArray):
        names, values = column.keys[begin:end], column.items[begin:end]
    else:
        elements = column.values[begin:end]
        if elements.null_count:
            raise UsageError(f"column {name} has {elements.null_count} elements that are null", hint="filter them")
        names, values = elements.flatten()
        _refuse_repeated(names, np.diff(offsets.to_numpy()))
    if names.null_count:
        raise UsageError(f"column {name} has {names.null_count} names that are null", hint="filter them")
    _check_names(names)
    raw = values.cast(pa.binary())
    missing = int(pc.sum(pc.fill_null(pc.equal(pc.binary_length(raw), 0), True)).as_py() or 0)
    if missing:
        raise UsageError(
            f"{missing} properties have no value", hint="omit the property instead: map_filter, or filter for headers"
        )
    try:
        raw.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise UsageError("a property is not UTF-8", hint="properties are text: write its base64") from error
    if pc.any(pc.match_substring(raw, PROPERTY_SEPARATOR)).as_py():
        raise UsageError("a property contains the separator byte 0x02")
    pieces = pc.binary_join_element_wise(
        names.cast(pa.binary()), pa.scalar(NAME_VALUE_SEPARATOR), raw, pa.scalar(PROPERTY_SEPARATOR), b""
    )
    starts = pc.subtract(offsets, begin)
    return pc.binary_join(pa.ListArray.from_arrays(starts, pieces), b"")


def _refuse_repeated(names: pa.Array, counts: Ints) -> None:
    """Readers see one property of a name, so another one would be lost without a word. Kafka's headers may repeat a name."""
    rows = pa.array(np.repeat(np.arange(len(counts)), counts))
    grouped = pa.table([rows, names], ["row", "name"]).group_by(["row", "name"]).aggregate([([], "count_all")])
    repeated = grouped.filter(pc.greater(grouped["count_all"], 1))
    if repeated.num_rows:
        raise UsageError(
            f"header {repeated['name'][0].as_py()!r} occurs twice in a row, and headers of {repeated.num_rows - 1} more names and rows do",
            hint="a message has one property of a name: join the values, or keep one",
        )


def _check_names(names: pa.Array) -> None:
    for name in pc.unique(names.cast(pa.binary())).to_pylist():
        try:
            text = name.decode()
        except UnicodeDecodeError as error:
            raise UsageError(f"property name {name!r} is not UTF-8") from error
        if is_reserved(text) and text not in CARRIED:  # those are of a message that is copied
            raise UsageError(f"property {text!r} is reserved", hint="use the column for it, or map_filter")
        if not text or "\x01" in text or "\x02" in text:
            raise UsageError(f"property name {text!r} is empty or contains a separator byte")


def _refuse(texts: pa.BinaryArray, pattern: str, what: str, hint: str = "") -> None:
    found = pc.match_substring_regex(texts, pattern)
    count = int(pc.sum(found).as_py() or 0)
    if count:
        example: Any = texts.filter(found)[0].as_py()
        raise UsageError(f"{what}: {example.decode('utf-8', 'replace')!r}, and {count - 1} more rows", hint=hint)
