"""A shell completes lines, also of commands whose module is imported for it."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from halfmq.cli.main import COMMANDS, app


def completed(line: str, **variables: str) -> list[str]:
    """What bash is offered for the last word of a line."""
    words = line.split(" ")
    environment = {"_HALFMQ_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    result = CliRunner(env={**environment, **variables}).invoke(app, [], prog_name="halfmq")
    assert result.exit_code == 0, result.output
    return result.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("halfmq ", list(COMMANDS)),
        ("halfmq ser", ["serve"]),
        ("halfmq serve --retention-h", ["--retention-hours"]),
        ("halfmq serve --durability ", ["memory", "fsync"]),
        ("halfmq serve --data x --no-vip", ["--no-vip-channel"]),
        ("halfmq tx li", ["list", "limits"]),
        ("halfmq tx limits orders --past-l", ["--past-limit"]),
        ("halfmq config sh", ["show"]),
        ("halfmq config show --so", ["--sources"]),
        ("halfmq pipeline ing", ["ingest"]),
        ("halfmq pipeline ingest --top", ["--topics"]),
        ("halfmq nonsense ", list(COMMANDS)),
    ],
)
def test_commands_options_and_values_are_offered(line: str, offered: list[str]) -> None:
    assert sorted(completed(line)) == sorted(offered)


def test_what_cannot_be_imported_or_is_wrongly_set_disturbs_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert completed("halfmq serve --retention-h", HALFMQ_PROT="1") == ["--retention-hours"]
    monkeypatch.setitem(COMMANDS, "serve", COMMANDS["serve"]._replace(module="halfmq.cli.not_there"))
    assert completed("halfmq serve --retention-h") == []


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_each_shell_gets_its_script(shell: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"from halfmq.cli.main import app; app(['--show-completion', '{shell}'], prog_name='halfmq')"],
        capture_output=True, text=True, timeout=60, check=False,
        env={"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", "PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "_HALFMQ_COMPLETE" in done.stdout
