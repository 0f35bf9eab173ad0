"""Peers that send garbage, too much, too slowly, several requests at once, or read nothing."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting import soon, turns, until

from halfmq import limits
from halfmq.broker.http import connection as connection
from halfmq.broker.http.connection import (
    HEADER_BYTES_MAX,
    HEADERS_MAX,
    REQUEST_TIMEOUT_S,
    Answer,
    HttpConnection,
    HttpRequest,
)
from halfmq.broker.http.door import HttpFrontDoor, Route
from halfmq.broker.listener import PortPlan, bind
from halfmq.broker.peers.peers import Peers, Rejected
from halfmq.broker.services.access import Access
from halfmq.model.text_fields import Fields

Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]
GET = b"GET /one HTTP/1.1\r\nHost: h\r\n\r\n"
PUT = b"PUT /one HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that is closed was not closed because it was idle."""
    monkeypatch.setattr(connection, "REQUEST_TIMEOUT_S", 3_600)


def peers() -> Peers:
    return Peers(asyncio.get_running_loop(), clock=time.perf_counter)


class Stage:
    def __init__(self) -> None:
        self.peers = peers()
        self.door = HttpFrontDoor(self.peers, {"h"})
        #: Requests that ``/later`` has not answered.
        self.waiting: list[Answer] = []
        self.served = 0
        read, none = Access(), Fields
        self.door.resources |= {
            "/one": Route(read, none, self.one),
            "/later": Route(read, none, lambda given, answer: self.waiting.append(answer)),
            "/bug": Route(read, none, self.bug),
        }
        self.port = 0
        self._writers: list[asyncio.StreamWriter] = []

    def one(self, given: dict[str, str], answer: Answer) -> None:
        self.served += 1
        answer(200, {"number": self.served})

    def bug(self, given: dict[str, str], answer: Answer) -> None:
        raise ValueError("ours")

    async def peer(self) -> Peer:
        peer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers.append(peer[1])
        return peer

    async def close_peers(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()


@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    made = Stage()
    port = await bind(PortPlan("HTTP service", lambda host: made.door.admit(host), 0), ("127.0.0.1",))
    port.listen()
    port.accept()
    made.port = port.port
    try:
        yield made
    finally:
        port.close()
        await made.close_peers()
        for one in list(made.door.connections):
            if one.is_open:
                one.transport.abort()
        await until(lambda: not made.door.connections)


async def all_of(peer: Peer) -> bytes:
    try:
        told = await soon(peer[0].read())
    except ConnectionError:
        told = b""
    peer[1].close()
    return told


async def answer_of(peer: Peer) -> tuple[int, object]:
    head = (await soon(peer[0].readuntil(b"\r\n\r\n"))).decode()
    size = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
    return int(head.split()[1]), json.loads(await soon(peer[0].readexactly(size)))


async def sent(made: Stage, data: bytes) -> bytes:
    peer = await made.peer()
    peer[1].write(data)
    return await all_of(peer)


def status_of(told: bytes) -> int:
    return int(told.split()[1])


async def test_requests_that_come_at_once_are_answered_in_order_and_in_parts_of_any_size() -> None:
    async with stage() as made:
        peer = await made.peer()
        peer[1].write(GET * 40)
        assert [await answer_of(peer) for _ in range(40)] == [(200, {"number": one + 1}) for one in range(40)]
        for byte in GET:
            peer[1].write(bytes([byte]))
            await asyncio.sleep(0)
        assert await answer_of(peer) == (200, {"number": 41})
        peer[1].close()


async def test_the_door_gets_who_asks_and_what_with_all_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[HttpRequest] = []

    def serve(door: HttpFrontDoor, request: HttpRequest, answer: Answer) -> None:
        asked.append(request)
        answer(200, None)

    monkeypatch.setattr(HttpFrontDoor, "_serve", serve)
    async with stage() as made:
        peer = await made.peer()
        peer[1].write(
            b"HEAD /one?a=%41&b HTTP/1.1\r\nHost: h\r\nAuthorization: \xe9 1\r\nAUTHORIZATION: 2\r\nX-A:\r\n\r\n"
        )
        await until(lambda: asked)
        (connection,) = made.door.connections
        headers = {"host": "h", "authorization": "\xe9 1", "x-a": ""}
        assert asked == [HttpRequest(connection, "GET", "/one", "a=%41&b", headers)]
        peer[1].close()


async def test_one_request_of_a_connection_is_served_at_a_time_and_the_next_waits() -> None:
    async with stage() as made:
        peer = await made.peer()
        peer[1].write(GET.replace(b"/one", b"/later") + GET)
        await until(lambda: made.waiting)
        await turns()
        assert made.served == 0
        made.waiting.pop()(200, "late")
        assert [await answer_of(peer), await answer_of(peer)] == [(200, "late"), (200, {"number": 1})]
        peer[1].close()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"\x00\x00\x00\x40\x00\x00\x00\x30{}\r\n\r\n", 400),
        (b"GET /one HTTP/1.1\r\n\r\n", 400),
        (b"GET  /one HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"GET /one HTTP/1.1\r\nHost: h\r\nX: " + b"x" * (HEADER_BYTES_MAX + 1) + b"\r\n\r\n", 431),
        (b"GET /one HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 12_000, 431),
        (b"GET /one HTTP/1.1\r\nHost: h\r\n" + b"X: x\r\n" * HEADERS_MAX + b"\r\n", 431),
        (b"GET /" + b"x" * HEADER_BYTES_MAX + b" HTTP/1.1\r\nHost: h\r\n\r\n", 431),
        (b"GET /one HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello" + GET, 413),
        (b"GET /one HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n", 413),
        (b"GET /one HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET /one HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"GET /one HTTP/1.1\r\nHost: h\r\nX y: z\r\n\r\n", 400),
        (b"GET /bug HTTP/1.1\r\nHost: h\r\n\r\n", 500),
    ],
)
async def test_what_is_broken_or_too_large_is_refused_and_its_connection_closed(data: bytes, status: int) -> None:
    async with stage() as made:
        told = await sent(made, data)
        assert status_of(told) == status
        assert b"connection: close" in told.lower()
        assert b"bytearray" not in told
        assert b"b'" not in told
        assert made.served == 0
        peer = await made.peer()
        peer[1].write(GET)
        assert (await answer_of(peer))[0] == 200, "others are served"
        peer[1].close()
        await until(lambda: not made.door.connections)


async def test_name_that_is_not_ours_is_refused_and_quoted_without_control_characters() -> None:
    async with stage() as made:
        peer = await made.peer()
        peer[1].write(GET.replace(b"Host: h", b"Host: \x9b31mevil.example"))
        head = await soon(peer[0].readuntil(b"\r\n\r\n"))
        body = await soon(peer[0].readuntil(b"}"))
        assert head.startswith(b"HTTP/1.1 421 Misdirected Request\r\n")
        assert b"'\\\\x9b31mevil.example'" in body
        assert b"--http-host-name NAME" in body
        assert body.isascii()
        peer[1].write(GET)
        assert (await answer_of(peer))[0] == 200, "the connection lives"
        peer[1].close()


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        (b"", b'{"error":"Missing mandatory Host: header"}'),
        (b"Host: h\r\nTransfer-Encoding: gzip\r\n", b'{"error":"Only Transfer-Encoding: chunked is supported"}'),
        (b"Host: h\r\nX y: z\r\n", b'{"error":"illegal header line"}'),
    ],
)
async def test_why_a_request_is_refused_is_said_whole_and_without_what_was_sent(headers: bytes, reason: bytes) -> None:
    async with stage() as made:
        assert (await sent(made, b"GET /one HTTP/1.1\r\n" + headers + b"\r\n")).endswith(reason)
        await until(lambda: not made.door.connections)


