"""Commands of ours for those who look after a broker: what is undecided, the story of one, and a verdict by hand.

    HMQ_TRANSACTIONS  29002  ext ``group`` (empty: all), ``max``, ``from``: the ``next`` of the answer before, or none
        answer  code 0, ext ``total``, ``at`` (broker time of the spans, ms), ``next``: where there is more (of one group, how many stand before it; of all, a number
                of groups: the oldest of each page of groups are told), none behind the last; body JSON [{"group", "tx_id", "age_ms", "messages", "expected", "message_bytes",
                "topics", "checks", "next_check_in_ms", "producers"}, ...], the oldest first
    HMQ_STORY         29003  ext ``group`` (empty: whichever has it), ``txId``
        answer  code 0, ext ``group``, ``state`` UNDECIDED | COMMITTED | ROLLED_BACK | UNKNOWN; body JSON [sentence, ...]
    HMQ_RESOLVE       29004  ext ``group`` (as above), ``txId``, ``verdict`` COMMIT | ROLLBACK, ``operator``, ``reason``
        answer  as to END_TRANSACTION (37): code 0 with HMQ_VERDICT, HMQ_POSITION, HMQ_DURABILITY, HMQ_REPEATED, or the
                same refusals: 604 with the standing verdict, 604 without one for an incomplete transaction, 1 not found

    HMQ_UNDECIDED     29005  ext ``group`` (empty or none: any); body JSON [id, ...], at most 1,000
        answer  code 0; body JSON: those of them that are undecided in that group, or in whatever group

29 for a field that cannot be. A stock broker answers 3. The codes fit the 16 bits of the binary header. Pure.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from halfmq import limits
from halfmq.errors import ProtocolError
from halfmq.model.pending import PendingTransaction

HMQ_TRANSACTIONS: Final = 29_002
HMQ_STORY: Final = 29_003
HMQ_RESOLVE: Final = 29_004
HMQ_UNDECIDED: Final = 29_005

EXT_GROUP: Final = "group"
EXT_MAX: Final = "max"
EXT_FROM: Final = "from"
EXT_NEXT: Final = "next"
EXT_AT: Final = "at"
EXT_TOTAL: Final = "total"
EXT_ID: Final = "txId"
EXT_STATE: Final = "state"
EXT_VERDICT_WANTED: Final = "verdict"
EXT_OPERATOR: Final = "operator"
EXT_REASON: Final = "reason"

LISTED_MAX: Final = limits.TRANSACTIONS_LISTED_MAX
#: Most ids in one question.
UNDECIDED_IDS_MAX: Final = 1_000
OPERATOR_CHARS_MAX: Final = limits.OPERATOR_CHARS_MAX
REASON_CHARS_MAX: Final = limits.REASON_CHARS_MAX


_ROWS: Final = msgspec.json.Decoder(list[PendingTransaction])
_TEXTS: Final = msgspec.json.Decoder(list[str])


def encode_pending(rows: Iterable[PendingTransaction]) -> bytes:
    return msgspec.json.encode(list(rows))


def decode_pending(
    ext: Mapping[str, str], body: bytes | bytearray | memoryview
) -> tuple[int, list[PendingTransaction]]:
    """(how many there are, the oldest of them).

    Raises:
        ProtocolError: not such an answer.
    """
    try:
        rows = _ROWS.decode(body)
        total = int(ext[EXT_TOTAL])
    except (KeyError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise ProtocolError(f"the answer to HMQ_TRANSACTIONS cannot be read: {error!r}") from error
    return total, rows


def encode_story(sentences: Iterable[str]) -> bytes:
    return msgspec.json.encode(list(sentences))


def decode_story(body: bytes | bytearray | memoryview) -> list[str]:
    """
    Raises:
        ProtocolError: not such an answer.
    """
    try:
        return _TEXTS.decode(body)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise ProtocolError(f"the answer to HMQ_STORY cannot be read: {error}") from error


def encode_ids(ids: Iterable[str]) -> bytes:
    return msgspec.json.encode(list(ids))


def decode_ids(body: bytes | bytearray | memoryview) -> list[str]:
    """
    Raises:
        ProtocolError: not a list of at most ``UNDECIDED_IDS_MAX`` ids.
    """
    try:
        ids = _TEXTS.decode(body)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise ProtocolError(f"a list of transaction ids cannot be read: {error}") from error
    if len(ids) > UNDECIDED_IDS_MAX:
        raise ProtocolError(f"{len(ids)} transaction ids, {UNDECIDED_IDS_MAX} are allowed")
    return ids
