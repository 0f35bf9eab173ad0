"""The programs for Spark of README.md and docs/spark-options.md, and the jobs of docs/pipeline.md, run as they stand; decision 0062.

docs/spark.md has a test of its own, ``test_guide.py``.
"""

import json
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.documents.blocks import ADDRESS, blocks_of, in_test
from tests.documents.pages import Block, same
from tests.documents.shell import shell
from tests.support.served import Served

from halfmq import Client

_HERE = "tests/spark/test_documents.py"

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.thorough]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path / "data-of-broker", tmp_path / "broker.log")
    served.start()
    yield served
    served.stop()


def address(broker: Served) -> str:
    return f"127.0.0.1:{broker.name_port}"


#: What the blocks of docs/spark-options.md take for granted.
_GIVEN = """
from pyspark.sql import functions as F
daily = spark.createDataFrame([("7",)], "value string")
"""
_WAIT = """
for query in spark.streams.active:
    query.processAllAvailable()
    query.stop()
"""


@pytest.mark.timeout(600)
def test_the_programs_run(spark: Any, broker: Served, tmp_path: Path) -> None:
    """Each block has directories of its own, since the pages name one checkpoint in several; streams end when they have read everything."""
    with Client(broker.url, group="shop") as client:
        for number in range(3):
            client.send("order-created", {"number": number}, key=number)
    checkpoint = str(tmp_path / "each")
    names: dict[str, Any] = {"spark": spark, "url": broker.url, "checkpoint": checkpoint}
    for number, block in enumerate(blocks_of(f"{_HERE}::test_the_programs_run")):
        directory = tmp_path / str(number)
        (directory / "var" / "lib").mkdir(parents=True)
        (directory / "var" / "lib" / "halfmq").symlink_to(broker.data)
        program = in_test(block.text, address(broker), directory)
        exec(_GIVEN, names)
        exec(compile(program, block.place, "exec"), names)
        exec(_WAIT, names)
    orders = spark.readStream.format("halfmq").load(
        url=broker.url, subscribe="order-created", startingOffsets="earliest"
    )
    stream = orders.select("value").writeStream.foreachBatch(names["write"]).trigger(availableNow=True)
    stream.start(checkpointLocation=checkpoint).awaitTermination()
    copied = {
        name: spark.read.format("halfmq").load(url=broker.url, subscribe=name).count()
        for name in ("order-copies", "orders-copy", "totals", "orders", "audit")
    }
    assert copied == {"order-copies": 3, "orders-copy": 6, "totals": 1, "orders": 3, "audit": 3}, (
        "orders-copy: once exactly once, and once at least once"
    )


class Shop:
    """A table and its messages, with one difference of each kind; ``equal``: without any."""

    def __init__(self, directory: Path, client: Client, topic: str, *, equal: bool = False) -> None:
        with sqlite3.connect(directory / "shop.db") as database:
            database.execute(
                f"CREATE TABLE {topic} (basket_id INTEGER PRIMARY KEY, total_cents INTEGER, household_id INTEGER)"
            )
            rows = [(number, 100 * number, number % 7) for number in range(20)]
            database.executemany(f"INSERT INTO {topic} VALUES (?, ?, ?)", rows)
        for basket, cents, household in rows:
            if equal or basket:
                more = 0 if equal or basket != 7 else 1
                client.send(
                    topic, {"basket_id": basket, "total_cents": cents + more, "household_id": household}, keys=[basket]
                )
        if not equal:
            client.send(topic, {"basket_id": 99, "total_cents": 99_000, "household_id": 1}, keys=[99])
            client.send(topic, {"basket_id": 5, "total_cents": 500, "household_id": 5}, keys=[5])
            client.send(topic, b"no JSON")


@pytest.mark.timeout(900)
def test_the_jobs_run(broker: Served, tmp_path: Path) -> None:
    *blocks, toml, configured = blocks_of(f"{_HERE}::test_the_jobs_run")
    assert toml.language == "toml"
    with Client(broker.url, group="shop") as client:
        Shop(tmp_path, client, "orders")
        for topic in ("returns", "loyalty"):
            client.send(topic, {"one": 1})
    for directory in ("var/tables", "data", "archive", "tmp"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "var" / "tables" / "transactions").symlink_to(tmp_path / "data" / "transactions")
    said = ""
    for block in blocks:
        if not block.text.startswith("halfmq "):
            assert_shows(block, said)
            continue
        command = in_test(block.text.strip(), address(broker), tmp_path)
        is_compared = " reconcile " in command
        done = shell(
            f"{command} {'--json reconciliation.json' if is_compared else ''}", tmp_path, status=int(is_compared)
        )
        said = done.stdout + done.stderr
    for name in ("bronze", "silver", "quarantine"):
        assert list((tmp_path / "data" / "orders" / name).rglob("*.parquet")), name
    assert "Shop" in (tmp_path / "report.html").read_text()
    written = toml.text.replace("postgresql+psycopg://reader@db/shop", "sqlite:///shop.db")
    (tmp_path / "pipeline.toml").write_text(in_test(written, address(broker), tmp_path))
    shell(configured.text, tmp_path, status=1)
    assert json.loads((tmp_path / "result.json").read_text())


def assert_shows(block: Block, said: str) -> None:
    """Lines of a table are as long as it is wide."""
    text, said = (re.sub("─+", "-", one) for one in (block.text, said))
    assert same(f"...{text}...", said), f"{block.place} shows\n{block.text}\nand it is\n{said}"


@pytest.mark.timeout(600)
def test_the_jobs_end_with_their_exit_status(broker: Served, tmp_path: Path) -> None:
    """Those that neither ``test_the_jobs_run`` reaches nor, without Spark, ``tests/documents/test_exit_status.py``."""
    with Client(broker.url, group="shop") as client:
        Shop(tmp_path, client, "orders", equal=True)
    columns = "--database sqlite:///shop.db --table orders --key basket_id --compare total_cents"
    source = f"--url {broker.url} --topics orders"
    away = "--url rocketmq://127.0.0.1:1 --topics orders --options brokerTimeout=1s"
    assert ADDRESS not in source
    shell(f"halfmq pipeline reconcile {columns} {source}", tmp_path, status=0)
    shell(f"halfmq pipeline ingest {away} --output other", tmp_path, status=1)
