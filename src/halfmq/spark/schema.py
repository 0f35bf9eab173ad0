"""Columns of a message in Spark.

All columns are nullable, because Spark requires the Arrow schema of the first batch to be identical to this one. Spark 4.3 does
not prune columns of Python sources (``PythonScanBuilder`` supports filters only), so all columns are built for every query,
unless option ``columns`` selects some.
"""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from halfmq.spark.options import COLUMNS

_SPARK: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "queue": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "tag": StringType(),
    "keys": StringType(),
    "message_id": StringType(),
    "transaction_id": StringType(),
    "properties": MapType(StringType(), StringType()),
    "broker": StringType(),
}
_ARROW: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "queue": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "tag": pa.string(),
    "keys": pa.string(),
    "message_id": pa.string(),
    "transaction_id": pa.string(),
    "properties": pa.map_(pa.string(), pa.string()),
    "broker": pa.string(),
}

assert _SPARK.keys() == _ARROW.keys() == set(COLUMNS)


def spark_schema(columns: Sequence[str]) -> StructType:
    """The Spark schema of ``columns``, names in ``options.COLUMNS``."""
    return StructType([StructField(name, _SPARK[name]) for name in columns])


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema that Spark expects for ``spark_schema(columns)``."""
    return pa.schema([pa.field(name, _ARROW[name]) for name in columns])
