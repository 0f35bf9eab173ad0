"""Real servers for the targets of the relay, each started once."""

from collections.abc import Iterator

import pytest
from tests.support.jvm import QUICK
from tests.support.kafka import kafka_broker
from tests.support.rabbitmq import rabbitmq_server
from tests.unit.relay.targets import TARGETS, Kafka, Rabbit, Rocket, Target, rocket

__all__ = ["kafka_broker", "rabbitmq_server"]


@pytest.fixture(scope="session")
def rabbit(request: pytest.FixtureRequest) -> Rabbit:
    return Rabbit(request.getfixturevalue("rabbitmq_server"))


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest) -> Kafka:
    return Kafka(request.getfixturevalue("kafka_broker"))


@pytest.fixture(scope="session")
def rocket_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rocket]:
    with rocket(tmp_path_factory.mktemp("rocketmq"), *QUICK) as stock:
        yield Rocket(stock)


@pytest.fixture(scope="session", params=TARGETS)
def target(request: pytest.FixtureRequest) -> Target:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]
