"""Who is connected: heartbeats and leaving (34, 35), members of a group (38, 40), queue locks (41, 42), 46.

It is session state: a restart forgets it, and clients say it again within 30 s. Only the consumer groups that a heartbeat
names for the first time are made durably, and then the answer waits for them, since the client asks for the route of its
``%RETRY%`` topic next; and who holds a queue lock is logged (``core.queues.ordering``).

What comes from the same connection meanwhile waits behind it: a client that left before its heartbeat had registered it
would be a member that nobody reads for, until its connection ends.
"""

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from halfmq import limits
from halfmq.broker.log_throttle import LogThrottle
from halfmq.broker.remoting.connection import Connection
from halfmq.broker.remoting.durable_answer import DurableAnswers
from halfmq.broker.remoting.gateway import Gateway
from halfmq.broker.remoting.intake import REQUEST_COST
from halfmq.broker.remoting.refusals import refusal
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.groups import GroupsOnUse
from halfmq.broker.services.unlike_subscriptions import UnlikeSubscriptions
from halfmq.broker.timers import BrokerTime
from halfmq.core.commands import LockQueues, UnlockQueues
from halfmq.core.decision import Locked, Refused, Reply
from halfmq.core.engine import Failed
from halfmq.core.queues.filter import TAG, FilterRefused, parse_filter
from halfmq.core.session import (
    ConnectionClosed,
    ConsumerData,
    Event,
    Heartbeat,
    Unregistered,
)
from halfmq.core.state import Subscription
from halfmq.core.transaction.admission import producer_groups_refusal
from halfmq.errors import InvalidName
from halfmq.model.ids import checked_name
from halfmq.wire.remoting.codes import EXT_VERSION, RequestCode, ResponseCode
from halfmq.wire.remoting.group_bodies import (
    MessageQueue,
    decode_config_check,
    decode_lock_request,
    encode_lock_response,
    encode_member_list,
)
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.heartbeat import ConsumerGroup, HeartbeatBody, decode_heartbeat
from halfmq.wire.remoting.heartbeat import Subscription as WireSubscription

log = logging.getLogger("halfmq.clients")

#: Tells our client that END_TRANSACTION is acknowledged with a receipt and that halves may share an HMQ_TX_ID.
CAPABILITY: Final = {EXT_VERSION: "1"}
#: Bytes in memory for each of a heartbeat's that was read.
_DECODED: Final = 8
#: Most bytes of memory for a character.
_CHARACTER: Final = 4
#: Bytes that a group and a subscription take in memory, beside their strings.
_GROUP_COST: Final = 1_024
_SUBSCRIPTION_COST: Final = 512
#: TAG, SQL92: names.
_TYPE_CHARS_MAX: Final = 32
#: That there are as many locks as may be is said this often at most, s.
_LOCKS_SAID_S: Final = 60.0


