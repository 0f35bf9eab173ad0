"""TLS on every port: each face of ours with it, without it, with the wrong certificate; certificates that are replaced."""

import asyncio
import json
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.certificates import Authority, Issued
from tests.support.ports import free_port
from tests.support.served import Served, starting
from tests.support.waiting import soon, until, wait_until

from halfmq import Client, ConnectError
from halfmq.broker import listener
from halfmq.broker.config import BrokerConfig, TlsMode
from halfmq.broker.listener import PortPlan, PortTls, bind
from halfmq.broker.peers.peers import Peers, Rejected
from halfmq.client.blocking import Connection, Connections, NameServers, Unavailable
from halfmq.errors import EnvironmentFailed, UsageError
from halfmq.model.address import Address, Security, TlsFiles, parse_url
from halfmq.runtime.tls import tls_context
from halfmq.runtime.watched_files import LOOK_S
from halfmq.wire.remoting.codes import RequestCode

FOREVER_AGO = "20210101000000Z"


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Served]]:
    with starting(tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="module")
def server(authority: Authority) -> Issued:
    return authority.issue("server")


@pytest.fixture(scope="module")
def client(authority: Authority) -> Issued:
    return authority.issue("client")


def url_of(broker: Served, authority: Authority, client: Issued | None = None) -> str:
    own = "" if client is None else f"&certfile={client.certificate}&keyfile={client.key}"
    return f"rocketmqs://127.0.0.1:{broker.name_port}?cafile={authority.certificate}{own}"


def send(url: str) -> str:
    with Client(url, group="g", timeout=5.0, attempt_timeout=2.0) as mq:
        return mq.send("orders", b"x").message_id


