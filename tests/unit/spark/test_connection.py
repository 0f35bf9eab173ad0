"""One blocking connection."""

from collections.abc import Iterator

import pytest
from tests.support.ports import free_port
from tests.support.scripted_server import ScriptedServer

from halfmq.spark import connection
from halfmq.spark.connection import Connection
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


def test_several_requests_on_the_way_and_one_that_is_asked_meanwhile(server: ScriptedServer) -> None:
    made = Connection.open(("127.0.0.1", server.port))
    numbers = [made.send(code, {}, b"body") for code in (1, 2)]
    assert made.ask(3, {}).ext == {"said": "3"}
    answers = [made.receive(), made.receive()]
    assert [(answer.opaque, answer.ext["said"]) for answer in answers] == [(numbers[0], "1"), (numbers[1], "2")]
    assert [bytes(request.body) for request in server.requests] == [b"body", b"body", b""]
    assert made.local_host[0] == "127.0.0.1"
    made.close()
