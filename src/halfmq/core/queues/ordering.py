"""Queue locks for ordered consumption (41, 42): one client per queue and group, for 60 s after it last asked.

Session state: a restart forgets locks, and two consumers may hold one queue until the older one renews in vain; RocketMQ
behaves the same. The Java client renews every 20 s and trusts its lock for 30 s.
"""

from collections.abc import Iterable

from halfmq import limits
from halfmq.core.state import ConsumerSession, State

Queue = tuple[str, int]


def lock_queues(state: State, group: str, client_id: str, queues: Iterable[Queue], now_ms: int) -> tuple[Queue, ...]:
    """The queues (topic, queue id) of those asked for that ``client_id`` holds from now on, for 60 s."""
    session = state.consumers.get(group)
    if session is None:
        session = state.consumers[group] = ConsumerSession()
    granted = []
    for queue in queues:
        holder = session.locks.get(queue)
        if holder is None or holder[0] == client_id or holder[1] <= now_ms:
            session.locks[queue] = (client_id, now_ms + limits.QUEUE_LOCK_MS)
            granted.append(queue)
    return tuple(granted)


def unlock_queues(state: State, group: str, client_id: str, queues: Iterable[Queue]) -> None:
    """Give up the locks that ``client_id`` holds; others' are left alone."""
    session = state.consumers.get(group)
    if session is None:
        return
    for queue in queues:
        if session.locks.get(queue, ("", 0))[0] == client_id:
            del session.locks[queue]
