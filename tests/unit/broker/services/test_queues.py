"""Bounds and times of queues, where a group without an offset begins, and whose commit is an operator's."""

from typing import Any

import pytest
from tests.support.core_log import consumer
from tests.support.services import CoreSequencer, FakePeer, FakeQueues
from tests.support.steps import result_of

from halfmq.broker.services import queues as module
from halfmq.broker.services.queues import Queues
from halfmq.core.commands import Actor, CommitOffset, EnsureGroup, SetTopic
from halfmq.core.decision import Done, Why
from halfmq.core.queues import offsets
from halfmq.errors import StoreDamaged
from halfmq.model.queue_reads import Position, TopicBounds


class Bench:
    """A topic T with two queues, and the group C."""

    def __init__(self) -> None:
        self.sequencer = CoreSequencer()
        self.stored = FakeQueues(self.sequencer)
        self.sequencer.core.do(SetTopic("T", 2, 2, 6))
        self.sequencer.core.do(EnsureGroup("C"))
        self.topic = self.sequencer.view.topics_by_name["T"].topic_id
        self.queues = Queues(self.sequencer, self.stored)  # type: ignore[arg-type]

    def begins(self, *, new_from_start: bool = True, queue_id: int = 0, topic: str = "T") -> int | None:
        return self.queues.consumer_offset("C", topic, queue_id, new_from_start=new_from_start)

    def commit(self, peer: FakePeer, offset: int, *, waits: bool = False, **changes: Any) -> Any:
        answers: list[Any] = []
        where = {"group": "C", "topic": "T", "queue_id": 0, **changes}
        self.queues.commit_offset(peer, offset=offset, waits=waits, answer=answers.append, **where)  # type: ignore[arg-type]
        (answer,) = answers
        return answer


def test_bounds_and_times_of_a_queue_and_of_none() -> None:
    bench = Bench()
    assert bench.queues.bounds("Nowhere", 0) == bench.queues.bounds("T", 0) == (0, 0)
    assert bench.queues.earliest_ms("Nowhere", 0) is bench.queues.earliest_ms("T", 0) is None
    for time_ms in (10, 20, 30):
        bench.stored.add(bench.topic, 0, time_ms=time_ms)
    bench.stored.low[bench.topic, 0] = 1
    assert bench.queues.bounds("T", 0) == (1, 3)
    assert bench.queues.earliest_ms("T", 0) == 20, "of the first that is kept"
    assert bench.queues.offset_at("T", 0, 25, upper=False) == 2
    assert bench.queues.offset_at("T", 0, 25, upper=True) == 1
    assert bench.queues.offset_at("Nowhere", 0, 25, upper=True) == 0


def test_what_fits_into_a_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    for _ in range(5):
        bench.stored.add(bench.topic, 0)
    sizes = [entry.message_bytes for entry in bench.stored.read_queue(bench.topic, 0, 0, 5)]
    assert bench.queues.fitting("T", 0, 0, 5, sum(sizes)) == (5, sum(sizes))
    assert bench.queues.fitting("T", 0, 0, 5, sum(sizes) - 1) == (4, sum(sizes[:4]))
    assert bench.queues.fitting("T", 0, 1, 3, 1 << 40) == (2, sum(sizes[1:3]))
    assert bench.queues.fitting("T", 0, 4, 9, 1 << 40) == (1, sizes[4]), "what exists"
    assert bench.queues.fitting("T", 0, 0, 5, sizes[0] - 1) == (0, 0)
    for topic, start, end in (("Nowhere", 0, 5), ("T", -1, 5), ("T", 3, 3), ("T", 5, 2)):
        assert bench.queues.fitting(topic, 0, start, end, 1 << 40) == (0, 0)
    monkeypatch.setattr(module, "FITTING_MAX", 2)
    assert bench.queues.fitting("T", 0, 1, 1 << 62, 1 << 62) == (2, sum(sizes[1:3])), "one request is bounded"


def test_position_has_every_queue_of_the_topics_that_exist() -> None:
    bench = Bench()
    bench.stored.add(bench.topic, 1)
    view, size = bench.sequencer.view, bench.stored.read_queue(bench.topic, 1, 0, 1)[0].message_bytes
    assert result_of(bench.queues.position(["Nowhere", "T"], {"T": [(1, 0)], "Nowhere": [(0, 0)]})) == Position(
        "0" * 32, view.epoch, view.session.published, {"T": TopicBounds(bench.topic, ((0, 0), (0, 1)), ((1, size),))}
    )
    assert result_of(bench.queues.position([], {})).topics == {}


# --- where a group begins -------------------------------------------------------------------------------------------


def test_a_group_without_an_offset_begins_a_young_queue_at_its_first_message() -> None:
    """The topic may have been made by that very message."""
    bench = Bench()
    assert bench.begins() is None, "nothing to jump over"
    assert bench.begins(topic="Nowhere") is None
    bench.stored.add(bench.topic, 0)
    assert bench.begins() == 0
    assert bench.begins(new_from_start=False) is None
    assert bench.begins(queue_id=1) is None


