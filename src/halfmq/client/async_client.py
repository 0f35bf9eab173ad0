"""``AsyncClient``: one client for sending, transactions and consuming, on asyncio."""

import asyncio
import os
import ssl
import threading
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, Unpack

from halfmq import limits
from halfmq.client import forks
from halfmq.client.arguments import (
    BlockOptions,
    EnvironmentOptions,
    Notes,
    RelayOptions,
    check_marker_table,
    check_outbox,
    checked_count,
    checked_ids,
    checked_messages,
    checked_note,
    checked_prepared,
    checked_seconds,
    checked_text,
    checked_timeout,
    checked_transaction_id,
    note_pairs,
    refuse_misspelt,
)
from halfmq.client.connection import Connection, NoAnswer, NotSent
from halfmq.client.connection_pool import CONNECT_TIMEOUT_S, PROBE_TIMEOUT_S, ConnectionPool
from halfmq.client.connector import Connector, TcpConnector
from halfmq.client.context import RECONNECT_MAX_S, ClientContext, OnceAnswered
from halfmq.client.credentials import credentials_of
from halfmq.client.listener import TransactionListener, check_methods, listener_name
from halfmq.client.log import log
from halfmq.client.membership import HEARTBEAT_S, Membership
from halfmq.client.outcome import Outcome
from halfmq.client.outgoing import OutgoingMessage, checked_bodies, checked_composed, compose
from halfmq.client.producer import Producer
from halfmq.client.receipts import UNDECIDED, Prepared, Receipt, TransactionReceipt, Verdict
from halfmq.client.routing import NameServers, Router
from halfmq.client.unique_ids import UniqueIds
from halfmq.client.user_code import RunBlocking, Threads, call, spawn
from halfmq.errors import ConnectError, HalfmqError, UsageError
from halfmq.model.address import Address, TlsFiles, parse_url
from halfmq.model.ids import checked_name
from halfmq.runtime.clock import Clock, SystemClock
from halfmq.runtime.entropy import Entropy, SystemEntropy
from halfmq.wire.remoting.codes import HMQ_DECISION, RequestCode, ResponseCode
from halfmq.wire.remoting.header import Request

if TYPE_CHECKING:
    from contextvars import Context as Variables

    from halfmq.client.arguments import StartFrom

    # Loaded with the first consumer or transaction: a service that only sends does not pay for them at its start.
    from halfmq.client.check_listener import CheckListener
    from halfmq.client.consumer import Consumer, ConsumerSpec
    from halfmq.client.coordinator import Coordinator
    from halfmq.client.fetched_checks import FetchedCheck
    from halfmq.client.group_member import GroupMember
    from halfmq.client.marker_table import (
        AsyncMarkerTable,
        CheckFunction,
        MarkerTable,
        OutboxTable,
        RunningRelay,
        TransactionBlock,
    )
    from halfmq.client.message import Message
    from halfmq.client.queue_puller import Feed
    from halfmq.client.request_reply import Requests
    from halfmq.client.retry_policy import Retry
    from halfmq.client.tcc import AsyncTcc
    from halfmq.client.telemetry import Telemetry
    from halfmq.client.transaction import Transactions
    from halfmq.client.transaction_block import AsyncTransaction
    from halfmq.client.verdicts import Verdicts

#: Timeout of a whole call with its retries, seconds; covers a broker restart.
TIMEOUT_S: Final = 10.0
#: Timeout of one attempt, seconds. Precedent: RocketMQ ``sendMsgTimeout``.
ATTEMPT_TIMEOUT_S: Final = 3.0
#: Checks that are answered concurrently.
CHECKS: Final = 8
#: How long ``close`` waits for verdicts and checks in flight, seconds.
CLOSE_GRACE_S: Final = 3.0
#: The producer group of a client without one, for plain sends, and of all that wait for replies: nobody checks it.
NO_GROUP: Final = "HALFMQ_PRODUCER"
#: How long ``request`` waits for a reply by default, seconds. Precedent: RocketMQ ``sendMsgTimeout``.
REQUEST_TIMEOUT_S: Final = 3.0
#: How long a block of ``tcc`` may take by default, seconds.
TCC_TIMEOUT_S: Final = 30.0
_Session = TypeVar("_Session")
_Sessions = TypeVar("_Sessions")
_To = TypeVar("_To")
_PROBE_S: Final = 0.2


