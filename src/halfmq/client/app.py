"""``App``: transactions, checks and consumers as decorated functions that share one client.

>>> app = App("rocketmq://127.0.0.1:9876", group="orders")
>>>
>>> @app.transaction("order.create", topic="order-created")
... async def create_order(tx, order):
...     tx.send({"id": order.id}, keys=[order.id])
...     await tx.prepare()  # if the process dies after this line, the check decides
...     await save_order(order)
>>>
>>> @create_order.check
... async def order_was_created(tx):
...     return Outcome.COMMIT if await order_exists(tx.key) else Outcome.UNKNOWN
>>>
>>> async with app.run():
...     await create_order(order)
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from halfmq.client.app_run import AppRun, RegisteredConsumer
from halfmq.client.arguments import (
    AppOptions,
    ConnectOptions,
    ConsumerOptions,
    Notes,
    RelayOptions,
    StartFrom,
    TccOptions,
    check_marker_table,
    check_outbox,
    checked_count,
    checked_seconds,
    checked_text,
    note_pairs,
    refuse_misspelt,
)
from halfmq.client.async_client import CHECKS, TCC_TIMEOUT_S, AsyncClient, environment
from halfmq.client.consumer import ConsumerSpec
from halfmq.client.handler import InboxPort
from halfmq.client.listener import TransactionListener
from halfmq.client.log import log
from halfmq.client.marker_table import AsyncMarkerTable, BoundRelay, CheckFunction, MarkerTable, OutboxTable
from halfmq.client.message import Message
from halfmq.client.outgoing import checked_topic
from halfmq.client.participant import BarrierPort
from halfmq.client.retry_policy import Retry, checked_retry
from halfmq.client.shapes import TRANSACTION, check_handler, check_shape
from halfmq.client.tcc import AsyncTcc
from halfmq.client.user_code import RunBlocking, Threads, call
from halfmq.errors import UnsupportedCombination, UsageError

if TYPE_CHECKING:
    from halfmq.client.direct_delivery import DirectDeliveries
    from halfmq.client.transaction_block import AsyncTransaction

#: Messages that one consumer handles at once.
CONCURRENCY: Final = 16
#: How long ``run`` waits for running handlers at shutdown by default, seconds, before their messages go to other members. Precedent:
#: Kubernetes ``terminationGracePeriodSeconds``.
SHUTDOWN_GRACE_S: Final = 30.0

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Class = TypeVar("_Class", bound=type)
_Check = TypeVar("_Check", bound=CheckFunction)
#: Handlers by the number of their arguments: the message or its body, a session, what sends.
# Shapes of handlers. A parameter for the ``Message`` may stand anywhere behind the first one.
_TakesMessage = Callable[[Any], object] | Callable[[Any, Message], object]
_TakesSession = (
    Callable[[Any, Any], object] | Callable[[Any, Message, Any], object] | Callable[[Any, Any, Message], object]
)
_TakesSending = (
    Callable[[Any, Any, Any], object]
    | Callable[[Any, Message, Any, Any], object]
    | Callable[[Any, Any, Message, Any], object]
    | Callable[[Any, Any, Any, Message], object]
)
_OfMessage = TypeVar("_OfMessage", bound=_TakesMessage)
_WithSession = TypeVar("_WithSession", bound=_TakesSession)
_WithSending = TypeVar("_WithSending", bound=_TakesSending)
_Session = TypeVar("_Session")
_Sessions = TypeVar("_Sessions")
_To = TypeVar("_To")
_P = ParamSpec("_P")
_R = TypeVar("_R")
_R_co = TypeVar("_R_co", covariant=True)


class TransactionFunction(Generic[_P, _R_co]):
    """A decorated function: ``await create_order(order)`` runs it as one transaction.

    A normal return commits. The messages that it collects are prepared when it returns, or at ``await tx.prepare()``,
    which must come before a local commit inside the function. An exception before the prepare sends nothing; after it,
    the check decides, since the local commit may have happened. The exception is always raised to the caller. Without a
    registered check the call is rejected.
    """

    def __init__(
        self,
        app: "App",
        name: str,
        topic: str | None,
        function: Callable[..., Any],
        *,
        checked_elsewhere: bool = False,
        **notes: Unpack[Notes],
    ) -> None:
        self._notes = notes
        self._app = app
        self._function = function
        self.checked_elsewhere = checked_elsewhere
        self.name = name
        self.topic = topic
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", name)

    @overload
    async def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R_co: ...

    # A keyword beside those of the function is not something that a ParamSpec can say.
    @overload
    async def __call__(self, *args: Any, query_id: str, **kwargs: Any) -> _R_co: ...

    async def __call__(self, *args: Any, query_id: str = "", **kwargs: Any) -> Any:  # type: ignore[misc]  # as above
        """Run the function in a transaction and return its result. ``tx.receipt`` is available inside and after the block.

        Raises:
            Exception: the function's own, unchanged. HalfmqError: see ``AsyncClient.begin``.
        """
        transaction = self._app.client().begin(
            self.name, topic=self.topic, query_id=query_id, checked_elsewhere=self.checked_elsewhere, **self._notes
        )
        async with transaction:
            return await call(self._app.run_blocking, partial(self._function, transaction, *args, **kwargs))

    def check(self, function: _Check) -> _Check:
        """Decorator for the function that answers checks of this transaction: ``def f(tx) -> Outcome``."""
        self._app.add_check(self.name, function)
        return function


class _TransactionDecorator(Protocol):
    """What ``App.transaction`` returns. Callers of what it makes get the arguments and the result of the function, without its ``tx``."""

    @overload
    def __call__(
        self, function: "Callable[Concatenate[AsyncTransaction, _P], Coroutine[Any, Any, _R]]", /
    ) -> TransactionFunction[_P, _R]: ...

    @overload
    def __call__(
        self, function: "Callable[Concatenate[AsyncTransaction, _P], _R]", /
    ) -> TransactionFunction[_P, _R]: ...


class RelaySpec(NamedTuple):
    """A relay of the app: an ``Outbox``, the sessions of its database, the target (None: the app's broker), and options."""

    outbox: Any
    sessions: Any
    to: Any
    options: RelayOptions


class Published(NamedTuple):
    """Messages that the application sends, as ``App.publishes`` declares them."""

    topic: str
    #: The type of the body.
    kind: Any
    description: str


class App:
    """Collects decorated functions; ``async with app.run()`` starts the client, the checks and the consumers.

    ``group``: the producer group, which answers the checks. ``checks``: how many it answers at once. ``sessions``: the sessionmaker of its
    database, for consumers and relays that are not given another. ``retry``: when a message is handled again, for consumers without a
    policy of their own. ``shutdown_grace``: how long running handlers may take to finish when ``run`` ends, seconds, 30 by default; 0:
    they are cancelled at once. Keep it shorter than what stops the process waits (``terminationGracePeriodSeconds`` of Kubernetes,
    ``TimeoutStopSec`` of systemd, ``stop_grace_period`` of Compose, which is 10 s). ``run_blocking``: runs plain functions, by default in
    threads. ``options``: as for ``AsyncClient``.

    Raises:
        UsageError: an argument is wrong.
    """

    def __init__(
        self,
        url: str,
        *,
        group: str = "",
        checks: int = CHECKS,
        sessions: Callable[[], Any] | None = None,
        retry: Retry | None = None,
        shutdown_grace: float = SHUTDOWN_GRACE_S,
        run_blocking: RunBlocking | None = None,
        **options: Unpack[ConnectOptions],
    ) -> None:
        refuse_misspelt(options, App.__init__)
        self._retry = checked_retry(retry, None)
        self._shutdown_grace_s = checked_seconds(shutdown_grace, "shutdown_grace", zero=True)
        self._client = AsyncClient(url, group=group, checks=checks, run_blocking=run_blocking, **options)
        self._sessions = sessions
        self._consumers: list[RegisteredConsumer] = []
        self._transactions: dict[str, TransactionFunction[..., Any]] = {}
        self._listeners: dict[str, TransactionListener] = {}
        #: With the sessions with which checks are answered from it.
        self._markers: dict[MarkerTable, Callable[[], Any] | None] = {}
        self._relays: list[RelaySpec] = []
        self._published: list[Published] = []
        #: While a block of ``run`` is open.
        self._run_now: AppRun | None = None
        self._threads = Threads(CONCURRENCY, "halfmq-app")
        #: Handlers and transactions that are plain functions run here.
        self.run_blocking: RunBlocking = run_blocking or self._threads

    @classmethod
    def from_env(cls, **options: Unpack[AppOptions]) -> "App":
        """Make an app from HALFMQ_URL (or RocketMQ's NAMESRV_ADDR) and HALFMQ_GROUP; see ``AsyncClient.from_env``."""
        refuse_misspelt(options, App.from_env)
        return cls(*environment(options), **options)

    def client(self) -> AsyncClient:
        """The app's client, for direct calls and as a FastAPI dependency (``Depends(app.client)``)."""
        return self._client

    # --- transactions ---------------------------------------------------------------------------------------------

    def transaction(
        self, name: str, *, topic: str | None = None, checked_elsewhere: bool = False, **notes: Unpack[Notes]
    ) -> _TransactionDecorator:
        """Decorator for ``def f(tx, ...)``. ``name`` is sent with the messages and routes their checks to ``f.check``; calls are rejected
        until that check is registered. ``checked_elsewhere``: another process of the group has the check. ``notes``: as for
        ``AsyncClient.begin``; ``tx.advice`` and ``tx.comment`` may be set in each call.

        Raises:
            UsageError: the name is taken, or the function does not have the shape.
        """

        refuse_misspelt(notes, App.transaction)
        note_pairs(**notes)

        def decorate(function: Callable[..., Any]) -> TransactionFunction[..., Any]:
            check_shape(function, TRANSACTION)
            if name in self._transactions:
                raise UsageError(f"transaction name {name!r} is taken", hint="names route checks; each needs its own")
            self._transactions[name] = TransactionFunction(
                self, name, topic, function, checked_elsewhere=checked_elsewhere, **notes
            )
            return self._transactions[name]

        return cast(_TransactionDecorator, decorate)

    def transaction_listener(self, name: str) -> Callable[[_Class], _Class]:
        """Decorator for a ``TransactionListener`` class, in the style of RocketMQ's Java client.

        Send with ``app.client().send_in_transaction(..., listener=app.listener(name))``.
        """

        def decorate(cls: _Class) -> _Class:
            cls.name = name  # type: ignore[attr-defined]
            listener = cls()
            if not isinstance(listener, TransactionListener):
                raise UsageError(
                    f"{cls.__name__} is not a TransactionListener", hint="derive it from TransactionListener"
                )
            self._listeners[name] = listener
            self._client.add_listener(listener)
            return cls

        return decorate

    def listener(self, name: str) -> TransactionListener:
        """The listener instance registered by ``@app.transaction_listener(name)``.

        Raises:
            UsageError: no listener has this name.
        """
        try:
            return self._listeners[name]
        except KeyError:
            raise UsageError(f"no transaction listener is named {name!r}") from None

    def add_check(self, name: str, check: CheckFunction) -> None:
        """See ``AsyncClient.add_check``."""
        self._client.add_check(name, check)

    def answer_checks(self, markers: MarkerTable, sessions: Callable[[], Any] | None = None) -> None:
        """See ``AsyncClient.answer_checks``; ``sessions`` defaults to the app's."""
        opener = self._sessions if sessions is None else sessions
        self._client.answer_checks(markers, cast(Any, opener))
        self._markers[markers] = opener

    def tcc(
        self,
        session: _Session,
        *,
        markers: AsyncMarkerTable[_Session] | None = None,
        timeout: float = TCC_TIMEOUT_S,
        **options: Unpack[TccOptions],
    ) -> AsyncTcc:
        """See ``AsyncClient.tcc``. ``markers`` defaults to the table of ``answer_checks``.

        Raises:
            UsageError: as there; or the app has no marker table, or several.
        """
        refuse_misspelt(options, App.tcc)
        if markers is None:
            if len(self._markers) != 1:
                raise UsageError(
                    f"the app answers checks from {len(self._markers)} marker tables",
                    hint="app.tcc(session, markers=markers)",
                )
            markers = cast(AsyncMarkerTable[_Session], next(iter(self._markers)))
        return self._client.tcc(session, markers=markers, timeout=timeout, **options)

    # --- consumers ------------------------------------------------------------------------------------------------

    @overload
    def consumer(
        self,
        topics: str | Sequence[str],
        *,
        group: str,
        inbox: None = None,
        barrier: None = None,
        on_dead: _TakesMessage | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Callable[[_OfMessage], _OfMessage]: ...

    @overload
    def consumer(
        self,
        topics: str | Sequence[str],
        *,
        group: str,
        inbox: InboxPort,
        barrier: None = None,
        markers: None = None,
        outbox: None = None,
        on_dead: _TakesSession | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Callable[[_WithSession], _WithSession]: ...

    @overload
    def consumer(
        self,
        topics: str | Sequence[str],
        *,
        group: str,
        inbox: InboxPort,
        barrier: None = None,
        markers: MarkerTable | None = None,
        outbox: OutboxTable[Any, Any] | None = None,
        on_dead: _TakesSending | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Callable[[_WithSending], _WithSending]: ...

    @overload
    def consumer(
        self,
        topics: str | Sequence[str],
        *,
        group: str,
        barrier: BarrierPort,
        markers: None = None,
        outbox: None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Callable[[_WithSession], _WithSession]: ...

    @overload
    def consumer(
        self,
        topics: str | Sequence[str],
        *,
        group: str,
        barrier: BarrierPort,
        markers: MarkerTable | None = None,
        outbox: OutboxTable[Any, Any] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Callable[[_WithSending], _WithSending]: ...

    def consumer(
        self,
        topics: str | Sequence[str],
        *,
        group: str,
        tags: str = "*",
        start: StartFrom = "earliest",
        retries: int | None = None,
        retry: Retry | None = None,
        concurrency: int = CONCURRENCY,
        inbox: InboxPort | None = None,
        sessions: Callable[[], Any] | None = None,
        markers: MarkerTable | None = None,
        outbox: Any = None,
        on_dead: Callable[..., Any] | None = None,
        barrier: BarrierPort | None = None,
    ) -> Callable[[Any], Any]:
        """Decorator for a handler, async or not: ``def f(message)``, ``def f(event: Type)`` to get the body decoded, or
        ``def f(event: Type, message: Message)`` for both. A parameter that is annotated ``Message`` may also stand beside those that
        follow.

        The message is acknowledged when the handler returns and redelivered when it raises, as ``retry`` says: a ``Retry``, by default that
        of the app; ``retries=5`` is short for ``retry=Retry(times=5)``. After the last attempt (``message.is_last_attempt``), and at once
        if the body cannot be decoded or after an exception of ``dead_on``, it goes to the dead-letter queue, with the exception as its
        reason. With ``inbox`` it is called once per message with an open session: ``def f(event, session)``.

        ``markers``, ``outbox``, or both: the handler may send messages that become visible if and only if its inbox row and its rows
        commit: ``def f(event, session, tx)`` with ``tx.send(...)``, or ``message.compensate(...)``. ``markers``: as half messages (checks
        are answered from it); ``outbox``: as rows for a relay; both: as rows if the broker does not answer.

        ``on_dead``: called instead of the dead-letter queue, with the same arguments and in a transaction of its own, when the handler has
        failed ``retries`` times and once more, or for good: to send a compensating message. If its own argument cannot be decoded either,
        the message is a dead letter. If it raises, it is called again after 1 s, 2 s and so on;
        after six calls the message goes to the dead-letter queue. Calls that fail because a broker is away or too busy
        (``error.retriable``) do not count.

        ``barrier``: the handler is a participant of Try/Confirm/Cancel, and its messages are those of ``t.call``: it has the shape of one
        with an inbox, is called once for each confirm or cancel of a branch, and for a cancel only if the transaction was rolled back;
        ``Branch.of(message).op`` says which it is. Instead of ``inbox`` and without ``on_dead``: a confirm must succeed in the end.

        Up to ``concurrency`` messages are handled at once; those with the same sharding key one after the other, in the order in
        which they were sent. When the handler raises for such a message, it is retried in this process after the delays of ``retry``, by
        default 1 s, 2 s, 4 s and so on up to 10 min, and its key is blocked until then; after ``retries`` it goes to the dead-letter queue
        and the key continues. Other keys continue meanwhile, unless the blocked messages fill the prefetch buffer. ``message.retry()``
        gives up the order for that message. When a queue moves to another process, both may handle the same messages for a
        moment, each in order.

        Raises:
            UsageError: an argument is wrong, or the function has another shape: see ``shapes``.
        """
        reads = ConsumerSpec(topics, group, tags, start, retry=checked_retry(retry, retries, self._retry))
        checked_count(concurrency, "concurrency", 1)
        opener = sessions or self._sessions
        if markers is not None:
            check_marker_table(markers)
        if outbox is not None:
            check_outbox(outbox)

        if barrier is not None:
            _refuse_beside_barrier(inbox, on_dead)

        def decorate(function: _Function) -> _Function:
            for one in (function,) if on_dead is None else (function, on_dead):
                check_handler(one, inbox, opener, sends=markers is not None or outbox is not None, barrier=barrier)
            if markers is not None and markers not in self._markers:
                self.answer_checks(markers, opener)
            self._consumers.append(
                RegisteredConsumer(function, reads, concurrency, inbox, opener, markers, outbox, on_dead, barrier)
            )
            return function

        return decorate

    # --- relays ---------------------------------------------------------------------------------------------------

    def relay(
        self,
        outbox: OutboxTable[_Sessions, _To],
        *,
        sessions: _Sessions | None = None,
        to: _To | None = None,
        **options: Unpack[RelayOptions],
    ) -> None:
        """Register a relay, which publishes the rows of a ``halfmq.sql.Outbox``. Call it once for each outbox.

        ``halfmq relay MODULE:APP`` runs all relays of the app, as a service of its own. ``run`` does so only with ``relay=True``: each web
        worker would hold connections for it, and ask the database for rows, though one process, or two for high availability, publish for
        all. ``sessions`` defaults to the app's. ``to``, ``options``: as for ``AsyncClient.relay``.

        Raises:
            UsageError: not an outbox, one that has a relay already, or no sessions.
        """
        refuse_misspelt(options, App.relay)
        check_outbox(outbox)
        opener: Any = self._sessions if sessions is None else sessions
        if opener is None:
            raise UsageError("the relay has no sessions", hint="App(..., sessions=sessionmaker(engine))")
        if any(spec.outbox is outbox for spec in self._relays):
            raise UsageError("the outbox has a relay already", hint="for more of the same run `halfmq relay` again")
        self._relays.append(RelaySpec(outbox, opener, to, options))

    def relays(self, **options: Unpack[RelayOptions]) -> list[BoundRelay]:
        """A relay for each that is registered, to be run once. ``options`` override those that it was registered with.

        Raises:
            UsageError: an argument is wrong, or the sessions have no engine.
        """
        refuse_misspelt(options, App.relays)
        return [
            spec.outbox.bind_relay(self._client, spec.sessions, to=spec.to, **{**spec.options, **options})
            for spec in self._relays
        ]

    # --- what others may know of it ---------------------------------------------------------------------------------

    def publishes(self, topic: str, kind: Any, *, description: str = "") -> None:
        """Declare that the application sends messages to ``topic`` whose bodies are of type ``kind``, for its AsyncAPI document (``halfmq
        asyncapi``). Sends do not compare with it.

        Raises:
            InvalidName: no topic has such a name. UsageError: the description is no text.
        """
        described = checked_text(description, "description", "a sentence for people")
        self._published.append(Published(checked_topic(topic), kind, described))

    def asyncapi(self, *, title: str, version: str) -> dict[str, Any]:
        """The AsyncAPI 3.0 document of the app, of dictionaries and lists, as ``halfmq asyncapi`` prints it. Asks no broker.

        ``title`` and ``version``: of the application's interface.

        Raises:
            UsageError: an argument is no text, or a body has no JSON Schema.
        """
        from halfmq.client.asyncapi import document

        return document(self, title=title, version=version)

    def published(self) -> list[Published]:
        """What ``publishes`` has declared."""
        return list(self._published)

    def consumers(self) -> list[RegisteredConsumer]:
        """What ``consumer`` has registered."""
        return list(self._consumers)

    def transactions(self) -> list[TransactionFunction[..., Any]]:
        """The functions decorated with ``transaction``."""
        return list(self._transactions.values())

    # --- what it has in databases -----------------------------------------------------------------------------------

    @property
    def sessions(self) -> Callable[[], Any] | None:
        """The app's sessionmaker, if it has one."""
        return self._sessions

    def outboxes(self) -> list[RelaySpec]:
        """The registered relays."""
        return list(self._relays)

    def declared(self) -> list[Any]:
        """Marker tables, inboxes, barriers and outboxes that the app uses, each once."""
        used = [one for one, _ in self.served_from()]
        return list({id(one): one for one in [*used, *(one.outbox for one in self._relays)]}.values())

    def served_from(self) -> list[tuple[Any, Callable[[], Any] | None]]:
        """What its checks and its consumers need in databases, with the sessions of each."""
        of_consumers = [
            (part, one.sessions)
            for one in self._consumers
            for part in (one.inbox, one.barrier, one.outbox)
            if part is not None
        ]
        return [*self._markers.items(), *of_consumers]

    # --- tests ----------------------------------------------------------------------------------------------------

    @property
    def test(self) -> "DirectDeliveries":
        """``await app.test.deliver(topic, body)`` in a test: a consumer handles a message without a broker."""
        from halfmq.client.direct_delivery import DirectDeliveries

        return DirectDeliveries(self)

    # --- life -----------------------------------------------------------------------------------------------------

    def run(
        self, *, wait: bool = True, relay: bool = False, concurrency: int | None = None
    ) -> AbstractAsyncContextManager[AsyncClient]:
        """``async with app.run() as client``: the client and all consumers run until the block ends.

        ``wait``: for a broker. Without it the block is entered after 2 s at the latest, and client and consumers start in the
        background when a broker answers, which the log says. Until then ``is_ready`` is False and transactions fail at once.

        ``relay``: also the relays; without it they need ``halfmq relay`` (see there why). They are not waited for.

        ``concurrency``: messages that each consumer handles at once, in place of what it was registered with.

        At the end no new messages are handled, and running handlers have ``shutdown_grace`` seconds to finish; unfinished messages go to
        other members of their groups.

        Raises:
            ConnectError: with ``wait``, no broker answers.
        """
        if concurrency is not None:
            checked_count(concurrency, "concurrency", 1)
        return self._run(wait, relay, concurrency)

    @asynccontextmanager
    async def lifespan(self, _api: object) -> AsyncIterator[None]:
        """``run(wait=False)`` as an ASGI lifespan, for FastAPI and Starlette: ``FastAPI(lifespan=app.lifespan)``. Runs no relays.

        The client is ``app.client()``, as a dependency ``Depends(app.client)``; nothing is added to the state of requests.
        """
        async with self._run(wait=False, relay=False):
            yield

    def consumed(self) -> list[tuple[str, tuple[str, ...]]]:
        """Group and topics of each consumer."""
        return [(spec.reads.group, spec.reads.topics) for spec in self._consumers]

    @property
    def shutdown_grace(self) -> float:
        """How long running handlers may take to finish when ``run`` ends, seconds."""
        return self._shutdown_grace_s

    @property
    def is_ready(self) -> bool:
        """For a health endpoint, without I/O: all consumers are running, and a broker answers; see ``AsyncClient.is_ready``."""
        return self._run_now is not None and self._run_now.is_started and self._client.is_ready

    async def healthy(self) -> bool:
        """Whether a broker answers a heartbeat now; see ``AsyncClient.healthy``."""
        return await self._client.healthy()

    @asynccontextmanager
    async def _run(self, wait: bool, relay: bool, concurrency: int | None = None) -> AsyncIterator[AsyncClient]:
        self._warn_of_unchecked()
        consumers = (
            self._consumers
            if concurrency is None
            else [one._replace(concurrency=concurrency) for one in self._consumers]
        )
        served = [(one, one.handlers(self._client, self.run_blocking)) for one in consumers]
        self._threads.threads_max = max(CONCURRENCY, *(one.concurrency for one in consumers), 0)
        await self._client.connect(wait=wait)
        self._run_now = AppRun(self._client, self._shutdown_grace_s)
        try:
            async with self._run_now.block(served, self.relays if relay else list, wait=wait):
                yield self._client
        finally:
            self._run_now = None
            self._threads.close()
            await self._client.close()

    def _warn_of_unchecked(self) -> None:
        checked = self._client.check_functions()
        for name, transaction in self._transactions.items():
            if name not in checked and not transaction.checked_elsewhere:
                log.warning("transaction %r has no check, so calls of it are refused: add @....check to it", name)


def _refuse_beside_barrier(inbox: object, on_dead: object) -> None:
    if inbox is not None:
        raise UnsupportedCombination(
            "a consumer has an inbox or a barrier", hint="the barrier also recognises what was delivered before"
        )
    if on_dead is not None:
        raise UnsupportedCombination(
            "a participant with a barrier has no on_dead: a confirm or cancel that fails for good must be repeated by a person",
            hint="read the dead-letter queue of its group",
        )
