"""``subscriber`` and ``publisher`` of a broker and of its routers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from faststream._internal.broker.registrator import Registrator
from faststream._internal.constants import EMPTY
from faststream.middlewares import AckPolicy

from faststream_halfmq.config import HalfmqBrokerConfig
from faststream_halfmq.publisher import HalfmqPublisher, create_publisher
from faststream_halfmq.subscriber import HalfmqSubscriber, create_subscriber
from halfmq import Message, Retry

if TYPE_CHECKING:
    from fast_depends.dependencies import Dependant
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import BrokerMiddleware, CustomCallable

    from halfmq.integrations import StartFrom


class HalfmqRegistrator(Registrator[Message, HalfmqBrokerConfig]):
    """Collects subscribers and publishers."""

    def subscriber(  # type: ignore[override]
        self,
        topic: str,
        *,
        group: str = "",
        tags: str = "*",
        start: "StartFrom" = "earliest",
        retry: Retry | None = None,
        prefetch: int | None = None,
        max_workers: int = 1,
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        dependencies: "Sequence[Dependant]" = (),
        parser: "CustomCallable | None" = None,
        decoder: "CustomCallable | None" = None,
        codec: "CodecProto | None" = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
    ) -> HalfmqSubscriber:
        """Decorator for a handler of the messages of ``topic``.

        ``group``: the consumer group, whose members divide the messages among them; by default named as the broker's group. ``tags``:
        ``"web || app"`` for messages with one of these tags. ``start``: where a new group begins, ``"earliest"``, ``"latest"`` or a date.
        ``retry``: when a message is delivered again that the handler has failed on, and when it is a dead letter. ``prefetch``: messages
        buffered. ``max_workers``: messages handled at once; those of one sharding key always one after the other.

        ``ack_policy``, by default ``NACK_ON_ERROR``, says what an exception means: deliver again as ``retry`` says; ``REJECT_ON_ERROR``: a
        dead letter; ``ACK``: done; ``ACK_FIRST``: acknowledged before the handler is called; ``MANUAL``: the handler calls ``ack``,
        ``nack`` or ``reject`` before it ends, and without it the message is delivered again. What cannot be decoded into the handler's
        parameters is a dead letter at once, unless the policy acknowledges it.

        The other arguments: as for FastStream's brokers.

        Raises:
            halfmq.UsageError, halfmq.InvalidName: an argument is wrong.
        """
        subscriber = create_subscriber(
            topic=topic,
            group=group,
            tags=tags,
            start=start,
            retry=retry,
            prefetch=prefetch,
            max_workers=max_workers,
            ack_policy=ack_policy,
            no_reply=no_reply,
            config=cast(HalfmqBrokerConfig, self.config),
            title=title,
            description=description,
            include_in_schema=include_in_schema,
        )
        super().subscriber(subscriber, persistent=persistent)
        return subscriber.add_call(
            parser_=parser or self._parser,
            decoder_=decoder or self._decoder,
            codec_=codec,
            dependencies_=dependencies,
        )

    def publisher(  # type: ignore[override]
        self,
        topic: str,
        *,
        tag: str | None = None,
        headers: dict[str, str] | None = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any | None = None,
        include_in_schema: bool = True,
    ) -> HalfmqPublisher:
        """A publisher for ``topic``; as a decorator it publishes what the handler returns. ``tag``, ``headers``: of each of its messages,
        unless others are given. The other arguments: as for FastStream's brokers.
        """
        publisher = create_publisher(
            topic=topic,
            tag=tag,
            headers=headers,
            config=cast(HalfmqBrokerConfig, self.config),
            schema=schema,
            title=title,
            description=description,
            include_in_schema=include_in_schema,
        )
        super().publisher(publisher, persistent=persistent)
        return publisher

    def include_router(
        self,
        router: "Registrator[Message, Any]",
        *,
        prefix: str = "",
        dependencies: "Sequence[Dependant]" = (),
        middlewares: "Sequence[BrokerMiddleware[Message]]" = (),
        include_in_schema: bool | None = None,
    ) -> None:
        """Add the subscribers and publishers of a ``HalfmqRouter``. ``prefix``: before the names of their topics.

        Raises:
            TypeError: it is a router of another broker.
        """
        if not isinstance(router, HalfmqRegistrator):
            raise TypeError(f"a HalfmqBroker includes HalfmqRouters, not {type(router).__name__}")
        super().include_router(
            router,
            prefix=prefix,
            dependencies=dependencies,
            middlewares=middlewares,
            include_in_schema=include_in_schema,
        )
