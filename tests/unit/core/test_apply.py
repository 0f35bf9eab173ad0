"""What apply refuses: records that cannot be of this log."""

import pytest
from tests.support.core_log import CoreLog, half
from tests.support.durable_digest import durable_digest

from halfmq.core.apply import apply, close_batch, open_batch
from halfmq.core.state import State
from halfmq.errors import InvariantViolated
from halfmq.model.records import BATCH_HEADER_BYTES, Checked, Committed, RolledBack, Trim
from halfmq.model.settings import BrokerSettings


def test_a_record_in_the_wrong_place_is_refused_and_changes_nothing() -> None:
    log = CoreLog()
    log.do(half("T1"))
    state = log.redone()
    open_batch(state, state.log_end, log.now_ms)
    before = durable_digest(state)
    for wrong in (state.log_end + 8, state.log_end - 8, 0):
        with pytest.raises(InvariantViolated, match="the log ends at"):
            apply(state, Trim(wrong, 16, 0))
    assert durable_digest(state) == before


def test_a_record_outside_of_a_batch_is_refused() -> None:
    log = CoreLog()
    with pytest.raises(InvariantViolated):
        apply(log.state, Trim(log.state.log_end, 16, 0))


def test_the_first_record_of_all_is_a_base() -> None:
    state = State(BrokerSettings(segment_bytes=65_536))
    open_batch(state, 0, 1)
    with pytest.raises(InvariantViolated, match="base seen: False"):
        apply(state, Trim(BATCH_HEADER_BYTES, 16, 0))


@pytest.mark.parametrize("wrong", [8, -8, 64])
def test_a_batch_begins_where_the_last_ended_or_with_a_segment(wrong: int) -> None:
    log = CoreLog()
    with pytest.raises(InvariantViolated):
        open_batch(log.state, log.state.log_end + wrong, 1)
    open_batch(log.redone(), 65_536, 1)


def test_a_batch_does_not_begin_inside_another() -> None:
    log = CoreLog()
    open_batch(log.state, log.state.log_end, 1)
    with pytest.raises(InvariantViolated, match="inside"):
        open_batch(log.state, log.state.log_end, 1)


def test_batches_end_on_their_boundary() -> None:
    log = CoreLog()
    for size in range(8):
        log.do(half(f"T{size}", body=b"x" * size))
        assert log.state.log_end % 8 == 0


def test_redo_behind_a_trim_takes_verdicts_and_checks_of_halves_it_does_not_know() -> None:
    log = CoreLog()
    state = log.state
    open_batch(state, state.log_end, log.now_ms)
    for record in (
        RolledBack(state.log_end, 100, "PG", "T1", 1, (4,)),
        Checked(state.log_end + 100, 60, "PG", "T2", 5, 1, 99),
        Committed(state.log_end + 160, 80, "PG", "T3", 1, ()),
    ):
        apply(state, record)
    close_batch(state)
    assert set(state.producer_groups["PG"].settled) == {"T1", "T3"}
    assert not state.producer_groups["PG"].undecided
