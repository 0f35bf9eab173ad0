"""Heartbeats that wait for their groups: what they count, what becomes of what came after them, and of who closes meanwhile."""

from typing import Any

import pytest
from tests.support.services import CoreSequencer, FakePeer

from halfmq import limits
from halfmq.broker.services.groups import GroupsOnUse
from halfmq.broker.services.members import Member, Members, Registered
from halfmq.broker.services.unlike_subscriptions import UnlikeSubscriptions
from halfmq.core.commands import LockQueues, SetTopic, UnlockQueues
from halfmq.core.decision import Locked, Refused
from halfmq.core.engine import Failed
from halfmq.core.session import ConsumerData, Polling
from halfmq.core.state import Subscription
from halfmq.model.settings import BrokerSettings


class Bench:
    def __init__(self, settings: BrokerSettings | None = None) -> None:
        self.sequencer = CoreSequencer(settings)
        self.changed: list[tuple[str, int]] = []
        self.unsupported: list[str] = []
        self.members = Members(
            self.sequencer, GroupsOnUse(self.sequencer), self, UnlikeSubscriptions(),  # type: ignore[arg-type]
            on_changed=lambda group, number: self.changed.append((group, number)),
            on_unsupported=lambda client_id, group, one: self.unsupported.append(one.expression_type),
        )  # fmt: skip

    def now_ms(self) -> int:
        return self.sequencer.core.now_ms

    def heartbeat(
        self, peer: FakePeer, *groups: str, producers: tuple[str, ...] = (), expression: str = "*", kind: str = "TAG"
    ) -> list[Any]:
        """What it is answered."""
        answers: list[Any] = []
        consumers = tuple(
            ConsumerData(group, "CLUSTERING", "CONSUME_PASSIVELY", "CONSUME_FROM_LAST_OFFSET", (Subscription("T", expression, kind, 1),))
            for group in groups
        )  # fmt: skip
        self.members.heartbeat(peer, Member(f"c{peer.number}", 1, "JAVA", producers, consumers), 100, answers.append)
        return answers

    def leave(self, peer: FakePeer, group: str) -> list[Any]:
        answers: list[Any] = []
        self.members.leave(peer, f"c{peer.number}", "", group, 50, answers.append)
        return answers


def test_member_is_known_until_it_leaves_or_its_connection_ends() -> None:
    bench, one, two = Bench(), FakePeer(1), FakePeer(2)
    assert bench.heartbeat(one, "A") == [Registered(None)]
    assert bench.heartbeat(two, "A", kind="SQL92") == [Registered(None)]
    assert (bench.members.client_ids("A"), bench.unsupported) == (["c1", "c2"], ["SQL92"])
    assert (bench.members.connection_of("c2"), bench.changed[-2:]) == (2, [("A", 1), ("A", 2)])
    assert bench.leave(one, "A") == [None]
    assert bench.members.client_ids("A") == ["c2"]
    bench.members.connection_closed(2, keep_locks=False)
    assert (bench.members.client_ids("A"), bench.members.connection_of("c2"), bench.members.subscribed_bytes) == (
        [],
        None,
        0,
    )


def test_heartbeats_that_wait_for_their_groups_cannot_pass_the_bound_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SUBSCRIPTIONS_BYTES_MAX", 50_000)
    monkeypatch.setattr(limits, "SUBSCRIPTIONS_BYTES_FREE", 2_000)
    bench = Bench()
    bench.sequencer.is_held = True
    first = bench.heartbeat(FakePeer(1), "A", expression="x" * 15_000)
    second = bench.heartbeat(FakePeer(2), "B", expression="x" * 15_000)
    assert (first, [type(one) for one in second]) == ([], [Refused])
    assert "of all clients" in second[0].text
    bench.sequencer.release()
    assert first == [Registered(None)]
    assert bench.members.subscribed_bytes < limits.SUBSCRIPTIONS_BYTES_MAX


