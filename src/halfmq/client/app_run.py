"""A block of ``App.run``: its consumers and relays are started, and stopped when it ends."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from halfmq.client import delivery
from halfmq.client.branch import Branch
from halfmq.client.consumer import Consumer, ConsumerSpec
from halfmq.client.delivery import Handlers
from halfmq.client.handler import Block, Handler, HandlerTransaction, InboxPort
from halfmq.client.log import log
from halfmq.client.marker_table import BoundRelay, MarkerTable
from halfmq.client.message import Message
from halfmq.client.participant import BarrierPort, Participant
from halfmq.client.user_code import RunBlocking, end_tasks, spawn

if TYPE_CHECKING:
    from halfmq.client.async_client import AsyncClient

#: How long a block that does not wait for a broker waits before the service starts without, seconds.
START_S: Final = 2.0


class RegisteredConsumer(NamedTuple):
    """What ``App.consumer`` was given."""

    function: Callable[..., Any]
    reads: ConsumerSpec
    concurrency: int
    inbox: InboxPort | None
    sessions: Callable[[], Any] | None
    markers: MarkerTable | None
    outbox: Any
    on_dead: Callable[..., Any] | None
    barrier: BarrierPort | None

    def handlers(self, client: "AsyncClient", run_blocking: RunBlocking) -> Handlers:
        """What its workers call."""
        sends = None
        if self.markers is not None or self.outbox is not None:
            sends = HandlerTransaction(client, self.markers, self.outbox)

        inbox, barrier = self.inbox, self.barrier

        def once(session: Any, message: Message) -> Block:
            if barrier is not None:  # a branch is confirmed or cancelled once, whichever group reads it
                return barrier.once(session, Branch.of(message))
            assert inbox is not None
            return inbox.once(session, message, group=self.reads.group)

        def handler(function: Callable[..., Any]) -> Handler:
            return Handler(
                function,
                once=None if inbox is None and barrier is None else once,
                sessions=self.sessions,
                run_blocking=run_blocking,
                transaction=sends,
            )

        if barrier is not None:
            return Handlers(Participant(client, self.reads.group, handler(self.function)), None)
        return Handlers(handler(self.function), handler(self.on_dead) if self.on_dead else None)


class AppRun:
    """What a block of ``App.run`` has started. ``grace_s``: how long running handlers may take to finish at its end, seconds."""

    def __init__(self, client: "AsyncClient", grace_s: float) -> None:
        self._client = client
        self._grace_s = grace_s
        self._consumers: list[Consumer] = []
        self._workers: list[asyncio.Task[None]] = []
        self._relays: set[asyncio.Task[None]] = set()
        self._relays_stop = asyncio.Event()
        #: All consumers are running.
        self.is_started = False

    @asynccontextmanager
    async def block(
        self,
        consumers: Sequence[tuple[RegisteredConsumer, Handlers]],
        relays: Callable[[], Sequence[BoundRelay]],
        *,
        wait: bool,
    ) -> AsyncIterator[None]:
        """The client is connected and closed by the caller. Arguments as for ``App.run``.

        Raises:
            ConnectError: with ``wait``, no broker answers.
        """
        starting = asyncio.create_task(self._start(consumers))
        try:
            await asyncio.wait({starting}, timeout=None if wait else START_S)
            if starting.done():
                starting.result()
            else:
                log.warning(
                    "no broker of %s answers yet: the service starts without, and waits for one", self._client.url
                )
                starting.add_done_callback(_started_late)
            for one in relays():
                spawn(self._relays, one.run(self._relays_stop), "a relay has ended; its outbox is not published")
            yield
        finally:
            self.is_started = False
            starting.cancel()
            self._relays_stop.set()
            await asyncio.gather(starting, *self._relays, return_exceptions=True)
            await self._shut_down()

    async def _start(self, consumers: Sequence[tuple[RegisteredConsumer, Handlers]]) -> None:
        await self._client.found()
        for registered, handlers in consumers:
            consumer = Consumer(registered.reads, self._client._join)
            consumer.keep_order()
            await consumer.__aenter__()
            self._consumers.append(consumer)
            # Not in the span of whoever has started the app, which would never end.
            variables = self._client._context_without_span()
            self._workers += [
                asyncio.create_task(delivery.work(consumer, handlers), context=variables and variables.copy())
                for _ in range(registered.concurrency)
            ]
        self.is_started = True

    async def _shut_down(self) -> None:
        for consumer in self._consumers:
            consumer.stop()
        for _ in range(await end_tasks(self._workers, self._grace_s)):
            log.warning("a handler did not finish in %g s; its message goes to another member", self._grace_s)
        for consumer in self._consumers:
            await consumer.close()


def _started_late(starting: "asyncio.Task[None]") -> None:
    if starting.cancelled():
        return
    if starting.exception() is not None:
        log.error("the consumers did not start; the service is not ready", exc_info=starting.exception())
    else:
        log.warning("a broker answers: the service is ready")  # as visible as what it ends
