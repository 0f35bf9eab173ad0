"""A Spark session with recommended settings.

    spark = builder("orders").getOrCreate()
    spark.dataSource.register(HalfmqDataSource)

Override a setting with ``.config(...)``. Other sessions work as well, but slower; their Python workers must be able to import
halfmq.
"""

import os
import sys
from pathlib import Path
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
#: spark-submit sets it for the Python program, which then must not replace the master that was submitted.
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
#: Arguments of the JVM that this process starts. Those of spark.driver.extraJavaOptions come after them, and win.
_JVM_ARGUMENTS: Final = "SPARK_SUBMIT_OPTS"
#: Of an installed Spark, which has its own configuration of logging.
_INSTALLED: Final = ("SPARK_HOME", "SPARK_CONF_DIR")
_LOGGING: Final = f"-Dlog4j2.configurationFile={(Path(__file__).parent / 'log4j2.properties').as_uri()}"


def builder(name: str, master: str | None = None) -> SparkSession.Builder:
    """A session builder; call ``getOrCreate()`` on it.

    ``master``: a cluster, or None: the one of spark-submit, without it this machine (``local[*]``).

    Sets JAVA_HOME, PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON in the environment of this process: workers otherwise run the first
    ``python3`` in PATH, which may lack the packages. On a cluster where executors need another path, set PYSPARK_PYTHON before: all tasks
    run it, and on the driver the planner. Warnings that Spark logs at each start are left out (``log4j2.properties``), unless SPARK_HOME or
    SPARK_CONF_DIR is set.

    Raises:
        MissingDependency: no Java 17 or later was found.
    """
    os.environ["JAVA_HOME"] = str(find_java().home)
    python = os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Spark runs it for a source that it discovers itself (``pyspark_halfmq``), also in tasks on executors: so it must be the same.
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", python)
    arguments = os.environ.get(_JVM_ARGUMENTS, "")
    if "log4j" not in arguments and not any(map(os.environ.get, _INSTALLED)):
        os.environ[_JVM_ARGUMENTS] = f"{_LOGGING} {arguments}".strip()
    made = SparkSession.builder.appName(name)
    if master is None and _SUBMITTED not in os.environ:
        master = "local[*]"
    if master is not None:
        made = made.master(master)
    for key, value in _SETTINGS.items():
        made = made.config(key, value)
    return made
