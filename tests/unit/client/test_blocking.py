"""Blocking connections, and name servers asked through them."""

from collections.abc import Iterator

import pytest
from tests.support.ports import free_port
from tests.support.scripted_server import ScriptedServer

from halfmq.client import blocking
from halfmq.client.blocking import Connection, Connections, NameServers, Unavailable
from halfmq.errors import ProtocolError
from halfmq.model.address import Address, ServerUrl
from halfmq.wire.remoting.header import encode_response
from halfmq.wire.remoting.route import BrokerData, encode_cluster_info


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    made = ScriptedServer(
        lambda request: encode_response(request, 0, ext={"said": str(request.code)}, body=b"b" * 300_000)
    )
    yield made
    made.close()


def test_a_question_and_its_answer(server: ScriptedServer) -> None:
    made = Connection.open(Address("127.0.0.1", server.port), None)
    for code in (30_000, 30_001):
        answer = made.ask(code, {"number": 7, "yes": True})
        assert (answer.ext, len(answer.body)) == ({"said": str(code)}, 300_000)
    assert [request.ext for request in server.requests] == [{"number": "7", "yes": "true"}] * 2
    made.close()


def test_nobody_listens() -> None:
    with pytest.raises(Unavailable, match="refused"):
        Connection.open(Address("127.0.0.1", free_port()), None)


def test_the_peer_closes_instead_of_answering(server: ScriptedServer) -> None:
    server.answer = lambda request: None
    made = Connection.open(Address("127.0.0.1", server.port), None)
    with pytest.raises(Unavailable, match="closed"):
        made.ask(30_000, {})
    made.close()


def test_no_answer_in_time(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "ANSWER_S", 0.05)
    server.answer = lambda request: b""
    made = Connection.open(Address("127.0.0.1", server.port), None)
    with pytest.raises(Unavailable, match="timed out"):
        made.ask(30_000, {})
    made.close()


def test_several_requests_may_be_in_flight_and_be_received_in_any_order(server: ScriptedServer) -> None:
    made = Connection.open(Address("127.0.0.1", server.port), None)
    opaques = [made.send(code, {}) for code in (1, 2, 3, 4)]
    made.forget(opaques[1])
    assert [made.receive(opaques[n]).ext["said"] for n in (3, 0, 2)] == ["4", "1", "3"]
    assert made.ask(5, {}).ext["said"] == "5"
    assert made.local_host[0] == "127.0.0.1"
    made.close()


def test_a_failed_connection_is_opened_again_by_the_next_request(server: ScriptedServer) -> None:
    connections = Connections(None)
    address = Address("127.0.0.1", server.port)
    sent = connections.send(address, 1, {})
    answer, server.answer = server.answer, lambda request: None
    with pytest.raises(Unavailable):
        connections.ask(address, 2, {})
    assert address not in connections
    with pytest.raises(Unavailable, match="failed"):
        connections.receive(sent)
    server.answer = answer
    assert connections.ask(address, 3, {}).ext["said"] == "3"
    assert address in connections
    connections.close()
    assert address not in connections


def test_a_one_way_request_has_no_response_and_a_response_to_nothing_is_refused(server: ScriptedServer) -> None:
    made = Connection.open(Address("127.0.0.1", server.port), None)
    server.answer = lambda request: b"" if request.is_oneway else encode_response(request, 0)
    made.send(1, {}, oneway=True)
    assert made.ask(2, {}).code == 0
    assert [request.is_oneway for request in server.requests] == [True, False]

    def answer(request):  # type: ignore[no-untyped-def]
        request.opaque += 1
        return encode_response(request, 0)

    server.answer = answer
    with pytest.raises(ProtocolError, match="unexpected response"):
        made.ask(3, {})
    made.close()


def test_an_interrupted_request_closes_its_connection(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of it may have been written: the next request must not follow on the same connection."""
    connections = Connections(None)
    address = Address("127.0.0.1", server.port)
    connections.ask(address, 1, {})

    def interrupted(*given: object, **named: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Connection, "send", interrupted)
        with pytest.raises(KeyboardInterrupt):
            connections.send(address, 2, {})
    assert address not in connections
    assert connections.ask(address, 3, {}).ext["said"] == "3"
    connections.close()


def test_name_servers_are_asked_in_turn_until_one_knows_a_broker() -> None:
    """A name server that was just started answers, and knows no broker yet."""
    brokers = (BrokerData("c", "b", {0: "127.0.0.1:10911"}),)
    silent = free_port()
    empty = ScriptedServer(lambda request: encode_response(request, 0, body=encode_cluster_info((), 500)))
    knowing = ScriptedServer(lambda request: encode_response(request, 0, body=encode_cluster_info(brokers, 500)))
    connections = Connections(None)
    try:
        servers = [Address("127.0.0.1", port) for port in (silent, empty.port, knowing.port)]
        names = NameServers(ServerUrl(tuple(servers)), connections)
        assert str(names) == f"rocketmq://127.0.0.1:{silent};127.0.0.1:{empty.port};127.0.0.1:{knowing.port}"
        for _ in range(2):
            assert names.registered()["b"].master == ("127.0.0.1", 10911)
        assert (len(empty.requests), len(knowing.requests)) == (1, 2)  # who knew last is asked first
        assert NameServers(ServerUrl(tuple(servers[:2])), connections).registered() == {}
    finally:
        connections.close()
        empty.close()
        knowing.close()
