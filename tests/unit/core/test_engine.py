"""Steps: where they end, what they leave when something goes wrong, and that replay comes to the same."""

from collections.abc import Sequence
from typing import Any

import pytest
from tests.support.core_log import START_MS, CoreLog, WholeDisk, end, half, half_batch, message, refused, sent, winner
from tests.support.durable_digest import durable_digest
from tests.support.invariants import check

from halfmq import limits
from halfmq.core import engine as engine_module
from halfmq.core.commands import (
    Command,
    CopyForward,
    DecideBatch,
    EnsureGroup,
    PrepareBatch,
    RequestedVerdict,
    SendMessage,
)
from halfmq.core.decide import DECIDE
from halfmq.core.decision import BatchDecided, Decision, Failed, Refused, Sent, Settled, Why
from halfmq.core.engine import PACE_COMMANDS, Batch, DecisionFailed, Engine, FitsNowhere, NoNextSegment, NotCopied, Step
from halfmq.core.state import State
from halfmq.errors import InvariantViolated, StoreFull
from halfmq.model.placement import segment_start
from halfmq.model.query_batch import QueryBatch
from halfmq.model.records import BATCH_HEADER_BYTES, Base, Committed, CopiedHalf
from halfmq.model.settings import BrokerSettings

SEGMENT = 65_536


class Disk(WholeDisk):
    full = False
    damaged: frozenset[int] = frozenset()
    #: The end of the log, as far as steps were written.
    written_until = 0

    def why_not_copied(self, source: int, message_bytes: int) -> str | None:
        return "its CRC is wrong" if source in self.damaged else None

    def why_not_shown(self, offset: int, messages: int) -> str | None:
        if offset >= self.written_until:
            return "the log does not reach there"
        return "its entries do not have their checksum" if offset in self.damaged else None

    def reserve_roll(self) -> None:
        if self.full:
            raise StoreFull("no room for a log segment")


class Pace:
    """Ends the step behind so many looks."""

    def __init__(self, looks: int) -> None:
        self.left = looks
        self.asked: list[type] = []

    def before(self) -> None:
        pass

    def after_command(self, kind: type[Command]) -> bool:
        self.asked.append(kind)
        self.left -= 1
        return self.left <= 0


class Driven:
    """An engine, and the batches that its steps came to."""

    def __init__(self, segment_bytes: int = SEGMENT) -> None:
        self.settings = BrokerSettings(segment_bytes=segment_bytes)
        self.disk = Disk()
        self.engine = Engine(State(self.settings), self.disk)
        day_ms = 86_400_000
        self.batches = [self.engine.begin_epoch(1, 0, START_MS, plausible_ms=day_ms, trust_clock=True)]

    def step(self, *commands: Command, pace: Pace | None = None) -> Step:
        step = self.engine.step(commands, START_MS, pace)
        if step.batch is not None:
            self.batches.append(step.batch)
            self.disk.written_until = step.batch.end
        return step

    def all(self, commands: Sequence[Command]) -> list[Any]:
        replies: list[Any] = []
        while len(replies) < len(commands):
            replies += self.step(*commands[len(replies) :]).replies
        return replies

    def replayed(self) -> State:
        other = Engine(State(self.settings), self.disk)
        for batch in self.batches:
            other.replay(batch.offset, batch.broker_time_ms, batch.records)
        return other.state

    def compare(self) -> None:
        check(self.engine.state)
        assert durable_digest(self.replayed()) == durable_digest(self.engine.state)


def test_each_command_of_a_step_sees_what_the_ones_before_it_did() -> None:
    driven = Driven()
    step = driven.step(half("T1"), half("T1"), end("T1", CoreLog().do(half("T1"))))
    first, again, settled = step.replies
    assert first == again
    assert step.batch is not None
    assert [type(record).__name__ for record in step.batch.records] == ["TopicSet", "HalfRecord"]
    assert isinstance(settled, Refused), "offsets of another log"
    step = driven.step(end("T1", first))
    assert isinstance(step.replies[0], Settled)
    driven.compare()


def test_a_step_that_logs_nothing_has_no_batch_and_changes_no_end() -> None:
    driven = Driven()
    before = driven.engine.state.log_end
    step = driven.step(end("T1", sent(CoreLog().do(half("T1")))))
    assert step.batch is None
    assert driven.engine.state.log_end == before


