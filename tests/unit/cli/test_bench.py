"""`halfmq bench` as people type it."""

import json
from pathlib import Path

import pytest
from tests.support.measured import with_small_segments
from typer.testing import CliRunner

from halfmq.cli.main import app


def test_help_names_the_options() -> None:
    result = CliRunner().invoke(app, ["bench", "tx", "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    for option in (
        "--threads",
        "--connections",
        "--body-bytes",
        "--durability",
        "--rollback-share",
        "--unknown-share",
        "--output",
    ):
        assert option in result.output


@pytest.mark.parametrize("option", ["--output", "--directory"])
def test_empty_path_is_refused_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    monkeypatch.setattr("halfmq.bench.restart.measure", lambda *_: pytest.fail("it measured"))
    result = CliRunner().invoke(app, ["bench", "restart", option, ""])
    assert result.exit_code == 2
    assert "an empty path" in result.output


@pytest.mark.slow
def test_a_short_run_prints_a_table_and_writes_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_small_segments(monkeypatch)
    output = tmp_path / "deep" / "tx.json"
    arguments = [
        "bench",
        "tx",
        "--seconds",
        "0.5",
        "--rounds",
        "1",
        "--threads",
        "2",
        "--durability",
        "memory",
        "--output",
        str(output),
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "x sketch" in result.output
    assert json.loads(output.read_text())["runs"]["memory"][0]["committed"] > 0
