"""The broker's limits hold for connections with TLS too: places, unread responses, and the time of a stop."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import ssl
import struct
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.certificates import Authority, Issued
from tests.support.in_process import Running, serving
from tests.support.ports import free_port
from tests.support.raw_client import RawClient, command, pull_ext
from tests.support.served import Served, starting
from tests.support.waiting import until, wait_until

from halfmq import Client, limits
from halfmq.broker import listener
from halfmq.broker.config import TlsMode
from halfmq.broker.peers.bounded_writes import PART_BYTES

LIST = 29_002  # HMQ_TRANSACTIONS, an operator's
#: A record that promises a handshake of 512 bytes, of which nothing comes.
BEGUN = b"\x16\x03\x01\x02\x00\x01"
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def server(authority: Authority) -> Issued:
    return authority.issue("server")


@pytest.fixture(scope="module")
def trusted(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.certificate))


@contextlib.asynccontextmanager
async def serving_tls(directory: Path, server: Issued, **changes: Any) -> AsyncIterator[Running]:
    async with serving(directory, tls_cert=server.certificate, tls_key=server.key, **changes) as running:
        yield running


async def connect(running: Running, trusted: ssl.SSLContext) -> RawClient:
    reader, writer = await asyncio.open_connection("127.0.0.1", running.ports.broker, ssl=trusted)
    return RawClient(reader, writer, 409)


def half_open(port: int, count: int, said: bytes) -> list[socket.socket]:
    """Connections whose handshake goes no further than ``said``."""
    made = []
    for _ in range(count):
        made.append(socket.create_connection(("127.0.0.1", port)))
        made[-1].sendall(said)
    return made


@pytest.mark.parametrize("mode", TlsMode)
@pytest.mark.parametrize("said", [b"", BEGUN])
async def test_probe_is_answered_while_handshakes_hold_all_http_connections(
    mode: TlsMode,
    said: bytes,
    server: Issued,
    trusted: ssl.SSLContext,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    async with serving_tls(tmp_path, server, http_port=0, tls_mode=mode) as running:
        assert running.ports.http is not None
        door = running.broker._http
        assert door is not None
        flood = half_open(running.ports.http, limits.HTTP_CONNECTIONS_MAX, said)
        await until(lambda: len(door.connections) == limits.HTTP_CONNECTIONS_MAX)
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", running.ports.http, ssl=trusted)
            writer.write(HEALTH)
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
            writer.close()
            await until(lambda: len(door.connections) <= limits.HTTP_CONNECTIONS_MAX)
        assert "no TLS" not in caplog.text, "who gives way did nothing wrong"
        for one in flood:
            one.close()
        await until(lambda: not door.connections)


async def test_probe_is_answered_while_others_do_not_end_what_was_closed(
    server: Issued, trusted: ssl.SSLContext, tmp_path: Path
) -> None:
    """TLS ends when the other end says so too."""
    async with serving_tls(tmp_path, server, http_port=0) as running:
        http, door = running.ports.http or 0, running.broker._http
        assert door is not None

        def ask(said: bytes) -> ssl.SSLSocket:
            stream = socket.create_connection(("127.0.0.1", http))
            made = trusted.wrap_socket(stream, server_hostname="127.0.0.1")
            made.sendall(said)
            return made

        count = 2 * limits.HTTP_CONNECTIONS_MAX
        lingering = [await asyncio.to_thread(ask, b"no HTTP\r\n\r\n") for _ in range(count)]
        assert len(door.connections) <= limits.HTTP_CONNECTIONS_MAX
        probe = await asyncio.to_thread(ask, HEALTH)
        assert (await asyncio.to_thread(probe.recv, 4096)).startswith(b"HTTP/1.1 200")
        for one in (*lingering, probe):
            one.close()
        await until(lambda: not door.connections)


@pytest.mark.parametrize("said", [b"", BEGUN])
async def test_operator_is_served_while_handshakes_hold_every_place(
    said: bytes, server: Issued, trusted: ssl.SSLContext, tmp_path: Path
) -> None:
    async with serving_tls(tmp_path, server, connections_max=20) as running:
        places = running.broker._peers.places
        flood = half_open(running.ports.broker, 20, said)
        await until(lambda: places.taken == 20)
        operator = await connect(running, trusted)
        assert (await operator.ask(LIST)).code == 0
        assert places.taken == 20
        for one in flood:
            one.close()
        await until(lambda: places.taken == 1)
        await operator.close()


def raw_bytes(peer: Any) -> int:
    """What asyncio keeps for the socket below TLS, which no transport says of itself."""
    below = getattr(peer.transport, "_below", peer.transport)
    return int(below._ssl_protocol._transport.get_write_buffer_size())


def encrypted_bytes(peer: Any) -> int:
    below = getattr(peer.transport, "_below", peer.transport)
    return int(below._ssl_protocol._outgoing.pending)


async def test_responses_that_nobody_reads_are_counted_and_kept_unencrypted(
    server: Issued, trusted: ssl.SSLContext, tmp_path: Path
) -> None:
    """Goal: slow readers cost what is counted. Method: each asks for 12 MiB and reads nothing, then everything.

    What is encrypted stays with the connection until its end, as memory of OpenSSL that has no limit of ours.
    """
    async with serving_tls(tmp_path, server, segment_bytes=64 << 20) as running:
        client = await connect(running, trusted)
        body = os.urandom(limits.BODY_BYTES_MAX)
        assert (await client.send("T", body, unique="1" * 32)).code == 0
        crowd = []
        for _ in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", running.ports.broker, ssl=trusted, limit=1024)
            writer.write(b"".join(command(11, again, pull_ext("T", "TOOLS_CONSUMER", 0, 0)) for again in range(3)))
            crowd.append((reader, writer))
        peers = running.broker._peers
        await until(lambda: sum(peer.is_full for peer in peers.connected.values()) == len(crowd))
        assert body in (await client.pull("T")).body
        full = [peer for peer in peers.connected.values() if peer.is_full]
        most = 3 * PART_BYTES + 32_768
        assert [raw_bytes(peer) for peer in full if raw_bytes(peer) > most] == []
        assert [encrypted_bytes(peer) for peer in full if encrypted_bytes(peer) > most] == []
        assert peers.outgoing.bytes > len(crowd) * limits.BODY_BYTES_MAX
        for reader, writer in crowd:
            for _ in range(3):
                (length,) = struct.unpack(">I", await reader.readexactly(4))
                assert body in await reader.readexactly(length)
            writer.close()
        await until(lambda: len(peers.connected) == 1)
        assert peers.outgoing.bytes == 0
        await client.close()


async def test_a_connection_that_is_closed_sends_what_waits_and_is_served_no_more(
    server: Issued, trusted: ssl.SSLContext, tmp_path: Path
) -> None:
    async with serving_tls(tmp_path, server, segment_bytes=64 << 20) as running:
        client = await connect(running, trusted)
        body = os.urandom(limits.BODY_BYTES_MAX)
        assert (await client.send("T", body, unique="1" * 32)).code == 0
        reader, writer = await asyncio.open_connection("127.0.0.1", running.ports.broker, ssl=trusted, limit=1024)
        writer.write(b"".join(command(11, again, pull_ext("T", "TOOLS_CONSUMER", 0, 0)) for again in range(3)))
        peers = running.broker._peers
        await until(lambda: any(peer.is_full for peer in peers.connected.values()))
        (peer,) = (peer for peer in peers.connected.values() if peer.is_full)
        assert peer.transport.get_write_buffer_size() > PART_BYTES
        writer.write(command(11, 9, pull_ext("T", "TOOLS_CONSUMER", 0, 0)))  # is not read any more
        await until(lambda: peer.transport._below._ssl_protocol._incoming.pending)
        peer.close()
        assert peer.transport.is_closing()
        (length,) = struct.unpack(">I", await reader.readexactly(4))
        assert body in await reader.readexactly(length)
        rest = await reader.read()
        assert len(rest) % (4 + length) == 0, "whole responses"
        writer.close()
        await until(lambda: peer.number not in peers.connected)
        await client.close()


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory, server: Issued) -> Iterator[Callable[..., Served]]:
    with starting(tmp_path_factory) as start:
        yield lambda *options: start("--tls-cert", str(server.certificate), "--tls-key", str(server.key), *options)


def url_of(broker: Served, authority: Authority) -> str:
    return f"rocketmqs://127.0.0.1:{broker.name_port}?cafile={authority.certificate}"


def sockets(broker: Served) -> int:
    """How many the broker has open."""
    assert broker.process is not None
    count = 0
    for descriptor in os.scandir(f"/proc/{broker.process.pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            count += os.readlink(descriptor.path).startswith("socket:")
    return count


@pytest.mark.slow
def test_a_crowd_of_half_open_handshakes_gives_back_its_places_and_clients_are_served_meanwhile(
    serve: Callable[..., Served], authority: Authority, trusted: ssl.SSLContext
) -> None:
    http = free_port()
    broker = serve("--tls-mode", "permissive", "--http-port", str(http))
    with Client(url_of(broker, authority), group="g") as mq:
        mq.send("orders", b"first")
        before = sockets(broker)
        flood = [one for said in (b"", BEGUN) for one in half_open(broker.port, 250, said)]
        flood += half_open(broker.name_port, 100, b"\x16" + os.urandom(300))
        wait_until(lambda: sockets(broker) >= before + 500, "they are accepted")
        flood += half_open(http, 70, BEGUN)

        def is_healthy() -> (
            bool
        ):  # a burst of more than 64 in one turn of the broker's loop is refused, with TLS or without
            with (
                contextlib.suppress(urllib.error.URLError),
                urllib.request.urlopen(f"https://127.0.0.1:{http}/health", context=trusted) as answer,
            ):
                return bool(json.load(answer)["serving"])
            return False

        wait_until(is_healthy, "a probe is answered")
        assert is_healthy()
        for _ in range(20):
            mq.send("orders", b"x" * 100_000)
        with Client(url_of(broker, authority), group="h", timeout=5.0) as other:
            other.send("orders", b"new")
        for one in flood[:100]:
            one.close()
        # Those that say nothing are served without TLS from then on; the others are closed.
        wait_until(lambda: sockets(broker) <= before + 200, "handshakes that do not go on are closed")
        for one in flood[100:]:
            one.close()
        wait_until(lambda: sockets(broker) <= before, "none is left")
        mq.send("orders", b"last")
    assert "Traceback" not in broker.log.read_text()


@pytest.mark.slow
def test_a_stop_waits_for_nobody_in_a_handshake_and_for_nobody_who_does_not_end(
    serve: Callable[..., Served], authority: Authority, trusted: ssl.SSLContext
) -> None:
    """A client that works, one that ignores the end of TLS, handshakes that do not go on: the drain is as short as without them."""
    broker = serve()
    assert broker.process is not None
    with contextlib.ExitStack() as open_until_the_end, Client(url_of(broker, authority), group="g") as mq:
        mq.send("orders", b"x")
        silent = socket.create_connection(("127.0.0.1", broker.port))
        open_until_the_end.enter_context(trusted.wrap_socket(silent, server_hostname="127.0.0.1"))
        for said in (b"", BEGUN):
            for one in half_open(broker.port, 20, said):
                open_until_the_end.enter_context(one)
        broker.process.send_signal(signal.SIGTERM)
        assert broker.process.wait(20) == 0
    logged = broker.log.read_text()
    assert "stopped" in logged
    assert "Traceback" not in logged
    assert "Task" not in logged


@pytest.mark.slow
def test_messages_of_maximum_size_go_both_ways_on_several_connections(
    serve: Callable[..., Served], authority: Authority
) -> None:
    broker = serve()
    bodies = [os.urandom(limits.BODY_BYTES_MAX) for _ in range(4)]
    with contextlib.ExitStack() as clients:
        mqs = [clients.enter_context(Client(url_of(broker, authority), group=f"g{n}")) for n in range(3)]
        for number, body in enumerate(bodies):
            mqs[number % 3].send("large", body)
        for number, mq in enumerate(mqs):
            with mq.consumer("large", group=f"reader{number}", start="earliest") as messages:
                got = [messages.get(20) for _ in bodies]
            assert sorted(one.body for one in got if one) == sorted(bodies)


def resident_bytes(broker: Served) -> int:
    assert broker.process is not None
    lines = Path(f"/proc/{broker.process.pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("RssAnon:"))) << 10


@pytest.mark.slow
def test_a_crowd_that_does_not_read_takes_the_memory_that_the_bound_says(
    serve: Callable[..., Served], authority: Authority, trusted: ssl.SSLContext
) -> None:
    """Goal: the broker's event loop is another one than above. Method: 100 ask for one message of 4 MiB, and read nothing."""
    bound = 64 << 20
    broker = serve("--outgoing-bytes-max", str(bound))

    async def fill() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port, ssl=trusted)
        client = RawClient(reader, writer, 409)
        assert (await client.send("large", os.urandom(limits.BODY_BYTES_MAX), unique="1" * 32)).code == 0
        await client.close()

    asyncio.run(fill())
    with contextlib.ExitStack() as crowd, Client(url_of(broker, authority), group="g") as mq:
        mq.send("orders", b"x")
        before = resident_bytes(broker)
        for _ in range(100):
            stream = socket.socket()
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)  # the kernel's buffers are not what is tested
            stream.connect(("127.0.0.1", broker.port))
            one = crowd.enter_context(trusted.wrap_socket(stream, server_hostname="127.0.0.1"))
            one.sendall(command(11, 1, pull_ext("large", "TOOLS_CONSUMER", 0, 0)))
            mq.send("orders", b"x")
        wait_until(lambda: "read nothing for longest were closed" in broker.log.read_text(), "some are closed")
        assert resident_bytes(broker) < before + 2 * bound
        mq.send("orders", b"x")


