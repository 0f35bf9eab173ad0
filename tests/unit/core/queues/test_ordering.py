"""Queue locks: one client per queue and group, for a while."""

from tests.support.core_log import CoreLog, consumer

from halfmq import limits
from halfmq.core.queues.ordering import lock_queues, unlock_queues
from halfmq.core.session import ConnectionClosed

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
