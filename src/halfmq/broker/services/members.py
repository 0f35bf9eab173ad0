"""Connected clients: members of producer and consumer groups, subscriptions of consumers, queue locks.

This is session state: a restart loses it, and clients send it again with their next heartbeat. Two things are durable: consumer groups
that a heartbeat names for the first time, whose creation its response waits for; and the holders of queue locks, which are logged
(``core.queues.ordering``). A heartbeat that names nothing new is answered while the disk is slow: clients recognize by it a broker that
is away.

Later requests of the same connection wait for its heartbeat: a client that left before its heartbeat was registered would otherwise
remain a member, whose queues nobody reads, until its connection ends.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

from halfmq import limits
from halfmq.broker.peers.peer import Peer
from halfmq.broker.peers.peers import Peers
from halfmq.broker.peers.shares import Shares, owner_of
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.subscription_conflicts import SubscriptionConflicts
from halfmq.broker.services.tag_filter import TAG
from halfmq.broker.services.topics import GroupsOnUse
from halfmq.broker.timers import BrokerTime
from halfmq.core.commands import LockQueues, UnlockQueues
from halfmq.core.decision import Done, Failed, Locked, Refused, Reply, Why
from halfmq.core.session import ConnectionClosed, ConsumerData, Event, Heartbeat, Unregistered
from halfmq.core.state import Subscription
from halfmq.core.transaction.admission import groups_refusal, producer_groups_refusal
from halfmq.model.ids import group_problem
from halfmq.model.settings import GroupSettings
from halfmq.runtime.log_throttle import LogThrottle

log = logging.getLogger("halfmq.clients")

_DONE: Final = Done()
#: Memory of a group and of a subscription without their strings, bytes.
_GROUP_COST: Final = 1_024
_SUBSCRIPTION_COST: Final = 512
#: Client ids whose user is remembered.
_OWNERS_MAX: Final = 65_536
#: Maximum length of the name of an expression type.
_TYPE_CHARS_MAX: Final = 32
#: Minimum interval between two log lines about the limit of locks, s.
_LOCKS_LOGGED_S: Final = 60.0


class Registered(NamedTuple):
    """The member is registered. ``left_out``: why not in all of its producer groups. ``conflict``: with which member of a consumer group
    its subscription differs; "" if with none."""

    left_out: str | None
    conflict: str = ""


class Member(NamedTuple):
    """A client's description of itself in each heartbeat."""

    client_id: str
    #: Version of its software, as numbered by the front door.
    version: int
    language: str
    producer_groups: tuple[str, ...]
    consumer_groups: tuple[ConsumerData, ...]


_Answer = Callable[[Registered | Refused | Failed], None]


class _Waiting(NamedTuple):
    """A request that waits while consumer groups of the connection's heartbeat are created."""

    call: Callable[[], None]
    #: Responds if ``call`` fails.
    failed: Callable[[Failed], None]
    peer: Peer
    memory_bytes: int


class MembersChanged(NamedTuple):
    """The members of a consumer group changed, a push for each of them."""

    group: str


