"""A real broker and a real HTTP client: health, undecided transactions, and nothing that a crash could take back."""

import asyncio
import http.client
import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.in_process import Hand, Running, config, serving
from tests.support.ports import free_port

from halfmq.broker.broker import Broker
from halfmq.core.session import DiskSpace
from halfmq.errors import PortTaken
from halfmq.runtime.clock import SystemClock
from halfmq.runtime.disk import RealDisk
from halfmq.runtime.entropy import SystemEntropy
from halfmq.store.store import Durability


async def asked(running: Running, *targets: str, method: str = "GET") -> list[tuple[int, Any]]:
    """Status and JSON of these targets, one after another on one kept connection."""

    def ask() -> list[tuple[int, Any]]:
        client = http.client.HTTPConnection("127.0.0.1", running.ports.http or 0, timeout=10)
        client.connect()
        kept, told = client.sock, []
        for target in targets:
            client.request(method, target)
            response = client.getresponse()
            told.append((response.status, json.loads(response.read())))
            assert response.headers["Content-Type"] == "application/json"
            assert client.sock is kept, "one connection for all"
        client.close()
        return told

    return await asyncio.to_thread(ask)


async def test_undecided_transactions_are_listed_page_by_page(tmp_path: Path) -> None:
    async with serving(tmp_path, http_port=0) as running:
        client = await running.client()
        for number in range(3):
            await client.half("orders", b"x", unique=f"{number:032X}")
        await client.half("stock", b"x", unique="F" * 32, group="Q")
        (status, page), *_ = await asked(running, "/transactions/undecided?group=P&max=2")
        assert (status, page["total"], page["next"]) == (200, 3, 2)
        assert [row["tx_id"] for row in page["transactions"]] == [f"{number:032X}" for number in range(2)]
        assert (page["transactions"][0]["group"], page["transactions"][0]["topics"]) == ("P", ["orders"])
        (_, last), (_, everything) = await asked(
            running, f"/transactions/undecided?group=P&max=2&from={page['next']}", "/transactions/undecided"
        )
        assert (last["next"], [row["tx_id"] for row in last["transactions"]]) == (0, [f"{2:032X}"])
        assert (everything["total"], len(everything["transactions"])) == (4, 4)


async def test_what_cannot_be_is_refused_and_the_connection_lives(tmp_path: Path) -> None:
    async with serving(tmp_path, http_port=0) as running:
        told = await asked(
            running, "/", "/health?x=1", "/transactions/undecided?max=0", "/transactions/undecided?from=x",
            "/transactions/undecided?grup=P", "/transactions/undecided?max=1&max=2", "/?a&b", "/health",
            "/transactions/undecided?" + "&".join("group=P" for _ in range(99)),
        )  # fmt: skip
        assert [status for status, _ in told] == [404, 400, 400, 400, 400, 400, 404, 200, 400]
        assert told[2][1] == {"error": "max: 1 to 1000"}
        assert [status for status, _ in await asked(running, "/health", "/transactions/undecided", method="PUT")] == [
            405,
            405,
        ]


async def test_health_says_why_a_broker_does_not_serve(tmp_path: Path) -> None:
    async with serving(tmp_path, http_port=0, drain_ms=500) as running:
        assert await asked(running, "/health") == [(200, {"serving": True})]
        running.broker._sequencer.engine.note(DiskSpace(True))
        ((status, told),) = await asked(running, "/health")
        assert (status, told["serving"], told["reason"].split(":")[0]) == (503, False, "disk full")
        draining = asyncio.create_task(running.broker.drain())
        await asyncio.sleep(0.05)
        ((status, told),) = await asked(running, "/health")
        assert (status, told["reason"].split(":")[0]) == (503, "draining")
        await draining
        with pytest.raises(ConnectionError):
            await asked(running, "/health")


async def test_health_of_a_broker_that_failed_is_still_told(tmp_path: Path) -> None:
    async with serving(tmp_path, http_port=0) as running:
        running.broker._sequencer.sync_failed(OSError(5, "Input/output error"))
        ((status, told),) = await asked(running, "/health")
        assert (status, "Input/output error" in told["reason"]) == (503, True)


async def test_nothing_is_told_that_a_crash_could_take_back(tmp_path: Path) -> None:
    """Goal: the list waits for the disk while the half in it does; health does not wait."""
    hand = Hand()
    async with serving(tmp_path, make_syncer=hand, durability=Durability.FSYNC, http_port=0) as running:
        hand.flush.run()
        client = await running.client()
        half = asyncio.create_task(client.half("orders", b"one", unique="A" * 32))
        while not running.state.producer_groups:
            await asyncio.sleep(0.001)
        told = asyncio.create_task(asked(running, "/transactions/undecided"))
        assert await asked(running, "/health") == [(200, {"serving": True})]
        await asyncio.sleep(0.05)
        assert not told.done()
        while not told.done():
            hand.flush.run()
            await asyncio.sleep(0.001)
        assert ((await told)[0][1]["total"], (await half).code) == (1, 0)


async def test_there_is_no_http_by_default_and_a_taken_port_is_an_error_of_the_start(tmp_path: Path) -> None:
    async with serving(tmp_path / "one") as running:
        assert (running.ports.http, running.broker._http) == (None, None)
    port = free_port()
    async with serving(tmp_path / "one", http_port=port) as running:
        assert running.ports.http == port
        broker = Broker(
            config(tmp_path / "two", http_port=port),
            RealDisk(),
            SystemClock(),
            SystemEntropy(),
            asyncio.get_running_loop(),
        )
        with pytest.raises(PortTaken, match=f"the HTTP service cannot listen on 127.0.0.1:{port}") as caught:
            await broker.start()
        broker.close()
        assert "--http-port" in caught.value.hint
