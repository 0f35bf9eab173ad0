"""``halfmq pipeline``: commands from the settings of the jobs."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from halfmq.cli import pipeline
from halfmq.errors import HalfmqError
from halfmq.spark.jobs import ingest
from halfmq.spark.jobs.settings import SparkSettings

RUN = CliRunner()


def test_every_job_has_help() -> None:
    for name in pipeline.JOBS:
        shown = RUN.invoke(pipeline.app, [name, "--help"])
        assert shown.exit_code == 0, shown.output
        for option in ("--config", "--master", "--conf"):
            assert option in shown.output


def test_options_and_file_reach_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    got = []

    def run(settings: ingest.Settings, spark: SparkSettings, say: object) -> int:
        got.append((settings, spark))
        return 3

    monkeypatch.setattr(ingest, "run", run)
    (tmp_path / "jobs.toml").write_text("[ingest]\noutput = '/file'\nmax_rows = 7\n[spark]\nmaster = 'local[1]'\n")
    given = [
        "--config",
        str(tmp_path / "jobs.toml"),
        "--topics",
        "a,b",
        "--follow",
        "--options",
        "tags=x",
        "--conf",
        "spark.a=1",
    ]
    done = RUN.invoke(pipeline.app, ["ingest", *given])
    assert done.exit_code == 3, done.output
    expected = ingest.Settings(output="/file", max_rows=7, topics=("a", "b"), follow=True, options={"tags": "x"})
    assert got == [(expected, SparkSettings(master="local[1]", conf={"spark.a": "1"}))]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([], "--output missing"),
        (["--output", "x"], "neither --topics nor --pattern"),
        (["--output", "x", "--options", "a"], "NAME=VALUE"),
        (["--output", "x", "--format", "csv"], "csv"),
    ],
)
def test_unusable_options_are_status_2(given: list[str], text: str) -> None:
    done = RUN.invoke(pipeline.app, ["ingest", *given])
    assert done.exit_code == 2
    assert text in done.output


def test_job_that_fails_is_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object) -> int:
        raise HalfmqError("as the test wants it")

    monkeypatch.setattr(ingest, "run", run)
    done = RUN.invoke(pipeline.app, ["ingest", "--output", "x"])
    assert done.exit_code == 1
    assert "halfmq pipeline ingest: as the test wants it" in done.output


def test_program_for_spark_submit() -> None:
    path = RUN.invoke(pipeline.app, ["script"]).output.strip()
    shown = subprocess.run([sys.executable, path, "--help"], capture_output=True, text=True, timeout=60, check=True)
    assert "ingest" in shown.stdout
