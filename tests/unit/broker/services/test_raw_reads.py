"""Raw reads without a frame: what may be read, and how each reason to read nothing is told apart."""

from typing import Any

import pytest
from tests.support.services import CoreSequencer, Outgoing

from halfmq import limits
from halfmq.broker.services.pulls import SMALL_PULL_BYTES, SYSTEM_TOPICS
from halfmq.broker.services.raw_reads import RawReadRequest, RawReads, Status
from halfmq.core.commands import DeleteTopic, EnsureGroup, SetGroup, SetTopic
from halfmq.core.decision import Refused, Why
from halfmq.store.raw_messages import RawBlock, load_numpy


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
        self.outgoing = Outgoing()
        self.offload = NotYet()
        self.topic = self.sequencer.view.topics_by_name["T"].topic_id
        self.given: list[tuple[Any, ...]] = []
        self.reads = RawReads(self.sequencer.view, self.store, self.outgoing, lambda: 0.0, self.offload)
        self.reads.on_given = lambda *given: self.given.append(given)

    def read(self, **changes: Any) -> Any:
        request = RawReadRequest("C", FakeStore.uuid, "T", self.topic, 0, 20, 90, 1 << 20, 64)
        return self.reads.read(request._replace(**changes))


def test_messages_and_where_to_go_on() -> None:
    bench = Bench()
    found = bench.read()
    assert (found.status, found.next_offset, found.min_offset, found.block) == (Status.FOUND, 30, 5, bench.store.block)
    assert found.position == bench.sequencer.view.session.published
    assert bench.store.asked == [(bench.topic, 0, 20, 70, 1 << 20, 64, False)]
    assert bench.given == [("C", "T", bench.topic, 0, 30, 10)], "counted as given to the group, as a pull"


def test_numpy_is_imported_on_another_thread_once_half_batches_are_read() -> None:
    bench = Bench()
    bench.read()
    assert bench.offload.works == []
    for _ in range(2):
        bench.read(with_stored_checksums=True)
    assert bench.offload.works == [load_numpy]
    assert bench.store.asked[-1][-1] is True


def test_the_size_is_bounded_and_small_while_clients_do_not_read() -> None:
    bench = Bench()
    bench.store.high = 1 << 40
    bench.read(end=1 << 40, bytes_max=1 << 40)
    bench.outgoing.is_near = True
    bench.read()
    assert [asked[3:5] for asked in bench.store.asked] == [
        (limits.RAW_READ_MESSAGES_MAX, limits.RAW_READ_BYTES_MAX), (70, SMALL_PULL_BYTES),
    ]  # fmt: skip
    bench.outgoing.is_over = True
    assert bench.read().why is Why.NOT_NOW


@pytest.mark.parametrize(
    ("changes", "status", "next_offset"),
    [
        ({"store": "cd" * 16}, Status.OTHER_STORE, 20),
        ({"topic": "gone"}, Status.OTHER_TOPIC, 20),
        ({"topic_id": 999}, Status.OTHER_TOPIC, 20),
        ({"first": 4}, Status.PAST_RETENTION, 5),
        ({"first": 100}, Status.AT_END, 100),
        ({"first": 101}, Status.AT_END, 100),
    ],
)
def test_each_reason_to_read_nothing_is_told_apart(changes: dict[str, Any], status: Status, next_offset: int) -> None:
    bench = Bench()
    found = bench.read(**changes)
    assert (found.status, found.next_offset, found.block) == (status, next_offset, None)
    assert bench.store.asked == []
    assert bench.given == []


def test_a_topic_that_was_created_again_is_another_one() -> None:
    bench = Bench()
    bench.sequencer.core.do(DeleteTopic("T"))
    assert "no longer exists" in bench.read().text
    bench.sequencer.core.do(SetTopic("T", 1, 1, 6))
    found = bench.read()
    assert (found.status, "created again" in found.text) == (Status.OTHER_TOPIC, True)


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
        assert bench.read(topic=name).status is Status.OTHER_TOPIC
    assert bench.store.asked[1:] == []


def test_damage_is_reported_only_when_it_comes_first(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.store.block = RawBlock(3, 1, bytearray(b"data"), "unreadable", visible_at=50)
    assert (bench.read().status, bench.read().next_offset) == (Status.FOUND, 23)
    bench.store.block = RawBlock(0, 0, bytearray(), "unreadable", visible_at=50)
    for _ in range(3):
        found = bench.read()
    assert (found.status, found.next_offset) == (Status.UNREADABLE, 20)
    assert "topic T queue 0: the message at offset 20 cannot be read: unreadable" in found.text
    assert len(caplog.records) == 1


def test_what_is_trimmed_meanwhile_is_past_retention_and_not_damaged() -> None:
    bench = Bench()
    bench.store.block = RawBlock(0, 0, bytearray(), "no record", is_missing=True, visible_at=-1)
    found = bench.read()
    assert (found.status, found.next_offset) == (Status.PAST_RETENTION, 21)
    bench.store.block = bench.store.block._replace(visible_at=bench.sequencer.view.log_start)
    assert bench.read().status is Status.UNREADABLE
