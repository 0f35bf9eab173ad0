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

_TEXT: Final = (StringType(), pa.string())
_INT: Final = (IntegerType(), pa.int32())
_LONG: Final = (LongType(), pa.int64())
_TIME: Final = (TimestampType(), pa.timestamp("us", tz="UTC"))
#: Spark and Arrow type of each column, of messages and of the views of the transaction table.
_TYPES: Final[dict[str, tuple[DataType, pa.DataType]]] = {
    **dict.fromkeys(("key", "value"), (BinaryType(), pa.binary())),
    **dict.fromkeys(("topic", "tag", "keys", "message_id", "transaction_id", "broker"), _TEXT),
    **dict.fromkeys(("group", "outcome", "decided_by", "parked"), _TEXT),
    **dict.fromkeys(("queue", "checks", "halves"), _INT),
    **dict.fromkeys(("offset", "latency_ms", "messages", "message_bytes"), _LONG),
    **dict.fromkeys(("first_half", "verdict_position", "half_index"), _LONG),
    **dict.fromkeys(("timestamp", "prepared_at", "settled_at", "next_check_at"), _TIME),
    "properties": (MapType(StringType(), StringType()), pa.map_(pa.string(), pa.string())),
    "headers": (ArrayType(_HEADER), pa.list_(pa.field("element", _ARROW_HEADER))),
    "topics": (ArrayType(StringType()), pa.list_(pa.field("element", pa.string()))),
}

assert _TYPES.keys() == {*COLUMNS, *TRANSACTION_COLUMNS, *HALF_COLUMNS}


def spark_schema(columns: Sequence[str]) -> StructType:
    """The Spark schema of ``columns``, names of one view in ``options``."""
    return StructType([StructField(name, _TYPES[name][0]) for name in columns])


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema that Spark expects for ``spark_schema(columns)``."""
    return pa.schema([pa.field(name, _TYPES[name][1]) for name in columns])
