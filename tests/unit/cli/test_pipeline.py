"""``halfmq pipeline``: jobs as commands whose options are the fields of their settings."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
from msgspec import Meta, field
from typer.testing import CliRunner

from halfmq.cli.main import app
from halfmq.cli.pipeline import JOBS, Job
from halfmq.errors import HalfmqError, UsageError
from halfmq.spark.jobs.settings import JobSettings, SparkSettings


class Settings(JobSettings, frozen=True, kw_only=True):
    url: Annotated[str, Meta(description="Where from.")]
    topics: Annotated[tuple[str, ...], Meta(description="What.")] = ("all",)
    rows_max: Annotated[int | None, Meta(description="How many.")] = None
    follow: bool = False
    options: dict[str, str] = field(default_factory=dict)


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a job named ``copy`` was called with. It fails with the error of its ``url``."""
    seen: list[Any] = []
    errors = {
        "usage": UsageError("no such table", hint="name one"),
        "failed": HalfmqError("gone"),
        "bug": KeyError("x"),
    }

    def run(settings: Settings, spark: SparkSettings, say: Any) -> int:
        """Copy it."""
        if settings.url in errors:
            raise errors[settings.url]
        seen.append((settings, spark))
        say("copying")
        return 3

    for name in ("copy", "strict"):
        monkeypatch.setitem(sys.modules, f"halfmq.spark.jobs.{name}", SimpleNamespace(Settings=Settings, run=run))  # type: ignore[arg-type]
    monkeypatch.setitem(JOBS, "copy", Job("Copies."))
    monkeypatch.setitem(JOBS, "strict", Job("Copies.", failed=2))
    return seen


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["pipeline", *arguments])


def test_a_misspelt_table_of_the_file_is_refused(called: list[Any], tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text('[copy]\nurl = "u"\n[sparc]\nmaster = "local[1]"\n')
    result = invoke("copy", "--config", str(file))
    assert (result.exit_code, called) == (2, [])
    assert "unknown sparc" in result.stderr
    assert all(f"[{name}]" in result.stderr for name in ("spark", "ingest", "copy"))


def test_options_are_the_fields_of_the_settings(called: list[Any]) -> None:
    result = invoke(
        "copy", "--url", "u", "--topics", "a,b", "--topics", "c", "--rows-max", "5", "--follow", "--options", "x=1",
        "--options", "y=2", "--master", "local[1]", "--conf", "k=v",
    )  # fmt: skip
    assert (result.exit_code, result.stdout, result.stderr) == (3, "", "copying\n")
    settings = Settings(url="u", topics=("a", "b", "c"), rows_max=5, follow=True, options={"x": "1", "y": "2"})
    assert called == [(settings, SparkSettings(master="local[1]", conf={"k": "v"}))]


def test_a_file_may_set_them_and_options_override_it(called: list[Any], tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text('[copy]\nurl = "f"\nrows_max = 1\n[spark.conf]\nk = "v"\n')
    assert invoke("copy", "--config", str(file), "--rows-max", "2").exit_code == 3
    assert called == [(Settings(url="f", rows_max=2), SparkSettings(conf={"k": "v"}))]


def test_help_shows_descriptions_and_defaults(called: list[Any]) -> None:
    shown = invoke("copy", "--help").output
    assert "Copy it." in shown
    assert "Where from. Required." in shown
    assert "What. Default: all." in shown


def test_errors_are_one_line_and_differ_from_a_result(called: list[Any]) -> None:
    wrong = invoke("copy", "--url", "usage")
    assert (wrong.exit_code, wrong.stderr) == (2, "halfmq pipeline copy: no such table (name one)\n")
    assert invoke("copy").exit_code == 2
    assert invoke("copy", "--url", "failed").exit_code == 1
    assert invoke("strict", "--url", "failed").exit_code == 2
    bug = invoke("strict", "--url", "bug")
    assert bug.exit_code == 2
    assert "KeyError" in bug.stderr


def test_the_list_of_jobs_imports_none() -> None:
    code = (
        "import sys, contextlib, io\nfrom halfmq.cli.main import app\n"
        "with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):\n"
        "    app(['pipeline', '--help'])\nprint(out.getvalue())\n"
        "assert not [name for name in sys.modules if name.startswith(('halfmq.spark', 'pyspark'))]\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    for name in (*JOBS, "script"):
        assert f"  {name} " in done.stdout


def test_reconcile_tells_differences_from_failures() -> None:
    assert JOBS["reconcile"].failed == 2


def test_script_is_a_program_for_spark_submit() -> None:
    path = Path(invoke("script").stdout.strip())
    done = subprocess.run([sys.executable, path, "--help"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "reconcile" in done.stdout
