"""Queue locks for ordered consumption (41, 42): one client per queue and group, for 60 s after its last request.

The lock itself is session state. Its holder is durable, because the holder survives the broker: a Java client consumes its queue
for 30 s after the last confirmation of the lock, whether or not it reaches a broker, and renews the lock every 20 s. Each *change*
of the holder is therefore logged with the group's settings before the response; renewals are not logged. After a start, the
queue is reserved for its last holder until that must have stopped (``limits.QUEUE_LOCK_KEPT_MS``). Either the holder returns
earlier and continues, or another client gets the queue after that time. RocketMQ loses its locks at a restart.

Every base contains the holders, so their size is bounded. A lock without space there is granted, but a restart loses its holder.
The total number of locks of a run is bounded as well (``limits.LOCKS_MAX``), since clients can invent names and a lock lasts
60 s.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from halfmq import limits
from halfmq.core.commands import LockQueues, UnlockQueues
from halfmq.core.decision import NOTHING, Decision, Done, Locked
from halfmq.core.events import LocksExpired, QueuesLocked, QueuesUnlocked
from halfmq.core.schema import group_set
from halfmq.core.state import ConsumerSession, QueueLock, State, holders_bytes, next_offset
from halfmq.model.share import share_of

Queue = tuple[str, int]

#: Fraction of a segment. A base may use half of a segment; ``model.settings`` assigns seven sixteenths.
_HOLDERS_SHARE: Final = 32


def locks_expired(state: State, command: LockQueues, now_ms: int) -> LocksExpired:
    """The event before ``decide_lock``."""
    session = state.session.consumers.get(command.group)
    locks = session.locks if session is not None else {}
    new = sum([queue not in locks for queue in command.queues])
    most = _locks_max(session, command.client_id)
    mine = state.session.locks_of_owner.get(command.owner, 0)
    is_short = new > 0 and (
        state.session.locks_held + new > most or (command.owner != "" and mine + new > share_of(most))
    )
    return LocksExpired(command.group, is_short, now_ms)


def decide_lock(state: State, command: LockQueues, now_ms: int) -> Decision:
    """Grant the client each queue that nobody else holds, for 60 s. Apply ``LocksExpired`` before.

    At the maximum number of locks, of all or of one user or address, free queues are not granted; renewals always are.

    Replies:
        Locked: the queues that the client holds from now on. Others are held by, or reserved for, other clients.
    """
    group, client_id = command.group, command.client_id
    session = state.session.consumers.get(group)
    locks = session.locks if session is not None else {}
    most = _locks_max(session, client_id)
    held = state.session.locks_held
    mine = state.session.locks_of_owner.get(command.owner, 0)
    most_of_one = share_of(most)
    granted: dict[Queue, None] = {}
    for queue in command.queues:
        holder = locks.get(queue)
        if holder is None and queue not in granted:
            if held >= most or mine >= most_of_one:
                continue
            held += 1
            mine += command.owner != ""
        elif holder is not None and holder.client_id != client_id and holder.until_ms > now_ms:
            continue
        granted[queue] = None
    queues = tuple([queue for queue in command.queues if queue in granted])
    is_full = len(queues) < len(command.queues) and (held >= most or mine >= most_of_one)
    locked = QueuesLocked(group, client_id, queues, now_ms + limits.QUEUE_LOCK_MS, command.owner)
    return _decided(state, group, queues, client_id, Locked(queues, is_full), locked)


def decide_unlock(state: State, command: UnlockQueues, now_ms: int) -> Decision:
    """Release the client's queues.

    Replies:
        Done: also if it held none.
    """
    group, client_id, queues = command
    session = state.session.consumers.get(group)
    locks = session.locks if session is not None else {}
    held = state.holders.get(group, {})
    if queues is not None:
        free = list(queues)
    else:
        # The client left and its session ended. It keeps what it has locked again since, on another connection.
        given_up = [(state.topics_by_id[topic_id].name, queue_id) for topic_id, queue_id in held]
        free = [queue for queue in given_up if not _holds(locks, client_id, queue)]
    mine = [queue for queue in free if (key := _key(state, queue)) is not None and held.get(key) == client_id]
    unlocked = QueuesUnlocked(group, client_id, tuple(queues or ()))
    return _decided(state, group, mine, None, Done(), unlocked)


def _decided(
    state: State,
    group: str,
    queues: Iterable[Queue],
    client_id: str | None,
    reply: Locked | Done,
    event: QueuesLocked | QueuesUnlocked,
) -> Decision:
    """Make ``client_id`` (None: nobody) the holder of ``queues``; changes are logged."""
    settings = state.groups.get(group)
    before = state.holders.get(group, {})
    keys = [key for key in [_key(state, queue) for queue in queues] if key is not None]
    news = [key for key in keys if before.get(key) != client_id]
    if not news or settings is None:
        return Decision(NOTHING, reply, (), (event,))
    changing = set(news)
    after = {key: holder for key, holder in before.items() if key not in changing}
    if client_id is not None and len(client_id) <= limits.CLIENT_ID_CHARS_MAX:
        with_them = {**after, **dict.fromkeys(news, client_id)}
        others = state.derived.holders_bytes - holders_bytes(before)
        if others + holders_bytes(with_them) <= holders_bytes_max(state):
            after = with_them
    if after == before:
        return Decision(NOTHING, reply, (), (event,))
    return Decision((group_set(next_offset(state), settings, after),), reply, (), (event,))


def holders_bytes_max(state: State) -> int:
    """Maximum size of all holders in a base."""
    return min(state.settings.segment_bytes // _HOLDERS_SHARE, limits.HOLDERS_BYTES_MAX)


def _key(state: State, queue: Queue) -> tuple[int, int] | None:
    topic_name, queue_id = queue
    topic = state.topics_by_name.get(topic_name)
    return (topic.topic_id, queue_id) if topic is not None and 0 <= queue_id < len(topic.ends) else None


def _holds(locks: Mapping[Queue, QueueLock], client_id: str, queue: Queue) -> bool:
    lock = locks.get(queue)
    return lock is not None and lock.client_id == client_id


def _locks_max(session: ConsumerSession | None, client_id: str) -> int:
    """Total number of locks up to which the client may get one more. Half of the maximum is reserved for members."""
    members = session.members.values() if session is not None else ()
    is_member = any(member.client_id == client_id for member in members)
    return limits.LOCKS_MAX if is_member else limits.LOCKS_MAX // 2


# --- events


def reserve_for_holders(state: State, now_ms: int) -> None:
    """After a start, reserve each queue for its last holder, which may still be consuming it."""
    for group, holders in state.holders.items():
        session = state.session.consumers.setdefault(group, ConsumerSession())
        for (topic_id, queue_id), client_id in holders.items():
            queue = (state.topics_by_id[topic_id].name, queue_id)
            state.session.locks_held += queue not in session.locks
            session.locks[queue] = QueueLock(client_id, now_ms + limits.QUEUE_LOCK_KEPT_MS)


def note_run_out(state: State, event: LocksExpired) -> None:
    """Remove expired locks of the group at intervals, which are shorter than any lock; and of all groups if locks are scarce."""
    session = state.session.consumers.get(event.group)
    if session is not None and event.now_ms - session.locks_checked_at_ms >= limits.QUEUE_LOCK_MS:
        _drop_expired(state, session, event.now_ms)
    if event.is_short and event.now_ms - state.session.locks_checked_at_ms >= limits.LOCKS_EXPIRE_INTERVAL_MS:
        state.session.locks_checked_at_ms = event.now_ms
        for session in state.session.consumers.values():
            _drop_expired(state, session, event.now_ms)


def note_locked(state: State, event: QueuesLocked) -> None:
    session = state.session.consumers.get(event.group)
    if session is None:
        session = state.session.consumers[event.group] = ConsumerSession()
    for queue in event.queues:
        if queue in session.locks:
            drop_lock(state, session, queue)
        session.locks[queue] = QueueLock(event.client_id, event.until_ms, event.owner)
        state.session.locks_held += 1
        if event.owner:
            _count_of_owner(state, event.owner, 1)


def note_unlocked(state: State, event: QueuesUnlocked) -> None:
    session = state.session.consumers.get(event.group)
    for queue in event.queues if session is not None else ():
        if session is not None and _holds(session.locks, event.client_id, queue):
            drop_lock(state, session, queue)


def drop_lock(state: State, session: ConsumerSession, queue: Queue) -> None:
    """The lock is nobody's any more."""
    owner = session.locks.pop(queue).owner
    state.session.locks_held -= 1
    if owner:
        _count_of_owner(state, owner, -1)


def _count_of_owner(state: State, owner: str, more: int) -> None:
    count = state.session.locks_of_owner.pop(owner, 0) + more
    if count:
        state.session.locks_of_owner[owner] = count


def forget_locks(state: State, group: str) -> None:
    """The group was deleted."""
    session = state.session.consumers.get(group)
    if session is not None:
        for queue in list(session.locks):
            drop_lock(state, session, queue)
        if not session.members:
            del state.session.consumers[group]


def _drop_expired(state: State, session: ConsumerSession, now_ms: int) -> None:
    session.locks_checked_at_ms = now_ms
    expired = [queue for queue, lock in session.locks.items() if lock.until_ms <= now_ms]
    for queue in expired:
        drop_lock(state, session, queue)
