"""One connection: answers find their requests, silence and loss are "no answer", what is not written is "not sent"."""

import asyncio
from typing import Any

import pytest
from tests.support.virtual_time import in_virtual_time

from halfmq.client.connection import Connection, NoAnswer, NotSent
from halfmq.model.address import Address
from halfmq.wire.remoting.header import Request, encode_oneway_request, encode_request, encode_response

ADDRESS = Address("b", 1)


class Wire(asyncio.Transport):
    """Keeps what the client wrote."""

    def __init__(self) -> None:
        super().__init__({"sockname": ("10.0.0.9", 1)})
        self.written: list[bytes] = []
        self.ended = ""

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def close(self) -> None:
        self.ended = self.ended or "close"

    def abort(self) -> None:
        self.ended = self.ended or "abort"


class World:
    def __init__(self) -> None:
        self.pushes: list[Request[Any]] = []
        self.lost: list[Connection] = []
        self.wire = Wire()
        self.connection = Connection(
            ADDRESS, asyncio.get_running_loop(), lambda _, request: self.pushes.append(request), self.lost.append
        )
        self.connection.connection_made(self.wire)

    def answer(self, opaque: int, code: int = 0, body: bytes = b"", cut: int = 0) -> bytes:
        request = Request(code=1, opaque=opaque, ext={})
        return encode_response(request, code, "said", {"k": "v"}, body)


@in_virtual_time
async def test_answers_in_any_order_find_their_requests() -> None:
    world = World()
    first = asyncio.ensure_future(world.connection.request(34))
    second = asyncio.ensure_future(world.connection.request(38))
    await asyncio.sleep(0)
    data = world.answer(2, body=b"two") + world.answer(1, 17, b"one")
    for byte in data:  # byte by byte, as TCP may deliver it
        world.connection.data_received(bytes((byte,)))
    assert ((await first).code, (await first).body) == (17, b"one")
    assert ((await second).code, (await second).body, (await second).ext) == (0, b"two", {"k": "v"})


@in_virtual_time
async def test_requests_of_one_turn_leave_in_one_write_in_order() -> None:
    world = World()
    frames = []
    for code in (310, 310, 37):
        opaque = world.connection.next_opaque()
        frames.append(encode_request(code, opaque, {}))
        world.connection.call(opaque, frames[-1], 3.0)
    assert world.wire.written == []
    await asyncio.sleep(0)
    assert world.wire.written == [b"".join(frames)]


@in_virtual_time
async def test_silence_is_no_answer_at_the_deadline_and_a_late_answer_is_dropped() -> None:
    world = World()
    start = asyncio.get_running_loop().time()
    with pytest.raises(NoAnswer):
        await world.connection.request(34, timeout_s=1.0)
    assert 1.0 <= asyncio.get_running_loop().time() - start < 1.2
    world.connection.data_received(world.answer(1))
    assert not world.connection.closed


@in_virtual_time
async def test_waiting_for_an_answer_wakes_nobody_up_until_the_first_deadline() -> None:
    """A consumer's pull is parked at the broker for 15 s, and a service may have a hundred of them."""
    world = World()
    loop = asyncio.get_running_loop()
    looks: list[float] = []
    pending = world.connection._waiting
    look = pending._expire
    pending._expire = lambda: (looks.append(loop.time()), look())  # type: ignore[method-assign]
    start = loop.time()
    parked = asyncio.ensure_future(world.connection.request(11, timeout_s=20.0))
    await asyncio.sleep(0.5)
    with pytest.raises(NoAnswer):
        await world.connection.request(34, timeout_s=1.0)
    assert [round(at - start, 3) for at in looks] == [1.5]
    with pytest.raises(NoAnswer):
        await parked
    assert [round(at - start, 3) for at in looks] == [1.5, 20.0]


@in_virtual_time
async def test_peer_that_is_silent_since_the_request_is_given_up() -> None:
    world = World()
    with pytest.raises(NoAnswer):
        await world.connection.request(34, timeout_s=3.5)
    assert world.connection.closed
    assert world.lost == [world.connection]
    assert world.wire.ended == "abort"


