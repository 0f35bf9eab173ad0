"""``Client``: the blocking facade over ``AsyncClient``, with the same method names; one event-loop thread per process.

It may be used by several threads, and after ``fork`` (gunicorn with preload): with its first call a child gets its own ids and
connections, even if no server responds to that call, and none of the parent's. Consumers and transaction blocks do not work
across a fork: in the child they raise UsageError. Do not fork inside ``transaction(session)``: two processes would use the
session's database connection.
"""

import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, Unpack

from halfmq.client import forks
from halfmq.client.arguments import (
    ClientOptions,
    EnvironmentOptions,
    RelayOptions,
    TccOptions,
    TransactionOptions,
    check_marker_table,
    checked_seconds,
    checked_transaction_id,
    refuse_misspelt,
)
from halfmq.client.async_client import TCC_TIMEOUT_S, AsyncClient, environment
from halfmq.client.faces import WithoutWaiting, blocking, described_by, finished, like
from halfmq.client.listener import AWAITS, TransactionListener, check_methods
from halfmq.client.loop_thread import loop_thread
from halfmq.client.message import Delivery, Message
from halfmq.client.outgoing import checked_bodies
from halfmq.client.receipts import Receipt, TransactionReceipt
from halfmq.client.retry_policy import DELAY_MAX_S
from halfmq.client.user_code import plain_result
from halfmq.errors import UsageError

if TYPE_CHECKING:
    # Loaded when they are needed, as in ``async_client``.
    from halfmq.client.consumer import Consumer
    from halfmq.client.coordinator import BlockingCoordinator, Coordinator
    from halfmq.client.marker_table import (
        BlockingMarkerTable,
        CheckFunction,
        MarkerTable,
        OutboxTable,
        RunningRelay,
        TransactionBlock,
    )
    from halfmq.client.tcc import BlockingTcc
    from halfmq.client.transaction_block import BlockingTransaction

_T = TypeVar("_T")
_Session = TypeVar("_Session")
_Sessions = TypeVar("_Sessions")
_To = TypeVar("_To")

#: Clients of parent processes; see ``loop_thread``.
_of_parents: Final[list[AsyncClient]] = []
#: Held while a child creates its client. Replaced after a fork, since another thread may have held it.
_reopening = threading.Lock()


def _after_fork_in_child() -> None:
    global _reopening
    _reopening = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class _Behind(AsyncClient):
    """The asynchronous client of a blocking one."""

    _face = "Client"


