"""The record goes on where it ended, and the table of coverage says what is missing."""

from collections import Counter
from pathlib import Path

from tests.simulation import coverage, record
from tests.simulation.chunks import Sum, run_chunk
from tests.simulation.run import Result


def test_a_record_is_resumed_behind_its_last_seed(tmp_path: Path) -> None:
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
