"""``HalfmqBroker``: FastStream's broker of halfmq."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Unpack

from fast_depends import Provider, dependency_provider
from faststream._internal.broker import BrokerUsecase
from faststream._internal.constants import EMPTY
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream.message import gen_cor_id
from faststream.middlewares import AckPolicy
from faststream.response.publish_type import PublishType
from faststream.specification.schema import BrokerSpec

from faststream_halfmq.config import HalfmqBrokerConfig
from faststream_halfmq.logs import make_state
from faststream_halfmq.message import HalfmqMessage
from faststream_halfmq.producer import HalfmqProducer
from faststream_halfmq.registrator import HalfmqRegistrator
from faststream_halfmq.response import REQUEST_TIMEOUT_S, HalfmqPublishCommand
from halfmq import AsyncClient, Message, Receipt
from halfmq.integrations import ClientOptions, checked_seconds, parse_url, refuse_misspelt

if TYPE_CHECKING:
    from types import TracebackType

    from fast_depends.dependencies import Dependant
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.basic_types import LoggerProto, SendableMessage
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import BrokerMiddleware, CustomCallable, IdGenerator
    from faststream.specification.schema.extra import Tag, TagDict
    from sqlalchemy.ext.asyncio import AsyncSession

    from halfmq.sql import MarkerTable

#: Of RocketMQ's remoting protocol, as clients 4.9 to 5.5 have it.
_PROTOCOL_VERSION = "4.9"


class HalfmqBroker(HalfmqRegistrator, BrokerUsecase[Message, AsyncClient, HalfmqBrokerConfig]):
    """Publishes to and subscribes at a halfmq broker, or one of Apache RocketMQ.

    >>> broker = HalfmqBroker("rocketmq://127.0.0.1:9876", group="orders")
    >>>
    >>> @broker.subscriber("orders")
    ... @broker.publisher("invoices")
    ... async def bill(order: Order) -> Invoice: ...

    ``group``: the producer group, named after the service, and the consumer group of subscribers without one. ``graceful_timeout``: how
    long handlers that run may take at ``stop``, seconds. ``client_options``: of ``halfmq.AsyncClient``, such as ``timeout`` and ``secret``.
    The other arguments: as for FastStream's brokers.

    Raises:
        halfmq.UsageError, halfmq.InvalidName: an argument is wrong.
    """

    def __init__(
        self,
        url: str = "rocketmq://127.0.0.1:9876",
        *,
        group: str = "",
        graceful_timeout: float | None = 15.0,
        decoder: "CustomCallable | None" = None,
        parser: "CustomCallable | None" = None,
        codec: "CodecProto | None" = None,
        dependencies: "Sequence[Dependant]" = (),
        middlewares: "Sequence[BrokerMiddleware[Any, Any]]" = (),
        routers: Iterable[HalfmqRegistrator] = (),
        ack_policy: AckPolicy = EMPTY,
        id_generator: "IdGenerator" = gen_cor_id,
        specification_url: str | None = None,
        protocol: str | None = None,
        protocol_version: str | None = None,
        description: str | None = None,
        tags: "Iterable[Tag | TagDict]" = (),
        logger: "LoggerProto | None" = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        serializer: "SerializerProto | None" = EMPTY,
        provider: Provider | None = None,
        context: ContextRepo | None = None,
        **client_options: Unpack[ClientOptions],
    ) -> None:
        refuse_misspelt(client_options, HalfmqBroker.__init__)
        if graceful_timeout is not None:
            checked_seconds(graceful_timeout, "graceful_timeout", zero=True)
        #: Open from ``connect`` to ``stop``; for everything that FastStream has no word for.
        self.client = AsyncClient(url, group=group, **client_options)
        markers: list[MarkerTable] = []
        self._halfmq_producer = HalfmqProducer(self.client, markers, parser, decoder)
        scheme, _, addresses = parse_url(url).shown.partition("://")
        servers = [f"{scheme}://{address}" for address in addresses.split(";")]
        super().__init__(
            routers=routers,
            config=HalfmqBrokerConfig(
                group=group,
                client=self.client,
                markers=markers,
                producer=self._halfmq_producer,
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                logger=make_state(logger=logger, log_level=log_level),
                fd_config=FastDependsConfig(
                    use_fastdepends=apply_types,
                    serializer=serializer,
                    provider=provider or dependency_provider,
                    context=context or ContextRepo(),
                ),
                broker_dependencies=dependencies,
                graceful_timeout=graceful_timeout,
                ack_policy=ack_policy,
                id_generator=id_generator,
                extra_context={"broker": self},
            ),
            specification=BrokerSpec(
                url=[specification_url] if specification_url else servers,
                protocol=protocol or scheme,
                protocol_version=protocol_version or _PROTOCOL_VERSION,
                description=description,
                tags=tags,
                security=None,
            ),
        )

    async def _connect(self) -> AsyncClient:
        await self.client.connect()
        self._halfmq_producer.connect(self.config.fd_config._serializer, self.config.broker_codec)
        return self.client

    async def start(self) -> None:
        """Connect, and begin to call the handlers.

        Raises:
            halfmq.ConnectError: no broker answers. halfmq.UsageError: a subscriber has no group.
        """
        await self.connect()
        await super().start()

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: "TracebackType | None" = None,
    ) -> None:
        """Wait ``graceful_timeout`` seconds for handlers that run, leave the groups, and close the client."""
        try:
            await super().stop(exc_type, exc_val, exc_tb)
        finally:
            if self._connection is not None:
                await self._connection.close()
                self._connection = None

    def answer_checks(self, markers: "MarkerTable", sessions: Callable[[], Any]) -> None:
        """Answer the broker's questions about transactions of ``publish(..., session=session)`` from the marker table. Call it once, when
        the application is set up.

        ``markers``: a ``halfmq.sql.MarkerTable`` in the database of the sessions. ``sessions``: their ``async_sessionmaker``, bound to the
        primary.

        Raises:
            halfmq.UsageError: not a marker table, or not a sessionmaker.
        """
        self.client.answer_checks(markers, sessions)
        self.config.broker_config.markers.append(markers)

    async def ping(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - as FastStream's other brokers
        """Whether a broker answers within ``timeout`` seconds; for readiness probes."""
        try:
            async with asyncio.timeout(timeout):
                return await self.client.healthy()
        except TimeoutError:
            return False

    async def publish(
        self,
        message: "SendableMessage" = None,
        topic: str = "",
        *,
        tag: str | None = None,
        key: object = None,
        keys: Sequence[object] | str = (),
        sharding_key: object = None,
        delay: float | timedelta | None = None,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        session: "AsyncSession | None" = None,
        markers: "MarkerTable | None" = None,
        timeout: float | None = None,  # noqa: ASYNC109 - one timeout= everywhere, with retries inside
    ) -> Receipt | None:
        """Publish ``message`` to ``topic``, and return when the broker has stored it durably.

        ``session``: of SQLAlchemy. The message is visible if and only if the transaction of the session commits, which is up to the caller:
        ``publish`` writes a marker in it and returns None, ``session.commit()`` sends the message and may raise what ``publish`` raises
        without a session. Then nothing is committed; roll back. ``markers``: the marker table, if there are several (``answer_checks``).

        ``key``, ``keys``: by which tools find the message. ``sharding_key``: messages with the same one stay in order. ``delay``: seconds
        until it becomes visible. ``headers``: its properties. ``timeout``: seconds for the call with its retries.

        Raises:
            halfmq.SendTimeout: it may be stored. halfmq.ConnectError, halfmq.RequestFailed, halfmq.UsageError: nothing was stored.
        """
        cmd = HalfmqPublishCommand(
            message,
            topic=topic,
            correlation_id=correlation_id or self.config.id_generator(),
            headers=headers,
            message={"tag": tag, "key": key, "keys": keys, "sharding_key": sharding_key, "delay": delay},
            session=session,
            markers=markers,
            timeout=timeout,
            _publish_type=PublishType.PUBLISH,
        )
        receipt: Receipt | None = await self._basic_publish(cmd, producer=self.config.producer)
        return receipt

    async def publish_batch(  # type: ignore[override]
        self,
        *messages: "SendableMessage",
        topic: str,
        tag: str | None = None,
        keys: Sequence[object] | str = (),
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> list[Receipt]:
        """Publish several messages to ``topic``, in few requests. Not atomic as a whole: see ``halfmq.AsyncClient.send_many``."""
        cmd = HalfmqPublishCommand(
            *messages,
            topic=topic,
            correlation_id=correlation_id or self.config.id_generator(),
            headers=headers,
            message={"tag": tag, "keys": keys},
            timeout=timeout,
            _publish_type=PublishType.PUBLISH,
        )
        receipts: list[Receipt] = await self._basic_publish_batch(cmd, producer=self.config.producer)
        return receipts

    async def request(  # type: ignore[override]
        self,
        message: "SendableMessage" = None,
        topic: str = "",
        *,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        timeout: float = REQUEST_TIMEOUT_S,  # noqa: ASYNC109
    ) -> HalfmqMessage:
        """Publish a request, and return the reply: what a handler returned. ``timeout``: seconds in all.

        Raises:
            halfmq.NoReply: no reply came in time. halfmq.SendTimeout: it may be stored. halfmq.ConnectError, halfmq.RequestFailed,
                halfmq.UsageError: nothing was stored.
        """
        cmd = HalfmqPublishCommand(
            message,
            topic=topic,
            correlation_id=correlation_id or self.config.id_generator(),
            headers=headers,
            timeout=timeout,
            _publish_type=PublishType.REQUEST,
        )
        reply: HalfmqMessage = await self._basic_request(cmd, producer=self.config.producer)
        return reply