async def test_a_closed_port_ends_handshakes(server: Issued, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(listener, "HANDSHAKE_S", 600.0)
    async with serving_tls(tmp_path, server) as running:
        peers, ports = running.broker._peers, running.broker._ports
        flood = [one for said in (b"", BEGUN) for one in half_open(running.ports.broker, 3, said)]
        await until(lambda: peers.places.taken == len(flood))
        ports.begin_drain()
        await until(lambda: peers.places.taken == 0)
        for one in flood:
            one.close()


async def test_lines_about_failed_handshakes_are_few_from_however_many_addresses(
    server: Issued, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """As of the other mistakes of peers: decision 0030."""
    async with serving_tls(tmp_path, server) as running:
        for number in range(2, 82):
            with socket.create_connection(
                ("127.0.0.1", running.ports.broker), source_address=(f"127.0.0.{number}", 0)
            ) as stream:
                stream.setblocking(False)
                await asyncio.get_running_loop().sock_sendall(stream, b"no TLS, and as long as a header")
                await until(lambda: running.broker._peers.places.taken == 0 and _is_closed(stream))
        lines = [text for text in caplog.messages if "no TLS with" in text]
        assert 0 < len(lines) <= 50


def _is_closed(stream: socket.socket) -> bool:
    try:
        while stream.recv(4096):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True
