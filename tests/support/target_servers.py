"""The targets of the relay, for ``tests/conftest.py``: each server is started once, for all folders that a process tests.

A fixture that two conftest.py import is two, and starts two servers, which both run until the end. What only they need is imported when
they are used.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.kafka import kafka_broker
from tests.support.rabbitmq import rabbitmq_server

if TYPE_CHECKING:
    from tests.unit.relay.targets import Kafka, Rabbit, Rocket

__all__ = ["kafka", "kafka_broker", "rabbit", "rabbitmq_server", "rocket_target"]


@pytest.fixture(scope="session")
def rabbit(request: pytest.FixtureRequest) -> "Rabbit":
    from tests.unit.relay.targets import Rabbit

    return Rabbit(request.getfixturevalue("rabbitmq_server"))


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest) -> "Kafka":
    from tests.unit.relay.targets import Kafka

    return Kafka(request.getfixturevalue("kafka_broker"))


@pytest.fixture(scope="session")
def rocket_target(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Rocket]":
    from tests.unit.relay.targets import Rocket, rocket

    with rocket(tmp_path_factory.mktemp("rocketmq")) as stock:
        yield Rocket(stock)
