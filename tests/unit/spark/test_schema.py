"""Columns: what Spark is told and what it gets must agree to the letter."""

from pyspark.sql.pandas.types import to_arrow_schema

from halfmq.spark.options import COLUMNS, COLUMNS_DEFAULT, HALF_COLUMNS, TRANSACTION_COLUMNS
from halfmq.spark.schema import arrow_schema, spark_schema


def test_arrow_batches_have_the_schema_that_spark_derives() -> None:
    for columns in (COLUMNS, TRANSACTION_COLUMNS, HALF_COLUMNS):
        assert arrow_schema(columns).equals(to_arrow_schema(spark_schema(columns), timezone="UTC"))


def test_headers_are_typed_as_in_sparks_kafka_source() -> None:
    assert spark_schema(("headers",)).simpleString() == "struct<headers:array<struct<key:string,value:binary>>>"


def test_columns_come_in_the_order_in_which_they_are_asked_for() -> None:
    assert spark_schema(("offset", "value")).fieldNames() == ["offset", "value"]
    assert spark_schema(COLUMNS_DEFAULT).fieldNames() == [
        "key", "value", "topic", "queue", "offset", "timestamp", "tag", "keys", "message_id", "transaction_id",
    ]  # fmt: skip
