"""The seam to database integrations: what ``mq.transaction(session, log=...)`` asks of ``log``.

The client knows no database. A log (``halfmq.sql.TransactionLog`` is one) writes a marker in the application's own
transaction, prepares the messages just before COMMIT, and answers checks from the table. It gets the client's
lower-level calls; the context manager, and what each failure means, is its own business.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from halfmq.client.outcome import Outcome
from halfmq.client.receipts import Prepared, TransactionReceipt

if TYPE_CHECKING:
    from halfmq.client.outgoing import OutgoingMessage
    from halfmq.client.transaction_block import Transaction

#: A check: asked with the transaction, answers an Outcome. May be a coroutine function.
CheckFunction = Callable[["Transaction"], Outcome | Awaitable[Outcome]]


class TransactionBlock(Protocol):
    """What the body of the block gets. ``send`` only collects (see ``client.outgoing.compose`` for the arguments)."""

    @property
    def id(self) -> str: ...

    @property
    def receipt(self) -> TransactionReceipt | None:
        """After the block: the broker's receipt for COMMIT; None while there is none."""
        ...

    def send(
        self,
        topic: str,
        body: object,
        *,
        tag: str | None = None,
        key: object = None,
        keys: Sequence[object] | str = (),
        sharding_key: object = None,
        delay: float | timedelta | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None: ...


class TransactionCalls(Protocol):
    """``AsyncClient``'s calls for an outside coordinator.

    ``new_transaction_id`` -> write the marker -> ``prepare`` -> COMMIT -> ``commit``. ``prepare`` returns when every
    half is acknowledged; if it raises, nothing became visible and nothing will unless somebody commits it.
    ``commit`` may raise ``TransactionUnknown``: the client goes on repeating it in the background, and the check is
    behind that; where the marker is durable the caller need not tell its user.
    """

    group: str

    def new_transaction_id(self) -> str: ...

    async def prepare(
        self, messages: "Sequence[OutgoingMessage]", *, tx_id: str, name: str = "", query_id: str = ""
    ) -> Prepared: ...

    async def commit(self, prepared: Prepared) -> TransactionReceipt: ...

    async def rollback(self, prepared: Prepared) -> TransactionReceipt: ...


class BlockingTransactionCalls(Protocol):
    """``Client``'s calls: the same names, blocking."""

    group: str

    def new_transaction_id(self) -> str: ...

    def prepare(
        self, messages: "Sequence[OutgoingMessage]", *, tx_id: str, name: str = "", query_id: str = ""
    ) -> Prepared: ...

    def commit(self, prepared: Prepared) -> TransactionReceipt: ...

    def rollback(self, prepared: Prepared) -> TransactionReceipt: ...


class TransactionLog(Protocol):
    """A table that says which transactions committed."""

    @property
    def name(self) -> str:
        """The listener name (HMQ_TX_NAME) that its transactions carry, so that their checks come back to it."""
        ...

    def bind(
        self, client: BlockingTransactionCalls, session: Any, *, query_id: str = ""
    ) -> AbstractContextManager[TransactionBlock]:
        """The block of ``Client.transaction(session, log=self, query_id=...)``."""
        ...

    def bind_async(
        self, client: TransactionCalls, session: Any, *, query_id: str = ""
    ) -> AbstractAsyncContextManager[TransactionBlock]:
        """The block of ``AsyncClient.transaction(session, log=self, query_id=...)``."""
        ...

    def checker(self, sessions: Any) -> CheckFunction:
        """The check function that answers from the table, opening sessions with ``sessions()``.

        ``client.answer_checks(log, sessions)`` registers it under ``name``.
        """
        ...
