"""A Spark session with recommended settings.

    spark = builder("orders").getOrCreate()
    spark.dataSource.register(HalfmqDataSource)

Override a setting with ``.config(...)``. Other sessions work as well, but slower; their Python workers must be able to import
halfmq.
"""

import os
import sys
from typing import Final

from pyspark.sql import SparkSession

from halfmq.spark.java import find_java

_SETTINGS: Final = {
    # Takes a third less time per message than TCP between JVM and Python workers.
    "spark.python.unix.domain.socket.enabled": "true",
    # Without Hadoop's native library, the default forks a process for each file operation: 40 ms per batch.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # Show timestamps in the same time zone on all machines.
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}


def builder(name: str, master: str = "local[*]") -> SparkSession.Builder:
    """A session builder; call ``getOrCreate()`` on it.

    Sets JAVA_HOME, PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON in the environment of this process: workers otherwise run the first
    ``python3`` in PATH, which may lack the packages.

    Raises:
        MissingDependency: no Java 17 or later was found.
    """
    os.environ["JAVA_HOME"] = str(find_java().home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    made = SparkSession.builder.appName(name).master(master)
    for key, value in _SETTINGS.items():
        made = made.config(key, value)
    return made
