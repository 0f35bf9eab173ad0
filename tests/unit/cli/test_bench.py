"""`halfmq bench` as people type it."""

import json
from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize(("command", "measure"), [("tx", "tx.compare"), ("restart", "restart.measure")])
def test_output_that_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, measure: str
) -> None:
    monkeypatch.setattr(f"halfmq.bench.{measure}", lambda *_: pytest.fail("it measured"))
    (tmp_path / "file").touch()
    for output in (tmp_path, tmp_path / "file" / "figures.json"):
        result = CliRunner().invoke(app, ["bench", command, "--output", str(output)], env={"COLUMNS": "300"})
        assert result.exit_code == 2
        assert "cannot be written" in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rounds", "0"], "--rounds"),
        (["--threads", "0"], "--threads"),
        (["--connections", "0"], "--connections"),
        (["--threads", "2", "--connections", "3"], "1 to 2: each connection needs a thread"),
        (["--body-bytes", "0"], "--body-bytes"),
        (["--body-bytes", "4194305"], "4194304"),
        (["--seconds", "0"], "--seconds"),
        (["--seconds", "-1"], "--seconds"),
        (["--seconds", "nan"], "--seconds"),
        (["--seconds", "inf"], "--seconds"),
        (["--rollback-share", "2"], "--rollback-share"),
        (["--unknown-share", "-0.1"], "--unknown-share"),
        (["--unknown-share", "nan"], "--unknown-share"),
        (["--rollback-share", "0.6", "--unknown-share", "0.5"], "the sum must be at most 1"),
        (["--durability", "x"], "--durability"),
        (["--directory", "none/at/all"], "not a directory"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_it_is_tried(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.setattr("halfmq.bench.tx.compare", lambda *_: pytest.fail("it measured"))
    result = CliRunner().invoke(app, ["bench", "tx", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == 2, result.output
    assert words in result.output
    assert "bench tx" in result.output, "the usage is that of this command"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--messages", "0"),
        ("--messages", "63"),
        ("--undecided", "0"),
        ("--undecided", "1000001"),
        ("--body-bytes", "0"),
    ],
)
def test_what_no_restart_can_be_measured_with_is_refused(
    monkeypatch: pytest.MonkeyPatch, option: str, value: str
) -> None:
    monkeypatch.setattr("halfmq.bench.restart.measure", lambda *_: pytest.fail("it measured"))
    result = CliRunner().invoke(app, ["bench", "restart", option, value], env={"COLUMNS": "200"})
    assert result.exit_code == 2, result.output
    assert option in result.output


def test_a_durability_that_is_named_twice_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[list[str]] = []

    def compare(plan: object, durabilities: list[str], *_: object) -> dict[str, Any]:
        measured.append(durabilities)
        return {"runs": {}, "ratio_to_baseline": {}}

    monkeypatch.setattr("halfmq.bench.tx.compare", compare)
    for named in (["memory", "memory"], ["fsync", "memory"], []):
        arguments = [part for name in named for part in ("--durability", name)]
        assert CliRunner().invoke(app, ["bench", "tx", *arguments]).exit_code == 0
    assert measured == [["memory"], ["fsync", "memory"], ["memory", "fsync"]]


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
    assert "x baseline" in result.output
    assert json.loads(output.read_text())["runs"]["memory"][0]["committed"] > 0
