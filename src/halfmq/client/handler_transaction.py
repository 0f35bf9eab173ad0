"""How a handler sends messages in the database transaction of its inbox row."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from halfmq.client.loop_thread import run_on
from halfmq.client.message import Sends
from halfmq.client.outgoing import OutgoingMessage
from halfmq.client.receipts import Prepared, TransactionReceipt
from halfmq.errors import UsageError

if TYPE_CHECKING:
    from halfmq.client.async_client import AsyncClient
    from halfmq.client.marker_table import MarkerTable


class HandlerTransaction(NamedTuple):
    """``markers``: with half messages; ``outbox``: as its rows; both: as rows if the broker does not answer."""

    client: "AsyncClient"
    markers: "MarkerTable | None"
    outbox: Any

    def block_async(self, session: Any) -> AbstractAsyncContextManager[Sends]:
        """For an ``AsyncSession``, on the client's loop. At its end it commits the session, if there are ``markers``.

        Raises: as ``AsyncClient.transaction``.
        """
        if self.markers is None:
            return nullcontext(_Rows(self.outbox, session))
        return self.client.transaction(session, markers=self.markers, outbox=self.outbox)

    def block(self, session: Any, loop: asyncio.AbstractEventLoop) -> AbstractContextManager[Sends]:
        """The same for a ``Session``, in another thread than that of ``loop``, the client's."""
        if self.markers is None:
            return nullcontext(_Rows(self.outbox, session))
        options = self.client._transaction_options(self.markers, self.outbox)
        return self.markers.bind(_FromThread(self.client, loop), session, **options)


class _Rows:
    """Sends as rows of an outbox."""

    def __init__(self, outbox: Any, session: Any) -> None:
        self._outbox = outbox
        self._session = session

    def send(self, topic: str, body: object, **named: Any) -> None:
        self._outbox.send(self._session, topic, body, **named)


class _FromThread:
    """The calls of a client in another thread than that of its loop."""

    def __init__(self, client: "AsyncClient", loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._loop = loop
        self.group = client.group
        self.new_transaction_id = client.new_transaction_id

    def prepare(self, messages: Sequence[OutgoingMessage], **named: Any) -> Prepared:
        return run_on(self._loop, self._client.prepare(messages, **named), self._refuse_if_ended)

    def commit(self, prepared: Prepared) -> TransactionReceipt:
        return run_on(self._loop, self._client.commit(prepared), self._refuse_if_ended)

    def rollback(self, prepared: Prepared) -> TransactionReceipt:
        return run_on(self._loop, self._client.rollback(prepared), self._refuse_if_ended)

    def _refuse_if_ended(self) -> None:
        if self._loop.is_closed() or not self._loop.is_running():
            raise UsageError("the event loop of the app has ended, and with it this handler's transaction")
