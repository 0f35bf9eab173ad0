"""Limits and policy of a producer group over the wire: durable, named, and what they do is said."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.support.in_process import serving
from tests.support.raw_client import Answer, RawClient
from tests.unit.broker.remoting.test_checks import answered, next_check

from halfmq.model.settings import BrokerSettings

ASK, PRODUCER, STATS, STORY, LIST, UNDECIDED = 29_006, 29_007, 29_008, 29_003, 29_002, 29_005
ONE = "AC10000100002A9F0000000000000001"
TWO = "AC10000100002A9F0000000000000002"
QUICK = BrokerSettings(check_immunity_ms=50, check_interval_ms=50, check_interval_max_ms=100, check_answer_ms=100)


async def change(client: RawClient, group: str = "P", operator: str = "ada", **fields: Any) -> Answer:
    body = json.dumps(fields).encode() if fields else b""
    return await client.ask(PRODUCER, {"group": group, "operator": operator}, body)


async def stats(client: RawClient, group: str = "") -> list[dict[str, Any]]:
    answer = await client.ask(STATS, {"group": group})
    assert answer.code == 0
    return json.loads(answer.body)


async def until(client: RawClient, state: str) -> list[str]:
    for _ in range(300):
        answer = await client.ask(STORY, {"txId": ONE})
        if answer.ext["state"] == state:
            return list(json.loads(answer.body))
        await asyncio.sleep(0.02)
    raise AssertionError(f"it never became {state}")


async def until_parked(client: RawClient) -> None:
    for _ in range(300):
        if (await stats(client, "P"))[0]["set_aside"]:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it was never parked")


async def test_a_policy_rolls_back_after_its_checks_says_so_everywhere_and_survives_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "halfmq.operators")
    async with serving(tmp_path, settings=QUICK) as running:
        client = await running.client()
        set_ = await change(client, check_limit=2, past_limit="rollback")
        assert (set_.code, json.loads(set_.body)["set_by"]) == (0, "ada")
        await client.heartbeat("me", producers=["P"])
        await client.half("orders", b"one", unique=ONE)
        for _ in range(2):
            client.tell(37, answered(await next_check(client), 0))
        told = await until(client, "ROLLED_BACK")
        assert "decided by the policy of its producer group" in told[0]
        store = running.broker._store
        assert store is not None
        row = store.transaction_row(0)
        assert row is not None
        assert (row.state, row.decided_by, row.checks) == (3, 5, 2)
        lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert any(
            "operator ada from 127.0.0.1" in line and "set producer group P: check limit 2" in line for line in lines
        )
        assert f"the policy of group P: transaction {ONE} was rolled back after 2 checks" in lines
    async with serving(tmp_path, settings=QUICK) as running:
        client = await running.client()
        stands = json.loads((await change(client)).body)
        assert (stands["check_limit"], stands["past_limit"], stands["set_by"]) == (2, "rollback", "ada")


async def test_what_was_parked_is_listed_and_taken_up_by_asking(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=QUICK) as running:
        client = await running.client()
        await change(client, check_limit=1, past_limit="set-aside")
        await client.heartbeat("me", producers=["P"])
        half = await client.half("orders", b"one", unique=ONE)
        await next_check(client)
        await until_parked(client)
        (figures,) = await stats(client, "P")
        assert (figures["undecided"], figures["set_aside"], figures["past_limit"]) == (1, 1, "set-aside")
        (row,) = json.loads((await client.ask(LIST)).body)
        assert row["set_aside"] == "checks"
        store = running.broker._store
        assert store is not None
        table = store.transaction_row(0)
        assert table is not None
        assert (table.state, table.decided_by) == (1, 5)
        asked = await client.ask(ASK, {"txId": ONE})
        assert (asked.code, asked.ext) == (0, {"group": "P", "clientId": "me", "checks": "1"})
        client.tell(37, answered(await next_check(client), 8))
        assert (await client.end(half, ONE, 8)).ext["HMQ_REPEATED"] == "true"
        table = store.transaction_row(0)
        assert table is not None
        assert (table.state, table.decided_by) == (2, 2)


async def test_what_was_parked_is_told_to_be_undecided_so_that_its_marker_stays_and_survives_a_restart(
    tmp_path: Path,
) -> None:
    some = json.dumps([ONE, TWO]).encode()
    async with serving(tmp_path, settings=QUICK) as running:
        client = await running.client()
        await change(client, check_limit=1, past_limit="set-aside")
        await client.heartbeat("me", producers=["P"])
        await client.half("orders", b"one", unique=ONE)
        await until_parked(client)
        assert json.loads((await client.ask(UNDECIDED, None, some)).body) == [ONE]
    async with serving(tmp_path, settings=QUICK) as running:
        client = await running.client()
        await client.heartbeat("me", producers=["P"])
        await asyncio.sleep(0.3)
        assert client.pushes.empty()
        assert (await stats(client, "P"))[0]["set_aside"] == 1
        assert json.loads((await client.ask(UNDECIDED, None, some)).body) == [ONE]
        store = running.broker._store
        assert store is not None
        table = store.transaction_row(0)
        assert table is not None
        assert (table.state, table.decided_by) == (1, 5)


async def test_limits_of_a_group_hold_at_once_and_only_what_is_named_changes(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        await change(client, undecided_max=1)
        assert (await client.half("orders", b"one", unique=ONE)).code == 0
        refused = await client.half("orders", b"two", unique=TWO)
        assert (refused.code, "as many as it may" in (refused.remark or "")) == (2, True)
        await change(client, operator="bob", skip_age_ms=60_000)
        stands = json.loads((await change(client)).body)
        assert (stands["undecided_max"], stands["skip_age_ms"], stands["set_by"]) == (1, 60_000, "bob")
        assert stands["broker_undecided_max"] == 1_000_000
        await client.half("orders", b"three", unique=TWO, group="Q")
        assert len(await stats(client)) == 2
        (figures,) = await stats(client, "P")
        assert (figures["group"], figures["undecided"], figures["undecided_max"]) == ("P", 1, 1)


async def test_what_cannot_be_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        before = running.log_bytes()
        assert (await change(client, operator=" ", check_limit=1)).code == 29
        assert (await change(client, check_limit=3)).code == 29
        assert (await change(client, chek_limit=5)).code == 1
        assert (await client.ask(PRODUCER, {"group": "P", "operator": "ada"}, b"{")).code == 1
        assert running.log_bytes() == before


async def test_a_flood_of_changes_does_not_fill_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One connection can make thousands of them in a second; what was set stands in the store."""
    async with serving(tmp_path) as running:
        client = await running.client()
        for number in range(70):
            assert (await change(client, f"P{number}", undecided_max=7)).code == 0
        lines = [record.getMessage() for record in caplog.records if "set producer group" in record.getMessage()]
        assert len(lines) == 50