class Client:
    """A connection to halfmq or Apache RocketMQ, for code without asyncio.

    >>> with Client("rocketmq://127.0.0.1:9876", group="orders") as mq:
    ...     mq.send("order-created", {"id": 7})

    The arguments are those of ``AsyncClient``. Entering raises ``ConnectError`` if no server responds.
    """

    def __init__(self, url: str, *, group: str = "", **options: Unpack[ClientOptions]) -> None:
        refuse_misspelt(options, Client.__init__)
        self._make: Callable[[], AsyncClient] = lambda: _Behind(url, group=group, **options)
        self._client: AsyncClient = self._make()
        self.group = self._client.group
        self._checks: dict[str, CheckFunction] = {}
        self._entered = False
        #: The ``forks.generation`` of ``_client``. Assigned after ``_client``, because other threads read it first.
        self._made_in = forks.generation

    @classmethod
    def from_env(cls, **options: Unpack[EnvironmentOptions]) -> Self:
        """Make a client from HALFMQ_URL (or RocketMQ's NAMESRV_ADDR) and HALFMQ_GROUP; ``options`` take precedence.

        Raises:
            UsageError: neither address is set.
        """
        refuse_misspelt(options, Client.from_env)
        return cls(*environment(options), **options)

    # --- life -----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self, *, wait: bool = True) -> None:
        """Open the client, as ``with`` does. Call ``close`` at the end.

        ``wait``: for a broker. Without it the client connects in the background, for as long as that takes, and until then transaction
        blocks fail at once; ``is_ready`` says when a broker was found.

        Raises:
            ConnectError: no name server responds, or none of the brokers that it names.
        """
        client = self._client if self._is_of_this_process else self._recreate()
        loop_thread().run(client.connect(wait=wait))
        self._client, self._made_in = client, forks.generation
        self._entered = True

    def close(self) -> None:
        """Finish commits and verdicts in flight, leave all groups, and close all connections. Idempotent.

        Running transactions and checks have a few seconds. Pending plain sends of other threads fail with ``SendTimeout``: wait for them
        first. In a forked child it closes only the child's own connections, and the parent's stay open.
        """
        if self._entered and self._is_of_this_process:
            loop_thread().run(self._client.close())
        self._entered = False

    found = blocking(AsyncClient.found)

    @property
    def is_ready(self) -> bool:
        """Whether the client is open and, as far as it knows, a broker answers and takes its consumers as members of their groups.

        No I/O: it notices a request that timed out, a connection that was lost for as long as an attempt may take, and their end.
        ``healthy`` asks a broker.
        """
        return self._entered and self._live().is_ready

    def healthy(self) -> bool:
        """Whether a broker answers a heartbeat now; for readiness probes. False if the client is not open."""
        return self._entered and loop_thread().run(self._live().healthy())

    @property
    def _is_of_this_process(self) -> bool:
        return self._made_in == forks.generation

    def _recreate(self) -> AsyncClient:
        """A new client for this process, with the same settings and checks. The parent's is kept referenced and not used."""
        _of_parents.append(self._client)
        client = self._make()
        for name, check in self._checks.items():
            client.add_check(name, check)
        return client

    def _live(self) -> AsyncClient:
        if not self._entered:
            raise UsageError("the client is not open", hint="with Client(...) as mq:")
        loop_thread().refuse_if_ended()
        if not self._is_of_this_process:
            with _reopening:
                if not self._is_of_this_process:  # else another thread of the child was here first
                    client = self._recreate()
                    loop_thread().run(client._reopen())
                    self._client = client
                    self._made_in = forks.generation
        return self._client

    # --- plain sends ----------------------------------------------------------------------------------------------

    send = blocking(AsyncClient.send)

    @like(AsyncClient.send_many)
    def send_many(self, topic: str, bodies: Iterable[object], **named: Any) -> list[Receipt]:
        client = self._live()
        return loop_thread().run(client.send_many(topic, list(checked_bodies(bodies)), **named))

    request = blocking(AsyncClient.request)

    # --- transactions ---------------------------------------------------------------------------------------------

    def new_transaction_id(self) -> str:
        """A new unique transaction id, for ``prepare``. No I/O."""
        return self._live().new_transaction_id()

    prepare = blocking(AsyncClient.prepare)
    settle_earlier = blocking(AsyncClient.settle_earlier)

    def coordinator(self, name: str) -> "BlockingCoordinator":
        """For somebody else's coordinator, which decides transactions of this client's group under ``name``: see ``Coordinator``.

        Raises:
            UsageError: the client is not open, it has no group, or the name is invalid.
        """
        client = self._live()
        from halfmq.client.coordinator import BlockingCoordinator

        async def make() -> "Coordinator":
            return client.coordinator(name)

        return BlockingCoordinator(loop_thread().run(make()))

    broker_names = blocking(AsyncClient.broker_names)
    commit = blocking(AsyncClient.commit)
    rollback = blocking(AsyncClient.rollback)

    @like(AsyncClient.begin)
    def begin(self, name: str = "", **named: Any) -> "BlockingTransaction":
        client = self._live()
        from halfmq.client.transaction_block import BlockingTransaction

        client._refuse_begin(name, **named)
        self._answered(client, named.get("timeout"))
        return BlockingTransaction(WithoutWaiting(self), client.verdicts, name, **named)

    @described_by(AsyncClient.transaction)
    def transaction(
        self, session: _Session, *, markers: "BlockingMarkerTable[_Session]", **named: Unpack[TransactionOptions]
    ) -> "AbstractContextManager[TransactionBlock]":
        client = self._live()
        options = client._transaction_options(markers, **named)
        if named.get("outbox") is None:
            self._answered(client, named.get("timeout"))
        return markers.bind(self, session, **options)

    @staticmethod
    def _answered(client: AsyncClient, timeout: float | None) -> None:
        """Raises ConnectError: no broker answers; see ``ClientContext.answered``."""
        trying = client._answered(timeout)
        if trying is not None:
            loop_thread().run(trying)

    @described_by(AsyncClient.tcc)
    def tcc(
        self,
        session: _Session,
        *,
        markers: "BlockingMarkerTable[_Session]",
        timeout: float = TCC_TIMEOUT_S,
        **named: Unpack[TccOptions],
    ) -> "BlockingTcc":
        client = self._live()
        from halfmq.client.tcc import TIMEOUT_MAX_S, BlockingTcc

        options = client._transaction_options(markers, **named)
        self._answered(client, None)
        timeout_s = checked_seconds(timeout, "timeout", at_most=TIMEOUT_MAX_S)
        return BlockingTcc(
            self, client, session, timeout_s, lambda calls: markers.bind(calls, session, **options), loop_thread().run
        )

    fence = blocking(AsyncClient.fence)

    def relay(
        self,
        outbox: "OutboxTable[_Sessions, _To]",
        sessions: _Sessions,
        *,
        to: _To | None = None,
        **options: Unpack[RelayOptions],
    ) -> "BlockingRelay":
        """Publish the rows of a ``halfmq.sql.Outbox`` while the block is open: ``with mq.relay(outbox, sessions): ...``.

        It works on the client's own thread, so ``sessions`` is a sessionmaker of blocking sessions or an engine. ``to``: a publisher (see
        ``halfmq.relay``) that nobody else uses; by default the broker of this client, in transactions of the group ``<group>-relay``.
        ``options``: those of ``Outbox.relay``, and ``broker``, the name of the broker where there are several.

        The block opens when database and target have answered, for which it waits as long as that takes. At its end the batches in flight
        are finished. Any number of relays may run at once; ``halfmq relay`` runs one as a process.

        Raises:
            UsageError: an argument is wrong, as sessions of asyncio are; the tables do not exist; or the client has no group and there is
                no ``to``.
        """
        refuse_misspelt(options, Client.relay)
        client = self._live()
        from halfmq.client.shapes import refuse_async_sessions

        refuse_async_sessions(sessions, "Client.relay")
        return BlockingRelay(client.relay(outbox, sessions, to=to, **options))

    @like(AsyncClient.send_in_transaction)
    def send_in_transaction(
        self,
        topic: str,
        body: object,
        arg: Any = None,
        *,
        listener: TransactionListener,
        tx_id: str = "",
        **named: Any,
    ) -> TransactionReceipt:
        client = self._live()
        from halfmq.client.transaction_block import send_by_listener

        if tx_id != "":
            checked_transaction_id(tx_id)
        check_methods(listener, awaits=False)
        self.add_listener(listener)

        async def execute(message: Message) -> object:  # in the calling thread
            return plain_result(listener.execute(message, arg), f"{type(listener).__name__}.execute", AWAITS)

        return finished(
            send_by_listener(WithoutWaiting(self), client, listener, execute, topic, body, tx_id=tx_id, **named)
        )

    finish = blocking(AsyncClient.finish)

    # --- checks ---------------------------------------------------------------------------------------------------

    def add_listener(self, listener: TransactionListener) -> None:
        """Answer checks with ``listener.check``.

        Call it at application start, so that checks are answered after a crash too; it may be called before the client is opened.
        """
        self._on_loop(lambda: self._client.add_listener(listener))

    def add_check(self, name: str, check: "CheckFunction") -> None:
        """Register ``check(transaction) -> Outcome`` for the transactions begun with ``name``; replaces an earlier one.

        May be called before the client is opened. The empty name is for transactions without a name, such as those of Java clients in the
        same group. A forked child has the checks of its parent.
        """
        self._on_loop(lambda: self._client.add_check(name, check))

    def check_functions(self) -> "dict[str, CheckFunction]":
        """A copy of the registered check functions, by transaction name."""
        return dict(self._checks)

    def answer_checks(self, markers: "MarkerTable", sessions: Callable[[], Any]) -> None:
        """Answer checks from the marker table. ``sessions``: your sessionmaker, bound to the primary.

        Call it once, before the first transaction.

        Raises:
            UsageError: not a marker table, or not a sessionmaker of blocking sessions.
        """
        check_marker_table(markers)
        loop_thread().refuse_if_ended()
        from halfmq.client.shapes import refuse_async_sessions

        refuse_async_sessions(sessions, "Client.answer_checks")
        check = markers.checker(sessions)
        self._on_loop(lambda: self._client._answer_from_markers(markers.name, check))

    report_outcome = blocking(AsyncClient.report_outcome)
    fetch_checks = blocking(AsyncClient.fetch_checks)
    answer_check = blocking(AsyncClient.answer_check)

    def _on_loop(self, register: Callable[[], None]) -> None:
        async def work() -> None:
            register()

        if self._entered:
            self._live()
            loop_thread().run(work())
        else:
            register()
        self._checks = self._client.check_functions()

    undecided = blocking(AsyncClient.undecided)

    # --- consuming ------------------------------------------------------------------------------------------------

    @like(AsyncClient.consumer)
    def consumer(self, topics: str | Sequence[str], **named: Any) -> "BlockingConsumer":
        return BlockingConsumer(self._live().consumer(topics, **named))


