"""halfmq as a Spark data source: committed messages, in batches and streams, over the wire or from the store's files.

    from halfmq.spark import HalfmqDataSource, builder

    spark = builder("orders").getOrCreate()          # any SparkSession will do
    spark.dataSource.register(HalfmqDataSource)      # not needed where the package ``pyspark_halfmq`` is installed
    spark.readStream.format("halfmq").option("url", "rocketmq://127.0.0.1:9876").option("subscribe", "orders").load()

    options.py        what may be said, and what it means        schema.py        columns
    offsets.py        the stream offset, and a cut of all queues data_loss.py     when a start no longer fits a cut
    read_limit.py     what one trigger takes of each queue       partitions.py    what one task reads
    stored_rows.py    bytes of stored messages to Arrow          properties_arrow.py, bodies.py   parts of that
    direct_reader.py  the store's files on this machine          wire_reader.py   a broker, or a RocketMQ cluster
    source.py         Spark's interface                          java.py session.py   starting Spark

Names are loaded when they are first asked for, so that ``halfmq.spark.java`` can say what is missing without Spark.
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
