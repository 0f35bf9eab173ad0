"""``App``: listeners and consumers as decorated functions; one client for all of them.

>>> app = App("rocketmq://127.0.0.1:9876", group="orders")
>>>
>>> @app.transaction("order.create", topic="order-created")
... async def create_order(tx, order):
...     tx.send({"id": order.id}, keys=[order.id])
...     await tx.prepare()  # from here on the check settles what a crash leaves
...     await save_order(order)
>>>
>>> @create_order.check
... async def order_was_created(tx):
...     return Outcome.COMMIT if await order_exists(tx.key) else Outcome.UNKNOWN
>>>
>>> async with app.run():
...     await create_order(order)
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar

from halfmq import limits
from halfmq.client.async_client import CHECKS, AsyncClient, environment
from halfmq.client.consumer import Consumer
from halfmq.client.handler import Handler, InboxPort
from halfmq.client.key_order import pause_s
from halfmq.client.listener import TransactionListener
from halfmq.client.log import log
from halfmq.client.marker_table import CheckFunction, MarkerTable
from halfmq.client.message import Message
from halfmq.client.transaction_block import AsyncTransaction
from halfmq.client.user_code import RunBlocking, Threads, call, is_our_cancellation
from halfmq.errors import UsageError

#: Messages that one consumer handles at once.
CONCURRENCY: Final = 16
#: What ``run`` waits for handlers at its end, seconds, before their messages are left to others.
SHUTDOWN_S: Final = 30.0

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Class = TypeVar("_Class", bound=type)


class TransactionFunction:
    """A decorated function: ``await create_order(order)`` runs it as one transaction.

    A normal return commits. The messages that it collects are prepared when it returns, or at ``await tx.prepare()``:
    do that before a local commit inside the function. An exception before that sends nothing; after it, the check
    decides, since the local commit may have happened. It is raised in any case. Without a check it is not run at all.
    """

    def __init__(
        self,
        app: "App",
        name: str,
        topic: str | None,
        function: Callable[..., Any],
        *,
        checked_elsewhere: bool = False,
    ) -> None:
        self._app = app
        self._function = function
        self.checked_elsewhere = checked_elsewhere
        self.name = name
        self.topic = topic
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", name)

    async def __call__(self, *args: Any, query_id: str = "", **kwargs: Any) -> Any:
        """Run it; its return value. ``tx.receipt`` is kept on the transaction.

        Raises:
            Exception: of the function, unchanged. HalfmqError: as ``AsyncClient.begin``.
        """
        transaction = self._app.client().begin(
            self.name, topic=self.topic, query_id=query_id, checked_elsewhere=self.checked_elsewhere
        )
        async with transaction:
            return await call(self._app.run_blocking, _bind(self._function, transaction, args, kwargs))

    def check(self, function: _Function) -> _Function:
        """Decorate the function that answers checks of this transaction: ``def f(tx) -> Outcome``."""
        self._app.add_check(self.name, function)
        return function


def _bind(function: Callable[..., Any], transaction: AsyncTransaction, args: Any, kwargs: Any) -> Callable[[], Any]:
    if inspect.iscoroutinefunction(function):

        async def on_loop() -> Any:
            return await function(transaction, *args, **kwargs)

        return on_loop
    return lambda: function(transaction, *args, **kwargs)


class _ConsumerSpec(NamedTuple):
    function: Callable[..., Any]
    topics: tuple[str, ...]
    group: str
    tags: str
    start: str | datetime
    retries: int
    concurrency: int
    inbox: InboxPort | None
    sessions: Callable[[], Any] | None


class App:
    """Collects decorated functions; ``async with app.run()`` starts the client, the checks and the consumers."""

    def __init__(
        self,
        url: str,
        *,
        group: str = "",
        checks: int = CHECKS,
        sessions: Callable[[], Any] | None = None,
        run_blocking: RunBlocking | None = None,
        **options: Any,
    ) -> None:
        self._client = AsyncClient(url, group=group, checks=checks, run_blocking=run_blocking, **options)
        self._sessions = sessions
        self._consumers: list[_ConsumerSpec] = []
        self._transactions: dict[str, TransactionFunction] = {}
        self._listeners: dict[str, TransactionListener] = {}
        self._threads = Threads(CONCURRENCY, "halfmq-app")
        #: Handlers and transactions that are plain functions run here.
        self.run_blocking: RunBlocking = run_blocking or self._threads

    @classmethod
    def from_env(cls, **options: Any) -> "App":
        """From HALFMQ_URL (or RocketMQ's NAMESRV_ADDR) and HALFMQ_GROUP."""
        return cls(*environment(options), **options)

    def client(self) -> AsyncClient:
        """The client, for everything else; also as a FastAPI dependency (``Depends(app.client)``)."""
        return self._client

    # --- transactions ---------------------------------------------------------------------------------------------

    def transaction(
        self, name: str, *, topic: str | None = None, checked_elsewhere: bool = False
    ) -> Callable[[Callable[..., Any]], TransactionFunction]:
        """Decorate ``def f(tx, ...)``. ``name`` travels with the messages and brings checks back to ``f.check``, without which a
        call is refused. ``checked_elsewhere``: another process of the group has the check.

        Raises:
            UsageError: the name is taken.
        """

        def decorate(function: Callable[..., Any]) -> TransactionFunction:
            if name in self._transactions:
                raise UsageError(f"transaction name {name!r} is taken", hint="names route checks; each needs its own")
            self._transactions[name] = TransactionFunction(
                self, name, topic, function, checked_elsewhere=checked_elsewhere
            )
            return self._transactions[name]

        return decorate

    def transaction_listener(self, name: str) -> Callable[[_Class], _Class]:
        """Decorate a class with ``execute`` and ``check`` (``TransactionListener``), for those who come from Java.

        Send with ``app.client().send_in_transaction(..., listener=app.listener(name))``.
        """

        def decorate(cls: _Class) -> _Class:
            cls.name = name  # type: ignore[attr-defined]
            listener = cls()
            if not isinstance(listener, TransactionListener):
                raise UsageError(f"{cls.__name__} is no TransactionListener", hint="derive it from TransactionListener")
            self._listeners[name] = listener
            self._client.add_listener(listener)
            return cls

        return decorate

    def listener(self, name: str) -> TransactionListener:
        """The instance behind ``@app.transaction_listener(name)``."""
        try:
            return self._listeners[name]
        except KeyError:
            raise UsageError(f"no transaction listener is named {name!r}") from None

    def add_check(self, name: str, check: CheckFunction) -> None:
        """See ``AsyncClient.add_check``."""
        self._client.add_check(name, check)

    def answer_checks(self, markers: MarkerTable, sessions: Any = None) -> None:
        """See ``AsyncClient.answer_checks``; ``sessions`` defaults to the app's."""
        self._client.answer_checks(markers, self._sessions if sessions is None else sessions)

    # --- consumers ------------------------------------------------------------------------------------------------

    def consumer(
        self,
        topics: str | Sequence[str],
        *,
        group: str,
        tags: str = "*",
        start: str | datetime = "earliest",
        retries: int = limits.RETRY_TIMES_MAX,
        concurrency: int = CONCURRENCY,
        inbox: InboxPort | None = None,
        sessions: Callable[[], Any] | None = None,
    ) -> Callable[[_Function], _Function]:
        """Decorate a handler, async or not: ``def f(message)``, or ``def f(event: Type)`` to get the body decoded.

        Acknowledged when it returns, delivered again later when it raises, then to the dead-letter queue. With
        ``inbox`` it is called once per message with an open session: ``def f(event, session)``.

        ``concurrency`` messages are handled at once, but those of one sharding key one after the other, in the order in which
        they were sent. One of these that raises is handled again here, after 1 s, 2 s, up to 60 s, and its key waits for it; after
        ``retries`` it goes to the dead-letter queue and the key goes on without it. Other keys go on meanwhile, as long as
        what waits leaves room for theirs. A handler that calls ``message.retry()`` gives the order up for that message. When a
        queue goes to another process, what is handled here may be handled there at the same time, in the same order.
        """
        names = (topics,) if isinstance(topics, str) else tuple(topics)

        def decorate(function: _Function) -> _Function:
            self._consumers.append(
                _ConsumerSpec(
                    function, names, group, tags, start, retries, concurrency, inbox, sessions or self._sessions
                )
            )
            return function

        return decorate

    # --- life -----------------------------------------------------------------------------------------------------

    def run(self) -> AbstractAsyncContextManager[AsyncClient]:
        """``async with app.run() as client``: everything lives inside.

        At the end, and so on SIGTERM if the server around it ends its lifespan: no new messages, handlers finish for
        up to 30 s, what is left goes to other members.
        """
        return self._run()

    def lifespan(self, _api: object) -> AbstractAsyncContextManager[AsyncClient]:
        """For FastAPI and Starlette: ``FastAPI(lifespan=app.lifespan)``."""
        return self._run()

    async def healthy(self) -> bool:
        """Whether a broker answers now."""
        return await self._client.healthy()

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[AsyncClient]:
        self._warn_of_unchecked()
        specs = [(spec, self._handler(spec)) for spec in self._consumers]
        async with self._client as client:
            consumers = [(spec, handler, self._consumer(spec)) for spec, handler in specs]
            workers: list[asyncio.Task[None]] = []
            opened: list[Consumer] = []
            try:
                for spec, handler, consumer in consumers:
                    await consumer.__aenter__()
                    opened.append(consumer)
                    workers += [asyncio.create_task(_work(consumer, handler)) for _ in range(spec.concurrency)]
                yield client
            finally:
                await _shut_down(opened, workers)
                self._threads.close()

    def _handler(self, spec: _ConsumerSpec) -> Handler:
        return Handler(
            spec.function,
            group=spec.group,
            inbox=spec.inbox,
            sessions=spec.sessions,
            run_blocking=self.run_blocking,
        )

    def _consumer(self, spec: _ConsumerSpec) -> Consumer:
        consumer = self._client.consumer(
            spec.topics, group=spec.group, tags=spec.tags, start=spec.start, retries=spec.retries
        )
        consumer.keep_order()
        return consumer

    def _warn_of_unchecked(self) -> None:
        checked = self._client.check_functions()
        for name, transaction in self._transactions.items():
            if name not in checked and not transaction.checked_elsewhere:
                log.warning("transaction %r has no check, so calls of it are refused: add @....check to it", name)


async def _work(consumer: Consumer, handler: Callable[[Message], Any]) -> None:
    """One of ``concurrency`` workers. Ends when the consumer is stopped."""
    async for message in consumer:
        if message.sharding_key is None:
            async with message.processing():
                await handler(message)
        else:
            await _handle_in_order(consumer, handler, message)


async def _handle_in_order(consumer: Consumer, handler: Callable[[Message], Any], message: Message) -> None:
    """Not ``processing``: handed back to the broker it would come after those behind it. It waits here, and no worker with it."""
    try:
        await handler(message)
    except (Exception, asyncio.CancelledError) as error:
        if is_our_cancellation(error):
            raise
        failures, retries = consumer.failed(message), consumer.spec.retries
        if failures <= retries:
            after_s = pause_s(failures)
            log.exception(
                "handling %r failed, %d of %d times; its key %r waits, and it is handled again in %g s",
                message, failures, 1 + retries, message.sharding_key, after_s,
            )  # fmt: skip
            consumer.again(message, after_s)
            return
        log.exception(
            "handling %r failed %d times; it goes to the dead-letter queue, and its key %r goes on without it",
            message, failures, message.sharding_key,
        )  # fmt: skip
        await message.reject()
    else:
        message.ack()
    consumer.handled(message)


async def _shut_down(consumers: Sequence[Consumer], workers: "Sequence[asyncio.Task[None]]") -> None:
    for consumer in consumers:
        consumer.stop()
    if workers:
        _, late = await asyncio.wait(workers, timeout=SHUTDOWN_S)
        for task in late:
            log.warning("a handler did not finish in %g s; its message goes to another member", SHUTDOWN_S)
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
    for consumer in consumers:
        await consumer.close()
