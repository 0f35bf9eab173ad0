"""Members of groups: what a heartbeat registers, in which order, within which bounds; and what is left of those who go."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.services import CoreSequencer, FakePeer

from halfmq import limits
from halfmq.broker.services.members import Member, Members, MembersChanged, Registered
from halfmq.broker.services.subscription_conflicts import SubscriptionConflicts
from halfmq.broker.services.topics import GroupsOnUse
from halfmq.core.commands import DeleteGroup, EnsureGroup, SetTopic, UnlockQueues
from halfmq.core.decision import Failed, Why
from halfmq.core.session import ConsumerData, Polling
from halfmq.core.state import Subscription
from halfmq.model.settings import BrokerSettings
from halfmq.runtime.log_throttle import LogThrottle


def heartbeat(
    client_id: str = "me",
    *groups: str,
    producers: tuple[str, ...] = (),
    topic: str = "T",
    expression: str = "*",
    kind: str = "TAG",
    version: int = 1,
) -> Member:
    subscriptions = (Subscription(topic, expression, kind, version),)
    consumers = [ConsumerData(group, "CLUSTERING", "PUSH", "FIRST", subscriptions) for group in groups]
    return Member(client_id, 409, "JAVA", producers, tuple(consumers))


class Bench:
    def __init__(self, settings: BrokerSettings | None = None) -> None:
        self.sequencer = CoreSequencer(settings)
        self.changed: list[tuple[str, int]] = []
        self.log_throttle = LogThrottle(lambda: 0.0, rest_s=0.0)
        self.unsupported: list[tuple[str, str, Subscription]] = []
        self.passed_ms = 5_000
        self.waiting = 0
        self.connected: dict[int, FakePeer] = {}
        self.members = Members(
            self.sequencer,  # type: ignore[arg-type]
            GroupsOnUse(self.sequencer),  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            on_unsupported=lambda *what: self.unsupported.append(what),
        )
        self.session = self.sequencer.view.session

    def now_ms(self) -> int:
        return self.passed_ms

    def push(self, number: int, what: MembersChanged) -> bool:
        self.changed.append((what.group, number))
        return True

    def register(self, peer: FakePeer, said: Member, *, memory_bytes: int = 100) -> list[Any]:
        """The answers, of which there is at most one."""
        answers: list[Any] = []
        self.members.heartbeat(peer, said, memory_bytes, answers.append)
        return answers

    def leave(self, peer: FakePeer, group: str = "", producer_group: str = "") -> list[Any]:
        answers: list[Any] = []
        self.members.leave(peer, "me", producer_group, group, 10, answers.append)
        return answers

    def lock(self, client_id: str, *queues: int, group: str = "C", topic: str = "T") -> list[int]:
        answers: list[Any] = []
        wanted = [(topic, queue) for queue in queues]
        self.members.lock(FakePeer(), group, client_id, wanted, answers.append)
        return [queue for _, queue in answers[0].queues]


# --- heartbeats -----------------------------------------------------------------------------------------------------


def test_a_heartbeat_makes_the_groups_that_are_new_and_tells_the_members() -> None:
    bench = Bench()
    assert bench.register(FakePeer(1), heartbeat("one", "C", "D", producers=("P",))) == [Registered(None)]
    assert {"C", "D"} <= bench.sequencer.view.groups.keys()
    assert bench.changed == [("C", 1), ("D", 1)]
    bench.changed.clear()
    bench.register(FakePeer(2), heartbeat("two", "C"))
    assert bench.changed == [("C", 1), ("C", 2)]
    bench.changed.clear()
    bench.register(FakePeer(2), heartbeat("two", "C"))
    assert bench.changed == [], "nothing changed"
    assert bench.members.client_ids("C") == ["one", "two"]
    assert bench.members.client_ids("Nobody") == []
    assert bench.members.software[1] == (409, "JAVA")
    assert bench.sequencer.looks >= 3, "a check may be due now"


def test_a_heartbeat_is_answered_when_its_groups_are_durable() -> None:
    bench = Bench()
    bench.sequencer.is_held = True
    answers = bench.register(FakePeer(), heartbeat("me", "C"))
    assert answers == []
    assert not bench.session.consumers
    bench.sequencer.release()
    assert answers == [Registered(None)]


def test_a_heartbeat_waits_for_the_disk_only_if_it_names_what_a_crash_reverts() -> None:
    bench = Bench()
    assert bench.register(FakePeer(1), heartbeat("one", "C", producers=("P",))) == [Registered(None)]
    bench.sequencer.is_held = True
    assert bench.register(FakePeer(1), heartbeat("one", "C", producers=("P",))) == [Registered(None)]
    assert bench.register(FakePeer(2), heartbeat("two", producers=("Q",))) == [Registered(None)]
    bench.sequencer.submit(EnsureGroup("D"), None)
    assert bench.register(FakePeer(3), heartbeat("three", "C", "D")) == []
    for number in (1, 3):
        bench.members.connection_closed(number, keep_locks=False)
    bench.sequencer.submit(DeleteGroup("C", False), None)
    bench.sequencer.submit(EnsureGroup("C"), None)
    answers = bench.register(FakePeer(4), heartbeat("one", "C"))
    assert answers == [], "it is another group of that name"
    bench.sequencer.release()
    assert answers == [Registered(None)]


def test_peers_that_name_the_same_new_groups_in_another_order_are_members_of_all() -> None:
    bench = Bench()
    bench.sequencer.is_held = True
    asked = [
        bench.register(FakePeer(number), heartbeat(name, *groups))
        for number, (name, groups) in enumerate((("one", "CDE"), ("two", "EDC")))
    ]
    for _ in range(9):  # a group is durable before the next one is asked for
        bench.sequencer.release()
        bench.sequencer.is_held = True
    assert asked == [[Registered(None)]] * 2
    assert [bench.members.client_ids(group) for group in "CDE"] == [["one", "two"]] * 3


def test_a_group_that_may_not_be_made_is_left_out_and_takes_no_memory() -> None:
    bench = Bench(BrokerSettings(auto_create_groups=False))
    assert bench.register(FakePeer(), heartbeat("me", "C")) == [Registered(None)]
    assert bench.members.client_ids("C") == []
    assert bench.members.subscribed_bytes == 0


@pytest.mark.parametrize(
    ("said", "named"),
    [
        (heartbeat("c" * (limits.CLIENT_ID_CHARS_MAX + 1)), "client id"),
        (heartbeat("me", "C", topic="T" * 256), "topic of 256"),
        (heartbeat("me", "C", expression="a" * (limits.EXPRESSION_CHARS_MAX + 1)), "expression of"),
        (heartbeat("me", "C", kind="x" * 33), "type"),
        (heartbeat("me", "C", version=1 << 63), "version"),
        (heartbeat(producers=("P", "")), "producer group"),
        (heartbeat(producers=("P", "no spaces")), "producer group"),
        (heartbeat(producers=("P", "x" * 121)), "producer group"),
        (heartbeat(producers=tuple(map(str, range(limits.GROUPS_PER_CONNECTION_MAX + 1)))), "groups at most"),
    ],
)
def test_what_would_be_kept_has_bounds_and_nothing_of_the_heartbeat_is_taken(said: Member, named: str) -> None:
    bench = Bench()
    (refused,) = bench.register(FakePeer(), said)
    assert (refused.why, named in refused.text) == (Why.INVALID_PARAMETER, True)
    assert not bench.session.consumers
    assert not bench.sequencer.view.producer_groups
    assert not bench.sequencer.view.groups


def test_groups_of_a_connection_are_bounded_over_its_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GROUPS_PER_CONNECTION_MAX", 4)
    bench, peer = Bench(), FakePeer()
    for said in (heartbeat("me", "C", producers=("P1", "P2")), heartbeat("me", "C"), heartbeat(producers=("P3",))):
        assert bench.register(peer, said) == [Registered(None)]
    assert bench.register(peer, heartbeat(producers=("P4",)))[0].why is Why.INVALID_PARAMETER
    assert bench.register(FakePeer(2), heartbeat(producers=("P4",))) == [Registered(None)]


def test_a_subscription_whose_type_is_not_offered_is_registered_and_named() -> None:
    bench = Bench()
    assert bench.register(FakePeer(), heartbeat("me", "C", expression="a > 5", kind="SQL92")) == [Registered(None)]
    assert bench.unsupported == [("me", "C", Subscription("T", "a > 5", "SQL92", 1))]


def test_new_producer_groups_are_left_out_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PRODUCER_GROUPS_FREE", 3)
    monkeypatch.setattr(limits, "PRODUCER_GROUPS_PER_CONNECTION_EXEMPT", 2)
    bench, two = Bench(BrokerSettings(undecided_groups_max=2)), FakePeer(2)
    assert bench.register(FakePeer(1), heartbeat(producers=("P0", "P1", "P2", "P3", "P4"))) == [Registered(None)]
    (left,) = bench.register(two, heartbeat("two", "C", producers=("another", "third", "P1")))
    assert "--undecided-groups-max" in left.left_out
    assert bench.members.client_ids("C") == ["two"], "what it consumes is registered all the same"
    assert list(bench.session.produces[2]) == ["P1"], "that is known"
    assert bench.register(two, heartbeat("two", producers=("another",))) == [Registered(None)], "who is in few is taken"
    assert bench.register(two, heartbeat("two", producers=("third",)))[0].left_out
    bench.leave(two, producer_group="P1")
    assert bench.register(two, heartbeat("two", producers=("third",))) == [Registered(None)]


# --- bounds over all peers, also of heartbeats that wait -------------------------------------------------------------


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SUBSCRIPTIONS_BYTES_PER_CONNECTION_MAX", 40_000)
    monkeypatch.setattr(limits, "SUBSCRIPTIONS_BYTES_MAX", 60_000)
    monkeypatch.setattr(limits, "SUBSCRIPTIONS_BYTES_PER_CONNECTION_EXEMPT", 4_000)


LONG = "x" * 15_000


@pytest.mark.usefixtures("small")
def test_subscriptions_are_bounded_for_each_peer_and_for_all() -> None:
    bench, one, two = Bench(), FakePeer(1), FakePeer(2, user="other")
    for _ in range(2):  # the same again accepts no more
        assert bench.register(one, heartbeat("one", "A", expression=LONG)) == [Registered(None)]
        assert 30_000 < bench.members.subscribed_bytes < 40_000
    (refused,) = bench.register(one, heartbeat("one", "B", expression=LONG))
    assert "per connection" in refused.text
    (refused,) = bench.register(two, heartbeat("two", "B", expression=LONG))
    assert f"there are {bench.members.subscribed_bytes} of 60000 bytes of subscriptions" in refused.text
    assert f"{bench.members.subscribed_bytes} of them of address 10.0.0.7: a connection may have 4000" in refused.text
    assert bench.register(FakePeer(3), heartbeat("three", "C")) == [Registered(None)], "little is always taken"
    bench.members.connection_closed(1, keep_locks=False)
    assert bench.members.subscribed_bytes < 4_000
    assert bench.register(two, heartbeat("two", "B", expression=LONG)) == [Registered(None)]
    assert bench.leave(two, "B") == [None]
    assert bench.members.subscribed_bytes < 4_000
    assert list(bench.members._subscribed) == [3], "nothing is kept of who subscribes to nothing"
    assert list(bench.members._subscribers) == [3]


@pytest.mark.usefixtures("small")
def test_one_user_leaves_others_a_quarter_of_the_bytes_for_subscriptions() -> None:
    bench, some = Bench(), "x" * 6_000
    for number in range(1, 4):
        assert bench.register(FakePeer(number, user="flood"), heartbeat(f"f{number}", "A", expression=some)) == [
            Registered(None)
        ]
    held = bench.members.subscribed_bytes
    assert held < 45_000 < held + held // 3
    (refused,) = bench.register(FakePeer(4, user="flood"), heartbeat("f4", "A", expression=some))
    assert refused.text == (
        f"user 'flood' has {held} of 60000 bytes of subscriptions, and one user may have 45000: a connection may have 4000 at any time"
    )
    shop = FakePeer(5, user="shop")
    assert bench.register(shop, heartbeat("shop", "A", expression=some)) == [Registered(None)]
    for number in (1, 2, 3, 5):
        bench.members.connection_closed(number, keep_locks=False)
    assert bench.members.subscribed_bytes == 0
    assert bench.members._shares._of == {}


@pytest.mark.usefixtures("small")
def test_heartbeats_that_wait_for_their_groups_count_their_subscriptions() -> None:
    """Else all heartbeats of one turn pass the bound together."""
    bench = Bench()
    bench.sequencer.is_held = True
    first, second = [
        bench.register(FakePeer(number), heartbeat(str(number), f"C{number}", expression=LONG)) for number in (1, 2)
    ]
    assert "of 60000 bytes of subscriptions" in second[0].text
    bench.sequencer.release()
    assert first == [Registered(None)]
    assert bench.members.subscribed_bytes < 40_000


@pytest.mark.usefixtures("small")
def test_who_goes_while_its_groups_are_made_counts_no_longer() -> None:
    bench, peer = Bench(), FakePeer(1)
    bench.sequencer.is_held = True
    bench.register(peer, heartbeat("me", "C", expression=LONG))
    peer.is_open = False
    bench.members.connection_closed(1, keep_locks=False)
    bench.sequencer.release()
    assert (bench.members.subscribed_bytes, bench.members._subscribed) == (0, {})


def test_producer_groups_of_heartbeats_that_wait_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PRODUCER_GROUPS_FREE", 0)
    monkeypatch.setattr(limits, "PRODUCER_GROUPS_PER_CONNECTION_EXEMPT", 1)
    bench = Bench(BrokerSettings(undecided_groups_max=4))
    bench.sequencer.is_held = True
    asked = [
        bench.register(FakePeer(number), heartbeat(str(number), f"C{number}", producers=(f"{number}a", f"{number}b")))
        for number in (1, 2, 3)
    ]
    bench.sequencer.release()
    assert [answers[0].left_out is None for answers in asked] == [True, True, False]
    assert len(bench.sequencer.view.producer_groups) == 4


def test_polls_while_its_groups_are_made_count_towards_the_groups_of_a_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "GROUPS_PER_CONNECTION_MAX", 2)
    bench = Bench()
    bench.sequencer.is_held = True
    answers = bench.register(FakePeer(1), heartbeat("me", "C", producers=("P",)))
    bench.sequencer.note(Polling(1, "me", "Q", 1))
    bench.sequencer.release()
    assert "groups at most" in answers[0].text
    assert bench.members.client_ids("C") == []
    assert bench.members.subscribed_bytes == 0


# --- order ----------------------------------------------------------------------------------------------------------


def test_what_comes_after_a_heartbeat_whose_groups_are_made_waits_in_order_and_its_memory_counts() -> None:
    bench, peer = Bench(), FakePeer()
    bench.sequencer.is_held = True
    asked = [
        bench.register(peer, heartbeat("me", "C")),
        bench.leave(peer, "C"),
        bench.register(peer, heartbeat("me", "D"), memory_bytes=500),
        bench.register(peer, heartbeat("me", "C", topic="V")),
    ]
    assert (bench.waiting, peer.kept, asked) == (3, 610, [[], [], [], []])
    bench.sequencer.release()
    assert (bench.waiting, peer.kept) == (0, 0)
    assert asked == [[Registered(None)], [None], [Registered(None)], [Registered(None)]]
    assert list(bench.session.consumers["C"].subscriptions) == ["V"]
    assert bench.members.client_ids("D") == ["me"]


def test_what_waits_waits_again_for_the_next_heartbeat_whose_groups_are_made() -> None:
    bench, peer = Bench(), FakePeer()
    bench.sequencer.is_held = True
    first = bench.register(peer, heartbeat("me", "C"))
    second = bench.register(peer, heartbeat("me", "D"))
    left = bench.leave(peer, "D")
    held = bench.sequencer._held
    bench.sequencer._held = []
    for call in held:  # the first group is durable; the sequencer goes on holding
        call()
    assert (first, second, left, bench.waiting) == ([], [], [], 1)
    bench.sequencer.release()
    assert (first, second, left) == ([Registered(None)], [Registered(None)], [None])
    assert bench.members.client_ids("D") == []


@pytest.mark.parametrize("fails", ["C", "D"], ids=["the heartbeat that made its group", "one that waited for it"])
def test_one_that_fails_is_answered_and_what_waits_after_it_goes_on(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, peer = Bench(), FakePeer()
    heard: Callable[..., None] = SubscriptionConflicts.heard

    def hear(self: SubscriptionConflicts, group: str, *rest: Any) -> None:
        if group == fails:
            raise RuntimeError("planted")
        heard(self, group, *rest)

    monkeypatch.setattr(SubscriptionConflicts, "heard", hear)
    bench.register(FakePeer(9), heartbeat("other", "E"))
    bench.sequencer.core.do(EnsureGroup("D"))
    bench.sequencer.is_held = True
    asked = [bench.register(peer, heartbeat("me", group)) for group in ("C", "D", "E")]
    bench.sequencer.release()
    assert [answers[0] for answers in asked] == [
        Failed("RuntimeError: planted") if group == fails else Registered(None) for group in ("C", "D", "E")
    ]
    assert (bench.waiting, peer.kept) == (0, 0)


def test_of_a_peer_that_has_gone_nothing_is_kept_and_no_more_groups_are_made() -> None:
    bench, peer = Bench(), FakePeer(1)
    bench.sequencer.is_held = True
    asked = bench.register(peer, heartbeat("me", "C", "D", "E"))
    waits = bench.leave(peer, "C")
    peer.is_open = False
    bench.members.connection_closed(1, keep_locks=False)
    assert (bench.waiting, peer.kept) == (0, 0)
    bench.sequencer.release()
    late = bench.register(peer, heartbeat("me", "F"))
    assert (asked, waits, late) == ([], [], [])
    assert len(bench.sequencer.view.groups) == 1
    assert (bench.members._waiting, bench.members._subscribed, bench.members.software) == ({}, {}, {})
    assert not bench.session.consumes


# --- who they are -----------------------------------------------------------------------------------------------------


def test_the_newest_peer_of_a_client_is_known_by_its_id_until_it_goes() -> None:
    bench = Bench()
    bench.register(FakePeer(1), heartbeat("me"))
    bench.register(FakePeer(2), heartbeat("me"))
    assert bench.members.connection_of("me") == 2
    bench.members.connection_closed(1, keep_locks=False)
    assert bench.members.connection_of("me") == 2
    bench.register(FakePeer(2), heartbeat("another"))
    assert (bench.members.connection_of("me"), bench.members.connection_of("another")) == (None, 2)
    bench.members.connection_closed(2, keep_locks=False)
    assert (bench.members.connection_of("another"), bench.members._ids, bench.members.software) == (None, {}, {})


@pytest.mark.parametrize("how", ["stays", "leaves", "is gone"])
def test_who_subscribes_to_something_else_is_named_unless_the_other_has_left(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    bench.register(FakePeer(1), heartbeat("one", "C"))
    if how == "leaves":
        bench.leave(FakePeer(1), "C")
    elif how == "is gone":
        bench.members.connection_closed(1, keep_locks=False)
    bench.register(FakePeer(2), heartbeat("two", "C", expression="a"))
    assert ["client two" in line for line in caplog.messages] == ([True] if how == "stays" else [])


def test_all_members_are_told_when_one_leaves_or_is_gone() -> None:
    bench = Bench()
    for number in (1, 2, 3):
        bench.register(FakePeer(number), heartbeat(str(number), "C"))
    bench.changed.clear()
    bench.leave(FakePeer(3), "C")
    assert bench.changed == [("C", 1), ("C", 2)]
    bench.changed.clear()
    bench.members.connection_closed(2, keep_locks=False)
    assert bench.changed == [("C", 1)]


# --- queue locks ------------------------------------------------------------------------------------------------------


def locking() -> Bench:
    """Topic T with eight queues; client one consumes in group C."""
    bench = Bench()
    bench.sequencer.core.do(SetTopic("T", 8, 8, 6))
    bench.register(FakePeer(1), heartbeat("one", "C"))
    return bench


def test_a_queue_is_locked_by_one_client_at_a_time() -> None:
    bench = locking()
    assert bench.lock("one", 0, 1) == [0, 1]
    assert bench.lock("two", 1, 2) == [2]
    assert bench.lock("one", 1) == [1], "renewed"
    answers: list[Any] = []
    bench.members.unlock("C", "one", [("T", 1)], lambda: answers.append("released"))
    assert answers == ["released"]
    assert bench.lock("two", 1) == [1]


@pytest.mark.parametrize(
    ("client_id", "queue", "where"),
    [
        ("one", 0, {"group": "Nobody"}),
        ("one", 0, {"topic": "Nowhere"}),
        ("one", 8, {}),
        ("one", -1, {}),
        ("o" * (limits.CLIENT_ID_CHARS_MAX + 1), 0, {}),
    ],
)
def test_locks_of_what_does_not_exist_are_not_kept(client_id: str, queue: int, where: dict[str, str]) -> None:
    bench = locking()
    assert bench.lock(client_id, queue, **where) == []
    assert bench.session.locks_held == 0


@pytest.mark.parametrize(("how", "stays"), [("leave", False), ("gone", False), ("cut off", True), ("twice", True)])
def test_who_goes_gives_its_locks_up_unless_it_was_cut_off_or_has_another_peer(how: str, stays: bool) -> None:
    bench = locking()
    bench.lock("one", 0)
    if how == "twice":
        bench.register(FakePeer(2), heartbeat("one", "C"))
    if how == "leave":
        bench.leave(FakePeer(1), "C")
    else:
        bench.members.connection_closed(1, keep_locks=how == "cut off")
    assert (UnlockQueues("C", "one", None) not in bench.sequencer.commands) is stays


def test_a_full_lock_table_is_logged_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "LOCKS_MAX", 4)
    bench = locking()
    for _ in range(3):
        assert bench.lock("one", 0, 1, 2, 3, 4) == [0, 1, 2]
        assert bench.lock("two", 5) == []
    said = "queue lock limit reached (3 of 4, 3 of them of address 10.0.0.7, and one may have three quarters)"
    assert [line for line in caplog.messages if said in line] == caplog.messages
    assert len(caplog.messages) == 1
    bench.passed_ms += 60_000
    bench.lock("two", 5)
    assert len(caplog.messages) == 2
