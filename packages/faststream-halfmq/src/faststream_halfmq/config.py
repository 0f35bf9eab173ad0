"""What a broker tells its subscribers, publishers and routers."""

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from faststream._internal.configs import BrokerConfig, UnderlyingDriverAnnotation, UnderlyingDriverAnnotations

from halfmq import AsyncClient, Message

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


@dataclass(kw_only=True)
class HalfmqBrokerConfig(BrokerConfig):
    """``group``: the producer group, and the consumer group of subscribers without one.
    ``client``: None in a router that is in no broker. ``markers``: those of ``HalfmqBroker.answer_checks``."""

    group: str = ""
    client: AsyncClient | None = None
    markers: "list[MarkerTable]" = field(default_factory=list)
    default_driver_annotations: UnderlyingDriverAnnotations = field(default_factory=_annotations)
