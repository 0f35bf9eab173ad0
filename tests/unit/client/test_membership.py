"""Heartbeats: the first thing on each connection, and what they say."""

import asyncio
from typing import Any

import pytest
from tests.support.scripted_broker import BROKER, ScriptedBroker, client_of
from tests.support.virtual_time import in_virtual_time

from halfmq.client.connection_pool import ConnectionPool
from halfmq.client.membership import Membership
from halfmq.wire.remoting.codes import RequestCode
from halfmq.wire.remoting.header import encode_response
from halfmq.wire.remoting.heartbeat import ConsumerGroup, Subscription, decode_heartbeat


def consumer(group: str) -> ConsumerGroup:
    subscription = Subscription("t", "a || b", ("a", "b"), 5)
    return ConsumerGroup(group, "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_FIRST_OFFSET", (subscription,))


def test_groups_come_and_go() -> None:
    membership = Membership("me")
    assert membership.is_empty
    assert membership.add_producer("p")
    assert not membership.add_producer("p")
    membership.set_consumer(consumer("c"))
    assert (membership.producers, membership.consumers) == ({"p"}, {"c"})
    membership.remove_consumer("c")
    assert membership.consumers == set()


@in_virtual_time
async def test_heartbeat_is_the_first_request_and_names_the_groups() -> None:
    broker = ScriptedBroker(version=409)
    async with client_of(broker.network()) as client, client.begin() as tx:
        tx.send("t", b"x")
    codes = [request.code for request in broker.seen]
    assert codes[:2] == [RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.HEART_BEAT]
    bodies = [decode_heartbeat(request.body) for request in broker.requests(RequestCode.HEART_BEAT)]
    assert bodies[0].producer_groups == ()  # plain senders are not asked about transactions
    assert bodies[1].producer_groups == ("orders",)
    registered = codes.index(RequestCode.HEART_BEAT, 2)
    assert registered < codes.index(RequestCode.SEND_MESSAGE_V2)  # known before its first half is
    left = broker.requests(RequestCode.UNREGISTER_CLIENT)
    assert [request.ext.producer_group for request in left] == ["orders"]


@in_virtual_time
async def test_groups_that_come_and_go_while_a_connection_is_introduced_are_told_before_it_is_handed_out() -> None:
    broker = ScriptedBroker()

    def late(peer: Any, request: Any) -> bytes | None:
        asyncio.get_running_loop().call_later(0.1, lambda: peer.send(broker.usual(peer, request)))
        return None

    broker.on[RequestCode.HEART_BEAT] = broker.on[RequestCode.UNREGISTER_CLIENT] = late
    membership = Membership("me")
    for group in "abc":
        membership.set_consumer(consumer(group))
    connection_pool = ConnectionPool(broker.network(), on_push=lambda *_: None, introduce=membership.introduce)
    opening = asyncio.ensure_future(connection_pool.get(BROKER))
    await asyncio.sleep(0.05)
    membership.remove_consumer("a")
    await asyncio.sleep(0.1)  # it is being told that "a" was left
    membership.remove_consumer("b")
    membership.set_consumer(consumer("a"))
    membership.set_consumer(consumer("d"))
    membership.add_producer("p")
    await opening
    said: list[object] = []
    for request in broker.seen:
        if request.code == RequestCode.UNREGISTER_CLIENT:
            said.append(f"left {request.ext.consumer_group}")
        else:
            body = decode_heartbeat(request.body)
            said.append((body.producer_groups, tuple(data.group for data in body.consumer_groups)))
    assert said == [
        ((), ("a", "b", "c")), "left a", (("p",), ("a", "c", "d")), "left b", (("p",), ("a", "c", "d")),
    ]  # fmt: skip
    assert connection_pool.established()


@in_virtual_time
async def test_heartbeat_that_waits_until_the_broker_reads_says_what_is_true_then() -> None:
    broker = ScriptedBroker()
    membership = Membership("me")
    membership.set_consumer(consumer("a"))
    connection = await ConnectionPool(broker.network(), on_push=lambda *_: None).get(BROKER)
    connection.pause_writing()
    beating = asyncio.ensure_future(membership.heartbeat(connection))
    await asyncio.sleep(0.1)
    membership.remove_consumer("a")
    connection.resume_writing()
    await beating
    assert [decode_heartbeat(request.body).consumer_groups for request in broker.seen] == [()]


@in_virtual_time
async def test_capability_and_version_are_read_from_the_answer() -> None:
    for halfmq in (True, False):
        broker = ScriptedBroker(halfmq=halfmq)
        async with client_of(broker.network()) as client:
            (connection,) = client._context.brokers.established()
            assert connection.is_halfmq is halfmq
            assert connection.version > 0


@in_virtual_time
async def test_refused_heartbeat_is_reported_and_does_not_stop_the_client() -> None:
    broker = ScriptedBroker()
    broker.on[RequestCode.HEART_BEAT] = lambda _, request: encode_response(request, 1, "no")
    async with client_of(broker.network()) as client:
        assert (await client.send("t", b"x")).status == "SEND_OK"


@in_virtual_time
async def test_a_member_that_subscribes_to_something_else_is_logged_once_if_it_stays_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = ScriptedBroker()
    text = "consumer group g: client me subscribes to a '*', client other subscribes to b '*'"
    answers = [text, text, "", text, text, text]
    lines = []

    def heartbeat(_peer: Any, request: Any) -> bytes:
        ext = {"HMQ_VERSION": "1", "HMQ_CONFLICT": answers.pop(0)}
        return encode_response(request, 0, ext=ext)

    broker.on[RequestCode.HEART_BEAT] = heartbeat
    membership = Membership("me")
    membership.set_consumer(consumer("g"))
    connection_pool = ConnectionPool(broker.network(), on_push=lambda *_: None, introduce=membership.introduce)
    connection = await connection_pool.get(BROKER)
    while answers:
        await membership.heartbeat(connection)
        lines.append(len([line for line in caplog.messages if line.endswith(text)]))
    assert lines == [1, 1, 1, 2, 2]
