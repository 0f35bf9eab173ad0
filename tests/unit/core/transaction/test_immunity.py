"""How long a message rests before anybody is asked."""

from dataclasses import replace

import msgspec
import pytest
from tests.support.core_log import CoreLog, half, redo
from tests.support.durable_digest import durable_digest

from halfmq.core.commands import CopyForward, TrimLog
from halfmq.core.decision import Done
from halfmq.core.snapshot import load_rows
from halfmq.core.state import State, default_grace_ms
from halfmq.model.message_facts import GRACE_MAX_MS, grace_in
from halfmq.model.records import Base, EpochStarted
from halfmq.model.settings import BrokerSettings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, -1), (b"10", 10_000), (b"0", 0), (b"-1", -1), (b"soon", -1), (b"", -1),
        (b"999999999", GRACE_MAX_MS), (b"9" * 40, -1),
        (b"1", 1_000), (b"259200", GRACE_MAX_MS), (b"259199", GRACE_MAX_MS - 1_000), (b"000000000007", 7_000),
        (b"0000000000007", -1),
    ],
)  # fmt: skip
def test_a_message_may_say_its_immunity_within_reason(text: bytes | None, expected: int) -> None:
    pairs = {} if text is None else {b"CHECK_IMMUNITY_TIME_IN_SECONDS": text}
    assert grace_in(pairs) == expected


# --- a restart with another setting


LONG = BrokerSettings(segment_bytes=65_536, check_immunity_ms=60_000)
SHORT = replace(LONG, check_immunity_ms=500)


def immune_for_ms(state: State, tx_id: str) -> int:
    known = state.producer_groups["PG"].undecided[tx_id]
    return known.grace_until_ms - known.prepared_at_ms


def test_a_half_keeps_the_immunity_of_its_epoch_whatever_a_restart_reads() -> None:
    log = CoreLog(LONG)
    log.begin_epoch()
    log.do(half("T1"))
    chunks = log.snapshot()
    for state in (log.state, redo(State(SHORT), log.batches), load_rows(SHORT, chunks)):
        assert immune_for_ms(state, "T1") == 60_000
        assert durable_digest(state) == durable_digest(log.state)
    log.begin_epoch(SHORT)
    log.do(half("T2"))
    log.begin_epoch(LONG)
    assert [immune_for_ms(log.state, tx_id) for tx_id in ("T1", "T2")] == [60_000, 500]
    assert durable_digest(log.reloaded(chunks)) == durable_digest(log.state)


def test_the_epoch_that_a_half_is_redone_in_may_have_begun_before_the_snapshot() -> None:
    log = CoreLog(LONG)
    log.begin_epoch()
    chunks = log.snapshot()
    log.do(half("T1"))
    log.settings = SHORT
    assert immune_for_ms(log.reloaded(chunks), "T1") == 60_000


def test_the_epoch_that_a_half_is_redone_in_may_have_begun_before_a_trim() -> None:
    log = CoreLog(LONG)
    log.begin_epoch()
    log.roll()
    log.do(half("T1"))
    start = max(log.state.bases)
    assert log.do(CopyForward(start, 100)) == Done()
    assert log.do(TrimLog(start)) == Done()
    assert not [record for batch in log.remaining() for record in batch.records if isinstance(record, EpochStarted)]
    log.settings = SHORT
    assert immune_for_ms(log.redone(), "T1") == 60_000
    assert durable_digest(log.redone()) == durable_digest(log.state)


def test_a_base_from_before_the_first_epoch_says_none_and_a_later_one_does() -> None:
    log = CoreLog(LONG)
    log.roll()
    first = log.of(Base)[-1]
    assert len(msgspec.msgpack.decode(first.payload)) == 7, "nothing is said of limits of producers, nor of an epoch"
    assert default_grace_ms(log.redone(log.batches[-1:])) == 60_000
    state = load_rows(SHORT, log.snapshot())
    assert (state.epoch_grace_ms, default_grace_ms(state)) == (-1, 500)
    log.begin_epoch()
    log.roll()
    assert log.redone(log.batches[-1:]).epoch_grace_ms == 60_000
