"""The Spark session of a job."""

import atexit
import contextlib
import os
import warnings
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from halfmq.spark import HalfmqDataSource, builder
from halfmq.spark.java import without_warning
from halfmq.spark.jobs.settings import SparkSettings

#: Options of the driver's JVM, which this process starts, unless it is spark-submit's.
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_LOGGING: Final = f"-Dlog4j2.configurationFile={(Path(__file__).parent / 'log4j2.properties').as_uri()}"
#: PySpark warns of it in each process, also if the job does not use pandas.
_WARNING: Final = "PySpark does not yet fully support pandas"
_LOG_LEVEL: Final = "spark.log.level"
#: Spark's default is for a cluster: on one machine, 200 tasks without rows take half a minute.
_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_PARTITIONS_DEFAULT: Final = "200"


def start(job: str, settings: SparkSettings) -> Any:
    """A ``SparkSession`` with ``format("halfmq")`` registered; a running one is used, with its own configuration.

    Spark logs errors only, unless ``settings.conf`` has ``spark.log.level``.

    Raises:
        MissingDependency: no Java 17 or later was found.
    """
    warnings.filterwarnings("ignore", _WARNING, FutureWarning)
    os.environ.setdefault("PYTHONWARNINGS", f"ignore:{_WARNING}:FutureWarning")
    made = builder(f"halfmq {job}", settings.master).config("spark.ui.enabled", "false")
    java = settings.conf.get(_JAVA_OPTIONS, "")
    quiet = {_JAVA_OPTIONS: java if "log4j" in java else f"{_LOGGING} {java}".strip()}
    for name, value in {**settings.conf, **quiet}.items():
        made = made.config(name, value)
    os.environ["JAVA_HOME"] = str(without_warning(Path(os.environ["JAVA_HOME"])))
    is_own = SparkSession.getActiveSession() is None
    spark: Any = made.getOrCreate()
    if is_own:
        atexit.register(_stop, spark)
    if spark.sparkContext.master.startswith("local") and spark.conf.get(_PARTITIONS) == _PARTITIONS_DEFAULT:
        spark.conf.set(_PARTITIONS, 4 * spark.sparkContext.defaultParallelism)
    spark.sparkContext.setLogLevel(settings.conf.get(_LOG_LEVEL, "ERROR"))
    spark.dataSource.register(HalfmqDataSource)
    return spark


def _stop(spark: Any) -> None:
    """Ends Spark's Python workers before the JVM: a worker that notices the end of the JVM first prints a traceback."""
    with contextlib.suppress(Exception):  # the JVM may be gone
        spark.stop()
