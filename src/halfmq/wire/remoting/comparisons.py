"""Commands of halfmq that compare verdicts with what the applications' databases did.

    HMQ_COMPARISONS    29022  ext ``group``, ``from``: ``next`` of the previous page; from a client that reads markers
        response  code 0, ext ``next`` (absent on the last page); body JSON [``AwaitedComparison``, ...]
    HMQ_COMPARED       29023  ext ``group`` (empty: any), ``txId``, ``outcome`` COMMIT | ROLLBACK of the local transaction, ``source``,
                              ``isMarker`` "true": read from the marker of the transaction, which may end the comparison
        response  code 0 with HMQ_VERDICT, ``agrees``; 29 with HMQ_VERDICT UNDECIDED; 1: not known here; 2: no space for a finding
    HMQ_DAMAGED        29024  ext ``max``, ``from``
        response  code 0, ext ``total``, ``waiting``: to be compared, ``next``; body JSON [``DamagedTransaction``, ...]
    HMQ_FORGET_DAMAGE  29025  ext ``group`` (empty: any), ``txId``, ``operator``, ``reason``
        response  code 0 with HMQ_VERDICT and ``group``; 1: nothing is known of it; 2: it may still be compared

Response code 29: an invalid field. RocketMQ responds with 3. Pure functions.
"""

from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec

from halfmq.errors import ProtocolError
from halfmq.model.pending import AwaitedComparison, DamagedTransaction

EXT_OUTCOME: Final = "outcome"
EXT_SOURCE: Final = "source"
EXT_IS_MARKER: Final = "isMarker"
EXT_AGREES: Final = "agrees"
EXT_WAITING: Final = "waiting"
_AWAITED: Final = msgspec.json.Decoder(list[AwaitedComparison])
_DAMAGED: Final = msgspec.json.Decoder(list[DamagedTransaction])
_T = TypeVar("_T")


def encode_rows(rows: Iterable[AwaitedComparison] | Iterable[DamagedTransaction]) -> bytes:
    """Response body of HMQ_COMPARISONS and HMQ_DAMAGED."""
    return msgspec.json.encode(list(rows))


def decode_awaited(body: bytes | bytearray | memoryview) -> list[AwaitedComparison]:
    """Response body of HMQ_COMPARISONS. Raises ProtocolError."""
    return _rows(_AWAITED, body)


def decode_damaged(body: bytes | bytearray | memoryview) -> list[DamagedTransaction]:
    """Response body of HMQ_DAMAGED. Raises ProtocolError."""
    return _rows(_DAMAGED, body)


def _rows(decoder: "msgspec.json.Decoder[list[_T]]", body: bytes | bytearray | memoryview) -> list[_T]:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"a list of comparisons is malformed: {error}") from error
