"""Rules that hold for every command: who is sent away, who is cut off, when reading stops."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.support.in_process import serving
from tests.support.raw_client import command, pull_ext, send_ext
from tests.support.waiting import soon, turns, until

from halfmq.broker.peers import peers as peers_module

ID = "AC10000100002A9F0000000000000001"


@pytest.mark.parametrize(("version", "code"), [(475, 0), (476, 1500)])
async def test_draining_broker_sends_away_who_knows_how_to_go(tmp_path: Path, version: int, code: int) -> None:
    async with serving(tmp_path) as running:
        client = await running.client(version=version)
        assert (await client.send("T", b"x", unique="1" * 32)).code == 0
        half = await client.half("T", b"one", unique=ID)
        running.broker._peers.draining = True
        assert (await client.send("T", b"x", unique="2" * 32)).code == code
        assert (await client.ask(105, {"topic": "T"})).code == code
        assert (await client.end(half, ID, 8)).ext["HMQ_VERDICT"] == "COMMITTED", "a verdict is always taken"


async def test_drain_answers_parked_pulls_and_closes_connections(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        await client.send("T", b"x", unique="1" * 32)
        parked = asyncio.create_task(client.pull("T", 1, wait_ms=20_000))
        await until(lambda: running.broker._pulls.held == 1)
        await running.broker.drain()
        assert (await soon(parked)).code == 19
        await soon(client.closed.wait())
        assert running.broker._peers.connected == {}
        with pytest.raises(ConnectionError):
            await running.client()


async def test_silent_connection_is_closed_and_a_live_one_is_not(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        silent, live = await running.client(), await running.client()
        peers = running.broker._peers
        for _ in range(peers_module._IDLE_CHECKS + 1):
            await live.ask(105, {"topic": "TBW102"})
            peers._close_idle()
        await soon(silent.closed.wait())
        assert (await live.ask(105, {"topic": "TBW102"})).code == 0


async def test_reading_stops_while_too_many_answers_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "BACKLOG_MAX", 4)
    async with serving(tmp_path) as running:
        client = await running.client()
        peers, sequencer = running.broker._peers, running.broker._sequencer
        peers.waiting = 10
        assert (await client.ask(105, {"topic": "TBW102"})).code == 0
        waiting = client.expect(900)
        client.write(command(105, 900, {"topic": "TBW102"}))
        await turns()
        assert not waiting.done(), "nothing more is read"
        peers.waiting = 0
        peers.flush()
        assert (await soon(waiting)).code == 0
        assert sequencer.idle


async def test_handler_that_breaks_is_answered_with_code_1(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:

        def broken(*_: Any) -> None:
            raise ZeroDivisionError("a bug")

        running.broker._gateway.handlers[105] = broken
        client = await running.client()
        answer = await client.ask(105, {"topic": "T"})
        assert (answer.code, answer.remark) == (1, "ZeroDivisionError: a bug")
        assert (await client.ask(106)).code == 0


async def test_what_a_peer_does_wrong_is_said_once_and_then_with_how_often(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it comes again and again on new connections. Another kind of mistake is said at once."""
    caplog.set_level(logging.INFO, "halfmq.gateway")
    async with serving(tmp_path) as running:
        peers = running.broker._peers
        for _ in range(5):
            client = await running.client()
            for _ in range(100):
                assert (await client.ask(310, {"e": "no number"})).code == 1
            client.write(b"\xff\xff\xff\xff")
            await client.closed.wait()
        told = [record.getMessage() for record in caplog.records]
        assert [text.split(": ")[1] for text in told] == ["fields of command 310", "it is closed"]
        monkeypatch.setattr(peers.log_throttle, "_rest_s", 0)
        caplog.clear()
        assert (await (await running.client()).ask(310, {"e": "no number"})).code == 1
        assert "(500 times since the last line)" in caplog.messages[0]


