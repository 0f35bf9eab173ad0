"""The job ``reconcile`` on a broker and a database: each fault of the demo is found and counted, and what is equal is not reported.

The shop has the tables and the messages of the demo, and its four planted faults (``demo/plant.py``).
"""

import json
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from demo import shop_db
from demo.messages import OrderMessage
from sqlalchemy import create_engine, insert
from sqlalchemy.orm import Session, sessionmaker
from tests.support.served import Served
from tests.support.spark_queries import again

from halfmq.client.sync import Client
from halfmq.errors import UsageError
from halfmq.spark.jobs import reconcile as job
from halfmq.spark.jobs import tables
from halfmq.spark.jobs.differences import Sides, classify, plan
from halfmq.spark.jobs.reconciliation import Kind, Result, from_json
from halfmq.spark.jobs.settings import SparkSettings
from halfmq.spark.jobs.stream import JobFailed

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ORDERS = 20


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    work = tmp_path_factory.mktemp("broker")
    served = Served(work / "data", work / "broker.log")
    served.start()
    yield served
    served.stop()
    shutil.rmtree(work)


@pytest.fixture(scope="module")
def mq(broker: Served) -> Iterator[Client]:
    with Client(broker.url, group="shop") as client:
        yield client


def order(number: int, cents: int = 0) -> OrderMessage:
    return OrderMessage(number, number % 7, 1, "2017-01-01 10:00:00", 100 + number + cents, [(1, 1, 100, "GROCERY")])


class Shop:
    """A database of orders, and a topic with their messages."""

    def __init__(self, broker: Served, mq: Client, work: Path, topic: str) -> None:
        self.broker, self.mq, self.work, self.topic = broker, mq, work, topic
        self.database = shop_db.sqlite_url(work / "shop.db")
        shop_db.metadata.create_all(create_engine(self.database))
        self.sell(range(ORDERS))
        self.tell(range(ORDERS))

    def sell(self, numbers: Any) -> None:
        rows = [msgspec.to_builtins(order(number)) for number in numbers]
        engine = create_engine(self.database)
        with engine.begin() as connection:
            connection.execute(insert(shop_db.orders), [{k: v for k, v in row.items() if k != "lines"} for row in rows])
        engine.dispose()

    def tell(self, numbers: Any, cents: int = 0) -> None:
        for number in numbers:
            self.mq.send(self.topic, order(number, cents), key=number)

    def settings(self, **given: Any) -> job.Settings:
        values = {
            "key": ("basket_id",), "compare": ("total_cents", "household_id"), "sum": ("total_cents",),
            "database": self.database, "table": "orders", "topics": (self.topic,),
            "url": self.broker.url, **given,
        }  # fmt: skip
        return job.Settings(**values)

    def reconcile(self, **given: Any) -> Result:
        settings = self.settings(**given)
        return again(lambda: job.reconcile(settings, SparkSettings(), lambda line: None))

    def run(self, said: list[str] | None = None, **given: Any) -> int:
        """The job as from the command line: its exit code. ``said``: its lines of progress."""
        settings, lines = self.settings(**given), [] if said is None else said
        return again(lambda: job.run(settings, SparkSettings(), lines.append))


@pytest.fixture
def shop(broker: Served, mq: Client, tmp_path: Path, request: pytest.FixtureRequest, spark: Any) -> Shop:
    return Shop(broker, mq, tmp_path, request.node.name[:60].replace("[", "-").replace("]", ""))


def found(result: Result) -> dict[str, int]:
    return {kind.value: count for kind, count in result.counts.items() if count}


