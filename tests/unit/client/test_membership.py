"""Heartbeats: the first thing on each connection, and what they say."""

from tests.support.scripted_broker import ScriptedBroker, client_of
from tests.support.virtual_time import run

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


def test_heartbeat_is_the_first_request_and_names_the_groups() -> None:
    async def test() -> None:
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

    run(test())


def test_capability_and_version_are_read_from_the_answer() -> None:
    async def test() -> None:
        for halfmq in (True, False):
            broker = ScriptedBroker(halfmq=halfmq)
            async with client_of(broker.network()) as client:
                (connection,) = client._plumbing.brokers.established()
                assert connection.is_halfmq is halfmq
                assert connection.version > 0

    run(test())


def test_refused_heartbeat_is_reported_and_does_not_stop_the_client() -> None:
    async def test() -> None:
        broker = ScriptedBroker()
        broker.on[RequestCode.HEART_BEAT] = lambda _, request: encode_response(request, 1, "no")
        async with client_of(broker.network()) as client:
            assert (await client.send("t", b"x")).status == "SEND_OK"

    run(test())
