"""Members of groups: who is connected, in which producer and consumer groups, what they subscribe to, and who holds which
queue in order.

Membership is session state: a restart forgets it, and clients repeat it with their next heartbeat. Two parts of it are durable:
the consumer groups that a heartbeat names for the first time, which are made before the heartbeat is answered, since the client
asks for the route of the group's retry topic next; and the holders of queue locks (``core.queues.ordering``).

The heartbeats and departures of one peer take effect in the order in which they came: while the groups of a heartbeat are being
made, what the peer sends after it waits. Otherwise a client that left before its heartbeat was registered would stay a member
that reads nothing.

Memory is bounded: names and expressions have a length, a peer has a number of groups, and the subscriptions of a peer and of all
peers have a number of bytes. A heartbeat that waits for its groups counts from the moment it is accepted.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from halfmq import limits
from halfmq.broker.seldom import Seldom
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.groups import GroupsOnUse
from halfmq.broker.services.peer import Peer
from halfmq.broker.services.unlike_subscriptions import UnlikeSubscriptions
from halfmq.broker.timers import BrokerTime
from halfmq.core.commands import LockQueues, UnlockQueues
from halfmq.core.decision import Done, Locked, Refused, Reply, Why
from halfmq.core.engine import Failed
from halfmq.core.queues.filter import TAG, FilterRefused, parse_filter
from halfmq.core.session import ConnectionClosed, ConsumerData, Event, Heartbeat, Unregistered
from halfmq.core.state import Subscription
from halfmq.core.transaction.admission import groups_refusal, producer_groups_refusal
from halfmq.errors import InvalidName
from halfmq.model.ids import checked_name

log = logging.getLogger("halfmq.clients")

#: Memory of a group and of a subscription beside their strings, bytes.
_GROUP_COST: Final = 1_024
_SUBSCRIPTION_COST: Final = 512
#: Characters in the type of an expression: TAG, SQL92.
_TYPE_CHARS_MAX: Final = 32
#: The log names a full lock table at most this often, s.
_LOCKS_SAID_S: Final = 60.0
_DONE: Final = Done()


class ClientHeartbeat(NamedTuple):
    """What a client says of itself. Its groups join those that its connection is in already; none is left by it."""

    client_id: str
    #: The client library, for administrators: the number of its version and the name of its language.
    version: int
    language: str
    producer_groups: tuple[str, ...]
    consumer_groups: tuple[ConsumerData, ...]


class Registered(NamedTuple):
    """The client is a member of the groups it named, except consumer groups that may not be made.

    ``left_out``: None, or why it did not become a member of those producer groups that the broker did not know before.
    """

    left_out: str | None


class Consumers(Protocol):
    """How a change of members reaches the members: the front doors."""

    def push_members_changed(self, number: int, group: str) -> None:
        """Tell the peer ``number`` that members or subscriptions of the group changed. It may be lost: clients also ask."""
        ...


class _Waiting(NamedTuple):
    call: Callable[[], None]
    #: Answers the peer if ``call`` raises.
    answer: Callable[[Failed], None]
    peer: Peer
    memory_bytes: int


class Members:
    """Call ``peer_gone`` when a peer closes. ``waiting`` counts towards the backlog above which nobody is read from."""

    def __init__(
        self,
        sequencer: Sequencer,
        groups: GroupsOnUse,
        time: BrokerTime,
        consumers: Consumers,
        unlike: UnlikeSubscriptions,
    ) -> None:
        """``unlike``: logs clients of one group that subscribe to different things."""
        self._sequencer = sequencer
        self._view = sequencer.view
        self._groups = groups
        self._time = time
        self._consumers = consumers
        self._unlike = unlike
        self._locks_said = Seldom(lambda: time.now_ms() / 1000, rest_s=_LOCKS_SAID_S)
        #: Called with (client id, group, topic, expression, type) for a subscription whose type is not offered: it gets nothing.
        self.on_not_offered: Callable[[str, str, str, str, str], None] = lambda *subscription: None
        #: By peer's number and group: bytes of its subscriptions, registered or waiting; and their sum.
        self._subscribed: dict[int, dict[str, int]] = {}
        self.subscribed_bytes = 0
        #: By the number of a peer whose heartbeat waits for its groups: what came after that heartbeat, in order.
        self._waiting: dict[int, deque[_Waiting]] = {}
        #: How many wait in ``_waiting``.
        self.waiting = 0
        #: Client id -> number of its newest peer, and the reverse.
        self._numbers: dict[str, int] = {}
        self._ids: dict[int, str] = {}
        #: By peer's number: version and language of its last heartbeat.
        self._libraries: dict[int, tuple[int, str]] = {}

    # --- heartbeats

    def register(
        self,
        peer: Peer,
        heartbeat: ClientHeartbeat,
        answer: Callable[[Registered | Refused | Failed], None],
        *,
        memory_bytes: int,
    ) -> None:
        """Make the peer a member of the groups in its heartbeat. Consumer groups that do not exist are made first.

        ``memory_bytes``: what the heartbeat and ``answer`` hold while they wait.

        Refusals: INVALID_PARAMETER: a name or a subscription is too long or malformed, or there are too many groups or
            subscriptions. Nothing of the heartbeat is registered.
        """
        self._in_order(peer, partial(self._accept, peer, heartbeat, answer), answer, memory_bytes)

    def _in_order(
        self, peer: Peer, call: Callable[[], None], answer: Callable[[Failed], None], memory_bytes: int
    ) -> None:
        """Call now, or after the heartbeat of this peer that waits for its groups."""
        waiting = self._waiting.get(peer.number)
        if waiting is None:
            call()
        else:
            waiting.append(_Waiting(call, answer, peer, memory_bytes))
            self.waiting += 1
            peer.keep(memory_bytes)

    def _accept(self, peer: Peer, heartbeat: ClientHeartbeat, answer: Callable[[Any], None]) -> None:
        number = peer.number
        if not peer.is_open:
            return  # ``peer_gone`` has been called: nobody would forget what is kept for this peer from now on
        refused = (
            self._groups_refusal(number, heartbeat)
            or _refusal(heartbeat)
            or self._subscriptions_refusal(number, heartbeat)
        )
        if refused:
            answer(Refused(Why.INVALID_PARAMETER, refused))
            return
        for data in heartbeat.consumer_groups:
            self._count(number, data.group, _weight(data))
        missing = [data.group for data in heartbeat.consumer_groups if data.group not in self._view.groups]
        if missing:
            self._make(missing, peer, heartbeat, answer)
        else:
            self._register(peer, heartbeat, answer)

    def _groups_refusal(self, number: int, heartbeat: ClientHeartbeat) -> str | None:
        consumers = [data.group for data in heartbeat.consumer_groups]
        return groups_refusal(self._view, number, heartbeat.producer_groups, consumers)

    def _subscriptions_refusal(self, number: int, heartbeat: ClientHeartbeat) -> str | None:
        """Why there is no memory for the subscriptions of this heartbeat. The caller counts them if there is."""
        before = self._subscribed.get(number, {})
        after = before | {data.group: _weight(data) for data in heartbeat.consumer_groups}
        whole = sum(after.values())
        if whole > limits.SUBSCRIPTIONS_BYTES_PER_CONNECTION_MAX:
            return f"subscriptions of {whole} bytes, at most {limits.SUBSCRIPTIONS_BYTES_PER_CONNECTION_MAX} per connection"
        more = whole - sum(before.values())
        if (
            more > 0
            and whole > limits.SUBSCRIPTIONS_BYTES_FREE
            and self.subscribed_bytes + more > limits.SUBSCRIPTIONS_BYTES_MAX
        ):
            return (
                f"subscriptions of all clients hold {self.subscribed_bytes} of {limits.SUBSCRIPTIONS_BYTES_MAX} bytes: "
                f"only {limits.SUBSCRIPTIONS_BYTES_FREE} more for each client now"
            )
        return None

    def _count(self, number: int, group: str, weight: int) -> None:
        """The subscriptions of this peer in this group take ``weight`` bytes; 0: there are none any more."""
        groups = self._subscribed.setdefault(number, {})
        self.subscribed_bytes += weight - groups.pop(group, 0)
        if weight:
            groups[group] = weight
        elif not groups:
            del self._subscribed[number]

    def _make(self, missing: list[str], peer: Peer, heartbeat: ClientHeartbeat, answer: Callable[[Any], None]) -> None:
        """Make the groups one after another, then register. A group that may not be made is left out."""
        self._waiting[peer.number] = deque()

        def made(_: Refused | Failed | None) -> None:
            if not peer.is_open:
                return
            while missing and missing[-1] in self._view.groups:
                missing.pop()  # another peer was faster
            if missing:
                self._groups.ensure(missing.pop(), made)
            else:
                self._run(partial(self._register_late, peer, heartbeat, answer), answer)
                self._go_on(peer.number)

        made(None)

    def _register_late(self, peer: Peer, heartbeat: ClientHeartbeat, answer: Callable[[Any], None]) -> None:
        refused = self._groups_refusal(peer.number, heartbeat)  # polls for checks have joined groups meanwhile
        if refused:
            self._uncount(peer.number, heartbeat)
            answer(Refused(Why.INVALID_PARAMETER, refused))
        else:
            self._register(peer, heartbeat, answer)

    def _go_on(self, number: int) -> None:
        """Do what waited for a heartbeat that is registered now, up to the next one whose groups have to be made."""
        waiting = self._waiting.pop(number)
        while waiting and number not in self._waiting:
            self.waiting -= 1
            call, answer, peer, memory_bytes = waiting.popleft()
            peer.give_back(memory_bytes)
            self._run(call, answer)
        if waiting:
            self._waiting[number] = waiting

    def _run(self, call: Callable[[], None], answer: Callable[[Failed], None]) -> None:
        """What raises is answered, and does not hold up what waits after it."""
        try:
            call()
        except Exception as error:
            log.exception("a heartbeat or a departure failed")
            answer(Failed(f"{type(error).__name__}: {error}"))

    def _register(self, peer: Peer, heartbeat: ClientHeartbeat, answer: Callable[[Any], None]) -> None:
        number, view = peer.number, self._view
        producers = heartbeat.producer_groups
        # At the last moment: other heartbeats that waited have brought new producer groups too.
        left_out = producer_groups_refusal(view, number, producers)
        if left_out:
            producers = tuple([name for name in producers if name in view.producer_groups])
        consumers = tuple([data for data in heartbeat.consumer_groups if data.group in view.groups])
        self._libraries[number] = (heartbeat.version, heartbeat.language)
        self._apply(
            Heartbeat(
                number,
                heartbeat.client_id,
                heartbeat.version,
                heartbeat.language,
                producers,
                consumers,
                self._time.now_ms(),
            )
        )
        self._uncount(number, heartbeat)
        self._known_as(number, heartbeat.client_id)
        for data in consumers:
            for topic, expression, kind, _ in data.subscriptions:
                if kind not in ("", TAG):
                    self.on_not_offered(heartbeat.client_id, data.group, topic, expression, kind)
            self._unlike.heard(data.group, number, heartbeat.client_id, data.subscriptions)
        # A group that the heartbeat of another client made may be in memory only.
        self._sequencer.after_durable(lambda _, __: answer(Registered(left_out)), None, _DONE)

    def _uncount(self, number: int, heartbeat: ClientHeartbeat) -> None:
        """Count no longer the subscriptions in groups of which the peer did not become a member."""
        consumes = self._view.session.consumes.get(number, ())
        for data in heartbeat.consumer_groups:
            if data.group not in consumes:
                self._count(number, data.group, 0)

    # --- departures

    def leave(
        self,
        peer: Peer,
        client_id: str,
        producer_group: str,
        consumer_group: str,
        answer: Callable[[Done | Failed], None],
        *,
        memory_bytes: int,
    ) -> None:
        """The peer is no longer a member of these groups. An empty name means no group of that kind.

        ``memory_bytes``: what the names and ``answer`` hold while they wait.
        """
        event = Unregistered(peer.number, client_id, producer_group, consumer_group)
        self._in_order(peer, partial(self._leave, event, answer), answer, memory_bytes)

    def _leave(self, event: Unregistered, answer: Callable[[Done], None]) -> None:
        number, group = event.connection, event.consumer_group
        self._unlike.left(group, number)
        self._count(number, group, 0)
        self._give_up_locks(number, group)
        self._apply(event)
        answer(_DONE)

    def peer_gone(self, number: int, *, cut_off: bool) -> None:
        """The peer is no longer a member of any group, and what it waited for is forgotten.

        ``cut_off``: the broker closed it, for instance because it stops. The client is still there and handles the queues it
        has locked, so its locks stay.
        """
        for waiting in self._waiting.pop(number, ()):
            self.waiting -= 1
            waiting.peer.give_back(waiting.memory_bytes)
        self._forget_id(number)
        self._libraries.pop(number, None)
        for group in self._view.session.consumes.get(number, ()):
            self._unlike.left(group, number)
            if not cut_off:
                self._give_up_locks(number, group)
        self.subscribed_bytes -= sum(self._subscribed.pop(number, {}).values())
        self._apply(ConnectionClosed(number))

    def _give_up_locks(self, number: int, group: str) -> None:
        """A member leaves, and with its last peer its locks: the next start keeps no queue for it."""
        session = self._view.session.consumers.get(group)
        member = session.members.get(number) if session is not None else None
        if session is None or member is None or not session.locks:
            return
        if all(other.client_id != member.client_id for at, other in session.members.items() if at != number):
            self._sequencer.submit(UnlockQueues(group, member.client_id, None), None)

    def _apply(self, event: Event) -> None:
        """Change the session, tell all members of the groups that changed, and look when a tick is due."""
        for group, members in self._sequencer.engine.note(event):
            for number in members:
                self._consumers.push_members_changed(number, group)
        self._sequencer.look_at_deadline()

    # --- who they are

    def client_ids(self, group: str) -> list[str]:
        """The clients that consume in the group, each once; empty: none, or there is no such group."""
        session = self._view.session.consumers.get(group)
        members = session.members.values() if session is not None else ()
        return list(dict.fromkeys(member.client_id for member in members))

    def peer_of(self, client_id: str) -> int | None:
        """The number of the peer whose heartbeat gave this id last; None: no peer did, or it is gone."""
        return self._numbers.get(client_id)

    def library_of(self, number: int) -> tuple[int, str] | None:
        """(version, language) of the peer's last heartbeat; None: it has sent none."""
        return self._libraries.get(number)

    def _known_as(self, number: int, client_id: str) -> None:
        if self._numbers.get(client_id) != number:
            self._forget_id(number)
            self._ids.pop(self._numbers.get(client_id, 0), None)
            self._numbers[client_id] = number
            self._ids[number] = client_id

    def _forget_id(self, number: int) -> None:
        client_id = self._ids.pop(number, None)
        if client_id is not None:
            del self._numbers[client_id]

    # --- queue locks

    def lock(
        self,
        peer: Peer,
        group: str,
        client_id: str,
        queues: Iterable[tuple[str, int]],
        answer: Callable[[Sequence[tuple[str, int]] | Refused | Failed], None],
    ) -> None:
        """Lock queues, each a (topic, queue id), for this client for ``limits.QUEUE_LOCK_MS``, or renew its locks.

        Answers with those that the client holds now: another client holds the others, or they do not exist. The client asks
        again before the locks expire.

        Refusals: STORE_FULL: a new holder could not be stored; nothing was locked.
        """
        # A lock of what does not exist would be kept in memory, and nobody could use it.
        known = len(client_id) <= limits.CLIENT_ID_CHARS_MAX and group in self._view.groups
        wanted = tuple([queue for queue in queues if known and 0 <= queue[1] < self._queue_count(queue[0])])
        if wanted:
            self._sequencer.submit(LockQueues(group, client_id, wanted), self._locked, (peer, answer))
        else:
            answer(())

    def _locked(self, context: tuple[Peer, Callable[[Any], None]], reply: Reply | Failed) -> None:
        peer, answer = context
        if not isinstance(reply, Locked):
            answer(reply)
            return
        if reply.is_full and self._locks_said.is_due("full"):
            log.warning(
                "%d queue locks are held, of which there may be %d: clients that consume in order get no more before some "
                "run out (60 s); the last was refused to %s",
                self._view.session.locks_held, limits.LOCKS_MAX, peer.address,
            )  # fmt: skip
        answer(reply.queues)

    def _queue_count(self, name: str) -> int:
        topic = self._view.topics_by_name.get(name)
        return 0 if topic is None else len(topic.ends)

    def unlock(
        self,
        group: str,
        client_id: str,
        queues: Iterable[tuple[str, int]],
        answer: Callable[[Done | Refused | Failed], None],
    ) -> None:
        """End the client's locks of these queues, each a (topic, queue id). Locks of other clients stay.

        Refusals: STORE_FULL: nothing was changed; the locks last until they expire.
        """
        self._sequencer.submit(UnlockQueues(group, client_id, tuple(queues)), _deliver, answer)