def test_no_differences_exits_0_also_from_files_and_without_a_schema(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = "basket_id long, total_cents long, household_id int"
    assert shop.run(url=None, path=str(shop.broker.data), schema=schema) == 0
    assert "no differences" in capsys.readouterr().out
    result = shop.reconcile()
    assert (result.equal, result.rows, result.messages_read, found(result)) == (ORDERS, ORDERS, ORDERS, {})
    (total,) = result.totals
    assert total.table == total.messages == (sum(order(number).total_cents for number in range(ORDERS)))


def test_each_planted_fault_is_found_and_counted(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.sell([100, 101])  # missing: committed without messages
    shop.tell([200, 201, 202])  # phantom: sent, and the transaction rolled back
    shop.tell([5, 5, 6])  # duplicate: sent again as new messages
    shop.sell([300])
    shop.tell([300], cents=1)  # a cent too many
    for body in (b"{broken", b'{"total_cents": 5}', b'{"basket_id": "x"}', b"[1]", b"\xff"):
        shop.mq.send(shop.topic, body)
    said: list[str] = []
    output, directory = shop.work / "r.json", shop.work / "differences"
    assert shop.run(said, json=str(output), differences=str(directory), examples=2) == 1
    result = from_json(output)
    assert found(result) == {"missing": 2, "phantom": 3, "duplicated": 2, "different": 1, "unreadable": 5}
    assert (result.equal, result.rows, result.extra_messages) == (ORDERS - 2, ORDERS + 3, 3)
    assert result.messages_read == ORDERS + 3 + 3 + 1 + 5
    keys = {kind: [example.key["basket_id"] for example in listed] for kind, listed in result.examples.items()}
    assert keys[Kind.MISSING] == ["100", "101"]
    assert keys[Kind.PHANTOM] == ["200", "201"]
    assert keys[Kind.DUPLICATED] == ["5", "6"]
    (different,) = result.examples[Kind.DIFFERENT]
    assert [(one.column, one.table, one.messages) for one in different.values] == [("total_cents", "400", "401")]
    assert different.first_message is not None
    assert different.first_message.startswith(f"{shop.topic}/")
    (total,) = result.totals
    more = 300 + 301 + 302 + 105 + 105 + 106 + 401 - (200 + 201 + 400)
    assert (total.differs, total.off) == (True, more)
    assert result.differences == 2 + 3 + 2 + 1 + 5 + 1

    printed = capsys.readouterr().out
    assert "different       basket_id 300; total_cents: table 400, message 401" in printed
    assert "and 1 more" in printed
    assert "orders in sqlite:///" in said[0]
    rows = pq.read_table(directory).to_pylist()
    assert len(rows) == 13
    (row,) = [row for row in rows if row["kind"] == "different"]
    assert (row["basket_id"], row["table_total_cents"], row["message_total_cents"]) == (300, 400, 401)


def test_message_whose_key_can_be_read_is_not_missing(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    """A producer changed the type of a field, of one that is compared, of another one, or of the key: to send the orders again would be
    wrong.
    """
    shop.sell(range(100, 106))
    body = msgspec.to_builtins(order(100))
    shop.mq.send(shop.topic, body | {"total_cents": "200"})
    shop.mq.send(shop.topic, msgspec.to_builtins(order(101)) | {"household_id": [1]})
    shop.mq.send(shop.topic, msgspec.to_builtins(order(102)) | {"basket_id": "102"})
    shop.mq.send(shop.topic, {"basket_id": "103", "total_cents": {}, "household_id": "x"})
    shop.mq.send(shop.topic, {"basket_id": 104.0, "total_cents": 204})
    for cut in (b'{"basket_id": 105, "total_c', b'{"basket_id": "x"}', b'{"basket_id": null, "total_cents": "5"}'):
        shop.mq.send(shop.topic, cut)
    shop.mq.send(shop.topic, {"basket_id": 200, "total_cents": "no such order"})
    shop.mq.send(shop.topic, msgspec.to_builtins(order(5)) | {"total_cents": "105"})
    given = {"compare": ("total_cents",), "examples": 9}
    schema = "basket_id long, total_cents long, household_id int"
    result = shop.reconcile(**given, schema=schema)
    assert found(result) == {"missing": 1, "phantom": 1, "duplicated": 1, "different": 5, "unreadable": 3}
    assert [one.key["basket_id"] for one in result.examples[Kind.DIFFERENT]] == ["100", "101", "102", "103", "104"]
    first, second, *_ = result.examples[Kind.DIFFERENT]
    assert ([one.column for one in first.values], second.values) == (["total_cents"], [])
    assert str(second).startswith(f"basket_id 101; {shop.topic}/")
    assert "; not JSON of the schema: {" in str(second)
    assert [one.key["basket_id"] for one in result.examples[Kind.MISSING]] == ["105"]
    assert {one.key["basket_id"] for one in result.examples[Kind.UNREADABLE]} == {None}
    # Without a schema nothing is said of household_id. Then with a key inside an object.
    assert found(shop.reconcile(**given))["different"] == 4
    shop.mq.send(shop.topic, {"order": {"id": "100", "cents": "x"}})
    inside = shop.reconcile(key=("basket_id=order.id",), compare=(), sum=(), schema="order struct<id long, cents long>")
    assert found(inside)["different"] == 1
    # What cannot be judged by a condition is not the message of a row, nor a second one of it.
    some = shop.reconcile(**given, schema=schema, where_messages="total_cents > 0")
    assert found(some) == {"missing": 3, "different": 3, "unreadable": 7}
    assert shop.run(**given, schema=schema) == 1
    assert "rows of the table without a message; see unreadable" in capsys.readouterr().out


def test_order_whose_commit_the_database_has_lost_is_found(shop: Shop) -> None:
    """A failover to a replica that did not have it yet: the message was sent in its transaction, rightly, and stays."""
    path = shop.work / "shop.db"
    engine = create_engine(shop.database)
    replica = shop.work / "replica.db"
    shutil.copyfile(path, replica)
    shop.mq.answer_checks(shop_db.markers, sessionmaker(engine))
    row = {k: v for k, v in msgspec.to_builtins(order(500)).items() if k != "lines"}
    with Session(engine) as session, shop.mq.transaction(session, markers=shop_db.markers) as tx:
        session.execute(insert(shop_db.orders).values(row))
        tx.send(shop.topic, order(500), key=500)
    assert found(shop.reconcile()) == {}
    engine.dispose()
    shutil.copyfile(replica, path)
    result = shop.reconcile()
    assert found(result) == {"phantom": 1}
    assert [example.key["basket_id"] for example in result.examples[Kind.PHANTOM]] == ["500"]


def test_json_to_standard_output_is_alone_there(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.sell([100])
    assert shop.run(json="-") == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["counts"]["missing"] == 1
    assert "1 missing" in printed.err.replace("  ", " ").replace("  ", " ")


@pytest.mark.thorough
def test_conditions_and_other_names(shop: Shop) -> None:
    shop.mq.send(shop.topic, {"id": 3, "type": "cancelled"}, tag="cancelled")
    given = {"compare": (), "sum": ()}
    half = shop.reconcile(
        **given, where_table="basket_id < 10", where_messages="basket_id < 10", schema="basket_id long"
    )
    assert (found(half), half.equal, half.messages_read) == ({}, 10, 10)
    query = "SELECT basket_id AS id, total_cents / 100.0 AS total FROM orders"
    named = shop.reconcile(
        table=None, query=query, key=("id=basket_id",), compare=("total=total_cents",), sum=(),
        where_messages="message_tag is null", tolerance={"total": "107.91"},
    )  # fmt: skip
    # Cents are 99/100 more than what they are in units: at most 107.91 up to an order of 109 cents, of ten.
    assert found(named) == {"different": 10}


def test_settle_excuses_messages_that_are_newer_than_the_table(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = job.database_rows.copy

    def then_sold(*given: Any) -> Any:
        copied = copy(*given)
        shop.tell([500])
        return copied

    monkeypatch.setattr(job.database_rows, "copy", then_sold)
    assert found(shop.reconcile(sum=())) == {"phantom": 1}
    monkeypatch.setattr(job.database_rows, "copy", copy)
    # 500 is newer than the table less an hour; what waits is replaced by nothing.
    monkeypatch.setattr(job, "time", SimpleNamespace(sleep=lambda seconds: None, monotonic=time.monotonic))
    shop.sell([501])
    result = shop.reconcile(settle="1h")
    # The totals leave the newer message out.
    assert (found(result), result.totals[0].off) == ({"missing": 1, "newer": 1}, -601)


@pytest.mark.thorough
def test_tables_of_ingest_and_of_files(spark: Any, shop: Shop, tmp_path: Path) -> None:
    silver = tmp_path / "silver"
    rows = spark.range(0, ORDERS + 1).selectExpr(
        "'orders' message_topic", "0 message_queue", "id message_offset", "current_timestamp() message_time",
        "id basket_id", "id + 100 total_cents", "cast(id % 7 as int) household_id",
    )  # fmt: skip
    tables.write(tables.open_table(silver, "delta", "w"), 0, rows)
    given = {"url": None, "topics": (), "messages_path": str(silver)}
    result = shop.reconcile(**given)
    assert found(result) == {"phantom": 1}
    assert result.examples[Kind.PHANTOM][0].first_message == f"orders/0/{ORDERS}"
    table = {"database": None, "table": None, "table_path": str(tmp_path / "plain")}
    pq.write_table(pa.table({"basket_id": [1, 2, 2, None], "total_cents": [101, 102, 102, 5]}), tmp_path / "plain")
    mixed = shop.reconcile(**given, **table, compare=("total_cents",), sum=(), where_messages="basket_id < 3")
    assert found(mixed) == {"phantom": 1, "repeated_row": 1, "row_without_key": 1}
    with pytest.raises(UsageError, match="there is no table"):
        shop.reconcile(**{**given, "messages_path": str(tmp_path / "nothing")})


def test_what_is_wrong_with_messages_is_named(shop: Shop) -> None:
    with pytest.raises(UsageError, match="messages have no column total_cents"):
        shop.reconcile(schema="basket_id long, total long", compare=("total_cents",))
    with pytest.raises(UsageError, match="--schema is not understood: "):
        shop.reconcile(schema="basket_id lon,")
    with pytest.raises(UsageError, match="--where-messages is not understood: "):
        shop.reconcile(where_messages="nothing = 5")
    with pytest.raises(UsageError, match="total_cents is bigint in the table, string in messages"):
        shop.reconcile(schema="basket_id long, total_cents string, household_id int")
    with pytest.raises(JobFailed, match="no topic nothing"):
        shop.reconcile(topics=("nothing",))
    away = {"url": "rocketmq://127.0.0.1:1", "options": {"brokerTimeout": "100ms"}}
    with pytest.raises(JobFailed, match="Connection refused"):
        shop.reconcile(**away)


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


#: Value and type in the table, value and type in messages, tolerance, whether they are equal.
VALUES: list[tuple[tuple[Any, str], tuple[Any, str], str | None, bool]] = [
    ((1, "bigint"), (1, "int"), None, True),
    ((None, "bigint"), (None, "int"), None, True),
    ((None, "bigint"), (1, "int"), None, False),
    ((1, "bigint"), (None, "int"), None, False),
    ((Decimal("1.10"), "decimal(10,2)"), (Decimal("1.1"), "decimal(38,12)"), None, True),
    ((Decimal("1.10"), "decimal(10,2)"), (Decimal("1.101"), "decimal(38,12)"), None, False),
    ((Decimal("1.10"), "decimal(10,2)"), (1.1, "double"), None, True),
    ((Decimal("1000000.00"), "decimal(10,2)"), (1000000.01, "double"), "0.01", True),
    ((Decimal("1000000.00"), "decimal(10,2)"), (1000000.02, "double"), "0.01", False),
    ((1e300, "double"), (1e300, "double"), "0.01", True),
    ((float("nan"), "double"), (1.0, "double"), "0.01", False),
    ((2**62, "bigint"), (-(2**62), "bigint"), "1", False),
    ((100, "bigint"), (101, "bigint"), "1", True),
    (("a", "string"), ("a", "string"), None, True),
    (("a", "string"), ("b", "string"), None, False),
    ((NOON, "timestamp"), ("2026-01-01T13:00:00+01:00", "string"), None, True),
    ((NOON, "timestamp"), ("noon", "string"), None, False),
    ((NOON, "timestamp"), (NOON + timedelta(seconds=2), "timestamp"), "2", True),
    ((NOON, "timestamp"), (NOON + timedelta(seconds=2), "timestamp"), "1.9", False),
    ((NOON, "timestamp"), (NOON + timedelta(days=9_999), "timestamp"), "9e17", True),
    ((1, "bigint"), (2.0, "double"), "0.000000000000000001", False),
    ((1, "int"), (True, "boolean"), None, True),
]


def test_values_are_compared_by_their_types(spark: Any) -> None:
    """All in one row of many columns: a job of Spark takes longer than the comparisons."""
    columns = {f"v{number}": case for number, case in enumerate(VALUES)}

    def side(which: int) -> Any:
        types = "".join(f", {name} {case[which][1]}" for name, case in columns.items())
        return spark.createDataFrame([(1, *(case[which][0] for case in VALUES))], f"id int{types}")

    planned = plan(["id"], list(columns), [], {name: case[2] for name, case in columns.items() if case[2]})
    (row,) = classify(Sides(side(0), side(1)), planned, None).collect()
    assert row.kind == "different"
    assert [columns[name] for name in row.differing] == [case for case in VALUES if not case[3]]


def test_types_that_cannot_be_equal_are_refused(spark: Any) -> None:
    def kind_of(table: str, message: str, tolerances: dict[str, str], key: str = "id") -> None:
        sides = Sides(*(spark.createDataFrame([], f"id int, v {kind}") for kind in (table, message)))
        classify(sides, plan([key], ["v"], [], tolerances), None)

    kind_of("string", "timestamp", {})
    for table, message, tolerances, key in (
        ("string", "int", {}, "id"),
        ("string", "string", {"v": "1"}, "id"),
        ("array<int>", "array<int>", {}, "id"),
        ("double", "double", {}, "v"),
    ):
        with pytest.raises(UsageError, match=f"v is .* in the table, {message}"):
            kind_of(table, message, tolerances, key)


def test_totals_leave_no_value_out(spark: Any, tmp_path: Path) -> None:
    """Decimals of 38 digits have few places before the point if one side has many after it."""

    def totals(table: pa.Array, messages: pa.Array) -> list[Any]:
        pq.write_table(pa.table({"id": range(len(table)), "v": table}), tmp_path / "table.parquet")
        pq.write_table(pa.table({"id": range(len(messages)), "v": messages}), tmp_path / "messages.parquet")
        settings = job.Settings(
            key=("id",),
            sum=("v",),
            table_path=str(tmp_path / "table.parquet"),
            messages_path=str(tmp_path / "messages.parquet"),
        )
        (total,) = job.reconcile(settings, SparkSettings(), lambda line: None).totals
        return [total.table, total.messages, total.off, total.differs]

    large, small = 10**30, Decimal("0.50")
    numbers = pa.array([Decimal(large), Decimal(4), None], pa.decimal128(38, 0))
    places = pa.array([small, small, None], pa.decimal128(38, 20))
    assert totals(numbers, places) == [large + 4, 1, 1 - large - 4, True]
    assert totals(numbers, numbers) == [large + 4, large + 4, 0, False]
    assert totals(pa.array([None, None], pa.int64()), pa.array([1.5, None])) == [0, 1.5, 1.5, True]
    # Doubles are added as the decimals that they stand for; what stands for none is added as it is.
    money = [Decimal(cents) / 100 for cents in range(1, 20_001)]
    reals = pa.array([float(one) for one in money])
    assert sum(reals.to_pylist()) != float(sum(money)), "adding doubles makes an error"
    assert totals(reals, pa.array(money, pa.decimal128(20, 2))) == [sum(money), sum(money), 0, False]
    assert totals(pa.array([0.1, 1e300]), pa.array([0.1, 0.2, 1e-30])) == [
        Decimal("1e300"),
        Decimal("0.3"),
        Decimal("0.3") - Decimal("1e300"),
        True,
    ]
    huge = pa.array([Decimal("9e37"), Decimal("9e37")], pa.decimal128(38, 0))
    with pytest.raises(UsageError, match="the sum of v has more than 38 digits"):
        totals(huge, numbers)


@pytest.mark.thorough
def test_an_empty_table_is_compared(shop: Shop) -> None:
    """Nothing tells the types of its columns, if it is one of SQLite."""
    result = shop.reconcile(where_table="basket_id < 0")
    assert found(result) == {"phantom": ORDERS}
    (total,) = result.totals
    assert (total.table, total.messages) == (0, sum(order(number).total_cents for number in range(ORDERS)))


def test_keys_of_integers_and_text_meet(spark: Any) -> None:
    sides = Sides(
        spark.createDataFrame([("1", 1), ("x", 2), ("3", 3)], "a string, b int"),
        spark.createDataFrame([(1, 1), (3, 4)], "a long, b long"),
    )
    rows = classify(sides, plan(["a", "b"], [], [], {}), None).collect()
    found = sorted((row.key.a, row.key.b, row.kind) for row in rows)
    assert found == [("1", 1, None), ("3", 3, "missing"), ("3", 4, "phantom"), ("x", 2, "missing")]
