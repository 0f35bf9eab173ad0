"""Columns of a message in Spark.

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

from halfmq.spark.options import COLUMNS

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
}

assert _TYPES.keys() == set(COLUMNS)


def spark_schema(columns: Sequence[str]) -> StructType:
    """The Spark schema of ``columns``, names in ``options.COLUMNS``."""
    return StructType([StructField(name, _TYPES[name][0]) for name in columns])


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema that Spark expects for ``spark_schema(columns)``."""
    return pa.schema([pa.field(name, _TYPES[name][1]) for name in columns])
