"""What a broker tells its subscribers, publishers and routers."""

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from faststream._internal.configs import BrokerConfig, UnderlyingDriverAnnotation, UnderlyingDriverAnnotations
from faststream._internal.constants import EMPTY
from faststream.middlewares import AckPolicy

from halfmq import AsyncClient, Message, UsageError

if TYPE_CHECKING:
    from halfmq.sql import MarkerTable


def _annotations() -> UnderlyingDriverAnnotations:
    # Here, since the annotations import the broker, and that this module.
    from faststream_halfmq import annotations
    from faststream_halfmq.broker import HalfmqBroker
    from faststream_halfmq.message import HalfmqMessage

    return MappingProxyType(
        {
            driver: UnderlyingDriverAnnotation(
                type_hint=getattr(annotations, name), module="faststream_halfmq.annotations", name=name
            )
            for driver, name in (
                (HalfmqBroker, "HalfmqBroker"),
                (HalfmqMessage, "HalfmqMessage"),
                (Message, "HalfmqMessage"),
                (AsyncClient, "Client"),
            )
        }
    )


def checked_ack_policy(value: object) -> None:
    """Raises UsageError if ``value`` is neither an ``AckPolicy`` nor left out."""
    if value is not EMPTY and not isinstance(value, AckPolicy):
        raise UsageError(f"ack_policy={value!r} is no AckPolicy", hint="ack_policy=AckPolicy.NACK_ON_ERROR")


@dataclass(kw_only=True)
class HalfmqBrokerConfig(BrokerConfig):
    """``group``: the producer group, and the consumer group of subscribers without one.
    ``client``: None in a router that is in no broker. ``markers``: those of ``HalfmqBroker.answer_checks``."""

    group: str = ""
    client: AsyncClient | None = None
    markers: "list[MarkerTable]" = field(default_factory=list)
    default_driver_annotations: UnderlyingDriverAnnotations = field(default_factory=_annotations)

    def __post_init__(self) -> None:
        checked_ack_policy(self.ack_policy)
