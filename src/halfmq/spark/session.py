"""A Spark session with the settings that halfmq needs, each with its reason.

    spark = builder("orders").getOrCreate()
    spark.dataSource.register(HalfmqDataSource)

Every setting can be overridden with ``.config(...)`` afterwards. A session that was made otherwise works as well; it is
only slower, and its Python workers must be able to import halfmq.
"""

import os
import sys
from typing import Final

from pyspark.sql import SparkSession

from halfmq.spark.java import find_java

_SETTINGS: Final = {
    # A third less time per message than TCP between JVM and Python workers.
    "spark.python.unix.domain.socket.enabled": "true",
    # The default one forks a process for each file it touches where Hadoop's native library is missing: 40 ms a batch.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # Timestamps of messages are instants; show them as such wherever the job runs.
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}


def builder(name: str, master: str = "local[*]") -> SparkSession.Builder:
    """A session builder that is ready for ``getOrCreate()``; add ``.config(...)`` before that as you like.

    Sets JAVA_HOME, PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON in this process's environment: workers otherwise run the
    first ``python3`` in PATH, which need not have the packages of this one.

    Raises:
        MissingDependency: no Java 17 or later.
    """
    os.environ["JAVA_HOME"] = str(find_java().home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    made = SparkSession.builder.appName(name).master(master)
    for key, value in _SETTINGS.items():
        made = made.config(key, value)
    return made
