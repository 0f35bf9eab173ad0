"""Our relay beside Debezium's outbox event router, each draining an outbox on PostgreSQL into Kafka: `python -m
tests.bench.outbox_debezium`.

In turns, each alone on the machine, with new servers. Both find the same bodies, keys and order, written in the same transactions before
they start, and both connect to PostgreSQL by TCP. Ours is one `halfmq relay` with its defaults. Debezium is its embedded engine with the
connector for PostgreSQL (pgoutput) and an idempotent producer of Kafka (``tests/bench/debezium``); its slot exists before the rows do, so
that it reads all of them from the log. Of its settings those are taken that cost it least here: its defaults, ``text`` as the payload's
type, and the parallel collector. Afterwards the topic is read: every row once, in its order by key.

CPU is that of the process, whole, and from the first record at Kafka on, which leaves out the start of a JVM; and that of all processes of
PostgreSQL. Ours has deleted the rows by then. Debezium leaves them, and their deletion is not in its figures.

Prints JSON. Needs Java 17 or later and Maven, which fetches the published jars.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from confluent_kafka import Consumer, TopicPartition
from demo.postgres_server import PostgresServer
from sqlalchemy import MetaData, create_engine
from tests.bench.outbox_drain import TOPIC, Relays, check, fill, messages, server_cpu_s, target_of
from tests.support.maven import CACHE, compiled
from tests.support.ports import HOST, free_port

from halfmq.sql import Outbox

SOURCES = Path(__file__).parent / "debezium"
SLOT = "debezium"
#: As Debezium's documentation declares it, but for the type of the payload.
TABLE = """CREATE TABLE outbox (
    id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL,
    payload text NOT NULL)"""
ENGINE = {
    "name": "outbox",
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
    "database.hostname": HOST,
    "database.user": "postgres",
    "database.password": "-",
    "database.dbname": "postgres",
    "topic.prefix": "bench",
    "table.include.list": "public.outbox",
    "plugin.name": "pgoutput",
    "slot.name": SLOT,
    "snapshot.mode": "no_data",
    "transforms": "outbox",
    "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
    "transforms.outbox.route.topic.replacement": "${routedByValue}",
}
#: What the relay's publisher sets (``halfmq.relay.kafka``), and librdkafka's size of a batch, in Java's names. Neither compresses.
PRODUCER = {"acks": "all", "enable.idempotence": "true", "linger.ms": "2", "batch.size": "1000000"}
JAVA = ("java", "-Xmx1g", "-XX:+UseParallelGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")


class Prepared(NamedTuple):
    """What a side runs, and how many rows it must leave in which table."""

    command: list[str]
    table: str
    left: int


def ours(postgres: PostgresServer, port: int, rows: int, address: str, work: Path) -> Prepared:
    metadata = MetaData()
    outbox, engine = Outbox(metadata), create_engine(postgres.url())
    metadata.create_all(engine)
    fill(engine, outbox, rows)
    engine.dispose()
    at = [f"DATABASE_URL=postgresql+psycopg://postgres@{HOST}:{port}/postgres", f"KAFKA_SERVERS={address}"]
    command = ["env", *at, sys.executable, "-m", "halfmq", "relay", "tests.bench.relay_app:app"]
    return Prepared(command, outbox.table.name, 0)


def debezium(postgres: PostgresServer, port: int, rows: int, address: str, work: Path) -> Prepared:
    with psycopg.connect(host=str(postgres.directory), user="postgres", autocommit=True) as connection:
        connection.execute(TABLE)
        connection.execute("CREATE PUBLICATION dbz_publication FOR TABLE outbox")
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,))
        for some in messages(rows):
            with connection.cursor() as cursor, cursor.copy("COPY outbox FROM STDIN") as copy:
                for one in some:
                    copy.write_row((uuid.uuid4(), TOPIC, one.sharding_key, "drained", one.body.decode()))
    files = {
        "engine": {**ENGINE, "database.port": port, "offset.storage.file.filename": work / "offsets"},
        "producer": {**PRODUCER, "bootstrap.servers": address},
    }
    for name, settings in files.items():
        (work / name).write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    program = [*JAVA, "-cp", compiled(SOURCES, CACHE / "debezium"), "halfmq.bench.OutboxRouter"]
    return Prepared([*program, *[str(work / name) for name in files]], "outbox", rows)


SIDES: dict[str, Callable[..., Prepared]] = {"halfmq": ours, "debezium": debezium}


class Arrived:
    """How many records the topic has."""

    def __init__(self, address: str) -> None:
        self._consumer = Consumer({"bootstrap.servers": address, "group.id": "counter"})
        self._partitions = list(self._consumer.list_topics(TOPIC, timeout=60).topics[TOPIC].partitions)

    def count(self) -> int:
        ends = [
            self._consumer.get_watermark_offsets(TopicPartition(TOPIC, number), timeout=60)
            for number in self._partitions
        ]
        return sum(end for _, end in ends)

    def close(self) -> None:
        self._consumer.close()


def measure(name: str, rows: int, work: Path) -> dict[str, Any]:
    port = free_port()
    os.environ["PGPORT"] = str(port)  # of the server, and of its clients
    postgres = PostgresServer(settings={"listen_addresses": HOST, "wal_level": "logical"})
    postgres.start()
    try:
        with target_of("kafka", work) as (target, address):
            asyncio.run(target.create(TOPIC))
            print(f"{name}: filling {rows:,} rows ...", file=sys.stderr)
            side = SIDES[name](postgres, port, rows, address, work)
            with psycopg.connect(host=str(postgres.directory), user="postgres", autocommit=True) as connection:
                connection.execute(f"VACUUM ANALYZE {side.table}")
                connection.execute("CHECKPOINT")
                os.sync()
                arrived = Arrived(address)
                server_before_s, began = server_cpu_s(postgres.directory), time.monotonic()
                running = Relays(side.command, 1)
                while not (first := arrived.count()):
                    running.require()
                    time.sleep(0.05)
                first_s, first_cpu_s = time.monotonic(), running.cpu_s()
                while arrived.count() < rows:
                    running.require()
                    time.sleep(0.1)
                last_s = time.monotonic()
                while connection.execute(f"SELECT count(*) FROM {side.table}").fetchone() != (side.left,):
                    time.sleep(0.05)
                last_cpu_s = running.cpu_s()
                running.stop()
                arrived.close()
                server_s = server_cpu_s(postgres.directory) - server_before_s
            found = asyncio.run(check(target, rows))
    finally:
        postgres.stop()
    return {
        "side": name, "rows": rows, **found,
        "seconds": round(last_s - began, 1), "rows_per_s": round(rows / (last_s - began)),
        "rows_per_s_from_first_record": round((rows - first) / (last_s - first_s)),
        "cpu_us_per_row": round(running.cpu_s() / rows * 1e6, 1),
        "cpu_us_per_row_from_first_record": round((last_cpu_s - first_cpu_s) / (rows - first) * 1e6, 1),
        "postgresql_cpu_us_per_row": round(server_s / rows * 1e6, 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sides", nargs="*", default=list(SIDES), help=", ".join(SIDES))
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    results = []
    for number in range(arguments.rounds):
        for name in arguments.sides if number % 2 == 0 else reversed(arguments.sides):
            with tempfile.TemporaryDirectory(prefix="hmq-beside-") as work:
                results.append(measure(name, arguments.rows, Path(work)))
            print(results[-1], file=sys.stderr)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
