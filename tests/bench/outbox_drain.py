"""An outbox of many rows on PostgreSQL, drained into a target by relays that are killed: `python -m tests.bench.outbox_drain TARGET`.

The target is read to the end afterwards: every row must be there, in its order by key, and a message that is there twice has one message
id. Prints JSON. CPU is that of all relays, killed ones included, of the server processes of PostgreSQL, and not of the target.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from demo.postgres_server import PostgresServer
from sqlalchemy import Engine, MetaData, create_engine, insert
from tests.bench.cpu import cpu_seconds, descendants
from tests.bench.relay_targets import SERVERS
from tests.support.served import Served
from tests.unit.relay.targets import Read, Target

from halfmq import AsyncClient, compose
from halfmq.client.outgoing import OutgoingMessage
from halfmq.relay.halfmq import HalfmqPublisher
from halfmq.relay.kafka import KafkaPublisher
from halfmq.relay.publisher import Publisher
from halfmq.relay.rabbitmq import RabbitMqPublisher
from halfmq.relay.rocketmq import RocketMqPublisher
from halfmq.sql import Outbox
from halfmq.sql.alchemy.outbox import row_of

TOPIC = "drained"
KEYS = 1_000
BODY_BYTES = 200
FILL = 5_000
#: How the relay's process makes its publisher, from the address of the target.
PUBLISHERS: dict[str, Callable[[str], Publisher]] = {
    "halfmq": lambda address: HalfmqPublisher(address, group="drain-relay"),
    "rabbitmq": RabbitMqPublisher,
    "kafka": KafkaPublisher,
    "rocketmq": RocketMqPublisher,
}


class Halfmq:
    """A target as ``tests.unit.relay.targets`` has them."""

    def __init__(self, served: Served) -> None:
        self.address = served.url

    async def create(self, topic: str) -> None:
        """The first message does."""

    async def read(self, topic: str) -> list[Read]:
        """Until nothing has come for some seconds."""
        found: list[Read] = []
        async with AsyncClient(self.address) as mq, mq.consumer(topic, group="reader", prefetch=20_000) as messages:
            while (one := await messages.get(5.0)) is not None:
                one.ack()
                found.append(Read(one.message_id, one.body, "", {}, 0))
        return found


@contextmanager
def target_of(name: str, work: Path) -> Iterator[tuple[Any, str]]:
    """(the target, its address)."""
    if name == "halfmq":
        served = Served(work / "data", work / "broker.log", "--segment-bytes", str(1 << 30))
        served.start()
        try:
            yield Halfmq(served), served.url
        finally:
            served.stop()
        return
    with SERVERS[name](work) as target:
        of = {
            "rabbitmq": lambda: target.server.url,
            "kafka": lambda: target.broker.address,
            "rocketmq": lambda: target.url,
        }
        yield target, of[name]()


def messages(rows: int) -> Iterator[list[OutgoingMessage]]:
    """Without ids, as many at once as one transaction writes."""
    padding = "x" * (BODY_BYTES - 30)
    for first in range(0, rows, FILL):
        found = []
        for number in range(first, min(first + FILL, rows)):
            key = f"customer-{number * 7919 % KEYS}"
            found.append(compose(TOPIC, {"n": number, "key": key, "x": padding}, sharding_key=key))
        yield found


def fill(engine: Engine, outbox: Outbox, rows: int) -> None:
    for some in messages(rows):
        values = [row_of(one._replace(message_id=outbox.new_message_id()), tx_id="fill") for one in some]
        with engine.begin() as connection:
            connection.execute(insert(outbox.table), values)


class Relays:
    """Processes with one relay each."""

    def __init__(self, command: list[str], number: int) -> None:
        self._command = command
        self._ended_cpu_s = 0.0
        self._running = [self._start() for _ in range(number)]

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command)

    def kill_one(self, rng: random.Random) -> None:
        place = rng.randrange(len(self._running))
        self._running[place].kill()
        self._ended(self._running[place])
        self._running[place] = self._start()

    def stop(self) -> None:
        for process in self._running:
            process.send_signal(signal.SIGTERM)
        for process in self._running:
            self._ended(process)

    def _ended(self, process: subprocess.Popen[bytes]) -> None:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self._ended_cpu_s += used.ru_utime + used.ru_stime

    def cpu_s(self) -> float:
        """Of all of them, killed ones included."""
        return self._ended_cpu_s + cpu_seconds(*[one.pid for one in self._running if one.returncode is None])

    def require(self) -> None:
        """Raises AssertionError if one has ended by itself."""
        assert all(one.poll() is None for one in self._running), "a relay has ended"


def server_cpu_s(directory: Path) -> float:
    """Of all processes of this PostgreSQL, those that have ended included."""
    postmaster = int((directory / "data" / "postmaster.pid").read_text().split()[0])
    return cpu_seconds(postmaster, *[number for number, _ in descendants(postmaster)])


async def check(target: Target, rows: int) -> dict[str, int]:
    """What the target has. Raises AssertionError if something is lost or out of order."""
    first: dict[str, Read] = {}
    seen = await target.read(TOPIC)
    for one in seen:
        first.setdefault(one.message_id, one)
    last: dict[str, int] = {}
    numbers = set()
    for one in first.values():
        body = json.loads(one.body)
        assert last.get(body["key"], -1) < body["n"], f"{body} after {last[body['key']]}"
        last[body["key"]] = body["n"]
        numbers.add(body["n"])
    assert len(numbers) == rows, f"{rows - len(numbers)} lost"
    return {"messages": len(first), "duplicates": len(seen) - len(first)}


def drain(name: str, rows: int, kills: int, relays: int, work: Path) -> dict[str, Any]:
    postgres = PostgresServer()
    postgres.start()
    url = f"postgresql+psycopg://postgres@/postgres?host={postgres.directory}"
    metadata = MetaData()
    outbox, engine = Outbox(metadata), create_engine(url)
    try:
        metadata.create_all(engine)
        print(f"filling {rows:,} rows ...", file=sys.stderr)
        fill(engine, outbox, rows)
        with psycopg.connect(host=str(postgres.directory), user="postgres", autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE mq_outbox")
        with target_of(name, work) as (target, address):
            asyncio.run(target.create(TOPIC))
            command = [sys.executable, "-m", "tests.bench.outbox_drain", name, "--relay", url, address]
            rng, began, server_before_s = random.Random(rows), time.monotonic(), server_cpu_s(postgres.directory)
            running = Relays(command, relays)
            with engine.connect() as connection, connection.execution_options(isolation_level="AUTOCOMMIT"):

                def left(at_most: int) -> int:
                    """Waits until so many rows are left. Counting them is work for the server, so it is not done often."""
                    while (
                        found := connection.exec_driver_sql("SELECT count(*) FROM mq_outbox").scalar() or 0
                    ) > at_most:
                        time.sleep(0.5)
                    return found

                for kill in range(kills):
                    found_rows = left(rows - rows * (kill + 1) // (kills + 1))
                    running.kill_one(rng)
                    print(f"kill {kill + 1} at {found_rows:,} rows left", file=sys.stderr)
                left(0)
            seconds = time.monotonic() - began
            server_s = server_cpu_s(postgres.directory) - server_before_s
            running.stop()
            print("reading the target ...", file=sys.stderr)
            found = asyncio.run(check(target, rows))
    finally:
        engine.dispose()
        postgres.stop()
    return {
        "target": name, "rows": rows, "kills": kills, "relays": relays, **found,
        "seconds": round(seconds, 1), "rows_per_s": round(rows / seconds),
        "relay_cpu_us_per_row": round(running.cpu_s() / rows * 1e6, 1),
        "postgresql_cpu_us_per_row": round(server_s / rows * 1e6, 1),
    }  # fmt: skip


def relay(name: str, url: str, address: str) -> None:
    """The relay's process."""

    async def run() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        await Outbox(MetaData()).relay(create_engine(url), PUBLISHERS[name](address), lease=5.0).run(stop)

    asyncio.run(run())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=list(PUBLISHERS))
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--relays", type=int, default=2)
    parser.add_argument("--relay", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.relay:
        relay(arguments.target, *arguments.relay)
        return
    with tempfile.TemporaryDirectory(prefix="hmq-drain-") as work:
        print(json.dumps(drain(arguments.target, arguments.rows, arguments.kills, arguments.relays, Path(work))))


if __name__ == "__main__":
    main()
