"""Where the next run of ``transactions`` begins. Whole runs: tests/spark/jobs/test_transactions.py."""

from pathlib import Path

import pytest

from halfmq.errors import UsageError
from halfmq.spark.jobs import transactions
from halfmq.spark.jobs.settings import SparkSettings


@pytest.mark.parametrize(
    ("before", "lowest", "end", "expected"), [(0, None, None, 0), (5, None, None, 5), (5, None, 9, 9), (5, 6, 9, 6)]
)
def test_next_run_begins_at_the_lowest_undecided_half(
    before: int, lowest: int | None, end: int | None, expected: int
) -> None:
    assert transactions.next_half(before, lowest, end) == expected


def test_state_is_kept(tmp_path: Path) -> None:
    assert transactions._load(tmp_path) is None
    transactions._save(tmp_path, transactions.State(7, 2))
    assert transactions._load(tmp_path) == transactions.State(7, 2)


def test_settings_that_do_not_belong_together(tmp_path: Path) -> None:
    def run(**given: object) -> None:
        transactions.run(transactions.Settings(output=str(tmp_path), **given), SparkSettings(), print)  # type: ignore[arg-type]

    with pytest.raises(UsageError, match="--url and --path"):
        run()
    with pytest.raises(UsageError, match="--consumers needs --url"):
        run(path="/data", consumers={"g": "t"})
