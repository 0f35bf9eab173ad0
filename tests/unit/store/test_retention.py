import pytest

from halfmq.store.retention import RetentionPolicy, SegmentFacts, log_start_after_retention

#: Four segments of 100 bytes, written last at 10, 20, 30, 40; the first was trimmed away before.
SEGMENTS = [SegmentFacts(100 * number, 100 * number + 100, 10 * number) for number in range(1, 5)]


@pytest.mark.parametrize(
    ("policy", "now_ms", "start"),
    [
        (RetentionPolicy(), 1_000_000, 100),
        (RetentionPolicy(age_ms_max=25), 40, 200),
        (RetentionPolicy(age_ms_max=30), 40, 100),
        (RetentionPolicy(age_ms_max=0), 1_000_000, 400),  # the one that is written never goes
        (RetentionPolicy(bytes_max=250), 40, 300),
        (RetentionPolicy(bytes_max=400), 40, 100),
        (RetentionPolicy(bytes_max=0), 40, 400),
        (RetentionPolicy(segments_max=3), 40, 200),
        (RetentionPolicy(segments_max=1), 40, 400),
        (RetentionPolicy(age_ms_max=25, bytes_max=250), 40, 300),
    ],
)
def test_the_oldest_segments_go_until_no_limit_is_exceeded(policy: RetentionPolicy, now_ms: int, start: int) -> None:
    assert log_start_after_retention(SEGMENTS, policy, now_ms) == start


def test_a_young_segment_keeps_those_behind_it_whatever_their_age() -> None:
    facts = [SegmentFacts(0, 100, 90), SegmentFacts(100, 200, 10), SegmentFacts(200, 300, 95)]
    assert log_start_after_retention(facts, RetentionPolicy(age_ms_max=20), 100) == 0


def test_a_log_without_segments_starts_at_zero() -> None:
    assert log_start_after_retention([], RetentionPolicy(age_ms_max=1), 100) == 0
