"""`halfmq tx` against a running broker: what is shown, what it takes to decide, and exit codes for scripts."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.in_process import Running, serving
from typer.testing import CliRunner, Result

from halfmq.cli import tx

ONE = "AC10000100002A9F0000000000000001"
TWO = "AC10000100002A9F0000000000000002"


async def run(running: Running, *arguments: str, typed: str | None = None, **environment: str) -> Result:
    url = f"127.0.0.1:{running.ports.names}"
    invoke: Any = CliRunner().invoke
    return await asyncio.to_thread(invoke, tx.app, [*arguments, "--url", url], input=typed, env=environment)


async def test_list_show_and_decide(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        assert "0 undecided" in (await run(running, "list")).output
        await client.half("orders", b"one", unique=ONE)
        await client.half("orders", b"two", unique=TWO)
        listed = await run(running, "list")
        assert (listed.exit_code, "nobody to ask" in listed.stdout, "1 of 1" in listed.stdout) == (0, True, True)
        assert ONE in listed.stdout
        assert ONE not in (await run(running, "list", "--older", "1h")).stdout
        document = json.loads((await run(running, "list", "--json", "--max", "1")).stdout)
        assert (document["total"], [row["tx_id"] for row in document["transactions"]]) == (2, [ONE])
        told = await run(running, "show", ONE)
        assert "no producer of group P is connected" in told.stdout or "immune" in told.stdout
        assert json.loads((await run(running, "show", ONE, "--json")).stdout)["state"] == "UNDECIDED"

        done = await run(running, "commit", ONE, "--operator", "ada", "--yes")
        assert (done.exit_code, f"{ONE} of group P is COMMITTED" in done.stdout) == (0, True)
        again = await run(running, "commit", ONE, "--operator", "ada")
        assert (again.exit_code, "already COMMITTED" in again.stdout) == (0, True), "nothing to confirm"
        assert (await run(running, "rollback", ONE, "--operator", "ada")).exit_code == 4
        done = await run(running, "rollback", TWO, "--reason", "test", "--yes", HALFMQ_OPERATOR="bob")
        assert "is ROLLED_BACK" in done.stdout
        assert (await client.ask(30, {"topic": "orders", "queueId": "0"})).ext == {"offset": "1"}


async def test_nothing_is_decided_without_a_name_a_confirmation_and_the_right_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        await client.half("orders", b"one", unique=ONE)
        assert (await run(running, "commit", ONE, "--yes")).exit_code == 2
        unconfirmed = await run(running, "commit", ONE, "--operator", "ada")
        assert (unconfirmed.exit_code, "--yes" in unconfirmed.output) == (2, True)
        monkeypatch.setattr(tx, "_has_terminal", lambda: True)
        assert (await run(running, "commit", ONE, "--operator", "ada", typed="yes\n")).exit_code == 1
        assert ONE in (await run(running, "list")).stdout
        confirmed = await run(running, "commit", ONE, "--operator", "ada", typed=f"{ONE}\n")
        assert (confirmed.exit_code, "is COMMITTED" in confirmed.stdout) == (0, True)


async def test_exit_codes_tell_scripts_what_is_wrong(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        assert (await run(running, "show", "never")).exit_code == 3
        assert (await run(running, "commit", "never", "--operator", "ada", "--yes")).exit_code == 3
        assert (await run(running, "list", "--older", "soon")).exit_code == 2
        assert (await run(running, "list", "--max", "0")).exit_code == 2
        await client.half("orders", b"one", unique=ONE, HMQ_TX_ID="T-1", HMQ_TX_INDEX="0")
        assert (await run(running, "commit", "T-1", "--operator", "ada", "--yes")).exit_code == 4
    nobody = await run(running, "list")
    assert (nobody.exit_code, "is the broker running" in nobody.output) == (1, True)
