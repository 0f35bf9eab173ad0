"""Offsets by time, and how many messages fit, of a broker that may answer anything. Over a socket: ``test_wire_reader``."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.scripted_cluster import stored

from halfmq.client.blocking import Unavailable
from halfmq.errors import ConnectError, ProtocolError
from halfmq.model.text_fields import read_fields, write_fields
from halfmq.spark.network.queue_lookups import QueueLookups, in_words
from halfmq.spark.plan.offsets import NO_POSITION, QueueBoundsSnapshot, QueueName
from halfmq.spark.retry_deadline import RetryDeadline
from halfmq.wire.remoting import position
from halfmq.wire.remoting.codes import HMQ_FITTING, RequestCode, ResponseCode
from halfmq.wire.remoting.header import Request, decode, encode_response

QUEUE = ("orders", "broker-a:0")


class Stock:
    """A RocketMQ broker with messages of these store times. ``answer``: to a search by time."""

    def __init__(self, times_ms: list[int], answer: int = 0, first: int = 0) -> None:
        self.times_ms, self.answer, self.first = times_ms, answer, first
        self.pulls = 0
        self.snapshot = QueueBoundsSnapshot(
            "rocketmq:c", 0, NO_POSITION, {QUEUE: (first, len(times_ms))}, {"orders": 0}
        )
        self.lookups = QueueLookups(self.ask, "g", RetryDeadline(0))

    def ask(
        self, queue: QueueName, snapshot: QueueBoundsSnapshot, code: int, fields: Mapping[str, Any]
    ) -> Request[dict[str, str]]:
        assert (queue, fields["topic"], fields["queueId"]) == (QUEUE, "orders", 0)
        if code == RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
            return response(ext={"offset": str(self.answer)})
        assert code == RequestCode.PULL_MESSAGE
        self.pulls += 1
        at, count = fields["queueOffset"], fields["maxMsgNums"]
        after = min(at + count, len(self.times_ms))
        ext = {"nextBeginOffset": str(after), "minOffset": "0", "maxOffset": "0", "suggestWhichBrokerId": "0"}
        if at < self.first:
            return response(ResponseCode.PULL_OFFSET_MOVED, ext=ext)
        return response(ext=ext, body=b"".join(stored(7, b"x", time_ms=time_ms) for time_ms in self.times_ms[at:after]))


def response(code: int = 0, ext: dict[str, str] | None = None, body: bytes = b"") -> Request[dict[str, str]]:
    asked: Request[dict[str, str]] = Request(code=0, opaque=1, ext={})
    return decode(encode_response(asked, code, ext=ext or {}, body=body)[4:])


@settings(deadline=None)  # the machine may be busy
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=40).map(sorted), st.integers(-1, 31), st.integers(-5, 50),
    st.integers(0, 10),
)  # fmt: skip
def test_whatever_a_stock_broker_answers_the_first_message_is_found(
    times_ms: list[int], time_ms: int, answer: int, first: int
) -> None:
    first = min(first, len(times_ms) - 1)
    expected = next((at for at in range(first, len(times_ms)) if times_ms[at] >= time_ms), None)
    assert (
        Stock(times_ms, answer, first).lookups.offset_at(QUEUE, time_ms, Stock(times_ms, 0, first).snapshot) == expected
    )


def test_a_right_answer_costs_at_most_two_pulls() -> None:
    times_ms = list(range(0, 4_000, 2))
    for time_ms, answer in ((0, 0), (1_000, 500), (1_001, 501), (3_998, 1_999), (4_000, 2_000)):
        broker = Stock(times_ms, answer)
        assert broker.lookups.offset_at(QUEUE, time_ms, broker.snapshot) == (answer if answer < 2_000 else None)
        assert broker.pulls <= 2


def test_messages_that_retention_took_meanwhile_are_older() -> None:
    broker = Stock(list(range(100)))
    snapshot = broker.snapshot
    broker.first, broker.answer = 60, 60
    assert broker.lookups.offset_at(QUEUE, 0, snapshot) == 60


def test_what_is_no_message_is_a_protocol_error() -> None:
    broker = Stock(list(range(100)))
    lookups = QueueLookups(
        lambda queue, snapshot, code, fields: (
            broker.ask(queue, snapshot, code, fields)
            if code != RequestCode.PULL_MESSAGE
            else response(
                ext={"nextBeginOffset": "1", "minOffset": "0", "maxOffset": "9", "suggestWhichBrokerId": "0"}, body=b"?"
            )
        ),
        "g",
        RetryDeadline(0),
    )
    with pytest.raises(ProtocolError, match="queue broker-a:0 of topic orders"):
        lookups.offset_at(QUEUE, 50, broker.snapshot)


def test_a_broker_that_is_away_is_named_by_its_queue() -> None:
    def away(*_: object) -> Request[dict[str, str]]:
        raise Unavailable("nobody listens")

    broker = Stock([1, 2])
    with pytest.raises(ConnectError, match=f"{in_words(QUEUE)}: nobody listens"):
        QueueLookups(away, "g", RetryDeadline(0)).fitting(QUEUE, 0, 2, 100, broker.snapshot)


def test_an_exact_answer_is_asked_for_until_nothing_more_fits() -> None:
    asked = []

    def exact(
        queue: QueueName, snapshot: QueueBoundsSnapshot, code: int, fields: Mapping[str, Any]
    ) -> Request[dict[str, str]]:
        assert code == HMQ_FITTING
        request = read_fields(position.FittingFields, fields)
        asked.append(request)
        count = min(3, request.end - request.offset, request.bytes_max // 10)
        return response(ext=write_fields(position.FittingAnswer(count, 10 * count)))

    lookups = QueueLookups(exact, "g", RetryDeadline(0))
    snapshot = QueueBoundsSnapshot("ab", 1, 5, {("orders", "4"): (0, 100)}, {"orders": 1})
    assert lookups.fitting(("orders", "4"), 20, 100, 75, snapshot) == (7, 70)
    assert [(one.queue_id, one.offset, one.bytes_max) for one in asked] == [
        (4, 20, 75),
        (4, 23, 45),
        (4, 26, 15),
        (4, 27, 5),
    ]
    asked.clear()
    assert lookups.fitting(("orders", "4"), 20, 26, 75, snapshot) == (6, 60)
    assert len(asked) == 2


def test_an_estimate_pulls_a_few_messages_once() -> None:
    broker = Stock(list(range(1_000)))
    mean = len(stored(7, b"x"))
    assert broker.lookups.fitting(QUEUE, 0, 1_000, 100 * mean + 1, broker.snapshot) == (100, 100 * mean)
    assert broker.pulls == 1