async def test_a_method_or_a_path_that_is_not_there_is_said_and_the_connection_lives() -> None:
    async with stage() as made:
        peer = await made.peer()
        for line, status in (
            (b"GET /none", 404), (b"DELETE /one", 405), (b"GET *", 404), (b"GET http://[/", 404), (b"GET /one", 200),
        ):  # fmt: skip
            peer[1].write(GET.replace(b"GET /one", line))
            assert (await answer_of(peer))[0] == status
        peer[1].close()


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_a_connection_that_is_to_be_closed_is_closed_behind_its_answer(version: bytes) -> None:
    async with stage() as made:
        told = await sent(made, b"GET /one HTTP/" + version + b"\r\nHost: h\r\nConnection: close\r\n\r\n")
        assert (status_of(told), made.served) == (200, 1)


async def test_a_peer_that_ends_its_side_still_gets_its_answers() -> None:
    async with stage() as made:
        peer = await made.peer()
        peer[1].write(GET * 2)
        peer[1].write_eof()
        assert (await all_of(peer)).count(b"HTTP/1.1 200") == 2
        half = await made.peer()
        half[1].write(GET[:9])
        half[1].write_eof()
        await all_of(half)
        await until(lambda: not made.door.connections)


@in_virtual_time
async def test_slow_senders_and_idle_connections_are_closed_and_those_who_wait_for_us_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "REQUEST_TIMEOUT_S", REQUEST_TIMEOUT_S)
    async with stage() as made:
        waits, idle, slow = await made.peer(), await made.peer(), await made.peer()
        waits[1].write(GET.replace(b"/one", b"/later"))
        await until(lambda: made.waiting)

        async def trickle() -> None:
            for byte in GET * 10:
                slow[1].write(bytes([byte]))
                await asyncio.sleep(REQUEST_TIMEOUT_S / 4)

        trickling = asyncio.create_task(trickle())
        assert (await all_of(idle), await all_of(slow)) == (b"", b"")
        trickling.cancel()
        status, told = await answer_of(waits)
        assert (status, "no answer within 15 s" in str(told)) == (503, True)
        assert await soon(waits[0].read()) == b"", "and closed, so that a late answer reaches nobody"
        made.waiting.pop()(200, "late")
        await until(lambda: not made.door.connections)


