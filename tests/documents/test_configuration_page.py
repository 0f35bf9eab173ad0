"""docs/configuration.md, as it stands."""

from pathlib import Path

import pytest

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