class Clients:
    def __init__(
        self, gateway: Gateway, sequencer: Sequencer, groups: GroupsOnUse, time: BrokerTime, *, broker_name: str
    ) -> None:
        self._gateway = gateway
        self._sequencer = sequencer
        self._view = sequencer.view
        self._groups = groups
        self._durably = DurableAnswers(gateway, sequencer)
        self._time = time
        self._unlike = UnlikeSubscriptions(gateway.is_due)
        self._broker_name = broker_name
        self._locks_said = LogThrottle(lambda: time.now_ms() / 1000, rest_s=_LOCKS_SAID_S)
        #: By connection and group: bytes of what it subscribes to, as counted; and their sum.
        self._subscribed: dict[int, dict[str, int]] = {}
        self.subscribed_bytes = 0
        #: By connection, while it has a heartbeat whose groups are being made: what came behind it, in order, and what is
        #: kept of its intake for that.
        self._behind: dict[int, deque[tuple[Callable[[], None], Connection, int]]] = {}
        #: How many that are. Gateways stop reading above ``sequencer.BACKLOG_MAX``, as for replies that wait for the disk.
        self.waiting = 0
        #: The newest connection of each client that said its id, and the other way round.
        self._connections: dict[str, int] = {}
        self._ids: dict[int, str] = {}
        #: By connection: MQVersion ordinal and language of its last heartbeat.
        self.spoken: dict[int, tuple[int, str]] = {}
        gateway.handlers |= {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.members,
            RequestCode.LOCK_BATCH_MQ: self.lock,
            RequestCode.UNLOCK_BATCH_MQ: self.unlock,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_config,
        }

    # --- coming and going

    def heartbeat(self, connection: Connection, request: Request[Any]) -> None:
        body = decode_heartbeat(request.body)
        waits = request.to_answer(None)
        self._in_order(connection, partial(self._take, connection, waits, body), _DECODED * len(request.body))

    def _in_order(self, connection: Connection, call: Callable[[], None], kept: int) -> None:
        """Now, or behind the heartbeat of this connection whose groups are being made."""
        behind = self._behind.get(connection.number)
        if behind is None:
            call()
        else:
            behind.append((call, connection, REQUEST_COST + kept))
            self.waiting += 1
            connection.keep(REQUEST_COST + kept)

    def _take(self, connection: Connection, request: Request[Any], body: HeartbeatBody) -> None:
        refused = self._refusal(connection.number, body) or self._too_much(connection.number, body)
        if refused:
            self._gateway.answer(connection, request, ResponseCode.INVALID_PARAMETER, refused)
            return
        body, left_out = self._taken(connection.number, body)
        missing = [data.group for data in body.consumer_groups if data.group not in self._view.groups]
        if missing:
            self._make(missing, connection, request, body, left_out)
        else:
            self._register(connection, request, body, left_out)

    def _taken(self, number: int, body: HeartbeatBody) -> tuple[HeartbeatBody, str | None]:
        """(what is taken of it, why not all of it): without its new producer groups where there are too many of all clients.
        What it consumes has nothing to do with them."""
        view = self._view
        left_out = producer_groups_refusal(view, number, body.producer_groups)
        if left_out:
            known = tuple([name for name in body.producer_groups if name in view.producer_groups])
            body = body._replace(producer_groups=known)
        return body, left_out

    def _refusal(self, number: int, body: HeartbeatBody) -> str | None:
        """Why nothing of this heartbeat is taken. Names of consumer groups are looked at where those are made."""
        view = self._view
        producers = {*view.session.produces.get(number, ()), *body.producer_groups}
        consumers = {*view.session.consumes.get(number, ()), *[data.group for data in body.consumer_groups]}
        if len(producers) + len(consumers) > limits.GROUPS_PER_CONNECTION_MAX:
            return f"a connection may be in {limits.GROUPS_PER_CONNECTION_MAX} groups at most"
        try:
            for name in body.producer_groups:
                checked_name(name, "producer group", limits.GROUP_CHARS_MAX)
        except InvalidName as error:
            return str(error)
        if len(body.client_id) > limits.CLIENT_ID_CHARS_MAX:
            return (
                f"a client id of {len(body.client_id)} characters, at most {limits.CLIENT_ID_CHARS_MAX}: choose a shorter "
                "instance name"
            )
        for data in body.consumer_groups:
            for item in data.subscriptions:
                problem = _wrong_subscription(item)
                if problem:
                    return f"a subscription of group {data.group[: limits.GROUP_CHARS_MAX]}: {problem}"
        return None

    def _too_much(self, number: int, body: HeartbeatBody) -> str | None:
        """Why there is no memory for what this heartbeat subscribes to. Registering counts it."""
        before = self._subscribed.get(number, {})
        after = before | {data.group: _weight(data) for data in body.consumer_groups}
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

    def _subscribe(self, number: int, group: str, weight: int) -> None:
        """``weight`` bytes are what this connection subscribes to in this group; 0: nothing any more."""
        groups = self._subscribed.setdefault(number, {})
        self.subscribed_bytes += weight - groups.pop(group, 0)
        if weight:
            groups[group] = weight
        elif not groups:
            del self._subscribed[number]

    def _make(
        self,
        missing: list[str],
        connection: Connection,
        request: Request[Any],
        body: HeartbeatBody,
        left_out: str | None,
    ) -> None:
        """Make the groups one after another, then register. A group that may not be made is skipped, as in RocketMQ."""
        self._behind[connection.number] = deque()

        def made(_: Refused | Failed | None) -> None:
            while missing and missing[-1] in self._view.groups:
                missing.pop()  # another connection was faster
            if missing:
                self._groups.ensure(missing.pop(), made)
            elif connection.is_open:
                self._register(connection, request, body, left_out)
                self._go_on(connection.number)

        made(None)

    def _go_on(self, number: int) -> None:
        """Do what came behind a heartbeat that is registered now, up to the next one whose groups have to be made."""
        behind = self._behind.pop(number)
        while behind and number not in self._behind:
            self.waiting -= 1
            call, connection, kept = behind.popleft()
            connection.give_back(kept)
            call()
        if behind:
            self._behind[number] = behind

    def _register(
        self, connection: Connection, request: Request[Any], body: HeartbeatBody, left_out: str | None
    ) -> None:
        """``left_out``: why some of what it said is not in ``body``."""
        consumers = tuple(_consumer(data) for data in body.consumer_groups if data.group in self._view.groups)
        self.spoken[connection.number] = (request.version, request.language)
        self._apply(
            Heartbeat(
                connection.number,
                body.client_id,
                request.version,
                request.language,
                body.producer_groups,
                consumers,
                self._time.now_ms(),
            )
        )
        for named in body.consumer_groups:
            if named.group in self._view.groups:
                self._subscribe(connection.number, named.group, _weight(named))
        self._known_as(connection.number, body.client_id)
        for data in consumers:
            for topic, expression, kind, _ in data.subscriptions:
                if kind not in ("", TAG):
                    self._gateway.unserved.subscription(body.client_id, data.group, topic, expression, kind)
            self._unlike.heard(data.group, connection.number, body.client_id, data.subscriptions)
        # A group of another client's heartbeat may be in memory only.
        code = ResponseCode.INVALID_PARAMETER if left_out else ResponseCode.SUCCESS
        self._durably.tell(connection, request, code, left_out, CAPABILITY)

    def unregister(self, connection: Connection, request: Request[Any]) -> None:
        fields = request.ext
        kept = _CHARACTER * (len(fields.client_id) + len(fields.producer_group) + len(fields.consumer_group))
        self._in_order(connection, partial(self._leave, connection, request.to_answer(fields)), kept)

    def _leave(self, connection: Connection, request: Request[Any]) -> None:
        fields = request.ext
        self._unlike.left(fields.consumer_group, connection.number)
        self._subscribe(connection.number, fields.consumer_group, 0)
        self._give_up_locks(connection.number, fields.consumer_group)
        self._apply(Unregistered(connection.number, fields.client_id, fields.producer_group, fields.consumer_group))
        self._gateway.answer(connection, request, ResponseCode.SUCCESS)

    def connection_of(self, client_id: str) -> int | None:
        """The connection whose heartbeat gave this id last; None: none, or one that is too long to be kept."""
        return self._connections.get(client_id)

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

    def connection_closed(self, number: int) -> None:
        for _, connection, kept in self._behind.pop(number, ()):
            self.waiting -= 1
            connection.give_back(kept)
        self._forget(number)
        self.spoken.pop(number, None)
        for group in self._view.session.consumes.get(number, ()):
            self._unlike.left(group, number)
            if not self._gateway.draining:  # we cut it off: the client is there, and handles what it holds
                self._give_up_locks(number, group)
        self.subscribed_bytes -= sum(self._subscribed.pop(number, {}).values())
        self._apply(ConnectionClosed(number))
        self._gateway.flush()

    def _give_up_locks(self, number: int, group: str) -> None:
        """A member leaves, and with its last connection its locks: nobody waits for it after the next start."""
        session = self._view.session.consumers.get(group)
        member = session.members.get(number) if session is not None else None
        if session is None or member is None or not session.locks:
            return
        if all(other.client_id != member.client_id for at, other in session.members.items() if at != number):
            self._sequencer.submit(UnlockQueues(group, member.client_id, None), None)

    def _apply(self, event: Event) -> None:
        """Change the session, tell all members of the groups that changed (40), and look when a tick is due."""
        for group, members in self._sequencer.engine.note(event):
            for number in members:
                self._gateway.push(number, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group})
        self._sequencer.look_at_deadline()

    # --- consumers of a group

    def members(self, connection: Connection, request: Request[Any]) -> None:
        session = self._view.session.consumers.get(request.ext.consumer_group)
        if session is None or not session.members:
            text = f"no consumer for this group, {request.ext.consumer_group}"
            self._gateway.answer(connection, request, ResponseCode.SYSTEM_ERROR, text)
            return
        ids = dict.fromkeys(member.client_id for member in session.members.values())
        self._gateway.answer(connection, request, ResponseCode.SUCCESS, body=encode_member_list(ids))

    def lock(self, connection: Connection, request: Request[Any]) -> None:
        body = decode_lock_request(request.body)
        # Only of what is there: locks of anything else would be kept, and nobody could use them.
        known = len(body.client_id) <= limits.CLIENT_ID_CHARS_MAX and body.group in self._view.groups
        queues_of = self._queues_of
        wanted = [
            (queue.topic, queue.queue_id)
            for queue in body.queues
            if known and 0 <= queue.queue_id < queues_of(queue.topic)
        ]
        if wanted:
            self._sequencer.submit(
                LockQueues(body.group, body.client_id, tuple(wanted)), self._locked, (connection, request)
            )
        else:
            self._gateway.answer(connection, request, ResponseCode.SUCCESS, body=encode_lock_response([]))

    def _locked(self, context: tuple[Connection, Request[Any]], reply: Reply | Failed) -> None:
        if isinstance(reply, Locked):
            if reply.is_full and self._locks_said.is_due("full"):
                log.warning(
                    "%d queue locks are held, of which there may be %d: clients that consume in order get no more before some "
                    "run out (60 s); the last was refused to %s",
                    self._view.session.locks_held, limits.LOCKS_MAX, context[0].address,
                )  # fmt: skip
            queues = [MessageQueue(topic, self._broker_name, queue_id) for topic, queue_id in reply.queues]
            self._gateway.answer(*context, ResponseCode.SUCCESS, body=encode_lock_response(queues))
        else:
            code, text, ext = refusal(reply)
            self._gateway.answer(*context, code, text, ext)

    def _queues_of(self, name: str) -> int:
        topic = self._view.topics_by_name.get(name)
        return 0 if topic is None else len(topic.ends)

    def unlock(self, connection: Connection, request: Request[Any]) -> None:
        body = decode_lock_request(request.body)
        queues = tuple([(queue.topic, queue.queue_id) for queue in body.queues])
        self._sequencer.submit(UnlockQueues(body.group, body.client_id, queues), self._unlocked, (connection, request))

    def _unlocked(self, context: tuple[Connection, Request[Any]], reply: Reply | Failed) -> None:
        """Also where a full disk refuses it: the lock runs out by itself."""
        self._gateway.answer(*context, ResponseCode.SUCCESS)

    def check_config(self, connection: Connection, request: Request[Any]) -> None:
        """46: sent by a consumer whose subscription is no tag expression, before it starts."""
        subscription = decode_config_check(request.body).subscription
        parsed = parse_filter(subscription.expression, subscription.expression_type)
        if isinstance(parsed, FilterRefused):
            code = ResponseCode.SYSTEM_ERROR if parsed.unknown_type else ResponseCode.SUBSCRIPTION_PARSE_FAILED
            self._gateway.answer(connection, request, code, parsed.text)
        else:
            self._gateway.answer(connection, request, ResponseCode.SUCCESS)


def _consumer(data: ConsumerGroup) -> ConsumerData:
    subscriptions = tuple(
        Subscription(item.topic, item.expression, item.expression_type, item.version) for item in data.subscriptions
    )
    return ConsumerData(data.group, data.message_model, data.consume_type, data.from_where, subscriptions)


def _wrong_subscription(item: WireSubscription) -> str | None:
    if len(item.topic) > limits.RETRY_TOPIC_CHARS_MAX:
        return f"a topic of {len(item.topic)} characters, at most {limits.RETRY_TOPIC_CHARS_MAX}"
    if len(item.expression) > limits.EXPRESSION_CHARS_MAX:
        return f"an expression of {len(item.expression)} characters, at most {limits.EXPRESSION_CHARS_MAX}"
    if len(item.expression_type) > _TYPE_CHARS_MAX or not -(1 << 63) <= item.version < 1 << 63:
        return "its expression type or its version cannot be right"
    return None


def _weight(data: ConsumerGroup) -> int:
    """About what is kept of it: its strings, in up to four bytes a character, and what they stand in, twice."""
    return _GROUP_COST + sum(
        [_SUBSCRIPTION_COST + 2 * (len(item.topic) + len(item.expression)) for item in data.subscriptions]
    )
