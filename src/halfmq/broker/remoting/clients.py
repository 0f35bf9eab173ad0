"""Heartbeats and departures (34, 35), members of a consumer group (38, pushed as 40), queue locks (41, 42) and the check of a
subscription (46), to and from ``services.members``.
"""

from functools import partial
from typing import Any, Final

from halfmq.broker.remoting.connection import Connection
from halfmq.broker.remoting.gateway import Gateway
from halfmq.broker.remoting.intake import REQUEST_COST
from halfmq.broker.remoting.refusals import refusal
from halfmq.broker.services.members import ClientHeartbeat, Members, Registered, check_filter
from halfmq.core.decision import Done, Refused
from halfmq.core.engine import Failed
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

#: Tells our client that END_TRANSACTION is acknowledged with a receipt and that halves may share an HMQ_TX_ID.
CAPABILITY: Final = {EXT_VERSION: "1"}
#: Bytes of memory for each byte of a heartbeat's body, once it is decoded.
_DECODED: Final = 8
#: Most bytes of memory for a character.
_CHARACTER: Final = 4


class PushedMembers:
    """A ``services.members.Consumers`` over the connections of the gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def push_members_changed(self, number: int, group: str) -> None:
        """As ``Consumers.push_members_changed``; sent as NOTIFY_CONSUMER_IDS_CHANGED (40)."""
        self._gateway.push(number, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group})


class Clients:
    """Registers the handlers of these commands with the gateway."""

    def __init__(self, gateway: Gateway, members: Members, *, broker_name: str) -> None:
        self._gateway = gateway
        self._members = members
        self._broker_name = broker_name
        gateway.handlers |= {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.members,
            RequestCode.LOCK_BATCH_MQ: self.lock,
            RequestCode.UNLOCK_BATCH_MQ: self.unlock,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_config,
        }

    def heartbeat(self, connection: Connection, request: Request[Any]) -> None:
        """34. Raises ProtocolError: the body is no heartbeat."""
        body = decode_heartbeat(request.body)
        asked = request.to_answer(None)
        heartbeat = ClientHeartbeat(
            body.client_id,
            asked.version,
            asked.language,
            body.producer_groups,
            tuple([_consumer(data) for data in body.consumer_groups]),
        )
        held = REQUEST_COST + _DECODED * len(request.body)
        self._members.register(connection, heartbeat, partial(self._registered, connection, asked), memory_bytes=held)

    def _registered(self, connection: Connection, request: Request[None], reply: Registered | Refused | Failed) -> None:
        if isinstance(reply, Registered):
            code = ResponseCode.INVALID_PARAMETER if reply.left_out else ResponseCode.SUCCESS
            self._gateway.answer(connection, request, code, reply.left_out, CAPABILITY)
        else:
            self._gateway.answer(connection, request, *refusal(reply))

    def unregister(self, connection: Connection, request: Request[Any]) -> None:
        """35."""
        fields = request.ext
        characters = len(fields.client_id) + len(fields.producer_group) + len(fields.consumer_group)
        self._members.leave(
            connection,
            fields.client_id,
            fields.producer_group,
            fields.consumer_group,
            partial(self._done, connection, request.to_answer(None)),
            memory_bytes=REQUEST_COST + _CHARACTER * characters,
        )

    def _done(self, connection: Connection, request: Request[None], reply: Done | Failed) -> None:
        if isinstance(reply, Done):
            self._gateway.answer(connection, request, ResponseCode.SUCCESS)
        else:
            self._gateway.answer(connection, request, *refusal(reply))

    def members(self, connection: Connection, request: Request[Any]) -> None:
        """38."""
        group = request.ext.consumer_group
        ids = self._members.client_ids(group)
        if ids:
            self._gateway.answer(connection, request, ResponseCode.SUCCESS, body=encode_member_list(ids))
        else:
            text = f"no consumer for this group, {group}"
            self._gateway.answer(connection, request, ResponseCode.SYSTEM_ERROR, text)

    def lock(self, connection: Connection, request: Request[Any]) -> None:
        """41. Raises ProtocolError: of the body."""
        body = decode_lock_request(request.body)
        queues = [(queue.topic, queue.queue_id) for queue in body.queues]
        asked = request.to_answer(None)

        def answer(reply: Any) -> None:
            if isinstance(reply, Refused | Failed):
                self._gateway.answer(connection, asked, *refusal(reply))
            else:
                locked = [MessageQueue(topic, self._broker_name, queue_id) for topic, queue_id in reply]
                self._gateway.answer(connection, asked, ResponseCode.SUCCESS, body=encode_lock_response(locked))

        self._members.lock(connection, body.group, body.client_id, queues, answer)

    def unlock(self, connection: Connection, request: Request[Any]) -> None:
        """42. Success whatever the service says: stock clients do nothing about a refusal, and the lock expires by itself.

        Raises ProtocolError: of the body.
        """
        body = decode_lock_request(request.body)
        asked = request.to_answer(None)
        self._members.unlock(
            body.group,
            body.client_id,
            [(queue.topic, queue.queue_id) for queue in body.queues],
            lambda reply: self._gateway.answer(connection, asked, ResponseCode.SUCCESS),
        )

    def check_config(self, connection: Connection, request: Request[Any]) -> None:
        """46: sent by a consumer whose subscription is no tag expression, before it starts. Raises ProtocolError: of the body."""
        subscription = decode_config_check(request.body).subscription
        refused = check_filter(subscription.expression, subscription.expression_type)
        if refused is not None:
            self._gateway.answer(connection, request, *refusal(refused))
        else:
            self._gateway.answer(connection, request, ResponseCode.SUCCESS)


def _consumer(data: ConsumerGroup) -> ConsumerData:
    subscriptions = tuple(
        [Subscription(item.topic, item.expression, item.expression_type, item.version) for item in data.subscriptions]
    )
    return ConsumerData(data.group, data.message_model, data.consume_type, data.from_where, subscriptions)
