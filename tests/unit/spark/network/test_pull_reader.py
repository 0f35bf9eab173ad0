"""Pulls in flight: messages of a cluster's broker come in order, whatever the sizes of its responses. More is in ``test_wire_reader``."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.scripted_cluster import Broker

from halfmq.spark.network import pull_reader
from halfmq.spark.network.pull_reader import PullReader
from halfmq.spark.network.wire_reader import WireReader
from halfmq.spark.options import parse_options
from halfmq.spark.plan.partitions import QueueRange, Ranges
from halfmq.spark.retry_deadline import RetryDeadline
from halfmq.wire.remoting.codes import RequestCode
from halfmq.wire.remoting.header import Request


@pytest.fixture
def broker() -> Iterator[Broker]:
    """Twenty messages, three in a response."""
    made = Broker()
    made.stock, made.end, made.pull_messages_max = True, 20, 3
    yield made
    made.server.close()


def read(broker: Broker, end: int = 20, ranges: int = 1) -> tuple[list[int], list[str]]:
    reader = WireReader(parse_options({"url": broker.server.url, "subscribe": "orders"}), RetryDeadline(2_000))
    lost: list[str] = []
    wanted = (QueueRange("orders", 0, "broker-a", 0, 0, end),) * ranges
    rows = reader.read(Ranges("rocketmq:c", wanted), lost.append)
    found = [offset for one in rows for offset in one.queue_offsets.tolist()]
    reader.close()
    return found, lost


def asked(broker: Broker) -> list[int]:
    pulls = [request.ext for request in broker.server.requests if request.code == RequestCode.PULL_MESSAGE]
    return [pull.queue_offset for pull in pulls]


def test_pulls_are_sent_ahead_at_the_offsets_that_follow(broker: Broker) -> None:
    assert read(broker) == (list(range(20)), [])
    assert asked(broker) == [0, 3, 6, 9, 12, 15, 18], "each offset once"


def test_the_next_pull_is_sent_before_the_response_is_decoded(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_reader, "BATCH_ROWS", 3)
    seen: list[int] = []
    walk = pull_reader.pulled_rows
    sent: list[int] = []
    send = PullReader._send
    monkeypatch.setattr(
        PullReader, "_send", lambda self, address, one, at: (sent.append(at), send(self, address, one, at))[1]
    )

    def decoded(data: bytes, one: QueueRange) -> Any:
        seen.append(len(sent))
        return walk(data, one)

    monkeypatch.setattr(pull_reader, "pulled_rows", decoded)
    assert read(broker) == (list(range(20)), [])
    assert seen[:3] == [4, 5, 6], "three are in flight while a response is decoded"


@pytest.mark.parametrize("counts", [{0: 1}, {0: 5, 5: 1, 6: 7}, {3: 1}, {9: 2, 11: 1}, {6: 14}])
def test_a_wrong_guess_costs_a_response_and_nothing_else(broker: Broker, counts: dict[int, int]) -> None:
    broker.pull_counts = counts
    assert read(broker) == (list(range(20)), [])


def test_a_lost_connection_loses_the_pulls_in_flight_and_no_message(broker: Broker) -> None:
    dropped: list[int] = []

    def answer(request: Request[Any]) -> bytes | None:
        if request.code == RequestCode.PULL_MESSAGE and request.ext.queue_offset == 6 and not dropped:
            dropped.append(6)
            return None
        return broker.answer(request)

    broker.server.answer = answer
    assert read(broker) == (list(range(20)), [])


def test_a_second_range_does_not_get_responses_of_the_first(broker: Broker) -> None:
    assert read(broker, end=7, ranges=2) == ([0, 1, 2, 3, 4, 5, 6] * 2, [])


def test_pulls_in_flight_are_forgotten_when_retention_passes_them(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    def trimmed(request: Request[Any]) -> bytes | None:
        found = broker.answer(request)
        if request.code == RequestCode.PULL_MESSAGE and request.ext.queue_offset == 0:
            broker.first = 10
        return found

    broker.server.answer = trimmed
    found, lost = read(broker)
    assert found == [0, 1, 2, *range(10, 20)]
    assert lost == ["messages 3 to 9 of queue 0 of topic orders on broker broker-a are past retention"]
    assert asked(broker).count(10) == 1
    assert caplog.text == "", "their responses are not taken for that of the next pull, and nothing is waited for"
