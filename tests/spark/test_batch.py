"""Batch reads through Spark, from the store's files."""

import json
from typing import Any

import pytest
from tests.support.store_writer import StoreWriter

from halfmq.model import properties as props

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MESSAGES = 5_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> StoreWriter:
    """Every third message rolled back; the others plain or committed, over four queues and many segments."""
    writer = StoreWriter(tmp_path_factory.mktemp("store"))
    writer.topic("orders", 4)
    writer.topic("empty", 4)
    for number in range(MESSAGES):
        body = json.dumps({"number": number}).encode()
        pairs = props.encode(
            {"UNIQ_KEY": f"U{number}", "KEYS": f"k{number}", "TAGS": "even" if number % 2 == 0 else "odd"}
        )
        match number % 3:
            case 0:
                writer.send("orders", number % 4, body, pairs)
            case 1:
                writer.commit(f"U{number}", writer.prepare(f"U{number}", [("orders", number % 4, body, pairs)]))
            case 2:
                writer.roll_back(f"U{number}", writer.prepare(f"U{number}", [("orders", number % 4, body, pairs)]))
    writer.publish()
    return writer


def load(spark: Any, store: StoreWriter, subscribe: str = "orders", **options: str) -> Any:
    return spark.read.format("halfmq").load(str(store.directory), subscribe=subscribe, **options)


def test_every_committed_message_once_and_nothing_else(spark: Any, store: StoreWriter) -> None:
    rows = load(spark, store, columns="value,message_id,transaction_id,tag,key,properties").collect()
    numbers = [json.loads(row.value)["number"] for row in rows]
    assert sorted(numbers) == [number for number in range(MESSAGES) if number % 3 != 2]
    for number, row in zip(numbers, rows, strict=True):
        assert row.message_id == f"U{number}"
        assert row.transaction_id == (f"U{number}" if number % 3 == 1 else None)
        assert row.tag == ("even" if number % 2 == 0 else "odd")
        assert bytes(row.key) == f"k{number}".encode()
        of_half = {"TRAN_MSG": "true"} if number % 3 == 1 else {}
        assert row.properties == {"UNIQ_KEY": f"U{number}", "KEYS": f"k{number}", "TAGS": row.tag, **of_half}


def test_the_default_columns_and_their_types(spark: Any, store: StoreWriter) -> None:
    frame = load(spark, store)
    assert frame.dtypes == [
        ("key", "binary"), ("value", "binary"), ("topic", "string"), ("queue", "int"), ("offset", "bigint"),
        ("timestamp", "timestamp"), ("tag", "string"), ("keys", "string"), ("message_id", "string"),
        ("transaction_id", "string"),
    ]  # fmt: skip
    row = frame.where("queue = 1 and offset = 2").select("topic", "timestamp").first()
    assert (row.topic, row.timestamp.timestamp()) == ("orders", store.now_ms / 1_000)


def test_sql_and_more_partitions(spark: Any, store: StoreWriter) -> None:
    frame = load(spark, store, minPartitions="7", columns="queue,offset")
    assert frame.rdd.getNumPartitions() == 7
    frame.createOrReplaceTempView("orders")
    found = spark.sql("select count(*), count(distinct queue, offset) from orders").first()
    assert found[0] == found[1] == sum(number % 3 != 2 for number in range(MESSAGES))


def test_bounds_and_an_empty_topic(spark: Any, store: StoreWriter) -> None:
    some = load(
        spark, store, startingOffsets='{"orders":{"0":5}}', endingOffsets='{"orders":{"0":9,"1":2,"2":0,"3":0}}'
    )
    assert sorted((row.queue, row.offset) for row in some.collect()) == [(0, 5), (0, 6), (0, 7), (0, 8), (1, 0), (1, 1)]
    assert load(spark, store, "empty").count() == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOfsets": "earliest"}, "unknown option startingofsets"),
        ({"subscribe": "nowhere"}, "no topic nowhere"),
    ],
)
def test_what_cannot_be_read_is_said_in_words(
    spark: Any, store: StoreWriter, options: dict[str, str], said: str
) -> None:
    with pytest.raises(Exception, match=said):
        load(spark, store, **options).count()


def test_a_view_and_a_file_url_and_why_there_are_no_tables(spark: Any, store: StoreWriter) -> None:
    wanted = load(spark, store).count()
    given = f"USING halfmq OPTIONS (path '{store.directory}', subscribe 'orders', columns 'queue,offset')"
    spark.sql(f"CREATE TEMPORARY VIEW seen {given}")
    assert spark.sql("SELECT count(*), max(queue) FROM seen").first() == (wanted, 3)
    assert spark.read.format("halfmq").load(f"file://{store.directory}", subscribe="orders").count() == wanted
    with pytest.raises(Exception, match=r"CREATE TABLE .* is not possible: Spark does not pass"):
        spark.sql(f"CREATE TABLE kept {given}")
