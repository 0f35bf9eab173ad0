"""Reads of the transaction table without a frame: the position, the bounds, and reasons to refuse."""

from typing import Any

from tests.support.services import CoreSequencer, Outgoing

from halfmq import limits
from halfmq.broker.services.pulls import SMALL_PULL_BYTES
from halfmq.broker.services.table_reads import OtherStore, TableReadRequest, TableReads
from halfmq.core.decision import Why
from halfmq.store.table_block import TableBlock, Wanted


class FakeStore:
    uuid = "ab" * 16
    high_watermark = 500

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.block = TableBlock(2, 7, frozenset({1, 9}), 0, bytearray(b"free"))

    def first_half(self) -> int:
        return 3

    def topic_names(self, topic_ids: Any) -> dict[int, str]:
        return {number: f"t{number}" for number in topic_ids if number != 9}

    def read_table(self, *asked: Any) -> TableBlock:
        self.asked.append(asked)
        return self.block


class Bench:
    def __init__(self) -> None:
        self.sequencer = CoreSequencer()
        self.sequencer.core.state.next_half_index = 40
        self.store = FakeStore()
        self.outgoing = Outgoing()
        self.reads = TableReads(self.sequencer.view, self.store, self.outgoing)

    def read(self, **changes: Any) -> Any:
        request = TableReadRequest(FakeStore.uuid, Wanted.TRANSACTIONS, 5, 30, 450, 1 << 20, 64)
        return self.reads.read(request._replace(**changes))


def test_rows_as_of_the_position_of_the_reader_or_the_newest_one() -> None:
    bench = Bench()
    found = bench.read()
    assert found[:5] == (bench.store.block, {1: "t1"}, 450, 3, 40)
    assert bench.read(position=0).position == 500
    asked = (Wanted.TRANSACTIONS, limits.TABLE_READ_ROWS_MAX, 1 << 20, 64)
    assert bench.store.asked == [(5, 30, 450, *asked), (5, 30, 500, *asked)]


def test_what_is_asked_for_is_bounded() -> None:
    bench = Bench()
    bench.read(end=10**17, bytes_max=1 << 40)
    bench.read(first=90, end=99, bytes_max=0)
    bench.outgoing.is_near = True
    bench.read()
    assert [(asked[0], asked[1], asked[5]) for asked in bench.store.asked] == [
        (5, 40, limits.TABLE_READ_BYTES_MAX), (90, 90, 1), (5, 30, SMALL_PULL_BYTES),
    ]  # fmt: skip


def test_another_store_a_later_position_and_clients_that_do_not_read_are_refused() -> None:
    bench = Bench()
    assert bench.read(store="cd" * 16) == OtherStore(FakeStore.uuid)
    later = bench.read(position=501)
    assert (later.why, later.text) == (Why.NOT_NOW, "the store ends at position 500, before 501")
    bench.outgoing.is_near = bench.outgoing.is_over = True
    assert bench.read().why is Why.NOT_NOW
    assert len(bench.store.asked) == 1


def test_indexes_that_could_not_be_written_end_before_the_newest_position() -> None:
    bench = Bench()

    def full_disk(*asked: Any) -> TableBlock:
        bench.store.high_watermark = 300
        return bench.store.block

    bench.store.read_table = full_disk  # type: ignore[method-assign]
    assert bench.read(position=0).why is Why.NOT_NOW
