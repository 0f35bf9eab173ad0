"""Commands of halfmq for operators: list undecided transactions, explain one, settle one, check some now. And those that compare verdicts
with what the applications' databases did.

    HMQ_TRANSACTIONS  29002  ext ``group`` (empty: all), ``coordinator`` (of the group; absent: all), ``max``, ``from``: ``next`` of
                      the previous page
        response  code 0, ext ``total``, ``at`` (broker time to which the ages refer, ms), ``next`` (start of the next page; absent
                  on the last one. With a group: a number of transactions; without: a number of groups, and each page has the
                  oldest transactions of its groups); body JSON [``PendingTransaction``, ...], oldest first
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

    HMQ_COMPARISONS    29022  ext ``group``, ``from``: ``next`` of the previous page; from a client that reads markers
        response  code 0, ext ``next`` (absent on the last page); body JSON [``AwaitedComparison``, ...]
    HMQ_COMPARED       29023  ext ``group`` (empty: any), ``txId``, ``outcome`` COMMIT | ROLLBACK of the local transaction, ``source``,
                              ``isMarker`` "true": read from the marker of the transaction, which may end the comparison
        response  code 0 with HMQ_VERDICT, ``agrees``; 29 with HMQ_VERDICT UNDECIDED; 1: not known here; 2: no space for a finding
    HMQ_DAMAGED        29024  ext ``max``, ``from``
        response  code 0, ext ``total``, ``waiting``: to be compared, ``next``; body JSON [``DamagedTransaction``, ...]
    HMQ_FORGET_DAMAGE  29025  ext ``group`` (empty: any), ``txId``, ``operator``, ``reason``
        response  code 0 with HMQ_VERDICT and ``group``; 1: nothing is known of it; 2: it may still be compared

Response code 29: an invalid field. RocketMQ responds with 3. The codes fit in the 16 bits of a binary header. Pure functions.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Literal

from msgspec import Meta, field

from halfmq import limits
from halfmq.errors import ProtocolError
from halfmq.model.pending import AwaitedComparison, DamagedTransaction, PendingTransaction
from halfmq.model.text_fields import Count64, Fields, PageFields
from halfmq.wire.remoting.fields import JsonBody, read_answer_fields
from halfmq.wire.remoting.java_json import at_most

EXT_GROUP: Final = "group"
EXT_NEXT: Final = "next"
EXT_AT: Final = "at"
EXT_TOTAL: Final = "total"
EXT_STATE: Final = "state"
EXT_CHECK_OPEN: Final = "checkOpen"
EXT_CLIENT: Final = "clientId"
EXT_CHECKS: Final = "checks"
EXT_LEFT: Final = "left"
EXT_AGREES: Final = "agrees"
EXT_WAITING: Final = "waiting"

LISTED_MAX: Final = limits.TRANSACTIONS_LISTED_MAX
#: Maximum ids of a request.
UNDECIDED_IDS_MAX: Final = 1_000
#: So many of the longest ids, with every character escaped.
_UNDECIDED_BYTES_MAX: Final = 1_000 * (6 * limits.TRANSACTION_ID_CHARS_MAX + 16)
OutcomeName = Literal["COMMIT", "ROLLBACK"]
OPERATOR_CHARS_MAX: Final = limits.OPERATOR_CHARS_MAX
REASON_CHARS_MAX: Final = limits.REASON_CHARS_MAX


class TransactionsFields(PageFields, gc=False, omit_defaults=True):
    """HMQ_TRANSACTIONS."""

    group: str = ""
    coordinator: str = ""


class TransactionFields(Fields, gc=False):
    """HMQ_STORY and HMQ_ASK."""

    group: str = ""
    tx_id: str = ""


class ResolveFields(TransactionFields, gc=False, kw_only=True):
    """HMQ_RESOLVE."""

    verdict: OutcomeName
    operator: str = ""
    reason: str = ""


class GroupFields(Fields, gc=False):
    """HMQ_UNDECIDED."""

    group: str = ""


class GroupPageFields(GroupFields, gc=False, omit_defaults=True):
    """HMQ_STATS and HMQ_COMPARISONS: the page that begins at ``start``."""

    start: Count64 = field(name="from", default=0)


class AskParkedFields(Fields, gc=False):
    """HMQ_ASK_PARKED."""

    group: str = ""
    checks_max: Annotated[int, Meta(ge=1, le=LISTED_MAX)] = field(name="max", default=LISTED_MAX)


class ComparedFields(TransactionFields, gc=False, omit_defaults=True, kw_only=True):
    """HMQ_COMPARED."""

    outcome: OutcomeName
    source: str = ""
    is_marker: bool = False


class ForgetDamageFields(TransactionFields, gc=False):
    """HMQ_FORGET_DAMAGE."""

    operator: str = ""
    reason: str = ""


class _PageOfPending(Fields, gc=False):
    total: Count64


_ROWS: Final = JsonBody(list[PendingTransaction], "a response to HMQ_TRANSACTIONS is")
_IDS: Final = JsonBody(list[str], "a list of transaction ids is")
#: Response body of HMQ_STORY: sentences.
STORY: Final = JsonBody(list[str], "a response to HMQ_STORY is")
#: Response body of HMQ_COMPARISONS.
AWAITED: Final = JsonBody(list[AwaitedComparison], "a response to HMQ_COMPARISONS is")
#: Response body of HMQ_DAMAGED.
DAMAGED: Final = JsonBody(list[DamagedTransaction], "a response to HMQ_DAMAGED is")


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
    total = read_answer_fields(_PageOfPending, ext, "a response to HMQ_TRANSACTIONS").total
    return total, _ROWS.decode(body)


def encode_ids(ids: Iterable[str]) -> bytes:
    """A list of transaction ids as a body."""
    return _IDS.encode(list(ids))


def decode_ids(body: bytes | bytearray | memoryview) -> list[str]:
    """A list of transaction ids, at most ``UNDECIDED_IDS_MAX``. Raises ProtocolError."""
    ids = _IDS.decode(at_most(body, _UNDECIDED_BYTES_MAX))
    if len(ids) > UNDECIDED_IDS_MAX:
        raise ProtocolError(f"{len(ids)} transaction ids; the maximum is {UNDECIDED_IDS_MAX}")
    return ids
