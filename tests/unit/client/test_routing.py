"""Routes are asked once, kept a while, and asked again after trouble; queues are chosen in turn."""

import asyncio
import random

import pytest
from tests.support.scripted_broker import BROKER, NAMES, Network, ScriptedBroker
from tests.support.virtual_time import in_virtual_time

from halfmq.client.connection_pool import ConnectionPool
from halfmq.client.routing import NameServers, Route, Router, Target
from halfmq.errors import ConnectError, TopicNotFound
from halfmq.model.address import Address
from halfmq.model.ids import java_string_hash
from halfmq.wire.remoting.codes import RequestCode


class World:
    def __init__(self) -> None:
        self.server = ScriptedBroker(queues=4)
        self.network: Network = self.server.network()
        self.connection_pool = ConnectionPool(self.network, on_push=lambda *_: None)
        self.router = Router(NameServers([NAMES], self.connection_pool), random.Random(3))

    def asked(self, topic: str) -> int:
        return sum(r.ext.topic == topic for r in self.server.requests(RequestCode.GET_ROUTEINFO_BY_TOPIC))


@in_virtual_time
async def test_route_is_asked_once_and_names_queues_and_brokers() -> None:
    world = World()
    world.server.topics.add("t")
    routes = await asyncio.gather(*(world.router.publish_route("t") for _ in range(5)))
    assert world.asked("t") == 1
    assert [target.queue for target in routes[0].writable] == [0, 1, 2, 3]
    assert routes[0].brokers == {"broker-a": BROKER}
    assert world.router.address_of("broker-a") == BROKER


@in_virtual_time
async def test_topic_that_does_not_exist_is_sent_to_by_the_template() -> None:
    world = World()
    route = await world.router.publish_route("new")
    assert route.guessed
    assert len(route.writable) == 4
    with pytest.raises(TopicNotFound):
        await world.router.route("new")
    world.server.topics.add("new")
    await asyncio.sleep(1.5)
    assert not (await world.router.publish_route("new")).guessed


@in_virtual_time
async def test_without_template_an_unknown_topic_is_not_found() -> None:
    world = World()
    world.server.topics.clear()
    with pytest.raises(TopicNotFound):
        await world.router.publish_route("new")
    await world.router.learn_brokers()  # no error: brokers are learnt from topics in use


@in_virtual_time
async def test_old_route_serves_while_a_new_one_is_fetched_and_while_the_topic_is_forgotten_for_a_moment() -> None:
    world = World()
    world.server.topics.add("t")
    first = await world.router.publish_route("t")
    await asyncio.sleep(31)
    assert await world.router.publish_route("t") is first
    await asyncio.sleep(0.01)
    assert world.asked("t") == 2
    world.server.topics.discard("t")  # the broker restarts: name servers answer 17 for a while
    await asyncio.sleep(31)
    assert (await world.router.publish_route("t")).writable
    await asyncio.sleep(0.01)
    assert (await world.router.publish_route("t")).writable
    await asyncio.sleep(61)
    world.server.topics.clear()
    with pytest.raises(TopicNotFound):
        await world.router.publish_route("t")


@in_virtual_time
async def test_topic_that_its_broker_does_not_know_is_not_found_at_once() -> None:
    world = World()
    world.server.topics.add("t")
    await world.router.route("t")
    world.server.topics.discard("t")
    world.router.forget("t")
    world.router.forget("never seen")
    with pytest.raises(TopicNotFound):
        await world.router.route("t")
    world.server.topics.add("t")
    assert (await world.router.route("t")).readable


@in_virtual_time
async def test_known_route_survives_name_servers_that_do_not_answer() -> None:
    world = World()
    world.server.topics.add("t")
    first = await world.router.route("t")
    world.server.stop()
    await asyncio.sleep(100)
    assert await world.router.route("t") is first
    assert await world.router.publish_route("t") is first
    with pytest.raises(ConnectError):
        await world.router.route("other")


@in_virtual_time
async def test_trouble_asks_again_but_not_in_a_storm() -> None:
    world = World()
    world.server.topics.add("t")
    await world.router.route("t")
    for _ in range(20):
        world.router.mark_stale("t")
    assert world.asked("t") == 1
    await asyncio.sleep(0.6)
    for _ in range(20):
        world.router.mark_stale("t")
    await asyncio.sleep(0.1)
    assert world.asked("t") == 2


@in_virtual_time
async def test_next_name_server_is_asked_when_the_first_does_not_answer() -> None:
    world = World()
    world.server.topics.add("t")
    names = NameServers([Address("dead", 1), NAMES], world.connection_pool)
    router = Router(names, random.Random(1))
    await router.route("t")
    await router.route("TBW102")
    assert world.network.connects.count(Address("dead", 1)) == 1  # stays with the one that answered


def route_of(*brokers: str, queues: int = 2) -> Route:
    writable = tuple(Target(broker, BROKER, number) for broker in brokers for number in range(queues))
    return Route("t", writable, (), {}, False, 0.0)


@in_virtual_time
async def test_queues_take_turns() -> None:
    world = World()
    chosen = [world.router.choose(route_of("a", queues=4)).queue for _ in range(8)]
    assert sorted(chosen) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert chosen[:4] == chosen[4:]


@in_virtual_time
async def test_retry_goes_to_another_broker_or_at_least_another_queue() -> None:
    world = World()
    failed = [Target("a", BROKER, 0)]
    assert {world.router.choose(route_of("a", "b"), failed=failed).broker for _ in range(8)} == {"b"}
    assert {world.router.choose(route_of("a"), failed=failed).queue for _ in range(8)} == {1}
    assert world.router.choose(route_of("a", queues=1), failed=failed).queue == 0


@in_virtual_time
async def test_sharding_key_keeps_its_queue_and_agrees_with_java() -> None:
    world = World()
    route = route_of("a", queues=4)
    for key in ("7", "order-42", "ž"):
        queue = world.router.choose(route, key).queue
        assert queue == abs(java_string_hash(key)) % 4
        assert world.router.choose(route, key, [Target("a", BROKER, queue)]).queue == queue


@in_virtual_time
async def test_topic_without_writable_queue_says_so() -> None:
    world = World()
    with pytest.raises(TopicNotFound, match="no queue to write"):
        world.router.choose(Route("t", (), (), {}, False, 0.0))
