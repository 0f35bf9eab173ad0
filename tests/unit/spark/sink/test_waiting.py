"""Rows are collected by queue into full requests, in their order, and memory is bounded."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from halfmq.spark.rows.byte_slices import Ints
from halfmq.spark.sink import waiting
from halfmq.spark.sink.columns import Group
from halfmq.spark.sink.waiting import Waiting


def rows(*bodies: bytes) -> pa.RecordBatch:
    return pa.record_batch({"body": pa.array(bodies, pa.binary())})


def sizes(batch: pa.RecordBatch, topic: str) -> Ints:
    found: Ints = pc.binary_length(batch.column(0)).to_numpy().astype("int64")
    return found


class Sent:
    def __init__(self, request_bytes: int, request_rows: int = 1_000) -> None:
        self.requests: list[tuple[str, int, list[bytes]]] = []
        self.waiting = Waiting(request_bytes, request_rows, sizes, self._send)

    def _send(self, topic: str, queue: int, batch: pa.RecordBatch) -> None:
        self.requests.append((topic, queue, batch.column(0).to_pylist()))


def test_only_full_requests_are_sent_before_the_end() -> None:
    sent = Sent(10)
    sent.waiting.add([Group("t", 0, False, rows(b"aaaa", b"bbbb")), Group("t", 1, False, rows(b"cccc"))])
    assert sent.requests == []
    sent.waiting.add([Group("t", 0, False, rows(b"dddd", b"eeee", b"ffff"))])
    assert sent.requests == [("t", 0, [b"aaaa", b"bbbb"]), ("t", 0, [b"dddd", b"eeee"])]
    sent.waiting.finish()
    assert sent.requests[2:] == [("t", 1, [b"cccc"]), ("t", 0, [b"ffff"])]


def test_rows_with_and_without_delays_of_one_queue_are_sent_apart() -> None:
    sent = Sent(10)
    sent.waiting.add(
        [Group("t", 0, False, rows(b"a")), Group("t", 0, True, rows(b"b")), Group("t", 0, False, rows(b"c"))]
    )
    sent.waiting.finish()
    assert sorted(sent.requests) == [("t", 0, [b"a", b"c"]), ("t", 0, [b"b"])]


def test_requests_have_a_maximum_of_rows() -> None:
    sent = Sent(1_000, 2)
    sent.waiting.add([Group("t", 0, False, rows(b"a"))])
    assert sent.requests == []
    sent.waiting.add([Group("t", 0, False, rows(b"b", b"c", b"d", b"e"))])
    assert [bodies for _, _, bodies in sent.requests] == [[b"a", b"b"], [b"c", b"d"]]
    sent.waiting.finish()
    assert [bodies for _, _, bodies in sent.requests[2:]] == [[b"e"]]


def test_row_that_is_too_large_for_a_request_is_sent_alone() -> None:
    sent = Sent(10)
    sent.waiting.add([Group("t", 0, False, rows(b"a", b"b" * 20, b"c"))])
    sent.waiting.finish()
    assert [bodies for _, _, bodies in sent.requests] == [[b"a"], [b"b" * 20], [b"c"]]


def test_memory_of_waiting_rows_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "WAITING_BYTES_MAX", 10_000)
    sent = Sent(50_000)
    largest = 0
    for number in range(60):
        sent.waiting.add([Group(f"t{number % 20}", 0, False, rows(b"x" * 1_000))])
        largest = max(largest, number + 1 - sum(len(bodies) for _, _, bodies in sent.requests))
    assert 5 < largest <= 10
    sent.waiting.finish()
    assert sum(len(bodies) for _, _, bodies in sent.requests) == 60
