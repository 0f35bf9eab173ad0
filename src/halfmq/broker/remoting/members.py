"""Group membership, translated to and from ``services.members``: heartbeats (34), unregistration (35), members of a group (38, 40),
queue locks (41, 42), and validation of a subscription before its use (46).
"""

from functools import partial
from typing import Any, Final

from halfmq.broker.remoting.connection import Connection
from halfmq.broker.remoting.gateway import Gateway
from halfmq.broker.remoting.intake import REQUEST_COST
from halfmq.broker.remoting.refusals import refusal
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.groups import GroupsOnUse
from halfmq.broker.services.members import Member, Members, Registered
from halfmq.broker.services.subscription_conflicts import SubscriptionConflicts
from halfmq.broker.timers import BrokerTime
from halfmq.core.decision import Locked, Refused
from halfmq.core.engine import Failed
from halfmq.core.queues.filter import FilterRefused, parse_filter
from halfmq.core.session import ConsumerData
from halfmq.core.state import Subscription
from halfmq.wire.remoting.codes import EXT_VERSION, RequestCode, ResponseCode
from halfmq.wire.remoting.group_bodies import (
    MessageQueue,
    decode_config_check,
    decode_lock_request,
    encode_lock_response,
    encode_member_list,
)
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.heartbeat import ConsumerGroup, decode_heartbeat

#: Tells our client that END_TRANSACTION is confirmed with a receipt and that halves may share an HMQ_TX_ID.
CAPABILITY: Final = {EXT_VERSION: "1"}
#: Bytes of memory for each byte of a decoded heartbeat.
_DECODED: Final = 8
#: Maximum bytes of memory for a character.
_CHARACTER: Final = 4


class MemberRequests:
    """Requests with which clients join and leave groups."""

    def __init__(
        self, gateway: Gateway, sequencer: Sequencer, groups: GroupsOnUse, time: BrokerTime, *, broker_name: str
    ) -> None:
        self._gateway = gateway
        self._broker_name = broker_name
        self.members = Members(
            sequencer, groups, time, SubscriptionConflicts(gateway.is_due),
            on_changed=self._changed, on_unsupported=self._unsupported,
        )  # fmt: skip
        gateway.handlers |= {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumer_list,
            RequestCode.LOCK_BATCH_MQ: self.lock,
            RequestCode.UNLOCK_BATCH_MQ: self.unlock,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_config,
        }

    def heartbeat(self, connection: Connection, request: Request[Any]) -> None:
        """34: the response waits until the groups that it names durably exist."""
        body = decode_heartbeat(request.body)
        waits = request.to_answer(None)
        member = Member(
            body.client_id, waits.version, waits.language, body.producer_groups,
            tuple([_consumer(data) for data in body.consumer_groups]),
        )  # fmt: skip
        answer = partial(self._registered, connection, waits)
        self.members.heartbeat(connection, member, REQUEST_COST + _DECODED * len(request.body), answer)

    def _registered(self, connection: Connection, request: Request[None], reply: Registered | Refused | Failed) -> None:
        if isinstance(reply, Registered):
            code = ResponseCode.INVALID_PARAMETER if reply.left_out else ResponseCode.SUCCESS
            self._gateway.answer(connection, request, code, reply.left_out, CAPABILITY)
        else:
            self._gateway.answer(connection, request, *refusal(reply))

    def unregister(self, connection: Connection, request: Request[Any]) -> None:
        """35: leave the named groups."""
        fields = request.ext
        memory_bytes = _CHARACTER * (len(fields.client_id) + len(fields.producer_group) + len(fields.consumer_group))
        answer = partial(self._left, connection, request.to_answer(None))
        self.members.leave(
            connection,
            fields.client_id,
            fields.producer_group,
            fields.consumer_group,
            REQUEST_COST + memory_bytes,
            answer,
        )

    def _left(self, connection: Connection, request: Request[None], failed: Failed | None) -> None:
        if failed is None:
            self._gateway.answer(connection, request, ResponseCode.SUCCESS)
        else:
            self._gateway.answer(connection, request, *refusal(failed))

    def connection_closed(self, number: int) -> None:
        """The connection has ended: its client is no longer a member."""
        # While draining, the broker closes connections: their clients are alive and continue to consume locked queues.
        self.members.connection_closed(number, keep_locks=self._gateway.draining)
        self._gateway.flush()

    def _changed(self, group: str, number: int) -> None:
        self._gateway.push(number, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group})

    def _unsupported(self, client_id: str, group: str, subscription: Subscription) -> None:
        topic, expression, kind, _ = subscription
        self._gateway.unsupported_requests.subscription(client_id, group, topic, expression, kind)

    def consumer_list(self, connection: Connection, request: Request[Any]) -> None:
        """38: client ids of a consumer group."""
        client_ids = self.members.client_ids(request.ext.consumer_group)
        if client_ids:
            self._gateway.answer(connection, request, ResponseCode.SUCCESS, body=encode_member_list(client_ids))
        else:
            text = f"no consumer for this group, {request.ext.consumer_group}"
            self._gateway.answer(connection, request, ResponseCode.SYSTEM_ERROR, text)

    def lock(self, connection: Connection, request: Request[Any]) -> None:
        """41: lock queues for a client that consumes in order."""
        body = decode_lock_request(request.body)
        queues = [(queue.topic, queue.queue_id) for queue in body.queues]
        answer = partial(self._locked, connection, request)
        self.members.lock(connection, body.group, body.client_id, queues, answer)

    def _locked(self, connection: Connection, request: Request[Any], reply: Locked | Refused | Failed) -> None:
        if isinstance(reply, Locked):
            queues = [MessageQueue(topic, self._broker_name, queue_id) for topic, queue_id in reply.queues]
            self._gateway.answer(connection, request, ResponseCode.SUCCESS, body=encode_lock_response(queues))
        else:
            self._gateway.answer(connection, request, *refusal(reply))

    def unlock(self, connection: Connection, request: Request[Any]) -> None:
        """42: release them."""
        body = decode_lock_request(request.body)
        queues = [(queue.topic, queue.queue_id) for queue in body.queues]
        answer = partial(self._gateway.answer, connection, request, ResponseCode.SUCCESS)
        self.members.unlock(body.group, body.client_id, queues, answer)

    def check_config(self, connection: Connection, request: Request[Any]) -> None:
        """46: sent by a consumer whose subscription is not a tag expression, before it starts."""
        subscription = decode_config_check(request.body).subscription
        parsed = parse_filter(subscription.expression, subscription.expression_type)
        if isinstance(parsed, FilterRefused):
            code = ResponseCode.SYSTEM_ERROR if parsed.unknown_type else ResponseCode.SUBSCRIPTION_PARSE_FAILED
            self._gateway.answer(connection, request, code, parsed.text)
        else:
            self._gateway.answer(connection, request, ResponseCode.SUCCESS)


def _consumer(data: ConsumerGroup) -> ConsumerData:
    subscriptions = tuple(
        [Subscription(item.topic, item.expression, item.expression_type, item.version) for item in data.subscriptions]
    )
    return ConsumerData(data.group, data.message_model, data.consume_type, data.from_where, subscriptions)
