"""The table of a transaction's life is what the code does: every cell is played."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.core_log import CoreLog, end, half, part, producer, sent
from tests.support.invariants import check
from tests.support.transitions import TRANSITIONS, Cell, Event, Said, Stage

from halfmq.core.commands import (
    CheckNotSent,
    CheckNow,
    CopyForward,
    RequestedVerdict,
    ResolveTransaction,
    SetProducer,
    TrimLog,
)
from halfmq.core.decision import Asked, Done, Noted, ProducerSettingsStored, Refused, SendCheck, Sent, Settled, Why
from halfmq.core.session import CheckDelivered, ConnectionClosed
from halfmq.model.records import Base, EpochStarted, Kind, TopicSet, Trim
from halfmq.model.settings import BrokerSettings, PastLimit, ProducerSettings

TX = "T1"
KINDS = {kind.name.replace("_", ""): kind for kind in Kind}
#: Records that say nothing of a transaction.
OTHERS = (Base, Trim, EpochStarted, TopicSet)


class World:
    """One transaction of two halves, in a stage."""

    def __init__(self, stage: Stage) -> None:
        self.log = CoreLog(BrokerSettings(segment_bytes=65_536, check_interval_ms=400, dedup_window_ms=3_600_000))
        self.first: Sent | None = None
        _REACH[stage](self)
        assert self.stage is stage, (self.stage, stage)
        self.said: Any = Said.NOTHING

    @property
    def stage(self) -> Stage:
        group = self.log.state.producer_groups.get("PG")
        known = group.undecided.get(TX) if group is not None else None
        if known is not None:
            if known.parked:
                return Stage.ASIDE
            return Stage.OPEN if known.count == len(known.halves) else Stage.PARTIAL
        if group is not None and TX in group.settled:
            return Stage.COMMITTED if group.settled[TX].committed else Stage.ROLLED_BACK
        return Stage.PAST if self.first is not None else Stage.ABSENT

    # --- what the test does to it

    def prepare(self, index: int, count: int = 0, **options: Any) -> Any:
        reply = self.log.do(part(TX, index, count, **options))
        if self.first is None and isinstance(reply, Sent):
            self.first = reply
        return reply

    def end(self, wanted: RequestedVerdict, **options: Any) -> Any:
        made_up = Sent(1 << 40, 0, 7, "")
        return self.log.do(end(TX, self.first or made_up, wanted, **options))

    def policy(self, limit: int = 0, past: PastLimit = PastLimit.WAIT, age_ms: int = 0) -> None:
        assert self.log.do(SetProducer(ProducerSettings("PG", limit, past, age_ms))) == ProducerSettingsStored(
            ProducerSettings("PG", limit, past, age_ms)
        )

    def due(self, *, leaves: bool = True) -> list[SendCheck]:
        """Time for the first check; it leaves."""
        self.log.later(80_000)
        checks = [one for one in self.log.tick() if isinstance(one, SendCheck)]
        for one in checks if leaves else ():
            self.log.session(CheckDelivered(one.group, one.tx_id, one.checks, self.log.now_ms))
        return checks

    def connect(self) -> None:
        self.log.session(producer(5, self.log.now_ms))

    def kinds(self, since: int) -> tuple[Kind, ...]:
        """Of the records behind the first ``since``, those about transactions."""
        names = [type(record).__name__ for record in self.log.records[since:] if not isinstance(record, OTHERS)]
        shown = [KINDS[name.removesuffix("Record").upper()] for name in names]
        return tuple(kind for kind in shown if kind is not Kind.PRODUCER_SET)


# --- how each stage is reached


def _whole(world: World) -> None:
    sent(world.prepare(0))
    sent(world.prepare(1, 2))


def _aside(world: World) -> None:
    _whole(world)
    world.policy(age_ms=60_000)
    world.log.run_to(world.log.now_ms + 65_000)
    world.policy()


def _settled(wanted: RequestedVerdict) -> Callable[[World], None]:
    def reach(world: World) -> None:
        _whole(world)
        assert isinstance(world.end(wanted), Settled)

    return reach


def _past(world: World) -> None:
    _settled(RequestedVerdict.COMMIT)(world)
    world.log.roll()
    world.log.roll()
    assert world.log.do(TrimLog(65_536)) == Done()


_REACH: dict[Stage, Callable[[World], Any]] = {
    Stage.ABSENT: lambda world: None,
    Stage.PARTIAL: lambda world: sent(world.prepare(0)),
    Stage.OPEN: _whole,
    Stage.ASIDE: _aside,
    Stage.COMMITTED: _settled(RequestedVerdict.COMMIT),
    Stage.ROLLED_BACK: _settled(RequestedVerdict.ROLLBACK),
    Stage.PAST: _past,
}


# --- events: each gives what there was before it that does not count, does it, and says what was replied


def _part(world: World) -> Any:
    return world.prepare(0 if world.stage in (Stage.ABSENT, Stage.PAST) else 7)


def _last(world: World) -> Any:
    if world.stage in (Stage.ABSENT, Stage.PAST):
        return world.prepare(0, 1)
    return world.prepare(1, 2) if world.stage is Stage.PARTIAL else world.prepare(2, 3)


def _ask(world: World) -> Any:
    world.connect()
    world.log.later(80_000)
    return world.log.do(CheckNow("PG", TX))


def _answer_unknown(world: World) -> Any:
    world.connect()
    assert world.due()
    world.mark()
    return world.end(RequestedVerdict.UNKNOWN, from_check=True)


def _due(world: World) -> Any:
    world.connect()
    world.log.later(80_000)
    world.log.tick()


def _due_nobody(world: World) -> Any:
    world.log.later(80_000)
    world.log.tick()


def _not_sent(world: World) -> Any:
    world.connect()
    world.due()
    world.log.session(ConnectionClosed(5))
    world.mark()
    assert world.log.do(CheckNotSent("PG", TX, 5)) == Done()


def _limit(past: PastLimit) -> Callable[[World], Any]:
    def act(world: World) -> Any:
        world.policy(1, past)
        world.connect()
        world.due()
        world.mark()
        world.log.later(80_000)
        world.log.tick()

    return act


def _age(world: World) -> Any:
    world.policy(age_ms=60_000)
    world.log.later(3 * 86_400_000)
    world.log.tick()


def _carry(world: World) -> Any:
    world.log.roll()
    world.log.roll()
    world.mark()
    start = max(world.log.state.bases)
    while world.log.do(CopyForward(start, 100)) != Done(again=False):
        pass
    assert world.log.do(TrimLog(start)) == Done()


def _restart(world: World) -> Any:
    world.log.restart()


_PLAY: dict[Event, Callable[[Any], Any]] = {
    Event.PART: _part,
    Event.LAST: _last,
    Event.AGAIN: lambda world: world.prepare(0),
    Event.OTHER: lambda world: world.log.do(half("somebody-else", HMQ_TX_ID=TX, HMQ_TX_INDEX="0")),
    Event.COMMIT: lambda world: world.end(RequestedVerdict.COMMIT),
    Event.ROLLBACK: lambda world: world.end(RequestedVerdict.ROLLBACK),
    Event.UNKNOWN: lambda world: world.end(RequestedVerdict.UNKNOWN),
    Event.ANSWER_UNKNOWN: _answer_unknown,
    Event.OPERATOR_COMMIT: lambda world: world.log.do(ResolveTransaction("PG", TX, RequestedVerdict.COMMIT, "ada")),
    Event.OPERATOR_ROLLBACK: lambda world: world.log.do(ResolveTransaction("PG", TX, RequestedVerdict.ROLLBACK, "ada")),
    Event.OPERATOR_ASKS: _ask,
    Event.DUE: _due,
    Event.DUE_NOBODY: _due_nobody,
    Event.NOT_SENT: _not_sent,
    Event.LIMIT_ROLLBACK: _limit(PastLimit.ROLLBACK),
    Event.LIMIT_ASIDE: _limit(PastLimit.PARKED),
    Event.AGE: _age,
    Event.CARRY: _carry,
    Event.RESTART: _restart,
}


class Played(World):
    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.since = len(self.log.records)

    def mark(self) -> None:
        """What was logged until here was to get there."""
        self.since = len(self.log.records)


def said(reply: Any) -> Said | Why:
    match reply:
        case Refused(why):
            return why
        case Sent():
            return Said.SENT
        case Settled(_, _, _, _, repeated):
            return Said.REPEATED if repeated else Said.SETTLED
        case Noted():
            return Said.NOTED
        case Asked():
            return Said.ASKED
        case None:
            return Said.NOTHING
        case _:
            raise AssertionError(reply)


def test_the_table_is_whole() -> None:
    assert set(TRANSITIONS) == set(Event)
    for event, row in TRANSITIONS.items():
        assert set(row) == set(Stage), event


@pytest.mark.parametrize("stage", Stage, ids=lambda stage: stage.name)
@pytest.mark.parametrize("event", Event, ids=lambda event: event.name)
def test_the_code_does_what_the_cell_says(event: Event, stage: Stage) -> None:
    cell = TRANSITIONS[event][stage]
    if cell is None:
        return
    world = Played(stage)
    reply = _PLAY[event](world)
    kinds = world.kinds(world.since)
    if event is Event.CARRY:
        kinds = tuple(dict.fromkeys(kinds))  # one for each of its halves
    assert Cell(kinds, said(reply), world.stage) == cell
    check(world.log.state)


def test_one_that_was_parked_while_incomplete_takes_what_is_missing_and_stays_so() -> None:
    world = Played(Stage.PARTIAL)
    _age(world)
    world.policy()
    world.mark()
    assert world.stage is Stage.ASIDE
    assert said(world.end(RequestedVerdict.COMMIT)) is Why.INCOMPLETE
    assert said(world.prepare(0)) is Said.SENT
    assert world.kinds(world.since) == ()
    assert said(world.prepare(1, 2)) is Said.SENT
    assert (world.kinds(world.since), world.stage) == ((Kind.HALF,), Stage.ASIDE)
    assert said(world.prepare(2, 3)) is Why.STILL_UNDECIDED, "from here on it is as the table says"
    assert said(world.end(RequestedVerdict.COMMIT)) is Said.SETTLED
    check(world.log.state)


def test_one_that_was_parked_while_incomplete_is_incomplete_again_when_an_operator_asks() -> None:
    world = Played(Stage.PARTIAL)
    _age(world)
    world.policy()
    assert said(_ask(world)) is Said.ASKED
    assert world.stage is Stage.PARTIAL


def test_only_undecided_stages_ever_change_but_for_a_new_transaction() -> None:
    undecided = {Stage.PARTIAL, Stage.OPEN, Stage.ASIDE}
    for event, row in TRANSITIONS.items():
        for stage, cell in row.items():
            if cell is not None and cell.next is not stage and stage not in undecided:
                forgotten = event is Event.CARRY and cell.next is Stage.PAST
                new = stage in (Stage.ABSENT, Stage.PAST) and cell.records == (Kind.HALF,)
                assert forgotten or new, (event, stage)


def test_a_verdict_comes_only_from_an_end_an_operator_or_a_rollback_policy() -> None:
    settling = {
        event for event, row in TRANSITIONS.items() for cell in row.values() if cell and cell.reply is Said.SETTLED
    }
    assert settling == {Event.COMMIT, Event.ROLLBACK, Event.OPERATOR_COMMIT, Event.OPERATOR_ROLLBACK}
    by_itself = {
        event
        for event, row in TRANSITIONS.items()
        for cell in row.values()
        if cell and {Kind.COMMITTED, Kind.ROLLED_BACK} & set(cell.records) and event not in settling
    }
    assert by_itself == {Event.LIMIT_ROLLBACK}