async def test_answers_of_the_peer_are_dropped(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        answer = command(0, 5, {}).replace(b'"flag": 0', b'"flag": 1')
        client.write(answer)
        assert (await client.ask(106)).code == 0
        assert not client.expect(5).done()


async def test_who_asks_for_what_is_not_offered_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(tmp_path) as running:
        for _ in range(3):
            client = await running.client()
            assert (await client.ask(200_050, {"consumerGroup": "Poppers", "topic": "T"})).code == 3
        (said,) = [record.getMessage() for record in caplog.records if record.name == "halfmq.unsupported_requests"]
        assert "group Poppers: command 200050 (POP_MESSAGE)" in said


async def test_tls_on_a_plain_port_is_closed_and_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(tmp_path) as running:
        for _ in range(3):
            client = await running.client()
            client.write(bytes([22, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3]))
            await soon(client.closed.wait())
        warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert len(warnings) == 1
        assert "TLS handshake" in warnings[0]


async def test_nothing_behind_a_frame_that_closes_the_connection_is_served(tmp_path: Path) -> None:
    """However the bytes were cut on their way: in one read as in two."""
    async with serving(tmp_path) as running:
        before = running.log_bytes()
        client = await running.client()
        client.write(b"\0\0\0\x08\0\0\0\4nope" + command(310, 7, send_ext("T", "P", 0, {}), b"x"))
        await soon(client.closed.wait())
        await until(lambda: not running.broker._peers.connected and running.broker._sequencer.idle)
        assert running.log_bytes() == before


async def test_both_ports_take_every_command(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        for names in (False, True):
            client = await running.client(names=names)
            assert (await client.ask(105, {"topic": "TBW102"})).code == 0
            assert (await client.ask(310, send_ext("T", "P", 0, {}), b"x")).code == 0


async def test_client_that_does_not_read_is_not_read_from(tmp_path: Path) -> None:
    """Goal: answers to a peer that never reads do not pile up. Method: ask for far more than sockets buffer."""
    async with serving(tmp_path, segment_bytes=16 << 20) as running:
        client = await running.client()
        assert (await client.send("T", bytes(1 << 20), unique="1" * 32)).code == 0
        _, writer = await asyncio.open_connection("127.0.0.1", running.ports.broker, limit=1024)
        place = (await client.pull("T")).body[28:36]
        ask = command(33, 1, {"offset": str(int.from_bytes(place, "big"))})
        for _ in range(300):
            writer.write(ask)
            await asyncio.sleep(0)
        connection = max(running.broker._peers.connected.values(), key=lambda one: one.number)
        await until(lambda: connection.is_full)
        await turns(300)
        assert connection.transport.get_write_buffer_size() < 64 << 20
        writer.transport.abort()


async def test_requests_of_one_read_wait_while_their_answers_are_not_taken(tmp_path: Path) -> None:
    """Goal: small requests do not make the broker hold their large answers. Method: 60 in one write, of 1 MiB each."""
    async with serving(tmp_path, segment_bytes=16 << 20) as running:
        client = await running.client()
        assert (await client.send("T", bytes(1 << 20), unique="1" * 32)).code == 0
        reader, writer = await asyncio.open_connection("127.0.0.1", running.ports.broker, limit=1024)
        ask = pull_ext("T", "TOOLS_CONSUMER", 0, 0)
        ask["sysFlag"] = "4"
        writer.write(b"".join(command(11, number, ask) for number in range(60)))
        await until(lambda: len(running.broker._peers.connected) == 2)
        connection = max(running.broker._peers.connected.values(), key=lambda one: one.number)
        await until(lambda: connection._later and connection.is_full)
        await turns(300)
        assert connection.transport.get_write_buffer_size() < 4 << 20
        for _ in range(60):
            await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        assert not connection._later
        assert not connection.is_full
        writer.write(command(106, 1))
        assert await soon(reader.readexactly(4))
        writer.transport.abort()