class AsyncClient:
    """A connection to halfmq or Apache RocketMQ.

    >>> async with AsyncClient("rocketmq://127.0.0.1:9876", group="orders") as mq:
    ...     receipt = await mq.send("order-created", {"id": 7})

    Entering raises ``ConnectError`` if no server responds. All methods may be called from several tasks of one event loop.

    ``group``: the producer group, named after the service; the broker may send checks to any process of the group.
    ``timeout``: for a whole call (also ``connect``), including route queries, connecting, retries and backoff, in seconds. The
    end of a transaction block makes two calls: one sends its messages, one settles them.
    ``attempt_timeout``: for one attempt, ``connect_timeout``: for one connection, in seconds.
    ``checks``: how many checks are answered concurrently. ``fetches_checks``: fetch checks with a long poll instead of
    registering as a producer; halfmq brokers only.
    ``telemetry``: True for traces and metrics by OpenTelemetry's API (docs/tracing.md), or a
    ``halfmq.client.telemetry.Telemetry`` with providers of its own.
    ``ssl_context``: for ``rocketmqs://``, instead of files in the URL. ``secret``: of the user in the URL.
    ``connector``, ``clock``, ``entropy``, ``run_blocking``: replaced in tests and simulations.
    """

    #: The class that the application made, for hints.
    _face = "AsyncClient"

    def __init__(
        self,
        url: str,
        *,
        group: str = "",
        timeout: float = TIMEOUT_S,
        attempt_timeout: float = ATTEMPT_TIMEOUT_S,
        connect_timeout: float = CONNECT_TIMEOUT_S,
        checks: int = CHECKS,
        fetches_checks: bool = False,
        ssl_context: ssl.SSLContext | None = None,
        secret: str | None = None,
        telemetry: "bool | Telemetry" = False,
        connector: Connector | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        run_blocking: RunBlocking | None = None,
    ) -> None:
        self.url = url
        self.group = "" if group == "" else checked_name(group, "group", limits.GROUP_CHARS_MAX)
        self._url = parse_url(url)
        security = self._url.security
        tls = security.tls
        if ssl_context is not None and tls != TlsFiles():
            raise UsageError("ssl_context goes with a url rocketmqs://host:port, without files")
        self._timeout_s = checked_seconds(timeout, "timeout")
        self._attempt_timeout_s = checked_seconds(attempt_timeout, "attempt_timeout")
        self._connect_timeout_s = checked_seconds(connect_timeout, "connect_timeout")
        self._checks = checked_count(checks, "checks", 1)
        self._fetches_checks = fetches_checks
        self._connector = connector or TcpConnector(ssl_context or tls)
        self._credentials = credentials_of(security, secret)
        self._clock = clock or SystemClock()
        self._entropy = entropy or SystemEntropy()
        #: Where its spans and metrics go; None: it has none. Its relays have the same.
        self.telemetry = _telemetry_of(telemetry)
        self._threads = Threads(checks, "halfmq")
        self._run_blocking = run_blocking or self._threads
        #: By transaction name; kept when the client is closed and opened again.
        self._check_functions: dict[str, CheckFunction] = {}
        #: Those of them that read a marker table: they compare verdicts, too.
        self._marker_names: set[str] = set()
        self._opened = False
        #: The ``forks.generation`` of the process that opened it.
        self._opened_in = forks.generation
        #: Guards lazy creation, since a blocking client calls from many threads.
        self._making = threading.Lock()
        self._closing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        #: Looks for a broker after ``connect(wait=False)``.
        self._finding: asyncio.Task[None] | None = None

    @classmethod
    def from_env(cls, **options: Unpack[EnvironmentOptions]) -> Self:
        """Make a client from HALFMQ_URL (or RocketMQ's NAMESRV_ADDR) and HALFMQ_GROUP; ``options`` take precedence.

        Raises:
            UsageError: neither address is set.
        """
        refuse_misspelt(options, AsyncClient.from_env)
        return cls(*environment(options), **options)

    # --- life -----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self, *, wait: bool = True) -> None:
        """Open the client, as ``async with`` does. Call ``close`` at the end.

        ``wait``: for a broker. Without it the client connects in the background, for as long as that takes, and until then transaction
        blocks fail at once; ``is_ready`` says when a broker was found.

        Raises:
            ConnectError: no name server responds, or none of the brokers that it names.
        """
        if self._opened:
            raise UsageError("this client is open already")
        self._build()
        self._opened = True
        if not wait:
            self._context.is_looking = True
            self._context.looking_since = self._context.loop.time()
            self._finding = self._context.finding = self._spawn(self._find_a_broker())
            self._start_background()
            return
        try:
            await self._look_for_brokers()
        except BaseException:
            await self.close()
            raise
        self._start_background()

    async def found(self) -> None:
        """Return when a broker was found, after ``connect(wait=False)``; at once if that was not called."""
        self._here()
        if self._finding is not None:
            await asyncio.shield(self._finding)

    @property
    def is_ready(self) -> bool:
        """Whether the client is open and, as far as it knows, a broker answers and takes its consumers as members of their groups. No I/O:
        it notices a request that timed out, a connection that was lost for as long as an attempt may take, and their end. ``healthy`` asks
        a broker.
        """
        return (
            self.is_open
            and not self._context.loop.is_closed()
            and not self._context.is_looking
            and not self._context.is_away
            and all(member.is_listed or member.is_idle for member in list(self._members.values()))
        )

    async def _look_for_brokers(self) -> None:
        """Find the brokers and connect to them, within the timeout of one call for all servers together.

        Raises:
            ConnectError: no name server responds, or none of the brokers. RequestFailed, ProtocolError: a bad response.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._context.router.learn_brokers()
                await self._connect_a_broker()
        except TimeoutError:
            if not self._context.brokers.established():
                raise ConnectError(
                    f"no server answered within {self._timeout_s:g} s", hint="is the server running?"
                ) from None

    async def _reopen(self) -> None:
        """``connect`` for a forked child of a connected parent. Does not wait for a server: each call connects or fails by itself,
        and calls that need no server, such as ``begin``, must not fail."""
        self._build()
        self._opened = True
        self._spawn(self._find_a_broker())
        self._start_background()

    async def _find_a_broker(self) -> None:
        """Connect in the background, so that checks are answered even if no call is made."""
        pause_s = 0.05
        while True:
            self._context.looking_since = self._context.loop.time()
            try:
                await self._look_for_brokers()
            except HalfmqError as error:
                log.debug("looking for a broker: %s", error)
                self._context.looking_since = None
                await asyncio.sleep(pause_s * self._context.rng.uniform(0.5, 1.0))
                pause_s = min(2 * pause_s, RECONNECT_MAX_S)
            else:
                self._context.is_looking = False
                return

    def _start_background(self) -> None:
        self._spawn(self._heartbeat_loop())
        if self._fetches_checks:
            self._start_fetching()
        self._start_comparing()

    def _build(self) -> None:
        self._opened_in = forks.generation
        host, process = self._whoami()
        ids = UniqueIds(self._clock, self._entropy, pid=process)
        rng = self._entropy.stream("client")
        client_id = f"{host}@{process}#{self._entropy.token(6).hex()}"
        membership = Membership(client_id)
        self._names = ConnectionPool(
            self._connector,
            on_push=self._on_push,
            on_silent=self._on_silent_name_server,
            connect_timeout_s=self._connect_timeout_s,
            credentials=self._credentials,
        )
        brokers = ConnectionPool(
            self._connector,
            on_push=self._on_push,
            on_lost=self._on_lost,
            on_silent=self._on_silent,
            introduce=membership.introduce,
            connect_timeout_s=self._connect_timeout_s,
            patience_s=self._attempt_timeout_s,
            credentials=self._credentials,
        )
        router = Router(NameServers(self._url.servers, self._names), rng)
        self._context = ClientContext(
            self._url.shown,
            brokers,
            router,
            membership,
            ids,
            self._clock,
            rng,
            self._timeout_s,
            self._attempt_timeout_s,
            asyncio.get_running_loop(),
            self._spawn,
            None if self.telemetry is None else self.telemetry.of_client(client_id, self._clock.elapsed_s),
        )
        self._finding = None
        self._producer = self._new_producer(self.group or NO_GROUP)
        self._made_transactions: Transactions | None = None
        self._made_check_listener: CheckListener | None = None
        self._made_requests: Requests | None = None
        self._is_fetching = False
        self._is_comparing = False
        if self._check_functions and not self._fetches_checks:
            membership.add_producer(self.group)
        self._members: dict[str, GroupMember] = {}
        self._reconnecting: set[Address] = set()
        self._closing = None

    def _new_producer(self, group: str) -> Producer:
        if self._context.telemetry is None:
            return Producer(self._context, group)
        from halfmq.client.traced import TracedProducer

        return TracedProducer(self._context, group, self._context.telemetry)

    def _new_transactions(self) -> "Transactions":
        if self._context.telemetry is None:
            from halfmq.client.transaction import Transactions

            return Transactions(self._context, self.group)
        from halfmq.client.traced import TracedTransactions

        return TracedTransactions(self._context, self.group, self._context.telemetry)

    def _new_check_listener(self, verdicts: "Verdicts") -> "CheckListener":
        if self._context.telemetry is None:
            from halfmq.client.check_listener import CheckListener

            return CheckListener(self.group, verdicts, self._run_blocking, self._checks)
        from halfmq.client.traced import TracedCheckListener

        telemetry = self._context.telemetry
        return TracedCheckListener(self.group, verdicts, self._run_blocking, self._checks, telemetry=telemetry)

    def _context_without_span(self) -> "Variables | None":
        """For tasks that outlive whoever starts them; None: as it is, since the client has no ``telemetry``."""
        telemetry = self._open().telemetry
        return None if telemetry is None else telemetry.without_span()

    def _whoami(self) -> tuple[str, int]:
        """Host name and process id, which are part of every id; overridden in a simulation."""
        return _host(), os.getpid()

    async def _connect_a_broker(self) -> None:
        """Connect to the known brokers; fails now rather than at the first send if none responds."""
        brokers = self._context.router.brokers()
        failure: ConnectError | None = None
        for address in brokers.values():
            try:
                await self._context.brokers.get(address)
            except ConnectError as error:
                failure = error
        connections = self._context.brokers.established()
        if failure is not None and not connections:
            raise failure
        if connections:
            self._context.ids.use_address(connections[0].local_ip)

    async def close(self, grace: float = CLOSE_GRACE_S) -> None:
        """Finish commits and verdicts in flight, leave all groups, and close all connections. Idempotent.

        Running transactions and checks have ``grace`` seconds. Pending plain sends fail with ``SendTimeout``: await them first.
        If cancelled, closing continues in the background, and the next call waits for it. In a forked child it does nothing,
        since the client belongs to the parent.

        Raises:
            UsageError: called in another event loop than ``connect``.
        """
        if not self._opened or self._opened_in != forks.generation:
            return
        self._context.refuse_other_loop("this client")
        if self._closing is None:
            self._closing = spawn(set(), self._finish(grace), "a task of the client failed")
        await asyncio.shield(self._closing)

    async def _finish(self, grace: float) -> None:
        try:
            if self._made_requests is not None:
                self._made_requests.close()
            for member in list(self._members.values()):
                await member.close()
            if self._made_transactions is not None:
                await self._made_transactions.close(grace)
            if self._made_check_listener is not None:
                await self._made_check_listener.close(grace)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for connection in self._context.brokers.established():
                try:
                    await self._context.membership.leave(connection, timeout_s=1.0)
                except (NotSent, NoAnswer) as error:
                    log.debug("leaving %s: %s", connection.address, error)
        finally:
            self._context.brokers.close()
            self._names.close()
            self._threads.close()
            self._opened = False
            await asyncio.gather(self._context.brokers.wait_closed(), self._names.wait_closed())

    @property
    def _transactions(self) -> "Transactions":
        if self._made_transactions is None:
            with self._making:  # two objects would have different ``verdicts``
                if self._made_transactions is None:
                    self._made_transactions = self._new_transactions()
        return self._made_transactions

    @property
    def _check_listener(self) -> "CheckListener":
        if self._made_check_listener is None:
            self._made_check_listener = self._new_check_listener(self._transactions.verdicts)
            for name, check in self._check_functions.items():
                self._made_check_listener.register(name, check)
        return self._made_check_listener

    @property
    def clock(self) -> Clock:
        """The clock passed to the constructor, else the system clock."""
        return self._clock

    @property
    def verdicts(self) -> "Verdicts":
        """Known outcomes of this process's transactions. Raises UsageError unless the client is open."""
        self._open()
        return self._transactions.verdicts

    def check_functions(self) -> "dict[str, CheckFunction]":
        """A copy of the registered check functions, by transaction name."""
        return dict(self._check_functions)

    async def undecided(self, ids: Collection[str]) -> set[str]:
        """The subset of transaction ``ids`` that are still undecided at any broker, or whose verdict by an operator, a policy or a
        coordinator was not compared with the marker yet: their markers must not be pruned.

        Pass it to ``MarkerTable.prune_async(session, ..., undecided=mq.undecided)``.

        Raises:
            ConnectError: a broker did not respond. UnsupportedCombination: an Apache RocketMQ broker has no such request.
        """
        from halfmq.client.halfmq_requests import undecided_of

        self._here()
        return await undecided_of(self._context, checked_ids(ids))

    @property
    def is_open(self) -> bool:
        """Whether it was opened and ``close`` was not called."""
        return self._opened and self._closing is None

    async def healthy(self) -> bool:
        """Whether a broker answers a heartbeat within ``timeout``; for readiness probes."""
        if not self.is_open:
            return False
        self._here()
        try:
            async with asyncio.timeout(self._timeout_s):
                if not self._context.brokers.established():
                    await self._look_for_brokers()
                for connection in self._context.brokers.established():
                    try:
                        await self._context.membership.heartbeat(connection)
                    except (NotSent, NoAnswer):
                        continue
                    return True
        except (TimeoutError, HalfmqError) as error:
            log.debug("no broker answered a heartbeat within %g s: %s", self._timeout_s, error)
        return False

    def _open(self) -> ClientContext:
        if not self._opened or self._closing is not None:
            raise UsageError("the client is not open", hint="async with AsyncClient(...) as mq:")
        if self._opened_in != forks.generation:
            forks.refuse_in_child(self._opened_in, "this client", "open an AsyncClient in the child, or use Client")
        return self._context

    def _here(self) -> ClientContext:
        """``_open``, in a coroutine of the client's own event loop."""
        context = self._open()
        context.refuse_other_loop("this client")
        return context

    # --- plain sends ----------------------------------------------------------------------------------------------

    async def send(
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
        timeout: float | None = None,  # noqa: ASYNC109 - one timeout= everywhere, with retries inside
    ) -> Receipt:
        """Send one message and wait until the broker has stored it durably.

        ``body``: bytes, str, or a JSON-serializable value; or an ``OutgoingMessage`` made by ``compose``, with its own tag, keys and delay,
        and nothing of them beside it.
        ``key``, ``keys``: for looking the message up. ``sharding_key``: messages with the same one stay in order. ``delay``: seconds until
        it becomes visible. ``timeout``: seconds.

        Raises:
            SendTimeout: it may be stored; sending it again as a new message may duplicate it.
            ConnectError, RequestFailed, UsageError: nothing was stored.
        """
        self._here()
        checked_timeout(timeout)
        if isinstance(body, OutgoingMessage):
            checked_composed(
                body, topic, tag=tag, key=key, keys=keys, sharding_key=sharding_key, delay=delay, properties=properties
            )
            return await self._producer.send(body, timeout)
        message = compose(
            topic, body, tag=tag, key=key, keys=keys, sharding_key=sharding_key, delay=delay, properties=properties
        )
        return await self._producer.send(message, timeout)

    async def send_many(
        self,
        topic: str,
        bodies: Iterable[object],
        *,
        tag: str | None = None,
        keys: Sequence[object] | str = (),
        properties: Mapping[str, str] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> list[Receipt]:
        """Send many messages of one topic in batches. Returns one receipt per message, in order.

        An element of ``bodies`` may be an ``OutgoingMessage`` made by ``compose``, with its own tag and keys; those here are for the
        others. Each batch is stored atomically, in one queue. The call as a whole is not atomic: use ``begin`` for that.

        Raises: as ``send``; earlier batches are stored.
        """
        self._here()
        checked_timeout(timeout)
        several = list(checked_bodies(bodies))
        composed = [body for body in several if isinstance(body, OutgoingMessage)]
        if composed and len(composed) == len(several):
            checked_composed(composed[0], composed[0].topic, tag=tag, keys=keys, properties=properties)
        messages = [
            body
            if isinstance(body, OutgoingMessage)
            else compose(topic, body, tag=tag, keys=keys, properties=properties)
            for body in several
        ]
        if any(message.topic != topic for message in messages):
            raise UsageError("send_many sends to one topic", hint="call it once for each topic")
        return await self._producer.send_many(topic, messages, timeout)

    async def request(
        self,
        topic: str,
        body: object,
        *,
        timeout: float = REQUEST_TIMEOUT_S,  # noqa: ASYNC109
        tag: str | None = None,
        key: object = None,
        keys: Sequence[object] | str = (),
        sharding_key: object = None,
        properties: Mapping[str, str] | None = None,
    ) -> "Message":
        """Send a message whose consumer replies to it (``message.reply``), and return the reply. Works with RocketMQ's request-reply.

        ``timeout``: seconds in all. The other arguments: as for ``send``. It is a stored message, and may be delivered several times; its
        reply is the first that arrives. A client waits for at most 10,000 replies at once.

        Raises:
            NoReply: it is stored, and no reply that can be read came in time, or the client was closed: it may have been handled, or will
                be. Look there before you send another one.
            SendTimeout: it may be stored, and no reply came. ConnectError, RequestFailed, UsageError: nothing was stored.
        """
        self._here()
        message = compose(topic, body, tag=tag, key=key, keys=keys, sharding_key=sharding_key, properties=properties)
        return await self._requests.ask(message, checked_seconds(timeout, "timeout"))

    @property
    def _requests(self) -> "Requests":
        """Used on the client's loop only."""
        if self._made_requests is None:
            from halfmq.client.request_reply import Requests

            # Of no group whose checks it would be asked for.
            self._made_requests = Requests(
                self._context, self._producer, lambda: self._register_producer(NO_GROUP), self._run_blocking
            )
        return self._made_requests

    # --- transactions ---------------------------------------------------------------------------------------------

    def new_transaction_id(self) -> str:
        """A new unique transaction id, for ``prepare``."""
        return self._open().ids.transaction_id()

    async def prepare(
        self,
        messages: Sequence[OutgoingMessage],
        *,
        tx_id: str,
        name: str = "",
        query_id: str = "",
        broker: str = "",
        timeout: float | None = None,  # noqa: ASYNC109
        **notes: Unpack[Notes],
    ) -> Prepared:
        """Low-level call for an external coordinator: send the half messages; then call ``commit`` or ``rollback``.

        ``tx_id``: from ``new_transaction_id``, used once; or your own, so that a repetition of your program is refused with the verdict of
        the first one for as long as the broker's log has it; ``broker`` then names the broker that has it, where there are several.
        ``name`` routes the checks. ``timeout``: seconds, for this call and for the one that settles it; by default the client's. Fails at
        once while no broker answers, see ``is_ready``. ``notes``: as for ``begin``.

        Raises: see ``Transactions.prepare``.
        """
        refuse_misspelt(notes, AsyncClient.prepare)
        context = self._here()
        checked_timeout(timeout)
        await context.answered(timeout)
        whole = context.attempts(f"prepare of {tx_id}", timeout)
        registering = self._start_registration()
        if registering is not None:  # continues even if this call times out
            await asyncio.wait({registering}, timeout=whole.left_s())
        prepared = await self._transactions.prepare(
            messages,
            tx_id=tx_id,
            name=name,
            query_id=query_id,
            broker=broker,
            timeout_s=whole.left_s(),
            **notes,
        )
        return prepared if timeout is None else replace(prepared, timeout_s=timeout)

    async def settle_earlier(self, tx_id: str, message: OutgoingMessage, *, broker: str) -> Verdict | None:
        """Low-level call for an external coordinator that was restarted: roll back ``tx_id`` unless it is committed, and say which it is.

        See ``Transactions.settle_earlier``. ``broker``: the name of the broker to which an earlier process has sent it; halfmq only.
        """
        context = self._here()
        checked_transaction_id(tx_id)
        checked_messages([message])
        checked_text(broker, "broker", "the name of the broker")
        await context.answered()
        return await self._transactions.settle_earlier(tx_id, message, broker=broker)

    def coordinator(self, name: str) -> "Coordinator":
        """For somebody else's coordinator, which decides transactions of this client's group under ``name``: see ``Coordinator``.

        Raises:
            UsageError: the client has no group, or the name is invalid.
        """
        context = self._here()
        self._require_group()
        from halfmq.client.coordinator import Coordinator

        return Coordinator(context, self._transactions, self._start_registration, self.group, name)

    async def broker_names(self) -> list[str]:
        """Names of all brokers that the name server knows now, sorted.

        Raises:
            ConnectError: no name server answers.
        """
        context = self._here()
        attempts = context.attempts("asking for the brokers")
        try:
            return await attempts.within(context.router.all_brokers())
        except NotSent as error:
            raise ConnectError(f"asking for the brokers: no name server answers: {error}") from error

    async def commit(self, prepared: Prepared) -> TransactionReceipt:
        """Make the messages visible. Raises: see ``Transactions.commit``."""
        self._here()
        return await self._transactions.commit(checked_prepared(prepared))

    async def rollback(self, prepared: Prepared) -> TransactionReceipt:
        """Discard the messages. Raises: see ``Transactions.commit``."""
        self._here()
        return await self._transactions.rollback(checked_prepared(prepared))

    def begin(
        self,
        name: str = "",
        *,
        topic: str | None = None,
        query_id: str = "",
        tx_id: str = "",
        checked_elsewhere: bool = False,
        timeout: float | None = None,
        **notes: Unpack[Notes],
    ) -> "AsyncTransaction":
        """A transaction block: ``async with mq.begin() as tx: tx.send(...)``. See ``transaction_block`` for what failures mean.

        ``name`` routes the check to the function given to ``add_check`` (or ``@app.transaction``). ``topic``: the
        topic of ``tx.send(body)``. ``query_id``: sent with the messages, for the check function. ``tx_id``: your own id; the
        broker refuses it once a transaction with it is settled. By default the client generates one.

        A name needs a registered check, or a transaction whose verdict is lost would stay undecided forever.
        ``checked_elsewhere``: another process of the group has the check. ``timeout``: seconds, for each of the two calls at the end of the
        block; by default the client's.

        ``advice`` (``Outcome.COMMIT`` or ``ROLLBACK``) and ``comment`` (at most 200 printable characters) are for whoever must decide in
        the application's place; ``halfmq tx list`` and ``tx show`` show them as long as the transaction is undecided.

        Raises:
            UsageError: no check is registered under ``name``, or an argument is wrong; nothing was done.
            ConnectError: no broker answers (see ``is_ready``); nothing was done. Also when the block is entered: it tries to connect first,
                for at most 0.25 s, so that the first block after the broker's return succeeds.
        """
        refuse_misspelt(notes, AsyncClient.begin)
        self._here()
        from halfmq.client.transaction_block import AsyncTransaction

        named: dict[str, Any] = {
            "query_id": query_id, "tx_id": tx_id, "checked_elsewhere": checked_elsewhere, "timeout": timeout, **notes,
        }  # fmt: skip
        self._refuse_begin(name, **named)
        block = AsyncTransaction(self, self.verdicts, name, topic=topic, **named)
        if self._context.is_away:
            block._entering = lambda: self._context.answered(timeout)
        return block

    def _refuse_begin(
        self,
        name: str,
        *,
        query_id: str = "",
        tx_id: str = "",
        checked_elsewhere: bool = False,
        timeout: float | None = None,
        **_others: Any,
    ) -> None:
        """Check the arguments of ``begin``. Raises: as it."""
        self._require_group()
        checked_text(name, "name", "the name of its check")
        checked_text(query_id, "query_id", "the key for its check, such as str(order.id)")
        if tx_id != "":
            checked_transaction_id(tx_id)
        if name and not checked_elsewhere:
            self._require_check(name, f"mq.add_check({name!r}, check)")
        checked_timeout(timeout)
        self._context.refuse_if_away()

    def _answered(self, timeout: float | None = None) -> "Coroutine[Any, Any, None] | None":
        """For a blocking block, before it is entered: what has to be awaited, if no broker has answered for some time."""
        return self._context.answered(timeout) if self._context.is_away else None

    def _require_group(self, what: str = "transactions need a group") -> None:
        if not self.group:
            raise UsageError(what, hint=f'{self._face}(url, group="orders"), or HALFMQ_GROUP for from_env()')

    def _require_check(self, name: str, remedy: str) -> None:
        """Raise UsageError if no check can be answered for ``name``.

        A client with ``fetches_checks`` and no check functions is accepted: it answers with ``answer_check``.
        """
        if name in self._check_functions or (self._fetches_checks and not self._check_functions):
            return
        raise UsageError(
            f"this client has no check for transactions named {name!r}: one whose verdict is lost would stay"
            " undecided forever",
            hint=f"{remedy} at start; or checked_elsewhere=True, if another process of group {self.group} answers them",
        )

    def transaction(
        self,
        session: _Session,
        *,
        markers: "AsyncMarkerTable[_Session]",
        outbox: Any = None,
        checked_elsewhere: bool = False,
        timeout: float | None = None,
        **options: Unpack[BlockOptions],
    ) -> "AbstractAsyncContextManager[TransactionBlock]":
        """A block that commits a database session and its messages with one outcome; see ``halfmq.sql.MarkerTable``.

        Call ``answer_checks(markers, sessions)`` once before. ``checked_elsewhere``: another process of the group has. ``timeout``:
        seconds, for each of the two calls at the end of the block, during the first of which it holds its database connection; by default
        the client's. ``options``: ``query_id``, ``advice`` and ``comment``, as for ``begin``.

        ``outbox``: a ``halfmq.sql.Outbox`` in the database of ``markers``. If the broker does not take the messages within ``timeout``,
        they
        are committed as its rows, for a relay: with the same message ids, and ``tx.receipt.path`` says so. They are not in order with those
        that go to the broker.

        Raises:
            UsageError: neither, or an argument is wrong; nothing was done.
            ConnectError: no broker answers (see ``is_ready``), and there is no ``outbox``; the session was not used. Also when the block is
                entered, as for ``begin``.
        """
        refuse_misspelt(options, AsyncClient.transaction)
        self._here()
        bound = self._transaction_options(markers, outbox, checked_elsewhere, timeout, **options)
        block = markers.bind_async(self, session, **bound)
        return OnceAnswered(self._context, timeout, block) if outbox is None and self._context.is_away else block

    def _transaction_options(
        self,
        markers: "MarkerTable",
        outbox: Any = None,
        checked_elsewhere: bool = False,
        timeout: float | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """The options of ``MarkerTable.bind`` for the arguments of ``transaction``. Raises: as it."""
        self._require_group()
        checked_text(options.get("query_id", ""), "query_id", "such as str(order.id)")
        note_pairs(options.get("advice"), options.get("comment", ""))
        check_marker_table(markers)
        if not checked_elsewhere:
            self._require_check(markers.name, "mq.answer_checks(markers, sessions)")
        checked_timeout(timeout)
        if outbox is None:
            self._context.refuse_if_away()
            return {**options, "timeout": timeout}
        check_outbox(outbox)
        # Without an outbox it is not named: a marker table of somebody else need not know it.
        return {**options, "timeout": timeout, "outbox": outbox}

    def tcc(
        self,
        session: _Session,
        *,
        markers: "AsyncMarkerTable[_Session]",
        timeout: float = TCC_TIMEOUT_S,
        checked_elsewhere: bool = False,
        **options: Unpack[BlockOptions],
    ) -> "AsyncTcc":
        """A block that tries at other services, and confirms all of them if and only if ``session`` commits; see ``halfmq.client.tcc``.

        >>> async with mq.tcc(session, markers=markers, timeout=30) as t:
        ...     session.add(Order(...))
        ...     await t.call(reserve, {"article": 7}, confirm="stock-confirm", cancel="stock-cancel")

        ``timeout``: seconds until the branches are cancelled, unless the block has been prepared by then. The other arguments: as for
        ``transaction``. There is no fallback to an outbox. halfmq brokers only.

        Raises: as ``transaction``. At its end: TransactionRefused: it took longer than ``timeout``; the session is rolled back.
        """
        refuse_misspelt(options, AsyncClient.tcc)
        self._here()
        from halfmq.client.tcc import TIMEOUT_MAX_S, AsyncTcc

        bound = self._transaction_options(markers, None, checked_elsewhere, **options)
        timeout_s = checked_seconds(timeout, "timeout", at_most=TIMEOUT_MAX_S)

        def bind(calls: Any) -> "AbstractAsyncContextManager[TransactionBlock]":
            block = markers.bind_async(calls, session, **bound)
            return OnceAnswered(self._context, None, block) if self._context.is_away else block

        return AsyncTcc(self, session, timeout_s, bind, self._run_blocking)

    async def fence(self, tx_id: str, *, group: str, broker: str, since: int) -> Verdict:
        """What the global transaction ``tx_id`` of ``group`` is; one that nobody has prepared is rolled back, so that nobody can.

        For participants of Try/Confirm/Cancel, before they cancel: COMMITTED: drop the cancel, since the confirm comes. UNDECIDED: ask
        again later. ROLLED_BACK: cancel. The arguments are fields of a ``Branch``; ``@app.consumer(..., barrier=barrier)`` does all of
        this.

        Raises:
            RequestFailed: past retention, so that the verdict is not known any more; or the broker cannot do it at the moment.
            ConnectError: no answer; ask again. UnsupportedCombination: an Apache RocketMQ broker has no such request.
        """
        context = self._here()
        from halfmq.client.halfmq_requests import fence_at
        from halfmq.wire.remoting.coordinators import FenceFields

        checked_transaction_id(tx_id)
        for text, name in ((group, "group"), (broker, "broker")):
            checked_text(text, name, "as in the Branch")
        return await fence_at(context, broker, FenceFields(group, tx_id, checked_count(since, "since", 0)))

    async def _send_later(self, message: OutgoingMessage) -> None:
        """Send a message to the retry queue of a group. Raises: as ``send``."""
        self._here()
        await self._producer.send(message, None)

    async def _place_of_tcc(self, topic: str) -> tuple[str, int]:
        """The broker for a transaction that confirms with ``topic``, and the end of its log."""
        from halfmq.client.halfmq_requests import position_at

        context = self._here()
        await context.answered()
        route = await context.attempts(f"finding a broker for {topic}").find(
            lambda: context.router.publish_route(topic)
        )
        broker = context.rng.choice(route.writable).broker
        return broker, await position_at(context, broker)

    def relay(
        self,
        outbox: "OutboxTable[_Sessions, _To]",
        sessions: _Sessions,
        *,
        to: _To | None = None,
        **options: Unpack[RelayOptions],
    ) -> "AbstractAsyncContextManager[RunningRelay]":
        """Publish the rows of a ``halfmq.sql.Outbox`` while the block is open: ``async with mq.relay(outbox, sessions): ...``.

        ``sessions``: your sessionmaker, or an engine. ``to``: a publisher (see ``halfmq.relay``); by default the
        broker of this client, in transactions of the group ``<group>-relay``. ``options``: those of ``Outbox.relay``, and ``broker``, the
        name of the broker where there are several.

        The block opens when database and target have answered, for which it waits as long as that takes. At its end the batches in flight
        are finished. Any number of relays may run at once; see ``halfmq relay`` for one as a process.

        Raises:
            UsageError: an argument is wrong, the tables do not exist, or the client has no group and there is no ``to``.
        """
        refuse_misspelt(options, AsyncClient.relay)
        self._here()
        check_outbox(outbox)
        return outbox.bind_relay(self, sessions, to=to, **options).running()

    async def send_in_transaction(
        self,
        topic: str,
        body: object,
        arg: Any = None,
        *,
        listener: TransactionListener,
        tag: str | None = None,
        key: object = None,
        keys: Sequence[object] | str = (),
        sharding_key: object = None,
        delay: float | timedelta | None = None,
        properties: Mapping[str, str] | None = None,
        tx_id: str = "",
        **notes: Unpack[Notes],
    ) -> TransactionReceipt:
        """Send in RocketMQ's style: the half message, then ``listener.execute(message, arg)``, then its outcome.

        If it returns UNKNOWN, the receipt has verdict UNDECIDED, and ``listener.check`` decides. ``tx_id``: as in ``begin``.
        ``delay``: seconds from the commit until the message becomes visible. ``notes``: as for ``begin``.

        Raises:
            TransactionRefused, SendTimeout, ConnectError, RequestFailed: ``execute`` did not run.
            TypeError: ``execute`` returned no Outcome; the check decides.
            BaseException: of ``execute``, unchanged. The check decides, since the local COMMIT may have succeeded without
                a response.
        """
        refuse_misspelt(notes, AsyncClient.send_in_transaction)
        from halfmq.client.transaction_block import send_by_listener

        if tx_id != "":
            checked_transaction_id(tx_id)
        self.add_listener(listener)

        async def execute(message: "Message") -> object:
            return await call(self._run_blocking, listener.execute, message, arg)

        return await send_by_listener(
            self, self, listener, execute, topic, body, tag=tag, key=key, keys=keys, sharding_key=sharding_key,
            delay=delay, properties=properties, tx_id=tx_id, **notes,
        )  # fmt: skip

    async def finish(self, prepared: Prepared, outcome: Outcome, remark: str = "") -> TransactionReceipt:
        """Send ``outcome`` to the broker: ``commit``, ``rollback``, or UNKNOWN (a receipt with UNDECIDED). Raises as ``commit``.

        ``remark``: the reason for UNKNOWN, shown by ``halfmq tx show``.
        """
        self._here()
        match outcome:
            case Outcome.COMMIT:
                return await self.commit(prepared)
            case Outcome.ROLLBACK:
                return await self.rollback(prepared)
            case Outcome.UNKNOWN:
                checked_prepared(prepared)
                self._transactions.tell_unknown(prepared, checked_text(remark, "remark", "a reason, for people"))
                ids = tuple(half.message_id for half in prepared.halves)
                return TransactionReceipt(prepared.tx_id, UNDECIDED, ids, acknowledged=False, atomic=prepared.atomic)
            case _:
                raise UsageError(f"finish(..., {outcome!r})", hint="Outcome.COMMIT, ROLLBACK or UNKNOWN")

    # --- checks ---------------------------------------------------------------------------------------------------

    def add_listener(self, listener: TransactionListener) -> None:
        """Answer checks with ``listener.check``. Call it at application start, so that checks are answered after a crash too."""
        from halfmq.client.check_listener import check_of

        check_methods(listener, awaits=True)
        self.add_check(listener_name(listener), check_of(listener.check))

    def add_check(self, name: str, check: "CheckFunction") -> None:
        """Register ``check(transaction) -> Outcome`` for the transactions begun with ``name``; replaces an earlier one.

        May be called before the client is opened. The empty name is for transactions without a name, such as those of Java
        clients in the same group.
        """
        self._require_group("checks are for a group")
        checked_text(name, "name", "the name that its transactions are begun with")
        from halfmq.client.shapes import CHECK, check_shape

        check_shape(check, CHECK)
        known = self._check_functions.get(name)
        if self.is_open:
            self._here()
        self._check_functions[name] = check
        self._marker_names.discard(name)
        if self.is_open and known is not check:
            self._check_listener.register(name, check)
            self._spawn(self._register_for_checks())

    def answer_checks(self, markers: "MarkerTable", sessions: Callable[[], Any]) -> None:
        """Answer checks from the marker table. ``sessions``: your sessionmaker, bound to the primary.

        Call it once, before the first transaction.

        Raises:
            UsageError: not a marker table, or not a sessionmaker.
        """
        check_marker_table(markers)
        self._answer_from_markers(markers.name, markers.checker(sessions))

    def _answer_from_markers(self, name: str, check: "CheckFunction") -> None:
        self.add_check(name, check)
        self._marker_names.add(name)
        if self.is_open:
            self._start_comparing()

    def _start_comparing(self) -> None:
        if self._marker_names and not self._is_comparing:
            from halfmq.client.comparisons import Comparer

            self._is_comparing = True  # until the client is closed
            listener = self._check_listener
            self._spawn(Comparer(self._context, self.group, listener, lambda: self._marker_names).run())

    async def report_outcome(self, tx_id: str, outcome: Outcome, source: str) -> bool:
        """Say what another database did in a transaction of this group that is settled. Returns whether it agrees with the verdict.

        For whoever holds such an outcome, as the coordinator of a transaction with several databases. A contradiction changes no verdict:
        the
        broker keeps it as a finding, which ``halfmq tx damaged`` shows until an operator lets the broker forget it. ``source``: who says
        so, at most 64 characters, such as "bank A".

        Raises:
            TransactionUndecided: it has no verdict yet.
            RequestFailed: no broker knows it, or its verdict is past retention. SendTimeout, ConnectError: no answer; call it again.
        """
        from halfmq.client.halfmq_requests import report

        context = self._here()
        self._require_group()
        checked_transaction_id(tx_id)
        if outcome not in (Outcome.COMMIT, Outcome.ROLLBACK):
            raise UsageError(f"outcome={outcome!r}", hint="Outcome.COMMIT or Outcome.ROLLBACK")
        most = limits.COMPARISON_SOURCE_CHARS_MAX
        checked_note(source, "source", most, f'1 to {most} printable characters, such as source="bank A"', at_least=1)
        return await report(context, self.group, tx_id, outcome, source)

    async def _register_for_checks(self) -> None:
        """Register as a producer of the group at once, rather than with the next heartbeat."""
        registering = self._start_registration()
        if registering is not None:
            await registering

    def _start_registration(self) -> "asyncio.Task[None] | None":
        """The task that registers at the brokers; None if not needed."""
        self._here()
        self._require_group()
        if self._fetches_checks:
            self._start_fetching()
            return None
        return self._register_producer(self.group)

    def _register_producer(self, group: str) -> "asyncio.Task[None] | None":
        """The task that registers the client at the brokers as a producer of ``group``; None if it is one."""
        return self._spawn(self._heartbeat_all()) if self._context.membership.add_producer(group) else None

    def _start_fetching(self) -> None:
        if self._check_functions and not self._is_fetching:
            from halfmq.client.fetched_checks import CheckFetcher

            self._is_fetching = True  # until the client is closed
            self._spawn(CheckFetcher(self._context, self.group, self._check_listener, self._checks).run())

    async def fetch_checks(self, *, count: int = 32, wait: float = 20.0) -> "list[FetchedCheck]":
        """Fetch checks of this group on lease; an empty list if there are none within ``wait`` seconds.

        Answer each with ``answer_check`` within the broker's ``check_answer_ms`` (5 s), or it is given to another client. For
        programs that answer checks themselves: a client with ``fetches_checks=True`` and no check functions. A client that
        has check functions fetches by itself.

        ``count``: at most this many, 1 to 256; fetch only as many as you can answer in time. ``wait``: seconds, up to 25.

        Raises:
            UsageError: a value is out of range. ConnectError: no broker responds. UnsupportedCombination: Apache RocketMQ
                does not support it.
        """
        from halfmq.client.fetched_checks import fetch_any

        context = self._here()
        self._require_group("checks are for a group")
        if checked_count(count, "count", 1) > limits.CHECK_POLL_CHECKS_MAX:
            raise UsageError(
                f"count={count}: a broker hands out {limits.CHECK_POLL_CHECKS_MAX} checks at once at most",
                hint="answer those, then fetch again",
            )
        if checked_seconds(wait, "wait", zero=True) > limits.CHECK_POLL_WAIT_MAX_MS / 1_000:
            raise UsageError(
                f"wait={wait}: a broker lets wait {limits.CHECK_POLL_WAIT_MAX_MS // 1_000} s at most",
                hint="fetch again when the list is empty",
            )
        try:
            async with asyncio.timeout(wait + self._timeout_s):
                return await fetch_any(context, self.group, checks_max=count, wait_s=wait)
        except TimeoutError:
            raise ConnectError(f"fetching the checks of {self.group}: no broker answered in time") from None

    async def answer_check(self, check: "FetchedCheck", outcome: Outcome) -> TransactionReceipt:
        """Answer a fetched check. UNKNOWN returns the lease; the broker checks again later.

        Raises:
            TransactionRefused: it has the opposite verdict. TransactionIncomplete: COMMIT while halves are missing.
            ConnectError: the lease ended with its connection; fetch again. TransactionUnknown: no response; the broker may
                have it. RequestFailed: the broker no longer knows the transaction; drop the check.
        """
        from halfmq.client.fetched_checks import FetchedCheck
        from halfmq.client.transaction_block import checked_outcome

        self._here()
        if not isinstance(check, FetchedCheck):
            raise UsageError(f"{check!r} is not a fetched check", hint="one of those that fetch_checks gave")
        return await check.answer(
            self.group, checked_outcome(outcome, "answer_check"), min(self._attempt_timeout_s, self._timeout_s)
        )

    # --- consuming ------------------------------------------------------------------------------------------------

    def consumer(
        self,
        topics: str | Sequence[str],
        *,
        group: str = "",
        tags: str = "*",
        start: "StartFrom" = "earliest",
        retries: int | None = None,
        prefetch: int | None = None,
        retry: "Retry | None" = None,
    ) -> "Consumer":
        """A consumer: ``async with mq.consumer(topic, group="billing") as messages``, then ``async for message in messages``.

        The members of a ``group`` divide the topic's queues among them. Arguments: see ``ConsumerSpec``.
        """
        from halfmq.client.consumer import Consumer, ConsumerSpec

        self._open()
        return Consumer(ConsumerSpec(topics, group or self.group, tags, start, retries, prefetch, retry), self._join)

    async def _join(self, spec: "ConsumerSpec", feed: "Feed") -> "GroupMember":
        from halfmq.client.group_member import GroupMember

        while (member := self._members.get(spec.group)) is not None and member.is_leaving:
            await member.ended()  # brokers see one client: the pending leave would remove the new member too
        context = self._here()
        if member is None or member.is_idle:
            member = self._members[spec.group] = GroupMember(context, spec.group, spec.start, spec.retries)
        elif (member.start, member.retries) != (spec.start, spec.retries):
            raise UsageError(f"group {spec.group} has consumers here with another start or retries")
        await member.subscribe(spec.topics, spec.tags, feed)
        return member

    # --- connections ----------------------------------------------------------------------------------------------

    def _on_push(self, connection: Connection, request: Request[Any]) -> None:
        match request.code:
            case RequestCode.CHECK_TRANSACTION_STATE:
                self._check_listener.on_check(connection, request)
            case RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
                for member in self._members.values():
                    member.rebalance_soon()
            case RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
                self._requests.take(connection, request)
            case _:
                log.debug("request %d of %s is not supported", request.code, connection.address)
                connection.answer(
                    request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {request.code} not supported"
                )

    def _on_silent(self, connection: Connection) -> bool:
        """Ask until it answers, or the connection is given up and ``_on_lost`` goes on: meanwhile blocks fail at once and ask nothing."""
        if self._closing is not None:
            return False
        self._spawn(self._probe(connection))
        return True

    def _on_silent_name_server(self, name_server: Connection) -> bool:
        """Ask the brokers, which may be in the same process: a call that waits for a route has sent them nothing."""
        if self._closing is None:
            for connection in self._context.brokers.established():
                if not connection.is_in_doubt:
                    connection.doubt(name_server.silent_from)
                    self._spawn(self._probe(connection))
        return False

    async def _probe(self, connection: Connection) -> None:
        now = asyncio.get_running_loop().time
        while connection.is_in_doubt and not connection.closed:
            try:
                if connection.is_halfmq:  # its heartbeats wait for the disk if they name a new group
                    await connection.request(HMQ_DECISION, {}, timeout_s=PROBE_TIMEOUT_S)
                else:
                    await self._context.membership.heartbeat(connection, PROBE_TIMEOUT_S)
            except (NotSent, NoAnswer) as error:
                log.debug("probe of %s: %s", connection.address, error)
                is_over = now() - connection.silent_from >= self._attempt_timeout_s
                if connection.is_in_doubt and is_over and not connection.is_silent:
                    connection.is_silent = True
                    log.warning("%s does not answer", connection.address)
                await asyncio.sleep(_PROBE_S)

    def _on_lost(self, address: Address) -> None:
        """Reconnect, if there is any group: checks and notifications arrive on this connection, and blocks fail while there is none."""
        has_group = bool(self.group) or not self._context.membership.is_empty
        if self._closing is not None or not has_group or address in self._reconnecting:
            return
        self._reconnecting.add(address)
        self._spawn(self._reconnect(address))

    async def _reconnect(self, address: Address) -> None:
        pause_s = 0.05
        try:
            while self._closing is None and address in self._context.router.brokers().values():
                await asyncio.sleep(pause_s * self._context.rng.uniform(0.5, 1.0))
                try:
                    await self._context.brokers.get(address)
                except ConnectError as error:
                    log.debug("reconnect to %s: %s", address, error)
                    self._context.router.mark_stale_at(address)
                    pause_s = min(2 * pause_s, RECONNECT_MAX_S)
                    continue
                log.info("connected to %s again", address)
                for member in self._members.values():
                    member.rebalance_soon()
                return
        finally:
            self._reconnecting.discard(address)

    async def _heartbeat_loop(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            await self._heartbeat_all()

    async def _heartbeat_all(self) -> None:
        """Send a heartbeat to every known broker; opens missing connections if any group is registered."""
        context = self._context
        connections = {connection.address: connection for connection in context.brokers.established()}
        for address in context.router.brokers().values():
            try:
                if address in connections:
                    await context.membership.heartbeat(connections[address])
                elif not context.membership.is_empty:
                    await context.brokers.get(address)
            except (ConnectError, NotSent, NoAnswer) as error:
                log.debug("heartbeat to %s: %s", address, error)

    def _spawn(self, work: "Coroutine[Any, Any, None]") -> "asyncio.Task[None]":
        return spawn(self._tasks, work, "a task of the client failed")


def _telemetry_of(wanted: object) -> "Telemetry | None":
    """For the argument ``telemetry``.

    Raises:
        UsageError: it is something else. MissingDependency: OpenTelemetry's API is not installed.
    """
    if wanted is False:
        return None
    from halfmq.client.telemetry import Telemetry

    if wanted is True:
        return Telemetry()
    if not isinstance(wanted, Telemetry):
        raise UsageError(f"telemetry={wanted!r}", hint="telemetry=True, or a halfmq.client.telemetry.Telemetry")
    return wanted


def _host() -> str:
    import socket

    return socket.gethostname() or "localhost"


def environment(options: "EnvironmentOptions") -> tuple[str]:
    """The server URL from the environment; sets the default ``group`` in ``options``.

    Raises:
        UsageError: neither HALFMQ_URL nor NAMESRV_ADDR is set.
    """
    url = os.environ.get("HALFMQ_URL") or os.environ.get("NAMESRV_ADDR")
    if not url:
        raise UsageError("no server is configured", hint="set HALFMQ_URL=rocketmq://host:9876, or NAMESRV_ADDR")
    options.setdefault("group", os.environ.get("HALFMQ_GROUP", ""))
    return (url,)
