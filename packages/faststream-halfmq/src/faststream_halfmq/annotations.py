"""Annotations for the parameters of handlers, which FastStream fills."""

from typing import Annotated

from faststream._internal.context import Context
from faststream.annotations import ContextRepo, Logger
from faststream.params import NoCast

from faststream_halfmq.broker import HalfmqBroker as _Broker
from faststream_halfmq.message import HalfmqMessage as _Message
from halfmq import AsyncClient

__all__ = ("Client", "ContextRepo", "HalfmqBroker", "HalfmqMessage", "Logger", "NoCast")

HalfmqMessage = Annotated[_Message, Context("message")]
HalfmqBroker = Annotated[_Broker, Context("broker")]
Client = Annotated[AsyncClient, Context("broker.client")]
