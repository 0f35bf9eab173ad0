"""Reads ``view=transactions`` and ``view=half`` as Spark does, without Spark."""

from collections.abc import Callable
from typing import Any

from halfmq.spark.options import parse_options
from halfmq.spark.source import HalfmqTableReader


def read_view(view: str, *, between: Callable[[], object] = lambda: None, **options: str) -> list[dict[str, Any]]:
    """All rows by half index. ``between``: called between the plan and the tasks."""
    reader = HalfmqTableReader(parse_options({"view": view, **options}).for_batch())
    partitions = reader.partitions()
    between()
    rows = [row for part in partitions for batch in reader.read(part) for row in batch.to_pylist()]
    key = "first_half" if view == "transactions" else "half_index"
    return sorted(rows, key=lambda row: row[key])
