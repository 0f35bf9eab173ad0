"""Group membership, translated to and from ``services.members``: heartbeats (34), unregistration (35), members of a group (38, 40),
queue locks (41, 42), and validation of a subscription before its use (46). From ``services.queues``: assignment of queues by the broker
(400, ``clientRebalance=false``), and the consume mode (401).

Queues are always consumed in PULL mode: POP is not supported. A 401 that requests POP is refused, and the group continues to consume as
before.
"""

from functools import partial
from typing import Any, Final

from halfmq.broker.peers.peer import REQUEST_COST
from halfmq.broker.remoting.gateway import Connection
from halfmq.broker.remoting.handlers import Handlers, Parts
from halfmq.broker.services.members import Member, MembersChanged, Registered
from halfmq.broker.services.tag_filter import parse_filter
from halfmq.core.decision import Failed, Locked, Refused
from halfmq.core.session import ConsumerData
from halfmq.core.state import Subscription
from halfmq.wire.remoting.codes import EXT_CONFLICT, EXT_VERSION, RequestCode, ResponseCode
from halfmq.wire.remoting.group_bodies import (
    PULL_MODE,
    MessageQueue,
    decode_assignment_query,
    decode_config_check,
    decode_lock_request,
    decode_mode_request,
    encode_assignments,
    encode_lock_response,
    encode_member_list,
)
from halfmq.wire.remoting.header import Request, encode_oneway_request
from halfmq.wire.remoting.heartbeat import ConsumerGroup, decode_heartbeat

#: Tells our client that END_TRANSACTION is confirmed with a receipt and that halves may share an HMQ_TX_ID.
CAPABILITY: Final = {EXT_VERSION: "1"}
#: Bytes of memory for each byte of a decoded heartbeat.
_DECODED: Final = 8
_BROADCASTING: Final = "BROADCASTING"
#: Maximum bytes of memory for a character.
_CHARACTER: Final = 4


class MemberRequests(Handlers):
    """Requests with which clients join and leave groups."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._members = parts.members
        self._queues = parts.queues
        self._gateway.pushes[MembersChanged] = _changed

    def heartbeat(self, connection: Connection, request: Request[Any]) -> None:
        """34: the response waits until the groups that it names durably exist."""
        body = decode_heartbeat(request.body)
        waits = request.to_answer(None)
        member = Member(
            body.client_id, waits.version, waits.language, body.producer_groups,
            tuple([_consumer(data) for data in body.consumer_groups]),
        )  # fmt: skip
        answer = partial(self._registered, connection, waits)
        self._members.heartbeat(connection, member, REQUEST_COST + _DECODED * len(request.body), answer)

    def _registered(self, connection: Connection, request: Request[None], reply: Registered | Refused | Failed) -> None:
        if isinstance(reply, Registered):
            code = ResponseCode.INVALID_PARAMETER if reply.left_out else ResponseCode.SUCCESS
            ext = {**CAPABILITY, EXT_CONFLICT: reply.conflict} if reply.conflict else CAPABILITY
            self._gateway.answer(connection, request, code, reply.left_out, ext)
        else:
            self._refuse(connection, request, reply)

    def unregister(self, connection: Connection, request: Request[Any]) -> None:
        """35: leave the named groups."""
        fields = request.ext
        memory_bytes = _CHARACTER * (len(fields.client_id) + len(fields.producer_group) + len(fields.consumer_group))
        answer = partial(self._left, connection, request.to_answer(None))
        self._members.leave(
            connection,
            fields.client_id,
            fields.producer_group,
            fields.consumer_group,
            REQUEST_COST + memory_bytes,
            answer,
        )

    def _left(self, connection: Connection, request: Request[None], failed: Failed | None) -> None:
        if failed is None:
            self._answer(connection, request)
        else:
            self._refuse(connection, request, failed)

    def consumer_list(self, connection: Connection, request: Request[Any]) -> None:
        """38: client ids of a consumer group."""
        client_ids = self._members.client_ids(request.ext.consumer_group)
        if client_ids:
            self._answer(connection, request, body=encode_member_list(client_ids))
        else:
            text = f"no consumer for this group, {request.ext.consumer_group}"
            self._gateway.answer(connection, request, ResponseCode.SYSTEM_ERROR, text)

    def lock(self, connection: Connection, request: Request[Any]) -> None:
        """41: lock queues for a client that consumes in order."""
        body = decode_lock_request(request.body)
        queues = [(queue.topic, queue.queue_id) for queue in body.queues]
        answer = partial(self._locked, connection, request)
        self._members.lock(connection, body.group, body.client_id, queues, answer)

    def _locked(self, connection: Connection, request: Request[Any], reply: Locked | Refused | Failed) -> None:
        if isinstance(reply, Locked):
            queues = [
                MessageQueue(topic, self._view.settings.broker_name, queue_id) for topic, queue_id in reply.queues
            ]
            self._answer(connection, request, body=encode_lock_response(queues))
        else:
            self._refuse(connection, request, reply)

    def unlock(self, connection: Connection, request: Request[Any]) -> None:
        """42: release them."""
        body = decode_lock_request(request.body)
        queues = [(queue.topic, queue.queue_id) for queue in body.queues]
        answer = partial(self._gateway.answer, connection, request, ResponseCode.SUCCESS)
        self._members.unlock(body.group, body.client_id, queues, answer)

    def check_config(self, connection: Connection, request: Request[Any]) -> None:
        """46: sent by a consumer whose subscription is not a tag expression, before it starts."""
        subscription = decode_config_check(request.body).subscription
        parsed = parse_filter(subscription.expression, subscription.expression_type)
        if isinstance(parsed, Refused):
            self._refuse(connection, request, parsed)
        else:
            self._answer(connection, request)

    def assignment(self, connection: Connection, request: Request[Any]) -> None:
        """400. The response has no list if the topic or the group's members are not known (yet): the client asks again soon."""
        asked = decode_assignment_query(request.body)
        mine = self._queues.assigned(
            asked.group,
            asked.topic,
            asked.client_id,
            strategy=asked.strategy,
            is_broadcasting=asked.message_model == _BROADCASTING,
        )
        queues = (
            None
            if mine is None
            else [MessageQueue(asked.topic, self._view.settings.broker_name, queue) for queue in mine]
        )
        self._answer_durably(connection, request, body=encode_assignments(queues))

    def set_mode(self, connection: Connection, request: Request[Any]) -> None:
        """401: PULL is the only mode."""
        asked = decode_mode_request(request.body)
        if asked.mode == PULL_MODE:
            self._answer(connection, request)
            return
        self._gateway.unsupported_requests.mode(connection.address, asked.group, asked.topic, asked.mode)
        text = f"mode {asked.mode} is not supported: group {asked.group} continues to consume {asked.topic} in {PULL_MODE} mode"
        self._gateway.answer(connection, request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text)


def _changed(changed: MembersChanged, opaque: int) -> bytes:
    return encode_oneway_request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, opaque, {"consumerGroup": changed.group}, b"")


def _consumer(data: ConsumerGroup) -> ConsumerData:
    subscriptions = tuple(
        [Subscription(item.topic, item.expression, item.expression_type, item.version) for item in data.subscriptions]
    )
    return ConsumerData(data.group, data.message_model, data.consume_type, data.from_where, subscriptions)
