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
        (("nosuch", "5"), 3, "the broker has no setting nosuch\n"),
        (("queries_max", "many"), 2, "halfmq config: queries_max: a whole number is expected, not 'many'\n"),
        (
            ("auto_create_topics", "maybe"),
            2,
            "halfmq config: auto_create_topics: true or false is expected, not 'maybe'\n",
        ),
        (("retention_hours", "nan"), 2, "retention_hours: a number is expected, not 'nan'\n"),
        (("retention_hours", "inf"), 2, "retention_hours: a number is expected, not 'inf'\n"),
        (("retention_hours", "1e400"), 2, "retention_hours: a number is expected, not '1e400'\n"),
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


@pytest.mark.parametrize(
    "arguments",
    [
        ("set", "retention_hours", "--", "-5"),
        ("set", "port", "5"),
        ("set", "check_interval_ms", "500000"),
        ("set", "queries_max", "--operator", "", "5"),
        ("set", "nosuch", "5"),
        ("unset", "port"),
        ("unset", "queries_max"),
        ("unset", "nosuch"),
    ],
    ids=" ".join,
)
async def test_a_preview_refuses_what_the_change_would_with_the_same_text(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    name, *others = arguments
    async with serving(tmp_path) as running:
        previewed = await run(running, name, *ADA, "--preview", *others)
        changed = await run(running, name, *ADA, *others)
        assert previewed.exit_code == changed.exit_code != 0
        assert previewed.output == changed.output
        assert not running.state.recorded_settings


async def test_a_preview_of_what_is_possible_changes_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        await said(running, "set", "queries_max", "5", *ADA)
        end = running.state.log_end
        assert "queries_max would be 6" in await said(running, "set", "queries_max", "6", "--preview", *ADA)
        document = json.loads(await said(running, "set", "queries_max", "6", "--preview", "--json", *ADA))
        assert document == {"setting": "queries_max", "before": 5, "value": 6, "changed": False}
        assert "would be 16384, as configured" in await said(running, "unset", "queries_max", "--preview", *ADA)
        assert (running.state.log_end, running.state.recorded_settings["queries_max"].value) == (end, 5)


async def test_what_nobody_knows_cannot_be_unset_and_nothing_is_said_of_its_value(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        output = await said(running, "unset", "retention_hors", *ADA, status=3)
        assert output == "halfmq config: the broker has no setting retention_hors; the nearest one is retention_hours\n"


async def test_the_response_warns_of_a_retention_of_less_than_a_segment(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        size = running.state.settings.segment_bytes
        for more in ((), ("--preview",)):
            output = await said(running, "set", "retention_bytes", "5", *ADA, *more)
            assert f"\nwarning: retention_bytes 5 is less than one segment of the log, {size} bytes. Only" in output
        assert "warning" not in await said(running, "set", "retention_bytes", str(size), *ADA)


async def test_a_broker_that_a_program_started_shows_and_changes_its_settings(tmp_path: Path) -> None:
    """As ``halfmq.testing.Broker``, which was given no options."""
    async with serving(tmp_path, retention_bytes=1 << 30) as running:
        document = json.loads(await said(running, "get", "--json"))
        assert list(document) == list(RUNTIME)
        assert document["queries_max"] == {"value": 16_384, "source": "default", "from": None}
        assert document["retention_bytes"] == {"value": 1 << 30, "source": "given by the program", "from": None}
        assert document["retention_hours"]["value"] == 72.0
        assert document["host"] == {"value": ["127.0.0.1"], "source": "default", "from": None}
        assert (document["data"]["value"], document["log_format"]["value"]) == (str(running.directory), None)
        assert document["name_port"]["value"] == running.ports.names
        await said(running, "set", "queries_max", "5", *ADA)
        assert "queries_max  5" in await said(running, "get", "queries_max")


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
