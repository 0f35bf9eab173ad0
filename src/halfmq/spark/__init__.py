"""Spark data source: committed messages in batches and streams, transactions in batches, from a broker or directly from the files of a store.

    from halfmq.spark import HalfmqDataSource, builder

    spark = builder("orders").getOrCreate()          # or any other SparkSession
    spark.dataSource.register(HalfmqDataSource)      # not needed if ``pyspark_halfmq`` is importable
    spark.readStream.format("halfmq").option("url", "rocketmq://127.0.0.1:9876").option("subscribe", "orders").load()

    options.py        options and their validation               schema.py        columns
    subscription.py   topics by name or pattern                  bounds.py        start and end by offset or time
    offsets.py        stream offsets; bounds of all queues       data_loss.py     detects missing messages
    read_limit.py     limits of a trigger                        partitions.py    queue ranges of a task
    tag_filter.py     option ``tags``
    stored_rows.py    stored messages to Arrow                   properties_arrow.py, bodies.py   columns of it
    queue_lookups.py  offsets by time, and sizes, of a broker
    direct_reader.py  the files of a store on this machine       wire_reader.py   a broker, or a RocketMQ cluster
    raw_reader.py     messages of a halfmq broker                pull_reader.py   of RocketMQ, and of an older halfmq
    store_files.py    the files of a store, for readers beside its broker
    table_rows.py     rows of the transaction table to Arrow     table_plan.py    tasks of a view of transactions
    table_files.py    the table in a store's files               table_wire.py    the table of a broker
    source.py         Spark's interfaces                         java.py session.py   starting Spark

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
