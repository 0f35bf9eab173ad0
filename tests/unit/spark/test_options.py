"""What may be said to ``format("halfmq")``."""

import pytest

from halfmq.errors import UsageError
from halfmq.spark.options import COLUMNS_DEFAULT, EARLIEST, LATEST, OPTIONS, Bounds, parse_options

LEAST = {"url": "rocketmq://127.0.0.1:9876", "subscribe": "orders"}


def test_the_least_that_must_be_said_and_its_defaults() -> None:
    options = parse_options(LEAST)
    assert options.servers == (("127.0.0.1", 9876),)
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
        ({"url": "rocketmq://h"}, "HOST:PORT"),
        ({"url": "rocketmq://h:0"}, "HOST:PORT"),
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
    assert parse_options({**LEAST, "url": "rocketmq://a:1;[::1]:2"}).servers == (("a", 1), ("::1", 2))


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


def test_what_only_a_batch_or_only_a_stream_can_have() -> None:
    with pytest.raises(UsageError, match="streams"):
        parse_options({**LEAST, "maxOffsetsPerTrigger": "5"}).for_batch()
    with pytest.raises(UsageError, match="latest"):
        parse_options({**LEAST, "startingOffsets": "latest"}).for_batch()
    with pytest.raises(UsageError, match="earliest"):
        parse_options({**LEAST, "endingOffsets": "earliest"}).for_batch()
    with pytest.raises(UsageError, match="batch"):
        parse_options({**LEAST, "endingOffsets": "latest"}).for_stream()
    assert parse_options({**LEAST, "endingOffsets": "latest"}).for_batch().ending == Bounds(LATEST, {})


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
