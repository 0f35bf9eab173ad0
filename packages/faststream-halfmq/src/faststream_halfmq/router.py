"""``HalfmqRouter``: subscribers and publishers of a module, which a broker includes."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
from faststream._internal.constants import EMPTY
from faststream.middlewares import AckPolicy

from faststream_halfmq.config import HalfmqBrokerConfig
from faststream_halfmq.registrator import HalfmqRegistrator
from halfmq import Message
from halfmq.integrations import refuse_misspelt

if TYPE_CHECKING:
    from fast_depends.dependencies import Dependant
    from faststream._internal.types import BrokerMiddleware, CustomCallable


class HalfmqPublisherArgs(ArgsContainer):
    """A publisher of a ``HalfmqRoute``; arguments: as for ``HalfmqBroker.publisher``."""

    def __init__(self, topic: str, **named: Any) -> None:
        refuse_misspelt(named, HalfmqRegistrator.publisher, "HalfmqPublisherArgs")
        super().__init__(topic, **named)


class HalfmqRoute(SubscriberRoute):
    """A handler for ``HalfmqRouter(handlers=...)``; arguments behind ``call``: as for ``HalfmqBroker.subscriber``."""

    def __init__(self, call: Any, topic: str, *, publishers: Iterable[HalfmqPublisherArgs] = (), **named: Any) -> None:
        refuse_misspelt(named, HalfmqRegistrator.subscriber, "HalfmqRoute")
        super().__init__(call, topic, publishers=publishers, **named)


class HalfmqRouter(HalfmqRegistrator, BrokerRouter[Message, HalfmqBrokerConfig]):
    """Collects subscribers and publishers; ``broker.include_router(router)`` adds them to a broker.

    ``prefix``: before the names of its topics. The other arguments: as for FastStream's routers.
    """

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[HalfmqRoute] = (),
        *,
        dependencies: "Sequence[Dependant]" = (),
        middlewares: "Sequence[BrokerMiddleware[Any, Any]]" = (),
        routers: Iterable[HalfmqRegistrator] = (),
        parser: "CustomCallable | None" = None,
        decoder: "CustomCallable | None" = None,
        include_in_schema: bool | None = None,
        ack_policy: AckPolicy = EMPTY,
    ) -> None:
        super().__init__(
            handlers=handlers,
            config=HalfmqBrokerConfig(
                prefix=prefix,
                ack_policy=ack_policy,
                broker_dependencies=dependencies,
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                include_in_schema=include_in_schema,
            ),
            routers=routers,
        )