@in_virtual_time
async def test_a_peer_that_reads_nothing_is_not_answered_further_and_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "REQUEST_TIMEOUT_S", REQUEST_TIMEOUT_S)
    async with stage() as made:
        answered = 0

        def large(given: dict[str, str], answer: Answer) -> None:
            nonlocal answered
            answered += 1
            answer(200, "x" * 4_000_000)

        made.door.resources["/large"] = Route(Access(), Fields, large)
        peer = socket.create_connection(("127.0.0.1", made.port))
        peer.setblocking(False)
        peer.send(GET.replace(b"/one", b"/large") * 50)
        await until(lambda: answered > 0)
        await until(lambda: not made.door.connections)
        assert answered < 10, "what it does not read bounds what is made for it"
        peer.close()


async def test_an_answer_that_comes_when_its_peer_has_gone_is_dropped() -> None:
    async with stage() as made:
        peer = await made.peer()
        peer[1].write(GET.replace(b"/one", b"/later"))
        await until(lambda: made.waiting)
        peer[1].transport.abort()
        made.waiting[0](200, "too late, or in time for nobody")
        await until(lambda: not made.door.connections)
        made.waiting.pop()(200, "too late")


async def trickles(peer: Peer) -> None:
    """A request of which one byte comes at a time, and that never ends."""
    peer[1].write(GET[:5])
    with suppress(ConnectionError):
        while not peer[1].is_closing():
            peer[1].write(b"x")
            await peer[1].drain()
            await asyncio.sleep(0.01)


async def reads_nothing(made: Stage, peer: socket.socket) -> None:
    made.door.resources["/large"] = Route(Access(), Fields, lambda given, answer: answer(200, "x" * 8_000_000))
    peer.setblocking(False)
    before = {one for one in made.door.connections if one.is_full}
    peer.send(GET.replace(b"/one", b"/large"))
    await until(lambda: {one for one in made.door.connections if one.is_full} > before)


async def test_probe_is_answered_while_clients_have_sent_so_much_that_none_is_read_from() -> None:
    async with stage() as made:
        made.peers.intake.stopped = made.peers.intake.full = True
        probe = await made.peer()
        for number in (1, 2):
            probe[1].write(GET)
            assert await answer_of(probe) == (200, {"number": number})
        (only,) = made.peers.connected.values()
        host, port = probe[1].get_extra_info("sockname")
        assert only.address == f"{host}:{port}"
        probe[1].close()
        await until(lambda: not made.peers.connected)


