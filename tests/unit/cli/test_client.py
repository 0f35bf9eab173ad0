"""`halfmq client` against a running broker."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.in_process import Running, serving
from tests.support.waiting import until
from typer.testing import CliRunner, Result

from halfmq import AsyncClient
from halfmq.cli import client
from halfmq.runtime.disk import RealDisk
from halfmq.store.dump import dump_store
from halfmq.wire.remoting.codes import HMQ_KICK_CLIENT

pytestmark = pytest.mark.timeout(60)
NAMED = ("--operator", "ada", "--reason", "ticket 17")


async def run(running: Running, *arguments: str) -> Result:
    invoke: Any = CliRunner().invoke
    return await asyncio.to_thread(invoke, client.app, [*arguments, "--url", f"127.0.0.1:{running.ports.names}"])


async def listed(running: Running, *arguments: str) -> list[Any]:
    done = await run(running, "list", *arguments, "--json")
    assert done.exit_code == 0, done.output
    found: list[Any] = json.loads(done.stdout)["clients"]
    return found


async def test_a_client_is_listed_with_its_groups_and_closed(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        noisy, other = await running.client(), await running.client()
        await noisy.heartbeat("noisy@1", producers=["shop"])
        await other.heartbeat("other@1", producers=["shop"])
        found = {row["client_id"]: row for row in await listed(running, "--group", "shop")}
        assert found.keys() == {"noisy@1", "other@1"}
        assert found["noisy@1"]["produces"] == ["shop"]
        done = await run(running, "kick", "noisy@1", *NAMED, "--preview")
        assert (done.exit_code, done.stdout) == (0, "1 connections of noisy@1 would be closed\n")
        assert (await run(running, "kick", "noisy@1", *NAMED)).exit_code == 2, "without a terminal it takes --yes"
        assert len(await listed(running, "--group", "shop")) == 2
        done = await run(running, "kick", "noisy@1", *NAMED, "--yes")
        assert (done.exit_code, done.stdout) == (0, "noisy@1 is closed: 1 connections\n"), done.output
        await until(lambda: "noisy@1" not in str(running.state.producer_groups["shop"].session.members), "it is gone")
        assert [row["client_id"] for row in await listed(running, "--group", "shop")] == ["other@1"]
        assert (await run(running, "kick", "noisy@1", *NAMED, "--yes")).exit_code == 3
        (acted,) = [
            line for line in map(json.loads, dump_store(RealDisk(), tmp_path)) if line["kind"] == "operator_acted"
        ]
        assert (acted["action"], acted["subject"], acted["name"], acted["reason"]) == (
            "kick_client", "client noisy@1", "ada", "ticket 17",
        )  # fmt: skip


async def test_one_connection_is_closed_by_its_number_and_the_client_comes_back(tmp_path: Path) -> None:
    async with (
        serving(tmp_path) as running,
        AsyncClient(f"127.0.0.1:{running.ports.names}", group="shop") as mq,
        mq.consumer("orders", group="billing") as messages,
    ):
        await mq.send("orders", "before")
        (row,) = await listed(running, "--group", "billing")
        done = await run(running, "kick", str(row["connection"]), *NAMED, "--yes")
        assert done.exit_code == 0, done.output
        await mq.send("orders", "after")
        bodies = set()
        while len(bodies) < 2:
            message = await messages.get(30)
            assert message is not None
            bodies.add(message.text())
            message.ack()
        assert bodies == {"before", "after"}


async def test_who_kicks_says_whom_and_why_and_never_itself(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        one = await running.client()
        await one.heartbeat("me", producers=["shop"])
        named = {"operator": "ada", "reason": "why"}
        assert (await one.ask(HMQ_KICK_CLIENT, {**named, "clientId": "me"})).code == 1
        for wrong in (
            named, {**named, "clientId": "me", "connection": "1"}, {"clientId": "me", "operator": "ada"},
            {"clientId": "me", "reason": "why"},
        ):  # fmt: skip
            assert (await one.ask(HMQ_KICK_CLIENT, wrong)).code == 29, wrong
        assert b"operator_acted" not in b"".join(dump_store(RealDisk(), tmp_path))
