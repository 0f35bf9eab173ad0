"""A broker is found by its name, wherever it is now."""

import pytest
from tests.support.scripted_broker import BROKER, ScriptedBroker, client_of
from tests.support.virtual_time import in_virtual_time

from halfmq.errors import ConnectError
from halfmq.model.address import Address


@in_virtual_time
async def test_broker_by_name() -> None:
    broker = ScriptedBroker()
    network = broker.network()
    async with client_of(network) as mq:
        context = mq._context
        assert (await context.broker("broker-a")).address == BROKER
        with pytest.raises(ConnectError, match="broker-z"):
            await context.broker("broker-z")
        moved = Address("127.0.0.1", 9)
        network.servers[moved] = broker
        context.router._brokers["broker-a"] = moved  # as a new route would say
        assert context.established("broker-a") is None
        connection = await context.broker("broker-a")
        assert connection.address == moved
        assert context.established("broker-a") is connection
        assert context.established("broker-z") is None


@in_virtual_time
async def test_patience_of_a_call_is_the_clients_unless_said() -> None:
    async with client_of(ScriptedBroker().network(), timeout=7.0, attempt_timeout=2.0) as mq:
        assert mq._context.attempts("x").timeout_s() == 2.0
        assert mq._context.attempts("x", 1.0).timeout_s() == 1.0
