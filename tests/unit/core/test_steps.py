"""Each command of several steps keeps the three rules: it makes progress, no other one undoes it, and it ends with whom it is for."""

from collections.abc import Callable
from itertools import product
from typing import Final

import pytest
from tests.support.core_log import CoreLog, half, half_batch, sent, winner

from halfmq.core.commands import Command, CommitOffset, CopyForward, DecideBatch, EnsureGroup, Tick
from halfmq.core.decision import Done
from halfmq.core.steps import STEPS, goes_on
from halfmq.model.query_batch import QueryBatch
from halfmq.model.settings import BrokerSettings

SEGMENT: Final = 1 << 20


def decision(log: CoreLog, number: int) -> Command:
    batch = QueryBatch(f"q{number}", 0, "r1")
    found = [half_batch(batch, index=index, size=60_000) for index in range(4)]
    for one in found:
        sent(log.do(one))
    return DecideBatch(1, "PG", batch, b"d" * 16, (winner(*found),))


def copying(log: CoreLog, number: int) -> Command:
    for index in range(6):
        sent(log.do(half(f"T{number}-{index}")))
    return CopyForward(SEGMENT, 2)


def tick(log: CoreLog, number: int) -> Command:
    log.do(EnsureGroup(f"CG{number}"))
    for queue in range(4):
        log.do(CommitOffset(f"CG{number}", "orders", queue, 7))
        log.do(CommitOffset(f"CG{number}", "orders", queue, 8))
    return Tick()


#: How each of them gets something to do in more than one step. One without a line cannot be checked.
PREPARED: Final[dict[type[Command], Callable[[CoreLog, int], Command]]] = {
    DecideBatch: decision,
    CopyForward: copying,
    Tick: tick,
}


def test_each_command_of_several_steps_is_checked() -> None:
    assert PREPARED.keys() == STEPS.keys()


@pytest.mark.parametrize(("kind", "other"), list(product(STEPS, STEPS)), ids=lambda kind: kind.__name__)
def test_a_step_makes_progress_that_no_step_of_another_undoes(kind: type[Command], other: type[Command]) -> None:
    log = CoreLog(BrokerSettings(segment_bytes=SEGMENT))
    sent(log.do(half("T")))
    ours, theirs = PREPARED[kind](log, 1), PREPARED[other](log, 2)
    log.roll()
    count = STEPS[kind].left
    left = count(log.state, ours) if count is not None else 1_000
    theirs_go_on = True
    for _ in range(100):
        if not goes_on(kind, log.do(ours), has_caller=True):
            break
        after = count(log.state, ours) if count is not None else left - 1
        assert after < left, "a step made no progress"
        theirs_go_on = theirs_go_on and goes_on(other, log.do(theirs), has_caller=True)
        left = count(log.state, ours) if count is not None else after
        assert left <= after, f"a step of {other.__name__} undid progress"
    else:
        pytest.fail("it never ends")


@pytest.mark.parametrize("kind", STEPS, ids=lambda kind: kind.__name__)
def test_nothing_goes_on_for_nobody(kind: type[Command]) -> None:
    steps, again = STEPS[kind], Done(again=True)
    assert goes_on(kind, again, has_caller=True)
    assert goes_on(kind, again) is not steps.has_caller, "its caller is gone"
    assert goes_on(kind, again, has_caller=True, draining=True) is not steps.ends_at_drain
    assert not goes_on(kind, Done(), has_caller=True)


def test_a_command_without_rules_does_not_go_on() -> None:
    assert not goes_on(EnsureGroup, Done())
    with pytest.raises(KeyError):
        goes_on(EnsureGroup, Done(again=True))
