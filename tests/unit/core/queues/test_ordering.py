"""Queue locks: one client per queue and group, for a while."""

import pytest
from tests.support.core_log import CoreLog, consumer
from tests.support.durable_digest import durable_digest
from tests.support.invariants import check
from tests.support.looked import Looked
from tests.support.parts_of_a_tick import lock_queues, unlock_queues

from halfmq import limits
from halfmq.core.commands import DeleteTopic, EnsureGroup, LockQueues, SetGroup, SetTopic, UnlockQueues
from halfmq.core.decision import Done, Locked
from halfmq.core.queues import ordering
from halfmq.core.queues.ordering import holders_bytes_max, locks_expired, reserve_for_holders
from halfmq.core.session import ConnectionClosed
from halfmq.model.records import GroupSet
from halfmq.model.settings import BrokerSettings

QUEUES = [("orders", 0), ("orders", 1)]


def test_a_queue_is_granted_to_one_client_and_again_to_the_same() -> None:
    state = CoreLog().state
    assert lock_queues(state, "CG", "a", QUEUES, 0) == tuple(QUEUES)
    assert lock_queues(state, "CG", "a", QUEUES, 10) == tuple(QUEUES)
    assert lock_queues(state, "CG", "b", [*QUEUES, ("orders", 2)], 10) == (("orders", 2),)
    assert lock_queues(state, "Other", "b", QUEUES, 10) == tuple(QUEUES)


def test_a_lock_that_is_not_renewed_runs_out() -> None:
    state = CoreLog().state
    lock_queues(state, "CG", "a", QUEUES, 0)
    assert lock_queues(state, "CG", "b", QUEUES, limits.QUEUE_LOCK_MS - 1) == ()
    assert lock_queues(state, "CG", "b", QUEUES, limits.QUEUE_LOCK_MS) == tuple(QUEUES)


def test_only_the_holder_can_give_up_a_lock() -> None:
    state = CoreLog().state
    lock_queues(state, "CG", "a", QUEUES, 0)
    unlock_queues(state, "CG", "b", QUEUES)
    assert lock_queues(state, "CG", "b", QUEUES, 1) == ()
    unlock_queues(state, "CG", "a", QUEUES[:1])
    unlock_queues(state, "Nobody", "a", QUEUES)
    assert lock_queues(state, "CG", "b", QUEUES, 1) == tuple(QUEUES[:1])


def test_a_client_that_is_gone_holds_nothing() -> None:
    log = CoreLog()
    log.session(consumer(1, 0))
    lock_queues(log.state, "CG", "client-1", QUEUES, 0)
    log.session(ConnectionClosed(1))
    assert lock_queues(log.state, "CG", "b", QUEUES, 1) == tuple(QUEUES)


# --- over a restart --------------------------------------------------------------------------------------------


def consumed_in_order(queues: int = 4) -> CoreLog:
    log = CoreLog()
    log.do(SetTopic("orders", queues, queues, 6))
    log.do(EnsureGroup("CG"))
    return log


def locked(log: CoreLog, client_id: str, *queue_ids: int, group: str = "CG", topic: str = "orders") -> list[int]:
    reply = log.do(LockQueues(group, client_id, tuple((topic, queue_id) for queue_id in queue_ids)))
    assert isinstance(reply, Locked)
    return [queue_id for _, queue_id in reply.queues]


def restarted(log: CoreLog) -> CoreLog:
    """The state that a redo gives, kept as a start does."""
    log.restart()
    reserve_for_holders(log.state, log.now_ms)
    return log


def test_after_a_start_a_queue_is_kept_for_who_held_it_until_that_one_must_have_stopped() -> None:
    log = consumed_in_order()
    assert locked(log, "a", 0, 1) == [0, 1]
    assert locked(log, "b", 2) == [2]
    restarted(log)
    assert locked(log, "b", 0, 1, 2, 3) == [2, 3], "a still handles its queues, and nobody had the last one"
    assert locked(log, "a", 0) == [0], "who held it goes on at once"
    log.later(limits.QUEUE_LOCK_KEPT_MS - 1)
    assert locked(log, "b", 0, 1) == []
    log.later(1)
    assert locked(log, "b", 0, 1) == [1], "a came back for the first one only"
    restarted(log)
    assert locked(log, "a", 0, 1) == [0]


def test_only_a_change_of_holder_is_logged() -> None:
    log = consumed_in_order()
    made = len(log.of(GroupSet))
    for _ in range(5):
        locked(log, "a", 0, 1)
        log.later(20_000)
    assert len(log.of(GroupSet)) == made + 1
    locked(log, "b", 0, 1)
    assert len(log.of(GroupSet)) == made + 1, "refused: nothing changed"
    log.later(limits.QUEUE_LOCK_MS)
    locked(log, "b", 0, 1)
    assert len(log.of(GroupSet)) == made + 2


