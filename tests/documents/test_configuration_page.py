"""docs/configuration.md, as it stands."""

import re
from pathlib import Path

import pytest

from halfmq.model.runtime_settings import RUNTIME, Changes
from tests.documents.blocks import blocks_of
from tests.documents.pages import commands, output
from tests.documents.shell import shell
from tests.support.served import Served

pytestmark = pytest.mark.slow

_HERE = "tests/documents/test_configuration_page.py"


def test_the_file_and_the_environment_give_what_is_shown(tmp_path: Path) -> None:
    file, console = blocks_of(f"{_HERE}::test_the_file_and_the_environment_give_what_is_shown")
    (tmp_path / "halfmq.toml").write_text(file.text)
    (command,) = commands(console)
    said = shell(command, tmp_path).stdout.splitlines()
    shown = output(console).splitlines()
    assert shown[-1] == "..."
    assert said[: len(shown) - 1] == shown[:-1]
    assert len(said) > len(shown)


def test_a_running_broker_says_what_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (console,) = blocks_of(f"{_HERE}::test_a_running_broker_says_what_is_shown")
    (command,) = commands(console)
    monkeypatch.setenv("HALFMQ_RETENTION_HOURS", "24")
    broker = Served(tmp_path / "data", tmp_path / "log")
    broker.start()
    try:
        said = shell(command, tmp_path, environment={"HALFMQ_URL": broker.url}).stdout
    finally:
        broker.stop()
    assert said.splitlines() == output(console).splitlines()


def without_times(text: str) -> str:
    return re.sub(r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d", "TIME", text)


def test_a_changed_setting_says_what_is_shown(tmp_path: Path) -> None:
    """The commands, and what the next starts say: one with the same configuration, and one with another."""
    console, held, lost = blocks_of(f"{_HERE}::test_a_changed_setting_says_what_is_shown")
    broker = Served(tmp_path / "data", tmp_path / "log")
    broker.start()
    try:
        said = ""
        for command in commands(console):
            done = shell(command, tmp_path, environment={"HALFMQ_URL": broker.url})
            said += f"$ {command}\n{done.stderr}{done.stdout}"
        assert without_times(said).splitlines() == without_times(console.text).splitlines()
        for options, shown in (((), held), (("--retention-hours", "48"), lost)):
            broker.kill()
            broker.options = options
            broker.start()
            assert without_times(shown.text.strip()) in without_times(broker.log.read_text())
    finally:
        broker.stop()


def test_the_page_says_of_each_setting_that_may_change_since_when_it_counts() -> None:
    text = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    table = text.partition("| may change | since when it counts |")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    found = {name: effect for names, effect in rows for name in re.findall(r"`(\w+)`", names)}
    assert found == {name: row.effect for name, row in RUNTIME.items() if isinstance(row, Changes)}
