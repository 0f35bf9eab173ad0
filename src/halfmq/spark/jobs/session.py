"""The Spark session of a job."""

from typing import Any, Final

from halfmq.spark import HalfmqDataSource, builder
from halfmq.spark.jobs.settings import SparkSettings

#: Spark's default is for a cluster: on one machine, 200 tasks without rows take half a minute.
_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_PARTITIONS_DEFAULT: Final = "200"


def start(job: str, settings: SparkSettings) -> Any:
    """A ``SparkSession`` with ``format("halfmq")`` registered; a running one is used, with its own configuration.

    Raises:
        MissingDependency: no Java 17 or later was found.
    """
    made = builder(f"halfmq {job}", settings.master).config("spark.ui.enabled", "false")
    for name, value in settings.conf.items():
        made = made.config(name, value)
    spark: Any = made.getOrCreate()
    if spark.sparkContext.master.startswith("local") and spark.conf.get(_PARTITIONS) == _PARTITIONS_DEFAULT:
        spark.conf.set(_PARTITIONS, 4 * spark.sparkContext.defaultParallelism)
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(HalfmqDataSource)
    return spark