def test_a_renewal_needs_no_room_in_the_log() -> None:
    """Or on a full disk everybody would lose the locks they have."""
    log = consumed_in_order()
    asked = LockQueues("CG", "a", (("orders", 0), ("orders", 1)))
    assert log.decide(asked).records
    assert not log.decide(asked).records
    assert log.decide(asked._replace(queues=(*asked.queues, ("orders", 2)))).records
    log.later(limits.QUEUE_LOCK_MS)
    assert log.decide(asked._replace(client_id="b")).records


def test_a_queue_that_was_given_up_is_free_after_a_start() -> None:
    log = consumed_in_order()
    locked(log, "a", 0, 1, 2)
    assert log.do(UnlockQueues("CG", "b", (("orders", 0),))) == Done()
    assert log.do(UnlockQueues("CG", "a", (("orders", 0), ("none", 0), ("orders", 99)))) == Done()
    restarted(log)
    assert locked(log, "b", 0, 1, 2) == [0]


def test_who_left_is_not_waited_for_but_who_came_again_is() -> None:
    log = consumed_in_order()
    for client_id, queue_ids in (("gone", (0,)), ("again", (1, 2))):
        locked(log, client_id, *queue_ids)
    for client_id in ("gone", "again"):
        unlock_queues(log.state, "CG", client_id, [("orders", queue_id) for queue_id in range(3)])
    locked(log, "again", 1)
    for client_id in ("gone", "again"):
        log.do(UnlockQueues("CG", client_id, None))
    assert log.state.holders == {"CG": {(log.state.topics_by_name["orders"].topic_id, 1): "again"}}


def test_settings_of_the_group_and_holders_leave_each_other_alone() -> None:
    log = consumed_in_order()
    locked(log, "a", 0)
    log.do(SetGroup("CG", 3, 1, True))
    assert log.state.groups["CG"].retry_max_times == 3
    locked(log, "b", 1)
    assert log.state.groups["CG"].retry_max_times == 3
    assert sorted(log.state.holders["CG"].values()) == ["a", "b"]


def test_a_deleted_topic_is_held_by_nobody() -> None:
    log = consumed_in_order()
    locked(log, "a", 0, 1)
    log.do(DeleteTopic("orders"))
    assert log.state.holders == {}
    check(log.state)


def test_a_deletion_looks_at_groups_that_hold_a_queue_of_the_topic_only() -> None:
    log = consumed_in_order()
    log.do(SetTopic("others", 4, 4, 6))
    log.do(SetGroup("CG2", 3, 1, True))
    locked(log, "a", 0, 1)
    locked(log, "b", 0, topic="others")
    locked(log, "b", 2, topic="others", group="CG2")
    orders, others = (log.state.topics_by_name[name].topic_id for name in ("orders", "others"))
    assert log.state.derived.held_by == {orders: {"CG": None}, others: {"CG": None, "CG2": None}}
    holders = log.state.holders = Looked(log.state.holders)
    log.do(DeleteTopic("orders"))
    assert "CG2" not in holders.names
    assert dict(log.state.holders) == {"CG": {(others, 0): "b"}, "CG2": {(others, 2): "b"}}
    log.state.holders = dict(log.state.holders)
    log.do(UnlockQueues("CG", "b", [("others", 0)]))
    assert log.state.derived.held_by == {others: {"CG2": None}}
    log.do(DeleteTopic("others"))
    assert (log.state.holders, log.state.derived.held_by) == ({}, {})
    check(log.state)
    assert log.redone().derived.held_by == {}


def test_a_snapshot_a_base_and_a_redo_know_the_holders() -> None:
    log = consumed_in_order()
    locked(log, "a", 0, 1)
    log.close()
    assert log.reloaded(log.snapshot()).holders == log.state.holders
    log.roll()
    locked(log, "b", 2)
    log.close()
    assert durable_digest(log.redone()) == durable_digest(log.state)
    later = log.redone([batch for batch in log.batches if batch.offset >= log.settings.segment_bytes])
    assert later.holders == log.state.holders
    assert len(later.holders["CG"]) == 3
    check(later)


def test_holders_beyond_their_room_are_granted_and_not_logged() -> None:
    """Nobody may fill the head of a segment with the names of clients; what does not fit is as it was before any was kept."""
    log = consumed_in_order(queues=1_000)
    granted = 0
    for number in range(0, 1_000, 4):
        client_id = f"{number:0{limits.CLIENT_ID_CHARS_MAX}}"
        granted += len(locked(log, client_id, *range(number, number + 4)))
        assert log.state.derived.holders_bytes <= holders_bytes_max(log.state)
    assert granted == 1_000
    held = len(log.state.holders["CG"])
    assert 0 < held < 1_000
    assert locked(log, "x" * (limits.CLIENT_ID_CHARS_MAX + 1), *range(4)) == []
    log.later(limits.QUEUE_LOCK_MS)
    assert locked(log, "x" * (limits.CLIENT_ID_CHARS_MAX + 1), *range(4)) == [0, 1, 2, 3]
    assert len(log.state.holders["CG"]) == held - 4, "who held them does not any more"
    check(log.state)


