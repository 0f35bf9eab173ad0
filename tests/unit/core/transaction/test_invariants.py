"""Each invariant can fail, and says what is wrong."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from tests.support.core_log import CoreLog, end, half, message
from tests.support.invariants import check

from halfmq import limits
from halfmq.core.events import DelayedPostponed
from halfmq.core.schema import set_user
from halfmq.core.session import apply_session
from halfmq.core.state import HeldByUser, InFlight, Policy, State, Undecided
from halfmq.errors import InvariantViolated
from halfmq.model.records import PARKED_MS, ParkedBecause
from halfmq.model.settings import ProducerSettings
from halfmq.model.users import User


def filled() -> CoreLog:
    log = CoreLog()
    log.do(end("T1", log.do(half("T1"))))
    log.do(half("T2"))
    log.do(message("M1"))
    log.do(message("M2", DELAY="1"))
    return log


DAMAGE: dict[str, Callable[[State], object]] = {
    "nobody will ask": lambda state: state.producer_groups["PG"].derived.scheduled.clear(),
    "a check inside the grace period": lambda state: state.producer_groups["PG"].undecided.update(
        T2=replace(state.producer_groups["PG"].undecided["T2"], grace_until_ms=10**15)
    ),
    "undecided and settled": lambda state: state.producer_groups["PG"].settled.update(
        T2=state.producer_groups["PG"].settled["T1"]
    ),
    "counts 1 bytes": lambda state: setattr(state.producer_groups["PG"].derived, "bytes", 1),
    "counts 9 waiting": lambda state: setattr(state.topics_by_name["orders"].derived, "pending", 9),
    "which is gone": lambda state: state.topics_by_id.clear(),
    "is not found by its name": lambda state: state.topics_by_name.clear(),
    "is never shown": lambda state: state.derived.delayed_heap.clear(),
    "or is postponed and shown": lambda state: state.session.delayed_postponed.update(state.delayed),
    "are not in the log": lambda state: setattr(state, "log_start", 65_536),
    "verdicts by id": lambda state: state.verdicts.clear(),
    "remembers for ever": lambda state: state.sent.clear(),
    "a base at": lambda state: state.bases.update({10**9: ()}),
    "5 undecided transactions are counted, which are 1": lambda state: setattr(state.derived, "undecided_count", 5),
    "^a base of .* is counted, which is": lambda state: setattr(state.derived, "base_bytes", 1),
    "7 bytes of them are counted": lambda state: setattr(state.derived, "undecided_bytes", 7),
    "'shop': .1, 0.. of users, ": lambda state: state.derived.undecided_of_user.update(shop=HeldByUser(1)),
    "{'shop': 1} locks of owners": lambda state: state.session.locks_of_owner.update(shop=1),
    "users without an administrator": lambda state: set_user(state, "shop", User((), "", ())),
    "3 groups with any are counted, which are 1": lambda state: setattr(state.derived, "undecided_groups", 3),
    "nobody looks after its policy": lambda state: state.producer_groups["PG"].__setattr__(
        "policy", Policy(ProducerSettings("PG"))
    ),
    "an offset is not logged": lambda state: state.session.fresh_offsets.update(CG={(1, 0): 7}),
    "settled and in flight": lambda state: state.producer_groups["PG"].session.in_flight.update(T1=InFlight(1, 1)),
    "takes no turn": lambda state: (
        state.producer_groups["PG"].session.due.append("T2"),
        state.producer_groups["PG"].session.members.update({1: "client-1"}),
    ),
    "settings of group Gone, which is forgotten": lambda state: state.producer_settings.update(
        Gone=ProducerSettings("Gone")
    ),
    "log start 8192000 after its end": lambda state: setattr(state, "log_start", 8_192_000),
    "^ends of orders$": lambda state: state.topics_by_name["orders"].mins.__setitem__(3, 1),
    "^queues of orders$": lambda state: setattr(
        state.topics_by_name["orders"], "wakes", state.topics_by_name["orders"].wakes[1:]
    ),
    "^PG: scheduled twice": lambda state: state.producer_groups["PG"].derived.scheduled.update({64: {"T2": None}}),
    "^PG: a settled transaction is scheduled$": lambda state: next(
        iter(state.producer_groups["PG"].derived.scheduled.values())
    ).update(T1=None),
    "^PG/T2: stands under another name$": lambda state: change(state, group="Other"),
    r"PG/T2: indexes \[0, 0\]": lambda state: change(state, halves=t2(state).halves * 2),
    f"PG/T2: {limits.TRANSACTION_MESSAGES_MAX + 1} messages": lambda state: change(
        state,
        count=0,
        halves=tuple(replace(t2(state).halves[0], index=at) for at in range(limits.TRANSACTION_MESSAGES_MAX + 1)),
    ),
    "PG/T2: index 1 of 1$": lambda state: change(state, halves=(replace(t2(state).halves[0], index=1),)),
    "PG/T2: parked or not, and nobody knows": lambda state: change(state, next_check=PARKED_MS + ParkedBecause.AGE),
    "PG/T2: parked and scheduled": lambda state: change(state, next_check=PARKED_MS + ParkedBecause.CHECKS),
    "^PG: nobody sees it overdue$": lambda state: setattr(state.producer_groups["PG"].session, "full_until_ms", 7),
    "PG/T2: its bytes at 8192000 are not in the log": lambda state: change(
        state, halves=(replace(t2(state).halves[0], offset=8_192_000),)
    ),
    "^PG/T2: half index 2$": lambda state: change(
        state, halves=(replace(t2(state).halves[0], half_index=state.next_half_index),)
    ),
    "^PG: somebody waits who never came$": lambda state: state.producer_groups["PG"].session.held_polls.update({9: 1}),
    "^PG: its policy is not looked after$": lambda state: state.derived.policies.update(PG=None),
    "^two verdicts at one position, or out of order$": lambda state: twice(state),
    "^5 queue locks are counted, which are 0$": lambda state: setattr(state.session, "locks_held", 5),
    "^more is remembered than allowed$": lambda state: object.__setattr__(
        state.settings, "dedup_ids_max", min(len(state.verdicts), len(state.sent))
    ),
    "a verdict from before the log; a sent message from before the log": lambda state: setattr(
        state, "log_start", state.log_end
    ),
    "^topic orders has an id that is still to be given": lambda state: setattr(
        state, "next_topic_id", next(iter(state.topics_by_id))
    ),
    "^delayed 7 stands under another offset": lambda state: state.delayed.update(
        {7: state.delayed.pop(next(iter(state.delayed)))}
    ),
    r"delayed (\d+): its bytes at \d+ are not in the log": lambda state: move_delayed(state, state.log_end),
}


def t2(state: State) -> Undecided:
    return state.producer_groups["PG"].undecided["T2"]


def change(state: State, **fields: object) -> None:
    state.producer_groups["PG"].undecided["T2"] = replace(t2(state), **fields)  # type: ignore[arg-type]


def twice(state: State) -> None:
    """Another verdict at the same position; as many by id as in order."""
    (verdict,) = state.verdicts
    state.verdicts.append(verdict)
    state.producer_groups["PG"].settled["T0"] = verdict


def move_delayed(state: State, offset: int) -> None:
    ((first, delayed),) = state.delayed.items()
    state.delayed[first] = replace(delayed, offset=offset)


def test_a_delayed_message_that_was_put_aside_is_not_missed() -> None:
    state = filled().state
    (first,) = state.delayed
    apply_session(state, DelayedPostponed((first,)))
    assert not state.derived.delayed_heap
    check(state)


def test_a_state_that_lives_passes_and_much_was_looked_at() -> None:
    assert check(filled().state) >= 30


@pytest.mark.parametrize("text", DAMAGE)
def test_damage_is_noticed_and_named(text: str) -> None:
    state = filled().state
    DAMAGE[text](state)
    with pytest.raises(InvariantViolated, match=text):
        check(state)


def test_all_that_is_wrong_is_named_up_to_twenty() -> None:
    log = filled()
    log.state.producer_groups["PG"].derived.bytes = 1
    log.state.topics_by_name["orders"].derived.pending = 9
    with pytest.raises(InvariantViolated) as caught:
        check(log.state)
    assert [text.partition(" counts")[0] for text in str(caught.value).split("; ")] == ["topic orders", "PG:"]
    for number in range(30):
        log.state.producer_settings[f"G{number}"] = ProducerSettings(f"G{number}")
    with pytest.raises(InvariantViolated) as caught:
        check(log.state)
    assert len(str(caught.value).split("; ")) == 20


def test_what_stands_exactly_on_a_line_is_right() -> None:
    state = filled().state
    group = state.producer_groups["PG"]
    (half_,) = t2(state).halves
    state.next_half_index = half_.half_index + 1
    topic = state.topics_by_name["orders"]
    topic.mins = list(topic.ends)
    state.next_topic_id = topic.topic_id + 1
    object.__setattr__(state.settings, "dedup_ids_max", max(len(state.verdicts), len(state.sent)))
    state.bases[state.log_end] = ()
    group.undecided["T2"] = replace(t2(state), grace_until_ms=t2(state).next_check)
    check(state)
    state = CoreLog().state
    state.log_start = state.log_end
    state.bases.clear()
    check(state)
