"""One blocking connection whose responses are received in place."""

import threading
from collections.abc import Iterator

import pytest
from tests.support.scripted_server import ScriptedServer
from tests.support.waiting import PATIENCE_S

from halfmq.client import blocking
from halfmq.client.blocking import RawConnection, Unavailable
from halfmq.errors import ProtocolError
from halfmq.model.address import PLAIN, Address
from halfmq.wire.remoting.header import encode_response


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    made = ScriptedServer(
        lambda request: encode_response(
            request, 0, ext={"said": str(request.code)}, body=b"%d" % request.code * 100_000
        )
    )
    yield made
    made.close()


def test_requests_sent_together_are_answered_in_order_in_the_same_memory(server: ScriptedServer) -> None:
    made = RawConnection.open(Address("127.0.0.1", server.port), PLAIN)
    for code in (30_000, 30_001, 7):
        made.send(code, {})
    bodies = []
    for code in (30_000, 30_001, 7):
        assert made.head().ext == {"said": str(code)}
        body = made.body()
        assert body == b"%d" % code * 100_000
        bodies.append(body)
    assert bodies[0].obj is bodies[1].obj is bodies[2].obj
    made.close()


def test_the_header_is_there_before_the_body() -> None:
    released = threading.Event()

    def answer(request):  # type: ignore[no-untyped-def]
        frame = encode_response(request, 0, ext={"a": "b"}, body=b"body")
        if request.code == 1:
            server._streams[0].sendall(frame[:-2])
            assert released.wait(PATIENCE_S)
            return frame[-2:]
        return frame

    server = ScriptedServer(answer)
    made = RawConnection.open(Address("127.0.0.1", server.port), PLAIN)
    made.send(1, {})
    assert made.head().ext == {"a": "b"}
    released.set()
    assert made.body() == b"body"
    made.close()
    server.close()


def test_the_peer_closes_instead_of_answering(server: ScriptedServer) -> None:
    server.answer = lambda request: None
    made = RawConnection.open(Address("127.0.0.1", server.port), PLAIN)
    made.send(1, {})
    with pytest.raises(Unavailable, match="closed"):
        made.head()
    made.close()


def test_no_answer_in_time(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "ANSWER_S", 0.05)
    server.answer = lambda request: b""
    made = RawConnection.open(Address("127.0.0.1", server.port), PLAIN)
    made.send(1, {})
    with pytest.raises(Unavailable, match="timed out"):
        made.head()
    made.close()


@pytest.mark.parametrize(
    "frame", [b"\x7f\xff\xff\xff\x00\x00\x00\x02{}", b"\x00\x00\x00\x08\x00\x00\x00\x09", b"\x00\x00\x00\x00" * 2]
)
def test_what_is_no_response_is_refused(server: ScriptedServer, frame: bytes) -> None:
    server.answer = lambda request: frame
    made = RawConnection.open(Address("127.0.0.1", server.port), PLAIN)
    made.send(1, {})
    with pytest.raises(ProtocolError):
        made.head()
    made.close()


def test_the_response_to_another_request_is_refused(server: ScriptedServer) -> None:
    def answer(request):  # type: ignore[no-untyped-def]
        request.opaque += 1
        return encode_response(request, 0)

    server.answer = answer
    made = RawConnection.open(Address("127.0.0.1", server.port), PLAIN)
    made.send(1, {})
    with pytest.raises(ProtocolError, match="arrived instead of"):
        made.head()
    made.close()
