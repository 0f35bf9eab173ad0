"""How a connection logs in: what each response means, without I/O, and then over both kinds of connections."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.scripted_server import ScriptedServer

from halfmq.client import blocking, connection
from halfmq.client.blocking import Connection as BlockingConnection
from halfmq.client.blocking import Connections, NameServers, RawConnection, Unavailable
from halfmq.client.connection_pool import ConnectionPool
from halfmq.client.connector import TcpConnector
from halfmq.client.credentials import credentials_of
from halfmq.client.login import PROBE, Steps, log_in, own_nonce
from halfmq.errors import ConnectError, HalfmqError, LoginFailed, ProtocolError
from halfmq.model.address import Address, Security, parse_url
from halfmq.wire.remoting.acl import EXT_SIGNATURE, EXT_USER, signature
from halfmq.wire.remoting.codes import HMQ_LOGIN, LANGUAGE_OURS, ResponseCode
from halfmq.wire.remoting.header import Request, encode_response
from halfmq.wire.remoting.users import NO_USERS, client_proof, is_proof, server_proof

HERE = Address("broker", 10911)
USER = "shop"
SECRET = "a secret of 32 characters, or so"
SERVER_NONCE = "5e" * 32


def answer(
    code: int = 0, remark: str | None = None, language: str = LANGUAGE_OURS, **ext: str
) -> Request[dict[str, str]]:
    return Request(code=code, ext=ext, flag=1, language=language, opaque=1, remark=remark)


def begun(nonces: Iterator[str] | None = None) -> Steps:
    steps = log_in(HERE, USER, SECRET.encode(), own_nonce if nonces is None else lambda: next(nonces))
    assert next(steps) == {"user": USER}
    return steps


def over(steps: Steps, last: Request[Any] | None) -> bool:
    """Whether requests are signed after the last response."""
    with pytest.raises(StopIteration) as end:
        steps.send(last)
    assert end.value.value in (True, False)
    return bool(end.value.value)


def proven(fields: dict[str, str], secret: str = SECRET, server_nonce: str = SERVER_NONCE) -> Request[dict[str, str]]:
    """What a server that knows the secret responds to the second request."""
    expected = client_proof(USER, secret.encode(), server_nonce, fields["nonce"])
    assert is_proof(fields["proof"], expected)
    return answer(proof=server_proof(USER, secret.encode(), server_nonce, fields["nonce"]))


def test_both_prove_that_they_know_the_secret_and_nothing_is_signed() -> None:
    steps = begun()
    fields = steps.send(answer(nonce=SERVER_NONCE))
    assert fields.keys() == {"user", "nonce", "proof"}
    assert SECRET not in "".join(fields.values())
    assert not over(steps, proven(fields))


def test_every_login_has_a_nonce_of_its_own() -> None:
    nonces = {begun().send(answer(nonce=SERVER_NONCE))["nonce"] for _ in range(100)}
    assert len(nonces) == 100
    assert {len(bytes.fromhex(nonce)) for nonce in nonces} == {32}


@pytest.mark.parametrize(
    "proof",
    [
        "",
        "00" * 32,
        server_proof(USER, b"another secret", SERVER_NONCE, "mine"),
        server_proof("other", SECRET.encode(), SERVER_NONCE, "mine"),
        server_proof(USER, SECRET.encode(), SERVER_NONCE, "of an earlier login"),
        client_proof(USER, SECRET.encode(), SERVER_NONCE, "mine"),
    ],
    ids=["none", "zeros", "another secret", "another user", "an earlier login", "the client's own"],
)
def test_a_server_that_does_not_know_the_secret_is_not_trusted(proof: str) -> None:
    steps = begun(iter(["mine"]))
    steps.send(answer(nonce=SERVER_NONCE))
    with pytest.raises(
        LoginFailed, match="broker:10911 did not prove that it knows the secret of user 'shop'"
    ) as raised:
        steps.send(answer(proof=proof))
    assert not raised.value.retriable
    assert SECRET not in str(raised.value)


def test_a_refused_user_is_named_with_the_server_and_what_to_do() -> None:
    steps = begun()
    steps.send(answer(nonce=SERVER_NONCE))
    with pytest.raises(LoginFailed) as raised:
        steps.send(answer(16, "no such user, or another secret"))
    assert str(raised.value).startswith(
        "broker:10911 does not accept user 'shop': no such user, or another secret (code 16) ("
    )
    assert "`halfmq user rotate`" in str(raised.value)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("code", [16, 29])
def test_refused_before_the_nonce(code: int) -> None:
    with pytest.raises(LoginFailed, match=rf"user 'shop': no reason given \(code {code}\)"):
        begun().send(answer(code))


@pytest.mark.parametrize("code", [2, 14, 215, 1500, 1])
def test_a_server_that_takes_no_logins_at_the_moment_may_be_tried_again(code: int) -> None:
    before, after = begun(), begun()
    after.send(answer(nonce=SERVER_NONCE))
    for steps in (before, after):
        with pytest.raises(ConnectError, match=f"at the moment.*code {code}") as raised:
            steps.send(answer(code))
        assert raised.value.retriable


def test_without_users_nothing_is_signed() -> None:
    assert not over(begun(), answer(2, f"{NO_USERS}: everybody may do everything"))


@pytest.mark.parametrize(
    "first",
    [
        answer(3, "request type 29027 not supported", "JAVA"),
        answer(3, "an earlier version"),
        answer(1, "org.apache.rocketmq.acl.common.AclException: No accessKey is configured", "JAVA"),
        answer(16, "ACL failed", "JAVA"),
        answer(2, "busy", "JAVA"),
        None,
    ],
    ids=["unknown", "an earlier halfmq", "4.9", "5.x", "busy", "silent"],
)
def test_to_rocketmq_each_request_is_signed(first: Request[Any] | None) -> None:
    assert over(begun(), first)


def test_what_is_no_response_to_a_login() -> None:
    with pytest.raises(ProtocolError, match="without a nonce"):
        begun().send(answer())
    steps = begun()
    steps.send(answer(nonce=SERVER_NONCE))
    with pytest.raises(ProtocolError, match="did not answer"):
        steps.send(None)


# --- over connections ------------------------------------------------------------------------------------------------


class Server:
    """Knows USER by ``secrets``, and answers other requests of a connection that logged in, or signed ones if ``is_rocketmq``."""

    def __init__(self, *secrets: str) -> None:
        self.secrets = list(secrets or (SECRET,))
        self.knows_secret = True
        self.nonces = 0
        #: Response to the first HMQ_LOGIN instead of a nonce: its code, b"" for none, None to close.
        self.first: int | bytes | None = 0
        self.server = ScriptedServer(self._answer)
        self.address = Address("127.0.0.1", self.server.port)

    def _answer(self, request: Request[Any]) -> bytes | None:
        if request.code != HMQ_LOGIN:
            return encode_response(request, 0, ext={"said": str(request.code)}, body=b"body")
        assert EXT_SIGNATURE not in request.ext
        if "proof" not in request.ext:
            if not isinstance(self.first, int):
                return self.first
            self.nonces += 1
            return encode_response(request, self.first, NO_USERS, {"nonce": self._nonce()})
        for secret in self.secrets:
            key, nonces = secret.encode(), (self._nonce(), request.ext["nonce"])
            if is_proof(request.ext["proof"], client_proof(request.ext["user"], key, *nonces)):
                proof = server_proof(USER, key if self.knows_secret else b"not it", *nonces)
                return encode_response(request, 0, ext={"proof": proof})
        # As the broker does: the connection is closed after the response.
        self.server.last_words = encode_response(request, ResponseCode.NO_PERMISSION, "not accepted")
        return None

    def _nonce(self) -> str:
        return f"{self.nonces:064x}"

    @property
    def codes(self) -> list[int]:
        return [request.code for request in self.server.requests]


Ask = Callable[[Address, Security, int], Request[Any]]


def ask_blocking(address: Address, security: Security, code: int) -> Request[Any]:
    made = BlockingConnection.open(address, security, 5.0)
    try:
        return made.ask(code, {"a": "b"})
    finally:
        made.close()


def ask_raw(address: Address, security: Security, code: int) -> Request[Any]:
    made = RawConnection.open(address, security, 5.0)
    try:
        made.send(code, {"a": "b"})
        head = made.head()
        assert made.body() == b"body"
        return head
    finally:
        made.close()


def ask_async(address: Address, security: Security, code: int) -> Request[Any]:
    async def ask() -> Request[Any]:
        pool = ConnectionPool(
            TcpConnector(None), on_push=lambda *_: None, connect_timeout_s=5.0, credentials=credentials_of(security)
        )
        try:
            return await (await pool.get(address)).request(code, {"a": "b"})
        finally:
            pool.close()

    return asyncio.run(ask())


@pytest.fixture(params=[ask_blocking, ask_raw, ask_async])
def ask(request: pytest.FixtureRequest) -> Ask:
    made: Ask = request.param
    return made


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.server.close()


@contextmanager
def secret_file(directory: Path, secret: str = SECRET) -> Iterator[Security]:
    file = directory / "secret"
    file.write_text(f"{secret}\n")
    yield Security(user=USER, secretfile=str(file))


@pytest.fixture
def security(tmp_path: Path) -> Iterator[Security]:
    with secret_file(tmp_path) as made:
        yield made


def test_a_connection_logs_in_once_and_then_signs_nothing(ask: Ask, server: Server, security: Security) -> None:
    assert ask(server.address, security, 30_000).ext == {"said": "30000"}
    assert server.codes == [HMQ_LOGIN, HMQ_LOGIN, 30_000]
    assert server.server.requests[-1].ext == {"a": "b"}
    ask(server.address, security, 30_001)
    assert server.codes[3:] == [HMQ_LOGIN, HMQ_LOGIN, 30_001]


def test_nobody_does_not_log_in(ask: Ask, server: Server) -> None:
    ask(server.address, Security(), 30_000)
    assert server.codes == [30_000]


def test_who_is_refused_sends_nothing_else(
    ask: Ask, server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with secret_file(tmp_path, "hunter2") as wrong, pytest.raises(LoginFailed, match=r"'shop': not accepted") as raised:
        ask(server.address, wrong, 30_000)
    assert str(server.address) in str(raised.value)
    assert server.codes == [HMQ_LOGIN, HMQ_LOGIN], "it is not tried again"
    assert "hunter2" not in f"{raised.value!r} {raised.value} {caplog.text} {server.server.requests}"


def test_a_server_that_does_not_know_the_secret_gets_nothing_else(ask: Ask, server: Server, security: Security) -> None:
    server.knows_secret = False
    with pytest.raises(LoginFailed, match="did not prove"):
        ask(server.address, security, 30_000)
    assert server.codes == [HMQ_LOGIN, HMQ_LOGIN]


def test_a_server_without_users_gets_unsigned_requests(ask: Ask, server: Server, security: Security) -> None:
    server.first = 2
    ask(server.address, security, 30_000)
    assert (server.codes, server.server.requests[-1].ext) == ([HMQ_LOGIN, 30_000], {"a": "b"})


def is_signed(request: Request[Any]) -> bool:
    ext = dict(request.ext)
    given = ext.pop(EXT_SIGNATURE)
    return bool(ext[EXT_USER] == USER and given == signature(ext, request.body, SECRET.encode()))


def test_a_server_that_does_not_know_the_command_gets_signed_requests(
    ask: Ask, server: Server, security: Security
) -> None:
    server.first = 3
    ask(server.address, security, 30_000)
    assert server.codes == [HMQ_LOGIN, 30_000]
    assert is_signed(server.server.requests[-1])


@pytest.mark.parametrize("ask", [ask_blocking, ask_async])
def test_a_server_that_ignores_the_command_gets_signed_requests_after_another_one(
    ask: Ask, server: Server, security: Security, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (blocking, connection):
        monkeypatch.setattr(module, "PROBE_AFTER_S", 0.02)
    server.first = b""
    assert ask(server.address, security, 30_000).ext == {"said": "30000"}
    assert server.codes == [HMQ_LOGIN, PROBE, 30_000]
    assert is_signed(server.server.requests[-1])


def test_a_slow_server_that_answers_the_login_first_is_logged_in_to(
    ask: Ask, server: Server, security: Security, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (blocking, connection):
        monkeypatch.setattr(module, "PROBE_AFTER_S", 0.02)
    late: list[Request[Any]] = []
    at_once = server._answer

    def answer_late(request: Request[Any]) -> bytes | None:
        if request.code == HMQ_LOGIN and not late:
            late.append(request)
            return b""
        if request.code == PROBE:
            return (at_once(late[0]) or b"") + encode_response(request, ResponseCode.NO_PERMISSION, "log in first")
        return at_once(request)

    server.server.answer = answer_late
    assert ask(server.address, security, 30_000).ext == {"said": "30000"}
    assert server.codes == [HMQ_LOGIN, PROBE, HMQ_LOGIN, 30_000]
    assert server.server.requests[-1].ext == {"a": "b"}


def test_a_server_that_closes_or_says_nothing(
    ask: Ask, server: Server, security: Security, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.first = None
    with pytest.raises((Unavailable, ConnectError)) as raised:
        ask(server.address, security, 30_000)
    assert not isinstance(raised.value, LoginFailed)
    assert "is it a halfmq or RocketMQ server?" in str(raised.value)


def test_a_secret_that_was_replaced_is_used_before_the_next_look_at_the_file(server: Server, tmp_path: Path) -> None:
    """The file was read a moment ago, so that nobody would look at it again for a second. It is tried on another connection, since the
    server closes the first one.
    """
    file = tmp_path / "secret"
    file.write_text("the one before")
    made = credentials_of(Security(user=USER, secretfile=str(file)))
    assert made is not None
    file.write_text(SECRET)

    async def ask() -> None:
        pool = ConnectionPool(TcpConnector(None), on_push=lambda *_: None, credentials=made)
        try:
            await pool.get(server.address)
        finally:
            pool.close()

    asyncio.run(ask())
    assert server.codes == [HMQ_LOGIN] * 4
    asyncio.run(ask())
    assert server.codes == [HMQ_LOGIN] * 6


def test_a_secret_that_was_replaced_while_a_blocking_connection_was_opened(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("the one before")
    at_once = server.server.answer

    def replaced_meanwhile(request: Request[Any]) -> bytes | None:
        file.write_text(SECRET)
        return at_once(request)

    server.server.answer = replaced_meanwhile
    assert ask_blocking(server.address, Security(user=USER, secretfile=str(file)), 30_000).ext == {"said": "30000"}
    assert server.codes == [HMQ_LOGIN] * 4 + [30_000]


def test_name_servers_are_logged_in_to_as_well(server: Server, security: Security) -> None:
    url = parse_url(f"rocketmq://{USER}@{server.address}?secretfile={security.secretfile}")
    connections = Connections(url.security)
    with pytest.raises(HalfmqError):
        NameServers(url, connections).registered()  # the body is no list
    connections.close()
    assert server.codes[:2] == [HMQ_LOGIN] * 2


def test_the_socket_of_a_refused_login_is_closed(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[socket.socket] = []

    def open_socket(*arguments: Any) -> socket.socket:
        opened.append(open_really(*arguments))
        return opened[-1]

    open_really = blocking.open_socket
    monkeypatch.setattr(blocking, "open_socket", open_socket)
    with secret_file(tmp_path, "hunter2") as wrong, pytest.raises(LoginFailed):
        BlockingConnection.open(server.address, wrong)
    assert [stream.fileno() for stream in opened] == [-1]
