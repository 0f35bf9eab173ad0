"""Whole runs, small: processes, kills, databases, Spark, reconciliation. The exit status is the verdict."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parent.parent.parent


class Demo:
    def __init__(self, directory: Path, *arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "demo", "--directory", str(directory), *arguments],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            capture_output=True, text=True, timeout=580, check=False,
        )  # fmt: skip
        self.status = done.returncode
        self.said = done.stdout + done.stderr
        runs = list(directory.glob("run-*"))
        self.directory = runs[0] if runs else directory

    @property
    def result(self) -> dict[str, object]:
        return json.loads((self.directory / "reconciliation.json").read_text())

    def finding(self, name: str) -> dict[str, object]:
        return next(one for one in self.result["findings"] if one["name"] == name)  # type: ignore[attr-defined]


SMALL = ("--baskets", "250", "--order-kills", "1", "--broker-kills", "1", "--loyalty-kills", "0", "--without-spark")
#: What the reconciliation sees does not depend on kills.
QUIET = ("--baskets", "120", "--services", "1", "--order-kills", "0", "--broker-kills", "0", "--loyalty-kills", "0", "--without-spark")  # fmt: skip


@pytest.mark.spark
def test_everything_agrees_after_kills_and_the_report_stands_alone(tmp_path: Path) -> None:
    demo = Demo(tmp_path, "--baskets", "1000", "--order-kills", "2", "--broker-kills", "2")
    assert demo.status == 0, demo.said
    assert demo.result["differences"] == 0
    assert demo.said.count("kill -9 #") == 6
    # Of the first 1,000 baskets this many are orders, whatever was killed.
    rejected = demo.result["rejected"]
    assert demo.result["expected_orders"] == 1_000 - sum(rejected.values())  # type: ignore[attr-defined]
    names = {one["name"] for one in demo.result["findings"]}  # type: ignore[attr-defined]
    assert {"shop database: orders", "messages: orders", "loyalty database: points", "Spark table: lines"} <= names
    assert {"messages by Spark: revenue", "halfmq pipeline reconcile"} <= names
    assert (demo.directory / "jobs.html").exists()
    report = (demo.directory / "report.html").read_text()
    assert report.count("<svg") == 5
    for outside in ("<script", "<link", "<img", "url(http", "@import"):
        assert outside not in report


@pytest.mark.thorough
@pytest.mark.postgres
def test_everything_agrees_on_postgresql(tmp_path: Path) -> None:
    demo = Demo(tmp_path, *SMALL, "--db", "postgres")
    assert demo.status == 0, demo.said
    assert demo.result["differences"] == 0


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("plant", "where", "kind"),
    [
        ("missing", "messages: orders", "missing"),
        ("phantom", "messages: orders", "phantom"),
        ("duplicate", "messages: loyalty", "duplicated"),
        ("cent", "messages: orders", "different"),
    ],
)
def test_planted_fault_is_found_and_fails_the_run(tmp_path: Path, plant: str, where: str, kind: str) -> None:
    demo = Demo(tmp_path, *QUIET, "--plant", plant)
    assert demo.status == 1, demo.said
    assert demo.finding(where)[kind] == 1
    if plant == "cent":
        assert abs(demo.finding(where)["cents_off"]) == 1  # type: ignore[arg-type]
