"""Request-reply (324, 325, and pushed as 326): a consumer's reply goes to the client of the requesting producer.

RocketMQ also stores each reply in ``<cluster>_REPLY_TOPIC``, where nobody reads it. Here a reply is a message between two clients: it is
not stored, and if the requester is gone it is refused, which the replier sees. Success means that it was written to the requester's
connection; RocketMQ waits for the client's confirmation.
"""

from ipaddress import ip_address
from typing import Any, NamedTuple

from halfmq import limits
from halfmq.broker.remoting.gateway import Connection
from halfmq.broker.remoting.handlers import Handlers, Parts
from halfmq.broker.services.topics import TEMPLATE
from halfmq.core.decision import Refused, Why
from halfmq.model import properties as names
from halfmq.model.address import Address
from halfmq.wire.remoting.codes import RequestCode, ResponseCode
from halfmq.wire.remoting.fields import SendFields
from halfmq.wire.remoting.header import Request, encode_oneway_request, encode_send_response


class PushedReply(NamedTuple):
    """326: a reply for its requester."""

    ext: dict[str, object]
    body: bytes


class RequestReply(Handlers):
    """Replies to messages that request one."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._members = parts.members
        self._time = parts.time
        self._body_bytes_max = self._view.settings.body_bytes_max
        self._store_host = _text_of(self._view.settings.store_host)
        self._gateway.pushes[PushedReply] = _frame

    def reply(self, connection: Connection, request: Request[Any]) -> None:
        """324, 325: forward the reply to the requester.

        Refusals: MESSAGE_ILLEGAL: too large. CLIENT_NOT_REACHED: no client is named, or it is gone, or does not read; nobody gets this
            reply, and a retry can help only in the last case.
        """
        fields: SendFields = request.ext
        refused = self._forward(connection, fields, request.body)
        if refused is not None:
            self._refuse(connection, request, refused)
        elif not request.is_oneway:
            queue_id = max(fields.queue_id, 0)
            frame = encode_send_response(request.opaque, b"0", queue_id, 0, b"", binary=request.binary)
            connection.respond(request, ResponseCode.SUCCESS, frame)

    def _forward(self, replier: Connection, fields: SendFields, body: bytes) -> Refused | None:
        properties = fields.properties.encode()
        if len(body) > self._body_bytes_max or len(properties) > limits.PROPERTIES_BYTES_MAX:
            text = f"a reply of {len(body)} bytes with properties of {len(properties)} is too large"
            return Refused(Why.MESSAGE_ILLEGAL, text)
        raw = names.find(properties, names.REPLY_TO_CLIENT)
        if raw is None:
            return Refused(Why.CLIENT_NOT_REACHED, f"reply message properties[{names.REPLY_TO_CLIENT}] is null")
        client_id = raw.decode(errors="replace")
        number = self._members.connection_of(client_id)
        if number is None:
            text = f"push reply message fail, channel of <{client_id}> not found."
            return Refused(Why.CLIENT_NOT_REACHED, text)
        now_ms = self._time.now_ms()
        pushed_at = f"{names.PUSH_REPLY_TIME}\x01{now_ms}\x02".encode()
        ext: dict[str, object] = {
            "producerGroup": fields.group,
            "topic": fields.topic,
            "defaultTopic": TEMPLATE,  # ignored by clients
            "defaultTopicQueueNums": fields.default_queues,
            "queueId": fields.queue_id,
            "sysFlag": fields.sys_flag,
            "bornTimestamp": fields.born_time_ms,
            "flag": fields.flag,
            "properties": names.append(properties, pushed_at).decode(),
            "reconsumeTimes": fields.reconsume_times,
            "unitMode": False,
            "bornHost": _text_of(replier.born_host),
            "storeHost": self._store_host,
            "storeTimestamp": now_ms,
        }
        if self._gateway.peers.push(number, PushedReply(ext, body)):
            return None
        text = f"push reply message to {client_id} fail: it does not read what it is sent"
        return Refused(Why.CLIENT_NOT_REACHED, text)


def _frame(pushed: PushedReply, opaque: int) -> bytes:
    return encode_oneway_request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, opaque, *pushed)


def _text_of(host: bytes) -> str:
    """``address:port`` of a host as messages store it."""
    return str(Address(str(ip_address(host[:-4])), int.from_bytes(host[-4:], "big")))
