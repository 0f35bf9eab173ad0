"""The response code and remark of each refusal, in one table, so that all commands agree.

The choice of each code depends on how RocketMQ's clients react to it: the Java producer retries after 1, 2, 14, 16 and 17, and gives up
after others. Never 10, 11 or 12: they mean "stored, but", and a Java transaction producer that gets one for a half rolls back
without calling its listener.
"""

from typing import Final

from halfmq.core.decision import Failed, Refused, Reply, Why
from halfmq.wire.remoting.codes import EXT_POSITION, EXT_VERDICT, ResponseCode

CODES: Final[dict[Why, ResponseCode]] = {
    Why.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    Why.INVALID_PARAMETER: ResponseCode.INVALID_PARAMETER,
    # Not in the Java producer's retry set either.
    Why.STILL_UNDECIDED: ResponseCode.INVALID_PARAMETER,
    Why.TOPIC_NOT_EXIST: ResponseCode.TOPIC_NOT_EXIST,
    Why.GROUP_NOT_EXIST: ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    Why.NO_PERMISSION: ResponseCode.NO_PERMISSION,
    Why.STORE_FULL: ResponseCode.SERVICE_NOT_AVAILABLE,
    Why.LIMIT_REACHED: ResponseCode.SYSTEM_BUSY,
    Why.NOT_NOW: ResponseCode.SYSTEM_BUSY,
    # RocketMQ's code if 33, 36 and 37 find no message: "Find prepared transaction message failed" and the like.
    Why.NOT_FOUND: ResponseCode.SYSTEM_ERROR,
    Why.WRONG_GROUP: ResponseCode.SYSTEM_ERROR,
    Why.WRONG_OFFSETS: ResponseCode.SYSTEM_ERROR,
    # Not in the Java producer's retry set, so the local transaction does not run.
    Why.ALREADY_SETTLED: ResponseCode.ILLEGAL_OPERATION,
    # ``ChosenIds`` repeats the command, so no client gets it.
    Why.SEARCH_AGAIN: ResponseCode.SYSTEM_BUSY,
    Why.VERDICT_CONFLICT: ResponseCode.ILLEGAL_OPERATION,
    Why.INCOMPLETE: ResponseCode.ILLEGAL_OPERATION,
    Why.FENCED: ResponseCode.ILLEGAL_OPERATION,
    # A code of its own: 604 without a verdict means that halves are missing.
    Why.SUPERSEDED: ResponseCode.SUPERSEDED,
    Why.OF_COORDINATOR: ResponseCode.INVALID_PARAMETER,
    Why.AFTER_RESTORE: ResponseCode.INVALID_PARAMETER,
    Why.USER_EXISTS: ResponseCode.INVALID_PARAMETER,
    Why.OTHER_STREAM: ResponseCode.ILLEGAL_OPERATION,
    # A Java consumer logs these three and pulls again a little later; its next heartbeat may have arrived by then.
    Why.SUBSCRIPTION_NOT_EXIST: ResponseCode.SUBSCRIPTION_NOT_EXIST,
    Why.SUBSCRIPTION_NOT_LATEST: ResponseCode.SUBSCRIPTION_NOT_LATEST,
    Why.SUBSCRIPTION_PARSE_FAILED: ResponseCode.SUBSCRIPTION_PARSE_FAILED,
    Why.FILTER_NOT_SUPPORTED: ResponseCode.SYSTEM_ERROR,
    Why.CLIENT_NOT_REACHED: ResponseCode.SYSTEM_ERROR,
    Why.CLIENT_TIMEOUT: ResponseCode.CONSUME_MSG_TIMEOUT,
}


def refusal(reply: Reply | Failed) -> tuple[int, str, dict[str, object]]:
    """(code, remark, ext) for a reply that is not a success."""
    if isinstance(reply, Refused):
        ext: dict[str, object] = {EXT_VERDICT: reply.standing} if reply.standing else {}
        if reply.position >= 0:
            ext[EXT_POSITION] = reply.position
        return CODES[reply.why], reply.text, ext
    return (
        ResponseCode.SYSTEM_ERROR,
        reply.text if isinstance(reply, Failed) else f"unexpected {type(reply).__name__}",
        {},
    )
