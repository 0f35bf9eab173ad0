"""Responses that were read from memory, and must not be sent before that state is durable (promise 5)."""

from collections.abc import Mapping
from typing import Any, Final

from halfmq.broker.remoting.connection import Connection
from halfmq.broker.remoting.gateway import Gateway
from halfmq.broker.remoting.refusals import refusal
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.pages import Page, requested_page
from halfmq.core.decision import Done, Refused, Reply
from halfmq.core.engine import Failed
from halfmq.wire.remoting.codes import ResponseCode
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.operators import EXT_FROM, EXT_MAX, EXT_NEXT, EXT_TOTAL

_DONE: Final = Done()


class DurableAnswers:
    """Withholds responses until the state that they contain is durable."""

    def __init__(self, gateway: Gateway, sequencer: Sequencer) -> None:
        self._gateway = gateway
        self._sequencer = sequencer

    def tell(
        self,
        connection: Connection,
        request: Request[Any],
        code: int,
        remark: str | None = None,
        ext: Mapping[str, object] | None = None,
        body: bytes = b"",
    ) -> None:
        """Respond as soon as a crash can revert nothing in memory; at once if that is already so."""

        def told(_: None, __: Reply | Failed) -> None:
            self._gateway.answer(connection, request, code, remark, ext, body)

        if body:
            self._gateway.intake.count_withheld_response(connection, len(body))
        self._sequencer.after_durable(told, None, _DONE)

    def tell_page(
        self, connection: Connection, request: Request[Any], page: Page[Any], body: bytes, **ext: object
    ) -> None:
        """Respond with a page, whose rows are in ``body``: ``tell``. ``ext``: further fields."""
        told = {EXT_TOTAL: page.total, **ext}
        if page.following:
            told[EXT_NEXT] = page.following
        self.tell(connection, request, ResponseCode.SUCCESS, None, told, body)

    def requested_page(self, connection: Connection, request: Request[Any]) -> tuple[int, int] | None:
        """(rows, start) of the page that is requested; None: it was refused."""
        asked = requested_page(request.ext.get(EXT_MAX), request.ext.get(EXT_FROM))
        if isinstance(asked, Refused):
            self._gateway.answer(connection, request, *refusal(asked))
            return None
        return asked
