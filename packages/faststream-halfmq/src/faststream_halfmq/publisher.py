"""Publishers: of a topic, and of the replies to requests."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from faststream._internal.configs import PublisherSpecificationConfig, PublisherUsecaseConfig
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream.response.publish_type import PublishType
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message as MessageSpec
from faststream.specification.schema import Operation, PublisherSpec

from faststream_halfmq.config import HalfmqBrokerConfig
from faststream_halfmq.logs import log
from faststream_halfmq.message import HalfmqMessage
from faststream_halfmq.producer import Encoder, HalfmqProducer
from faststream_halfmq.response import REQUEST_TIMEOUT_S, HalfmqPublishCommand
from halfmq import HalfmqError, Message, Receipt

if TYPE_CHECKING:
    from faststream._internal.basic_types import SendableMessage
    from faststream._internal.types import PublisherMiddleware
    from faststream.response.response import PublishCommand
    from sqlalchemy.ext.asyncio import AsyncSession

    from halfmq.sql import MarkerTable


@dataclass(kw_only=True)
class HalfmqPublisherSpecificationConfig(PublisherSpecificationConfig):
    topic: str


@dataclass(kw_only=True)
class HalfmqPublisherConfig(PublisherUsecaseConfig):
    _outer_config: HalfmqBrokerConfig

    topic: str
    tag: str | None
    headers: dict[str, str]


class HalfmqPublisherSpecification(PublisherSpecification[HalfmqBrokerConfig, HalfmqPublisherSpecificationConfig]):
    """What AsyncAPI says of a publisher. AsyncAPI has no binding of RocketMQ's protocol that FastStream could write."""

    @property
    def topic(self) -> str:
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def name(self) -> str:
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        return {
            self.name: PublisherSpec(
                address=self.topic,
                description=self.config.description_,
                operation=Operation(message=MessageSpec(title=f"{self.name}:Message", payload=payload), bindings=None),
                bindings=None,
            )
        }


class HalfmqPublisher(PublisherUsecase):
    """Publishes to one topic: what a decorated handler returns, or with ``publish``."""

    _outer_config: HalfmqBrokerConfig

    def __init__(self, config: HalfmqPublisherConfig, specification: PublisherSpecification[Any, Any]) -> None:
        super().__init__(config, specification)
        self._topic = config.topic
        self.tag = config.tag
        self.headers = config.headers

    @property
    def topic(self) -> str:
        """With the prefix of its router."""
        return f"{self._outer_config.prefix}{self._topic}"

    async def publish(
        self,
        message: "SendableMessage",
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
        """Publish ``message`` to the topic. Arguments and what it raises: as for ``HalfmqBroker.publish``."""
        cmd = HalfmqPublishCommand(
            message,
            topic=topic or self.topic,
            correlation_id=correlation_id or self._outer_config.id_generator(),
            headers=self.headers | (headers or {}),
            message={
                "tag": tag or self.tag, "key": key, "keys": keys, "sharding_key": sharding_key, "delay": delay,
            },
            session=session,
            markers=markers,
            timeout=timeout,
            _publish_type=PublishType.PUBLISH,
        )  # fmt: skip
        receipt: Receipt | None = await self._basic_publish(
            cmd, producer=self._outer_config.producer, _extra_middlewares=()
        )
        return receipt

    async def _publish(
        self, cmd: "PublishCommand | HalfmqPublishCommand", *, _extra_middlewares: "Iterable[PublisherMiddleware]"
    ) -> None:
        """What a handler returned."""
        ours = HalfmqPublishCommand.from_cmd(cmd)
        ours.destination = self.topic
        ours.add_headers(self.headers, override=False)
        ours.message = {**ours.message, "tag": ours.message.get("tag") or self.tag}
        await self._basic_publish(ours, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares)

    async def request(
        self,
        message: "SendableMessage",
        topic: str = "",
        *,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        timeout: float = REQUEST_TIMEOUT_S,  # noqa: ASYNC109
    ) -> HalfmqMessage:
        """Send a request and return its reply; see ``HalfmqBroker.request``."""
        cmd = HalfmqPublishCommand(
            message,
            topic=topic or self.topic,
            correlation_id=correlation_id or self._outer_config.id_generator(),
            headers=self.headers | (headers or {}),
            message={"tag": self.tag},
            timeout=timeout,
            _publish_type=PublishType.REQUEST,
        )
        reply: HalfmqMessage = await self._basic_request(cmd, producer=self._outer_config.producer)
        return reply


class _Replies:
    """The producer of the reply to one request."""

    def __init__(self, request: Message, producer: HalfmqProducer) -> None:
        self._request = request
        self._encoder: Encoder = producer.encoder

    async def publish(self, cmd: HalfmqPublishCommand) -> None:
        """Logs what prevents the reply: who repeats the handler because of it would repeat what it has done."""
        encoded, _ = await self._encoder.arguments(cmd, cmd.body)
        try:
            await self._request.reply(encoded)
        except HalfmqError as error:
            log.warning("%r is handled, and its reply was not sent: %s", self._request, error)


class ReplyPublisher(FakePublisher):
    """Publishes what a handler returned to whoever waits for it."""

    def __init__(self, request: Message, producer: HalfmqProducer) -> None:
        super().__init__(producer=_Replies(request, producer))  # type: ignore[arg-type]  # of a producer it uses ``publish``

    def patch_command(self, cmd: "PublishCommand") -> HalfmqPublishCommand:
        return HalfmqPublishCommand.from_cmd(super().patch_command(cmd))


def create_publisher(
    *,
    topic: str,
    tag: str | None,
    headers: dict[str, str] | None,
    config: HalfmqBrokerConfig,
    schema: Any,
    title: str | None,
    description: str | None,
    include_in_schema: bool,
) -> HalfmqPublisher:
    specification = HalfmqPublisherSpecification(
        config,
        HalfmqPublisherSpecificationConfig(
            topic=topic,
            schema_=schema,
            title_=title,
            description_=description,
            include_in_schema=include_in_schema,
        ),
    )
    return HalfmqPublisher(
        HalfmqPublisherConfig(_outer_config=config, topic=topic, tag=tag, headers=headers or {}), specification
    )