def test_a_step_ends_in_front_of_what_needs_the_next_segment() -> None:
    driven = Driven()
    commands = [message(f"M{number}", body=bytes(9_000)) for number in range(40)]
    assert {type(reply).__name__ for reply in driven.all(commands)} == {"Sent"}
    for batch in driven.batches:
        assert segment_start(batch.offset, SEGMENT) == segment_start(batch.end - 1, SEGMENT)
        assert isinstance(batch.records[0], Base) == (batch.offset % SEGMENT == 0)
    assert sum(batch.offset % SEGMENT == 0 for batch in driven.batches) >= 5
    driven.compare()


def test_what_is_to_be_copied_was_in_the_batch_of_an_earlier_step() -> None:
    driven = Driven()
    first = sent(driven.step(half("T1")).replies[0])
    commands: list[Command] = [message(f"M{number}", body=bytes(9_000)) for number in range(8)]
    driven.all([*commands, end("T1", first)])
    (copied,) = [record for batch in driven.batches for record in batch.records if isinstance(record, CopiedHalf)]
    at = [number for number, batch in enumerate(driven.batches) if any(copied is record for record in batch.records)]
    source = [number for number, batch in enumerate(driven.batches) if batch.offset <= copied.source < batch.end]
    assert source < at
    driven.compare()


def test_a_batch_that_is_large_enough_ends_the_step() -> None:
    driven = Driven(segment_bytes=1 << 28)
    commands = [message(f"M{number}", body=bytes(1 << 20)) for number in range(40)]
    driven.all(commands)
    sizes = [batch.end - batch.offset for batch in driven.batches]
    assert max(sizes) <= limits.BATCH_BYTES_MAX + (2 << 20)
    assert len(sizes) >= 3


def test_the_pace_is_asked_behind_what_may_take_long_and_behind_many_others() -> None:
    driven = Driven()
    pace = Pace(3)
    step = driven.step(*[EnsureGroup(f"G{number}") for number in range(9)], pace=pace)
    assert (len(step.replies), len(pace.asked)) == (3, 3)
    pace = Pace(1)
    step = driven.step(*[half(f"T{number}") for number in range(PACE_COMMANDS + 20)], pace=pace)
    assert len(step.replies) == PACE_COMMANDS
    driven.compare()


# --- what goes wrong ---------------------------------------------------------------------------------------------


def test_a_decision_that_raises_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    driven = Driven()
    real = DECIDE[EnsureGroup]

    def broken(state: State, command: Any, now_ms: int) -> Any:
        if command.name == "G1":
            raise KeyError("a bug")
        return real(state, command, now_ms)

    monkeypatch.setitem(DECIDE, EnsureGroup, broken)
    step = driven.step(EnsureGroup("G0"), EnsureGroup("G1"), EnsureGroup("G2"))
    assert [type(reply) for reply in step.replies][1] is Failed
    assert set(driven.engine.state.groups) == {"G0", "G2"}
    (problem,) = step.problems
    assert isinstance(problem, DecisionFailed)
    assert problem.command == EnsureGroup("G1")
    driven.compare()


def test_an_invariant_that_is_violated_stops_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise InvariantViolated("the log and memory differ")

    monkeypatch.setitem(DECIDE, EnsureGroup, broken)
    with pytest.raises(InvariantViolated):
        Driven().step(EnsureGroup("G0"))


def counted(monkeypatch: pytest.MonkeyPatch, kind: type) -> list[Any]:
    """The commands of this type that are decided from now on, each as often as it is."""
    decided: list[Any] = []
    real = DECIDE[kind]

    def count(state: State, command: Any, now_ms: int) -> Any:
        decided.append(command)
        return real(state, command, now_ms)

    monkeypatch.setitem(DECIDE, kind, count)
    return decided