def check_filter(expression: str, expression_type: str) -> Refused | None:
    """Why a subscription with this expression gets no messages; None: it is valid. An empty type means tags.

    Refusals: FILTER_NOT_OFFERED: of the type. SUBSCRIPTION_PARSE_FAILED: of the expression.
    """
    parsed = parse_filter(expression, expression_type)
    return filter_refusal(parsed) if isinstance(parsed, FilterRefused) else None


def filter_refusal(parsed: FilterRefused) -> Refused:
    """The refusal of a filter that core could not read."""
    return Refused(Why.FILTER_NOT_OFFERED if parsed.unknown_type else Why.SUBSCRIPTION_PARSE_FAILED, parsed.text)


def _refusal(heartbeat: ClientHeartbeat) -> str | None:
    """Why nothing of this heartbeat is taken. Names of consumer groups are checked where the groups are made."""
    try:
        for name in heartbeat.producer_groups:
            checked_name(name, "producer group", limits.GROUP_CHARS_MAX)
    except InvalidName as error:
        return str(error)
    if len(heartbeat.client_id) > limits.CLIENT_ID_CHARS_MAX:
        return (
            f"a client id of {len(heartbeat.client_id)} characters, at most {limits.CLIENT_ID_CHARS_MAX}: choose a shorter "
            "instance name"
        )
    for data in heartbeat.consumer_groups:
        for item in data.subscriptions:
            problem = _subscription_problem(item)
            if problem:
                return f"a subscription of group {data.group[: limits.GROUP_CHARS_MAX]}: {problem}"
    return None


def _subscription_problem(item: Subscription) -> str | None:
    if len(item.topic) > limits.RETRY_TOPIC_CHARS_MAX:
        return f"a topic of {len(item.topic)} characters, at most {limits.RETRY_TOPIC_CHARS_MAX}"
    if len(item.expression) > limits.EXPRESSION_CHARS_MAX:
        return f"an expression of {len(item.expression)} characters, at most {limits.EXPRESSION_CHARS_MAX}"
    if len(item.expression_type) > _TYPE_CHARS_MAX or not -(1 << 63) <= item.version < 1 << 63:
        return "its expression type or its version cannot be right"
    return None


def _weight(data: ConsumerData) -> int:
    """About how much memory it takes, bytes: its strings at up to four bytes a character, and the objects around them, twice."""
    return _GROUP_COST + sum(
        [_SUBSCRIPTION_COST + 2 * (len(item.topic) + len(item.expression)) for item in data.subscriptions]
    )


def _deliver(answer: Callable[[Any], None], reply: Reply | Failed) -> None:
    answer(reply)
