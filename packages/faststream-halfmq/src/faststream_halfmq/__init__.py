"""A FastStream broker for halfmq and Apache RocketMQ."""

from faststream_halfmq.broker import HalfmqBroker
from faststream_halfmq.message import HalfmqMessage
from faststream_halfmq.publisher import HalfmqPublisher
from faststream_halfmq.response import HalfmqPublishCommand, HalfmqResponse
from faststream_halfmq.router import HalfmqPublisherArgs, HalfmqRoute, HalfmqRouter
from faststream_halfmq.subscriber import HalfmqSubscriber
from faststream_halfmq.testing import TestHalfmqBroker

__version__ = "0.1.0"

__all__ = [
    "HalfmqBroker",
    "HalfmqMessage",
    "HalfmqPublishCommand",
    "HalfmqPublisher",
    "HalfmqPublisherArgs",
    "HalfmqResponse",
    "HalfmqRoute",
    "HalfmqRouter",
    "HalfmqSubscriber",
    "TestHalfmqBroker",
]
