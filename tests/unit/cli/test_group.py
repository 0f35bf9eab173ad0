"""`halfmq group` against a running broker."""

import asyncio
from pathlib import Path
from typing import Any

from tests.support.in_process import Running, serving
from typer.testing import CliRunner, Result

from halfmq import limits
from halfmq.cli import group
from halfmq.model.settings import GroupSettings


async def run(running: Running, *arguments: str) -> Result:
    invoke: Any = CliRunner().invoke
    return await asyncio.to_thread(invoke, group.app, [*arguments, "--url", f"127.0.0.1:{running.ports.names}"])


async def test_a_hold_is_set_listed_and_released(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        done = await run(running, "hold", "archive", "orders", "stock")
        assert (done.exit_code, done.stdout) == (0, "group archive holds orders, stock, until 7 days old\n")
        assert running.state.groups["archive"] == GroupSettings("archive", hold_topics=("orders", "stock"))
        done = await run(running, "hold", "audit", "orders", "--max-age-hours", "0")
        assert "whatever their age" in done.stdout
        assert running.state.groups["audit"].hold_ms == 0
        await (await running.client()).ask(200, body=b'{"groupName":"reader"}')
        assert (await run(running, "holds")).stdout == (
            "archive: orders, stock, until 7 days old\naudit: orders, whatever their age\n"
        )
        assert (await run(running, "release", "archive")).exit_code == 0
        assert running.state.groups["archive"] == GroupSettings("archive", hold_ms=limits.HOLD_MS)
        assert (await run(running, "holds")).stdout == "audit: orders, whatever their age\n"


async def test_a_mistake_and_a_broker_that_is_away_are_told_apart(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        for wrong in ("no way", "", "orders:stock"):  # the last ones would hold nothing, and two topics
            refused = await run(running, "hold", "archive", "orders", wrong)
            assert (refused.exit_code, f"topic {wrong!r}" in refused.stderr) == (2, True)
        assert "archive" not in running.state.groups
        assert (await run(running, "hold", "archive")).exit_code == 2
    away = await run(running, "holds")
    assert (away.exit_code, "--url" in away.stderr) == (1, True)
    assert CliRunner().invoke(group.app, ["holds", "--url", "http://h"]).exit_code == 2
