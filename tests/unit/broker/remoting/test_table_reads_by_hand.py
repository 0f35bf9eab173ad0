"""Reads of the transaction table without a frame: the position, the bounds, and reasons to refuse."""

from typing import Any

from msgspec.structs import replace
from tests.support.services import CoreSequencer, FakeGateway, FakePeer, parts

from halfmq import limits
from halfmq.broker.remoting.table_reads import TableReadHandlers
from halfmq.broker.services.pulls import SMALL_PULL_BYTES
from halfmq.core.decision import Why
from halfmq.store.table_block import TableBlock, Wanted
from halfmq.wire.remoting.codes import ResponseCode
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.raw_read import HEAD_BYTES
from halfmq.wire.remoting.table_read import TableFound, TableReadFields


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
        self.gateway = FakeGateway()
        self.outgoing = self.gateway.peers.outgoing
        self.reads = TableReadHandlers(parts(self.sequencer, gateway=self.gateway, store=self.store))
        self.fields = TableReadFields(FakeStore.uuid, "transactions", 5, 30, 450, 1 << 20)

    def read(self, **changes: Any) -> Any:
        return self.reads.find(replace(self.fields, **changes))


def test_rows_as_of_the_position_of_the_reader_or_the_newest_one() -> None:
    bench = Bench()
    found, body = bench.read()
    assert found == TableFound(2, 0, 7, 450, 3, 40, bench.sequencer.view.log_start)
    assert body == b'free{"1":"t1"}'
    assert bench.read(position=0)[0].position == 500
    asked = (Wanted.TRANSACTIONS, limits.TABLE_READ_ROWS_MAX, 1 << 20, HEAD_BYTES)
    assert bench.store.asked == [(5, 30, 450, *asked), (5, 30, 500, *asked)]


def test_what_is_asked_for_is_bounded() -> None:
    bench = Bench()
    bench.read(end=10**17, bytes_max=1 << 40)
    bench.read(first=90, end=99, bytes_max=0)
    bench.outgoing.near_limit = True
    bench.read()
    assert [(asked[0], asked[1], asked[5]) for asked in bench.store.asked] == [
        (5, 40, limits.TABLE_READ_BYTES_MAX), (90, 90, 1), (5, 30, SMALL_PULL_BYTES),
    ]  # fmt: skip


def test_another_store_a_later_position_and_clients_that_do_not_read_are_refused() -> None:
    bench = Bench()
    other: Request[Any] = Request(code=29_016, opaque=1, ext=replace(bench.fields, store="cd" * 16))
    bench.reads.read(FakePeer(), other)  # type: ignore[arg-type]
    (answer,) = bench.gateway.answers
    assert (answer.code, answer.ext) == (ResponseCode.QUERY_NOT_FOUND, {"store": FakeStore.uuid})
    later = bench.read(position=501)
    assert (later.why, later.text) == (Why.NOT_NOW, "the store ends at position 500, before 501")
    bench.outgoing.near_limit = bench.outgoing.over_limit = True
    assert bench.read().why is Why.NOT_NOW
    assert len(bench.store.asked) == 1


def test_indexes_that_could_not_be_written_end_before_the_newest_position() -> None:
    bench = Bench()

    def full_disk(*asked: Any) -> TableBlock:
        bench.store.high_watermark = 300
        return bench.store.block

    bench.store.read_table = full_disk  # type: ignore[method-assign]
    assert bench.read(position=0).why is Why.NOT_NOW