def test_producer_groups_of_heartbeats_that_wait_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PRODUCER_GROUPS_FREE", 0)
    monkeypatch.setattr(limits, "PRODUCER_GROUPS_EACH", 1)
    bench = Bench(BrokerSettings(undecided_groups_max=4))
    bench.sequencer.is_held = True
    asked = [
        bench.heartbeat(FakePeer(number), f"C{number}", producers=(f"{number}a", f"{number}b")) for number in (1, 2, 3)
    ]
    bench.sequencer.release()
    assert [answers[0].left_out is None for answers in asked] == [True, True, False]
    assert len(bench.sequencer.view.producer_groups) == 4


def test_groups_that_a_connection_joins_while_others_of_it_are_made_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GROUPS_PER_CONNECTION_MAX", 2)
    bench = Bench()
    bench.sequencer.is_held = True
    answers = bench.heartbeat(FakePeer(1), "C", producers=("P",))
    bench.sequencer.note(Polling(1, "me", "Q", 1))
    bench.sequencer.release()
    assert "groups at most" in answers[0].text
    assert (bench.members.client_ids("C"), bench.members.subscribed_bytes) == ([], 0)


def test_what_a_group_that_may_not_be_made_was_to_consume_does_not_count() -> None:
    bench = Bench(BrokerSettings(segment_bytes=1 << 16, auto_create_groups=False))
    assert bench.heartbeat(FakePeer(1), "A") == [Registered(None)]
    assert (bench.members.subscribed_bytes, bench.members.client_ids("A")) == (0, [])


def test_what_came_after_a_heartbeat_that_waits_is_done_although_one_of_it_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench, peer = Bench(), FakePeer(1)
    bench.sequencer.is_held = True
    first = bench.heartbeat(peer, "A")
    broken, last = bench.leave(peer, "gone"), bench.leave(peer, "A")
    assert (bench.members.waiting, peer.kept) == (2, 100)
    left = bench.members._unlike.left

    def breaks(group: str, number: int) -> None:
        if group == "gone":
            raise ZeroDivisionError("a bug")
        left(group, number)

    monkeypatch.setattr(bench.members._unlike, "left", breaks)
    bench.sequencer.release()
    assert (first, broken, last) == ([Registered(None)], [Failed("ZeroDivisionError: a bug")], [None])
    assert (bench.members.waiting, peer.kept, bench.members.client_ids("A")) == (0, 0, [])
    assert "that waited failed" in caplog.text


def test_connection_that_ends_while_its_groups_are_made_is_no_member_and_leaves_nothing() -> None:
    bench, peer = Bench(), FakePeer(1)
    bench.sequencer.is_held = True
    answers = bench.heartbeat(peer, "A") + bench.leave(peer, "A")
    peer.is_open = False
    bench.members.connection_closed(1, keep_locks=False)
    assert (bench.members.waiting, peer.kept, bench.members.subscribed_bytes) == (0, 0, 0)
    bench.sequencer.release()
    assert (answers, bench.members.client_ids("A"), bench.members.software) == ([], [], {})
    assert bench.heartbeat(peer, "B") == [], "its last words are read after its end"
    assert (bench.members._waiting, bench.members.subscribed_bytes, "B" in bench.sequencer.view.groups) == (
        {},
        0,
        False,
    )


def test_locks_are_given_for_queues_that_exist_and_go_with_the_last_connection_of_their_client() -> None:
    bench, peer = Bench(), FakePeer(1)
    bench.heartbeat(peer, "A")
    bench.sequencer.core.do(SetTopic("T", 2, 2, 6))
    answers: list[Any] = []
    bench.members.lock(peer, "A", "c1", [("T", 0), ("T", 9), ("no", 0)], answers.append)
    bench.members.lock(peer, "no group", "c1", [("T", 0)], answers.append)
    assert answers == [Locked((("T", 0),)), Locked(())]
    bench.members.connection_closed(1, keep_locks=True)
    assert bench.sequencer.commands[-1] == LockQueues("A", "c1", (("T", 0),)), "the broker is stopping: it goes on"
    bench.heartbeat(FakePeer(2), "A")
    bench.members.lock(FakePeer(2), "A", "c2", [("T", 1)], answers.append)
    bench.members.connection_closed(2, keep_locks=False)
    assert bench.sequencer.commands[-1] == UnlockQueues("A", "c2", None)
