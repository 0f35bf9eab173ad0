"""A run continues the record after its end, and the coverage table shows what is missing."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.simulation import __main__ as command
from tests.simulation import chunks, coverage, record
from tests.simulation.chunks import Sum, run_chunk
from tests.simulation.run import Result

#: They are about the bookkeeping of the seeds, not about the broker.
pytestmark = pytest.mark.thorough


def test_a_record_is_continued_after_its_last_seed(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    assert record.next_seed(path) == 1
    for first in (1, 3):
        total = Sum()
        total.add(run_chunk(first, 2))
        record.append(path, first, "abc", total)
    assert record.next_seed(path) == 5
    one, two = record.lines(path)
    assert (one["first"], one["histories"], two["first"]) == (1, 2, 3)
    assert one["digest"] != two["digest"]
    assert one["counts"]["look invariants"] > 0
    histories, cells = record.covered(path)
    assert histories == 4
    assert cells.total() > 0
    summary = record.summary(path)
    assert "4 histories in 2 runs" in summary
    assert "coverage of 4 of them" in summary


def test_the_same_seeds_have_the_same_digest() -> None:
    assert run_chunk(11, 3).digest == run_chunk(11, 3).digest


def test_red_seeds_are_kept() -> None:
    total = Sum()
    chunk = run_chunk(1, 1)
    red = Result(1, "", 0, 0, Counter(), "seed 1: broken", [])
    total.add(chunk._replace(red=[red]))
    assert [result.seed for result in total.red] == [1]
    assert total.figures()["violations"] == 1


def test_empty_cells_are_named() -> None:
    counts = Counter({"cover kill | undecided | H": 3, "cover kill | none | L": 1})
    empty = coverage.empty_cells(counts)
    assert "kill while committed" in empty
    assert "kill while undecided" not in empty
    assert "recovery M" in empty
    assert "undecided, then H" not in empty
    assert "kill" in coverage.table(counts)


def run_command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["simulation", *arguments])
    try:
        command.main()
    except SystemExit as ended:
        assert not ended.code, "it was red"  # noqa: PT017


def test_the_documented_command_prints_the_digest_of_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(chunks, "CHUNK", 2)
    path = tmp_path / "record.jsonl"
    run_command(monkeypatch, "--record", str(path), "--seeds", "3")
    (line,) = record.lines(path)
    again = ("--first", str(line["first"]), "--seeds", str(line["histories"]))
    capsys.readouterr()
    run_command(monkeypatch, *again, "--json")
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["digest"] == line["digest"]
    for plain in ((), ("--brief",)):
        run_command(monkeypatch, *again, *plain)
        assert line["digest"] in capsys.readouterr().out.splitlines()[-1]
    run_command(monkeypatch, "--first", "2", "--seeds", "3", "--json")
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["digest"] != line["digest"]


def written(path: Path, *lines: dict[str, Any]) -> Path:
    usual = {"first": 1, "histories": 2, "events": 10, "faults": 1, "violations": 0, "commit": "abc", "red_seeds": []}
    path.write_text("".join(json.dumps({**usual, "counts": {}, **line}) + "\n" for line in lines))
    return path


def test_the_named_record_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "mine.jsonl", {})
    run_command(monkeypatch, "--show-record", "--record", str(path))
    assert "mine.jsonl: 2 histories in 1 runs" in capsys.readouterr().out
    run_command(monkeypatch, "--show-record")
    assert capsys.readouterr().out.startswith("record.jsonl: ")


def test_the_summary_shows_what_is_fixed_and_what_cannot_be_repeated(tmp_path: Path) -> None:
    red = {"violations": 2, "red_seeds": [1, 2], "mended": {"1": "def"}}
    summary = record.summary(written(tmp_path / "record.jsonl", red, {"first": 3, "commit": "fed+"}))
    assert "2 violations, 1 of them mended since" in summary
    assert "not mended: seed 2 at abc" in summary
    assert "seed 1 " not in summary
    assert "not repeatable: seeds 3 to 4, run at fed+" in summary


def test_an_untracked_python_file_makes_the_commit_dirty(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    simulation, package = tmp_path / "tests/simulation", tmp_path / "src/halfmq"
    for directory in (simulation, package):
        directory.mkdir(parents=True)
        (directory / "known.py").write_text("")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    clean = record.commit_now(simulation)
    assert not clean.endswith("+")
    for file in ("record.jsonl", "story.txt"):
        (simulation / file).write_text("")
    assert record.commit_now(simulation) == clean
    for new in (simulation / "deep/new.py", package / "new.py", package / "ä new.py"):
        new.parent.mkdir(exist_ok=True)
        new.write_text("")
        assert record.commit_now(simulation) == clean + "+", new
        new.unlink()
    (package / "known.py").write_text("changed = 1\n")
    assert record.commit_now(simulation) == clean + "+"
