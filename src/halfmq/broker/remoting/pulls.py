"""Pulls (11, 361), translated to and from ``services.pulls``."""

from functools import partial
from typing import Any, Final

from halfmq.broker.remoting.gateway import Connection
from halfmq.broker.remoting.handlers import Handlers, Parts
from halfmq.broker.remoting.refusals import refusal
from halfmq.broker.services.pulls import Pulled, Status
from halfmq.core.decision import Failed, Refused
from halfmq.model.queue_reads import PullRequest
from halfmq.wire.remoting.codes import FLAG_ONEWAY, PullFlag, ResponseCode
from halfmq.wire.remoting.header import Request, encode_pull_response_head

_COMMIT: Final = int(PullFlag.COMMIT_OFFSET)
_SUSPEND: Final = int(PullFlag.SUSPEND)
_SUBSCRIPTION: Final = int(PullFlag.SUBSCRIPTION)
#: Code and remark; for UNREADABLE the remark is the service's text.
_CODES: Final[dict[Status, tuple[int, str]]] = {
    Status.FOUND: (ResponseCode.SUCCESS, "FOUND"),
    Status.NOTHING_NEW: (ResponseCode.PULL_NOT_FOUND, "PULL_NOT_FOUND"),
    Status.NO_MATCH: (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE"),
    Status.OFFSET_MOVED: (ResponseCode.PULL_OFFSET_MOVED, "PULL_OFFSET_MOVED"),
    Status.UNREADABLE: (ResponseCode.SYSTEM_ERROR, ""),
}
#: The most frequent result, which needs no look-up in the table.
_FOUND: Final = Status.FOUND
_CODE_FOUND: Final = _CODES[_FOUND]


class PullHandlers(Handlers):
    """Pulls of consumers (11, 361)."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._pulls = parts.pulls

    def pull(self, connection: Connection, request: Request[Any]) -> None:
        """Responds at once, or when there are messages or the wait is over."""
        asked: PullRequest = request.ext
        flags = asked.sys_flag
        asked.commit_offset = asked.commit_offset or 0 if flags & _COMMIT else None
        asked.subscription = asked.subscription or "" if flags & _SUBSCRIPTION else None
        if not flags & _SUSPEND:
            asked.wait_ms = 0
        # A held pull keeps only what its response needs: a client may put anything into the rest.
        request.ext = request.remark = None
        request.body, request.language = b"", ""
        self._pulls.pull(connection, asked, partial(self._pulled, connection, request))

    def _pulled(self, connection: Connection, request: Request[Any], pulled: Pulled | Refused | Failed) -> None:
        if not isinstance(pulled, Pulled):
            self._gateway.answer(connection, request, *refusal(pulled)[:2])
        elif pulled.status is Status.UNREADABLE:
            # The text names a file: the fast encoder below supports plain words only.
            ext = {
                "suggestWhichBrokerId": 0,
                "nextBeginOffset": pulled.next_offset,
                "minOffset": pulled.min_offset,
                "maxOffset": pulled.max_offset,
            }
            self._gateway.answer(connection, request, _CODES[pulled.status][0], pulled.text, ext)
        elif not request.flag & FLAG_ONEWAY:
            body = pulled.body
            code, remark = _CODE_FOUND if pulled.status is _FOUND else _CODES[pulled.status]
            head = encode_pull_response_head(
                request,
                code,
                remark,
                pulled.next_offset,
                pulled.min_offset,
                pulled.max_offset,
                len(body),
            )
            connection.respond(request, code, head)
            if body:
                connection.send_rest(body)
