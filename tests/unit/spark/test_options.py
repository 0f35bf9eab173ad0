"""What may be said to ``format("halfmq")``."""

import pytest

from halfmq.errors import UsageError
from halfmq.spark.options import (
    COLUMNS_DEFAULT,
    HALF_COLUMNS,
    OPTIONS,
    TRANSACTION_COLUMNS,
    Options,
    parse_options,
)
from halfmq.spark.plan.bounds import EARLIEST, LATEST, Bounds, TimeBounds
from halfmq.spark.plan.subscription import Subscription

LEAST = {"url": "rocketmq://127.0.0.1:9876", "subscribe": "orders"}


def test_the_least_that_must_be_said_and_its_defaults() -> None:
    options = parse_options(LEAST)
    assert options.url.servers == (("127.0.0.1", 9876),)
    assert options.topics == ("orders",)
    assert options.columns == COLUMNS_DEFAULT
    assert (options.fail_on_data_loss, options.broker_timeout_ms) == (True, 120_000)
    assert options.starting is None
    assert options.ending is None


def test_names_arrive_in_lower_case() -> None:
    options = parse_options(
        {**LEAST, "startingoffsets": "earliest", "maxoffsetspertrigger": "5", "failondataloss": "FALSE"}
    )
    assert options.starting == Bounds(EARLIEST, {})
    assert options.max_offsets_per_trigger == 5
    assert options.fail_on_data_loss is False


