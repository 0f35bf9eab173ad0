"""The state and the settings of ``transactions``. Whole runs: tests/spark/jobs/test_transactions.py."""

from pathlib import Path

import pytest

from halfmq.errors import UsageError
from halfmq.spark.jobs import transactions
from halfmq.spark.jobs.settings import SparkSettings


def test_state_is_kept(tmp_path: Path) -> None:
    assert transactions._load(tmp_path) is None
    transactions._save(tmp_path, transactions.State(7, 2))
    assert transactions._load(tmp_path) == transactions.State(7, 2)
    (tmp_path / "_state.json").write_text('{"next_half": 7, "undecided": 2}')
    assert transactions._load(tmp_path) == transactions.State(7, 2, 0), "of an earlier version"


def test_settings_that_do_not_belong_together(tmp_path: Path) -> None:
    def run(**given: object) -> None:
        transactions.run(transactions.Settings(output=str(tmp_path), **given), SparkSettings(), print)  # type: ignore[arg-type]

    with pytest.raises(UsageError, match="--url and --path"):
        run()
    with pytest.raises(UsageError, match="--consumers needs --url"):
        run(path="/data", consumers={"g": "t"})
