"""A decision is a question: it changes nothing, and one that raises has left nothing behind (promise 7 for ticks: a check that
was to be sent and was not is still due). Records change no session state: events do.

Goal: no decision or deadline changes state, and a decision that is made again is the same. Method: random lives, in which each command is
first decided twice by one that raises when it is done, however it came out; the whole of the state, durable, derived and session, is
compared byte by byte.
"""

import io
import pickle
from collections import Counter
from collections.abc import Iterable
from types import GeneratorType
from typing import Any

import pytest
from tests.properties.test_core_redo import Life
from tests.support.core_log import CoreLog

from halfmq.core import engine as engine_module
from halfmq.core.apply import _APPLY
from halfmq.core.commands import Command, CommitOffset, LockQueues, SendMessage, Tick
from halfmq.core.decide import DECIDE
from halfmq.core.decision import Decision, Failed
from halfmq.core.engine import DecisionFailed, next_deadline_ms
from halfmq.core.queues import send as send_module
from halfmq.core.state import State, Topic
from halfmq.model.records import (
    Checked,
    Committed,
    HalfRecord,
    OffsetsCommitted,
    ProducerSet,
    Record,
    RolledBack,
    Trim,
)

#: As many as meet every command, which the tests count.
SEEDS = 4


class Planted(Exception):
    pass


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        return id(value) if isinstance(value, GeneratorType) else None


def whole(state: object) -> bytes:
    """Everything that the state, or a part of it, holds."""
    out = io.BytesIO()
    _Pickler(out, protocol=5).dump(state)
    return out.getvalue()


class RaisingLog(CoreLog):
    """Each command fails once before it is done."""

    raised: Counter[type]

    def decide(self, command: Command) -> Decision:
        kind = type(command)
        real = DECIDE[kind]
        before: list[bytes] = []
        made_again: list[bool] = []

        def raises(state: State, command: Command, now_ms: int) -> Any:
            before.append(whole(state))
            first = real(state, command, now_ms)
            made_again.append(first == real(state, command, now_ms))
            raise Planted(kind.__name__)

        DECIDE[kind] = raises
        try:
            step = self.engine.step([command], self.now_ms)
        finally:
            DECIDE[kind] = real
        asked = whole(self.state)
        if before:
            assert asked == before[-1], f"{command!r:.300} failed, and changed the state"
            assert isinstance(step.replies[0], Failed)
            assert any(isinstance(problem, DecisionFailed) for problem in step.problems)
            assert made_again == [True], f"{command!r:.300} was decided in another way the second time"
            self.raised[kind] += 1
        next_deadline_ms(self.state)
        assert whole(self.state) == asked, f"the deadline after {command!r:.300} changed the state"
        return super().decide(command)


@pytest.fixture
def raised(monkeypatch: pytest.MonkeyPatch) -> Counter[type]:
    raised: Counter[type] = Counter()
    monkeypatch.setattr(RaisingLog, "raised", raised, raising=False)
    return raised


def test_who_raises_at_every_decision_leaves_the_state_as_it_was(raised: Counter[type]) -> None:
    for seed in range(SEEDS):
        life = Life(seed, RaisingLog)
        life.live()
        life.look_at_records()
    assert {kind for kind, times in raised.items() if times >= 5} >= {SendMessage, Tick, CommitOffset, LockQueues}
    assert len(raised) >= len(DECIDE) - 3, f"not tried: {[kind.__name__ for kind in DECIDE if kind not in raised]}"


def test_a_decision_that_takes_its_turn_at_once_is_noticed(
    raised: Counter[type], monkeypatch: pytest.MonkeyPatch
) -> None:
    def next_queue(topic: Topic) -> int:
        topic.session.round_robin_index += 1
        return topic.session.round_robin_index % max(1, topic.write_queues)

    monkeypatch.setattr(send_module, "next_queue", next_queue)
    with pytest.raises(AssertionError, match="changed the state"):
        Life(0, RaisingLog).live()


def sessions(state: State) -> dict[str, bytes]:
    """Every part of the session state by name. The engine sets ``sender`` for ``apply``; a new group gets the next number."""
    own = {name: getattr(state.session, name) for name in state.session.__slots__}
    del own["sender"], own["groups_numbered"]
    parts: dict[str, Any] = {f"session {name}": value for name, value in own.items()}
    parts |= {f"topic {topic.topic_id}": topic.session for topic in state.topics_by_id.values()}
    for group in state.producer_groups.values():
        parts[f"group {group.name}"] = group.session
        if group.policy is not None:
            parts[f"policy {id(group.policy)}"] = group.policy.session
    return {name: whole(part) for name, part in parts.items()}


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> Counter[type]:
    applied: Counter[type] = Counter()
    real = engine_module.apply_all

    def apply_all(state: State, records: Iterable[Record]) -> None:
        before = sessions(state)
        real(state, records)
        after = sessions(state)
        changed = [name for name in before.keys() & after.keys() if before[name] != after[name]]
        assert not changed, f"{records!r:.300} changed {changed}"
        applied.update(map(type, records))

    monkeypatch.setattr(engine_module, "apply_all", apply_all)
    return applied


def test_records_change_no_session_state(applied: Counter[type]) -> None:
    for seed in range(SEEDS):
        Life(seed, CoreLog).live()
    assert applied.keys() >= {HalfRecord, Committed, RolledBack, Checked, ProducerSet, OffsetsCommitted, Trim}, applied


def test_a_record_that_changes_session_state_is_noticed(
    applied: Counter[type], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(_APPLY, HalfRecord, lambda state, record: state.session.asking.update({record.group: None}))
    with pytest.raises(AssertionError, match=r"changed .*session asking"):
        Life(0, CoreLog).live()