def test_an_unknown_option_is_refused_with_the_list_of_those_that_exist() -> None:
    with pytest.raises(UsageError, match="startingofsets") as error:
        parse_options({**LEAST, "startingofsets": "earliest"})
    for name in OPTIONS:
        assert name in str(error.value)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"url": ""}, "url"),
        ({"url": "kafka://h:1"}, "url"),
        ({"url": "rocketmq://h:0"}, "url"),
        ({"url": "rocketmq://user:hunter2@h:1"}, r"'rocketmq://\*\*\*'"),
        ({"url": "amqp://user:hunter2@h:1"}, r"'amqp://\*\*\*'"),
        ({"path": "/data"}, "both url and path"),
        ({"subscribe": " , "}, "subscribe"),
        ({"columns": "value,vlaue"}, "vlaue"),
        ({"startingOffsets": "first"}, "startingOffsets"),
        ({"startingOffsets": '{"orders":{"0":-3}}'}, "-3"),
        ({"startingOffsets": '{"orders":{"0":true}}'}, "True"),
        ({"startingOffsets": '{"orders":7}'}, "form"),
        ({"startingOffsets": '{"orders":{"x":0}}'}, "'x' is not a queue of orders"),
        ({"startingOffsets": '{"orders":{"-1":0}}'}, "'-1' is not a queue"),
        ({"endingOffsets": '{"orders":{"01":0}}'}, "'01' is not a queue"),
        ({"startingOffsets": '{"other":{"0":1}}'}, "other"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger"),
        ({"minPartitions": "two"}, "minPartitions"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss"),
        ({"brokerTimeout": "soon"}, "brokerTimeout"),
        ({"subscribePattern": "orders.*"}, "both subscribe and subscribePattern"),
        ({"tags": "||"}, "names no tag"),
        ({"tags": "[1]"}, "tags"),
        ({"tags": "[]"}, "tags"),
        ({"tags": "['a']"}, "tags"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp"),
        ({"startingOffsetsByTimestamp": '{"orders":{"0":-1}}'}, "startingOffsetsByTimestamp"),
        ({"endingOffsetsByTimestamp": '{"other":{"0":1}}'}, "not subscribed: other"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "error or latest"),
        ({"maxBytesPerTrigger": "10mi"}, "maxBytesPerTrigger"),
        ({"maxBytesPerTrigger": "0"}, "maxBytesPerTrigger"),
        ({"minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"}, "minOffsetsPerTrigger 6 is more than"),
        ({"maxTriggerDelay": "900000"}, "with a unit"),
        ({"maxRecordsPerPartition": "0"}, "maxRecordsPerPartition"),
        ({"includeHeaders": "yes"}, "includeHeaders"),
        ({"minPartitions": "9" * 30}, "minPartitions"),
        ({"hold": "true", "group": "g"}, "hold needs the position"),
        ({"publishPosition": "true"}, "publishPosition needs the name of a consumer group"),
        ({"publishPosition": "true", "group": " "}, "publishPosition needs the name of a consumer group"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_by_name(changed: dict[str, str], named: str) -> None:
    with pytest.raises(UsageError, match=named) as error:
        parse_options({**LEAST, **changed})
    assert "hunter2" not in str(error.value)


def test_one_of_url_and_path_is_needed() -> None:
    with pytest.raises(UsageError, match="neither url nor path"):
        parse_options({"subscribe": "orders"})


def test_several_name_servers_and_an_ipv6_one() -> None:
    assert parse_options({**LEAST, "url": "rocketmq://a:1;[::1]:2"}).url.servers == (("a", 1), ("::1", 2))


@pytest.mark.parametrize(
    ("text", "ms"), [("30", 30_000), ("500ms", 500), ("1.5 s", 1_500), ("2m", 120_000), ("1h", 3_600_000)]
)
def test_a_duration_is_seconds_or_has_a_unit(text: str, ms: int) -> None:
    assert parse_options({**LEAST, "brokerTimeout": text}).broker_timeout_ms == ms


def test_offsets_as_json_and_as_a_whole_stream_offset() -> None:
    plain = parse_options({**LEAST, "startingOffsets": '{"orders":{"0":3,"1":-1}}'})
    whole = '{"v":1,"store":"ab","epoch":1,"position":9,"queues":{"orders":{"0":3,"1":4}},"topics":{"orders":1}}'
    assert plain.starting == Bounds(EARLIEST, {"orders": {"0": 3, "1": LATEST}})
    assert parse_options({**LEAST, "endingOffsets": whole}).ending == Bounds(LATEST, {"orders": {"0": 3, "1": 4}}, True)


@pytest.mark.parametrize(
    ("name", "value"),
    [("endingOffsets", "latest"), ("endingTimestamp", "7"), ("endingOffsetsByTimestamp", '{"orders":{"0":8}}')],
)
def test_a_stream_has_no_end(name: str, value: str) -> None:
    parsed(**{name: value}).for_batch()
    with pytest.raises(UsageError, match=rf"\b{name}\b.* for batch reads"):
        parsed(**{name: value}).for_stream()


@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger"])
def test_a_batch_has_no_triggers(name: str) -> None:
    parsed(**{name: "7"}).for_stream()
    with pytest.raises(UsageError, match=f"{name} is for streams"):
        parsed(**{name: "7"}).for_batch()


def test_a_batch_begins_before_the_latest_and_ends_after_the_earliest() -> None:
    for name, value in (("startingOffsets", "latest"), ("endingOffsets", "earliest")):
        with pytest.raises(UsageError, match=value):
            parsed(**{name: value}).for_batch()
    assert parsed(endingOffsets="latest").for_batch().ending == Bounds(LATEST, {})


@pytest.mark.parametrize("path", ["/data/a b", "file:/data/a b", "file:///data/a b", "file://localhost/data/a b"])
def test_a_path_may_be_a_file_url_as_spark_writes_it(path: str) -> None:
    assert parse_options({"path": path, "subscribe": "orders"}).path == "/data/a b"


@pytest.mark.parametrize("path", ["hdfs://host/data", "s3a://bucket/data", "file://host/data"])
def test_a_path_of_another_file_system_or_machine_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="this machine"):
        parse_options({"path": path, "subscribe": "orders"})


def test_a_table_of_sparks_catalog_is_refused_with_what_works_instead() -> None:
    """Spark 4.3 would create it, and pass no options at all to each query."""
    added = {"provider": "halfmq", "owner": "me", "location": "file:/data", "option.subscribe": "orders"}
    with pytest.raises(UsageError, match=r"CREATE TABLE .* not possible.*CREATE TEMPORARY VIEW"):
        parse_options({**LEAST, **added})


def parsed(**more: str) -> Options:
    return parse_options({**LEAST, **more})


@pytest.mark.parametrize("side", ["starting", "ending"])
def test_a_timestamp_precedes_timestamps_of_queues_and_those_precede_offsets(side: str) -> None:
    """As in Spark's Kafka source."""
    given = {
        f"{side}Timestamp": "7", f"{side}OffsetsByTimestamp": '{"orders":{"0":8}}', f"{side}Offsets": '{"orders":{"0":9}}'
    }  # fmt: skip
    expected = [TimeBounds(7, {}), TimeBounds(None, {"orders": {"0": 8}}), {"orders": {"0": 9}}]
    for number, name in enumerate(list(given)):
        options = parsed(**dict(list(given.items())[number:]))
        found = options.starting if side == "starting" else options.ending
        assert (found.queues if isinstance(found, Bounds) else found) == expected[number], name


def test_what_a_queue_without_a_match_does() -> None:
    assert parsed().without_match_latest is False
    assert parsed(startingOffsetsByTimestampStrategy="error").without_match_latest is False
    assert parsed(startingOffsetsByTimestampStrategy="Latest").without_match_latest is True


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("a || b", ("a", "b")), (" a||a || ", ("a",)), ('["a","x||y"]', ("a", "x||y")), ("*", ()), ("", ()), ("a || *", ()),
    ],
)  # fmt: skip
def test_tags_as_in_a_subscription_or_as_a_list(text: str, tags: tuple[str, ...]) -> None:
    assert parsed(tags=text).tags == tags
    assert parsed().tags == ()


def test_a_pattern_instead_of_names() -> None:
    options = parse_options({"url": LEAST["url"], "subscribePattern": "orders-.*"})
    assert options.subscription == Subscription(pattern="orders-.*")
    assert options.topics == ()
    for wrong, named in (("orders-(", "subscribePattern is 'orders-\\('"), (" ", "subscribePattern is empty")):
        with pytest.raises(UsageError, match=named):
            parse_options({"url": LEAST["url"], "subscribePattern": wrong})
    with pytest.raises(UsageError, match="subscribe is empty or not set"):
        parse_options({"url": LEAST["url"]})


@pytest.mark.parametrize(
    ("text", "size"), [("7", 7), ("64k", 65_536), ("16 MB", 16 << 20), ("1g", 1 << 30), ("2T", 2 << 40)]
)
def test_a_size_is_bytes_or_has_a_unit(text: str, size: int) -> None:
    assert parsed(maxBytesPerTrigger=text).max_bytes_per_trigger == size


def test_the_delay_of_a_trigger_has_a_unit() -> None:
    assert parsed(maxTriggerDelay="2min").max_trigger_delay_ms == 120_000
    assert parsed(maxTriggerDelay="1d").max_trigger_delay_ms == 86_400_000


def test_headers_are_a_column_more() -> None:
    assert parsed(includeHeaders="true").columns == (*COLUMNS_DEFAULT, "headers")
    assert parsed(includeHeaders="true", columns="value").columns == ("value", "headers")
    assert parsed(includeHeaders="true", columns="headers,value").columns == ("headers", "value")
    assert parsed(includeHeaders="false").columns == COLUMNS_DEFAULT
    assert parsed(columns="headers").columns == ("headers",)


def test_what_is_read_in_words() -> None:
    assert str(parsed(tags="a||b")) == "halfmq[rocketmq://127.0.0.1:9876, subscribe=orders, tags=a || b]"
    assert str(parse_options({"path": "/data", "subscribePattern": "o.*"})) == "halfmq[/data, subscribePattern=o.*]"


TABLE = {"path": "/data", "view": "transactions"}


def test_a_view_of_transactions_needs_no_topic_and_has_its_own_columns() -> None:
    options = parse_options({**TABLE, "startingHalf": "5", "endinghalf": "7"}).for_batch()
    assert (options.columns, options.starting_half, options.ending_half) == (TRANSACTION_COLUMNS, 5, 7)
    assert parse_options({**TABLE, "view": "half"}).columns == HALF_COLUMNS[:-1]
    assert parse_options({**TABLE, "view": "HALF", "columns": "value,properties"}).columns == ("value", "properties")
    assert str(options) == "halfmq[/data, view=transactions]"
    assert parse_options({**LEAST, "view": "messages"}) == parse_options(LEAST)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({**TABLE, "view": "tables"}, "messages or transactions or half"),
        ({**TABLE, "subscribe": "orders"}, "subscribe has no effect with view=transactions"),
        ({**TABLE, "startingTimestamp": "5"}, "startingTimestamp has no effect"),
        ({**TABLE, "includeHeaders": "true"}, "includeHeaders has no effect"),
        ({**TABLE, "columns": "value"}, "no such column: value"),
        ({**TABLE, "startingHalf": "-1"}, "startingHalf is '-1'"),
        ({**LEAST, "startingHalf": "1"}, "startingHalf is for view=transactions"),
    ],
)
def test_what_has_no_effect_on_a_view_is_refused(given: dict[str, str], named: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_options(given)
    assert named in str(error.value)


@pytest.mark.parametrize("view", ["transactions", "half"])
def test_a_stream_of_transactions_is_refused_with_the_reason(view: str) -> None:
    with pytest.raises(UsageError, match=f"view={view} cannot be streamed.* changes when it is decided"):
        parse_options({**TABLE, "view": view}).for_stream()
