"""Changes session state by events: of the outside (connections, subscriptions, reports of the sequencer and of the disk) and of
decisions (``events``). ``state.SessionState`` names the two fields that change otherwise.

None of it is logged. A restart loses it, and clients send it again with their next heartbeat. A client is identified by its
connection: after a reconnect it is a new member once its heartbeat arrives.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from halfmq.core.events import (
    CheckCancelled,
    CheckFailed,
    CheckLimitRaised,
    ChecksSent,
    CheckWaits,
    ConsumerGroupRemoved,
    CopiedForward,
    DecisionEvent,
    DelayedPostponed,
    HalvesRolledBack,
    LocksExpired,
    OffsetLogged,
    OffsetRefused,
    OffsetReported,
    OffsetsDrained,
    ParkedResumed,
    PolicyChanged,
    PolicyExamined,
    QueueChosen,
    QueuesLocked,
    QueuesUnlocked,
    TimePassed,
    TopicRemoved,
    TrimStarted,
    UnknownReceived,
)
from halfmq.core.queues.delay import note_postponed
from halfmq.core.queues.offsets import (
    forget_offsets,
    forget_topic,
    log_now,
    note_logged,
    note_refused,
    note_reported,
    note_taken,
    take_due,
)
from halfmq.core.queues.ordering import drop_lock, forget_locks, note_locked, note_run_out, note_unlocked
from halfmq.core.state import GROUPS_KEPT_MIN, ConsumerSession, Member, State, Subscription, take_turn
from halfmq.core.transaction.check_schedule import (
    cut_backoff,
    move_due,
    note_asked,
    note_check_cancelled,
    note_failed,
    note_limit_raised,
    note_unknown,
    note_waiting,
)
from halfmq.core.transaction.past_limit import examine_rounds, note_changed, note_delivered, note_examined, note_resumed
from halfmq.core.transaction.retention import note_copied, start_search


class ConsumerData(NamedTuple):
    """One consumer group in a heartbeat."""

    group: str
    #: CLUSTERING or BROADCASTING.
    message_model: str
    #: CONSUME_ACTIVELY, CONSUME_PASSIVELY or CONSUME_POP.
    consume_type: str
    from_where: str
    subscriptions: tuple[Subscription, ...]


class Heartbeat(NamedTuple):
    """A client is alive on this connection, with its version and language, and is in these producer and consumer groups. A named consumer
    group gets the subscriptions of the heartbeat; groups that it does not name stay as they are.
    """

    connection: int
    client_id: str
    version: int
    language: str
    producers: tuple[str, ...]
    consumers: tuple[ConsumerData, ...]
    now_ms: int


class Reachable(NamedTuple):
    """A producer that did not read, and so missed checks, reads again."""

    connection: int
    client_id: str
    producer: str


class Polling(NamedTuple):
    """A client waits for checks of a producer group, up to a number, until it gets some or ``PollEnded``."""

    connection: int
    client_id: str
    producer: str
    room: int


class PollEnded(NamedTuple):
    """The wait ended by timeout or by a new request of the same client."""

    connection: int
    producer: str


class CheckDelivered(NamedTuple):
    """A check was written to its connection."""

    producer: str
    tx_id: str
    checks: int
    now_ms: int


class Unregistered(NamedTuple):
    """A client left its groups. An empty group name: it is in no group of that kind."""

    connection: int
    client_id: str
    producer_group: str
    consumer_group: str


class ConnectionClosed(NamedTuple):
    """The connection is gone: it leaves all groups, and checks that it did not answer are due for other producers."""

    connection: int


class Published(NamedTuple):
    """The high watermark is ``position``; replies below ``answered`` were released. On a full disk the watermark lags."""

    position: int
    answered: int


class DiskSpace(NamedTuple):
    """Whether free disk space is below the reserve. While ``full``, new messages are refused and verdicts accepted."""

    full: bool


class LogOffsetsNow(NamedTuple):
    """Drain: the next ticks log all fresh offsets, until ``Done.again`` is false."""


Event = (
    Heartbeat | Reachable | Polling | PollEnded | CheckDelivered | Unregistered | ConnectionClosed | Published | DiskSpace
    | LogOffsetsNow | TimePassed | LocksExpired | TrimStarted | DelayedPostponed | DecisionEvent
)  # fmt: skip


class MembersChanged(NamedTuple):
    """Notify these members of the consumer group that its membership changed."""

    group: str
    connections: tuple[int, ...]


def apply_session(state: State, event: Event) -> tuple[MembersChanged, ...]:
    """Apply ``event`` and return the members to notify. Send ``Tick`` at ``next_deadline_ms``."""
    return _APPLY[type(event)](state, event) or ()


def _heartbeat(state: State, event: Heartbeat) -> tuple[MembersChanged, ...]:
    if event.producers:
        produces = state.session.produces.setdefault(event.connection, {})
        for name in event.producers:
            produces[name] = None
            group = state.producer_group(name)
            if event.connection not in group.session.members:
                group.session.members[event.connection] = event.client_id
                cut_backoff(state, group)
    if event.consumers:
        state.session.consumes.setdefault(event.connection, {}).update(
            dict.fromkeys([data.group for data in event.consumers])
        )
    changed = [_consumer_heartbeat(state, event, data) for data in event.consumers]
    return tuple([change for change in changed if change is not None])


def _reachable(state: State, event: Reachable) -> None:
    """The missed checks are due again. The back-off of the others does not change."""
    group = state.producer_group(event.producer)
    if event.producer in state.session.produces.get(event.connection, ()):
        group.session.members.setdefault(event.connection, event.client_id)
        take_turn(state, group)


def _polling(state: State, event: Polling) -> None:
    """The first poll of a connection counts as a producer that connects; later ones do not."""
    group = state.producer_group(event.producer)
    state.session.produces.setdefault(event.connection, {})[event.producer] = None
    is_new = event.connection not in group.session.members and event.connection not in group.session.pollers
    group.session.pollers[event.connection] = event.client_id
    group.session.held_polls[event.connection] = event.room
    if is_new:
        cut_backoff(state, group)
    else:
        take_turn(state, group)


def _poll_ended(state: State, event: PollEnded) -> None:
    group = state.producer_groups.get(event.producer)
    if group is not None:
        group.session.held_polls.pop(event.connection, None)


def _check_delivered(state: State, event: CheckDelivered) -> None:
    group = state.producer_groups.get(event.producer)
    if group is not None:
        note_delivered(group, event.tx_id, event.checks, event.now_ms, state.settings.check_answer_ms)


def _consumer_heartbeat(state: State, event: Heartbeat, data: ConsumerData) -> MembersChanged | None:
    session = state.session.consumers.get(data.group)
    if session is None:
        session = state.session.consumers[data.group] = ConsumerSession()
    member = Member(event.client_id, event.version, event.language)
    changed = session.members.get(event.connection) != member
    session.members[event.connection] = member
    session.message_model = data.message_model
    session.consume_type = data.consume_type
    session.from_where = data.from_where
    if _subscribe(session, data.subscriptions):
        changed = True
    return _changed(data.group, session) if changed else None


def _subscribe(session: ConsumerSession, subscriptions: tuple[Subscription, ...]) -> bool:
    """Store the subscriptions of a heartbeat; True if one changed. The newer version of each wins."""
    changed = False
    for subscription in subscriptions:
        known = session.subscriptions.get(subscription.topic)
        if known is None or subscription.version > known.version:
            session.subscriptions[subscription.topic] = subscription
            changed = changed or known is None or _expression(known) != _expression(subscription)
    named = {subscription.topic for subscription in subscriptions}
    for topic in [topic for topic in session.subscriptions if topic not in named]:
        del session.subscriptions[topic]
        changed = True
    return changed


def _expression(subscription: Subscription) -> tuple[str, str]:
    return subscription.expression, subscription.expression_type


def _changed(group: str, session: ConsumerSession) -> MembersChanged:
    return MembersChanged(group, tuple(session.members))


def _unregistered(state: State, event: Unregistered) -> tuple[MembersChanged, ...]:
    if event.producer_group:
        _leave_producers(state, event.producer_group, event.connection)
        state.session.produces.get(event.connection, {}).pop(event.producer_group, None)
        forget_idle_groups(state)  # the client may now name other groups
    if not event.consumer_group:
        return ()
    log_now(state, event.consumer_group)
    state.session.consumes.get(event.connection, {}).pop(event.consumer_group, None)
    changed = _leave_consumers(state, event.consumer_group, event.connection)
    return () if changed is None else (changed,)


def _closed(state: State, event: ConnectionClosed) -> tuple[MembersChanged, ...]:
    for name in state.session.produces.pop(event.connection, ()):
        _leave_producers(state, name, event.connection)
    groups = list(state.session.consumes.pop(event.connection, ()))
    changed = [_leave_consumers(state, name, event.connection) for name in groups]
    forget_idle_groups(state)
    return tuple([change for change in changed if change is not None])


def _leave_producers(state: State, name: str, connection: int) -> None:
    group = state.producer_groups.get(name)
    if group is None:
        return
    group.session.held_polls.pop(connection, None)
    was_poller = group.session.pollers.pop(connection, None) is not None
    if group.session.members.pop(connection, None) is None and not was_poller:
        return
    # It will not respond to its checks: other members may get them before they are overdue.
    lost = [tx_id for tx_id, asked in group.session.in_flight.items() if asked.connection == connection]
    for tx_id in lost:
        del group.session.in_flight[tx_id]
    if lost and (group.session.members or group.session.pollers):
        group.session.early.extend(lost)
        take_turn(state, group)


def _leave_consumers(state: State, name: str, connection: int) -> MembersChanged | None:
    session = state.session.consumers.get(name)
    if session is None:
        return None
    member = session.members.pop(connection, None)
    if member is None:
        return None
    if all(other.client_id != member.client_id for other in session.members.values()):
        for queue in [queue for queue, lock in session.locks.items() if lock.client_id == member.client_id]:
            drop_lock(state, session, queue)
    if not session.members:
        session.subscriptions.clear()
    return _changed(name, session)


def forget_idle_groups(state: State) -> None:
    """Remove empty groups once they may be half of all groups, so that invented group names do not accumulate.

    Also when half of the verdicts that kept groups the last time have left memory: as many groups as there may be, each with a verdict,
    would otherwise stay for ever, since their number cannot double.
    """
    count = len(state.producer_groups) + len(state.session.consumers)
    may_be_empty = count >= GROUPS_KEPT_MIN and 2 * len(state.verdicts) < state.session.groups_kept_verdicts
    if count < state.session.groups_kept_max and not may_be_empty:
        return
    for name, group in list(state.producer_groups.items()):
        held = (
            group.session.members
            or group.session.pollers
            or group.undecided
            or group.settled
            or group.session.in_flight
        )
        if not held and name not in state.producer_settings:
            del state.producer_groups[name]
            state.session.asking.pop(name, None)
    for name, session in list(state.session.consumers.items()):
        if not (session.members or session.locks):
            del state.session.consumers[name]
    state.session.groups_kept_verdicts = len(state.verdicts)
    state.session.groups_kept_max = max(
        GROUPS_KEPT_MIN, 2 * (len(state.producer_groups) + len(state.session.consumers))
    )


def _published(state: State, event: Published) -> None:
    state.session.published = event.position
    state.session.answered = event.answered
    forget_idle_groups(state)  # one connection may invent any number of names


def _disk_space(state: State, event: DiskSpace) -> None:
    state.session.disk_full = event.full


def _time_passed(state: State, event: TimePassed) -> None:
    move_due(state, event.now_ms)
    examine_rounds(state, event.now_ms)
    take_due(state, event.now_ms)


def _queue_chosen(state: State, event: QueueChosen) -> None:
    state.topics_by_id[event.topic_id].session.round_robin_index += 1


def _halves_rolled_back(state: State, event: HalvesRolledBack) -> None:
    counts = state.session.rolled_back
    for topic_id in event.topics:
        counts[topic_id] = counts.get(topic_id, 0) + 1


def _topic_removed(state: State, event: TopicRemoved) -> None:
    forget_topic(state, event)
    state.session.rolled_back.pop(event.topic_id, None)


def _group_gone(state: State, event: ConsumerGroupRemoved) -> None:
    forget_locks(state, event.group)
    if event.with_offsets:
        forget_offsets(state, event.group)


def _log_offsets_now(state: State, event: LogOffsetsNow) -> None:
    log_now(state, None)


_APPLY: Final[dict[type, Callable[[State, Any], tuple[MembersChanged, ...] | None]]] = {
    Heartbeat: _heartbeat,
    Reachable: _reachable,
    Polling: _polling,
    PollEnded: _poll_ended,
    CheckDelivered: _check_delivered,
    Unregistered: _unregistered,
    ConnectionClosed: _closed,
    Published: _published,
    DiskSpace: _disk_space,
    LogOffsetsNow: _log_offsets_now,
    TimePassed: _time_passed,
    QueueChosen: _queue_chosen,
    UnknownReceived: note_unknown,
    HalvesRolledBack: _halves_rolled_back,
    CheckCancelled: note_check_cancelled,
    ChecksSent: note_asked,
    CheckWaits: note_waiting,
    CheckFailed: note_failed,
    CheckLimitRaised: note_limit_raised,
    ParkedResumed: note_resumed,
    PolicyExamined: note_examined,
    PolicyChanged: note_changed,
    OffsetReported: note_reported,
    OffsetLogged: note_logged,
    OffsetRefused: note_refused,
    OffsetsDrained: note_taken,
    LocksExpired: note_run_out,
    QueuesLocked: note_locked,
    QueuesUnlocked: note_unlocked,
    TopicRemoved: _topic_removed,
    ConsumerGroupRemoved: _group_gone,
    DelayedPostponed: note_postponed,
    TrimStarted: start_search,
    CopiedForward: note_copied,
}
