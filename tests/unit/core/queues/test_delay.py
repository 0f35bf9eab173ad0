"""Delays: when a message is due, and that a release refers to its own segment."""

import pytest
from tests.support.core_log import START_MS, CoreLog, end, half, half_batch, message, refused, sent
from tests.support.invariants import check

from halfmq import limits
from halfmq.core.commands import Tick
from halfmq.core.decision import Done, Settled, Why
from halfmq.core.engine import next_deadline_ms
from halfmq.core.events import DelayedPostponed
from halfmq.core.queues.delay import delays_refusal, due_at
from halfmq.core.session import apply_session
from halfmq.model.ids import java_string_hash
from halfmq.model.message_facts import delay_of
from halfmq.model.placement import SEGMENT_BYTES_MIN
from halfmq.model.properties import encode
from halfmq.model.records import CopiedDelayed, DelayedRecord, HalfBatch, Released
from halfmq.model.settings import BrokerSettings


@pytest.mark.parametrize(
    ("pairs", "delay"),
    [
        ({}, 0),
        ({"DELAY": "1"}, 1_000),
        ({"DELAY": "18"}, 7_200_000),
        ({"DELAY": "99"}, 7_200_000),
        ({"DELAY": "0"}, 0),
        ({"DELAY": "x"}, 0),
        ({"TIMER_DELAY_SEC": "7"}, 7_000),
        ({"TIMER_DELAY_MS": "7"}, 7),
        ({"TIMER_DELIVER_MS": "7"}, -7),
        ({"DELAY": "2", "TIMER_DELAY_SEC": "7"}, 5_000),
        ({"MY_DELAY": "3"}, 0),
    ],
)
def test_delays_are_read_as_rocketmq_reads_them(pairs: dict[str, str], delay: int) -> None:
    assert delay_of(encode(pairs)) == delay


def test_a_time_that_is_past_means_at_once() -> None:
    assert due_at(-500, 500) == 0
    assert due_at(-501, 500) == 501
    assert due_at(10, 500) == 510
    assert due_at(0, 500) == 0


def test_a_message_that_asks_for_more_than_three_days_is_refused() -> None:
    log = CoreLog()
    refused(log.do(message("M1", TIMER_DELAY_MS=str(limits.TIMER_DELAY_MAX_MS + 1))), Why.MESSAGE_ILLEGAL)
    refused(log.do(message("M1", TIMER_DELIVER_MS=str(START_MS + limits.TIMER_DELAY_MAX_MS + 1))), Why.MESSAGE_ILLEGAL)
    sent(log.do(message("M1", TIMER_DELAY_MS=str(limits.TIMER_DELAY_MAX_MS))))


@pytest.mark.parametrize("name", ["DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
@pytest.mark.parametrize("text", ["18446744073709551621", "9" * 19, "9223372036854775807", "soon", "1.5", " 5"])
def test_a_delay_that_cannot_be_read_is_refused_and_not_delivered_at_once(name: str, text: str) -> None:
    """Issue 28, 3.5."""
    log = CoreLog()
    refused(log.do(message("M1", **{name: text})), Why.MESSAGE_ILLEGAL)
    refused(log.do(half("T1", **{name: text})), Why.MESSAGE_ILLEGAL)


def test_a_delay_of_nothing_is_none() -> None:
    log = CoreLog()
    for number, text in enumerate(("0", "-1")):
        for name in ("DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"):
            sent(log.do(message(f"M{number}{name}", **{name: text})))
    assert log.state.delayed == {}


def test_only_so_many_messages_wait_and_what_was_prepared_is_committed_all_the_same() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=SEGMENT_BYTES_MIN, delayed_total_max=2))
    later = log.do(half("T1", DELAY="1"))
    for number in range(2):
        sent(log.do(message(f"M{number}", DELAY="1")))
    for command in (message("M3", DELAY="1"), half("T2", DELAY="1")):
        assert "2 (--delayed-total-max)" in refused(log.do(command), Why.LIMIT_REACHED).text
    sent(log.do(message("M1", DELAY="1")))  # it was taken before
    sent(log.do(message("M4")))
    sent(log.do(message("M5", TIMER_DELIVER_MS=str(log.now_ms - 1))))
    assert isinstance(log.do(end("T1", later)), Settled)
    assert len(log.state.delayed) == 3
    log.restart()
    refused(log.do(message("M6", DELAY="1")), Why.LIMIT_REACHED)
    log.run_to(log.now_ms + 2_000)
    sent(log.do(message("M6", DELAY="1")))
    sent(log.do(half("T2", DELAY="1")))


@pytest.mark.parametrize(
    ("delays", "why"),
    [
        ((), None),
        ((1, limits.TIMER_DELAY_MAX_MS, -1), None),
        ((-START_MS - limits.TIMER_DELAY_MAX_MS, -1), None),
        ((1, limits.TIMER_DELAY_MAX_MS + 1, -1), Why.MESSAGE_ILLEGAL),
        ((1, -START_MS - limits.TIMER_DELAY_MAX_MS - 1, 1), Why.MESSAGE_ILLEGAL),
        ((1 << 62,), Why.MESSAGE_ILLEGAL),
        ((-1 << 63,), Why.MESSAGE_ILLEGAL),
        ((1,) * 6, None),
        ((1,) * 7, Why.LIMIT_REACHED),
        ((1,) * 9, Why.MESSAGE_ILLEGAL),
    ],
)
def test_half_batch_is_refused_if_one_of_its_delays_is_too_long_or_too_many_would_wait(
    delays: tuple[int, ...], why: Why | None
) -> None:
    """Two messages are waiting, and eight may: more than eight never fit, seven do later."""
    log = CoreLog(BrokerSettings(segment_bytes=SEGMENT_BYTES_MIN, delayed_total_max=8))
    for number in range(2):
        sent(log.do(message(f"M{number}", DELAY="5")))
    found = delays_refusal(log.state, delays, START_MS)
    assert (found.why if found is not None else None) == why
    if delays and max(map(abs, delays)) < 1 << 60:
        reply = log.do(half_batch(delays=delays))
        assert reply == found if found is not None else sent(reply)


