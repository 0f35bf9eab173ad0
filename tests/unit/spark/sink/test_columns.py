"""Rows become the same properties and queues as the same messages from our client; invalid rows are refused before anything is sent."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from halfmq import limits
from halfmq.client.outgoing import compose
from halfmq.errors import HalfmqError, InvalidName, MessageTooLarge, UsageError
from halfmq.model.ids import java_string_hash
from halfmq.model.properties import to_dict
from halfmq.spark.schema import _TYPES, spark_schema
from halfmq.spark.sink.columns import ANY_QUEUE, ROWS, Group, check_columns, groups_of

TYPES = {
    "value": pa.binary(), "topic": pa.string(), "key": pa.string(), "keys": pa.string(), "tag": pa.string(),
    "properties": pa.map_(pa.string(), pa.string()), "sharding_key": pa.string(), "queue": pa.int32(),
    "delay_ms": pa.int64(), "deliver_at": pa.timestamp("us", tz="UTC"), "headers": _TYPES["headers"][1],
}  # fmt: skip
WORD = st.text("abcXYZ-0€", min_size=1, max_size=6)
MAYBE = st.one_of(st.none(), WORD)
MESSAGE = st.fixed_dictionaries(
    {
        "value": st.binary(min_size=1, max_size=9), "topic": st.sampled_from(["t1", "t2", "t3"]), "key": MAYBE,
        "keys": st.one_of(st.none(), st.lists(WORD, min_size=1, max_size=3).map(" ".join)), "tag": MAYBE,
        "properties": st.one_of(st.none(), st.dictionaries(WORD, WORD, max_size=3)), "sharding_key": MAYBE,
        "queue": st.one_of(st.none(), st.integers(0, 2)), "delay_ms": st.one_of(st.none(), st.integers(-1, 259_200_000)),
    }
)  # fmt: skip


def queues_of(topic: str) -> int:
    return int(topic[-1]) + 2


def batch_of(messages: list[dict[str, Any]]) -> pa.RecordBatch:
    names = list(messages[0])
    columns = [
        pa.array([list(m[name].items()) if isinstance(m[name], dict) else m[name] for m in messages], TYPES[name])
        for name in names
    ]
    return pa.RecordBatch.from_arrays(columns, names=names)


def converted(messages: list[dict[str, Any]], topic: str = "", skipped: int = 0) -> list[Group]:
    return list(groups_of(batch_of(messages).slice(skipped), topic, queues_of))


def expected(message: dict[str, Any]) -> tuple[str, int, bool, bytes, dict[str, str], int, int]:
    """(topic, queue, whether it is delayed, body, properties, tag hash, delay), as our client writes it."""
    keys = (message["keys"] or "").split()
    if message["key"] and keys[:1] != [message["key"]]:
        keys.insert(0, message["key"])
    made = compose(
        message["topic"], message["value"], tag=message["tag"], keys=keys, sharding_key=message["sharding_key"],
        properties=message["properties"],
    )  # fmt: skip
    queue = ANY_QUEUE
    if message["queue"] is not None:
        queue = message["queue"]
    elif made.sharding_key:
        queue = abs(java_string_hash(made.sharding_key)) % queues_of(made.topic)
    delay_ms = max(0, message["delay_ms"] or 0)
    properties = to_dict(made.properties) | ({"TIMER_DELAY_MS": str(delay_ms)} if delay_ms else {})
    return made.topic, queue, delay_ms > 0, made.body, properties, java_string_hash(message["tag"] or ""), delay_ms


NOTHING = {"value": b"a", "topic": "t1", "key": None, "keys": None, "tag": None, "properties": None, "sharding_key": None, "queue": None, "delay_ms": None}  # fmt: skip


@settings(deadline=None)  # the machine may be busy
@given(st.lists(MESSAGE, min_size=1, max_size=12), st.integers(0, 3))
@example([NOTHING], 0)
@example([{**NOTHING, "properties": {"a": "b"}}, NOTHING, {**NOTHING, "properties": {}}], 1)
@example([{**NOTHING, "key": "k", "keys": "k l"}, {**NOTHING, "key": "k", "keys": "kk"}], 0)
def test_rows_become_what_the_client_sends(messages: list[dict[str, Any]], skipped: int) -> None:
    skipped = min(skipped, len(messages) - 1)
    wanted: dict[tuple[str, int, bool], list[tuple[Any, ...]]] = {}
    for message in messages[skipped:]:
        topic, queue, is_delayed, *rest = expected(message)
        wanted.setdefault((topic, queue, is_delayed), []).append(tuple(rest))
    found: dict[tuple[str, int, bool], list[tuple[Any, ...]]] = {}
    for topic, queue, is_delayed, rows in converted(messages, skipped=skipped):
        assert rows.schema == ROWS
        assert (topic, queue, is_delayed) not in found
        found[topic, queue, is_delayed] = [
            (row["body"], to_dict(row["properties"]), row["tag_hash"], row["delay"]) for row in rows.to_pylist()
        ]
    assert found == wanted


def test_option_topic_overrides_the_column_and_nothing_is_divided_without_need() -> None:
    found = converted([{"value": b"a", "topic": "t1"}, {"value": b"b", "topic": None}], "other")
    assert [(group.topic, group.queue, group.rows.num_rows) for group in found] == [("other", ANY_QUEUE, 2)]


def test_text_values_and_an_empty_batch() -> None:
    batch = pa.record_batch({"value": pa.array(["a", "é"])})
    (group,) = groups_of(batch, "t1", queues_of)
    assert group.rows.column(0).to_pylist() == [b"a", "é".encode()]
    assert list(groups_of(batch.slice(2), "t1", queues_of)) == []


@pytest.mark.parametrize(
    ("changes", "kind", "said"),
    [
        ({"value": None}, UsageError, r"value is null in 1 of 3 rows \(.*reject a message without a body"),
        ({"value": b""}, UsageError, "value is empty in 1 of 3 rows"),
        ({"value": bytes(limits.BODY_BYTES_MAX + 1)}, MessageTooLarge, "more are in 1 of 3 rows"),
        ({"topic": None}, UsageError, "topic is null or empty in 1 rows"),
        ({"topic": "a b"}, InvalidName, "topic 'a b' is not a valid name"),
        ({"key": "a b"}, UsageError, "key contains a space"),
        ({"tag": "a|b"}, UsageError, r"'\|'"),
        ({"tag": " a"}, UsageError, "blanks around"),
        ({"tag": "a\x02b"}, UsageError, "column tag contains the separator"),
        ({"properties": {"TAGS": "x"}}, UsageError, "'TAGS' is reserved"),
        ({"properties": {"HMQ_TX_ID": "x"}}, UsageError, "'HMQ_TX_ID' is reserved"),
        ({"properties": {"HMQ_OF_A_LATER_VERSION": "x"}}, UsageError, "'HMQ_OF_A_LATER_VERSION' is reserved"),
        ({"properties": {"a\x01": "x"}}, UsageError, "separator"),
        ({"properties": {"": "x"}}, UsageError, "is empty"),
        ({"properties": {"a": ""}}, UsageError, "no value"),
        ({"properties": {"a": None}}, UsageError, "no value"),
        ({"properties": {"a": "x\x02"}}, UsageError, "separator"),
        ({"properties": {"a": "x" * limits.PROPERTIES_BYTES_MAX}}, MessageTooLarge, "properties of a row"),
        ({"queue": 3}, UsageError, "queue 3 does not exist in 1 rows: topic t1 has write queues 0 to 2"),
        ({"queue": -1}, UsageError, "queue -1 does not exist"),
        (
            {"delay_ms": 259_200_001},
            UsageError,
            r"delay_ms is up to 259200001 in 1 of 3 rows; at most 259200000 \(3 days\)",
        ),
    ],
)
def test_invalid_row_is_refused(changes: dict[str, Any], kind: type[HalfmqError], said: str) -> None:
    with pytest.raises(kind, match=said):
        converted([NOTHING, {**NOTHING, **changes}, NOTHING])


HEADERS = st.lists(st.tuples(WORD, WORD.map(str.encode)), max_size=3, unique_by=lambda pair: pair[0])


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), HEADERS), min_size=1, max_size=9), st.integers(0, 3))
@example([None, [("a", b"b")], [], [("a", b"\x01"), ("b", b"c")]], 1)
def test_headers_are_properties(rows: list[list[tuple[str, bytes]] | None], skipped: int) -> None:
    """As the source has them, and as a map."""
    skipped = min(skipped, len(rows) - 1)
    wanted = [{name: value.decode() for name, value in row or ()} for row in rows[skipped:]]
    listed = [None if row is None else [{"key": name, "value": value} for name, value in row] for row in rows]
    for column in (
        pa.array(listed, TYPES["headers"]),
        pa.array([None if row is None else [(name, value.decode()) for name, value in row] for row in rows], TYPES["properties"]),
    ):  # fmt: skip
        batch = pa.RecordBatch.from_arrays([pa.array([b"a"] * len(rows)), column], names=["value", "headers"])
        (group,) = groups_of(batch.slice(skipped), "t", queues_of)
        assert [to_dict(one) for one in group.rows.column("properties").to_pylist()] == wanted


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ([("a", b"b"), ("c", b"d"), ("a", b"e")], "header 'a' occurs twice in a row, and headers of 0 more"),
        ([("a", None)], "1 properties have no value"),
        ([("a", b"\xff")], "a property is not UTF-8"),
        ([("UNIQ_KEY", b"x")], "'UNIQ_KEY' is reserved"),
        ([(None, b"x")], "1 names that are null"),
        ([None], "1 elements that are null"),
    ],
)
def test_headers_that_are_no_properties_are_refused(row: list[Any], said: str) -> None:
    elements = [pair and {"key": pair[0], "value": pair[1]} for pair in row]
    headers = pa.array([[{"key": "a", "value": b"b"}], elements], TYPES["headers"])
    batch = pa.RecordBatch.from_arrays([pa.array([b"a"] * 2), headers], names=["value", "headers"])
    with pytest.raises(UsageError, match=said):
        list(groups_of(batch, "t", queues_of))


def test_names_of_columns_in_capital_letters() -> None:
    names = ["VALUE", "Topic", "kEY", "TAG", "Queue"]
    columns = [pa.array([b"a"]), pa.array(["t1"]), pa.array(["k"]), pa.array(["x"]), pa.array([2])]
    (group,) = groups_of(pa.RecordBatch.from_arrays(columns, names=names), "", queues_of)
    assert (group.topic, group.queue) == ("t1", 2)
    assert to_dict(group.rows.column("properties")[0].as_py()) == {"TAGS": "x", "KEYS": "k"}


def test_keys_and_bodies_that_are_refused_say_how_they_can_be_written() -> None:
    def refused(key: bytes | None, value: bytes | None) -> str:
        batch = pa.record_batch({"value": pa.array([value], pa.binary()), "key": pa.array([key], pa.binary())})
        with pytest.raises(UsageError) as caught:
            list(groups_of(batch, "t", queues_of))
        return str(caught.value)

    for key in (b"\xff\x00", b"two words"):
        assert "write base64(key), and read unbase64(cast(key as string))" in refused(key, b"a")
    assert "write a body that says it: coalesce(value, cast('null' as binary))" in refused(None, None)


@pytest.mark.parametrize("name", ["tag", "keys", "properties"])
def test_text_that_is_not_utf8_is_refused(name: str) -> None:
    """Spark does not verify strings that come from a cast."""
    bad = pa.array([b"\xff"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 1, bad.buffers())
    if name == "properties":
        text = pa.MapArray.from_arrays([0, 1], pa.array(["a"]), text)
    batch = pa.RecordBatch.from_arrays([pa.array([b"a"], pa.binary()), text], names=["value", name])
    with pytest.raises(UsageError, match="UTF-8"):
        list(groups_of(batch, "t1", queues_of))


def test_queues_are_asked_for_only_where_needed() -> None:
    asked: list[str] = []

    def count(topic: str) -> int:
        asked.append(topic)
        return 3

    messages = [{**NOTHING, "topic": "t1"}, {**NOTHING, "topic": "t2", "sharding_key": "s"}]
    list(groups_of(batch_of(messages), "", count))
    assert asked == ["t2"]


@pytest.mark.parametrize(
    ("schema", "topic", "said"),
    [
        ("value string, delay_ms string", "t", "column delay_ms is string .it must be long"),
        ("value string, deliver_at long", "t", "column deliver_at is bigint .it must be timestamp"),
        ("value string, body string", "t", r"unknown column body \(columns are value"),
        ("value int", "t", "column value is int .it must be binary or string"),
        ("value string, properties map<string,int>", "t", "column properties is map<string,int>"),
        ("topic string", "t", "no column value"),
        ("value string", "", "neither option topic nor column topic"),
        ("value string, queue string", "t", "column queue is string"),
        ("value string, VALUE string", "t", "a column occurs twice"),
        (
            "value string, headers string",
            "t",
            "column headers is string .it must be array<struct<key: string, value: binary>> or",
        ),
        ("value string, headers array<string>", "t", "column headers is array<string>"),
        ("value string, headers array<struct<value:binary>>", "t", "column headers is array"),
        ("value string, headers map<string,string>, properties map<string,string>", "t", "one of them"),
    ],
)
def test_invalid_columns(schema: str, topic: str, said: str, ddl: Callable[[str], StructType]) -> None:
    with pytest.raises(UsageError, match=said):
        check_columns(ddl(schema), topic)


def test_valid_columns(ddl: Callable[[str], StructType]) -> None:
    check_columns(ddl("value binary, topic string, key binary, keys string, tag string, properties map<string,string>, sharding_key string, queue int"), "")  # fmt: skip
    check_columns(ddl("value string, queue bigint"), "t")
    check_columns(ddl("value string, delay_ms int, deliver_at timestamp"), "t")
    check_columns(ddl("VALUE string, Delay_MS int"), "t")
    check_columns(ddl("value string, headers map<string,string>"), "t")
    check_columns(spark_schema(("value", "key", "headers")), "t")


def test_delays_are_refused_where_batches_cannot_have_them(ddl: Callable[[str], StructType]) -> None:
    for name, kind in (("delay_ms", "long"), ("deliver_at", "timestamp")):
        with pytest.raises(UsageError, match=f"column {name}: with guarantee=atLeastOnce"):
            check_columns(ddl(f"value string, {name} {kind}"), "t", with_delays=False)


def test_point_in_time_is_rounded_up_to_milliseconds_and_excludes_a_delay() -> None:
    at = datetime.fromtimestamp(1_700_000_000, UTC)
    messages = [
        {"value": b"a", "delay_ms": None, "deliver_at": at.replace(microsecond=1_500)},
        {"value": b"b", "delay_ms": 700, "deliver_at": None},
        {"value": b"c", "delay_ms": 0, "deliver_at": at},
        {"value": b"d", "delay_ms": None, "deliver_at": None},
    ]
    plain, delayed = sorted(converted(messages, "t"), key=lambda group: group.is_delayed)
    assert plain.rows.column("body").to_pylist() == [b"d"]
    assert plain.rows.column("delay").to_pylist() == [0]
    assert delayed.rows.column("delay").to_pylist() == [-1_700_000_000_002, 700, -1_700_000_000_000]
    assert [to_dict(one) for one in delayed.rows.column("properties").to_pylist()] == [
        {"TIMER_DELIVER_MS": "1700000000002"}, {"TIMER_DELAY_MS": "700"}, {"TIMER_DELIVER_MS": "1700000000000"},
    ]  # fmt: skip
    far = datetime.now(UTC) + timedelta(days=3, hours=1)
    with pytest.raises(UsageError, match="deliver_at is more than 3 days ahead in 1 of 2 rows"):
        converted([{"value": b"a", "deliver_at": far}, {"value": b"b", "deliver_at": at}], "t")
    with pytest.raises(UsageError, match="both set in 1 rows"):
        converted([{"value": b"a", "delay_ms": 1, "deliver_at": at}], "t")


@pytest.fixture
def ddl() -> Callable[[str], StructType]:
    """A schema from its text; Spark's own parser needs a JVM."""
    from pyspark.sql import types

    simple = {
        "string": types.StringType(), "binary": types.BinaryType(), "int": types.IntegerType(),
        "bigint": types.LongType(), "long": types.LongType(), "timestamp": types.TimestampType(),
        "map<string,string>": types.MapType(types.StringType(), types.StringType()),
        "array<string>": types.ArrayType(types.StringType()),
        "array<struct<value:binary>>": types.ArrayType(types.StructType().add("value", types.BinaryType())),
        "map<string,int>": types.MapType(types.StringType(), types.IntegerType()),
    }  # fmt: skip

    def parse(text: str) -> StructType:
        made = StructType()
        for field in text.split(", "):
            name, _, kind = field.partition(" ")
            made.add(name, simple[kind])
        return made

    return parse
