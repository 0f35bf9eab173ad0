"""The rules for the log can fail: each of these records breaks one rule, and the same history without it is clean."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import msgpack

from halfmq.core.schema import producer_set
from halfmq.model.records import (
    MESSAGE_AT,
    Base,
    Checked,
    Committed,
    DecidedBy,
    EpochStarted,
    Parked,
    ParkedBecause,
    RolledBack,
)
from halfmq.model.settings import BrokerSettings, PastLimit, ProducerSettings
from halfmq.testing.history.events import Answered, Event
from halfmq.wire.remoting.producer_groups import ProducerChange
from tests.simulation.final_checks import may_be_a_policys
from tests.simulation.policy_rules import look_at_log
from tests.simulation.promises import Promises, Tx, Violation
from tests.support import log_records as make

SETTINGS = BrokerSettings(check_immunity_ms=1_000, undecided_max=2)
ASKED = {"g": [ProducerChange(2, "rollback", 60_000, 1, 100), ProducerChange(2, "set-aside")]}


def at(now_ms: int, record: Any) -> tuple[Any, Any]:
    return SimpleNamespace(broker_time_ms=now_ms, offset=0), record


def policy(past: PastLimit, limit: int = 2, **more: Any) -> tuple[Any, Any]:
    return at(0, producer_set(64, ProducerSettings("g", limit, past, set_by="ada", **more)))


def half(now_ms: int = 0, tx: str = "T", pairs: bytes = b"", message_bytes: int = 50) -> tuple[Any, Any]:
    message = make.message(properties=pairs)
    return at(now_ms, make.half_record(64, MESSAGE_AT + message_bytes, 1, message, 0, "g", tx, 0, 1))


def check(now_ms: int, number: int, next_ms: int) -> tuple[Any, Any]:
    return at(now_ms, Checked(64, 64, "g", "T", 0, number, next_ms))


def rolled_back(now_ms: int) -> tuple[Any, Any]:
    return at(now_ms, RolledBack(64, 64, "g", "T", DecidedBy.POLICY, (0,)))


def aside(now_ms: int, because: ParkedBecause, checks: int = 0) -> tuple[Any, Any]:
    return at(now_ms, Parked(64, 64, "g", "T", 0, checks, DecidedBy.POLICY, because))


def look(*records: tuple[Any, Any]) -> Counter[str]:
    counts: Counter[str] = Counter()
    look_at_log(records, SETTINGS, ASKED, counts)
    return counts


#: The broker starts again.
RUN = at(0, EpochStarted(64, 64, 2, 0, msgpack.encode((2, 0, 1_000))))
TWICE = (half(), check(1_000, 1, 2_000), check(2_000, 2, 4_000))
OWN = b"CHECK_IMMUNITY_TIME_IN_SECONDS\x015\x02"


def test_legal_actions_of_a_policy_are_clean_and_counted() -> None:
    assert look(policy(PastLimit.ROLLBACK), *TWICE, rolled_back(4_000))["look policy behind the answer"] == 1
    assert look(policy(PastLimit.PARKED), *TWICE, aside(4_000, ParkedBecause.CHECKS, 2))["look check limit"] == 1
    old = policy(PastLimit.ROLLBACK, skip_age_ms=60_000)
    assert look(old, half(), aside(60_000, ParkedBecause.AGE))["look age"] == 1


def test_checks_that_a_trim_removed_are_not_missed() -> None:
    base = at(0, Base(65_600, 64, 0, msgpack.encode([])))
    base[0].offset = 65_536
    assert look(base, policy(PastLimit.ROLLBACK), half(), rolled_back(4_000))["look check limit"] == 1


@pytest.mark.parametrize(
    ("records", "why"),
    [
        ((*TWICE, rolled_back(4_000)), "was rolled back by"),
        ((policy(PastLimit.PARKED), *TWICE, rolled_back(4_000)), "was rolled back by"),
        ((policy(PastLimit.ROLLBACK), *TWICE, aside(4_000, ParkedBecause.CHECKS)), "was parked by"),
        ((policy(PastLimit.ROLLBACK), *TWICE[:2], rolled_back(4_000)), "after 1 checks"),
        ((policy(PastLimit.ROLLBACK), *TWICE, rolled_back(3_999)), "the next was due at 4000"),
        ((policy(PastLimit.ROLLBACK), *TWICE, RUN, rolled_back(4_000)), "sent in run 0"),
        ((policy(PastLimit.ROLLBACK), half(), aside(60_000, ParkedBecause.AGE)), "at the age of 60000"),
        ((policy(PastLimit.ROLLBACK, skip_age_ms=60_000), half(), aside(59_999, ParkedBecause.AGE)), "age of 59999"),
        ((half(), at(0, Committed(64, 64, "g", "T", DecidedBy.POLICY, ()))), "committed by a policy"),
        ((half(), check(999, 1, 2_000)), "is immune until 1000"),
        ((half(pairs=OWN), check(4_999, 1, 9_000)), "is immune until 5000"),
        ((half(), half(tx="U"), half(tx="V")), "is number 3, 2 are allowed"),
        ((policy(PastLimit.ROLLBACK, undecided_bytes_max=100), half(message_bytes=101)), "makes 101 bytes"),
        ((policy(PastLimit.ROLLBACK, limit=7),), "nobody asked for check_limit 7"),
    ],
)  # fmt: skip
def test_illegal_records_are_violations(records: tuple[Any, ...], why: str) -> None:
    with pytest.raises(Violation, match=why):
        look(*records)


@pytest.mark.parametrize(
    ("requested_us", "told_us", "told_offset", "may_be"),
    [
        (None, 30, 600, True),
        (40, 30, 600, True),  # the log went on behind the verdict before anybody requested it
        (20, 30, 600, False),
        (40, 30, 400, False),
    ],
)
def test_a_trimmed_rollback_may_be_a_policys_only_if_nobody_had_requested_it(
    requested_us: int | None, told_us: int, told_offset: int, may_be: bool
) -> None:
    promises = Promises(Counter())
    promises.policy_groups.add("g")
    tx = Tx("g", "T")
    tx.verdict, tx.verdict_us = ("ROLLED_BACK", 500), 50
    if requested_us is not None:
        tx.asked["ROLLED_BACK"] = requested_us, "check"
    events: list[Event] = [Answered(t_us=told_us, by="p", op="1", outcome="ok", offset=told_offset)]
    assert may_be_a_policys(tx, promises, 1_000, events) == may_be
    assert not may_be_a_policys(tx, promises, 500, events), "the record is in the log, and says who decided"
