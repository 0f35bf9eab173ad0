"""Commands of halfmq for operators: list undecided transactions, explain one, settle one, check some now.

    HMQ_TRANSACTIONS  29002  ext ``group`` (empty: all), ``coordinator`` (of the group; absent: all), ``max``, ``from``: ``next`` of
                      the previous page
        response  code 0, ext ``total``, ``at`` (broker time to which the ages refer, ms), ``next`` (start of the next page; absent
                  on the last one. With a group: a number of transactions; without: a number of groups, and each page has the
                  oldest transactions of its groups); body JSON [{"group", "tx_id", "age_ms", "messages", "expected",
                  "message_bytes", "topics", "checks", "next_check_in_ms", "producers", "set_aside", "name", "advice",
                  "comment", "branch", "coordinator", "epoch"}, ...], oldest first; ``set_aside``: the limit by which it was
                  parked, "checks" or "age", or ""; ``advice``: "COMMIT", "ROLLBACK" or ""; ``coordinator`` and ``epoch``: who
                  alone settles it, and the epoch in which it was prepared, or "" and 0
    HMQ_STORY         29003  ext ``group`` (empty: any), ``txId``
        response  code 0, ext ``group``, ``state`` UNDECIDED | COMMITTED | ROLLED_BACK | UNKNOWN, ``checkOpen`` "true": a check of it
                  was sent, or is due and a producer is there to get it, so that an answer may come soon (otherwise absent);
                  body JSON [sentence, ...]
    HMQ_RESOLVE       29004  ext ``group`` (as above), ``txId``, ``verdict`` COMMIT | ROLLBACK, ``operator``, ``reason``
        response  as to END_TRANSACTION (37): code 0 with HMQ_VERDICT, HMQ_POSITION, HMQ_DURABILITY, HMQ_REPEATED; or 604 with
                  the existing verdict, 604 without one for an incomplete transaction, 1 not found

    HMQ_UNDECIDED     29005  ext ``group`` (empty or absent: any); body JSON [id, ...], at most 1,000
        response  code 0; body JSON: those of the ids whose markers must be kept: undecided, or with a verdict that is to be compared

    HMQ_ASK           29006  ext ``group`` (empty: any), ``txId``: check this transaction now
        response  code 0, ext ``group``, ``clientId`` (receiver; empty: the next client that fetches checks), ``checks``; 2: no
                  check is possible now; 604 with HMQ_VERDICT: settled; 1: not found

    HMQ_ASK_PARKED    29010  ext ``group``, ``max``: check up to ``max`` parked transactions now
        response  code 0, ext ``left``: number of the other parked transactions; body JSON [id, ...]: the checked ones, at most
                  256, none while too many checks are in flight; 2: no producer is reachable

Response code 29: an invalid field. RocketMQ responds with 3. The codes fit in the 16 bits of a binary header. Pure functions.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from halfmq import limits
from halfmq.errors import ProtocolError
from halfmq.model.pending import PendingTransaction
from halfmq.wire.remoting.java_json import at_most
from halfmq.wire.remoting.json_body import JsonBody

EXT_GROUP: Final = "group"
EXT_MAX: Final = "max"
EXT_FROM: Final = "from"
EXT_NEXT: Final = "next"
EXT_AT: Final = "at"
EXT_TOTAL: Final = "total"
EXT_ID: Final = "txId"
EXT_STATE: Final = "state"
EXT_CHECK_OPEN: Final = "checkOpen"
EXT_VERDICT_WANTED: Final = "verdict"
EXT_OPERATOR: Final = "operator"
EXT_REASON: Final = "reason"
EXT_CLIENT: Final = "clientId"
EXT_CHECKS: Final = "checks"
EXT_LEFT: Final = "left"
EXT_COORDINATOR: Final = "coordinator"

LISTED_MAX: Final = limits.TRANSACTIONS_LISTED_MAX
#: Maximum ids of a request.
UNDECIDED_IDS_MAX: Final = 1_000
#: So many of the longest ids, with every character escaped.
_UNDECIDED_BYTES_MAX: Final = 1_000 * (6 * limits.TRANSACTION_ID_CHARS_MAX + 16)
OPERATOR_CHARS_MAX: Final = limits.OPERATOR_CHARS_MAX
REASON_CHARS_MAX: Final = limits.REASON_CHARS_MAX


_ROWS: Final = JsonBody(list[PendingTransaction], "a response to HMQ_TRANSACTIONS is")
_IDS: Final = JsonBody(list[str], "a list of transaction ids is")
#: Response body of HMQ_STORY: sentences.
STORY: Final = JsonBody(list[str], "a response to HMQ_STORY is")


def encode_pending(rows: Iterable[PendingTransaction]) -> bytes:
    """Response body of HMQ_TRANSACTIONS."""
    return _ROWS.encode(list(rows))


def decode_pending(
    ext: Mapping[str, str], body: bytes | bytearray | memoryview
) -> tuple[int, list[PendingTransaction]]:
    """Response to HMQ_TRANSACTIONS: (total number, transactions of this page).

    Raises:
        ProtocolError: malformed.
    """
    rows = _ROWS.decode(body)
    try:
        return int(ext[EXT_TOTAL]), rows
    except (KeyError, ValueError) as error:
        raise ProtocolError(f"a response to HMQ_TRANSACTIONS is malformed: {error!r}") from error


def encode_ids(ids: Iterable[str]) -> bytes:
    """A list of transaction ids as a body."""
    return _IDS.encode(list(ids))


def decode_ids(body: bytes | bytearray | memoryview) -> list[str]:
    """A list of transaction ids, at most ``UNDECIDED_IDS_MAX``. Raises ProtocolError."""
    ids = _IDS.decode(at_most(body, _UNDECIDED_BYTES_MAX))
    if len(ids) > UNDECIDED_IDS_MAX:
        raise ProtocolError(f"{len(ids)} transaction ids; the maximum is {UNDECIDED_IDS_MAX}")
    return ids