class BlockingRelay:
    """Made by ``Client.relay`` and used as a context manager."""

    def __init__(self, running: "AbstractAsyncContextManager[RunningRelay]") -> None:
        self._running = running
        self._made_in = forks.generation

    def __enter__(self) -> "RunningRelay":
        forks.refuse_in_child(self._made_in, "this relay", "make another one in the child")
        return loop_thread().run(self._running.__aenter__())

    def __exit__(self, *_: object) -> None:
        """In a forked child it does nothing: the relay works in the parent."""
        if self._made_in == forks.generation:
            loop_thread().run(self._running.__aexit__(None, None, None))


_CONSUMERS_STAY: Final = "it belongs to the parent; make a new consumer in the child"


class BlockingMessage(Message):
    """A ``Message`` with blocking ``ack``, ``retry``, ``reject`` and ``reply``."""

    __slots__ = ("_came_in",)

    #: The ``forks.generation`` of the process that received it.
    _came_in: int

    @classmethod
    def of(cls, message: Message) -> "BlockingMessage":
        """The blocking form of ``message``."""
        made = cls(message._stored, message._log_offset, message.body, message._delivery)
        made._retry = message._retry
        made._came_in = forks.generation
        return made

    def _required_delivery(self) -> Delivery:
        forks.refuse_in_child(self._came_in, "this message", _CONSUMERS_STAY)
        return super()._required_delivery()

    def ack(self) -> None:  # type: ignore[override]
        """Acknowledge the message. It returns at once; the offset is committed within about a second.

        It is final: if the block of ``processing`` raises after it, that is logged, and the message is not handled again.

        Raises:
            UsageError: the message did not come from a consumer, or came in the parent of this process.
        """
        delivery = self._required_delivery()
        loop_thread().post(delivery.ack, self)
        self._settled = "acknowledged"

    def retry(self, delay: float | None = None) -> None:  # type: ignore[override]
        """Hand the message back for redelivery to any member of the group, with ``attempt`` incremented; waits for the broker.

        ``delay`` in seconds, at most 3 days; None: as the consumer's ``Retry`` says, whose default lets the broker choose (10 s, 30 s, 1
        min, ...). Apache RocketMQ rounds it up to a standard delay level, the longest of which is 2 h. After the consumer's ``retries`` it
        goes to the dead-letter queue. If the broker is unreachable, it is delivered again in this process.

        Raises:
            UsageError: ``delay`` is no such number, or the message did not come from a consumer of this process.
        """
        if delay is not None:
            checked_seconds(delay, "delay", zero=True, at_most=DELAY_MAX_S)
        loop_thread().run(self._required_delivery().retry(self, self._delay_s(delay)))
        self._settled = "handed back"

    def reject(self) -> None:  # type: ignore[override]
        """Move the message to the group's dead-letter queue (``%DLQ%group``) at once; waits for the broker.

        Raises:
            UsageError: the message did not come from a consumer of this process.
        """
        loop_thread().run(self._required_delivery().reject(self))
        self._settled = "rejected"

    def reply(self, body: object) -> None:  # type: ignore[override]
        """Answer a request: its sender gets ``body``, if it still waits. It is sent now.

        If its requester is not connected, because the broker has just started again, it is repeated for as long as that waits, at most 30
        s.

        Raises:
            UsageError: the message is no request. MessageTooLarge: nothing is sent. RequestFailed: nobody gets it, since its requester is
                gone. ConnectError, SendTimeout: the broker did not answer.
        """
        reply = self._reply(body, {})
        loop_thread().run(self._required_delivery().reply(self, reply))

    @contextmanager
    def processing(self) -> Iterator["BlockingMessage"]:  # type: ignore[override]
        """A block that calls ``ack`` at its end, and ``retry`` if it raises, or ``reject`` if the consumer's ``Retry`` says so of the
        exception. That is logged, not propagated; KeyboardInterrupt and SystemExit are, and leave the message unacknowledged. If the block
        has called one of them itself, what it raises is only logged.
        """
        try:
            with self._required_delivery().handling(self):
                yield self
        except Exception as error:  # noqa: BLE001 - the application's code or a bug; logged, and the service goes on
            if self._is_settled_before(error):
                return
            self._failed(error)
            if self._is_given_up_after(error):
                self.reject()
            else:
                self._log_failure()
                self.retry()
        else:
            self.ack()