def test_a_queue_is_young_until_it_is_long_or_trimmed(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    first = bench.stored.add(bench.topic, 0)
    bench.stored.add(bench.topic, 0)
    log_bytes = bench.sequencer.view.session.published - first
    monkeypatch.setattr(module, "NEW_QUEUE_BYTES", log_bytes)
    assert bench.begins() == 0
    monkeypatch.setattr(module, "NEW_QUEUE_BYTES", log_bytes - 1)
    assert bench.begins() is None
    monkeypatch.setattr(module, "NEW_QUEUE_BYTES", log_bytes)
    bench.stored.low[bench.topic, 0] = 1
    assert bench.begins() is None


def test_a_group_whose_offset_may_be_lost_begins_at_the_first_message_that_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    for _ in range(3):
        bench.stored.add(bench.topic, 0)
    bench.stored.low[bench.topic, 0] = 2
    monkeypatch.setattr(offsets, "has_space_for_offset", lambda state, group: False)
    assert bench.begins(new_from_start=False) == 2


def test_what_the_group_said_last_counts() -> None:
    bench = Bench()
    bench.stored.add(bench.topic, 0)
    assert bench.commit(FakePeer(), 7) == Done()
    assert bench.begins() == 7
    bench.commit(FakePeer(), 3)
    assert bench.begins(new_from_start=False) == 3


# --- who says it ----------------------------------------------------------------------------------------------------


def test_who_waits_and_is_no_member_is_an_operator() -> None:
    bench, member = Bench(), FakePeer(4)
    bench.sequencer.note(consumer(4, 0, "C", "T"))
    bench.commit(member, 1)
    bench.commit(member, 2, waits=True)
    bench.commit(FakePeer(5), 3)
    bench.commit(FakePeer(5), 4, waits=True)
    assert bench.sequencer.commands == [
        CommitOffset("C", "T", 0, 1),
        CommitOffset("C", "T", 0, 2),
        CommitOffset("C", "T", 0, 3),
        CommitOffset("C", "T", 0, 4, Actor(peer="10.0.0.7:5")),
    ]


def test_what_cannot_be_kept_is_refused_by_its_reason() -> None:
    """RocketMQ's front door says success to the first three; that is not for the service to know."""
    bench = Bench()
    assert bench.commit(FakePeer(), 1, topic="Nowhere").why is Why.TOPIC_NOT_EXIST
    assert bench.commit(FakePeer(), 1, group="Nobody").why is Why.GROUP_NOT_EXIST
    assert bench.commit(FakePeer(), -1).why is Why.INVALID_PARAMETER


# --- groups ---------------------------------------------------------------------------------------------------------


def test_members_share_the_queues_out_and_nothing_is_known_without_members_or_topic() -> None:
    bench = Bench()

    def assigned(client_id: str, topic: str = "T", *, is_broadcasting: bool = False) -> range | None:
        return bench.queues.assigned("C", topic, client_id, strategy="AVG", is_broadcasting=is_broadcasting)

    assert assigned("client-1") is None
    for number in (1, 2):
        bench.sequencer.note(consumer(number, 0, "C", "T"))
    assert [assigned(f"client-{number}") for number in (1, 2, 3)] == [range(1), range(1, 2), range(0)]
    assert assigned("client-1", is_broadcasting=True) == range(2)
    assert assigned("client-1", "Nowhere") is None


def test_sampled_sizes_are_of_a_few_messages_from_each_offset_on(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    for number in range(40):
        bench.stored.add(bench.topic, 0, b"x" * (100 if number < 20 else 1_000))
    head = len(bench.stored.stored_view(1_000)) - 100
    samples = bench.queues.sampled_sizes("T", [(0, 0), (0, 10), (0, 35), (0, 99), (7, 0)])
    assert samples == (
        (16, 16 * (head + 100)),
        (16, 16 * head + 10 * 100 + 6 * 1_000),
        (5, 5 * (head + 1_000)),
        (0, 0),
        (0, 0),
    )
    assert bench.queues.sampled_sizes("Nowhere", [(0, 0)]) == ()


@pytest.mark.parametrize("error", [StoreDamaged("truncated"), OSError("gone")])
def test_a_sample_that_cannot_be_read_does_not_fail_the_others(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    bench = Bench()
    bench.stored.add(bench.topic, 0)
    read = bench.stored.read_queue

    def damaged(topic_id: int, queue_id: int, offset: int, most: int) -> Any:
        if queue_id == 1:
            raise error
        return read(topic_id, queue_id, offset, most)

    monkeypatch.setattr(bench.stored, "read_queue", damaged)
    found = bench.queues.sampled_sizes("T", [(1, 0), (0, 0)])
    assert [count for count, _ in found] == [0, 1]
