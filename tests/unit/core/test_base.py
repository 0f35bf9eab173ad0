"""The base of a segment: same state, same bytes; another state is noticed."""

import pytest
from tests.support.core_log import CoreLog, half, message

from halfmq.core.apply import apply, open_batch
from halfmq.core.base import base_payload, make_base
from halfmq.core.commands import CommitOffset, DeleteTopic, EnsureGroup, SetTopic
from halfmq.errors import InvariantViolated
from halfmq.model.records import Base, base_size


def filled() -> CoreLog:
    log = CoreLog()
    log.do(EnsureGroup("CG"))
    for topic in ("orders", "gone", "loyalty"):
        log.do(SetTopic(topic, 4, 4, 6))
    log.do(DeleteTopic("gone"))
    log.do(message("M1", queue=2))
    log.do(half("T1"))
    log.do(CommitOffset("CG", "orders", 2, 1))
    log.tick()
    return log


def test_the_same_state_gives_the_same_bytes_however_it_came_about() -> None:
    log = filled()
    assert base_payload(log.state) == base_payload(log.redone()) == base_payload(log.reloaded(log.snapshot()))


def test_a_base_alone_gives_topics_groups_offsets_and_numbers() -> None:
    log = filled()
    log.roll()
    alone = log.redone(log.batches[-1:])
    assert base_payload(alone) == base_payload(log.state)
    assert alone.topics_by_name["orders"].ends == [0, 0, 1, 0]
    assert alone.topics_by_name["orders"].mins == [0, 0, 1, 0], "what was before is not in this log"
    assert (alone.next_half_index, alone.next_topic_id) == (1, log.state.next_topic_id)
    assert alone.offsets == log.state.offsets
    assert alone.log_start == 65_536


def test_a_base_that_differs_from_what_was_redone_is_noticed_and_named() -> None:
    log = filled()
    state = log.redone()
    other = filled()
    other.do(message("one more"))
    payload = base_payload(other.state)
    open_batch(state, 65_536, log.now_ms)
    with pytest.raises(InvariantViolated, match="topics"):
        apply(state, Base(state.log_end, base_size(payload), 0, payload))


def test_a_base_says_where_the_segment_before_ended() -> None:
    log = filled()
    before = log.state.log_end
    log.roll()
    assert log.of(Base)[-1].previous_end == before
    assert log.of(Base)[-1] == make_base_again(log)


def make_base_again(log: CoreLog) -> Base:
    state = log.redone(log.batches[:-1])
    open_batch(state, 65_536, log.now_ms)
    return make_base(state, log.of(Base)[-1].previous_end)


def test_queues_from_before_a_topic_was_made_smaller_keep_their_ends() -> None:
    log = CoreLog()
    log.do(message("M1", queue=3))
    log.do(SetTopic("orders", 4, 2, 6))
    log.roll()
    alone = log.redone(log.batches[-1:])
    topic = alone.topics_by_name["orders"]
    assert (topic.ends, topic.write_queues) == ([0, 0, 0, 1], 2)
