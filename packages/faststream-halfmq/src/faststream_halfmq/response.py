"""What FastStream passes from ``publish`` to the producer, and what a handler may return to say more than a body."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Self

from faststream.response.publish_type import PublishType
from faststream.response.response import BatchPublishCommand, PublishCommand, Response

REQUEST_TIMEOUT_S = 30.0


class HalfmqResponse(Response):
    """A body with what halfmq sends beside it, for the topics of ``@broker.publisher``. Arguments: as for ``HalfmqBroker.publish``."""

    def __init__(
        self,
        body: Any,
        *,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        tag: str | None = None,
        key: object = None,
        keys: Sequence[object] | str = (),
        sharding_key: object = None,
        delay: float | timedelta | None = None,
    ) -> None:
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self._message = {"tag": tag, "key": key, "keys": keys, "sharding_key": sharding_key, "delay": delay}

    def as_publish_command(self) -> "HalfmqPublishCommand":
        return HalfmqPublishCommand(
            self.body,
            headers=self.headers,
            correlation_id=self.correlation_id,
            message=self._message,
            _publish_type=PublishType.PUBLISH,
        )


class HalfmqPublishCommand(BatchPublishCommand):
    """One call of ``publish``, which middlewares may change.

    ``message``: arguments of ``halfmq.compose`` beside topic, body and properties. ``session``, ``markers``: the transaction that it
    belongs to. ``timeout``: seconds.
    """

    def __init__(
        self,
        body: Any,
        /,
        *bodies: Any,
        topic: str = "",
        correlation_id: str | None = None,
        headers: dict[str, Any] | None = None,
        message: dict[str, Any] | None = None,
        session: Any = None,
        markers: Any = None,
        timeout: float | None = None,
        _publish_type: PublishType,
    ) -> None:
        super().__init__(
            body,
            *bodies,
            destination=topic,
            correlation_id=correlation_id,
            headers=headers,
            _publish_type=_publish_type,
        )
        self.message = message or {}
        self.session = session
        self.markers = markers
        self.timeout = timeout

    @classmethod
    def from_cmd(cls, cmd: PublishCommand | Self, *, batch: bool = False) -> Self:
        """``cmd``, with what halfmq has beside it: nothing, if a handler returned an ordinary value."""
        if isinstance(cmd, cls):
            return cmd
        body, bodies = cls._parse_bodies(cmd.body, batch=batch)
        return cls(
            body,
            *bodies,
            topic=cmd.destination,
            correlation_id=cmd.correlation_id,
            headers=cmd.headers,
            _publish_type=cmd.publish_type,
        )