class Queue(tuple[str, int]):
    """The name of a queue that counts how often it is compared with another one."""

    compared = 0
    __hash__ = tuple.__hash__

    def __eq__(self, other: object) -> bool:
        Queue.compared += 1
        return tuple.__eq__(self, other)


def test_queues_beside_as_many_that_are_held_are_not_compared_each_with_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes seconds where there are thousands, and nobody else is served meanwhile."""
    log = CoreLog(BrokerSettings(segment_bytes=16 << 20))
    log.do(SetTopic("orders", 1_000, 1_000, 6))
    log.do(EnsureGroup("CG"))
    keys = ordering._key
    monkeypatch.setattr(ordering, "_key", lambda state, queue: (key := keys(state, queue)) and Queue(key))
    first, second = ([Queue(("orders", queue_id)) for queue_id in range(start, 1_000, 2)] for start in (0, 1))
    for client_id, queues in (("a", first), ("b", second)):
        Queue.compared = 0
        log.do(LockQueues("CG", client_id, tuple(queues)))
        assert Queue.compared < 10_000, "each with each would be 250,000"
    assert len(log.state.holders["CG"]) == 1_000


def test_there_are_only_so_many_locks_and_who_renews_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOCKS_MAX", 8)
    log = consumed_in_order(queues=10)
    log.do(EnsureGroup("Other"))
    assert locked(log, "a", *range(5), group="Other") == [0, 1, 2, 3], "half of them, since it is no member"
    assert log.do(LockQueues("Other", "b", (("orders", 9),))) == Locked((), is_full=True)
    assert log.do(LockQueues("Other", "b", (("orders", 0),))) == Locked((), is_full=True)
    log.session(consumer(1, log.now_ms))
    assert locked(log, "client-1", *range(10)) == [0, 1, 2, 3]
    assert log.state.session.locks_held == 8
    log.later(limits.QUEUE_LOCK_MS // 2)
    assert locked(log, "client-1", *range(10)) == [0, 1, 2, 3], "its own ones; there is no room for more"
    check(log.state)
    log.later(limits.QUEUE_LOCK_MS // 2)
    assert locked(log, "client-1", *range(10)) == list(range(8)), "those of the other group ran out"
    assert log.state.session.locks_held == 8
    log.session(ConnectionClosed(1))
    assert log.state.session.locks_held == 0
    check(log.state)


def test_one_user_leaves_others_a_quarter_of_the_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOCKS_MAX", 8)
    log = consumed_in_order(queues=10)
    log.session(consumer(1, log.now_ms))
    log.session(consumer(2, log.now_ms))

    def lock(client_id: str, owner: str, *queue_ids: int) -> Locked:
        reply = log.do(LockQueues("CG", client_id, tuple(("orders", queue_id) for queue_id in queue_ids), owner))
        assert isinstance(reply, Locked)
        return reply

    flood = lock("client-1", "user 'flood'", *range(8))
    assert ([queue_id for _, queue_id in flood.queues], flood.is_full) == (list(range(6)), True)
    assert lock("client-1", "user 'flood'", *range(8)) == flood, "renewed, and no more"
    shop = lock("client-2", "user 'shop'", 6, 7)
    assert shop == Locked((("orders", 6), ("orders", 7)))
    assert log.state.session.locks_of_owner == {"user 'flood'": 6, "user 'shop'": 2}
    check(log.state)
    log.later(limits.QUEUE_LOCK_MS)
    assert len(lock("client-1", "user 'flood'", *range(6)).queues) == 6, "they ran out, and are free again"
    check(log.state)
    log.session(ConnectionClosed(1))
    log.session(ConnectionClosed(2))
    assert (log.state.session.locks_of_owner, log.state.session.locks_held) == ({}, 0)
    check(log.state)


def test_locks_that_ran_out_do_not_collect_in_a_group() -> None:
    log = consumed_in_order(queues=100)
    for first in range(0, 100, 10):
        locked(log, f"client-{first}", *range(first, first + 10))
        log.later(limits.QUEUE_LOCK_MS)
    assert log.state.session.locks_held == 10
    restarted(log)
    assert log.state.session.locks_held == len(log.state.holders["CG"]) == 100, "their holders are known"
    check(log.state)


def test_locks_of_what_does_not_exist_live_in_the_session_only() -> None:
    log = consumed_in_order()
    assert locked(log, "a", 0, topic="none") == [0]
    assert locked(log, "a", 99) == [99]
    assert locked(log, "a", 0, group="Unknown") == [0]
    assert log.state.holders == {}


def test_who_renews_pays_for_no_look_at_all_locks_however_many_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOCKS_MAX", 4)
    state = CoreLog().state
    two = [("orders", queue_id) for queue_id in range(2)]
    assert lock_queues(state, "CG", "a", two, 0) == tuple(two)
    assert not locks_expired(state, LockQueues("CG", "a", tuple(two)), 1).is_short
    assert locks_expired(state, LockQueues("CG", "b", (("orders", 9),)), 1).is_short
