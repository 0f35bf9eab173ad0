"""The two commands as a user calls them: what they print and how they exit."""

import json
from pathlib import Path

import pytest
from tests.support.sample_store import add_checkpoint, sample_store
from typer.testing import CliRunner

from halfmq.cli.store import app

run = CliRunner().invoke


def test_verify_says_whole_and_what_it_looked_at(tmp_path: Path) -> None:
    add_checkpoint(sample_store(tmp_path))
    result = run(app, ["verify", str(tmp_path)])
    assert result.exit_code == 0
    assert result.output.splitlines()[-1] == "whole"
    assert "352 queue entries" in result.output


def test_verify_says_what_is_damaged_and_what_to_do(tmp_path: Path) -> None:
    writer = sample_store(tmp_path)
    (writer.shard / "transactions" / f"{0:020d}.tx").unlink()
    result = run(app, ["verify", str(tmp_path)])
    assert result.exit_code == 1
    assert "DAMAGED: transactions: the row of half 0 is missing\n    stop the broker, remove" in result.output
    assert result.output.splitlines()[-1] == "damaged"


def test_verify_without_a_store_exits_2(tmp_path: Path) -> None:
    result = run(app, ["verify", str(tmp_path)])
    assert result.exit_code == 2
    assert "holds no store" in result.output


@pytest.mark.parametrize("command", ["verify", "dump"])
def test_empty_path_is_not_the_store_in_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    sample_store(tmp_path)
    monkeypatch.chdir(tmp_path)
    result = run(app, [command, ""])
    assert result.exit_code == 2
    assert "'DIR': an empty path" in result.output


def test_dump_prints_lines_of_json(tmp_path: Path) -> None:
    sample_store(tmp_path)
    result = run(app, ["dump", str(tmp_path), "--kind", "committed", "--kind", "rolled_back"])
    assert result.exit_code == 0
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert {line["kind"] for line in found} == {"committed", "rolled_back"}
    assert len(found) == 21
    last = found[-1]["offset"]
    again = run(app, ["dump", str(tmp_path), "--from", str(last), "--kind", "committed", "--bodies"])
    assert [json.loads(line)["offset"] for line in again.stdout.splitlines()] == [last]


def test_dump_of_an_unknown_kind_exits_2_and_names_the_kinds(tmp_path: Path) -> None:
    sample_store(tmp_path)
    result = run(app, ["dump", str(tmp_path), "--kind", "nothing"])
    assert result.exit_code == 2
    assert "rolled_back" in result.output
