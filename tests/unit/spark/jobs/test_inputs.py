"""Errors of Spark as one sentence; tables and topics are read in tests/spark/jobs/test_reconcile.py."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from halfmq.errors import UsageError
from halfmq.spark.jobs.source import cause, read_table


def test_cause_is_the_first_line_that_says_something() -> None:
    assert cause(ValueError("\n[PARSE] wrong\n== SQL ==\nx")) == "[PARSE] wrong"
    assert cause(ValueError("x: y\nhalfmq.errors.UsageError: no topic t (h)\n at")) == "no topic t (h)"


def test_what_is_no_table_or_not_all_of_one_is_refused(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), pa.table({"a": [1], "b": [2]}), partition_by=["a"])
    with pytest.raises(UsageError, match="with partitions"):
        read_table(None, str(tmp_path / "t"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "page.html").touch()
    with pytest.raises(UsageError, match=r"no files \*.parquet"):
        read_table(None, str(tmp_path / "other"))
    with pytest.raises(UsageError, match="there is no table"):
        read_table(None, str(tmp_path / "nothing"))
