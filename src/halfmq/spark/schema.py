"""Columns of a message in Spark, of a transaction, and of an undecided half message.

All columns are nullable, because Spark requires the Arrow schema of the first batch to be identical to this one. Spark 4.3 does
not prune columns of Python sources (``PythonScanBuilder`` supports filters only), so all columns are built for every query,
unless option ``columns`` selects some.
"""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
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

from halfmq.spark.options import COLUMNS, HALF_COLUMNS, TRANSACTION_COLUMNS

#: Elements of column ``headers``, as in Spark's Kafka source.
_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_ARROW_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])

#: Spark and Arrow type of each column.
_TYPES: Final[dict[str, tuple[DataType, pa.DataType]]] = {
    "key": (BinaryType(), pa.binary()),
    "value": (BinaryType(), pa.binary()),
    "topic": (StringType(), pa.string()),
    "queue": (IntegerType(), pa.int32()),
    "offset": (LongType(), pa.int64()),
    "timestamp": (TimestampType(), pa.timestamp("us", tz="UTC")),
    "tag": (StringType(), pa.string()),
    "keys": (StringType(), pa.string()),
    "message_id": (StringType(), pa.string()),
    "transaction_id": (StringType(), pa.string()),
    "properties": (MapType(StringType(), StringType()), pa.map_(pa.string(), pa.string())),
    "headers": (ArrayType(_HEADER), pa.list_(pa.field("element", _ARROW_HEADER))),
    "broker": (StringType(), pa.string()),
    # Views of the transaction table.
    "group": (StringType(), pa.string()),
    "outcome": (StringType(), pa.string()),
    "decided_by": (StringType(), pa.string()),
    "prepared_at": (TimestampType(), pa.timestamp("us", tz="UTC")),
    "settled_at": (TimestampType(), pa.timestamp("us", tz="UTC")),
    "latency_ms": (LongType(), pa.int64()),
    "checks": (IntegerType(), pa.int32()),
    "halves": (IntegerType(), pa.int32()),
    "messages": (LongType(), pa.int64()),
    "message_bytes": (LongType(), pa.int64()),
    "topics": (ArrayType(StringType()), pa.list_(pa.field("element", pa.string()))),
    "first_half": (LongType(), pa.int64()),
    "verdict_position": (LongType(), pa.int64()),
    "next_check_at": (TimestampType(), pa.timestamp("us", tz="UTC")),
    "parked": (StringType(), pa.string()),
    "half_index": (LongType(), pa.int64()),
}

assert _TYPES.keys() == {*COLUMNS, *TRANSACTION_COLUMNS, *HALF_COLUMNS}


def spark_schema(columns: Sequence[str]) -> StructType:
    """The Spark schema of ``columns``, names of one view in ``options``."""
    return StructType([StructField(name, _TYPES[name][0]) for name in columns])


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema that Spark expects for ``spark_schema(columns)``."""
    return pa.schema([pa.field(name, _TYPES[name][1]) for name in columns])
