"""Pulls in flight: messages of a cluster's broker come in order, whatever the sizes of its responses. More is in ``test_wire_reader``."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.scripted_server import ScriptedServer

from halfmq.model.stored_message import StoredMessage, body_crc_of, encode
from halfmq.spark import pull_reader
from halfmq.spark.connection import Connections
from halfmq.spark.partitions import QueueRange
from halfmq.spark.pull_reader import Lost, PullReader
from halfmq.spark.retry_deadline import RetryDeadline
from halfmq.wire.remoting.header import Request, encode_pull_response_head

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"


class Broker:
    """A queue from ``first`` on; ``counts``: messages of each response by its offset, otherwise 3."""

    def __init__(self) -> None:
        self.first, self.end = 0, 20
        self.counts: dict[int, int] = {}
        self.asked: list[int] = []
        self.drop_at: set[int] = set()
        self.server = ScriptedServer(self.answer)
        self.address = ("127.0.0.1", self.server.port)

    def answer(self, request: Request[Any]) -> bytes | None:
        at = request.ext.queue_offset
        self.asked.append(at)
        if at in self.drop_at:
            self.drop_at.discard(at)
            return None
        if at < self.first:
            return encode_pull_response_head(request, 21, "PULL_OFFSET_MOVED", self.first, self.first, self.end, 0)
        after = min(self.end, at + self.counts.get(at, 3))
        body = b"".join(self.stored(number) for number in range(at, after))
        return encode_pull_response_head(request, 0, "FOUND", after, self.first, self.end, len(body)) + body

    def stored(self, number: int) -> bytes:
        body = b"body %d" % number
        made = StoredMessage("orders", 0, number, 0, 0, 1, HOST, 5, HOST, 0, 0, body, body_crc_of(body), b"")
        return b"".join(encode(made, number * 100))

    # --- ``Planned``

    def address_of(self, one: QueueRange, store: str, lost: Lost) -> tuple[str, int]:
        return self.address

    def is_planned_topic(self, one: QueueRange, store: str, begin: int, lost: Lost) -> bool:
        return True


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = Broker()
    yield made
    made.server.close()


def read(broker: Broker, end: int = 20, ranges: int = 1) -> tuple[list[int], list[str]]:
    connections = Connections()
    reader = PullReader(broker, connections, RetryDeadline(2_000), "C")
    lost: list[str] = []
    found: list[int] = []
    for _ in range(ranges):
        for rows in reader.read_range(QueueRange("orders", 0, "broker-a", 0, 0, end), "rocketmq:c", lost.append):
            found += rows.queue_offsets.tolist()
    connections.close()
    return found, lost


def test_pulls_are_sent_ahead_at_the_offsets_that_follow(broker: Broker) -> None:
    assert read(broker) == (list(range(20)), [])
    assert broker.asked == [0, 3, 6, 9, 12, 15, 18], "each offset once"


def test_the_next_pull_is_sent_before_the_response_is_decoded(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_reader, "BATCH_ROWS", 3)
    seen: list[int] = []
    walk = pull_reader.pulled_rows
    sent: list[int] = []
    send = PullReader._send
    monkeypatch.setattr(
        PullReader, "_send", lambda self, address, one, at: (sent.append(at), send(self, address, one, at))[1]
    )

    def decoded(data: bytes, one: QueueRange, *, rocketmq: bool) -> Any:
        seen.append(len(sent))
        return walk(data, one)

    monkeypatch.setattr(pull_reader, "pulled_rows", decoded)
    assert read(broker) == (list(range(20)), [])
    assert seen[:3] == [4, 5, 6], "three are in flight while a response is decoded"


@pytest.mark.parametrize("counts", [{0: 1}, {0: 5, 5: 1, 6: 7}, {3: 1}, {9: 2, 11: 1}, {6: 14}])
def test_a_wrong_guess_costs_a_response_and_nothing_else(broker: Broker, counts: dict[int, int]) -> None:
    broker.counts = counts
    assert read(broker) == (list(range(20)), [])


def test_a_lost_connection_loses_the_pulls_in_flight_and_no_message(broker: Broker) -> None:
    broker.drop_at = {6}
    assert read(broker) == (list(range(20)), [])


def test_a_second_range_does_not_get_responses_of_the_first(broker: Broker) -> None:
    assert read(broker, end=7, ranges=2) == ([0, 1, 2, 3, 4, 5, 6] * 2, [])


def test_messages_past_retention_are_a_loss_and_reading_goes_on(broker: Broker) -> None:
    broker.first = 4
    found, lost = read(broker)
    assert found == list(range(4, 20))
    assert lost == ["messages 0 to 3 of queue 0 of topic orders on broker broker-a are past retention"]


def test_pulls_in_flight_are_forgotten_when_retention_passes_them(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    answer = broker.answer

    def trimmed(request: Request[Any]) -> bytes | None:
        found = answer(request)
        if request.ext.queue_offset == 0:
            broker.first = 10
        return found

    broker.server.answer = trimmed
    found, lost = read(broker)
    assert found == [0, 1, 2, *range(10, 20)]
    assert lost == ["messages 3 to 9 of queue 0 of topic orders on broker broker-a are past retention"]
    assert broker.asked.count(10) == 1
    assert caplog.text == "", "their responses are not taken for that of the next pull, and nothing is waited for"
