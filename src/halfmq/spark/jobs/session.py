"""The Spark session of a job."""

from typing import Any

from halfmq.spark import HalfmqDataSource, builder
from halfmq.spark.jobs.settings import SparkSettings


def start(job: str, settings: SparkSettings) -> Any:
    """A ``SparkSession`` with ``format("halfmq")`` registered; a running one is used, with its own configuration.

    Raises:
        MissingDependency: no Java 17 or later was found.
    """
    made = builder(f"halfmq {job}", settings.master).config("spark.ui.enabled", "false")
    for name, value in settings.conf.items():
        made = made.config(name, value)
    spark = made.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(HalfmqDataSource)
    return spark
