"""Replies (324, 325, and pushed as 326), translated to and from ``services.replies``."""

from ipaddress import ip_address
from typing import Any, Final

from halfmq.broker.config import address_text
from halfmq.broker.remoting.connection import Connection
from halfmq.broker.remoting.gateway import Gateway
from halfmq.broker.remoting.refusals import refusal
from halfmq.broker.services.peer import Peer
from halfmq.broker.services.replies import Replies, ReplyMessage
from halfmq.broker.services.topics import TEMPLATE
from halfmq.core.decision import Refused
from halfmq.wire.remoting.codes import RequestCode
from halfmq.wire.remoting.header import Request, encode_oneway_request, encode_send_response

_PUSH: Final = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT


class PushedReplies:
    """Implements ``services.replies.Requesters`` with the connections of the gateway."""

    def __init__(self, gateway: Gateway, *, store_host: bytes) -> None:
        self._gateway = gateway
        self._store_host = _text_of(store_host)

    def push_reply(self, number: int, reply: ReplyMessage, replier: Peer, pushed_ms: int) -> bool:
        """Send a reply to its requester as PUSH_REPLY_MESSAGE_TO_CLIENT (326); False: it is not connected."""
        ext: dict[str, object] = {
            "producerGroup": reply.group,
            "topic": reply.topic,
            "defaultTopic": TEMPLATE,  # ignored by clients
            "defaultTopicQueueNums": reply.default_queues,
            "queueId": reply.queue_id,
            "sysFlag": reply.sys_flag,
            "bornTimestamp": reply.born_time_ms,
            "flag": reply.flag,
            "properties": reply.properties.decode(),
            "reconsumeTimes": reply.reconsume_times,
            "unitMode": False,
            "bornHost": _text_of(replier.born_host),
            "storeHost": self._store_host,
            "storeTimestamp": pushed_ms,
        }
        return self._gateway.push_frame(number, lambda opaque: encode_oneway_request(_PUSH, opaque, ext, reply.body))


class RequestReply:
    """Replies to messages that request one."""

    def __init__(self, gateway: Gateway, replies: Replies) -> None:
        self._gateway = gateway
        self._replies = replies
        gateway.handlers |= {
            RequestCode.SEND_REPLY_MESSAGE: self.reply,
            RequestCode.SEND_REPLY_MESSAGE_V2: self.reply,
        }

    def reply(self, connection: Connection, request: Request[Any]) -> None:
        """324, 325: forward the reply to the requester."""
        fields = request.ext
        reply = ReplyMessage(
            fields.group,
            fields.topic,
            fields.default_queues,
            fields.queue_id,
            fields.sys_flag,
            fields.born_time_ms,
            fields.flag,
            fields.properties.encode(),
            fields.reconsume_times,
            request.body,
        )
        given = self._replies.reply(connection, reply)
        if isinstance(given, Refused):
            self._gateway.answer(connection, request, *refusal(given))
        elif not request.is_oneway:
            queue_id = max(fields.queue_id, 0)
            connection.send(encode_send_response(request.opaque, b"0", queue_id, 0, b"", binary=request.binary))


def _text_of(host: bytes) -> str:
    """``address:port`` of a host as messages store it."""
    return address_text(str(ip_address(host[:-4])), int.from_bytes(host[-4:], "big"))
