"""``HalfmqProducer``: carries out what FastStream publishes."""

from typing import TYPE_CHECKING, Any

from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import CodecProto, DefaultCodec
from faststream._internal.producer import ProducerProto

from faststream_halfmq.message import CONTENT_TYPE, CORRELATION_ID, HalfmqParser
from faststream_halfmq.response import HalfmqPublishCommand
from halfmq import AsyncClient, Message, OutgoingMessage, Receipt, UsageError, compose
from halfmq.integrations import REQUEST_TIMEOUT_S, join_options

if TYPE_CHECKING:
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.types import CustomCallable

    from halfmq.integrations import Sends
    from halfmq.sql import MarkerTable

_JSON = "application/json"


class Encoder:
    """Bodies and properties of messages. ``connect`` tells it the application's serializer and codec."""

    def __init__(self) -> None:
        self.serializer: SerializerProto | None = None
        self.codec: CodecProto = DefaultCodec()

    async def arguments(self, cmd: HalfmqPublishCommand, body: Any) -> tuple[bytes, dict[str, Any]]:
        """The encoded ``body``, and the arguments of ``halfmq.compose`` beside topic and body."""
        encoded, content_type = await self.codec.encode(body, self.serializer)
        if body is None:  # FastStream's empty body is one that brokers reject
            encoded, content_type = b"null", _JSON
        properties = {CONTENT_TYPE: content_type or "", CORRELATION_ID: cmd.correlation_id or "", **cmd.headers}
        return encoded, {**cmd.message, "properties": {name: str(value) for name, value in properties.items() if value}}


class HalfmqProducer(ProducerProto[HalfmqPublishCommand]):
    """Sends with the broker's client."""

    def __init__(
        self,
        client: AsyncClient,
        markers: "list[MarkerTable]",
        parser: "CustomCallable | None" = None,
        decoder: "CustomCallable | None" = None,
    ) -> None:
        """``markers``: the marker tables from which the client answers checks; later ones are added by the broker."""
        default = HalfmqParser()
        self._client = client
        self._markers = markers
        self._parser = ParserComposition(parser, default.parse_message)
        self._decoder = ParserComposition(decoder, default.decode_message)
        self.encoder = Encoder()
        self.codec = self.encoder.codec

    def connect(self, serializer: "SerializerProto | None", codec: CodecProto | None) -> None:
        self.encoder.serializer = serializer
        self.codec = self.encoder.codec = codec or DefaultCodec()

    async def encoded(self, cmd: HalfmqPublishCommand) -> list[OutgoingMessage]:
        """All messages of a command.

        Raises:
            UsageError, InvalidName, MessageTooLarge: an argument is wrong.
        """
        messages = []
        for body in cmd.batch_bodies or (None,):
            encoded, named = await self.encoder.arguments(cmd, body)
            messages.append(compose(cmd.destination, encoded, **named))
        return messages

    async def publish(self, cmd: HalfmqPublishCommand) -> Receipt | None:
        if cmd.session is not None:
            await self._publish_in_session(cmd)
            return None
        (message,) = await self.encoded(cmd)
        return await self._client.send(cmd.destination, message, timeout=cmd.timeout)

    async def publish_batch(self, cmd: HalfmqPublishCommand) -> list[Receipt]:
        return await self._client.send_many(cmd.destination, await self.encoded(cmd), timeout=cmd.timeout)

    async def _publish_in_session(self, cmd: HalfmqPublishCommand) -> None:
        markers = cmd.markers
        if markers is None:
            if len(self._markers) != 1:
                raise UsageError(
                    f"this broker answers checks from {len(self._markers)} marker tables",
                    hint="broker.answer_checks(markers, sessions) at start; with several: publish(..., markers=markers)",
                )
            markers = self._markers[0]
        encoded, named = await self.encoder.arguments(cmd, cmd.body)
        transaction = await self._join(cmd.session, markers, cmd.timeout)
        transaction.send(cmd.destination, encoded, **named)

    async def _join(self, session: Any, markers: "MarkerTable", timeout_s: float | None) -> "Sends":
        """The transaction of ``session``. ``timeout_s``: of the publishing that joins it."""
        return await markers.join_async(self._client, session, **join_options(self._client, markers, timeout_s))

    async def request(self, cmd: HalfmqPublishCommand) -> Message:
        encoded, named = await self.encoder.arguments(cmd, cmd.body)
        timeout_s = REQUEST_TIMEOUT_S if cmd.timeout is None else cmd.timeout
        return await self._client.request(cmd.destination, encoded, timeout=timeout_s, **named)
