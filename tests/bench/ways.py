"""What a service pays for one order and one message, by the way the message goes: ``python -m tests.bench.ways``. Prints JSON.

Each way on each database in turns of 50, so that what else the machine does meets all of them. Statements are those that reach the driver,
COMMIT not counted. Latency is that of the service's own call: until its transaction is committed, and for ``send on commit`` and half
messages until the broker has answered too.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from demo.postgres_server import PostgresServer
from sqlalchemy import Column, Engine, Integer, LargeBinary, MetaData, String, Table, create_engine, event, insert
from sqlalchemy.orm import Session, sessionmaker
from tests.support.mariadb import MariaDBServer
from tests.support.served import Served

from halfmq import Client
from halfmq.sql import MarkerTable, Outbox

BODY = b"x" * 200
TURN = 50
#: Messages that are not counted.
WARM = 20

Way = Callable[[int], None]


class Shop:
    def __init__(self, engine: Engine, mq: Client) -> None:
        metadata = MetaData()
        self.engine, self.mq = engine, mq
        self.orders = Table(
            "orders",
            metadata,
            Column("id", Integer, primary_key=True),
            Column("note", String(40)),
            Column("data", LargeBinary),
        )
        self.markers = MarkerTable(metadata)
        self.outbox = Outbox(metadata)
        metadata.create_all(engine)
        mq.answer_checks(self.markers, sessionmaker(engine))
        self.statements = 0
        event.listen(engine, "before_cursor_execute", self._count)

    def _count(self, *_: object) -> None:
        self.statements += 1

    def _order(self, session: Session, number: int) -> None:
        session.execute(insert(self.orders).values(id=number, note="a note", data=BODY))

    def ways(self) -> dict[str, Way]:
        return {
            "no message": self.nothing,
            "send on commit": self.on_commit,
            "half message": self.half_message,
            "half message or outbox": self.either,
            "outbox": self.outbox_only,
        }

    def nothing(self, number: int) -> None:
        with Session(self.engine) as session:
            self._order(session, number)
            session.commit()

    def on_commit(self, number: int) -> None:
        self.nothing(number)
        self.mq.send("orders", BODY, key=number)

    def half_message(self, number: int) -> None:
        with Session(self.engine) as session, self.mq.transaction(session, markers=self.markers) as tx:
            self._order(session, number)
            tx.send("orders", BODY, key=number)

    def either(self, number: int) -> None:
        two = {"markers": self.markers, "outbox": self.outbox}
        with Session(self.engine) as session, self.mq.transaction(session, **two, timeout=2.0) as tx:
            self._order(session, number)
            tx.send("orders", BODY, key=number)

    def outbox_only(self, number: int) -> None:
        with Session(self.engine) as session:
            self._order(session, number)
            self.outbox.send(session, "orders", BODY, key=number)
            session.commit()


@contextmanager
def engines(names: list[str], work: Path) -> Iterator[dict[str, Engine]]:
    with ExitStack() as stack:
        found = {}
        for name in names:
            if name == "sqlite":
                url = f"sqlite:///{work / 'shop.db'}"
            elif name == "postgresql":
                postgres = PostgresServer()
                postgres.start()
                stack.callback(postgres.stop)
                url = f"postgresql+psycopg://postgres@/postgres?host={postgres.directory}"
            else:
                mariadb = MariaDBServer()
                mariadb.start()
                stack.callback(mariadb.stop)
                mariadb.execute("CREATE DATABASE shop")
                url = f"mariadb+pymysql://root@/shop?unix_socket={mariadb.socket}"
            found[name] = create_engine(url)
            if name == "sqlite":
                event.listen(found[name], "connect", lambda driver, _: driver.execute("PRAGMA journal_mode = WAL"))
            stack.callback(found[name].dispose)
        yield found


def measure(shop: Shop, count: int) -> dict[str, Any]:
    ways = shop.ways()
    took: dict[str, list[float]] = {name: [] for name in ways}
    cpu = dict.fromkeys(ways, 0.0)
    statements = dict.fromkeys(ways, 0)
    number = 0
    for turn in range(count // TURN + 1):  # the first turn warms everything up
        for name, way in ways.items():
            if turn == 0:
                took[name], cpu[name], statements[name] = [], 0.0, 0
            shop.statements, began_cpu = 0, time.thread_time()
            for _ in range(TURN):
                number += 1
                began = time.perf_counter()
                way(number)
                if turn:
                    took[name].append(time.perf_counter() - began)
            if turn:
                cpu[name] += time.thread_time() - began_cpu
                statements[name] += shop.statements
    return {
        name: {
            "median_ms": round(statistics.median(took[name]) * 1e3, 2),
            "p99_ms": round(sorted(took[name])[int(len(took[name]) * 0.99)] * 1e3, 2),
            "cpu_us": round(cpu[name] / len(took[name]) * 1e6),
            "statements": round(statements[name] / len(took[name]), 2),
        }
        for name in ways
    }


def visible(shop: Shop, count: int) -> dict[str, float]:
    """From the commit of a single message in the outbox until a consumer has it, by a relay in this process, ms. The first ones wait for
    what ``measure`` has left there.
    """
    topic, took = f"visible-{shop.engine.dialect.name}", []
    shop.mq.send(topic, BODY)
    with shop.mq.relay(shop.outbox, shop.engine), shop.mq.consumer(topic, group=topic) as messages:
        assert messages.get(120) is not None
        for number in range(-WARM, count):
            with Session(shop.engine) as session:
                shop.outbox.send(session, topic, BODY)
                session.commit()
            began = time.perf_counter()
            message = messages.get(120)
            assert message is not None
            message.ack()
            if number >= 0:
                took.append(time.perf_counter() - began)
            time.sleep(0.02)  # real time: the relay has nothing to do any more
    return {
        "median_ms": round(statistics.median(took) * 1e3, 2),
        "p99_ms": round(sorted(took)[int(count * 0.99)] * 1e3, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--databases", nargs="+", default=["sqlite", "postgresql", "mariadb"])
    parser.add_argument("--count", type=int, default=1_000, help="orders of each way on each database")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hmq-ways-") as directory:
        work = Path(directory)
        served = Served(work / "data", work / "broker.log")
        served.start()
        try:
            with engines(arguments.databases, work) as found:
                result = {}
                for name, engine in found.items():
                    print(f"{name} ...", file=sys.stderr)
                    with Client(served.url, group=f"shop-{name}") as mq:
                        shop = Shop(engine, mq)
                        result[name] = measure(shop, arguments.count)
                        result[name]["outbox, until a consumer has it"] = visible(shop, arguments.count // 5)
                print(json.dumps({"count": arguments.count, "databases": result}, indent=1))
        finally:
            served.stop()


if __name__ == "__main__":
    main()
