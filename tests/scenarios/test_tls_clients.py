"""Our clients over TLS with a certificate of their own, as processes and real sockets: every kind of client, either event loop, forks."""

import asyncio
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests.support.certificates import Authority, Issued
from tests.support.children import fork
from tests.support.served import Served, starting
from tests.support.waiting import PATIENCE_S, turns, until

from halfmq import App, AsyncClient, Client, Message, Outcome, compose
from halfmq.client import forks
from halfmq.client.blocking import Connections, NameServers, NotTrusted, Unavailable
from halfmq.client.connection_pool import ConnectionPool
from halfmq.client.connector import TcpConnector
from halfmq.client.transaction_block import AsyncTransaction, Transaction
from halfmq.errors import ConnectError
from halfmq.model.address import Address, TlsFiles, parse_url
from halfmq.runtime.tls import tls_context

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


@pytest.fixture(scope="module")
def client(authority: Authority) -> Issued:
    return authority.issue("client")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Served]:
    server = authority.issue("server")
    with starting(tmp_path_factory) as start:
        yield start(
            "--tls-cert", str(server.certificate), "--tls-key", str(server.key), "--tls-client-ca", str(authority.certificate),
            "--check-immunity-ms", "1", "--check-interval-ms", "100",
        )  # fmt: skip


