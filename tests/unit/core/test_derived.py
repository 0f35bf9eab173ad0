"""What is kept for speed follows every change of what it is derived from."""

from tests.support.core_log import CoreLog

from halfmq.core.derived import schedule, schedule_or_park, unschedule
from halfmq.core.state import CHECK_BUCKET_MS
from halfmq.model.records import PARKED_MS, ParkedBecause


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
    schedule_or_park(state, group, "T1", PARKED_MS + ParkedBecause.AGE)
    schedule_or_park(state, group, "T2", 5)
    assert (list(group.derived.parked), len(state.derived.group_deadlines)) == (["T1"], 1)
    unschedule(state, group, "T1", PARKED_MS + ParkedBecause.AGE)
    assert not group.derived.parked
