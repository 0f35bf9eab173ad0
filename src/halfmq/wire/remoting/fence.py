"""The fence, a command of halfmq for participants of Try/Confirm/Cancel.

    HMQ_FENCE  29026  ext ``group``, ``id``, ``since``: the log position at which the transaction began
        response  code 0, ext HMQ_VERDICT (UNDECIDED, COMMITTED, ROLLED_BACK) and, of a verdict, HMQ_POSITION; 1: past retention
    HMQ_FENCE  29026  without ``id``
        response  code 0, ext HMQ_POSITION: the log's end, as ``since`` of a transaction that begins now

Response code 29: an invalid field. RocketMQ responds with 3. Pure functions.
"""

from collections.abc import Mapping
from typing import NamedTuple

from halfmq.errors import ProtocolError
from halfmq.wire.remoting.codes import EXT_POSITION
from halfmq.wire.remoting.half_batches import read_number
from halfmq.wire.remoting.operators import EXT_GROUP, EXT_ID

EXT_SINCE = "since"


class FenceFields(NamedTuple):
    """The ext of HMQ_FENCE."""

    group: str
    tx_id: str
    since: int


def fence_ext(fields: FenceFields) -> dict[str, str]:
    """Ext of the request HMQ_FENCE."""
    return {EXT_GROUP: fields.group, EXT_ID: fields.tx_id, EXT_SINCE: str(fields.since)}


def read_fence(ext: Mapping[str, str]) -> FenceFields | None:
    """Inverse of ``fence_ext``; None: it names no transaction. Raises ProtocolError, which names the field."""
    if not ext.get(EXT_ID):
        return None
    return FenceFields(ext.get(EXT_GROUP, ""), ext[EXT_ID], read_number(EXT_SINCE, ext.get(EXT_SINCE, "")))


def read_position(ext: Mapping[str, str]) -> int:
    """The log position in a response. Raises ProtocolError."""
    position = read_number(EXT_POSITION, ext.get(EXT_POSITION, ""))
    if position < 0:
        raise ProtocolError(f"{EXT_POSITION} is {position}")
    return position
