"""Each invariant can fail, and says what is wrong."""

from collections.abc import Callable

import pytest
from tests.support.core_log import CoreLog, end, half, message

from halfmq.core.state import State
from halfmq.core.transaction.invariants import check
from halfmq.errors import InvariantViolated


def filled() -> CoreLog:
    log = CoreLog()
    log.do(end("T1", log.do(half("T1"))))
    log.do(half("T2"))
    log.do(message("M1"))
    log.do(message("M2", DELAY="1"))
    return log


def undecided(state: State) -> object:
    return state.producer_groups["PG"].undecided


DAMAGE: dict[str, Callable[[State], object]] = {
    "nobody will ask": lambda state: state.producer_groups["PG"].due.clear(),
    "a check inside the immunity": lambda state: state.producer_groups["PG"].undecided.update(
        T2=state.producer_groups["PG"].undecided["T2"]._replace(immune_until_ms=10**15)
    ),
    "undecided and settled": lambda state: state.producer_groups["PG"].settled.update(
        T2=state.producer_groups["PG"].settled["T1"]
    ),
    "counts 1 bytes": lambda state: setattr(state.producer_groups["PG"], "bytes", 1),
    "counts 9 waiting": lambda state: setattr(state.topics_by_name["orders"], "pending", 9),
    "which is gone": lambda state: state.topics_by_id.clear(),
    "is not found by its name": lambda state: state.topics_by_name.clear(),
    "is never shown": lambda state: state.delayed_heap.clear(),
    "are not in the log": lambda state: setattr(state, "log_start", 65_536),
    "verdicts by id": lambda state: state.verdicts.clear(),
    "remembers for ever": lambda state: state.sent.clear(),
    "a base at": lambda state: state.bases.update({10**9: ()}),
    "still to be given": lambda state: setattr(state, "next_topic_id", 1),
    "half index": lambda state: setattr(state, "next_half_index", 0),
    "settled and in flight": lambda state: state.producer_groups["PG"].in_flight.update(T1=(1, 1)),
    "takes no turn": lambda state: state.producer_groups["PG"].ready.append("T2"),
}


def test_a_state_that_lives_passes_and_much_was_looked_at() -> None:
    assert check(filled().state) >= 30


@pytest.mark.parametrize("text", DAMAGE)
def test_damage_is_noticed_and_named(text: str) -> None:
    state = filled().state
    DAMAGE[text](state)
    with pytest.raises(InvariantViolated, match=text):
        check(state)
