"""`halfmq config set` and `unset` against a running broker."""

import asyncio
import json
from pathlib import Path
from typing import Any, get_args

import pytest
from tests.support.in_process import Running, serving
from typer.testing import CliRunner, Result

from halfmq.cli import config
from halfmq.cli.serve import KINDS
from halfmq.core import runtime_settings
from halfmq.core.commands import Actor, SetSetting
from halfmq.model.runtime_settings import CHANGEABLE, RUNTIME, Changes
from halfmq.model.shown_settings import ShownSetting

pytestmark = pytest.mark.timeout(60)
GIVEN = {
    "data": ShownSetting("/data", "option", "--data"),
    "durability": ShownSetting("fsync", "default"),
    "retention_hours": ShownSetting(72.0, "default"),
    "queries_max": ShownSetting(16_384, "option", "--queries-max"),
}
ADA = ("--operator", "ada", "--yes")


async def run(running: Running, *arguments: str) -> Result:
    invoke: Any = CliRunner().invoke
    name, *others = arguments
    return await asyncio.to_thread(invoke, config.app, [name, "--url", f"127.0.0.1:{running.ports.names}", *others])


async def said(running: Running, *arguments: str, status: int = 0) -> str:
    done = await run(running, *arguments)
    assert done.exit_code == status, done.output
    return done.output


def test_the_table_of_what_may_change_has_every_option_with_its_type() -> None:
    assert list(RUNTIME) == list(KINDS)
    for name in CHANGEABLE:
        row = RUNTIME[name]
        assert isinstance(row, Changes)
        (kind,) = [one for one in get_args(KINDS[name]) or (KINDS[name],) if one is not type(None)]
        assert kind is row.kind, name


async def test_a_setting_is_set_shown_and_unset(tmp_path: Path) -> None:
    async with serving(tmp_path, given=GIVEN) as running:
        assert await said(running, "set", "retention_hours", "24", *ADA) == (
            "retention_hours is 72.0 (default)\nretention_hours is 24.0\n"
        )
        _, retention, queries = (await said(running, "get", "retention_hours", "queries_max", "--sources")).splitlines()
        assert retention.startswith("retention_hours  24.0   set at 20")
        assert retention.endswith("Z by ada")
        assert queries == "queries_max      16384  option --queries-max"
        before = await said(running, "set", "retention_hours", "0.5", "--preview", "--operator", "ada")
        assert before.endswith("Z by ada)\nretention_hours would be 0.5\n")
        document = json.loads(await said(running, "set", "queries_max", "5", "--json", *ADA))
        assert document == {"setting": "queries_max", "before": 16_384, "value": 5, "changed": True}
        assert (await said(running, "unset", "retention_hours", *ADA)).endswith(
            "\nretention_hours is 72.0, as configured\n"
        )
        assert running.state.recorded_settings.keys() == {"queries_max"}
        assert "nothing to unset" in await said(running, "unset", "retention_hours", *ADA, status=1)


async def test_a_change_needs_a_confirmation_and_a_name(tmp_path: Path) -> None:
    async with serving(tmp_path, given=GIVEN) as running:
        assert "use --yes" in await said(running, "set", "queries_max", "5", "--operator", "ada", status=2)
        assert "who changes the setting" in await said(running, "set", "queries_max", "5", "--yes", status=2)
        assert not running.state.recorded_settings


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (("retention_hors", "5"), 3, "no setting retention_hors; the nearest one is retention_hours"),
        (("queries_max", "many"), 2, "Invalid value for '--queries-max'"),
        (("queries_max", "--", "-1"), 2, "the limit of queries must not be negative"),
        (("retention_hours", "1e9"), 2, "0 to 876,600 hours"),
        (("data", "/elsewhere"), 2, "data does not change while the broker runs: the store is opened with it"),
        (("durability", "memory"), 2, "durability does not change while the broker runs"),
    ],
)
async def test_what_cannot_be_set_is_refused(
    tmp_path: Path, arguments: tuple[str, ...], status: int, text: str
) -> None:
    async with serving(tmp_path, given=GIVEN) as running:
        assert text in await said(running, "set", *ADA, *arguments, status=status)
        assert not running.state.recorded_settings


async def test_yes_and_no_are_written_as_in_the_environment(tmp_path: Path) -> None:
    async with serving(tmp_path, given={"auto_create_topics": ShownSetting(True, "default")}) as running:
        for text, value in (("false", False), ("yes", True), ("0", False)):
            await said(running, "set", "auto_create_topics", text, *ADA)
            assert running.state.settings.auto_create_topics is value


async def test_a_setting_of_a_later_version_can_be_unset(tmp_path: Path) -> None:
    """Its record is in the log of a broker that was replaced by an earlier version."""
    async with serving(tmp_path, given=GIVEN) as running:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(runtime_settings, "CHANGEABLE", (*CHANGEABLE, "of_tomorrow"))
            done = asyncio.get_running_loop().create_future()
            running.broker._sequencer.submit(
                SetSetting("of_tomorrow", 5, 4, Actor("ada", "", "")), lambda _, reply: done.set_result(reply)
            )
            await done
    async with serving(tmp_path, given=GIVEN) as running:
        assert "of_tomorrow" not in await said(running, "get")
        await said(running, "unset", "of_tomorrow", *ADA)
        assert not running.state.recorded_settings
