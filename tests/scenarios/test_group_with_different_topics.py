"""Two processes of a consumer group with different topics, as while a new version is rolled out: what becomes of a retried message."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.waiting import until

from halfmq import App, Message, Retry
from halfmq.testing import Broker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def app_of(broker: Broker, topic: str, seen: list[tuple[int, bool]]) -> App:
    """Its handler fails on the first attempt."""
    app = App(broker.url, group="shop")

    @app.consumer(topic, group="billing", retry=Retry(times=1, delays=(1,)))
    async def handle(message: Message) -> None:
        seen.append((message.attempt, message.is_last_attempt))
        if message.attempt == 1:
            raise ValueError("no account")

    return app


async def fail_once(broker: Broker, seen: list[tuple[int, bool]]) -> None:
    async with app_of(broker, "stock", seen).run() as client:
        await client.send("stock", b"one")
        await until(lambda: seen, "the first attempt")


def came_to_the_wrong_one(caplog: pytest.LogCaptureFixture) -> int:
    return sum("which does not consume that topic" in record.message for record in caplog.records)


async def test_a_member_without_the_topic_leaves_the_message_its_attempts(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "halfmq")
    seen: list[tuple[int, bool]] = []
    await fail_once(broker, seen)
    old: list[tuple[int, bool]] = []
    async with app_of(broker, "orders", old).run():

        async def has_come() -> bool:
            await asyncio.to_thread(broker.advance, 40)
            return came_to_the_wrong_one(caplog) > 0

        await until(has_come, "the message comes to the old version")
        for _ in range(3):  # and perhaps again
            await asyncio.to_thread(broker.advance, 600)
    async with app_of(broker, "stock", seen).run():

        async def is_handled() -> bool:
            await asyncio.to_thread(broker.advance, 7_200)
            return len(seen) > 1

        await until(is_handled, "the message comes to the new version")
    assert seen == [(1, False), (2, True)]
    assert old == []
    assert came_to_the_wrong_one(caplog) == 1
    page = (Path(__file__).parents[2] / "docs" / "services.md").read_text()
    assert [record.message in page for record in caplog.records if "does not consume that topic" in record.message] == [
        True
    ]


async def test_a_group_that_never_consumes_the_topic_again_has_a_dead_letter_that_says_why(broker: Broker) -> None:
    seen: list[tuple[int, bool]] = []
    await fail_once(broker, seen)
    async with app_of(broker, "orders", seen).run() as client, client.consumer("%DLQ%billing", group="reader") as dead:

        async def has_died() -> Message | None:
            await asyncio.to_thread(broker.advance, 7_200)
            return await dead.get(0.1)

        letter = await until(has_died, "a dead letter")
    assert letter is not None
    assert letter.properties["DLQ_ORIGIN_TOPIC"] == "stock"
    assert letter.properties["HMQ_DEAD_REASON"].startswith(
        "NotConsumed: group billing has a member that does not consume topic stock: client "
    )
    assert seen == [(1, False)]
