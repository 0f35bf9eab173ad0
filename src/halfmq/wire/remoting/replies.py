"""Answers as the client reads them: the ext fields of a successful send and of a pull, as typed structs."""

from typing import Any, TypeVar

import msgspec
from msgspec import field

from halfmq.errors import ProtocolError
from halfmq.wire.remoting.fields import Fields, Int32, Int64
from halfmq.wire.remoting.header import Request

F = TypeVar("F", bound=Fields)


class SentReply(Fields, gc=False):
    """Of 10, 310, 320. ``msg_id`` is the offset message id; ``transaction_id`` is missing in 4.x."""

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str = ""


class PulledReply(Fields, gc=False):
    """Of 11. Also of its "nothing" answers (19, 20, 21), which carry the same fields."""

    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64
    suggest_which_broker_id: Int64 = 0


class OffsetReply(Fields, gc=False):
    """Of 14, 29, 30, 31."""

    offset: Int64


class TimestampReply(Fields, gc=False):
    """Of 32."""

    timestamp: Int64


class EndReply(Fields, gc=False):
    """Of a two-way 37 from a broker that said HMQ_VERSION; the fields are empty from any other."""

    tx_id: str = field(name="HMQ_TX_ID", default="")
    #: COMMITTED or ROLLED_BACK.
    verdict: str = field(name="HMQ_VERDICT", default="")
    position: Int64 = field(name="HMQ_POSITION", default=-1)
    durability: str = field(name="HMQ_DURABILITY", default="")
    repeated: bool = field(name="HMQ_REPEATED", default=False)


def read_reply(response: Request[Any], shape: type[F]) -> F:
    """The fields of an answer. Look at ``response.code`` first: a refusal has none of them.

    Raises:
        ProtocolError: a field is missing or malformed.
    """
    try:
        return msgspec.convert(response.ext, shape, strict=False)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"an answer with code {response.code}: {error}") from error