class BlockingBatch(list[BlockingMessage]):
    """A list of messages; empty if none arrived in time."""

    def ack(self) -> None:
        """Acknowledge every message of the batch."""
        if self:
            loop_thread().post(self._ack_on_loop)

    def _ack_on_loop(self) -> None:
        for message in self:
            message._required_delivery().ack(message)

    def retry(self, delay: float | None = None) -> None:
        """Hand every message back for redelivery, with ``attempt`` incremented, one after the other.

        ``delay`` in seconds, at most 3 days; None: as the consumer's ``Retry`` says.

        Raises:
            UsageError: ``delay`` is no such number, or the messages came in the parent of this process.
        """
        for message in self:
            message.retry(delay)


class BlockingConsumer:
    """Made by ``Client.consumer`` and used as a context manager, by one thread at a time. See ``Consumer``."""

    def __init__(self, consumer: "Consumer") -> None:
        self._consumer = consumer
        self._made_in = forks.generation
        consumer.entered_by = "with"

    def _refuse_in_child(self) -> None:
        forks.refuse_in_child(self._made_in, "this consumer", _CONSUMERS_STAY)

    def __enter__(self) -> Self:
        self._refuse_in_child()
        loop_thread().run(self._consumer.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the group and end the iteration, like leaving the block; messages that are not acknowledged are delivered again.

        In a forked child it does nothing.
        """
        if self._made_in == forks.generation:
            loop_thread().run(self._consumer.close())

    def stop(self) -> None:
        """End the iteration, from any thread or signal handler. It returns at once.

        Buffered messages are delivered again to the group. Messages already returned can be acknowledged until the block is left. In a
        forked child it does nothing.
        """
        if self._made_in != forks.generation:
            return
        loop_thread().post(self._consumer.stop)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> BlockingMessage:
        message = self.get()
        if message is None:
            raise StopIteration
        return message

    def get(self, timeout: float | None = None) -> BlockingMessage | None:
        """The next message; None after ``timeout`` seconds, or if the consumer was closed."""

        async def one(taken: list[Message]) -> BlockingMessage | None:
            message = await self._consumer.get(timeout)
            if message is None:
                return None
            taken.append(message)
            return BlockingMessage.of(message)

        return self._claimed(one)

    def batches(self, max: int = 100, wait: float = 1.0) -> Iterator[BlockingBatch]:  # noqa: A002 - the word users type
        """Iterate over batches until the consumer is closed; an empty one every ``wait`` seconds without messages."""

        async def some(taken: list[Message]) -> BlockingBatch:
            taken += await self._consumer.take(max, wait)
            return BlockingBatch(BlockingMessage.of(message) for message in taken)

        while not self._consumer.is_closed:
            yield self._claimed(some)

    def _claimed(self, take: "Callable[[list[Message]], Coroutine[Any, Any, _T]]") -> _T:
        """Run ``take`` on the loop and return its result; ``take`` appends the messages that it took to its argument. If the
        waiting thread is interrupted, messages already taken are put back: whichever of ``work`` and ``interrupt`` runs later
        on the loop does it.
        """
        self._refuse_in_child()
        taken: list[Message] = []
        interrupted = False

        async def work() -> _T:
            result = await take(taken)
            if interrupted:
                self._consumer.put_back(taken)
            return result

        def interrupt() -> None:
            nonlocal interrupted
            interrupted = True
            self._consumer.put_back(taken)

        try:
            return loop_thread().run(work())
        except BaseException:
            with suppress(UsageError):  # the thread has ended, and with it what was buffered
                loop_thread().post(interrupt)
            raise
