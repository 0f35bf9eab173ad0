"""Commands of halfmq for queries, the applications with numbered batches whose decisions a broker remembers.

    HMQ_QUERIES       29017  ext ``max``, ``from``: ``next`` of the previous page
        response  code 0, ext ``total``, ``next`` (start of the next page, absent on the last one); body JSON [``QueryInfo``, ...]
    HMQ_FORGET_QUERY  29018  ext ``query``, ``queryTopic``, ``operator``, ``reason``
        response  code 0, ext ``lastBatch``: the last one that was decided, -1: none; 1: no such query; 2: it has undecided batches

Response code 29: an invalid field. RocketMQ responds with 3. Pure functions.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from halfmq.errors import ProtocolError
from halfmq.model.pending import QueryInfo

EXT_QUERY: Final = "query"
EXT_QUERY_TOPIC: Final = "queryTopic"
EXT_LAST_BATCH: Final = "lastBatch"
_ROWS: Final = msgspec.json.Decoder(list[QueryInfo])


def encode_queries(queries: Iterable[QueryInfo]) -> bytes:
    """Response body of HMQ_QUERIES."""
    return msgspec.json.encode(list(queries))


def decode_queries(body: bytes | bytearray | memoryview) -> list[QueryInfo]:
    """Inverse of ``encode_queries``. Raises ProtocolError."""
    try:
        return _ROWS.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"a response to HMQ_QUERIES is malformed: {error}") from error
