"""Spark data source: committed messages in batches and streams, transactions in batches, from a broker or directly from the files of a
store.

    from halfmq.spark import HalfmqDataSource, builder

    spark = builder("orders").getOrCreate()          # or any other SparkSession
    spark.dataSource.register(HalfmqDataSource)      # not needed if ``pyspark_halfmq`` is importable
    spark.readStream.format("halfmq").option("url", "rocketmq://127.0.0.1:9876").option("subscribe", "orders").load()

Names are imported on first use, so that ``halfmq.spark.java`` works without PySpark.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halfmq.spark.session import builder
    from halfmq.spark.source import HalfmqDataSource

__all__ = ["HalfmqDataSource", "builder"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from halfmq.errors import MissingDependency

    try:
        if name == "builder":
            from halfmq.spark.session import builder

            return builder
        from halfmq.spark.source import HalfmqDataSource

        return HalfmqDataSource
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] in ("pyspark", "pyarrow", "numpy"):
            raise MissingDependency(f"{error.name} is not installed", hint="pip install 'halfmq[spark]'") from error
        raise