@pytest.fixture(scope="module")
def url(broker: Served, authority: Authority, client: Issued) -> str:
    files = f"cafile={authority.certificate}&certfile={client.certificate}&keyfile={client.key}"
    return f"rocketmqs://127.0.0.1:{broker.name_port}?{files}"


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_closed_pool_leaves_no_socket_to_the_garbage_collector_whatever_the_server_does(
    new_loop: Callable[[], Any], authority: Authority, client: Issued, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of TLS has an answer, and this server does not read."""
    monkeypatch.setattr("halfmq.client.connection_pool.CLOSE_S", 0.05)
    issued, over = authority.issue("deaf"), threading.Event()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*issued)

    def serve(listening: socket.socket) -> None:
        with context.wrap_socket(listening.accept()[0], server_side=True):
            over.wait(PATIENCE_S)

    async def work(port: int) -> int:
        pool = ConnectionPool(TcpConnector(TlsFiles(str(authority.certificate))), on_push=lambda *_: None)
        connection = await pool.get(Address("127.0.0.1", port))
        transport = connection._transport
        assert transport is not None
        stream = transport.get_extra_info("socket")
        assert stream.fileno() != -1
        pool.close()
        await pool.wait_closed()
        await turns()
        return int(stream.fileno())

    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor() as threads:
        served = threads.submit(serve, listening)
        try:
            with asyncio.Runner(loop_factory=new_loop) as runner:
                assert runner.run(work(listening.getsockname()[1])) == -1
        finally:
            over.set()
        served.result()


@pytest.mark.parametrize("new_loop", LOOPS)
def test_async_client_sends_transactions_consumes_and_answers_checks(new_loop: Callable[[], Any], url: str) -> None:
    topic = f"async-{new_loop.__module__.partition('.')[0]}"

    async def work() -> list[str]:
        got: list[str] = []
        async with AsyncClient(url, group=f"service-{topic}") as mq:
            mq.add_check("order.create", lambda check: Outcome.COMMIT)
            async with mq.begin("order.create") as tx:
                tx.send(topic, b"committed")
            await mq.prepare(
                [compose(topic, b"checked")], tx_id=f"checked-{topic}", name="order.create"
            )  # and no verdict
            async with mq.consumer(topic, group=f"readers-{topic}", start="earliest") as messages:
                for _ in range(2):
                    message = await messages.get(30)
                    assert message is not None
                    got.append(message.text())
                    message.ack()
        return got

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert sorted(runner.run(work())) == ["checked", "committed"]


@pytest.mark.parametrize("new_loop", LOOPS)
def test_app_commits_consumes_and_answers_checks(new_loop: Callable[[], Any], url: str) -> None:
    topic = f"app-{new_loop.__module__.partition('.')[0]}"
    app = App(url, group=f"service-{topic}")
    got: list[str] = []

    @app.transaction("order.create", topic=topic)
    async def create_order(tx: AsyncTransaction, body: bytes) -> None:
        tx.send(body)
        if body == b"checked":
            await tx.prepare()
            raise asyncio.CancelledError  # as a crash before the verdict

    @create_order.check
    async def was_created(tx: Transaction) -> Outcome:
        return Outcome.COMMIT

    @app.consumer(topic, group=f"readers-{topic}", start="earliest")
    async def read(message: Message) -> None:
        got.append(message.text())

    async def work() -> None:
        async with app.run():
            await create_order(b"committed")
            with pytest.raises(asyncio.CancelledError):
                await create_order(b"checked")
            await until(lambda: len(got) >= 2, "both messages")

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(work())
    assert sorted(got) == ["checked", "committed"]


def test_forked_child_opens_connections_of_its_own_and_its_parents_stay_good(url: str) -> None:
    """If it wrote to the parent's, the records of both would be numbered twice, and the broker would close them."""
    with Client(url, group="parent", attempt_timeout=2.0) as mq:
        mq.send("forked", b"parent")
        parents = [one for one in (connection.descriptor() for connection in list(forks._open)) if one >= 0]
        assert parents

        def child() -> bool:
            assert all(os.path.samefile(f"/proc/self/fd/{one}", os.devnull) for one in parents)
            with mq.begin() as tx:
                tx.send("forked", b"child")
            with Client(url, group="child") as own:
                own.send("forked", b"client of the child")
            return tx.receipt is not None and tx.receipt.acknowledged

        for number in range(2):
            assert fork(child).result()
            mq.send("forked", b"parent again %d" % number)
        with mq.consumer("forked", group="readers", start="earliest") as messages:
            got = [messages.get(20) for _ in range(7)]
        assert sorted(one.text() for one in got if one) == sorted(
            ["parent", *["child", "client of the child"] * 2, "parent again 0", "parent again 1"]
        )


def test_fork_while_another_thread_looks_at_the_files_leaves_the_child_free(authority: Authority) -> None:
    """The thread does not exist in the child: nothing that it holds may be waited for."""
    looks, go_on = threading.Event(), threading.Event()
    blocks = False

    def clock() -> float:
        if blocks and threading.current_thread() is not threading.main_thread():
            looks.set()
            go_on.wait(30)
        return 0.0

    context = tls_context(TlsFiles(str(authority.certificate)), is_server=False, clock=clock)
    blocks = True
    thread = threading.Thread(target=context.current)
    thread.start()
    assert looks.wait(30)
    try:
        assert fork(lambda: context.current() is not None).result()
    finally:
        go_on.set()
        thread.join()


@pytest.mark.parametrize("new_loop", LOOPS)
def test_an_attempt_that_is_given_up_in_the_handshake_leaves_no_socket(new_loop: Callable[[], Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = Address("127.0.0.1", silent.getsockname()[1])

        async def work() -> None:
            before = 0
            for _ in range(5):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):  # real time: it is given up in the middle
                        await TcpConnector(TlsFiles()).connect(address, asyncio.Protocol)
                before = before or len(os.listdir("/proc/self/fd"))  # the loop opens some for its first connection
            await until(lambda: len(os.listdir("/proc/self/fd")) <= before, "its sockets are closed")

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(work())


def ask(url: str) -> tuple[str, ...]:
    parsed = parse_url(url)
    connections = Connections(parsed.security)
    try:
        return NameServers(parsed, connections).topics()
    finally:
        connections.close()


def test_who_is_not_trusted_is_told_apart_from_who_is_away(
    broker: Served, url: str, tmp_path: Path, authority: Authority
) -> None:
    """Whoever repeats requests must not wait for what only a person can change; another server may be good."""
    assert "TBW102" in ask(url)
    other = Authority(tmp_path / "other").certificate
    mine = f"127.0.0.1:{broker.name_port}"
    with pytest.raises(NotTrusted, match="cafile=FILE"):
        ask(url.replace(str(authority.certificate), str(other)))
    with socket.create_server(("127.0.0.1", 0)) as closed:
        away = f"127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(Unavailable, match="cafile=FILE") as caught:
        ask(f"rocketmqs://{mine};{away}?cafile={other}")
    assert not isinstance(caught.value, NotTrusted), "the second one may be good when it is there"


def test_an_alert_about_our_certificate_says_so(authority: Authority) -> None:
    """Of a server that sends one: event loops close the connection without it, so a halfmq broker only logs the reason."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.certificate))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(*authority.issue("alerting"))
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def reject() -> None:
            stream, _ = listening.accept()
            with stream, stream.dup() as kept:
                with pytest.raises(ssl.SSLError):
                    context.wrap_socket(stream, server_side=True)
                kept.shutdown(socket.SHUT_WR)
                while kept.recv(4096):  # a reset would overtake the alert
                    pass

        thread = threading.Thread(target=reject)
        thread.start()
        with pytest.raises(NotTrusted, match="certfile=FILE&keyfile=FILE"):
            ask(f"rocketmqs://127.0.0.1:{listening.getsockname()[1]}?cafile={authority.certificate}")
        thread.join(30)


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_broker_without_tls_is_named_as_the_cause(
    new_loop: Callable[[], Any], tmp_path_factory: pytest.TempPathFactory, authority: Authority
) -> None:
    async def ask(url: str) -> None:
        async with AsyncClient(url, timeout=2) as mq:
            await mq.send("orders", b"x")

    with starting(tmp_path_factory) as start:
        url = f"rocketmqs://127.0.0.1:{start().name_port}?cafile={authority.certificate}"
        with asyncio.Runner(loop_factory=new_loop) as runner, pytest.raises(ConnectError) as raised:
            runner.run(ask(url))
    assert "no TLS with 127.0.0.1" in str(raised.value)
    assert "does it speak TLS on this port? without: rocketmq://" in str(raised.value)
