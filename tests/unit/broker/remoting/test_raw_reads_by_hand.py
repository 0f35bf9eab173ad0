"""Raw reads without a frame: what may be read, and how each reason to read nothing is told apart."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.services import CoreSequencer, FakeGateway, parts

from halfmq import limits
from halfmq.broker.remoting.raw_reads import RawReadHandlers
from halfmq.broker.services.pulls import SMALL_PULL_BYTES, SYSTEM_TOPICS
from halfmq.core.commands import DeleteTopic, EnsureGroup, SetGroup, SetTopic
from halfmq.core.decision import Refused, Why
from halfmq.store.raw_messages import RawBlock, load_numpy
from halfmq.wire.remoting.codes import ResponseCode
from halfmq.wire.remoting.raw_read import HEAD_BYTES, RawReadFields


class NotYet:
    """In place of ``Offload``: the thread is busy with something else."""

    def __init__(self) -> None:
        self.works: list[Any] = []

    def run(self, work: Any, done: Any) -> None:
        self.works.append(work)

    def close(self) -> None: ...


class FakeStore:
    """Queue 0 of any topic has offsets ``low`` to ``high``; a read returns ``block``."""

    uuid = "ab" * 16

    def __init__(self) -> None:
        self.low, self.high = 5, 100
        self.block = RawBlock(10, 4, bytearray(b"free entries messages"))
        self.asked: list[tuple[int, ...]] = []

    def bounds(self, topic_id: int, queue_id: int) -> tuple[int, int]:
        return self.low, self.high

    def read_raw(self, *asked: int, with_stored_checksums: bool) -> RawBlock:
        self.asked.append((*asked, with_stored_checksums))
        return self.block


class Bench:
    def __init__(self) -> None:
        self.sequencer = CoreSequencer()
        self.sequencer.core.do(SetTopic("T", 1, 1, 6))
        self.sequencer.core.do(EnsureGroup("C"))
        self.store = FakeStore()
        self.gateway = FakeGateway()
        self.outgoing = self.gateway.peers.outgoing
        self.offload = NotYet()
        self.topic = self.sequencer.view.topics_by_name["T"].topic_id
        #: What was counted as delivered.
        self.given: list[tuple[Any, ...]] = []
        self.reads = RawReadHandlers(
            parts(self.sequencer, gateway=self.gateway, store=self.store, offload=self.offload, traffic=self)
        )

    def note(self, *given: Any) -> None:
        self.given.append(given)

    def read(self, **changes: Any) -> Any:
        fields = replace(RawReadFields("C", FakeStore.uuid, "T", self.topic, 0, 20, 90, 1 << 20), **changes)
        return self.reads.find(fields, fields.first)


def test_messages_and_where_to_go_on() -> None:
    bench = Bench()
    found = bench.read()
    assert (found.code, found.next_offset, found.min_offset, found.block) == (0, 30, 5, bench.store.block)
    assert found.position == bench.sequencer.view.session.published
    assert bench.store.asked == [(bench.topic, 0, 20, 70, 1 << 20, HEAD_BYTES, False)]
    assert bench.given == [("C", "T", bench.topic, 0, 30, 10)], "counted as given to the group, as a pull"


def test_numpy_is_imported_on_another_thread_once_half_batches_are_read() -> None:
    bench = Bench()
    bench.read()
    assert bench.offload.works == []
    for _ in range(2):
        bench.read(stored_checksums=1)
    assert bench.offload.works == [load_numpy]
    assert bench.store.asked[-1][-1] is True


def test_the_size_is_bounded_and_small_while_clients_do_not_read() -> None:
    bench = Bench()
    bench.store.high = 1 << 40
    bench.read(end=1 << 40, bytes_max=1 << 40)
    bench.outgoing.near_limit = True
    bench.read()
    assert [asked[3:5] for asked in bench.store.asked] == [
        (limits.RAW_READ_MESSAGES_MAX, limits.RAW_READ_BYTES_MAX), (70, SMALL_PULL_BYTES),
    ]  # fmt: skip
    bench.outgoing.over_limit = True
    assert bench.read().why is Why.NOT_NOW


@pytest.mark.parametrize(
    ("changes", "code", "next_offset"),
    [
        ({"store": "cd" * 16}, ResponseCode.QUERY_NOT_FOUND, 20),
        ({"topic": "gone"}, ResponseCode.TOPIC_NOT_EXIST, 20),
        ({"topic_id": 999}, ResponseCode.TOPIC_NOT_EXIST, 20),
        ({"first": 4}, ResponseCode.PULL_OFFSET_MOVED, 5),
        ({"first": 100}, ResponseCode.PULL_NOT_FOUND, 100),
        ({"first": 101}, ResponseCode.PULL_NOT_FOUND, 100),
    ],
)
def test_each_reason_to_read_nothing_is_told_apart(changes: dict[str, Any], code: int, next_offset: int) -> None:
    bench = Bench()
    found = bench.read(**changes)
    assert (found.code, found.next_offset, found.block) == (code, next_offset, None)
    assert bench.store.asked == []
    assert bench.given == []


def test_a_topic_that_was_created_again_is_another_one() -> None:
    bench = Bench()
    bench.sequencer.core.do(DeleteTopic("T"))
    assert "no longer exists" in bench.read().remark
    bench.sequencer.core.do(SetTopic("T", 1, 1, 6))
    found = bench.read()
    assert (found.code, "created again" in found.remark) == (ResponseCode.TOPIC_NOT_EXIST, True)


def test_what_a_pull_may_not_read_is_refused() -> None:
    bench = Bench()
    assert bench.read(queue_id=1).why is Why.INVALID_PARAMETER
    bench.sequencer.core.do(SetTopic("T", 1, 1, 2))
    assert bench.read().why is Why.NO_PERMISSION
    bench.sequencer.core.do(SetTopic("T", 1, 1, 6))
    bench.sequencer.core.do(SetGroup("C", 16, 1, False))
    assert bench.read().why is Why.NO_PERMISSION
    assert not isinstance(bench.read(group="another"), Refused)
    for name in SYSTEM_TOPICS:
        assert bench.read(topic=name).code is ResponseCode.TOPIC_NOT_EXIST
    assert bench.store.asked[1:] == []


def test_damage_is_reported_only_when_it_comes_first(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.store.block = RawBlock(3, 1, bytearray(b"data"), "unreadable", visible_at=50)
    assert (bench.read().code, bench.read().next_offset) == (ResponseCode.SUCCESS, 23)
    bench.store.block = RawBlock(0, 0, bytearray(), "unreadable", visible_at=50)
    for _ in range(3):
        found = bench.read()
    assert (found.code, found.next_offset) == (ResponseCode.SYSTEM_ERROR, 20)
    assert "topic T queue 0: the message at offset 20 cannot be read: unreadable" in found.remark
    assert len(caplog.records) == 1


def test_what_is_trimmed_meanwhile_is_past_retention_and_not_damaged() -> None:
    bench = Bench()
    bench.store.block = RawBlock(0, 0, bytearray(), "no record", is_missing=True, visible_at=-1)
    found = bench.read()
    assert (found.code, found.next_offset) == (ResponseCode.PULL_OFFSET_MOVED, 21)
    bench.store.block = bench.store.block._replace(visible_at=bench.sequencer.view.log_start)
    assert bench.read().code is ResponseCode.SYSTEM_ERROR