@in_virtual_time
async def test_slow_answer_beside_others_that_come_keeps_the_connection() -> None:
    world = World()
    slow = asyncio.ensure_future(world.connection.request(11, timeout_s=4.0))
    for _ in range(4):
        quick = asyncio.ensure_future(world.connection.request(34, timeout_s=4.0))
        await asyncio.sleep(0)
        world.connection.data_received(world.answer(world.connection._exchange._opaque))
        await quick
        await asyncio.sleep(1.0)
    with pytest.raises(NoAnswer):
        await slow
    assert not world.connection.closed


@in_virtual_time
async def test_lost_connection_ends_what_waits_and_refuses_what_comes() -> None:
    world = World()
    waiting = asyncio.ensure_future(world.connection.request(34))
    await asyncio.sleep(0)
    world.connection.connection_lost(ConnectionResetError("reset"))
    with pytest.raises(NoAnswer, match="reset"):
        await waiting
    with pytest.raises(NotSent):
        await world.connection.request(34)
    with pytest.raises(NotSent):
        world.connection.send_oneway_frame(encode_oneway_request(15, 1))
    assert world.lost == [world.connection]


@in_virtual_time
async def test_pushes_are_handed_on_and_answered_only_when_they_ask() -> None:
    world = World()
    world.connection.data_received(encode_oneway_request(40, 5, {"consumerGroup": "g"}))
    world.connection.data_received(encode_request(307, 6, {"consumerGroup": "C", "clientId": "me"}))
    assert [request.code for request in world.pushes] == [40, 307]
    for request in world.pushes:
        world.connection.answer(request, 3, "not here")
    await asyncio.sleep(0)
    assert len(world.wire.written) == 1
    assert b'"opaque":6' in world.wire.written[0]


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x08\x07\0\0\x02{}xx", b"\0\0\0\x06\0\0\0\x02{!"]
)
@in_virtual_time
async def test_peer_that_breaks_the_protocol_is_dropped(garbage: bytes) -> None:
    world = World()
    waiting = asyncio.ensure_future(world.connection.request(34))
    await asyncio.sleep(0)
    world.connection.data_received(garbage)
    with pytest.raises(NoAnswer, match="protocol"):
        await waiting
    assert world.wire.ended == "abort"


@in_virtual_time
async def test_answer_in_the_binary_serialisation_is_read_too() -> None:
    world = World()
    waiting = asyncio.ensure_future(world.connection.request(34))
    await asyncio.sleep(0)
    binary: Request[Any] = Request(code=1, opaque=1, ext={}, binary=True)
    world.connection.data_received(encode_response(binary, 0, None, {"k": "v"}, b"body"))
    assert ((await waiting).ext, (await waiting).body) == ({"k": "v"}, b"body")


@in_virtual_time
async def test_answer_without_ext_fields_is_read_too() -> None:
    world = World()
    waiting = asyncio.ensure_future(world.connection.request(34))
    await asyncio.sleep(0)
    header = b'{"code":0,"flag":1,"language":"JAVA","opaque":1,"serializeTypeCurrentRPC":"JSON","version":479}'
    world.connection.data_received((4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header)
    assert ((await waiting).ext, (await waiting).version) == ({}, 479)


@in_virtual_time
async def test_writer_waits_while_the_peer_does_not_read() -> None:
    world = World()
    world.connection.pause_writing()
    with pytest.raises(NotSent, match="does not read"):
        await world.connection.request(34, timeout_s=1.0)
    assert world.wire.written == []
    waiting = asyncio.ensure_future(world.connection.request(34))
    await asyncio.sleep(0.5)
    world.connection.resume_writing()
    await asyncio.sleep(0.01)
    assert len(world.wire.written) == 1
    waiting.cancel()


@in_virtual_time
async def test_close_writes_what_is_queued_first() -> None:
    world = World()
    world.connection.send_oneway_frame(encode_oneway_request(15, 1, {"a": "b"}))
    world.connection.close()
    assert len(world.wire.written) == 1
    assert world.wire.ended == "close"


@in_virtual_time
async def test_local_address_is_known() -> None:
    world = World()
    assert world.connection.local_ip == bytes((10, 0, 0, 9))
