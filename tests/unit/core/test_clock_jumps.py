"""Age without the jumps that nobody has confirmed: what counts as one, and where it is remembered."""

from collections.abc import Sequence

from tests.support.core_log import CoreLog, message
from tests.support.durable_digest import durable_digest

from halfmq.core.clock_jumps import JUMPS_MAX, TRUSTED, age_ms, is_time_due, jump_of_start, plausible_ms
from halfmq.core.commands import NoteTime, TrimLog
from halfmq.core.decision import Done
from halfmq.core.schema import epoch_started
from halfmq.core.snapshot import encode_rows, snapshot_rows
from halfmq.core.state import State, next_offset
from halfmq.model.records import EpochStarted, OffsetsCommitted

SEGMENT = 65_536
HOUR = 3_600_000
DAY = 24 * HOUR


def start(log: CoreLog, ahead_ms: int, *, retention_ms: int = 3 * DAY, trusted: bool = False) -> int:
    """A start whose time is so far ahead of the log; what its record says of it."""
    log.close()
    log.restart()
    log.now_ms = log.state.batch_time_ms + ahead_ms
    jump_ms = jump_of_start(log.state, log.now_ms, plausible_ms(retention_ms), trusted=trusted)
    log.engine.log([epoch_started(next_offset(log.state), log.state.epoch + 1, log.now_ms, 6_000, jump_ms)], log.now_ms)
    log.close()
    assert durable_digest(log.redone()) == durable_digest(log.state)
    assert durable_digest(log.reloaded(log.snapshot())) == durable_digest(log.state)
    return jump_ms


def ages(log: CoreLog, stored_ms: Sequence[int]) -> list[int]:
    return [age_ms(log.state, one, log.now_ms) for one in stored_ms]


def test_what_is_plausible_is_an_eighth_of_the_retention_between_a_minute_and_a_day() -> None:
    assert plausible_ms(72 * HOUR) == 9 * HOUR
    assert plausible_ms(1) == 60_000
    assert plausible_ms(365 * DAY) == DAY
    assert plausible_ms(0) == DAY, "no retention by age now, maybe later"


def test_the_time_is_logged_when_half_of_what_is_plausible_has_passed_without_a_batch() -> None:
    log = CoreLog()
    log.do(message("M1"))
    stored_ms = log.state.batch_time_ms
    half_ms = plausible_ms(72 * HOUR) // 2
    assert [is_time_due(log.state, 72 * HOUR, stored_ms + half_ms + more) for more in (0, 1)] == [False, True]


def test_the_first_start_of_a_store_is_no_jump() -> None:
    assert jump_of_start(State(CoreLog().settings), 1_700_000_000_000, 60_000, trusted=False) == 0


def test_a_start_that_is_plausible_says_nothing_and_its_record_is_as_ever() -> None:
    log = CoreLog()
    assert start(log, 9 * HOUR) == 0
    assert log.state.jumps == ()
    assert log.of(EpochStarted)[-1] == epoch_started(log.of(EpochStarted)[-1].offset, 1, log.now_ms, 6_000)
    assert start(log, 9 * HOUR + 1) == 9 * HOUR + 1
    assert len(log.state.jumps) == 1


def test_age_is_counted_without_the_jumps_that_came_since() -> None:
    log = CoreLog()
    log.do(message("M1"))
    before = log.now_ms
    start(log, 10 * DAY)
    between = log.now_ms
    log.later(HOUR)
    log.do(message("M2"))
    assert ages(log, (before, between)) == [HOUR, HOUR]
    start(log, 20 * DAY)
    log.later(HOUR)
    log.do(message("M3"))
    assert ages(log, (before, between, log.now_ms)) == [2 * HOUR, 2 * HOUR, 0]
    assert start(log, 1_000) == 0
    assert ages(log, (before,)) == [2 * HOUR + 1_000], "a start later nothing is forgotten"


def test_confirming_ends_every_jump_and_takes_no_new_one_for_one() -> None:
    log = CoreLog()
    before = log.now_ms
    start(log, 10 * DAY)
    assert start(log, 5 * DAY, trusted=True) == TRUSTED
    assert ages(log, (before,)) == [15 * DAY]
    assert start(log, 5 * DAY, trusted=True) == 0, "nothing to confirm: the record is as ever"
    assert log.state.jumps == ()


def test_a_jump_goes_with_the_trim_of_its_record_and_not_before() -> None:
    log = CoreLog()
    log.roll()
    start(log, 10 * DAY)
    log.roll()
    start(log, 10 * DAY)
    for log_start, left in ((SEGMENT, 2), (2 * SEGMENT, 1)):
        assert log.do(TrimLog(log_start)) == Done()
        assert len(log.state.jumps) == left
        assert durable_digest(log.redone()) == durable_digest(log.state)


def test_more_jumps_than_are_kept_make_nothing_older() -> None:
    log = CoreLog()
    stored = [log.now_ms]
    for _ in range(JUMPS_MAX + 5):
        start(log, 2 * DAY)
        stored.append(log.now_ms)
        log.later(HOUR)
        log.do(message())
    assert len(log.state.jumps) == JUMPS_MAX
    hours = [HOUR * (len(stored) - 1 - max(0, number - 1)) for number in range(len(stored))]
    assert all(age <= hour for age, hour in zip(ages(log, stored), hours, strict=True))
    assert ages(log, stored)[0] == HOUR * (JUMPS_MAX + 5)


def test_an_earlier_version_reads_a_snapshot_with_jumps_and_passes_over_them() -> None:
    log = CoreLog()
    start(log, 10 * DAY)
    rows = dict(snapshot_rows(log.state).rows)
    assert rows["immunity"][0] == 6_000
    assert len(rows["immunity"]) == 4
    assert list(encode_rows(snapshot_rows(log.state)))


def test_time_is_noted_by_a_record_that_says_nothing_else() -> None:
    log = CoreLog()
    before = durable_digest(log.state)
    log.later(HOUR)
    assert log.do(NoteTime()) == Done()
    assert log.of(OffsetsCommitted)[-1].entries == ()
    after = durable_digest(log.state)
    assert {name for name in after if after[name] != before[name]} == {"log_end", "batch_time_ms"}
    assert durable_digest(log.redone()) == after
