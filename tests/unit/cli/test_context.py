"""`halfmq context`: which broker a command talks to without `--url`."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from halfmq.cli import contexts
from halfmq.cli.main import app


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HALFMQ_URL", "")
    monkeypatch.delenv("HALFMQ_CONTEXT", raising=False)


def run(*arguments: str, **environment: str) -> Result:
    invoke: Any = CliRunner().invoke
    return invoke(app, [*arguments], env=environment)


def asked(*arguments: str, **environment: str) -> str:
    """The address that a command could not reach."""
    os.environ["HALFMQ_URL"] = ""  # as in a new process
    result = run(*arguments, **environment)
    assert result.exit_code == 1, result.output
    return result.output.partition("halfmq tx: ")[2].partition(": [")[0]


def test_the_url_then_the_context_that_is_named_then_the_environment_then_the_one_in_use() -> None:
    assert asked("tx", "list") == "127.0.0.1:9876"
    assert run("context", "add", "a", "rocketmq://127.0.0.1:1", "--use").exit_code == 0
    assert run("context", "add", "b", "rocketmq://127.0.0.1:2").exit_code == 0
    assert asked("tx", "list") == "127.0.0.1:1"
    assert asked("tx", "list", HALFMQ_URL="rocketmq://127.0.0.1:3") == "127.0.0.1:3"
    assert asked("--context", "b", "tx", "list", HALFMQ_URL="rocketmq://127.0.0.1:3") == "127.0.0.1:2"
    assert asked("tx", "list", HALFMQ_CONTEXT="b") == "127.0.0.1:2"
    assert asked("--context", "b", "tx", "list", "--url", "rocketmq://127.0.0.1:4") == "127.0.0.1:4"
    assert run("context", "use").exit_code == 0
    assert asked("tx", "list") == "127.0.0.1:9876"


def test_contexts_are_listed_and_removed_and_only_the_owner_reads_them(tmp_path: Path) -> None:
    run("context", "add", "a", "rocketmq://127.0.0.1:1", "--use")
    run("context", "add", "b", "rocketmqs://ada@127.0.0.1:2?secretfile=ada.secret")
    listed = json.loads(run("context", "list", "--json").stdout)
    assert (sorted(listed["urls"]), listed["current"]) == (["a", "b"], "a")
    assert run("context", "list").stdout.splitlines()[1] == "*  a     rocketmq://127.0.0.1:1"
    assert stat.S_IMODE((tmp_path / "halfmq" / "contexts.json").stat().st_mode) == 0o600
    assert run("context", "remove", "a").exit_code == 0
    assert contexts.load() == contexts.Contexts({"b": "rocketmqs://ada@127.0.0.1:2?secretfile=ada.secret"}, "")
    for unknown in (("use", "a"), ("remove", "a")):
        assert run("context", *unknown).exit_code == 3
    refused = run("context", "add", "c", "rocketmq://ada:secret@127.0.0.1:2")
    assert (refused.exit_code, "secret@" in refused.output) == (2, False)
    assert run("context", "add", "\n", "rocketmq://127.0.0.1:2").exit_code == 2


def test_an_unknown_context_and_a_broken_file_are_said_before_a_broker_is_asked(tmp_path: Path) -> None:
    run("context", "add", "a", "rocketmq://127.0.0.1:1")
    unknown = run("--context", "prod", "tx", "list")
    assert (unknown.exit_code, "known: a" in unknown.output) == (2, True)
    (tmp_path / "halfmq" / "contexts.json").write_text("{")
    for command in (("tx", "list"), ("context", "list"), ("context", "add", "b", "rocketmq://127.0.0.1:1")):
        broken = run(*command)
        assert (broken.exit_code, "mend or remove it" in broken.output) == (1, True), command
    assert run("tx", "list", HALFMQ_URL="rocketmq://127.0.0.1:3").output.startswith("halfmq tx: 127.0.0.1:3")
    # A broker starts without: it is not asked for.
    assert "mend" not in run("serve", "--data", "").output
