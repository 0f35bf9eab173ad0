"""Publishes to RabbitMQ, over aiormq, the protocol layer of aio-pika.

A row becomes a persistent message with ``message_id``, the properties under their names as headers (``TAGS``, ``KEYS``, ``__SHARDINGKEY``,
the application's own), and its time as ``timestamp`` (whole seconds, as AMQP has it). Its topic is the routing key: with the default
exchange that is the name of a queue, with another one what the bindings say.

What it promises beside other targets: docs/decisions/0064-relay-targets.md. A RabbitMQ that is short of memory or disk
blocks its publishers; what was sent then is waited for, however long it takes. Queues that are not durable lose a
message with the server, whatever was confirmed.

Every message is ``mandatory``: one that no queue takes is refused. So is one that a queue rejects, because it is full and its overflow
behaviour is ``reject-publish``.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar, cast

from halfmq.errors import ConnectError, HalfmqError, MissingDependency, NotAuthorized, UsageError
from halfmq.model import properties as names
from halfmq.relay.publisher import MESSAGES_MAX, Batch, OutboxMessage, Published
from halfmq.relay.waves import PublisherInWaves, Sent

try:
    import aiormq
    from aiormq import exceptions as amqp
    from aiormq.connection import Connection, TCPTransportFactory, TLSTransportFactory, TransportFactory
    from yarl import URL
except ModuleNotFoundError as error:
    raise MissingDependency(f"{error.name} is not installed", hint="pip install 'halfmq[rabbitmq]'") from error

_T = TypeVar("_T")

#: For the confirmations of one wave.
TIMEOUT_S: Final = 30.0
CONNECT_TIMEOUT_S: Final = 5.0
_CLOSE_S: Final = 2.0
_PERSISTENT: Final = 2
_BUFFERED_BYTES_MAX: Final = 64 << 10
#: Of AMQP's field names; pamqp cuts longer ones.
_HEADER_NAME_BYTES_MAX: Final = 128
#: Opened on one connection, one after the other; a server allows 2,047 by default.
_CHANNELS_MAX: Final = 1_000
_DEFAULT_PORTS: Final = {"amqp": 5672, "amqps": 5671}


class RabbitMqPublisher(PublisherInWaves):
    """``url``: ``amqp://user:password@host:port/vhost``, or ``amqps``. ``exchange``: a name, which must exist; empty: the default exchange,
    where a topic is the name of a queue. ``timeout_s``: for the confirmations of one wave, in seconds, while RabbitMQ reads.
    """

    def __init__(
        self,
        url: str,
        exchange: str = "",
        *,
        messages_max: int = MESSAGES_MAX,
        timeout_s: float = TIMEOUT_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        try:
            self._url = URL(url)
        except ValueError:
            self._url = URL()
        if self._url.scheme not in _DEFAULT_PORTS or not self._url.host:
            # Not shown: it may have a password.
            raise UsageError("this is not the URL of a RabbitMQ server", hint="amqp://user:password@host:5672/")
        super().__init__(messages_max)
        self._exchange = exchange
        self._timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._link: _Link | None = None
        self._connecting = asyncio.Lock()

    @property
    def name(self) -> str:
        return f"rabbitmq {self._url.host}:{self._url.port or _DEFAULT_PORTS[self._url.scheme]}"

    async def open(self) -> None:
        await self._connected()

    async def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.end()

    async def publish(self, batch: Batch) -> Published:
        return await self._publish_in_waves(batch, self._send)

    async def _connected(self) -> "_Link":
        """The connection; a new one if there is none.

        Raises: as ``open``.
        """
        async with self._connecting:
            link = self._link
            if link is None or not link.is_open:
                if link is not None:
                    await link.end()
                link = self._link = await self._connect()
            return link

    async def _connect(self) -> "_Link":
        link = _Link(self._url)
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await link.connect()
                if self._exchange:
                    channel = await link.channel()
                    await channel.exchange_declare(self._exchange, passive=True)
                    link.give_back(channel)
        except BaseException as error:
            await link.end()
            raise self._why_not(error) from error
        return link

    def _why_not(self, error: BaseException) -> BaseException:
        """What ``open`` raises for what happened."""
        match error:
            case amqp.ChannelNotFoundEntity():
                return UsageError(f"{self.name}: {_text(error)}", hint="declare the exchange, or name another one")
            case amqp.ProbableAuthenticationError() | amqp.AuthenticationError() | amqp.ConnectionNotAllowed():
                return NotAuthorized(f"{self.name}: {_text(error)}")
            case amqp.InvalidFrameError():
                # aiormq says so, without the reason, of a refused virtual host; it may also have too many connections.
                return ConnectError(
                    f"{self.name} refuses the virtual host", hint="does it exist, may the user use it, is it full?"
                )
            case _ if isinstance(error.__cause__ or error, ssl.SSLError):
                hint = (
                    "of a certificate of your own name its CA: amqps://...?cafile=FILE; RabbitMQ's port for TLS is 5671"
                )
                return ConnectError(f"no TLS with {self.name}: {_text(error)}", hint=hint)
            case FileNotFoundError() | PermissionError():
                return UsageError(f"{self.name}: cafile, certfile or keyfile of its URL: {error.strerror}")
            case TimeoutError():
                return ConnectError(
                    f"{self.name} did not answer within {self._connect_timeout_s:g} s", hint="is it a RabbitMQ server?"
                )
            case Exception():
                return ConnectError(f"no connection to {self.name}: {_text(error)}", hint="is the server running?")
        return error

    async def _send(self, wave: Sequence[OutboxMessage]) -> Sent:
        try:
            link = await self._connected()
        except HalfmqError as error:
            return Sent(unavailable=str(error))
        confirmed: set[int] = set()
        refused: dict[int, str] = {}
        suspects: list[OutboxMessage] = []
        unsent = why = ""
        for message, outcome in zip(wave, await self._outcomes(link, wave), strict=True):
            match outcome:
                case None:
                    confirmed.add(message.seq)
                case amqp.DeliveryError() | ValueError() | TypeError() | OverflowError():
                    refused[message.seq] = _text(outcome)
                case amqp.ChannelPreconditionFailed():
                    suspects.append(message)
                case amqp.ChannelAccessRefused() if "access to topic" in str(outcome):
                    suspects.append(message)
                case amqp.ChannelInvalidStateError():
                    unsent = f"{self.name}: {_text(outcome)}"
                case HalfmqError():
                    why = str(outcome)
                case _:
                    why = f"{self.name}: {_text(outcome)}"
        if len(wave) == 1 and suspects:
            assert outcome is not None
            return Sent(refused={wave[0].seq: _text(outcome)})
        # RabbitMQ has closed the channel because of one message, and does not say which. What it took before is published again.
        for message in suspects:
            alone = await self._send([message])
            confirmed |= alone.confirmed
            refused.update(alone.refused)
            if alone.unavailable:
                return Sent(frozenset(confirmed), refused, unavailable=alone.unavailable)
        if suspects and not why:
            return Sent(frozenset(confirmed), refused, again=True)
        return Sent(frozenset(confirmed), refused, unavailable=why or unsent)

    async def _outcomes(self, link: "_Link", wave: Sequence[OutboxMessage]) -> list[BaseException | None]:
        """Of each message, in order: None: confirmed; or what happened instead."""
        try:
            channel = await link.in_time(link.channel(), self._connect_timeout_s)
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing was sent
            await link.end()
            return [self._why_not(error)] * len(wave)
        tasks: list[asyncio.Future[None]] = []
        large: asyncio.Future[None] | None = None
        for message in wave:
            tasks.append(asyncio.ensure_future(self._publish(channel, message, large)))
            if len(message.body) > _BUFFERED_BYTES_MAX:
                large = tasks[-1]
        everything = asyncio.gather(*tasks, return_exceptions=True)
        closing = link.closing()
        try:
            # A message that waits for its turn to be written would not notice the end of the connection.
            await link.wait((everything, closing), self._timeout_s)
        finally:
            is_cut = not everything.done()
            if is_cut:
                link.abort()  # with what was not written yet, which must not be sent later
                for task in tasks:
                    task.cancel()
        why: BaseException | None = TimeoutError(f"no confirmation within {self._timeout_s:g} s")
        if closing.done() and not closing.cancelled():
            why = closing.exception() or why
        closing.cancel()
        outcomes = await everything
        if is_cut:
            await link.end()
        link.give_back(channel)
        return [
            why if isinstance(one, asyncio.CancelledError) else one if isinstance(one, BaseException) else None
            for one in outcomes
        ]

    async def _publish(
        self, channel: aiormq.Channel, message: OutboxMessage, after: "asyncio.Future[None] | None"
    ) -> None:
        """``after``: what must have ended first. RabbitMQ may close the channel while a large message is being written, and closes the
        connection if another one comes then."""
        if after is not None:
            await asyncio.wait({after})
            if channel.is_closed:
                raise amqp.ChannelInvalidStateError
        headers: Any = names.to_dict(message.properties) if message.properties else None
        for name in headers or ():
            if len(name) > _HEADER_NAME_BYTES_MAX or len(name.encode()) > _HEADER_NAME_BYTES_MAX:
                raise ValueError(f"the name of property {name!r} has more than {_HEADER_NAME_BYTES_MAX} bytes")
        await channel.basic_publish(
            message.body,
            exchange=self._exchange,
            routing_key=message.topic,
            mandatory=True,
            # Until it is written, if it is large, so that not all of a batch is in the buffer.
            wait=len(message.body) > _BUFFERED_BYTES_MAX,
            properties=aiormq.spec.Basic.Properties(
                delivery_mode=_PERSISTENT,
                message_id=message.message_id,
                headers=headers,
                timestamp=datetime.fromtimestamp(message.written_at_ms // 1_000, UTC),
            ),
        )


class _Opener(TransportFactory):
    """Opens the socket, and can drop it with what was not written yet. aiormq would wait until the server reads it."""

    def __init__(self) -> None:
        self._writer: asyncio.StreamWriter | None = None

    async def create(self, url: URL, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        factory = TLSTransportFactory() if url.scheme == "amqps" else TCPTransportFactory()
        reader, self._writer = await factory.create(url, **options)
        return reader, self._writer

    def abort(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()


class _Link:
    """One connection. A channel serves one wave at a time: RabbitMQ closes it because of a message, and says nothing of the others."""

    def __init__(self, url: URL) -> None:
        self._opener = _Opener()
        self._connection = Connection(url, transport_factory=self._opener)
        self._idle: list[aiormq.Channel] = []
        self._last_channel = 0
        self._is_ended = False

    @property
    def is_open(self) -> bool:
        return not self._is_ended and self._connection.is_opened and self._last_channel < _CHANNELS_MAX

    async def connect(self) -> None:
        await self._connection.connect()

    async def wait(self, futures: "Sequence[asyncio.Future[Any]]", timeout_s: float) -> None:
        """Until one of them is done, for ``timeout_s`` seconds; and however long RabbitMQ blocks the connection, because it is short of
        memory or disk. What a blocked connection has taken is published when it goes on: sent again meanwhile, it would be there twice, and
        once more with each attempt.
        """
        done: set[asyncio.Future[Any]] = set()
        is_waiting = True
        while is_waiting:
            was_blocked = await self._is_blocked()
            done, _ = await asyncio.wait(futures, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            is_waiting = not done and (was_blocked or await self._is_blocked())

    async def in_time(self, call: Coroutine[Any, Any, _T], timeout_s: float) -> _T:
        """What ``call`` returns, as ``wait`` waits.

        Raises:
            TimeoutError: it has not ended. What it raises.
        """
        task, closing = asyncio.ensure_future(call), self.closing()
        try:
            await self.wait((task, closing), timeout_s)
            if not task.done():
                raise (closing.done() and closing.exception()) or TimeoutError
            return task.result()
        finally:
            task.cancel()
            closing.cancel()

    async def _is_blocked(self) -> bool:
        try:
            async with asyncio.timeout(0):
                await self._connection.ready()
        except TimeoutError:
            return True
        return False

    async def channel(self) -> aiormq.Channel:
        """With confirms. To be given back."""
        while self._idle:
            channel = self._idle.pop()
            if not channel.is_closed:
                return channel
        # No number twice: aiormq would take that of a closed channel before the server knows that it is closed, or without telling it, and
        # the server then closes the connection.
        self._last_channel += 1
        opened = await self._connection.channel(self._last_channel, publisher_confirms=True, on_return_raises=True)
        return cast(aiormq.Channel, opened)

    def give_back(self, channel: aiormq.Channel) -> None:
        if not channel.is_closed:
            self._idle.append(channel)

    def closing(self) -> "asyncio.Future[Any]":
        """Done when the connection is lost."""
        return self._connection.closing

    def abort(self) -> None:
        """Drop what was not written yet. ``end`` must follow, perhaps by the next who wants to connect."""
        self._is_ended = True
        self._opener.abort()

    async def end(self) -> None:
        """Close it, within ``_CLOSE_S`` seconds."""
        self._is_ended = True
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_CLOSE_S):
                await self._connection.close()
        self._opener.abort()


def _text(error: BaseException) -> str:
    frame = error.frame if isinstance(error, amqp.DeliveryError) else None
    match frame:
        case aiormq.spec.Basic.Return():
            where = f"exchange {frame.exchange!r}" if frame.exchange else "the default exchange"
            return f"no queue gets messages of {where} with routing key {frame.routing_key!r} ({frame.reply_text})"
        case aiormq.spec.Basic.Nack():
            return "a queue did not take it, which may be full (Basic.Nack)"
    return " ".join(str(one) for one in error.args if one) or type(error).__name__