def test_delays_of_a_half_batch_start_at_its_decision_and_a_past_time_means_at_once() -> None:
    log = CoreLog()
    now_ms = log.now_ms
    reply = sent(log.do(half_batch("T1", "", count=1, delays=(700, -(now_ms + 6_000), -(now_ms + 4_000)))))
    first, size = log.of(HalfBatch)[0].offset, log.of(HalfBatch)[0].size
    log.later(5_000)
    assert isinstance(log.do(end("T1", reply, log_offset=reply.log_offset)), Settled)
    assert sorted(one.due_ms - now_ms for one in log.state.delayed.values()) == [5_000, 5_700, 6_000]
    assert all(first < one.first_offset < first + size and one.half_index == -1 for one in log.state.delayed.values())
    assert log.state.topics_by_name["orders"].ends[0] == 0
    assert next_deadline_ms(log.state) == now_ms + 5_000
    shown = []
    for until_ms in (5_000, 5_699, 5_700, 5_999, 6_000):
        log.run_to(now_ms + until_ms)
        shown.append(log.state.topics_by_name["orders"].ends[0])
        check(log.state)
    assert shown == [1, 1, 2, 2, 3]
    assert not log.state.delayed


def test_a_release_in_another_segment_carries_the_message_first_in_the_same_batch() -> None:
    log = CoreLog()
    log.do(message("M1", DELAY="1", TAGS="TagA"))
    log.roll()
    log.do(message("M2", DELAY="1", TAGS="TagB"))
    log.run_to(log.now_ms + 2_000)
    *_, carried, released = log.batches[-1].records
    assert isinstance(carried, CopiedDelayed)
    assert isinstance(released, Released)
    first, second = log.of(DelayedRecord)
    assert [(ref.first_offset, ref.offset) for ref in released.refs] == [
        (first.offset, carried.offset), (second.offset, second.offset),
    ]  # fmt: skip
    assert carried.tag_hash == java_string_hash("TagA")
    assert [ref.tag_hash for ref in released.refs] == [java_string_hash("TagA"), java_string_hash("TagB")]
    assert not log.state.delayed
    check(log.state)


def test_what_is_put_aside_leaves_the_others_in_their_order_and_a_tick_may_be_told_how_many() -> None:
    log = CoreLog()
    for number in range(8):
        log.do(message(f"M{number}", TIMER_DELAY_MS=str(100 + number)))
    log.later(1_000)
    offsets = [record.offset for record in log.of(DelayedRecord)]
    apply_session(log.state, DelayedPostponed((offsets[1], offsets[3])))
    check(log.state)
    assert log.do(Tick(0)) == Done(again=True)
    assert log.of(Released) == []
    assert log.do(Tick(2)) == Done(again=True)
    apply_session(log.state, DelayedPostponed((offsets[7],)))
    log.tick()
    shown = [[offsets.index(ref.first_offset) for ref in released.refs] for released in log.of(Released)]
    assert shown == [[0, 2], [4, 5, 6]]
    check(log.state)
    apply_session(log.state, DelayedPostponed(tuple(offsets)))
    assert next_deadline_ms(log.state) is None
    assert set(log.state.delayed) == {offsets[number] for number in (1, 3, 7)}


def test_messages_are_shown_in_the_order_of_their_times() -> None:
    log = CoreLog()
    for number, delay in enumerate([300, 100, 200]):
        log.do(message(f"M{number}", TIMER_DELAY_MS=str(delay)))
    assert next_deadline_ms(log.state) == START_MS + 100
    log.later(1_000)
    log.tick()
    offsets = {record.offset: record.unique_id for record in log.of(DelayedRecord)}
    assert [offsets[ref.first_offset] for ref in log.of(Released)[0].refs] == ["M1", "M2", "M0"]
    assert [ref.queue_offset for ref in log.of(Released)[0].refs] == [0, 1, 2]
    assert next_deadline_ms(log.state) is None


def test_a_tick_releases_a_bounded_number_and_says_that_there_are_more() -> None:
    log = CoreLog()
    for number in range(400):
        log.do(message(f"M{number}", TIMER_DELAY_MS="100", body=b""))
    log.later(1_000)
    assert log.do(Tick()) == Done(again=True)
    log.tick()
    assert len(log.of(Released)) > 1
    assert log.state.topics_by_name["orders"].ends[0] == 400


def test_a_message_larger_than_a_ticks_share_is_released_alone() -> None:
    log = CoreLog()
    for number in range(4):
        log.do(message(f"M{number}", TIMER_DELAY_MS="100", body=b"x" * 25_000))
    log.roll()
    log.later(1_000)
    log.tick()
    assert [len(record.refs) for record in log.of(Released)] == [1, 1, 1, 1]
