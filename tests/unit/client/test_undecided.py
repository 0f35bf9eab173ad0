"""What is undecided is asked of every broker, and said only when every one answered."""

import json
from typing import Any

import pytest
from tests.support.scripted_broker import Peer, ScriptedBroker, client_of
from tests.support.virtual_time import in_virtual_time

from halfmq.errors import ConnectError, RequestFailed, UnsupportedCombination
from halfmq.wire.remoting.codes import HMQ_UNDECIDED
from halfmq.wire.remoting.header import Request, encode_response


def told(peer: Peer, request: Request[Any]) -> bytes:
    ids = json.loads(bytes(request.body))
    return encode_response(request, 0, body=json.dumps([tx_id for tx_id in ids if tx_id.endswith("0")]).encode())


@in_virtual_time
async def test_ids_are_asked_in_portions() -> None:
    broker = ScriptedBroker()
    broker.on[HMQ_UNDECIDED] = told
    async with client_of(broker.network()) as mq:
        found = await mq.undecided([f"T-{number}" for number in range(2_500)])
    assert found == {f"T-{number}" for number in range(0, 2_500, 10)}
    assert [len(json.loads(bytes(one.body))) for one in broker.requests(HMQ_UNDECIDED)] == [1_000, 1_000, 500]


@in_virtual_time
async def test_question_that_got_no_answer_is_asked_again() -> None:
    broker = ScriptedBroker()

    def lose_first(peer: Peer, request: Request[Any]) -> None:
        broker.on[HMQ_UNDECIDED] = told
        peer.cut()

    broker.on[HMQ_UNDECIDED] = lose_first
    async with client_of(broker.network()) as mq:
        assert await mq.undecided(["T-10", "T-11"]) == {"T-10"}


@in_virtual_time
async def test_nothing_is_said_when_a_broker_does_not_answer_or_refuses() -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        broker.on[HMQ_UNDECIDED] = lambda _, request: encode_response(request, 3, "not supported")
        with pytest.raises(RequestFailed):
            await mq.undecided(["T-1"])
        broker.on[HMQ_UNDECIDED] = lambda _, __: None
        with pytest.raises(ConnectError):
            await mq.undecided(["T-1"])


@in_virtual_time
async def test_stock_broker_is_not_asked() -> None:
    broker = ScriptedBroker(halfmq=False)
    async with client_of(broker.network()) as mq:
        with pytest.raises(UnsupportedCombination, match="15 checks"):
            await mq.undecided(["T-1"])
    assert broker.requests(HMQ_UNDECIDED) == []
