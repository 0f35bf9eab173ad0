"""Maps a broker's error response to the exception that the caller gets, in one place for all calls."""

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
from halfmq.wire.remoting.codes import ResponseCode

_HINTS = {
    ResponseCode.MESSAGE_ILLEGAL: "body, properties or topic are larger than this broker accepts",
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: "write tags as 'a || b', or '*'",
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "the server is not a broker, or too old for this",
}


def refusal(code: int, remark: str, what: str, standing: str = "", *, hint: str = "") -> RequestFailed:
    """The exception for response ``code``. ``what``: the request, for the message.

    ``standing``: the transaction's verdict, if the broker names one with ILLEGAL_OPERATION. Without it the transaction is
    incomplete and stays undecided. With INVALID_PARAMETER it is UNDECIDED, or the request was invalid. ``hint``: used if the code has
    no hint of its own.
    """
    text = f"{what}: {remark or 'no reason given'} (code {code})"
    match code:
        case ResponseCode.TOPIC_NOT_EXIST:
            return TopicNotFound(text, response_code=code, hint="create the topic, or let the broker create topics")
        case ResponseCode.NO_PERMISSION:
            return NotAuthorized(text, response_code=code)
        case ResponseCode.SYSTEM_BUSY | ResponseCode.SERVICE_NOT_AVAILABLE | ResponseCode.FLOW_CONTROL:
            return ServerBusy(text, response_code=code, hint="nothing was stored; try again later")
        case ResponseCode.GO_AWAY:
            return ServerBusy(text, response_code=code, hint="the broker is stopping")
        case ResponseCode.SUPERSEDED:
            hint = "another process of this coordinator took over: stop, or start again with recover()"
            return CoordinatorSuperseded(text, response_code=code, hint=hint)
        case ResponseCode.INVALID_PARAMETER if standing:
            return TransactionUndecided(text, hint="its check, or an operator, decides; after that you get its verdict")
        case ResponseCode.ILLEGAL_OPERATION if standing:
            return TransactionRefused(text, standing=standing, hint=f"it is {standing}")
        case ResponseCode.ILLEGAL_OPERATION:
            return TransactionIncomplete(text, hint="send the missing messages under the same id, or roll back")
        case _:
            return RequestFailed(text, response_code=code, hint=_HINTS.get(code, hint))  # type: ignore[call-overload]