@pytest.mark.parametrize("alone", [True, False])
def test_what_does_not_fit_is_decided_twice_and_what_fits_once(monkeypatch: pytest.MonkeyPatch, alone: bool) -> None:
    driven = Driven()
    decided = counted(monkeypatch, SendMessage)
    replies = []
    commands = [message(f"M{number}", body=bytes(9_000)) for number in range(20)]
    while len(replies) < len(commands):
        step = driven.step(*(commands[len(replies) :][:1] if alone else commands[len(replies) :]))
        assert not step.problems
        assert step.replies or not alone
        replies += step.replies
    assert {type(reply).__name__ for reply in replies} == {"Sent"}
    rolls = sum(batch.offset % SEGMENT == 0 for batch in driven.batches[1:])
    assert (rolls, len(decided)) == (2, len(commands) + rolls)
    driven.compare()


def test_a_segment_is_filled_to_its_last_byte() -> None:
    driven = Driven()
    (size,) = [record.size for record in driven.step(message("M0")).batch.records[1:]]
    commands = [message(f"M{number}") for number in range(1, 10)]
    while driven.engine.state.log_end % SEGMENT < SEGMENT - 3 * size:
        driven.step(message(f"L{driven.engine.state.log_end}"))
    left = SEGMENT - driven.engine.state.log_end % SEGMENT - BATCH_HEADER_BYTES
    assert driven.step(message("F0", body=bytes(left - size + len(b"body")))).batch.end == SEGMENT
    driven.all(commands)
    assert driven.batches[-2].end == SEGMENT
    driven.compare()


