"""One blocking connection."""

from collections.abc import Iterator

import pytest
from tests.support.ports import free_port
from tests.support.scripted_server import ScriptedServer

from halfmq.spark.network import connection
from halfmq.spark.network.connection import Connection, Connections
from halfmq.spark.retry_deadline import Unavailable
from halfmq.wire.remoting.header import encode_response


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    made = ScriptedServer(
        lambda request: encode_response(request, 0, ext={"said": str(request.code)}, body=b"b" * 300_000)
    )
    yield made
    made.close()


def test_a_question_and_its_answer(server: ScriptedServer) -> None:
    made = Connection.open(("127.0.0.1", server.port))
    for code in (30_000, 30_001):
        answer = made.ask(code, {"number": 7, "yes": True})
        assert (answer.ext, len(answer.body)) == ({"said": str(code)}, 300_000)
    assert [request.ext for request in server.requests] == [{"number": "7", "yes": "true"}] * 2
    made.close()


def test_nobody_listens() -> None:
    with pytest.raises(Unavailable, match="refused"):
        Connection.open(("127.0.0.1", free_port()))


def test_the_peer_closes_instead_of_answering(server: ScriptedServer) -> None:
    server.answer = lambda request: None
    made = Connection.open(("127.0.0.1", server.port))
    with pytest.raises(Unavailable, match="closed"):
        made.ask(30_000, {})
    made.close()


def test_no_answer_in_time(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "ANSWER_S", 0.05)
    server.answer = lambda request: b""
    made = Connection.open(("127.0.0.1", server.port))
    with pytest.raises(Unavailable, match="timed out"):
        made.ask(30_000, {})
    made.close()


def test_several_requests_may_be_in_flight_and_be_received_in_any_order(server: ScriptedServer) -> None:
    made = Connection.open(("127.0.0.1", server.port))
    opaques = [made.send(code, {}) for code in (1, 2, 3, 4)]
    made.forget(opaques[1])
    assert [made.receive(opaques[n]).ext["said"] for n in (3, 0, 2)] == ["4", "1", "3"]
    assert made.ask(5, {}).ext["said"] == "5"
    assert made.local_host[0] == "127.0.0.1"
    made.close()


def test_a_failed_connection_is_opened_again_by_the_next_request(server: ScriptedServer) -> None:
    connections = Connections()
    address = ("127.0.0.1", server.port)
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
