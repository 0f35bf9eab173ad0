"""A committed offset never passes a message that is not acknowledged."""

from hypothesis import given
from hypothesis import strategies as st

from halfmq.client.offset_tracker import OffsetTracker


def test_commit_stops_at_the_first_open_message() -> None:
    tracker = OffsetTracker(10)
    for offset in (10, 11, 12):
        tracker.delivered(offset)
    tracker.pulled_up_to(13)
    assert tracker.committable == 10
    tracker.done(11)
    tracker.done(12)
    assert tracker.committable == 10
    tracker.done(10)
    assert tracker.committable == 13


def test_what_the_filter_left_out_is_passed() -> None:
    tracker = OffsetTracker(0)
    tracker.pulled_up_to(50)
    assert tracker.committable == 50


def test_second_acknowledgement_says_so() -> None:
    tracker = OffsetTracker(0)
    tracker.delivered(0)
    assert tracker.done(0)
    assert not tracker.done(0)


def test_restart_forgets_what_was_open() -> None:
    tracker = OffsetTracker(0)
    tracker.delivered(0)
    tracker.restart(100)
    assert (tracker.committable, tracker.next_offset, len(tracker)) == (100, 100, 0)
    assert not tracker.done(0)


@given(st.integers(1, 60), st.data())
def test_commit_is_the_smallest_open_offset(count: int, data: st.DataObject) -> None:
    tracker = OffsetTracker(0)
    for offset in range(count):
        tracker.delivered(offset)
    tracker.pulled_up_to(count)
    acknowledged = data.draw(st.permutations(range(count)))[: data.draw(st.integers(0, count))]
    for offset in acknowledged:
        tracker.done(offset)
    open_offsets = sorted(set(range(count)) - set(acknowledged))
    assert tracker.committable == (open_offsets[0] if open_offsets else count)
    assert len(tracker) == len(open_offsets)