def test_a_rejected_send_begins_no_segment() -> None:
    driven = Driven()
    driven.all([message(f"M{number}", body=bytes(9_000)) for number in range(6)])
    end_before = driven.engine.state.log_end
    refused(driven.step(message("large", body=bytes(SEGMENT // 2))).replies[0], Why.MESSAGE_ILLEGAL)
    assert driven.engine.state.log_end == end_before


def test_whoever_comes_first_after_a_step_that_needs_the_next_segment_is_decided_there() -> None:
    """The sequencer may put a command before those that wait."""
    driven = Driven()
    commands = [message(f"M{number}", body=bytes(9_000)) for number in range(8)]
    done = len(driven.step(*commands).replies)
    assert done < 8
    step = driven.step(EnsureGroup("G"), *commands[done:])
    assert len(step.replies) == 1 + 8 - done
    assert step.batch is not None
    assert isinstance(step.batch.records[0], Base)
    driven.compare()


def test_a_decision_that_begins_a_segment_begins_one_and_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    driven = Driven()
    real = DECIDE[EnsureGroup]
    monkeypatch.setitem(
        DECIDE, EnsureGroup, lambda *arguments: Decision._make(real(*arguments))._replace(begins_segment=True)
    )
    driven.all([EnsureGroup("G0"), message("M0"), EnsureGroup("G1"), EnsureGroup("G1"), EnsureGroup("G2")])
    begun = [batch for batch in driven.batches[1:] if batch.offset % SEGMENT == 0]
    assert [[type(record).__name__ for record in batch.records[:2]] for batch in begun] == [["Base", "GroupSet"]] * 3
    driven.compare()


def test_what_fits_nowhere_fails_alone_and_rolls_once(monkeypatch: pytest.MonkeyPatch) -> None:
    driven = Driven()
    fits = engine_module.fits
    driven.all([message("M0", body=bytes(9_000))])
    monkeypatch.setattr(Engine, "_end_max", lambda engine: 0)
    monkeypatch.setattr(
        engine_module, "fits", lambda end, is_open, size, segment: size < 8_000 and fits(end, is_open, size, segment)
    )
    problems, replies = [], []
    for number in range(5):
        while len(replies) < 2 * number:
            step = driven.step(*[message(f"N{number}", body=bytes(9_000)), message(f"S{number}")][len(replies) % 2 :])
            replies += step.replies
            problems += step.problems
    assert [type(reply) for reply in replies] == [Failed, Sent] * 4
    assert [type(problem) for problem in problems] == [FitsNowhere] * 4
    assert sum(batch.offset % SEGMENT == 0 for batch in driven.batches) == 2, "rolled once in vain, and no more"
    assert type(driven.all([message("small")])[0]).__name__ == "Sent"
    driven.compare()


def test_no_room_for_a_segment_is_a_refusal_and_is_said_once() -> None:
    driven = Driven()
    first = sent(driven.step(half("T1")).replies[0])
    driven.disk.full = True
    problems, replies = [], []
    for number in range(20):
        step = driven.step(message(f"M{number}", body=bytes(9_000)))
        problems += step.problems
        replies += step.replies
    full = [refused(reply, Why.STORE_FULL) for reply in replies if not isinstance(reply, Sent)]
    assert len(full) >= 10
    assert "no room" in full[0].text
    assert [type(problem) for problem in problems] == [NoNextSegment]
    assert driven.engine.state.session.disk_full
    assert isinstance(driven.step(end("T1", first)).replies[0], Settled), "verdicts go on"
    driven.compare()


def test_a_commit_of_a_damaged_half_is_refused_and_a_rollback_is_not() -> None:
    driven = Driven()
    first = sent(driven.step(half("T1")).replies[0])
    driven.all([message(f"M{number}", body=bytes(9_000)) for number in range(8)])
    driven.disk.damaged = frozenset({first.log_offset})
    step = driven.step(end("T1", first))
    assert isinstance(step.replies[0], Failed)
    assert "roll the transaction back, which needs no copy" in step.replies[0].text
    (problem,) = step.problems
    assert isinstance(problem, NotCopied)
    assert problem.source == first.log_offset
    step = driven.step(CopyForward(SEGMENT, 256))
    assert isinstance(step.replies[0], Failed)
    assert isinstance(driven.step(end("T1", first, RequestedVerdict.ROLLBACK)).replies[0], Settled)
    assert not [record for batch in driven.batches for record in batch.records if isinstance(record, Committed)]
    driven.compare()


def decided_by(*half_batches: PrepareBatch) -> DecideBatch:
    return DecideBatch(1, "PG", QueryBatch("q1", 0, "r1"), b"d" * 16, (winner(*half_batches),))


@pytest.mark.parametrize("steps", [1, 2])
def test_a_batch_is_decided_also_in_the_step_that_prepares_it(steps: int) -> None:
    """What a step wrote is not in the log before it ends: nothing of it can be read, and nothing of it is damaged."""
    driven = Driven()
    found = [half_batch(index=index) for index in range(2)]
    commands: list[Command] = [*found, decided_by(*found)]
    if steps == 2:
        driven.step(commands.pop(0))
    reply = driven.step(*commands).replies[-1]
    assert isinstance(reply, BatchDecided), reply
    driven.compare()


def test_a_decision_on_damaged_entries_is_refused_until_they_are_repaired() -> None:
    driven = Driven()
    found = half_batch()
    first = sent(driven.step(found).replies[0])
    driven.disk.damaged = frozenset({first.log_offset})
    step = driven.step(decided_by(found))
    assert isinstance(step.replies[0], Failed)
    assert "its entries do not have their checksum" in step.replies[0].text
    (problem,) = step.problems
    assert isinstance(problem, NotCopied)
    assert problem.source == first.log_offset
    driven.disk.damaged = frozenset()
    assert isinstance(driven.step(decided_by(found)).replies[0], BatchDecided)
    driven.compare()


def test_a_look_at_the_disk_that_raises_fails_its_command_alone() -> None:
    driven = Driven()
    first = sent(driven.step(half("T1")).replies[0])
    driven.all([message(f"M{number}", body=bytes(9_000)) for number in range(8)])

    def look(source: int, message_bytes: int) -> str | None:
        raise OSError("the disk is gone")

    driven.disk.why_not_copied = look  # type: ignore[method-assign]
    step = driven.step(end("T1", first), half("T2"))
    assert [type(reply) for reply in step.replies] == [Failed, Sent]
    assert [type(problem) for problem in step.problems] == [DecisionFailed]
    del driven.disk.why_not_copied
    assert isinstance(driven.step(end("T1", first)).replies[0], Settled)
    driven.compare()


def test_replay_takes_batches_in_their_order_only() -> None:
    driven = Driven()
    driven.step(half("T1"))
    driven.step(half("T2"))
    other = Engine(State(driven.settings), driven.disk)
    first, second, third = driven.batches

    def replay(batch: Batch) -> None:
        other.replay(batch.offset, batch.broker_time_ms, batch.records)

    replay(first)
    with pytest.raises(InvariantViolated):
        replay(third)
    assert second.end == third.offset
