"""One Spark session for all: starting one costs seconds, and so does its first batch."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.jvm import QUICK

from halfmq.errors import MissingDependency

#: With its first compiler alone, the JVM would reserve 48 MB for compiled code, which all tests together fill; then it ends.
JAVA_OPTIONS = " ".join((*QUICK, "-XX:ReservedCodeCacheSize=240m"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from halfmq.spark import HalfmqDataSource, builder

    try:
        made = builder("halfmq tests", "local[2]")
    except MissingDependency as error:
        pytest.skip(str(error))
    work: Path = tmp_path_factory.mktemp("spark")
    session = (
        made.config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .config("spark.driver.extraJavaOptions", f"{JAVA_OPTIONS} -Dderby.system.home={work}")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    session.dataSource.register(HalfmqDataSource)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def sink(spark: Any) -> Iterator[Any]:
    """With small batches of Arrow, so that a task gets several, and with the sink that stops where a test wants it."""
    from tests.support.stalling_sink import StallingSource

    spark.dataSource.register(StallingSource)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    yield spark
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
