"""What retention removes, decided from times and sizes alone."""

import pytest

from halfmq.core.commands import Unread
from halfmq.core.retention import ClosedSegment, RetentionLimits, TrimTarget, hold_bytes_of, trim_target
from halfmq.core.state import Jump, State, Topic
from halfmq.model.settings import BrokerSettings, GroupSettings

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


HOUR_MS = 3_600_000
#: Everything would be removed, by age.
ALL = OFF._replace(retention_ms=1)


def held_state(*read: int, hold_ms: int = 0, topic: str = "orders") -> State:
    """The topic ``orders`` has 10 messages in each segment. Each group has read ``read`` of them, and holds ``topic``."""
    made = state()
    orders = made.topics_by_name["orders"] = made.topics_by_id[1] = Topic(made.settings, 1, "orders", 1, 1, 6)
    orders.ends[0] = 40
    made.bases = {at * MIB: ((1, (at * 10,)),) for at in range(5)}
    for number, at in enumerate(read):
        made.groups[f"g{number}"] = GroupSettings(f"g{number}", hold_topics=(topic,), hold_ms=hold_ms)
        made.offsets[f"g{number}"] = {(1, 0): at}
    return made


@pytest.mark.parametrize(
    ("read", "segments"),
    [((0,), 0), ((9,), 0), ((10,), 1), ((29,), 2), ((40,), 4), ((40, 20), 2), ((20, 40, 11), 1)],
)
@pytest.mark.parametrize("limits", [ALL, OFF._replace(retention_bytes=1)], ids=["age", "size"])
def test_a_segment_waits_for_the_slowest_group_that_holds_it(
    read: tuple[int, ...], segments: int, limits: RetentionLimits
) -> None:
    target = trim_target(held_state(*read), limits, SEGMENTS, NOW_MS)
    assert target.log_start == min(segments, 4 if limits is ALL else 3) * MIB
    slowest = f"g{read.index(min(read))}"
    if segments < 3:
        assert Unread(slowest, "orders", 0, min(read), segments * 10 + 10) in target.held
    if segments == 4:
        assert target.held == ()


def test_groups_that_hold_nothing_here_delay_nothing() -> None:
    without = held_state(0)
    without.groups["g0"] = GroupSettings("g0")
    for one in (without, held_state(0, topic="stock")):
        assert trim_target(one, ALL, SEGMENTS, NOW_MS) == TrimTarget(4 * MIB, False, 0)


def test_a_hold_keeps_only_what_retention_would_remove() -> None:
    assert trim_target(held_state(0), OFF, SEGMENTS, NOW_MS) == TrimTarget(0, False, 0)


@pytest.mark.parametrize(("hold_ms", "segments"), [(0, 0), (4_000_000, 0), (3_999_999, 1), (2_500_000, 2), (1, 4)])
def test_a_hold_ends_at_its_age(hold_ms: int, segments: int) -> None:
    assert trim_target(held_state(0, hold_ms=hold_ms), ALL, SEGMENTS, NOW_MS).log_start == segments * MIB
    patient = held_state(0, 15, hold_ms=hold_ms)
    patient.groups["g1"] = GroupSettings("g1", hold_topics=("orders",), hold_ms=0)
    assert trim_target(patient, ALL, SEGMENTS, NOW_MS).log_start == min(segments, 1) * MIB, "each group has its own"


def test_an_age_that_a_jump_of_the_clock_made_ends_no_hold() -> None:
    doubtful = held_state(0, hold_ms=4_100_000)
    doubtful.jumps = (Jump(0, NOW_MS - 500_000, 500_000),)
    late = NOW_MS + 400_000
    assert trim_target(doubtful, ALL, SEGMENTS, late).log_start == 0
    doubtful.jumps = ()
    assert trim_target(doubtful, ALL, SEGMENTS, late).log_start == MIB


@pytest.mark.parametrize(
    ("disk", "held"), [(100 * MIB, 50 * MIB), (8 * MIB, 4 * MIB), (7 * MIB, 4 * MIB), (0, 4 * MIB)]
)
def test_without_a_setting_groups_hold_half_of_the_file_system_and_at_least_four_segments(disk: int, held: int) -> None:
    assert hold_bytes_of(disk, MIB) == held


@pytest.mark.parametrize(
    ("hold_bytes", "segments"), [(0, 0), (4 * MIB, 0), (3 * MIB, 1), (3 * MIB - 1, 1), (2 * MIB, 2), (1, 3)]
)
def test_a_hold_ends_at_the_size_that_the_operator_allows(hold_bytes: int, segments: int) -> None:
    limits = ALL._replace(hold_bytes=hold_bytes)
    assert trim_target(held_state(0), limits, SEGMENTS, NOW_MS).log_start == segments * MIB


@pytest.mark.parametrize(("must_free", "segments"), [(0, 0), (1, 1), (MIB, 1), (MIB + 1, 2), (99 * MIB, 4)])
def test_a_disk_that_is_nearly_full_takes_as_much_as_it_needs(must_free: int, segments: int) -> None:
    limits = ALL._replace(must_free_bytes=must_free)
    target = trim_target(held_state(0), limits, SEGMENTS, NOW_MS)
    assert target.log_start == segments * MIB
    assert bool(target.held) is (segments < 4)
    young = limits._replace(retention_ms=0)
    assert trim_target(held_state(0), young, SEGMENTS, NOW_MS).log_start == 0, "only what retention would remove"


def test_after_a_given_up_segment_the_next_one_waits_for_its_own_messages_only() -> None:
    limits = ALL._replace(must_free_bytes=1)
    some = held_state(5)
    some.bases[2 * MIB] = ((1, (10,)),)  # the second segment has no message of the topic
    assert trim_target(some, limits, SEGMENTS, NOW_MS).log_start == 2 * MIB


def test_a_hold_and_a_tie_both_count() -> None:
    tied = held_state(20)
    tied.ties = {2 * MIB + 64: MIB + 64}
    assert trim_target(tied, ALL, SEGMENTS, NOW_MS).log_start == MIB
