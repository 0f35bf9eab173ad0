"""Limits and policy of a producer group over the wire: durable, named, and what they do is said."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.in_process import serving
from tests.support.raw_client import Answer, RawClient
from tests.support.waiting import until
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


async def until_parked(client: RawClient) -> None:
    async def is_parked() -> bool:
        return (await stats(client, "P"))[0]["set_aside"] > 0

    await until(is_parked, "its policy parks it")


async def test_a_policy_rolls_back_after_its_checks_says_so_everywhere_and_survives_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path, settings=QUICK) as running:
        client = await running.client()
        set_ = await change(client, check_limit=2, past_limit="rollback")
        assert (set_.code, json.loads(set_.body)["set_by"]) == (0, "ada")
        await client.heartbeat("me", producers=["P"])
        await client.half("orders", b"one", unique=ONE)
        for _ in range(2):
            client.tell(37, answered(await next_check(client), 0))
        await until(lambda: not running.state.producer_groups["P"].undecided, "the policy rolls it back")
        told = await client.ask(STORY, {"txId": ONE})
        assert told.ext["state"] == "ROLLED_BACK"
        assert "decided by the policy of its producer group" in json.loads(told.body)[0]
        row = running.broker._store.transaction_row(0)
        assert (row.state, row.decided_by, row.checks) == (3, 5, 2)
        assert any("operator ada from 127.0.0.1" in line for line in caplog.messages)
        assert f"transaction {ONE} of group P: rolled back by the check policy, after 2 checks" in caplog.messages
    async with serving(tmp_path, settings=QUICK) as running:
        stands = json.loads((await change(await running.client())).body)
        assert (stands["check_limit"], stands["past_limit"], stands["set_by"]) == (2, "rollback", "ada")


async def test_what_was_parked_is_listed_as_undecided_also_after_a_restart_and_taken_up_by_asking(
    tmp_path: Path,
) -> None:
    """It must be told to be undecided, so that its marker stays."""
    some = json.dumps([ONE, TWO]).encode()
    async with serving(tmp_path, settings=QUICK) as running:
        client = await running.client()
        await change(client, check_limit=1, past_limit="set-aside")
        await client.heartbeat("me", producers=["P"])
        half = await client.half("orders", b"one", unique=ONE)
        await until_parked(client)
        assert json.loads((await client.ask(UNDECIDED, None, some)).body) == [ONE]
    async with serving(tmp_path, settings=QUICK) as running:
        client = await running.client()
        await client.heartbeat("me", producers=["P"])
        (figures,) = await stats(client, "P")
        assert (figures["undecided"], figures["set_aside"], figures["past_limit"]) == (1, 1, "set-aside")
        (row,) = json.loads((await client.ask(LIST)).body)
        assert row["set_aside"] == "checks"
        assert json.loads((await client.ask(UNDECIDED, None, some)).body) == [ONE]
        store = running.broker._store
        assert (store.transaction_row(0).state, store.transaction_row(0).decided_by) == (1, 5)
        await client.half("orders", b"another", unique=TWO)
        assert (await next_check(client)).ext["msgId"] == TWO, "who is parked is not checked"
        assert client.pushes.empty()
        asked = await client.ask(ASK, {"txId": ONE})
        assert (asked.code, asked.ext) == (0, {"group": "P", "clientId": "me", "checks": "1"})
        client.tell(37, answered(await next_check(client), 8))
        assert (await client.end(half, ONE, 8)).ext["HMQ_REPEATED"] == "true"
        assert (store.transaction_row(0).state, store.transaction_row(0).decided_by) == (2, 2)


async def test_limits_and_figures_of_a_group_are_told(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        await change(client, undecided_max=1)
        await change(client, operator="bob", skip_age_ms=60_000)
        told = await change(client)
        stands = json.loads(told.body)
        assert (told.code, stands["undecided_max"], stands["skip_age_ms"], stands["set_by"]) == (0, 1, 60_000, "bob")
        assert stands["broker_undecided_max"] == 1_000_000
        for group in "PQ":
            await client.half("orders", b"one", unique=ONE, group=group)
        assert len(await stats(client)) == 2
        (figures,) = await stats(client, "P")
        assert (figures["group"], figures["undecided"], figures["undecided_max"]) == ("P", 1, 1)


async def test_a_flood_of_changes_does_not_fill_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One connection can make thousands of them in a second; what was set stands in the store."""
    async with serving(tmp_path) as running:
        client = await running.client()
        for number in range(70):
            assert (await change(client, f"P{number}", undecided_max=7)).code == 0
        assert sum("set producer group" in line for line in caplog.messages) == 50
