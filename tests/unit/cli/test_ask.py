"""One question, one answer, and a different error for each way in which there is none."""

import socket
import threading
from collections.abc import Callable

import pytest

from halfmq.cli.requests import AT_ONCE_MAX, ask, ask_each
from halfmq.errors import ConnectError, ProtocolError, RequestFailed, SendTimeout
from halfmq.model.address import Address, ServerUrl
from halfmq.wire.remoting.frame import FrameSplitter
from halfmq.wire.remoting.header import decode, encode_request, encode_response


def asked_of(behave: Callable[[socket.socket, bytes], None]) -> None:
    """Ask a server that answers each frame by ``behave(connection, frame)``."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                behave(connection, connection.recv(65_536)[4:])

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            answer = ask(ServerUrl((Address(*listener.getsockname()),)), 29_003, {"txId": "T"}, 0.5)
            assert (answer.code, answer.remark) == (22, "why not")
        finally:
            thread.join()


def test_answer_comes_whatever_its_code_and_in_pieces() -> None:
    def behave(connection: socket.socket, frame: bytes) -> None:
        data = encode_response(decode(frame), 22, "why not")
        connection.sendall(data[:7])
        connection.sendall(data[7:])

    asked_of(behave)


def test_nobody_there_is_not_asked() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectError):
        ask(ServerUrl((Address("127.0.0.1", port),)), 1, {}, 0.5)


def test_silence_and_a_lost_connection_leave_the_outcome_open() -> None:
    for behave in (lambda connection, frame: connection.recv(1), lambda connection, frame: None):
        with pytest.raises(SendTimeout):
            asked_of(behave)


def test_server_that_does_not_know_the_command_is_named() -> None:
    with pytest.raises(RequestFailed, match="not a halfmq broker"):
        asked_of(lambda connection, frame: connection.sendall(encode_response(decode(frame), 3, "not supported")))


def test_something_else_than_an_answer_is_no_answer() -> None:
    with pytest.raises(ProtocolError):
        asked_of(lambda connection, frame: connection.sendall(encode_request(40, 1, {})))


def test_many_questions_go_over_one_connection_and_answers_come_in_their_order() -> None:
    """The server answers in pairs, the second one first."""
    connections = 0
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            nonlocal connections
            connection, _ = listener.accept()
            connections += 1
            splitter = FrameSplitter()
            held: list[bytes] = []
            with connection:
                while data := connection.recv(65_536):
                    for frame in splitter.feed(data):
                        request = decode(frame)
                        held.append(encode_response(request, 0, ext={"of": request.ext["txId"]}))
                        if len(held) == 2:
                            connection.sendall(held[1] + held[0])
                            held.clear()

        thread = threading.Thread(target=serve)
        thread.start()
        count = 3 * AT_ONCE_MAX
        exts = [{"txId": str(number)} for number in range(count)]
        answers = list(ask_each(ServerUrl((Address(*listener.getsockname()),)), 29_004, exts, 5))
        thread.join()
    assert [answer.ext["of"] for answer in answers] == [str(number) for number in range(count)]
    assert connections == 1
