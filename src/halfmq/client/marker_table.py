"""The interfaces that a database integration implements, for ``mq.transaction(session, ...)`` and ``mq.relay``.

The client itself knows no database. A marker table (``halfmq.sql.MarkerTable`` implements the interface for SQLAlchemy)
inserts a marker row in the application's own transaction, sends the half messages just before COMMIT, and answers checks
from the table. It receives the client's low-level calls, and decides itself what each failure means.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack

from halfmq.client.arguments import Notes, PrepareOptions, RelayOptions
from halfmq.client.message import Sends
from halfmq.client.outcome import Outcome
from halfmq.client.receipts import Prepared, TransactionReceipt

if TYPE_CHECKING:
    import asyncio

    from halfmq.client.outgoing import OutgoingMessage
    from halfmq.client.transaction_block import Transaction

_Session_contra = TypeVar("_Session_contra", contravariant=True)
_Sessions_contra = TypeVar("_Sessions_contra", contravariant=True)
_To_contra = TypeVar("_To_contra", contravariant=True)

#: A check function: called with the transaction, returns an Outcome. May be a coroutine function.
CheckFunction = Callable[["Transaction"], Outcome | Awaitable[Outcome]]


class TransactionBlock(Sends, Protocol):
    """What the body of the block receives. ``send`` only collects the message; its arguments are those of ``client.outgoing.compose``."""

    @property
    def id(self) -> str:
        """The transaction id."""
        ...

    @property
    def receipt(self) -> TransactionReceipt | None:
        """After the block: the broker's receipt for COMMIT, or None if no receipt has arrived."""
        ...


class TransactionCalls(Protocol):
    """The calls of ``AsyncClient`` that a marker table uses, documented there.

    The order is ``new_transaction_id``, insert the marker, ``prepare``, local COMMIT, ``commit``. ``prepare`` returns when
    every half message is acknowledged; if it raises, nothing is visible, and nothing becomes visible unless somebody
    commits the transaction. ``commit`` may raise ``TransactionUnknown``: the client keeps retrying in the background, with
    the back-check as the fallback. Once the marker is durable the caller can ignore that error.
    """

    group: str

    def new_transaction_id(self) -> str: ...

    async def prepare(
        self,
        messages: "Sequence[OutgoingMessage]",
        *,
        tx_id: str,
        name: str = "",
        query_id: str = "",
        timeout: float | None = None,  # noqa: ASYNC109
        **notes: Unpack[Notes],
    ) -> Prepared: ...

    async def commit(self, prepared: Prepared) -> TransactionReceipt: ...

    async def rollback(self, prepared: Prepared) -> TransactionReceipt: ...


class BlockingTransactionCalls(Protocol):
    """The calls of ``Client``: the same, blocking."""

    group: str

    def new_transaction_id(self) -> str: ...

    def prepare(
        self,
        messages: "Sequence[OutgoingMessage]",
        *,
        tx_id: str,
        name: str = "",
        query_id: str = "",
        timeout: float | None = None,
        **notes: Unpack[Notes],
    ) -> Prepared: ...

    def commit(self, prepared: Prepared) -> TransactionReceipt: ...

    def rollback(self, prepared: Prepared) -> TransactionReceipt: ...


class MarkerTable(Protocol):
    """A table in the application's database that records which transactions committed."""

    @property
    def name(self) -> str:
        """The name that its transactions carry (HMQ_TX_NAME); it routes their checks to this table."""
        ...

    def bind(
        self,
        client: BlockingTransactionCalls,
        session: Any,
        *,
        outbox: Any = None,
        **options: Unpack[PrepareOptions],
    ) -> AbstractContextManager[TransactionBlock]:
        """The context manager behind ``Client.transaction(session, markers=self, ...)``. ``outbox``: of the same integration;
        ``options``: for ``prepare``."""
        ...

    def bind_async(
        self,
        client: TransactionCalls,
        session: Any,
        *,
        outbox: Any = None,
        **options: Unpack[PrepareOptions],
    ) -> AbstractAsyncContextManager[TransactionBlock]:
        """The same behind ``AsyncClient.transaction``."""
        ...

    def checker(self, sessions: Any) -> CheckFunction:
        """The check function that answers from the table, on sessions opened by ``sessions()``.

        ``client.answer_checks(markers, sessions)`` registers it under ``name``.
        """
        ...


class BlockingMarkerTable(MarkerTable, Protocol[_Session_contra]):
    """A marker table whose blocking sessions have this type: a type checker finds an ``AsyncSession`` in the wrong place."""

    def bind(
        self,
        client: BlockingTransactionCalls,
        session: _Session_contra,
        *,
        outbox: Any = None,
        **options: Unpack[PrepareOptions],
    ) -> AbstractContextManager[TransactionBlock]: ...


class AsyncMarkerTable(MarkerTable, Protocol[_Session_contra]):
    """A marker table whose asynchronous sessions have this type."""

    def bind_async(
        self,
        client: TransactionCalls,
        session: _Session_contra,
        *,
        outbox: Any = None,
        **options: Unpack[PrepareOptions],
    ) -> AbstractAsyncContextManager[TransactionBlock]: ...


class OutboxTable(Protocol[_Sessions_contra, _To_contra]):
    """An outbox in the application's database: what ``mq.relay`` uses of ``halfmq.sql.Outbox``. The variables are what gives it sessions,
    and its targets."""

    def new_message_id(self) -> str: ...

    def bind_relay(
        self, client: Any, sessions: _Sessions_contra, *, to: _To_contra | None = None, **options: Unpack[RelayOptions]
    ) -> "BoundRelay": ...


class RelayFigures(Protocol):
    """The state of an outbox: ``halfmq.relay.rows.Figures``."""

    @property
    def rows(self) -> Mapping[str, int]: ...

    @property
    def wanted(self) -> int: ...

    @property
    def waiting(self) -> int: ...

    @property
    def oldest_s(self) -> float | None: ...


class RunningRelay(Protocol):
    """A relay at work: ``halfmq.relay.relay.Relay``, which says what its methods do; the client knows no database."""

    @property
    def name(self) -> str: ...

    @property
    def confirmed(self) -> int: ...

    @property
    def refused(self) -> int: ...

    async def figures(self) -> RelayFigures: ...


class BoundRelay(RunningRelay, Protocol):
    """A relay to be run once."""

    @property
    def outbox(self) -> str: ...

    @property
    def target(self) -> str: ...

    @property
    def retried(self) -> int: ...

    @property
    def failed_batches(self) -> int: ...

    @property
    def confirmed_at_s(self) -> float: ...

    def why_not(self) -> str: ...

    def running(self) -> AbstractAsyncContextManager[RunningRelay]: ...

    async def opened(self) -> None: ...

    async def run(self, stop: "asyncio.Event") -> None: ...
