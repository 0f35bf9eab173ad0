"""`halfmq send`, `consume` and `peek` against a running broker."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.in_process import Hand, Running, serving
from tests.support.waiting import until
from typer.testing import CliRunner, Result

from halfmq import AsyncClient
from halfmq.cli import consume, peek, send
from halfmq.model.settings import BrokerSettings
from halfmq.store.store import Durability

pytestmark = pytest.mark.timeout(60)
ONE_QUEUE = BrokerSettings(default_topic_queues=1)


async def run(running: Running, app: Any, *arguments: str, typed: bytes | None = None) -> Result:
    invoke: Any = CliRunner().invoke
    return await asyncio.to_thread(invoke, app, [*arguments, "--url", f"127.0.0.1:{running.ports.names}"], input=typed)


async def ok(running: Running, app: Any, *arguments: str, typed: bytes | None = None) -> str:
    done = await run(running, app, *arguments, typed=typed)
    assert done.exit_code == 0, done.output
    return done.stdout


async def peeked(running: Running, *arguments: str) -> list[Any]:
    found: list[Any] = json.loads(await ok(running, peek.app, "orders", *arguments, "--json"))["messages"]
    return found


async def test_what_is_sent_is_found_by_key_id_and_time(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=ONE_QUEUE) as running:
        said = await ok(running, send.app, "orders", "one", "--key", "a", "--tag", "paid", "--property", "shop=7")
        assert said.startswith("orders[0]@0 on broker halfmq, id ")
        sent = json.loads(await ok(running, send.app, "orders", "-", "--json", typed=b"\xff\x00two"))
        await ok(running, send.app, "orders", "three", "--key", "a")
        found = await peeked(running, "--key", "a")
        assert [one["body"] for one in found] == ["one", "three"]
        assert (found[0]["tag"], found[0]["keys"], found[0]["properties"]["shop"]) == ("paid", ["a"], "7")
        (second,) = await peeked(running, "--id", sent["id"])
        assert second["body_base64"] == "/wB0d28="
        assert await peeked(running, "--id", second["offset_id"]) == [second]
        assert [one["offset"] for one in await peeked(running, "--last", "2")] == [1, 2]
        assert [one["offset"] for one in await peeked(running, "--time", "1h", "--max", "2")] == [0, 1]
        for nothing in (("--time", "2999-01-01"), ("--key", "b"), ("--id", "no")):
            assert (await run(running, peek.app, "orders", *nothing)).exit_code == 3, nothing
        assert (await run(running, peek.app, "absent", "--last", "1")).exit_code == 3
        for wrong in ((), ("--last", "1", "--key", "a"), ("--time", "soon")):
            assert (await run(running, peek.app, "orders", *wrong)).exit_code == 2, wrong
        assert running.state.groups == {}, "looking leaves nothing behind"


async def test_a_preview_sends_nothing_and_a_rolled_back_transaction_is_never_read(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=ONE_QUEUE) as running:
        assert "4 bytes would be sent" in await ok(running, send.app, "orders", "four", "--preview")
        assert "orders" not in running.state.topics_by_name
        assert "is ROLLED_BACK" in await ok(running, send.app, "orders", "no", "--tx", "--rollback")
        assert "is COMMITTED" in await ok(running, send.app, "orders", "yes", "--tx")
        assert [one["body"] for one in await peeked(running, "--last", "9")] == ["yes"]
        for wrong in (
            ("x", "--rollback"), ("x", "--property", "novalue"), ("x", "--property", "KEYS=x"), ("x", "--key", ""), ("x", "--sharding-key", ""),
        ):  # fmt: skip
            assert (await run(running, send.app, "orders", *wrong)).exit_code == 2, wrong


async def test_reading_without_a_group_moves_no_offset_and_as_a_group_does(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=BrokerSettings(default_topic_queues=2)) as running:
        async with AsyncClient(f"127.0.0.1:{running.ports.names}", group="shop") as mq:
            for number in range(70):
                await mq.send("orders", str(number))
        lines = (await ok(running, consume.app, "orders", "--json")).splitlines()
        assert {json.loads(line)["body"] for line in lines} == {str(number) for number in range(70)}
        assert len(lines) == 70
        assert await ok(running, consume.app, "orders", "--from", "latest") == ""
        assert len((await ok(running, consume.app, "orders", "--from", "1h", "--json", "--max", "5")).splitlines()) == 5
        assert running.state.groups == {}
        first = (await ok(running, consume.app, "orders", "--group", "tools", "--max", "40", "--json")).splitlines()
        second = (await ok(running, consume.app, "orders", "--group", "tools", "--max", "30", "--json")).splitlines()
        bodies = [json.loads(line)["body"] for line in (*first, *second)]
        assert sorted(bodies, key=int) == [str(number) for number in range(70)], "the group goes on where it was"
        assert (await run(running, consume.app, "orders", "--group", "tools", "--from", "1h")).exit_code == 2
        assert (await run(running, consume.app, "absent")).exit_code == 3


async def test_a_send_without_a_response_is_not_called_a_failure(tmp_path: Path) -> None:
    """The broker syncs nothing any more, so that it confirms nothing."""
    hand = Hand()
    async with serving(tmp_path, settings=ONE_QUEUE, make_syncer=hand, durability=Durability.FSYNC) as running:
        first = asyncio.create_task(run(running, send.app, "orders", "one"))

        async def is_sent() -> bool:
            await hand.sync()
            return first.done()

        await until(is_sent, "the first message is sent")
        assert first.result().exit_code == 0, first.result().output
        done = await run(running, send.app, "orders", "two", "--timeout", "1")
        assert done.exit_code == 5, done.output


async def test_a_body_moves_no_cursor(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=ONE_QUEUE) as running:
        await ok(running, send.app, "orders", "-", typed=b"\x1b[2Jred\nline")
        for said in (
            await ok(running, peek.app, "orders", "--last", "1"), await ok(running, consume.app, "orders"),
        ):  # fmt: skip
            assert "\x1b" not in said
            assert "\\x1b[2Jred\\nline" in said
