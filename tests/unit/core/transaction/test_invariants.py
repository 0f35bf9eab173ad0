"""Each invariant can fail, and says what is wrong."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from tests.support.core_log import CoreLog, end, half, message, part, sent

from halfmq import limits
from halfmq.core.commands import SendMessage
from halfmq.core.events import DelayedPostponed
from halfmq.core.session import apply_session
from halfmq.core.state import InFlight, Policy, State, Undecided
from halfmq.core.transaction.invariants import check
from halfmq.core.transaction.next_check import ParkedCheck
from halfmq.errors import InvariantViolated
from halfmq.model.settings import BrokerSettings, ProducerSettings


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
    "still to be given": lambda state: setattr(state, "next_topic_id", 1),
    "half index": lambda state: setattr(state, "next_half_index", 0),
    "5 undecided transactions are counted, which are 1": lambda state: setattr(state.derived, "undecided_count", 5),
    "7 bytes of them are counted": lambda state: setattr(state.derived, "undecided_bytes", 7),
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
    "^ends of orders": lambda state: state.topics_by_name["orders"].mins.__setitem__(0, -1),
    "^queues of orders$": lambda state: setattr(
        state.topics_by_name["orders"], "wakes", state.topics_by_name["orders"].wakes[1:]
    ),
    "^queues of orders": lambda state: setattr(
        state.topics_by_name["orders"], "half_suffixes", state.topics_by_name["orders"].half_suffixes[1:]
    ),
    "^queues of orders$|mins": lambda state: state.topics_by_name["orders"].mins.pop(),
    "^queues of orders|ends": lambda state: state.topics_by_name["orders"].ends.pop(),
    "^PG: scheduled twice": lambda state: state.producer_groups["PG"].derived.scheduled.update({64: {"T2": None}}),
    "^PG: a settled transaction is scheduled$": lambda state: next(
        iter(state.producer_groups["PG"].derived.scheduled.values())
    ).update(T1=None),
    "^PG/T2: stands under another name$": lambda state: change(state, group="Other"),
    "^PG/T2: stands under another name": lambda state: change(state, tx_id="T3"),
    r"PG/T2: indexes \[\]": lambda state: change(state, halves=(), count=0),
    r"; PG/T2: indexes \[\]; PG: counts [0-9]+ bytes of 0": lambda state: change(state, halves=(), count=1),
    r"PG/T2: indexes \[0, 0\]": lambda state: change(state, halves=t2(state).halves * 2),
    r"PG/T2: indexes \[1, 0\]": lambda state: change(
        state, halves=(replace(t2(state).halves[0], index=1), t2(state).halves[0])
    ),
    f"PG/T2: {limits.TRANSACTION_MESSAGES_MAX + 1} messages": lambda state: change(
        state,
        count=0,
        halves=tuple(replace(t2(state).halves[0], index=at) for at in range(limits.TRANSACTION_MESSAGES_MAX + 1)),
    ),
    "PG/T2: index 1 of 1$": lambda state: change(state, halves=(replace(t2(state).halves[0], index=1),)),
    "PG/T2: nobody will ask$": lambda state: state.derived.group_deadlines.clear(),
    "PG/T2: nobody will ask": lambda state: change(state, next_check=t2(state).next_check + 64),
    "PG/T2: parked or not, and nobody knows": lambda state: change(state, next_check=ParkedCheck.AGE),
    "PG/T2: parked and scheduled": lambda state: change(state, next_check=ParkedCheck.CHECKS),
    "^PG: nobody sees it overdue$": lambda state: setattr(state.producer_groups["PG"].session, "full_until_ms", 7),
    "PG/T2: its bytes at 8192000 are not in the log": lambda state: change(
        state, halves=(replace(t2(state).halves[0], offset=8_192_000),)
    ),
    "PG/T2: its bytes at [0-9]+ are not in the log": lambda state: change(
        state, halves=(replace(t2(state).halves[0], offset=state.log_end),)
    ),
    "PG/T2: its bytes at 64 are not in the log": lambda state: change(
        state, halves=(replace(t2(state).halves[0], offset=64),)
    ),
    "^PG/T2: half index 2$": lambda state: change(
        state, halves=(replace(t2(state).halves[0], half_index=state.next_half_index),)
    ),
    "^PG: somebody waits who never came$": lambda state: state.producer_groups["PG"].session.held_polls.update({9: 1}),
    "^PG: its policy is not looked after$": lambda state: state.derived.policies.update(PG=None),
    "^two verdicts at one position, or out of order$": lambda state: twice(state),
    "^5 queue locks are counted, which are 0$": lambda state: setattr(state.session, "locks_held", 5),
    "more is remembered than allowed": lambda state: object.__setattr__(state.settings, "dedup_ids_max", 0),
    "^more is remembered than allowed$": lambda state: object.__setattr__(
        state.settings, "dedup_ids_max", min(len(state.verdicts), len(state.sent))
    ),
    "a verdict from before the log; a sent message from before the log": lambda state: setattr(
        state, "log_start", state.log_end
    ),
    "^topic orders has an id that is still to be given": lambda state: setattr(
        state, "next_topic_id", next(iter(state.topics_by_id))
    ),
    "an id that is still to be given; topic orders counts": lambda state: state.topics_by_id.update(
        {0: state.topics_by_name["orders"]}
    ),
    "^delayed 7 stands under another offset": lambda state: state.delayed.update(
        {7: state.delayed.pop(next(iter(state.delayed)))}
    ),
    r"delayed \d+: its bytes at 8192000 are not in the log": lambda state: move_delayed(state, 8_192_000),
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


def test_each_fact_is_counted() -> None:
    log = CoreLog()
    nothing = check(log.state)
    log.do(message("M1"))
    one_topic = check(log.state)
    log.do(half("T1"))
    assert (nothing, one_topic) == (15, 21), "five of its own, and one of what it remembers"
    assert check(log.state) > one_topic


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


def test_a_transaction_of_as_many_messages_as_allowed_is_right() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=1 << 22))
    for index in range(limits.TRANSACTION_MESSAGES_MAX):
        log.do(part("T1", index))
    assert len(log.state.producer_groups["PG"].undecided["T1"].halves) == limits.TRANSACTION_MESSAGES_MAX
    check(log.state)


@pytest.mark.parametrize("command", [message("M1"), half("T1")])
def test_what_is_remembered_may_begin_exactly_where_the_log_does(command: SendMessage) -> None:
    log = CoreLog()
    reply = sent(log.do(command))
    if command.properties == half("T1").properties:
        log.do(end("T1", reply))
    positions = [verdict.position for verdict in log.state.verdicts]
    (position,) = positions + [one.log_offset for one in log.state.sent]
    log.state.bases.clear()
    log.state.log_start = position
    check(log.state)
    log.state.log_start += 8
    with pytest.raises(InvariantViolated, match=r"from before the log$"):
        check(log.state)
