"""One consumer group with members of the stock Java client and of ours, which come and go; ours has sent what they read.

Whoever asks the broker for the members of a group shares its queues out by itself, and must come to the same as all others. So
a Java and a Python member that differ in one detail would read the same queues, or leave some to nobody.
"""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from halfmq import AsyncClient
from tests.compat.java_runs import BINARY, JSON, QUICK_REBALANCE, run
from tests.compat.toolchain import client_classpath
from tests.support.served import Served
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(200)]

TOPIC, GROUP = "c-Member-topic", "c-Member-team"
WANTED = ("red", "blue")
#: How long messages come while members come and go.
SECONDS = 8.0


class Message(NamedTuple):
    """What a member must see of it, beside its text."""

    tag: str
    key: str
    mine: str


class Service:
    """Sends messages of every kind, and knows what it sent."""

    def __init__(self) -> None:
        self.sent: dict[str, Message] = {}
        self._rng = random.Random(1)
        self._count = 0

    def _next(self, kind: str, length: int = 0) -> tuple[str, dict[str, Any]]:
        self._count += 1
        text = f"{kind} {self._count} ".ljust(length, "x")
        message = Message(self._rng.choice((*WANTED, "green")), f"k{self._count}", f"caf\u00e9 {self._count}")
        self.sent[text] = message
        return text, {"tag": message.tag, "key": message.key, "properties": {"mine": message.mine}}

    async def send(self, mq: AsyncClient) -> None:
        text, options = self._next("plain")
        await mq.send(TOPIC, text, **options)
        text, options = self._next("large", 20_000)
        await mq.send(TOPIC, text, **options)
        text, options = self._next("in order")
        await mq.send(TOPIC, text, sharding_key="customer", **options)
        text, options = self._next("late")
        await mq.send(TOPIC, text, delay=1, **options)
        async with mq.begin() as tx:
            for _ in range(2):
                text, options = self._next("in a transaction")
                tx.send(TOPIC, text, **options)
        with contextlib.suppress(KeyError):
            async with mq.begin() as tx:
                tx.send(TOPIC, "rolled back", tag="red")
                raise KeyError
        # Of a batch all have one tag.
        self._count += 1
        tag, texts = self._rng.choice(WANTED), [f"batch {self._count} {number}" for number in range(3)]
        self.sent |= {text: Message(tag, f"b{self._count}", "") for text in texts}
        await mq.send_many(TOPIC, texts, tag=tag, keys=[f"b{self._count}"])


async def consume(url: str, seen: list[tuple[str, Message]], until: asyncio.Event) -> None:
    """A member that leaves when ``until`` is set."""
    async with AsyncClient(url) as mq, mq.consumer(TOPIC, group=GROUP, tags=" || ".join(WANTED)) as messages:
        while not until.is_set():
            message = await messages.get(0.1)
            if message is not None:
                seen.append(
                    (message.text(), Message(message.tag or "", str(message.key), message.properties.get("mine", "")))
                )
                message.ack()


async def come_and_go(url: str, seen: list[tuple[str, Message]], until: asyncio.Event) -> None:
    while not until.is_set():
        enough = asyncio.Event()
        asyncio.get_running_loop().call_later(1.5, enough.set)
        await consume(url, seen, enough)
        await asyncio.sleep(0.5)  # real time: the pace at which it comes and goes


@pytest.mark.parametrize(
    ("version", "header"),
    [("4.9.7", BINARY), pytest.param("5.5.0", JSON, marks=pytest.mark.thorough)],
    ids=["4.9.7-rocketmq", "5.5.0-json"],
)
async def test_members_of_two_kinds_share_what_our_client_sent(
    version: str, header: str, serve: Callable[..., Served], java_home: Path
) -> None:
    client_classpath(version)  # compiled before anything waits for it
    broker = serve()
    names = f"127.0.0.1:{broker.name_port}"
    home = java_home / f"member-{version}"
    java_joined, java_shall_leave = home / "joined", home / "leave"
    options = (*QUICK_REBALANCE, f"-Dmember.joined={java_joined}", f"-Dmember.until={java_shall_leave}")
    service, by_guests, by_us = Service(), [], []
    ends, guests_leave = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    async with AsyncClient(f"rocketmq://{names}", group="service") as mq, asyncio.TaskGroup() as members:
        await service.send(mq)
        java = members.create_task(
            asyncio.to_thread(run, version, names, home, "Member", header=header, options=options)
        )
        members.create_task(consume(f"rocketmq://{names}", by_us, ends))
        members.create_task(come_and_go(f"rocketmq://{names}", by_guests, guests_leave))
        await until(java_joined.exists, "the Java member in the group", unless=lambda: java.done() and java.exception())
        end = loop.time() + SECONDS
        while loop.time() < end:
            await service.send(mq)
            await asyncio.sleep(0.1)  # real time: the pace of the messages
        guests_leave.set()
        await asyncio.sleep(3)  # real time: what is left is shared out between two members that stay
        java_shall_leave.touch()
        result = (await java)["Member"]
        by_java = [
            (fact["text"], Message(fact["tags"], fact["keys"], fact["properties"].get("mine", "")))
            for fact in result["seen"]
        ]
        wanted = {text: message for text, message in service.sent.items() if message.tag in WANTED}
        await until(
            lambda: wanted.keys() <= {text for text, _ in (*by_java, *by_guests, *by_us)},
            "every message with some member",
        )
        ends.set()
    assert result["ended"]
    seen = [*by_java, *by_guests, *by_us]
    print(
        f"\n{len(wanted)} wanted: {len(by_java)} seen by Java, {len(by_us)} by us, {len(by_guests)} by who came and went"
    )
    assert dict(seen) == wanted
    assert min(len(by_java), len(by_us)) > len(wanted) // 10
    assert by_guests
    times = Counter(text for text, _ in seen)
    twice = [text for text, count in times.items() if count > 1]
    # Only what was under way when a queue changed hands comes twice.
    assert len(twice) < len(wanted) // 4, (
        f"{len(twice)} of {len(wanted)} came more than once: they read the same queues"
    )