def tx_list(url: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "halfmq", "tx", "list", "--url", url, "--timeout", "3"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_every_face_speaks_tls_on_every_port(
    serve: Callable[..., Served], authority: Authority, server: Issued
) -> None:
    http = free_port()
    broker = serve("--tls-cert", str(server.certificate), "--tls-key", str(server.key), "--http-port", str(http))
    trusted = ssl.create_default_context(cafile=str(authority.certificate))
    url = url_of(broker, authority)
    assert send(url)
    with Client(f"rocketmqs://localhost:{broker.name_port}", ssl_context=trusted) as mq:
        assert mq.send("orders", b"y").message_id
    parsed = parse_url(url)
    connections = Connections(parsed.security)
    assert list(NameServers(parsed, connections).topics()).count("orders") == 1
    connections.close()
    listed = tx_list(url.replace(str(broker.name_port), str(broker.port)))
    assert listed.returncode == 0, listed
    with urllib.request.urlopen(f"https://127.0.0.1:{http}/health", context=trusted) as answer:
        assert json.load(answer)["serving"]


@pytest.mark.slow
def test_who_speaks_no_tls_or_does_not_trust_is_told_so(
    serve: Callable[..., Served], authority: Authority, server: Issued
) -> None:
    broker = serve("--tls-cert", str(server.certificate), "--tls-key", str(server.key))
    plain = broker.url
    with pytest.raises(ConnectError, match="rocketmqs://"):
        send(plain)
    listed = tx_list(plain)
    assert listed.returncode == 1
    assert "rocketmqs://" in listed.stderr
    untrusted = f"rocketmqs://127.0.0.1:{broker.name_port}"
    with pytest.raises(ConnectError, match=r"issuer certificate \(give the CA of the server"):
        send(untrusted)
    assert "cafile=FILE" in tx_list(untrusted).stderr
    with pytest.raises(ConnectError, match=r"certificate has to name the host of its address"):
        send(
            url_of(broker, authority).replace(
                "127.0.0.1", "ip6-localhost" if _has_name("ip6-localhost") else socket.gethostname()
            )
        )
    said = broker.log.read_text()
    assert "no TLS with 127.0.0.1, 1 times: wrong version number: does the client speak TLS?" in said
    assert "Traceback" not in said
    assert send(url_of(broker, authority))


def _has_name(name: str) -> bool:
    try:
        return bool(socket.getaddrinfo(name, 0, socket.AF_INET))
    except OSError:
        return False


@pytest.mark.slow
def test_a_client_needs_a_certificate_that_is_valid(
    serve: Callable[..., Served], authority: Authority, server: Issued, client: Issued, tmp_path: Path
) -> None:
    broker = serve(
        "--tls-cert", str(server.certificate), "--tls-key", str(server.key), "--tls-client-ca", str(authority.certificate)
    )  # fmt: skip
    assert send(url_of(broker, authority, client))
    expired = authority.issue("expired", ends=FOREVER_AGO)
    stranger = Authority(tmp_path / "other").issue("client")
    for wrong in (None, expired, stranger):
        url = url_of(broker, authority, wrong)
        with pytest.raises(ConnectError, match="a certificate"):
            send(url)
        assert tx_list(url).returncode == 1
    with pytest.raises(ConnectError):
        send(broker.url)
    assert "certificate has expired" in broker.log.read_text()


@pytest.mark.slow
def test_an_expired_certificate_of_a_client_is_refused_on_every_port(
    serve: Callable[..., Served], authority: Authority, server: Issued, client: Issued
) -> None:
    """With TLS 1.3 the client's side of the handshake ends before the server has looked: what counts is that no request is answered."""
    http = free_port()
    broker = serve(
        "--tls-cert", str(server.certificate), "--tls-key", str(server.key), "--tls-client-ca", str(authority.certificate),
        "--http-port", str(http), "--no-vip-channel",
    )  # fmt: skip

    def ask(port: int, own: Issued) -> str:
        """The status of the response to a request, of HTTP or of RocketMQ's protocol."""
        context = ssl.create_default_context(cafile=str(authority.certificate))
        context.load_cert_chain(own.certificate, own.key)
        if port == http:
            with urllib.request.urlopen(f"https://127.0.0.1:{port}/health", context=context, timeout=10) as answer:
                return str(answer.status)
        security = Security(TlsFiles(str(authority.certificate), str(own.certificate), str(own.key)))
        connection = Connection.open(Address("127.0.0.1", port), security, 10.0)
        try:
            number = connection.send(RequestCode.GET_BROKER_CLUSTER_INFO, {}, b"")
            return str(connection.receive(number).code)
        finally:
            connection.close()

    expired = authority.issue("expired-everywhere", ends=FOREVER_AGO)
    ports = {broker.port: "0", broker.name_port: "0", http: "200"}
    for port, answer in ports.items():
        assert ask(port, client) == answer
        with pytest.raises((Unavailable, OSError)):
            ask(port, expired)
    wait_until(lambda: "certificate has expired" in broker.log.read_text(), "the reason in the log")


@pytest.mark.slow
def test_permissive_serves_both(serve: Callable[..., Served], authority: Authority, server: Issued) -> None:
    broker = serve("--tls-cert", str(server.certificate), "--tls-key", str(server.key), "--tls-mode", "permissive")
    assert send(broker.url)
    assert send(url_of(broker, authority))


@pytest.mark.slow
def test_certificates_are_replaced_under_load_without_a_lost_request(
    serve: Callable[..., Served], authority: Authority, tmp_path: Path
) -> None:
    """Both ends: of the broker, of a client that shows one. Files that cannot be used are left out, and said once."""
    ours, theirs = Issued(tmp_path / "b.pem", tmp_path / "b.key"), Issued(tmp_path / "c.pem", tmp_path / "c.key")

    def replace(files: Issued, name: str) -> None:
        for new, old in zip(authority.issue(name), files, strict=True):
            shutil.copy(new, old)

    replace(ours, "first")
    replace(theirs, "first-client")
    broker = serve(
        "--tls-cert", str(ours.certificate), "--tls-key", str(ours.key), "--tls-client-ca", str(authority.certificate)
    )
    url = url_of(broker, authority, theirs)
    trusted = ssl.create_default_context(cafile=str(authority.certificate))

    def shown() -> str:
        trusted.load_cert_chain(theirs.certificate, theirs.key)
        with (
            socket.create_connection(("127.0.0.1", broker.port)) as stream,
            trusted.wrap_socket(stream, server_hostname="127.0.0.1") as tls,
        ):
            (((_, name),),) = tls.getpeercert()["subject"]  # type: ignore[index, misc]
            return str(name)

    sent, failed, done = [0], [], threading.Event()

    def load() -> None:
        with Client(url, group="g") as mq:
            while not done.is_set():
                sent[0] += 1
                try:
                    mq.send("orders", b"x")
                except Exception as error:
                    failed.append(error)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        assert shown() == "first"
        replace(theirs, "second-client")
        replace(ours, "second")
        wait_until(lambda: shown() == "second", "the new certificate")
        before = sent[0]
        wait_until(lambda: sent[0] > before + 100, "requests")
        send(url)
        ours.key.write_text("no key")
        wait_until(
            lambda: shown() == "second" and "the ones before stay in use" in broker.log.read_text(),
            "the broken key is said",
        )
        send(url)
    finally:
        done.set()
        thread.join(30)
    assert failed == []
    assert broker.log.read_text().count("the ones before stay in use") == 1
    assert "no key" not in broker.log.read_text()


class Door:
    """Admits everybody, as many as ``peers`` does."""

    def __init__(self, peers: Peers) -> None:
        self.peers = peers
        self.refused = 0

    def admit(self, host: str) -> object:
        from halfmq.broker.peers.peer import Peer

        found = self.peers.admit(host, lambda number: Peer(self.peers, number))
        self.refused += isinstance(found, Rejected)
        return found


@pytest.mark.parametrize("is_required", [True, False])
async def test_who_says_nothing_gives_its_place_back_or_is_served_without_tls(
    is_required: bool, server: Issued, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "HANDSHAKE_S", 0.2)
    loop = asyncio.get_running_loop()
    peers = Peers(
        loop,
        clock=loop.time,
        connections_max=8,
        unfinished_bytes_max=1 << 30,
        outgoing_bytes_max=1 << 30,
        connections_per_address_max=None,
    )
    door = Door(peers)
    files = TlsFiles("", str(server.certificate), str(server.key))
    tls = PortTls(tls_context(files, is_server=True, clock=loop.time), is_required)
    port = await bind(PortPlan("broker", door.admit, 0, tls=tls), ["127.0.0.1"])  # type: ignore[arg-type]
    port.listen()
    port.accept()
    reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
    if is_required:
        assert await soon(reader.read()) == b""
        assert not peers.connected
    else:
        await until(lambda: peers.connected, "it is served")
    writer.close()
    port.close()
    for peer in list(peers.connected.values()):
        peer.close()


def test_a_context_is_made_again_when_a_file_changes_and_only_then(authority: Authority, tmp_path: Path) -> None:
    now = [0.0]
    certificate, key = tmp_path / "a.pem", tmp_path / "a.key"
    for new, old in zip(authority.issue("one"), (certificate, key), strict=True):
        shutil.copy(new, old)
    context = tls_context(TlsFiles("", str(certificate), str(key)), is_server=True, clock=lambda: now[0])
    first = context.current()
    now[0] += LOOK_S
    assert context.current() is first
    for new, old in zip(authority.issue("two"), (certificate, key), strict=True):
        shutil.copy(new, old)
    assert context.current() is first, "it looks once a second"
    now[0] += LOOK_S
    second = context.current()
    assert second is not first
    key.unlink()
    now[0] += LOOK_S
    assert context.current() is second


def _encrypted(authority: Authority, tmp_path: Path) -> TlsFiles:
    issued = authority.issue("locked")
    locked = tmp_path / "locked.key"
    subprocess.run(
        ["openssl", "pkey", "-in", issued.key, "-aes256", "-passout", "pass:hunter2", "-out", locked], check=True
    )
    return TlsFiles("", str(issued.certificate), str(locked))


def _mixed(authority: Authority, tmp_path: Path) -> TlsFiles:
    return TlsFiles("", str(authority.issue("a").certificate), str(authority.issue("b").key))


def _no_pem(authority: Authority, tmp_path: Path) -> TlsFiles:
    (tmp_path / "x").write_text("x")
    return TlsFiles(str(tmp_path / "x"))


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (_encrypted, "protected by a password"),
        (_mixed, "the key is not the one of the certificate"),
        (_no_pem, "not in PEM format"),
        (lambda authority, tmp_path: TlsFiles("", str(tmp_path / "absent"), str(tmp_path / "absent")), "No such file"),
    ],
)
def test_files_that_cannot_be_used_are_named(
    files: Callable[[Authority, Path], TlsFiles], reason: str, authority: Authority, tmp_path: Path
) -> None:
    given = files(authority, tmp_path)
    with pytest.raises(EnvironmentFailed, match=reason) as caught:
        tls_context(given, is_server=True, clock=lambda: 0.0)
    assert next(filter(None, given)) in str(caught.value)
    if given.certfile:
        with pytest.raises(EnvironmentFailed, match=reason):
            Client(f"rocketmqs://h:1?certfile={given.certfile}&keyfile={given.keyfile}")


@pytest.mark.parametrize(
    "wrong",
    [
        {"tls_cert": Path("c")},
        {"tls_key": Path("k")},
        {"tls_client_ca": Path("a")},
        {"tls_cert": Path("c"), "tls_key": Path("k"), "tls_client_ca": Path("a"), "tls_mode": TlsMode.PERMISSIVE},
    ],
)
def test_options_that_protect_nothing_are_refused(wrong: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--tls-"):
        BrokerConfig(tmp_path, **wrong).checked()  # type: ignore[arg-type]


@pytest.fixture
def plain_server() -> Iterator[int]:
    """Closes what it accepts."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            while True:
                try:
                    listening.accept()[0].close()
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield listening.getsockname()[1]


def test_tls_with_a_server_without_it(plain_server: int) -> None:
    with pytest.raises((Unavailable, ConnectError)):
        Connection.open(Address("127.0.0.1", plain_server), Security(TlsFiles()))
    with pytest.raises(ConnectError), Client(f"rocketmqs://127.0.0.1:{plain_server}", timeout=1.0):
        pass
