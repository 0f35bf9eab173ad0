"""Fixtures for pytest, which finds this module by its entry point. Where no test asks for one, nothing of halfmq is loaded or started.

One broker serves all tests of a process, so each worker of pytest-xdist has its own. Before each test that uses it, what earlier ones have
left is forgotten (``Broker.clear``); what its thread raises fails the test that was running.
"""

import sys
from collections.abc import AsyncIterator, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from halfmq.client.async_client import AsyncClient
    from halfmq.client.sync import Client
    from halfmq.testing.broker import Broker
    from halfmq.testing.sent import Sent

_BROKER: Final = pytest.StashKey["Broker"]()
_SENT: Final = pytest.StashKey["Sent"]()
_PREFIX: Final = "halfmq_"


@pytest.fixture(scope="session")
def halfmq_settings() -> dict[str, Any]:
    """Settings of the broker, as for ``halfmq.testing.Broker``. Override it in your conftest."""
    return {}


@pytest.fixture(scope="session")
def halfmq_group() -> str:
    """The producer group of ``halfmq_client`` and ``halfmq_async_client``. Override it in your conftest."""
    return "test"


@pytest.fixture(scope="session")
def halfmq_broker(pytestconfig: pytest.Config, halfmq_settings: dict[str, Any]) -> "Iterator[Broker]":
    """A running ``halfmq.testing.Broker``, for all tests of this process."""
    from halfmq.testing import Broker

    with Broker(**halfmq_settings) as broker:
        pytestconfig.stash[_BROKER] = broker
        try:
            yield broker
        finally:
            del pytestconfig.stash[_BROKER]


@pytest.fixture(scope="session")
def halfmq_url(halfmq_broker: "Broker") -> str:
    """The address of the broker, for clients."""
    return halfmq_broker.url


@pytest.fixture
def halfmq_client(halfmq_url: str, halfmq_group: str) -> "Iterator[Client]":
    """An open ``halfmq.Client``."""
    from halfmq.client.sync import Client

    with Client(halfmq_url, group=halfmq_group) as client:
        yield client


async def halfmq_async_client(halfmq_url: str, halfmq_group: str) -> "AsyncIterator[AsyncClient]":
    """An open ``halfmq.AsyncClient``; needs pytest-asyncio, or anyio's plugin."""
    from halfmq.client.async_client import AsyncClient

    async with AsyncClient(halfmq_url, group=halfmq_group) as client:
        yield client


@pytest.fixture
def halfmq_sent(request: pytest.FixtureRequest, halfmq_broker: "Broker") -> "Sent":
    """``halfmq_sent("topic")``: the messages that became visible since the test began. See ``halfmq.testing.Sent``."""
    from halfmq.testing.sent import Sent

    sent = request.node.stash.get(_SENT, None)
    # None: the broker was started for this test, and all of it counts.
    return Sent(halfmq_broker, {}) if sent is None else sent


def pytest_configure(config: pytest.Config) -> None:
    """Register ``halfmq_async_client`` when all plugins are loaded: pytest-asyncio has a decorator of its own, and anyio takes
    pytest's."""
    asyncio_plugin = sys.modules.get("pytest_asyncio")
    decorate = pytest.fixture if asyncio_plugin is None else asyncio_plugin.fixture
    holder = ModuleType("halfmq.testing.async_fixtures")
    vars(holder)["halfmq_async_client"] = decorate(halfmq_async_client)
    config.pluginmanager.register(holder, holder.__name__)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before the fixtures of the test: forget what earlier tests have left."""
    broker = _broker_of(item)
    if broker is not None:
        if not broker.is_running:
            broker.start()
        broker.clear()
        item.stash[_SENT] = broker.sent()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """After the fixtures of the test."""
    broker = _broker_of(item)
    if broker is not None:
        broker.raise_problems()


def _broker_of(item: pytest.Item) -> "Broker | None":
    """The running broker, if the test uses it."""
    broker = item.config.stash.get(_BROKER, None)
    if broker is None or not any(name.startswith(_PREFIX) for name in getattr(item, "fixturenames", ())):
        return None
    return broker