class Members:
    """Registers members of groups, and notifies the others."""

    def __init__(
        self,
        sequencer: Sequencer,
        groups: GroupsOnUse,
        time: BrokerTime,
        peers: Peers,
        *,
        on_unsupported: Callable[[str, str, Subscription], None],
    ) -> None:
        """
        Args:
            on_unsupported: called with (client id, group, subscription) of an expression type that is not supported.
        """
        self._sequencer = sequencer
        self._view = sequencer.view
        self._groups = groups
        self._time = time
        self._subscription_conflicts = SubscriptionConflicts(peers.log_throttle.is_due)
        self._peers = peers
        self._on_unsupported = on_unsupported
        self._locks_logged = LogThrottle(lambda: time.now_ms() / 1000, rest_s=_LOCKS_LOGGED_S)
        #: Bytes of its subscriptions, by connection and group, as counted.
        self._subscribed: dict[int, dict[str, int]] = {}
        self._shares = Shares("bytes of subscriptions")
        #: Whose the connections with subscriptions were when they subscribed first.
        self._subscribers: dict[int, str] = {}
        #: By connection, while groups of its heartbeat are created: later requests, in order.
        self._waiting: dict[int, deque[_Waiting]] = {}
        #: The newest connection of each client id, and the inverse.
        self._connections: dict[str, int] = {}
        #: Consumer groups that a crash does not revert, as of an answered heartbeat. A group that was changed or created again since is
        #: another object.
        self._durable_groups: dict[str, GroupSettings] = {}
        self._ids: dict[int, str] = {}
        #: By client id: the user who had it first, also while it is not connected. The newest ones.
        self._owners: dict[str, str] = {}
        #: By connection: version and language in its last heartbeat.
        self.software: dict[int, tuple[int, str]] = {}

    def client_id(self, number: int) -> str:
        """The client id of a connection, of its last heartbeat; "": it has sent none."""
        return self._ids.get(number, "")

    # --- heartbeats, leaving, closing

    def heartbeat(
        self, peer: Peer, member: Member, memory_bytes: int, answer: Callable[[Registered | Refused | Failed], None]
    ) -> None:
        """Register ``member`` in its groups.

        Args:
            memory_bytes: size of the request while it waits for an earlier heartbeat of the peer.
            answer: called when the member is registered and a crash cannot revert what that says, its groups; or when the whole heartbeat
                was refused.
        """
        if peer.is_open:
            self._in_order(_Waiting(lambda: self._take(peer, member, answer), answer, peer, memory_bytes))

    def leave(
        self, peer: Peer, client_id: str, producer_group: str, consumer_group: str, memory_bytes: int,
        answer: Callable[[Failed | None], None],
    ) -> None:  # fmt: skip
        """The client leaves these groups; "": none of that kind. Arguments as for ``heartbeat``."""

        def left() -> None:
            number = peer.number
            self._subscription_conflicts.left(consumer_group, number)
            self._subscribe(number, consumer_group, 0)
            self._give_up_locks(number, consumer_group)
            self._note(Unregistered(number, client_id, producer_group, consumer_group))
            answer(None)

        self._in_order(_Waiting(left, answer, peer, memory_bytes))

    def connection_closed(self, number: int, *, keep_locks: bool) -> None:
        """``keep_locks``: the broker closed the connection, and the client continues to consume its locked queues."""
        for one in self._waiting.pop(number, ()):
            self._peers.waiting -= 1
            one.peer.give_back(one.memory_bytes)
        self._forget(number)
        self.software.pop(number, None)
        for group in self._view.session.consumes.get(number, ()):
            self._subscription_conflicts.left(group, number)
            if not keep_locks:
                self._give_up_locks(number, group)
        for group in list(self._subscribed.get(number, ())):
            self._subscribe(number, group, 0)
        self._note(ConnectionClosed(number))

    def _in_order(self, one: _Waiting) -> None:
        """Run it now, or after the heartbeat of this connection whose groups are being created."""
        waiting = self._waiting.get(one.peer.number)
        if waiting is None:
            one.call()
        else:
            waiting.append(one)
            self._peers.waiting += 1
            one.peer.keep(one.memory_bytes)

    def _take(self, peer: Peer, member: Member, answer: _Answer) -> None:
        if peer.principal is not None and self._owners.setdefault(member.client_id, peer.user) != peer.user:
            # What is sent to a client by its id, as the replies to its requests, must not reach somebody else.
            text = f"client id {member.client_id[: limits.CLIENT_ID_CHARS_MAX]!r} is another user's"
            answer(Refused(Why.NO_PERMISSION, text))
            return
        if len(self._owners) > _OWNERS_MAX:
            del self._owners[next(iter(self._owners))]
        refusal = self._refusal(peer.number, member) or self._too_much(peer, member)
        if refusal:
            answer(Refused(Why.INVALID_PARAMETER, refusal))
            return
        if member.consumer_groups:
            self._subscribers.setdefault(peer.number, owner_of(peer))
        for data in member.consumer_groups:  # before its groups are created: other requests may arrive meanwhile
            self._subscribe(peer.number, data.group, _weight(data))
        missing = [data.group for data in member.consumer_groups if data.group not in self._view.groups]
        if missing:
            self._make(missing, peer, member, answer)
        else:
            self._register(peer, member, answer)

    def _make(self, missing: list[str], peer: Peer, member: Member, answer: _Answer) -> None:
        """Create the groups one after another, then register. A group that may not be created is skipped, as in RocketMQ."""
        self._waiting[peer.number] = deque()

        def made(_: Refused | Failed | None) -> None:
            if not peer.is_open:
                return
            while missing and missing[-1] in self._view.groups:
                missing.pop()  # another connection created it
            if missing:
                self._groups.ensure(missing.pop(), made)
            else:
                self._run(lambda: self._register_late(peer, member, answer), answer)
                self._go_on(peer.number)

        made(None)

    def _register_late(self, peer: Peer, member: Member, answer: _Answer) -> None:
        refusal = self._too_many_groups(peer.number, member)  # polls for checks may have added it to other groups
        if refusal:
            self._forget_subscriptions(peer.number, member)
            answer(Refused(Why.INVALID_PARAMETER, refusal))
        else:
            self._register(peer, member, answer)

    def _go_on(self, number: int) -> None:
        """After the registration, run the waiting requests, up to the next heartbeat whose groups must be created."""
        waiting = self._waiting.pop(number)
        while waiting and number not in self._waiting:
            self._peers.waiting -= 1
            one = waiting.popleft()
            one.peer.give_back(one.memory_bytes)
            self._run(one.call, one.failed)
        if waiting:
            self._waiting[number] = waiting

    def _run(self, call: Callable[[], None], failed: Callable[[Failed], None]) -> None:
        """An exception becomes the response, and does not stop the requests after it."""
        try:
            call()
        except Exception as error:
            log.exception("a heartbeat that waited failed, or leaving a group")
            failed(Failed(f"{type(error).__name__}: {error}"))

    def _register(self, peer: Peer, member: Member, answer: _Answer) -> None:
        number = peer.number
        # Only now, since waiting heartbeats may have added producer groups. Its consumer groups are registered anyway.
        producers = member.producer_groups
        left_out = producer_groups_refusal(self._view, number, producers)
        if left_out:
            producers = tuple([name for name in producers if name in self._view.producer_groups])
        consumers = tuple([data for data in member.consumer_groups if data.group in self._view.groups])
        self.software[number] = (member.version, member.language)
        self._note(
            Heartbeat(
                number, member.client_id, member.version, member.language, producers, consumers,
                self._time.now_ms(),
            )
        )  # fmt: skip
        self._forget_subscriptions(number, member)
        self._known_as(number, member.client_id)
        conflicts = []
        for data in consumers:
            for subscription in data.subscriptions:
                if subscription.expression_type not in ("", TAG):
                    self._on_unsupported(member.client_id, data.group, subscription)
            conflicts.append(
                self._subscription_conflicts.heard(data.group, number, member.client_id, data.subscriptions)
            )
        conflict = next(filter(None, conflicts), "")
        groups = {data.group: self._view.groups[data.group] for data in consumers}
        if left_out is None and all(self._durable_groups.get(name) is group for name, group in groups.items()):
            answer(Registered(None, conflict))
        else:  # a group from another client's heartbeat may not be durable yet, nor the transactions whose groups are too many
            self._sequencer.after_durable(
                lambda _, __: self._registered(groups, Registered(left_out, conflict), answer), None, _DONE
            )

    def _registered(self, groups: dict[str, GroupSettings], registered: Registered, answer: _Answer) -> None:
        self._durable_groups.update(groups)
        if len(self._durable_groups) > len(self._view.groups):
            self._durable_groups = {n: group for n, group in self._durable_groups.items() if n in self._view.groups}
        answer(registered)

    # --- bounds

    def _refusal(self, number: int, member: Member) -> str | None:
        """Why the whole heartbeat is refused. Names of consumer groups are checked when these are created."""
        too_many = self._too_many_groups(number, member)
        if too_many:
            return too_many
        for name in member.producer_groups:
            if invalid := group_problem(name):
                return invalid
        if len(member.client_id) > limits.CLIENT_ID_CHARS_MAX:
            return (
                f"a client id of {len(member.client_id)} characters, at most {limits.CLIENT_ID_CHARS_MAX}: choose a shorter "
                "instance name"
            )
        for data in member.consumer_groups:
            for subscription in data.subscriptions:
                problem = _wrong_subscription(subscription)
                if problem:
                    return f"a subscription of group {data.group[: limits.GROUP_CHARS_MAX]}: {problem}"
        return None

    def _too_many_groups(self, number: int, member: Member) -> str | None:
        consumers = [data.group for data in member.consumer_groups]
        return groups_refusal(self._view, number, member.producer_groups, consumers)

    @property
    def subscribed_bytes(self) -> int:
        """Memory for the subscriptions of all connections, bytes."""
        return self._shares.taken

    def _too_much(self, peer: Peer, member: Member) -> str | None:
        """Why there is no memory for the subscriptions of this heartbeat."""
        before = self._subscribed.get(peer.number, {})
        after = before | {data.group: _weight(data) for data in member.consumer_groups}
        whole = sum(after.values())
        if whole > limits.SUBSCRIPTIONS_BYTES_PER_CONNECTION_MAX:
            return f"subscriptions of {whole} bytes, at most {limits.SUBSCRIPTIONS_BYTES_PER_CONNECTION_MAX} per connection"
        more = whole - sum(before.values())
        if more <= 0 or whole <= limits.SUBSCRIPTIONS_BYTES_PER_CONNECTION_EXEMPT:
            return None
        owner = self._subscribers.get(peer.number) or owner_of(peer)
        refusal = self._shares.refusal(owner, limits.SUBSCRIPTIONS_BYTES_MAX, more)
        exempt = limits.SUBSCRIPTIONS_BYTES_PER_CONNECTION_EXEMPT
        return f"{refusal}: a connection may have {exempt} at any time" if refusal is not None else None

    def _subscribe(self, number: int, group: str, weight: int) -> None:
        """Count ``weight`` bytes for the subscriptions of this connection in this group; 0: it has none any more."""
        groups = self._subscribed.setdefault(number, {})
        more = weight - groups.pop(group, 0)
        if more:
            self._shares.add(self._subscribers[number], more)
        if weight:
            groups[group] = weight
        elif not groups:
            del self._subscribed[number]
            self._subscribers.pop(number, None)

    def _forget_subscriptions(self, number: int, member: Member) -> None:
        """Remove subscriptions in groups in which it was not registered."""
        consumes = self._view.session.consumes.get(number, ())
        for data in member.consumer_groups:
            if data.group not in consumes:
                self._subscribe(number, data.group, 0)

    # --- who is who

    def connection_of(self, client_id: str) -> int | None:
        """The connection of the last heartbeat with this id; None: there was none, or the id is too long to be kept."""
        return self._connections.get(client_id)

    def client_ids(self, group: str) -> list[str]:
        """Client ids of the members of a consumer group, each once; empty: there are none."""
        session = self._view.session.consumers.get(group)
        return list(dict.fromkeys([one.client_id for one in session.members.values()])) if session is not None else []

    def _known_as(self, number: int, client_id: str) -> None:
        if self._connections.get(client_id) != number and len(client_id) <= limits.CLIENT_ID_CHARS_MAX:
            self._forget(number)
            self._ids.pop(self._connections.get(client_id, 0), None)
            self._connections[client_id] = number
            self._ids[number] = client_id

    def _forget(self, number: int) -> None:
        client_id = self._ids.pop(number, None)
        if client_id is not None:
            del self._connections[client_id]

    def _note(self, event: Event) -> None:
        """Apply the event, notify the members of changed groups that want it, and schedule the next tick."""
        for group, members in self._sequencer.engine.note(event):
            settings = self._view.groups.get(group)
            if settings is not None and not settings.notifies_members:
                continue
            for number in members:
                self._peers.push(number, MembersChanged(group))
        self._sequencer.update_deadline()

    # --- queue locks

    def lock(
        self, peer: Peer, group: str, client_id: str, queues: Collection[tuple[str, int]],
        answer: Callable[[Locked | Refused | Failed], None],
    ) -> None:  # fmt: skip
        """Lock ``queues``, (topic, queue id) each, for the client. The response contains those that it holds.

        Queues and groups that do not exist are skipped: nobody could use their locks.
        """
        topics = self._view.topics_by_name
        known = len(client_id) <= limits.CLIENT_ID_CHARS_MAX and group in self._view.groups
        wanted = [
            (topic, queue_id)
            for topic, queue_id in queues
            if known and topic in topics and 0 <= queue_id < len(topics[topic].ends)
        ]
        if wanted:
            command = LockQueues(group, client_id, tuple(wanted), owner_of(peer))
            self._sequencer.submit(command, self._locked, (peer, answer))
        else:
            answer(Locked(()))

    def _locked(self, context: tuple[Peer, Callable[[Any], None]], reply: Reply | Failed) -> None:
        peer, answer = context
        if isinstance(reply, Locked) and reply.is_full and self._locks_logged.is_due("full"):
            log.warning(
                "queue lock limit reached (%d of %d, %d of them of %s, and one may have three quarters): consumers in order get no more "
                "queues until some locks expire (60 s); the last refusal was to %s",
                self._view.session.locks_held, limits.LOCKS_MAX, self._view.session.locks_of_owner.get(owner_of(peer), 0),
                owner_of(peer), peer.address,
            )  # fmt: skip
        answer(reply)

    def unlock(
        self, group: str, client_id: str, queues: Collection[tuple[str, int]], answer: Callable[[], None]
    ) -> None:
        """Release these locks. It succeeds even if a full disk prevents it: locks expire."""
        self._sequencer.submit(UnlockQueues(group, client_id, tuple(queues)), lambda _, __: answer(), None)

    def _give_up_locks(self, number: int, group: str) -> None:
        """A member leaves. With its last connection its locks are released, so that nobody waits for it after the next start."""
        session = self._view.session.consumers.get(group)
        member = session.members.get(number) if session is not None else None
        if session is None or member is None or not session.locks:
            return
        if all(other.client_id != member.client_id for at, other in session.members.items() if at != number):
            self._sequencer.submit(UnlockQueues(group, member.client_id, None), None)


def _wrong_subscription(item: Subscription) -> str | None:
    if len(item.topic) > limits.RETRY_TOPIC_CHARS_MAX:
        return f"a topic of {len(item.topic)} characters, at most {limits.RETRY_TOPIC_CHARS_MAX}"
    if len(item.expression) > limits.EXPRESSION_CHARS_MAX:
        return f"an expression of {len(item.expression)} characters, at most {limits.EXPRESSION_CHARS_MAX}"
    if len(item.expression_type) > _TYPE_CHARS_MAX or not -(1 << 63) <= item.version < 1 << 63:
        return "its expression type or its version is invalid"
    return None


def _weight(data: ConsumerData) -> int:
    """Approximate memory of what is kept: its strings, up to four bytes a character, and their containers, twice."""
    return _GROUP_COST + sum(
        [_SUBSCRIPTION_COST + 2 * (len(item.topic) + len(item.expression)) for item in data.subscriptions]
    )
