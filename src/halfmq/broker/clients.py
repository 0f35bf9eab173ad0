"""Who is connected: heartbeats and leaving (34, 35), members of a group (38, 40), queue locks (41, 42), 46.

All of it is session state: nothing is logged, a restart forgets it, and clients say it again within 30 s. Only the
consumer groups that a heartbeat names for the first time are made durably, and then the answer waits for them, since the
client asks for the route of its ``%RETRY%`` topic next.

What comes from the same connection meanwhile waits behind it: a client that left before its heartbeat had registered it
would be a member that nobody reads for, until its connection ends.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from halfmq import limits
from halfmq.broker.connection import Connection
from halfmq.broker.durable_answer import DurableAnswers
from halfmq.broker.groups import GroupsOnUse
from halfmq.broker.pump import Pump
from halfmq.broker.remoting_gateway import Gateway
from halfmq.broker.timers import BrokerTime
from halfmq.broker.unlike_subscriptions import UnlikeSubscriptions
from halfmq.core.queues.filter import FilterRefused, parse_filter
from halfmq.core.queues.ordering import lock_queues, unlock_queues
from halfmq.core.session import (
    ConnectionClosed,
    ConsumerData,
    Event,
    Heartbeat,
    Unregistered,
    apply_session,
)
from halfmq.core.state import State, Subscription
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

#: Tells our client that END_TRANSACTION is acknowledged with a receipt and that halves may share an HMQ_TX_ID.
CAPABILITY: Final = {EXT_VERSION: "1"}


class Clients:
    def __init__(
        self, gateway: Gateway, pump: Pump, groups: GroupsOnUse, time: BrokerTime, *, broker_name: str
    ) -> None:
        self._gateway = gateway
        self._pump = pump
        self._state: State = pump.state
        self._groups = groups
        self._durably = DurableAnswers(gateway, pump)
        self._time = time
        self._unlike = UnlikeSubscriptions()
        self._broker_name = broker_name
        #: By connection, while it has a heartbeat whose groups are being made: what came behind it, in order.
        self._behind: dict[int, deque[Callable[[], None]]] = {}
        #: How many that are. Gateways stop reading above ``pump.BACKLOG_MAX``, as for replies that wait for the disk.
        self.waiting = 0
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
        self._in_order(connection, partial(self._take, connection, request, decode_heartbeat(request.body)))

    def _in_order(self, connection: Connection, call: Callable[[], None]) -> None:
        behind = self._behind.get(connection.number)
        if behind is None:
            call()
        else:
            behind.append(call)
            self.waiting += 1

    def _take(self, connection: Connection, request: Request[Any], body: HeartbeatBody) -> None:
        refused = self._refusal(connection.number, body)
        if refused:
            self._gateway.answer(connection, request, ResponseCode.INVALID_PARAMETER, refused)
            return
        missing = [data.group for data in body.consumer_groups if data.group not in self._state.groups]
        if missing:
            self._make(missing, connection, request, body)
        else:
            self._register(connection, request, body)

    def _refusal(self, number: int, body: HeartbeatBody) -> str | None:
        """Why nothing of this heartbeat is taken. Names of consumer groups are looked at where those are made."""
        state = self._state
        producers = {*state.produces.get(number, ()), *body.producer_groups}
        consumers = {*state.consumes.get(number, ()), *[data.group for data in body.consumer_groups]}
        if len(producers) + len(consumers) > limits.GROUPS_PER_CONNECTION_MAX:
            return f"a connection may be in {limits.GROUPS_PER_CONNECTION_MAX} groups at most"
        try:
            for name in body.producer_groups:
                checked_name(name, "producer group", limits.GROUP_CHARS_MAX)
        except InvalidName as error:
            return str(error)
        return None

    def _make(self, missing: list[str], connection: Connection, request: Request[Any], body: HeartbeatBody) -> None:
        """Make the groups one after another, then register. A group that may not be made is skipped, as in RocketMQ."""
        self._behind[connection.number] = deque()

        def made(_: tuple[int, str] | None) -> None:
            while missing and missing[-1] in self._state.groups:
                missing.pop()  # another connection was faster
            if missing:
                self._groups.ensure(missing.pop(), made)
            elif connection.is_open:
                self._register(connection, request, body)
                self._go_on(connection.number)

        made(None)

    def _go_on(self, number: int) -> None:
        """Do what came behind a heartbeat that is registered now, up to the next one whose groups have to be made."""
        behind = self._behind.pop(number)
        while behind and number not in self._behind:
            self.waiting -= 1
            behind.popleft()()
        if behind:
            self._behind[number] = behind

    def _register(self, connection: Connection, request: Request[Any], body: HeartbeatBody) -> None:
        consumers = tuple(_consumer(data) for data in body.consumer_groups if data.group in self._state.groups)
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
        for data in consumers:
            self._unlike.heard(data.group, connection.number, body.client_id, data.subscriptions)
        # A group of another client's heartbeat may be in memory only.
        self._durably.tell(connection, request, ResponseCode.SUCCESS, None, CAPABILITY)

    def unregister(self, connection: Connection, request: Request[Any]) -> None:
        self._in_order(connection, partial(self._leave, connection, request))

    def _leave(self, connection: Connection, request: Request[Any]) -> None:
        fields = request.ext
        self._unlike.left(fields.consumer_group, connection.number)
        self._apply(Unregistered(connection.number, fields.client_id, fields.producer_group, fields.consumer_group))
        self._gateway.answer(connection, request, ResponseCode.SUCCESS)

    def connection_closed(self, number: int) -> None:
        self.waiting -= len(self._behind.pop(number, ()))
        for group in self._state.consumes.get(number, ()):
            self._unlike.left(group, number)
        self._apply(ConnectionClosed(number))
        self._gateway.flush()

    def _apply(self, event: Event) -> None:
        """Change the session, tell all members of the groups that changed (40), and look when a tick is due."""
        for group, members in apply_session(self._state, event):
            for number in members:
                self._gateway.push(number, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group})
        self._pump.look_at_deadline()

    # --- consumers of a group

    def members(self, connection: Connection, request: Request[Any]) -> None:
        session = self._state.consumers.get(request.ext.consumer_group)
        if session is None or not session.members:
            text = f"no consumer for this group, {request.ext.consumer_group}"
            self._gateway.answer(connection, request, ResponseCode.SYSTEM_ERROR, text)
            return
        ids = dict.fromkeys(member.client_id for member in session.members.values())
        self._gateway.answer(connection, request, ResponseCode.SUCCESS, body=encode_member_list(ids))

    def lock(self, connection: Connection, request: Request[Any]) -> None:
        body = decode_lock_request(request.body)
        wanted = [(queue.topic, queue.queue_id) for queue in body.queues]
        held = lock_queues(self._state, body.group, body.client_id, wanted, self._time.now_ms())
        queues = [MessageQueue(topic, self._broker_name, queue_id) for topic, queue_id in held]
        self._gateway.answer(connection, request, ResponseCode.SUCCESS, body=encode_lock_response(queues))

    def unlock(self, connection: Connection, request: Request[Any]) -> None:
        body = decode_lock_request(request.body)
        unlock_queues(self._state, body.group, body.client_id, [(queue.topic, queue.queue_id) for queue in body.queues])
        self._gateway.answer(connection, request, ResponseCode.SUCCESS)

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
