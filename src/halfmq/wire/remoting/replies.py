"""Response headers (ext fields) as typed structs, for clients."""

from typing import Any, TypeVar

import msgspec
from msgspec import field

from halfmq.errors import ProtocolError
from halfmq.wire.remoting.fields import Fields, Int32, Int64
from halfmq.wire.remoting.header import Request

F = TypeVar("F", bound=Fields)


class SentReply(Fields, gc=False):
    """Response to 10, 310, 320. ``msg_id`` is the offset message id; ``transaction_id`` is absent in 4.x."""

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str = ""


class PulledReply(Fields, gc=False):
    """Response to 11, also with codes 19, 20 and 21 (no messages)."""

    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64


class OffsetReply(Fields, gc=False):
    """Response to 14, 29, 30, 31."""

    offset: Int64


class EndReply(Fields, gc=False):
    """Response of a halfmq broker to 37."""

    tx_id: str = field(name="HMQ_TX_ID", default="")
    #: COMMITTED or ROLLED_BACK.
    verdict: str = field(name="HMQ_VERDICT", default="")
    position: Int64 = field(name="HMQ_POSITION", default=-1)
    durability: str = field(name="HMQ_DURABILITY", default="")
    repeated: bool = field(name="HMQ_REPEATED", default=False)


def read_reply(response: Request[Any], shape: type[F]) -> F:
    """Convert the fields of a response. The caller checks ``response.code`` first: errors have no fields.

    Raises:
        ProtocolError: a field is missing or malformed.
    """
    try:
        return msgspec.convert(response.ext, shape, strict=False)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"a response with code {response.code}: {error}") from error
