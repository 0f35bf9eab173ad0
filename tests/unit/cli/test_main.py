"""The command line as a table of commands, each imported only when it is called."""

import importlib
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from halfmq import __version__
from halfmq.cli.main import COMMANDS, app


def test_help_lists_every_command_without_importing_one() -> None:
    code = (
        "import sys, contextlib, io\n"
        "from halfmq.cli.main import app\n"
        "out = io.StringIO()\n"
        "with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):\n"
        "    app(['--help'])\n"
        "print(out.getvalue())\n"
        "heavy = [name for name in sys.modules if name.split('.')[:2] in (['halfmq', 'broker'], ['halfmq', 'spark'], ['halfmq', 'store'])]\n"
        "assert not heavy, heavy\n"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 0, finished.stderr
    for name, entry in COMMANDS.items():
        assert name in finished.stdout
        assert entry.help.split()[0] in finished.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_loaded_and_explains_itself(name: str) -> None:
    assert hasattr(importlib.import_module(COMMANDS[name].module), "app")
    result = CliRunner().invoke(app, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert "Usage" in result.output


@pytest.mark.parametrize("name", [None, *COMMANDS])
def test_only_the_whole_command_line_offers_completion(name: str | None) -> None:
    arguments = [name, "--help"] if name else ["--help"]
    said = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"}).output
    assert ("--install-completion" in said) is (name is None)
    assert ("--show-completion" in said) is (name is None)


def test_version_is_printed() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output.strip()) == (0, f"halfmq {__version__}")


def test_unknown_command_is_a_usage_error() -> None:
    assert CliRunner().invoke(app, ["nonsense"]).exit_code == 2


def test_missing_module_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMMANDS, "serve", COMMANDS["serve"]._replace(module="halfmq.cli.not_there"))
    result = CliRunner().invoke(app, ["serve"])
    assert result.exit_code == 1
    assert "pip install" in result.output
