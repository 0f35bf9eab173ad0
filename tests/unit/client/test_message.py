"""What a received message tells, and what its reader may say."""

import asyncio
import logging
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from halfmq.client.message import Message
from halfmq.errors import UsageError
from halfmq.model import properties
from halfmq.model.stored_message import StoredMessage, body_crc_of

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"


@dataclass
class Order:
    id: int


class Said:
    """A delivery that writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def ack(self, message: Message) -> None:
        self.heard.append("ack")

    async def retry(self, message: Message, delay: float | None) -> None:
        self.heard.append(("retry", delay))

    def handling(self, message: Message) -> AbstractContextManager[object]:
        return nullcontext()

    def after_failure(self, message: Message) -> str:
        return "it is somebody else's"

    async def reject(self, message: Message) -> None:
        self.heard.append("reject")


def message(
    body: bytes = b'{"id":7}', topic: str = "t", attempt: int = 1, delivery: Said | None = None, **pairs: str
) -> Message:
    stored = StoredMessage(
        topic, 3, 41, 0, 8, 1_795_000_000_123, HOST, 1_795_000_000_456, HOST, attempt - 1, 0, body,
        body_crc_of(body), properties.encode(pairs),
    )  # fmt: skip
    return Message(stored, 0x5ED, body, delivery)


def test_fields_of_a_plain_message() -> None:
    got = message(TAGS="web", KEYS="7 a", UNIQ_KEY="U1", mine="yes", __SHARDINGKEY="s")
    assert (got.topic, got.queue, got.offset, got.tag, got.key, got.keys) == ("t", 3, 41, "web", "7", ("7", "a"))
    assert (got.message_id, got.offset_id) == ("U1", "7F00000100002A9F00000000000005ED")
    assert got.properties["mine"] == "yes"
    assert got.sharding_key == "s"
    assert (got.attempt, got.transaction_id) == (1, None)
    assert got.born_at == datetime(2026, 11, 18, 11, 6, 40, 123_000, tzinfo=UTC)
    assert got.stored_at.microsecond == 456_000
    assert "U1" in repr(got)


def test_missing_fields_are_none_or_empty() -> None:
    got = message()
    assert (got.tag, got.key, got.keys, got.sharding_key) == (None, None, (), None)
    assert got.message_id == got.offset_id


def test_redelivered_message_has_its_own_topic_back() -> None:
    got = message(topic="%RETRY%billing", attempt=3, RETRY_TOPIC="orders", UNIQ_KEY="U1")
    assert (got.topic, got.attempt, got.message_id) == ("orders", 3, "U1")
    assert message(topic="%DLQ%billing").topic == "%DLQ%billing"


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ({"HMQ_TX_ID": "mine", "UNIQ_KEY": "U", "TRAN_MSG": "true"}, "mine"),
        ({"UNIQ_KEY": "U", "TRAN_MSG": "true"}, "U"),
        ({"UNIQ_KEY": "U"}, None),
    ],
)
def test_transaction_id_is_ours_or_the_stock_clients(pairs: dict[str, str], expected: str | None) -> None:
    assert message(**pairs).transaction_id == expected


def test_body_as_text_json_and_types() -> None:
    got = message()
    assert got.text() == '{"id":7}'
    assert got.json() == {"id": 7}
    assert got.decode(Order) == Order(7)
    assert got.decode(dict[str, int]) == {"id": 7}
    assert got.decode(bytes) == b'{"id":7}'
    assert got.decode(str) == '{"id":7}'
    with pytest.raises(msgspec.ValidationError):
        got.decode(list[int])
    with pytest.raises(msgspec.DecodeError):
        message(b"no json").json()


def test_ack_works_with_and_without_await() -> None:
    async def both() -> list[Any]:
        said = Said()
        got = message(delivery=said)
        got.ack()
        await got.ack()
        await message(delivery=said).retry(2.5)
        await message(delivery=said).reject()
        return said.heard

    assert asyncio.run(both()) == ["ack", "ack", ("retry", 2.5), "reject"]


@pytest.mark.parametrize("first", ["ack", "retry", "reject"])
@pytest.mark.parametrize("second", ["retry", "reject"])
def test_the_first_word_counts(first: str, second: str, caplog: pytest.LogCaptureFixture) -> None:
    async def both() -> list[Any]:
        said = Said()
        got = message(delivery=said)
        await getattr(got, first)()
        await getattr(got, second)()
        return said.heard

    assert len(asyncio.run(both())) == 1
    assert f"{second}() of" in caplog.text


def test_message_that_came_from_nowhere_cannot_be_acknowledged() -> None:
    with pytest.raises(UsageError):
        message().ack()


def test_processing_acknowledges_and_hands_back(caplog: pytest.LogCaptureFixture) -> None:
    async def process() -> list[Any]:
        said = Said()
        async with message(delivery=said).processing():
            pass
        async with message(delivery=said).processing():
            raise RuntimeError("broken handler")
        return said.heard

    with caplog.at_level(logging.ERROR):
        assert asyncio.run(process()) == ["ack", ("retry", None)]
    assert "broken handler" in caplog.text
    assert "attempt 1> failed; it is somebody else's" in caplog.text


async def test_processing_that_is_cancelled_leaves_the_message_and_one_that_awaits_what_was_cancelled_hands_it_back() -> (
    None
):
    said = Said()

    async def process() -> None:
        async with message(delivery=said).processing():
            await asyncio.sleep(60)

    task = asyncio.create_task(process())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert said.heard == []

    async with message(delivery=said).processing():
        await task
    assert said.heard == [("retry", None)]
