"""A real broker and a real HTTP client: health, undecided transactions, and nothing that a crash could take back."""

import asyncio
import http.client
import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.in_process import Calls, Running, make_broker, serving, serving_by_hand
from tests.support.ports import free_port
from tests.support.waiting import soon, turns, until

from halfmq.broker.broker import Broker
from halfmq.broker.services.transactions import Transactions
from halfmq.core.session import DiskSpace
from halfmq.errors import PortTaken


async def asked(running: Running, *targets: str) -> list[tuple[int, Any]]:
    """Status and JSON of these targets, one after another on one kept connection."""

    def ask() -> list[tuple[int, Any]]:
        client = http.client.HTTPConnection("127.0.0.1", running.ports.http or 0, timeout=10)
        client.connect()
        kept, told = client.sock, []
        for target in targets:
            client.request("GET", target)
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


async def test_findings_are_counted_by_health_and_listed(tmp_path: Path) -> None:
    async with serving(tmp_path, http_port=0) as running:
        client = await running.client()
        half = await client.half("orders", b"x", unique="A" * 32)
        assert (await client.end(half, "A" * 32, 8)).code == 0
        report = {"group": "P", "txId": "A" * 32, "outcome": "ROLLBACK", "source": "bank"}
        assert (await client.ask(29_023, report)).ext["agrees"] == "false"
        (_, health), (_, page), (refused, _) = await asked(
            running, "/health", "/transactions/damaged", "/transactions/damaged?max=0"
        )
        assert (health["damaged"], page["total"], page["waiting"], refused) == (1, 1, 0, 400)
        (row,) = page["transactions"]
        assert (row["tx_id"], row["verdict"], row["local"], row["source"]) == (
            "A" * 32,
            "COMMITTED",
            "ROLLED_BACK",
            "bank",
        )
        forget = {"txId": "A" * 32, "operator": "ada", "reason": "repaired"}
        assert (await client.ask(29_025, forget)).code == 0
        assert (await asked(running, "/health"))[0][1]["damaged"] == 0
    async with serving(tmp_path, http_port=0) as running:
        assert (await asked(running, "/health"))[0][1]["damaged"] == 0


async def test_a_page_that_cannot_be_is_refused_with_what_can(tmp_path: Path) -> None:
    async with serving(tmp_path, http_port=0) as running:
        assert await asked(running, "/transactions/undecided?max=0", "/transactions/undecided?from=x") == [
            (400, {"error": "max: a whole number from 1 to 1000 is expected, not '0'"}),
            (400, {"error": "from: a whole number from 0 to 9223372036854775807 is expected, not 'x'"}),
        ]


async def test_health_says_why_a_broker_does_not_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, sleep = asyncio.Event(), Broker._sleep

    async def held(broker: Broker, seconds: float) -> None:
        await go_on.wait()
        await sleep(broker, seconds)

    monkeypatch.setattr(Broker, "_sleep", held)
    async with serving(tmp_path, http_port=0) as running:
        assert await asked(running, "/health") == [(200, {"serving": True, "damaged": 0})]
        running.broker._sequencer.engine.note(DiskSpace(True))
        ((status, told),) = await asked(running, "/health")
        assert (status, told["serving"], told["reason"].split(":")[0]) == (503, False, "disk full")
        draining = asyncio.create_task(running.broker.drain())
        await asyncio.sleep(0)
        ((status, told),) = await asked(running, "/health")
        assert (status, told["reason"].split(":")[0]) == (503, "draining")
        go_on.set()
        await soon(draining)
        with pytest.raises(ConnectionError):
            await asked(running, "/health")


async def test_nothing_is_told_that_a_crash_could_take_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the list waits for the disk while the half in it does; health does not wait."""
    listed = Calls(monkeypatch, Transactions, "undecided")
    async with serving_by_hand(tmp_path, http_port=0) as (running, hand):
        client = await running.client()
        half = asyncio.create_task(client.half("orders", b"one", unique="A" * 32))
        await until(lambda: running.state.producer_groups)
        reader, writer = await asyncio.open_connection("127.0.0.1", running.ports.http)
        writer.write(b"GET /transactions/undecided HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        told = asyncio.create_task(reader.readuntil(b"}"))
        await until(lambda: listed.seen)
        assert await asked(running, "/health") == [(200, {"serving": True, "damaged": 0})]
        await turns()
        assert not told.done()
        await hand.sync()
        assert b'"total":1' in await soon(told)
        assert (await half).code == 0
        writer.close()


async def test_there_is_no_http_by_default_and_a_taken_port_is_an_error_of_the_start(tmp_path: Path) -> None:
    async with serving(tmp_path / "one") as running:
        assert (running.ports.http, running.broker._http) == (None, None)
    port = free_port()
    async with serving(tmp_path / "one", http_port=port) as running:
        assert running.ports.http == port
        broker = make_broker(tmp_path / "two", http_port=port)
        with pytest.raises(PortTaken, match=f"the HTTP service cannot listen on 127.0.0.1:{port}") as caught:
            await broker.start()
        broker.close()
        assert "--http-port" in caught.value.hint
