"""`halfmq query` against a running broker: what is shown, what forgetting takes, and exit codes for scripts."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.in_process import Running, serving
from tests.support.raw_client import Answer, RawClient
from typer.testing import CliRunner, Result

from halfmq.cli import query, requests
from halfmq.model.query_batch import QueryBatch
from halfmq.model.settings import BrokerSettings
from halfmq.wire.remoting.codes import HMQ_DECIDE, HMQ_FORGET_QUERY, HMQ_QUERIES
from halfmq.wire.remoting.half_batches import decide_ext

ORDERS = QueryBatch("app", 7, "r1", "orders")
STOCK = QueryBatch("app", 7, "r2", "stock", "s-2")


async def run(running: Running, *arguments: str, typed: str | None = None) -> Result:
    url = f"127.0.0.1:{running.ports.names}"
    invoke: Any = CliRunner().invoke
    return await asyncio.to_thread(invoke, query.app, [*arguments, "--url", url], input=typed)


async def decide(client: RawClient, batch: QueryBatch) -> Answer:
    ext = {name: str(value) for name, value in decide_ext("G", batch, b"d" * 16).items()}
    return await client.ask(HMQ_DECIDE, ext, b"[]")


async def test_queries_are_listed_and_one_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget = ("forget", "app", "--operator", "ada", "--reason", "gone for good")
    async with serving(tmp_path) as running:
        client = await running.client()
        listed = await run(running, "list")
        assert (listed.exit_code, listed.stdout) == (0, "")
        assert "0 queries" in listed.stderr
        for batch in (ORDERS, STOCK):
            assert (await decide(client, batch)).code == 0
        listed = await run(running, "list")
        assert [line.split() for line in listed.stdout.splitlines()[1:]] == [
            ["app", "orders", "G", "-", "7", "0"], ["app", "stock", "G", "s-2", "7", "0"],
        ]  # fmt: skip
        document = json.loads((await run(running, "list", "--json")).stdout)
        assert (document["total"], [row["topic"] for row in document["queries"]]) == (2, ["orders", "stock"])
        assert (await run(running, "list", "--unused")).stdout == ""

        ambiguous = await run(running, *forget, "--yes")
        assert (ambiguous.exit_code, "--topic, of orders, stock" in ambiguous.stderr) == (2, True)
        unconfirmed = await run(running, *forget, "--topic", "orders")
        assert (unconfirmed.exit_code, "--yes" in unconfirmed.stderr) == (2, True)
        assert "has decided its batches up to 7" in unconfirmed.stderr
        assert "makes its rows visible a second time" in unconfirmed.stderr
        monkeypatch.setattr(requests, "has_terminal", lambda: True)
        assert (await run(running, *forget, "--topic", "orders", typed="yes\n")).exit_code == 1
        assert len(running.state.queries) == 2
        done = await run(running, *forget, "--topic", "orders", typed="app\n")
        assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "query app, topic orders is forgotten")
        assert [one.topic for one in running.state.queries.values()] == ["stock"]
        assert (await run(running, *forget, "--topic", "orders", "--yes")).exit_code == 3
    async with serving(tmp_path) as running:
        assert [one.topic for one in running.state.queries.values()] == ["stock"]
        again = await decide(await running.client(), ORDERS._replace(run="r9"))
        assert (again.code, again.ext["repeated"]) == (0, "false")


async def test_what_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=BrokerSettings(queries_max=1)) as running:
        client = await running.client()
        assert (await decide(client, ORDERS)).code == 0
        full = await decide(client, STOCK)
        assert (full.code, "(--queries-max)" in full.remark, "halfmq query forget" in full.remark) == (2, True, True)
        named = {"query": "app", "queryTopic": "orders", "operator": "ada", "reason": "r"}
        for wrong, code in (({"operator": ""}, 29), ({"reason": " "}, 29), ({"query": "other"}, 1)):
            assert (await client.ask(HMQ_FORGET_QUERY, {**named, **wrong})).code == code, wrong
        for wrong in ({"max": "0"}, {"from": "x"}):
            assert (await client.ask(HMQ_QUERIES, wrong)).code == 29
        assert (await run(running, "forget", "app", "--operator", "ada")).exit_code == 2
    away = await run(running, "list")
    assert (away.exit_code, "--url" in away.stderr) == (1, True)


async def test_very_many_are_listed_page_by_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        for number in range(7):
            await decide(client, QueryBatch(f"q{number}", 0, "r", "T"))
        found = []
        start = "0"
        while start:
            answer = await client.ask(HMQ_QUERIES, {"max": "3", "from": start})
            rows = json.loads(answer.body)
            assert len(rows) <= 3
            found += [row["query"] for row in rows]
            start = answer.ext.get("next", "")
        assert found == [f"q{number}" for number in range(7)]
