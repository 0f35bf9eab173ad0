"""Request-reply: delivers a consumer's reply to the client of the requesting producer.

RocketMQ also stores each reply in ``<cluster>_REPLY_TOPIC``, where nobody reads it. Here a reply is a message between two peers: it is not
stored, and if the requester is gone it is refused, which the replier sees. Done means that it was written to the requester's
connection; RocketMQ waits for the client's confirmation.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from halfmq import limits
from halfmq.broker.services.peer import Peer
from halfmq.broker.timers import BrokerTime
from halfmq.core.decision import Done, Refused, Why
from halfmq.model import properties as names

_DONE: Final = Done()


class ReplyMessage(NamedTuple):
    """Fields as in ``core.commands.SendMessage``."""

    group: str
    topic: str
    default_queues: int
    queue_id: int
    sys_flag: int
    born_time_ms: int
    flag: int
    #: They name the requesting client, REPLY_TO_CLIENT.
    properties: bytes
    reconsume_times: int
    body: bytes


class Requesters(Protocol):
    """Sends a reply; implemented by the front doors."""

    def push_reply(self, number: int, reply: ReplyMessage, replier: Peer, pushed_ms: int) -> bool:
        """Send the reply to the peer ``number``. False: it is gone, or does not read."""
        ...


class Replies:
    """Forwards a reply to the requesting client, found by its client id."""

    def __init__(
        self,
        requesters: Requesters,
        connection_of: Callable[[str], int | None],
        time: BrokerTime,
        *,
        body_bytes_max: int,
    ) -> None:
        """``connection_of``: the number of the client's peer; None: it is not connected."""
        self._requesters = requesters
        self._connection_of = connection_of
        self._time = time
        self._body_bytes_max = body_bytes_max

    def reply(self, replier: Peer, reply: ReplyMessage) -> Done | Refused:
        """Deliver the reply to the requester.

        Refusals: MESSAGE_ILLEGAL: too large. CLIENT_NOT_REACHED: no client is named, or it is gone, or does not read; nobody gets this
            reply, and a retry can help only in the last case.
        """
        properties = reply.properties
        if len(reply.body) > self._body_bytes_max or len(properties) > limits.PROPERTIES_BYTES_MAX:
            text = f"a reply of {len(reply.body)} bytes with properties of {len(properties)} is too large"
            return Refused(Why.MESSAGE_ILLEGAL, text)
        raw = names.find(properties, names.REPLY_TO_CLIENT)
        if raw is None:
            return Refused(Why.CLIENT_NOT_REACHED, f"reply message properties[{names.REPLY_TO_CLIENT}] is null")
        client_id = raw.decode(errors="replace")
        number = self._connection_of(client_id)
        if number is None:
            text = f"push reply message fail, channel of <{client_id}> not found."
            return Refused(Why.CLIENT_NOT_REACHED, text)
        now_ms = self._time.now_ms()
        pushed_at = f"{names.PUSH_REPLY_TIME}\x01{now_ms}\x02".encode()
        pushed = reply._replace(properties=names.append(properties, pushed_at))
        if self._requesters.push_reply(number, pushed, replier, now_ms):
            return _DONE
        text = f"push reply message to {client_id} fail: it does not read what it is sent"
        return Refused(Why.CLIENT_NOT_REACHED, text)
