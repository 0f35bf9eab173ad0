"""What retention removes, decided from times and sizes alone."""

import pytest

from halfmq.core.retention import ClosedSegment, RetentionLimits, TrimTarget, trim_target
from halfmq.core.state import Jump, State
from halfmq.model.settings import BrokerSettings

MIB = 1 << 20
NOW_MS = 10_000_000
#: Four full segments of 1 MiB; the newest entry of each is this old.
AGES_MS = (4_000_000, 3_000_000, 2_000_000, 1_000_000)
SEGMENTS = [ClosedSegment(at * MIB, (at + 1) * MIB, NOW_MS - age_ms) for at, age_ms in enumerate(AGES_MS)]
OFF = RetentionLimits(0, 0, 600_000, 300_000)


def state(published: int = 4 * MIB) -> State:
    made = State(BrokerSettings(segment_bytes=MIB))
    made.session.published = published
    return made


@pytest.mark.parametrize(
    ("limits", "segments"),
    [
        (OFF, 0),
        (OFF._replace(retention_ms=2_500_000), 2),
        (OFF._replace(retention_ms=3_000_000), 1),  # older than, not as old as
        (OFF._replace(retention_ms=1), 4),
        (OFF._replace(retention_bytes=4 * MIB), 0),
        (OFF._replace(retention_bytes=3 * MIB), 1),
        (OFF._replace(retention_bytes=3 * MIB - 1), 1),
        (OFF._replace(retention_bytes=1), 3),
        (OFF._replace(retention_ms=2_500_000, retention_bytes=1), 3),
    ],
)
def test_age_and_size_each_remove_whole_segments_the_oldest_first(limits: RetentionLimits, segments: int) -> None:
    assert trim_target(state(), limits, SEGMENTS, NOW_MS) == TrimTarget(segments * MIB, False, 0)


def test_what_is_in_the_deduplication_window_stays() -> None:
    limits = OFF._replace(retention_ms=1, dedup_window_ms=2_000_000)
    assert trim_target(state(), limits, SEGMENTS, NOW_MS).log_start == 2 * MIB


def test_a_segment_that_is_missing_ends_what_goes() -> None:
    limits = OFF._replace(retention_ms=1)
    assert trim_target(state(), limits, [SEGMENTS[0], SEGMENTS[2]], NOW_MS).log_start == MIB
    assert trim_target(state(), limits, SEGMENTS[1:], NOW_MS).log_start == 0


@pytest.mark.parametrize(
    ("lowest", "position", "segments"),
    [(2 * MIB - 64, 2 * MIB + 64, 1), (64, 2 * MIB, 0), (3 * MIB, 3 * MIB + 64, 2), (0, MIB + 8, 2)],
)
def test_segments_of_a_tie_go_together(lowest: int, position: int, segments: int) -> None:
    tied = state()
    tied.ties = {position: lowest}
    limits = OFF._replace(retention_ms=2_500_000)
    assert trim_target(tied, limits, SEGMENTS, NOW_MS).log_start == segments * MIB


def test_a_jump_of_the_clock_that_nobody_confirmed_makes_nothing_old() -> None:
    doubtful = state()
    doubtful.jumps = (Jump(0, NOW_MS - 500_000, 3_500_000),)
    limits = OFF._replace(retention_ms=900_000)
    assert trim_target(doubtful, limits, SEGMENTS, NOW_MS) == TrimTarget(0, True, 0)
    assert trim_target(state(), limits, SEGMENTS, NOW_MS) == TrimTarget(4 * MIB, False, 0)


def test_much_that_was_just_copied_holds_what_only_size_would_remove() -> None:
    limits = OFF._replace(retention_bytes=1, copy_again_ms=3_600_000)
    full = state()
    full.derived.copied = {MIB: MIB}
    assert trim_target(full, limits, SEGMENTS, NOW_MS) == TrimTarget(MIB, False, MIB)
    assert trim_target(full, limits._replace(retention_ms=1), SEGMENTS, NOW_MS).log_start == 4 * MIB
    assert trim_target(full, limits._replace(copy_again_ms=1_000), SEGMENTS, NOW_MS) == TrimTarget(3 * MIB, False, 0)
    little = state()
    little.derived.copied = {MIB: 1_000}
    assert trim_target(little, limits, SEGMENTS, NOW_MS) == TrimTarget(3 * MIB, False, 0)
