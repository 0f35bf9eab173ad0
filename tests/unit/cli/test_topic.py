"""`halfmq topic` against a running broker."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.in_process import Running, serving
from typer.testing import CliRunner, Result

from halfmq import AsyncClient
from halfmq.cli import topic

pytestmark = pytest.mark.timeout(60)


async def run(running: Running, *arguments: str, typed: str | None = None) -> Result:
    invoke: Any = CliRunner().invoke
    return await asyncio.to_thread(
        invoke, topic.app, [*arguments, "--url", f"127.0.0.1:{running.ports.names}"], input=typed
    )


async def document(running: Running, *arguments: str) -> Any:
    done = await run(running, *arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


async def send(running: Running, name: str, *bodies: str) -> None:
    async with AsyncClient(f"127.0.0.1:{running.ports.names}", group="shop") as mq:
        for body in bodies:
            await mq.send(name, body)


async def test_a_topic_is_created_shown_changed_and_deleted(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        done = await run(running, "create", "orders", "--queues", "2", "--type", "transaction", "--preview")
        assert (done.exit_code, "would be created" in done.stdout) == (0, True)
        assert "orders" not in running.state.topics_by_name, "a preview changes nothing"
        done = await run(running, "create", "orders", "--queues", "2", "--type", "transaction")
        assert (done.exit_code, done.stdout) == (
            0,
            "topic orders is created on broker halfmq: queues 2, permission rw, type TRANSACTION, not ordered\n",
        )
        made = running.state.topics_by_name["orders"]
        assert (made.read_queues, made.write_queues, made.message_type) == (2, 2, "TRANSACTION")
        assert (await run(running, "create", "orders")).exit_code == 4

        await send(running, "orders", "one", "two", "three")
        listed = await document(running, "list")
        row = {"topic": "orders", "queues": 2, "messages": 3, "permission": "rw", "type": "TRANSACTION"}
        assert listed == {"total": 1, "topics": [row]}
        shown = await document(running, "show", "orders")
        assert [one["queue"] for one in shown["queues"]] == [0, 1]
        assert sum(one["end"] for one in shown["queues"]) == 3

        done = await run(running, "set", "orders", "--permission", "r", "--preview")
        assert "it would have: queues 2, permission r," in done.stdout
        assert running.state.topics_by_name["orders"].permission == 6
        done = await run(running, "set", "orders", "--permission", "r", "--ordered")
        assert "it has: queues 2, permission r, type TRANSACTION, ordered" in done.stdout, "what is not given stays"
        assert running.state.topics_by_name["orders"].permission == 4
        assert "stays as it is" in (await run(running, "set", "orders", "--permission", "r")).stdout

        done = await run(running, "delete", "orders", "--preview")
        assert "3 messages" in done.stderr
        assert "orders" in running.state.topics_by_name
        assert (await run(running, "delete", "orders")).exit_code == 2, "without a terminal it takes --yes"
        assert "orders" in running.state.topics_by_name
        done = await run(running, "delete", "orders", "--yes")
        assert (done.exit_code, done.stdout) == (0, "topic orders is deleted\n")
        assert "orders" not in running.state.topics_by_name


async def test_queues_with_messages_are_not_taken_away(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        assert (await run(running, "create", "orders", "--queues", "3")).exit_code == 0
        await send(running, "orders", *"abcdef")
        done = await run(running, "set", "orders", "--queues", "1")
        assert (done.exit_code, "queue" in done.stderr) == (4, True), done.output
        assert running.state.topics_by_name["orders"].read_queues == 3


async def test_topics_of_groups_are_listed_only_on_request(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        await (await running.client()).ask(200, body=b'{"groupName":"reader"}')
        await send(running, "orders", "x")
        assert [one["topic"] for one in (await document(running, "list"))["topics"]] == ["orders"]
        every = [one["topic"] for one in (await document(running, "list", "--all"))["topics"]]
        assert {"orders", "%RETRY%reader"} <= set(every)


async def test_what_is_absent_or_wrong_has_its_own_status(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        for absent in (("show", "no"), ("set", "no", "--queues", "1"), ("delete", "no", "--yes")):
            done = await run(running, *absent)
            assert (done.exit_code, "there is no topic no" in done.stderr) == (3, True), done.output
        assert (await run(running, "set", "orders")).exit_code == 2
        assert (await run(running, "create", "a b")).exit_code == 2
    assert (await run(running, "list")).exit_code == 1
