"""What each response code means, in one table: whether the same request may succeed later, what it says of earlier attempts, and its
exception.

A response always tells the outcome of its request: an error changed nothing. Unknown is only what had no response (``NoAnswer``,
``SendTimeout``).
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final, NamedTuple

from halfmq.errors import (
    CoordinatorSuperseded,
    NotAuthorized,
    RequestFailed,
    ServerBusy,
    TopicNotFound,
    TransactionIncomplete,
    TransactionRefused,
    TransactionUndecided,
)
from halfmq.wire.remoting.codes import EXT_DAMAGED, ResponseCode


class Again(Enum):
    """Whether the same request may succeed later."""

    NEVER = auto()
    #: It may, soon or on another broker, or never: the code stands for what passes and for what does not. Sends and reads are tried again,
    #: since
    #: repeating them is harmless. What only halfmq brokers answer is not: they use code 1 for what stays wrong.
    PERHAPS = auto()
    #: The broker is busy, full, starting or stopping.
    LATER = auto()


class Meaning(NamedTuple):
    """Of a response code. ``error``: None if it is none."""

    again: Again = Again.NEVER
    error: type[RequestFailed] | None = RequestFailed
    hint: str = ""
    #: The message of a send is stored; in all but SUCCESS with a weaker durability than configured, which RocketMQ treats as sent.
    is_stored: bool = False
    #: It also says what became of earlier attempts, as far as it matters to this caller.
    settles: bool = False


_BUSY: Final = Meaning(Again.LATER, ServerBusy, "nothing was stored; try again later")
_PERHAPS: Final = Meaning(Again.PERHAPS)
_WEAK: Final = Meaning(is_stored=True)
_OTHER: Final = Meaning()
#: Codes that say no more than that there is an error, which stays; those of pulls are results, which readers handle.
_OTHERS: Final = (
    ResponseCode.TRANSACTION_FAILED, ResponseCode.VERSION_NOT_SUPPORTED, ResponseCode.TOPIC_EXIST_ALREADY,
    ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED,
    ResponseCode.QUERY_NOT_FOUND, ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, ResponseCode.FILTER_DATA_NOT_EXIST,
    ResponseCode.FILTER_DATA_NOT_LATEST, ResponseCode.INVALID_PARAMETER, ResponseCode.CONSUMER_NOT_ONLINE,
    ResponseCode.CONSUME_MSG_TIMEOUT, ResponseCode.NO_MESSAGE,
)  # fmt: skip
#: Precedent: ``retryResponseCodes`` of RocketMQ's producer, without 16 and 17, which do not pass, and with 215 and 1500, which do.
MEANINGS: Final[Mapping[int, Meaning]] = {
    **dict.fromkeys(_OTHERS, _OTHER),
    ResponseCode.SUCCESS: Meaning(error=None, is_stored=True),
    ResponseCode.SYSTEM_ERROR: _PERHAPS,
    ResponseCode.SYSTEM_BUSY: _BUSY,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: Meaning(hint="the server is not a broker, or too old for this"),
    ResponseCode.FLUSH_DISK_TIMEOUT: _WEAK,
    ResponseCode.SLAVE_NOT_AVAILABLE: _WEAK,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: _WEAK,
    ResponseCode.MESSAGE_ILLEGAL: Meaning(hint="body, properties or topic are larger than this broker accepts"),
    ResponseCode.SERVICE_NOT_AVAILABLE: _BUSY,
    ResponseCode.NO_PERMISSION: Meaning(error=NotAuthorized),
    ResponseCode.TOPIC_NOT_EXIST: Meaning(
        error=TopicNotFound, hint="create the topic, or let the broker create topics"
    ),
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: Meaning(hint="write tags as 'a || b', or '*'"),
    ResponseCode.NO_BUYER_ID: _PERHAPS,
    ResponseCode.NOT_IN_CURRENT_UNIT: _PERHAPS,
    ResponseCode.FLOW_CONTROL: _BUSY,
    ResponseCode.ILLEGAL_OPERATION: Meaning(
        error=TransactionIncomplete, hint="send the missing messages under the same id, or roll back", settles=True
    ),
    ResponseCode.GO_AWAY: Meaning(Again.LATER, ServerBusy, "the broker is stopping"),
    ResponseCode.SUPERSEDED: Meaning(
        error=CoordinatorSuperseded,
        hint="another process of this coordinator took over: stop, or start again with recover()",
        settles=True,
    ),
}
#: What passes, and what may pass; see ``Again``.
PASSING: Final = frozenset(code for code, meaning in MEANINGS.items() if meaning.again is Again.LATER)
RETRIABLE: Final = frozenset(code for code, meaning in MEANINGS.items() if meaning.again is not Again.NEVER)
#: Response codes of stored messages, and their status in a receipt.
STORED: Final = {
    code: "SEND_OK" if code == ResponseCode.SUCCESS else ResponseCode(code).name
    for code, meaning in MEANINGS.items()
    if meaning.is_stored
}


def meaning_of(code: int) -> Meaning:
    """What a response code means; an unknown one is an error that does not pass."""
    return MEANINGS.get(code, _OTHER)


def is_temporary(code: int, ext: Mapping[str, str]) -> bool:
    """Whether a send or a read may succeed later. Not if files of the broker's store are damaged."""
    return code in RETRIABLE and EXT_DAMAGED not in ext


def refusal(code: int, remark: str | None, what: str, standing: str = "", *, hint: str = "") -> RequestFailed:
    """The exception for response ``code``. ``what``: the request, for the message.

    ``standing``: the transaction's verdict, if the broker names one with ILLEGAL_OPERATION. Without it the transaction is
    incomplete and stays undecided. With INVALID_PARAMETER it is UNDECIDED, or the request was invalid. ``hint``: used if the code has
    no hint of its own.
    """
    text = f"{what}: {remark or 'no reason given'} (code {code})"
    if standing and code == ResponseCode.INVALID_PARAMETER:
        return TransactionUndecided(
            text,
            hint="its check decides, or if a coordinator prepared it, its coordinator, or an operator; after that you get its verdict",
        )
    if standing and code == ResponseCode.ILLEGAL_OPERATION:
        return TransactionRefused(text, standing=standing, hint=f"it is {standing}")
    return refused(code, text, hint=hint)


def refused(code: int, text: str, *, hint: str = "") -> RequestFailed:
    """The exception for response ``code``, with this text. ``hint``: as for ``refusal``."""
    meaning = meaning_of(code)
    return (meaning.error or RequestFailed)(text, response_code=code, hint=meaning.hint or hint)
