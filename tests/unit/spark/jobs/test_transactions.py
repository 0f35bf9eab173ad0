"""The state, the settings and the table of ``transactions``. Whole runs: tests/spark/jobs/test_transactions.py."""

import datetime
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.sample_store import sample_store

from halfmq.errors import UsageError
from halfmq.spark.jobs import state, tables, transactions
from halfmq.spark.jobs.settings import SparkSettings
from halfmq.spark.jobs.stream import JobFailed
from halfmq.spark.options import parse_options

FORMATS = ("parquet", "delta")


class Rows:
    """Of a DataFrame what writing a batch needs, in this process."""

    def __init__(self, *first_halves: int) -> None:
        at = datetime.datetime(2026, 11, 24, tzinfo=datetime.UTC)
        columns = {
            "first_half": pa.array(first_halves, pa.int64()),
            "prepared_at": pa.array([at] * len(first_halves), pa.timestamp("us", tz="UTC")),
        }
        self._batch = pa.RecordBatch.from_pydict(columns)

    def mapInArrow(  # noqa: N802
        self, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: str
    ) -> Any:
        found = [SimpleNamespace(**row) for batch in function(iter([self._batch])) for row in batch.to_pylist()]
        return SimpleNamespace(collect=lambda: found)


def halves_in(location: Path) -> list[int]:
    return sorted(of_files(tables.files_of(location)))


def of_files(paths: list[str]) -> list[int]:
    return [half for path in paths for half in pq.ParquetFile(path).read()["first_half"].to_pylist()]


@pytest.mark.parametrize("form", FORMATS)
def test_transactions_are_added_whatever_the_clock_says(tmp_path: Path, form: tables.Format) -> None:
    def opened() -> tables.BatchTable:
        return tables.open_table(tmp_path / "settled", form, transactions._WRITER)

    transactions._add(opened(), Rows(1))
    # The number of a batch only has to grow.
    tables.write(opened(), 1 << 50, Rows(2))
    for half in (3, 4):
        transactions._add(opened(), Rows(half))
    transactions._add(opened(), Rows())
    assert halves_in(tmp_path / "settled") == [1, 2, 3, 4]
    assert [of_files(batch) for batch in tables.batches_of(tmp_path / "settled")] == [[1], [2], [3], [4]]


@pytest.mark.parametrize("form", FORMATS)
def test_transactions_that_were_not_written_are_an_error(tmp_path: Path, form: tables.Format) -> None:
    """Whatever the reason: the state must not be written then."""
    table = tables.open_table(tmp_path / "settled", form, transactions._WRITER)
    table.stage = lambda batch: None  # type: ignore[method-assign]
    with pytest.raises(JobFailed, match="nothing was written"):
        transactions._add(table, Rows(1))


def test_state_is_kept(tmp_path: Path) -> None:
    assert transactions._load(tmp_path) is None
    transactions._save(tmp_path, transactions.State(7, 2, 9))
    assert transactions._load(tmp_path) == transactions.State(7, 2, 9)


def test_settings_that_do_not_belong_together(tmp_path: Path) -> None:
    def run(**given: object) -> None:
        transactions.run(transactions.Settings(output=str(tmp_path), **given), SparkSettings(), print)  # type: ignore[arg-type]

    with pytest.raises(UsageError, match="--url and --path"):
        run()
    with pytest.raises(UsageError, match="--consumers needs --url"):
        run(path="/data", consumers={"g": "t"})


@pytest.mark.parametrize("option", ["startingHalf", "endinghalf", "view", "columns", "url"])
def test_options_that_the_job_sets_are_refused(tmp_path: Path, option: str) -> None:
    settings = transactions.Settings(output=str(tmp_path), path="/data", options={option: "1"})
    with pytest.raises(UsageError, match=f"--options {option} cannot be set"):
        transactions.run(settings, SparkSettings(), print)


def test_what_the_job_reads_is_not_replaced_by_options_in_other_letters() -> None:
    """The half indexes that were read before may be past retention, though new ones may not."""
    settings = transactions.Settings(output="o", path="/data", options={"failondataloss": "true"})
    options = transactions._options(settings, failOnDataLoss="false")
    assert not parse_options(options).fail_on_data_loss


def test_output_of_another_store_is_refused(tmp_path: Path) -> None:
    sample_store(tmp_path / "store")
    settings = transactions.Settings(output=str(tmp_path / "out"), path=str(tmp_path / "store"))
    (tmp_path / "out").mkdir()
    state.pin(tmp_path / "out" / "_job.json", {"store": "another"})
    with pytest.raises(UsageError, match=r"begun with store = another, this is store = "):
        transactions.run(settings, SparkSettings(), print)