@pytest.mark.parametrize("kind", ["idle", "idle after a response", "slow header", "slow reader", "waits for the disk"])
async def test_probe_is_answered_while_others_hold_all_connections(kind: str) -> None:
    """Goal: whatever the others do, the next connection is served, and one of them gives way for it."""
    async with stage() as made:
        sockets, tasks = [], []
        for number in range(limits.HTTP_CONNECTIONS_MAX):
            if kind == "slow reader":
                plain = socket.create_connection(("127.0.0.1", made.port))
                sockets.append(plain)
                await reads_nothing(made, plain)
                continue
            peer = await made.peer()
            if kind == "slow header":
                tasks.append(asyncio.create_task(trickles(peer)))
            elif kind == "idle after a response":
                peer[1].write(GET)
                await answer_of(peer)
            elif kind == "waits for the disk":
                peer[1].write(GET.replace(b"/one", b"/later"))
                await until(lambda: len(made.waiting) > number)  # noqa: B023
        await until(lambda: len([one for one in made.door.connections if one.is_open]) == limits.HTTP_CONNECTIONS_MAX)
        for _ in range(3):
            probe = await made.peer()
            probe[1].write(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            assert status_of(await all_of(probe)) == 200
            await until(lambda: len(made.door.connections) <= limits.HTTP_CONNECTIONS_MAX)
        for task in tasks:
            task.cancel()
        for plain in sockets:
            plain.close()


async def test_connection_that_gives_way_is_the_one_answered_longest_ago_and_those_that_await_us_are_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "HTTP_CONNECTIONS_MAX", 3)
    async with stage() as made:
        waits, first, second = await made.peer(), await made.peer(), await made.peer()
        waits[1].write(GET.replace(b"/one", b"/later"))
        await until(lambda: made.waiting)
        for peer in (second, first):
            peer[1].write(GET)
            await answer_of(peer)
        third = await made.peer()
        assert await soon(second[0].read()) == b""
        third[1].write(GET)
        await answer_of(third)
        fourth = await made.peer()
        assert await soon(first[0].read()) == b""
        fourth[1].write(GET)
        await answer_of(fourth)
        made.waiting.pop()(200, "still there")
        assert await answer_of(waits) == (200, "still there")


async def test_connections_beyond_the_limit_that_never_began_are_rejected_and_count_no_longer_when_they_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "HTTP_CONNECTIONS_MAX", 1)
    door = HttpFrontDoor(peers(), {"h"})
    first = door.admit("10.0.0.1")
    assert isinstance(first, HttpConnection)
    assert door.admit("10.0.0.1") == Rejected("HTTP connections: limit of 1 reached")
    first.begun()
    assert isinstance(door.admit("10.0.0.1"), HttpConnection)


async def test_descriptors_of_connections_that_are_closing_are_bounded() -> None:
    """Goal: a burst within one turn of the loop opens no more descriptors than the process reserves for HTTP."""
    async with stage() as made:
        most = 0
        admit = made.door.admit

        def counted(host: str) -> HttpConnection | Rejected:
            nonlocal most
            found = admit(host)
            most = max(most, len(made.door.connections))
            return found

        made.door.admit = counted  # type: ignore[method-assign]
        for _ in range(4):
            await asyncio.gather(*[made.peer() for _ in range(100)])
        await until(lambda: limits.HTTP_CONNECTIONS_MAX <= most <= 2 * limits.HTTP_CONNECTIONS_MAX)
        await until(lambda: len(made.door.connections) <= limits.HTTP_CONNECTIONS_MAX)


@pytest.mark.parametrize(("path", "status"), [(b"/one", b"200"), (b"/none", b"404"), (b"/bug", b"500")])
async def test_a_head_has_the_headers_of_a_get_and_no_body(path: bytes, status: bytes) -> None:
    async with stage() as made:
        reader, writer = await made.peer()
        writer.write(b"HEAD %b HTTP/1.1\r\nHost: h\r\n\r\n" % path)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.split(b" ")[1] == status
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        assert length > 0
        if path == b"/bug":  # whose connection ends
            assert await reader.read() == b""
            return
        writer.write(GET)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200"), "and nothing else came in between"
