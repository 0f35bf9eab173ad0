"""Tables of batches: each batch once, whole, by one writer; both formats, through Spark."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from halfmq.errors import UsageError
from halfmq.spark.jobs import tables

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FORMATS = ("parquet", "delta")


def rows_of(spark: Any, start: int, end: int) -> Any:
    return spark.range(start, end, 1, 2).selectExpr("id", "cast(id as string) as text")


def ids(spark: Any, location: Path) -> list[int]:
    return sorted(row.id for row in tables.read(spark, location).collect())


@pytest.mark.parametrize("form", FORMATS)
def test_a_batch_that_comes_again_is_not_written_again(spark: Any, tmp_path: Path, form: tables.Format) -> None:
    table = tables.open_table(tmp_path / "t", form, "query")
    assert tables.write(table, 0, rows_of(spark, 0, 10), ["id"])
    assert tables.write(table, 1, rows_of(spark, 10, 20), ["id"])
    again = tables.open_table(tmp_path / "t", form, "query")
    assert not tables.write(again, 1, rows_of(spark, 10, 20), ["id"])
    assert tables.write(again, 2, rows_of(spark, 0, 0), ["id"])
    assert ids(spark, tmp_path / "t") == list(range(20))


@pytest.mark.parametrize("form", FORMATS)
def test_a_batch_that_was_interrupted_leaves_nothing_visible(
    spark: Any, tmp_path: Path, form: tables.Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tables.open_table(tmp_path / "t", form, "query")
    tables.write(table, 0, rows_of(spark, 0, 10))
    write: Callable[..., Any] = tables.write_targets

    def killed(*given: Any) -> Any:
        write(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tables, "write_targets", killed)
        with pytest.raises(KeyboardInterrupt):
            tables.write(table, 1, rows_of(spark, 10, 20))
    assert ids(spark, tmp_path / "t") == list(range(10))
    assert tables.write(tables.open_table(tmp_path / "t", form, "query"), 1, rows_of(spark, 10, 20))
    assert ids(spark, tmp_path / "t") == list(range(20))


@pytest.mark.parametrize("form", FORMATS)
def test_a_second_writer_is_refused(spark: Any, tmp_path: Path, form: tables.Format) -> None:
    tables.write(tables.open_table(tmp_path / "t", form, "first"), 0, rows_of(spark, 0, 10))
    with pytest.raises(UsageError, match="another output"):
        tables.write(tables.open_table(tmp_path / "t", form, "second"), 0, rows_of(spark, 0, 10))
    other: tables.Format = "delta" if form == "parquet" else "parquet"
    with pytest.raises(UsageError, match="format ="):
        tables.open_table(tmp_path / "t", other, "first")


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    with pytest.raises(UsageError, match="files of another program"):
        tables.open_table(tmp_path, "parquet", "query")
    with pytest.raises(UsageError, match="is not a table"):
        tables.read(None, tmp_path)


def test_delta_files_have_statistics(spark: Any, tmp_path: Path) -> None:
    tables.write(tables.open_table(tmp_path / "t", "delta", "query"), 0, rows_of(spark, 0, 10), ["id"])
    actions = DeltaTable(str(tmp_path / "t")).get_add_actions(flatten=True)
    assert sum(actions.column("num_records").to_pylist()) == 10
    assert min(actions.column("min.id").to_pylist()) == 0
    assert max(actions.column("max.id").to_pylist()) == 9


@pytest.mark.parametrize("form", FORMATS)
def test_batches_are_told_apart_and_a_start_that_was_interrupted_is_no_obstacle(
    spark: Any, tmp_path: Path, form: tables.Format
) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "_staging-of-a-first-start").touch()
    table = tables.open_table(tmp_path / "t", form, "query")
    for batch in (2, 9, 10):
        tables.write(table, batch, rows_of(spark, batch, batch + 4))
    found = [sorted(row.id for row in spark.read.parquet(*one).collect()) for one in tables.batches_of(tmp_path / "t")]
    assert found == [list(range(batch, batch + 4)) for batch in (2, 9, 10)]


def test_compacted_table_has_no_order(spark: Any, tmp_path: Path) -> None:
    table = tables.open_table(tmp_path / "t", "delta", "query")
    for batch in range(3):
        tables.write(table, batch, rows_of(spark, batch, batch + 1))
    DeltaTable(str(tmp_path / "t")).optimize.compact()
    assert ids(spark, tmp_path / "t") == [0, 1, 2]
    with pytest.raises(UsageError, match="must not be compacted"):
        tables.batches_of(tmp_path / "t")
