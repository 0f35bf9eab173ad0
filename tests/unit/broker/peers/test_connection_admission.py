"""Who gets a place: the rule alone, then an operator who comes while a flood holds everything."""

from pathlib import Path

import pytest
from tests.support.in_process import Calls, Running, serving
from tests.support.raw_client import RawClient, send_ext
from tests.support.waiting import soon, until

from halfmq import limits
from halfmq.broker.peers.connection_admission import ConnectionAdmission, Refusal, network_of
from halfmq.broker.remoting.gateway import Gateway

LIST, SEND, ROUTE = 29_002, 310, 105
FLOOD, OTHER = "10.0.0.1", "10.0.0.2"


def test_one_address_has_three_quarters_of_all_and_others_the_rest() -> None:
    places = ConnectionAdmission(1_000)
    number = 0
    while places.refusal(FLOOD) is None:
        number += 1
        places.take(number, FLOOD)
    assert number == 750
    assert places.refusal(FLOOD) is Refusal.ADDRESS
    while places.refusal(OTHER) is None:
        number += 1
        places.take(number, OTHER)
    assert number == 1_000 - limits.OPERATOR_PLACES
    assert places.refusal("10.0.0.3") is Refusal.ALL
    places.free(1)
    assert places.refusal("10.0.0.3") is None
    assert places.refusal(FLOOD) is None


def test_what_an_address_may_have_can_be_said() -> None:
    places = ConnectionAdmission(1_000, 2)
    places.take(1, FLOOD)
    places.take(2, FLOOD)
    assert places.refusal(FLOOD) is Refusal.ADDRESS
    places.free(2)
    places.free(2)
    assert places.refusal(FLOOD) is None


def test_an_ipv6_address_is_its_network_of_64_bits() -> None:
    assert network_of("2001:db8:1:2:3:4:5:6") == network_of("2001:db8:1:2:ffff::") != network_of("2001:db8:1:3::1")
    assert network_of("fe80::1%eth0") == network_of("fe80::2%eth1")
    assert network_of("10.0.0.1") == "10.0.0.1"
    assert network_of("a:name") == "a:name"


def test_operators_places_are_held_against_who_asks_by_nobody_who_does_not() -> None:
    places = ConnectionAdmission(8)
    assert places.operators_place() == 0
    places.take_operators(1, FLOOD)
    assert places.operators_place() == 0
    places.take_operators(2, FLOOD)
    assert places.may_ask(1, of_clients=False)
    assert places.operators_place() == 2, "it has asked nothing"
    assert places.may_ask(2, of_clients=False)
    assert places.operators_place() == 1, "its question is older"
    assert places.may_ask(1, of_clients=False)
    assert places.operators_place() == 2
    places.free(2)
    assert places.operators_place() == 0


def test_who_has_just_come_has_a_moment_to_ask_while_others_come_who_all_ask() -> None:
    places = ConnectionAdmission(64)
    for number in range(1, 17):
        places.take_operators(number, FLOOD)
        assert places.may_ask(number, of_clients=False)
    for number in (17, *range(18, 25)):
        evicted = places.operators_place()
        assert evicted == number - 16, "the oldest question goes, not who came last"
        places.free(evicted)
        places.take_operators(number, OTHER)
    assert places.operators_place() == 17, "but who asks nothing goes once half of the places are taken by such"


def test_where_there_are_hardly_any_places_none_is_for_operators() -> None:
    assert ConnectionAdmission(3).operators_place() is None


def test_a_clients_work_is_not_done_on_an_operators_place_unless_an_ordinary_one_is_free() -> None:
    places = ConnectionAdmission(8)
    for number in range(1, 7):
        places.take(number, f"10.0.1.{number}")
    places.take_operators(7, OTHER)
    assert not places.may_ask(7, of_clients=True)
    assert places.may_ask(7, of_clients=False)
    assert places.may_ask(1, of_clients=True)
    places.free(3)
    assert places.may_ask(7, of_clients=True)
    assert places.on_operators == 0
    assert places.refusal("10.0.0.3") is Refusal.ALL, "it counts as an ordinary one now"
    places.free(7)
    assert places.refusal("10.0.0.3") is None


@pytest.fixture
def admitted(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch, Gateway, "admit")


async def open_for_good(running: Running, admitted: Calls, count: int) -> list[RawClient]:
    enough = admitted.seen + count
    clients = [await running.client() for _ in range(count)]
    await until(
        lambda: admitted.seen >= enough and len(running.broker._peers.connected) == running.broker._peers.places.taken
    )
    return clients


async def test_an_operator_is_served_while_a_flood_holds_every_place_and_keeps_coming(
    tmp_path: Path, admitted: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    """Everybody from one address, as in a container or behind a proxy."""
    async with serving(tmp_path, connections_max=20) as running:
        ordinary = await open_for_good(running, admitted, 15)
        assert all([(await client.ask(ROUTE, {"topic": "TBW102"})).code == 0 for client in ordinary])
        await open_for_good(running, admitted, 40)
        operator = await running.client()
        assert (await operator.ask(LIST)).code == 0
        assert (await operator.ask(ROUTE, {"topic": "TBW102"})).code == 0
        await open_for_good(running, admitted, 4)
        assert (await operator.ask(LIST)).code == 0, "those that asked nothing went first"
        assert len(running.broker._peers.connected) == 20
        assert not any(client.closed.is_set() for client in ordinary)

        producer = await running.client()
        answer = await producer.ask(SEND, send_ext("T", "P", 0, {}), b"x")
        assert (answer.code, "for operators" in (answer.remark or "")) == (2, True)
        assert "are taken, 15 of 20 by 127.0.0.1 (--connections-max" in (answer.remark or ""), "who has them"
        await soon(producer.closed.wait())
        assert not running.state.topics_by_name

        said = "are taken, 15 of 20 by 127.0.0.1: further ones may only send operators' commands"
        assert [text for text in caplog.messages if said in text], "and the log says so"

        for client in ordinary:
            await client.close()
        await until(lambda: running.broker._peers.places.refusal("127.0.0.1") is None)
        assert (await operator.ask(SEND, send_ext("T", "P", 0, {}), b"x")).code == 0, "there is room for clients again"


async def test_one_address_leaves_places_for_others(tmp_path: Path, admitted: Calls) -> None:
    async with serving(tmp_path, connections_max=100, connections_per_address_max=4) as running:
        await open_for_good(running, admitted, 30)
        peers = running.broker._peers
        await until(lambda: len(peers.connected) <= 4 + limits.OPERATOR_PLACES)
        assert peers.places.refusal("127.0.0.1") is Refusal.ADDRESS
        assert peers.places.refusal(OTHER) is None
        await running.close_clients()
        await until(lambda: not peers.connected)
        assert (peers.places._address, peers.places._of_address, peers.places.on_operators) == ({}, {}, 0)
