"""What is kept for speed follows every change of what it is derived from."""

from tests.support.core_log import CoreLog, half

from halfmq.core.derived import add_delayed, count_half, count_undecided, schedule, schedule_or_park, unschedule
from halfmq.core.state import CHECK_BUCKET_MS, Delayed, Half
from halfmq.core.transaction.next_check import ParkedCheck


def test_a_check_waits_in_the_bucket_of_its_time_never_an_earlier_one_and_leaves_nothing_behind() -> None:
    state = CoreLog().state
    group = state.producer_group("PG")
    for at_ms in (1, CHECK_BUCKET_MS, CHECK_BUCKET_MS + 1):
        schedule(state, group, f"T{at_ms}", at_ms)
    first, second = CHECK_BUCKET_MS, 2 * CHECK_BUCKET_MS
    assert group.derived.scheduled == {first: {"T1": None, "T64": None}, second: {"T65": None}}
    assert sorted(state.derived.group_deadlines) == [(first, "PG"), (second, "PG")]
    unschedule(state, group, "T1", 1)
    assert state.derived.group_deadlines[0] == (first, "PG"), "T64 is still in it"
    unschedule(state, group, "T64", CHECK_BUCKET_MS)
    assert state.derived.group_deadlines == [(second, "PG")]
    unschedule(state, group, "T1", 1)
    assert group.derived.scheduled == {second: {"T65": None}}, "its time had come: nothing is there to take out"


def test_a_parked_check_has_no_deadline() -> None:
    state = CoreLog().state
    group = state.producer_group("PG")
    schedule_or_park(state, group, "T1", ParkedCheck.AGE)
    schedule_or_park(state, group, "T2", 5)
    assert (list(group.derived.parked), len(state.derived.group_deadlines)) == (["T1"], 1)
    unschedule(state, group, "T1", ParkedCheck.AGE)
    assert not group.derived.parked


def test_a_half_counts_for_its_topic_its_group_and_the_broker() -> None:
    log = CoreLog()
    log.do(half("T1"))
    state, group = log.state, log.state.producer_groups["PG"]
    before = group.derived.bytes
    count_undecided(state, group)
    count_half(state, group, Half(0, 9, 0, 0, state.topics_by_name["orders"].topic_id, 0, 7, 0, 0, 0))
    assert (group.derived.bytes, state.derived.undecided_bytes) == (before + 7, before + 7)
    assert (state.derived.undecided_count, state.derived.undecided_groups) == (2, 1), "the group had one before"
    assert state.topics_by_name["orders"].derived.pending == 2


def test_a_delayed_message_that_moves_is_counted_once() -> None:
    log = CoreLog()
    log.do(half("T1"))
    state, topic = log.state, log.state.topics_by_name["orders"]
    delayed = Delayed(100, 100, -1, topic.topic_id, 0, 10, 9_000, 0, 0)
    for offset in (100, 70_000):
        add_delayed(state, Delayed(offset, *[getattr(delayed, field) for field in delayed.__struct_fields__[1:]]))
        assert (topic.derived.pending, state.derived.delayed_heap) == (2, [(9_000, 100)])
    assert state.derived.copied == {65_536: 10}
