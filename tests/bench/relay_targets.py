"""What publishing costs for each target of the relay, with its real server on this machine: `python -m tests.bench.relay_targets`.

Messages of 200 bytes in batches of 500, once over 1,000 order keys, once without keys. Prints JSON. CPU is that of this process with all
its threads; of the servers it is not counted. Not counted either are the first batches, in which a JVM compiles.
"""

import argparse
import asyncio
import itertools
import json
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.kafka import FOR_TESTS, KafkaBroker
from tests.support.rabbitmq import RabbitMqServer
from tests.unit.relay.targets import Kafka, Rabbit, Rocket, Target, rocket

from halfmq.relay.publisher import Batch, OutboxMessage

BODY_BYTES = 200
BATCH = 500
KEYS = 1_000
WARM_UP_BATCHES = 60


def batches(topic: str, messages: int, keys: int) -> list[Batch]:
    body, now_ms = b"x" * BODY_BYTES, int(time.time() * 1_000)
    numbers = itertools.count()
    made = []
    for _ in range(messages // BATCH):
        rows = []
        for _ in range(BATCH):
            number = next(numbers)
            key = f"customer-{number * 7919 % keys}" if keys else ""
            rows.append(OutboxMessage(number, f"{number:032X}", topic, body, b"TAGS\x01paid\x02", key, "tx", now_ms))
        made.append(Batch(uuid.uuid4().hex, tuple(rows)))
    return made


async def measure(target: Target, messages: int, keys: int) -> tuple[float, float]:
    """(messages each second, CPU microseconds of each message)."""
    topic = f"bench{uuid.uuid4().hex[:8]}"
    await target.create(topic)
    publisher = target.publisher()
    await publisher.open()
    for warm_up in batches(topic, WARM_UP_BATCHES * BATCH, keys):
        await publisher.publish(warm_up)
    todo = batches(topic, messages, keys)
    began, cpu = time.perf_counter(), time.process_time()
    for batch in todo:
        result = await publisher.publish(batch)
        assert len(result.confirmed) == BATCH, result
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    await publisher.close()
    assert await target.count(topic) == messages + WARM_UP_BATCHES * BATCH
    return messages / seconds, cpu * 1e6 / messages


@contextmanager
def rabbit(work: Path) -> Iterator[Target]:
    server = RabbitMqServer()
    try:
        server.start()
        yield Rabbit(server)
    finally:
        server.stop()


@contextmanager
def kafka(work: Path) -> Iterator[Target]:
    broker = KafkaBroker(work / "kafka", 1, heap="512m", settings=FOR_TESTS)
    try:
        broker.start()
        yield Kafka(broker)
    finally:
        broker.stop()


@contextmanager
def rocketmq(work: Path) -> Iterator[Target]:
    with rocket(work / "rocketmq", is_measured=True) as stock:
        yield Rocket(stock)


SERVERS: dict[str, Callable[[Path], Any]] = {"rabbitmq": rabbit, "kafka": kafka, "rocketmq": rocketmq}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", default=list(SERVERS), help=", ".join(SERVERS))
    parser.add_argument("--messages", type=int, default=100_000)
    arguments = parser.parse_args()
    results = []
    for name in arguments.targets:
        with tempfile.TemporaryDirectory() as work, SERVERS[name](Path(work)) as target:
            for keys in (KEYS, 0):
                rate, cpu_us = asyncio.run(measure(target, arguments.messages, keys))
                results.append(
                    {
                        "target": name, "keys": keys, "messages": arguments.messages,
                        "messages_per_s": round(rate), "cpu_us_per_message": round(cpu_us, 1),
                    }
                )  # fmt: skip
                print(results[-1], file=sys.stderr)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
