"""Settings of ``ingest`` and its schema that are wrong, without Spark."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    LongType,
    StructField,
    StructType,
    YearMonthIntervalType,
)

from halfmq.errors import UsageError
from halfmq.spark.jobs import ingest
from halfmq.spark.jobs.settings import SparkSettings


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"path": "/data"}, "--url and --path"),
        ({"required": ("id",)}, "needs --schema"),
        ({"schema": "id long", "event_time": "at"}, "need each other"),
        ({"schema": "id long", "event_time": "at", "late_after": "soon"}, "late-after is 'soon'"),
        ({"schema": "missing.ddl"}, "neither a schema nor a file"),
        ({"output": "s3://bucket"}, "is not a directory"),
        ({"options": {"columns": "value"}}, "cannot be set"),
    ],
)
def test_settings_that_do_not_belong_together(tmp_path: Path, wrong: dict[str, Any], text: str) -> None:
    given: dict[str, Any] = {"output": str(tmp_path / "out"), "url": "rocketmq://127.0.0.1:1", "topics": ("t",)}
    with pytest.raises(UsageError, match=text):
        ingest.run(ingest.Settings(**(given | wrong)), SparkSettings(), print)
    assert not list(tmp_path.glob("out/*.json"))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (CalendarIntervalType(), "column wrong is interval"),
        (YearMonthIntervalType(), "column wrong is interval year to month"),
        (ArrayType(CalendarIntervalType()), "column wrong is array<interval>"),
    ],
)
def test_a_type_that_arrow_lacks_is_named_with_its_column(kind: DataType, text: str) -> None:
    found = StructType([StructField("id", LongType()), StructField("wrong", kind)])
    with pytest.raises(UsageError, match=text):
        ingest.arrow_schema(found)
    assert ingest.arrow_schema(StructType(found.fields[:1])).names == ["id"]
