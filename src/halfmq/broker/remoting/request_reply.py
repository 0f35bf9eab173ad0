"""324 and 325, replies: what a consumer answers to a request of a producer is pushed (326) to that producer's client.

RocketMQ stores each reply in ``<cluster>_REPLY_TOPIC`` as well, where nobody reads it. Here a reply is a message between
two connections: it is not stored, and one whose requester is gone is refused, which the replier sees. Code 0 says that it
was given to the requester's connection; RocketMQ waits until the client has said that it took it.
"""

from ipaddress import ip_address
from typing import Any, Final

from halfmq import limits
from halfmq.broker.config import address_text
from halfmq.broker.remoting.clients import Clients
from halfmq.broker.remoting.connection import Connection
from halfmq.broker.remoting.gateway import Gateway
from halfmq.broker.timers import BrokerTime
from halfmq.model import properties as names
from halfmq.wire.remoting.codes import RequestCode, ResponseCode
from halfmq.wire.remoting.header import Request, encode_oneway_request, encode_send_response

#: Of the header of a push. Clients do not look at it.
_DEFAULT_TOPIC: Final = "TBW102"


class RequestReply:
    def __init__(
        self, gateway: Gateway, clients: Clients, time: BrokerTime, *, store_host: bytes, body_bytes_max: int
    ) -> None:
        self._gateway = gateway
        self._clients = clients
        self._time = time
        self._store_host = _text_of(store_host)
        self._body_bytes_max = body_bytes_max
        gateway.handlers |= {
            RequestCode.SEND_REPLY_MESSAGE: self.reply,
            RequestCode.SEND_REPLY_MESSAGE_V2: self.reply,
        }

    def reply(self, connection: Connection, request: Request[Any]) -> None:
        refused = self._refused(connection, request)
        if refused is not None:
            self._gateway.answer(connection, request, *refused)
        elif not request.is_oneway:
            queue_id = max(request.ext.queue_id, 0)
            connection.send(encode_send_response(request.opaque, "0", queue_id, 0, "", binary=request.binary))

    def _refused(self, connection: Connection, request: Request[Any]) -> tuple[int, str] | None:
        """Push the reply, or say why not."""
        properties = request.ext.properties.encode()
        if len(request.body) > self._body_bytes_max or len(properties) > limits.PROPERTIES_BYTES_MAX:
            text = f"a reply of {len(request.body)} bytes with properties of {len(properties)} is too large"
            return ResponseCode.MESSAGE_ILLEGAL, text
        raw = names.find(properties, names.REPLY_TO_CLIENT)
        if raw is None:
            return ResponseCode.SYSTEM_ERROR, f"reply message properties[{names.REPLY_TO_CLIENT}] is null"
        client_id = raw.decode(errors="replace")
        number = self._clients.connection_of(client_id)
        if number is None:
            return ResponseCode.SYSTEM_ERROR, f"push reply message fail, channel of <{client_id}> not found."
        ext = self._header(connection, request, properties)
        code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        if self._gateway.push_frame(number, lambda opaque: encode_oneway_request(code, opaque, ext, request.body)):
            return None
        return ResponseCode.SYSTEM_ERROR, f"push reply message to {client_id} fail: it does not read what it is sent"

    def _header(self, connection: Connection, request: Request[Any], properties: bytes) -> dict[str, object]:
        fields = request.ext
        now_ms = self._time.now_ms()
        pushed_at = f"{names.PUSH_REPLY_TIME}\x01{now_ms}\x02".encode()
        return {
            "producerGroup": fields.group,
            "topic": fields.topic,
            "defaultTopic": _DEFAULT_TOPIC,
            "defaultTopicQueueNums": fields.default_queues,
            "queueId": fields.queue_id,
            "sysFlag": fields.sys_flag,
            "bornTimestamp": fields.born_time_ms,
            "flag": fields.flag,
            "properties": names.append(properties, pushed_at).decode(),
            "reconsumeTimes": fields.reconsume_times,
            "unitMode": False,
            "bornHost": _text_of(connection.born_host),
            "storeHost": self._store_host,
            "storeTimestamp": now_ms,
        }


def _text_of(host: bytes) -> str:
    """``address:port`` of a host as messages store it."""
    return address_text(str(ip_address(host[:-4])), int.from_bytes(host[-4:], "big"))
