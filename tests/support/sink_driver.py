"""A Spark driver in a process of its own, to be killed: ``python -m tests.support.sink_driver URL DIRECTORY GUARANTEE NAME...``.

Each NAME is a query from topic in-NAME to topic out-NAME, whose checkpoint is DIRECTORY/NAME/checkpoint. When one ends, its error (or nothing)
is written to DIRECTORY/NAME/ended.
"""

import sys
import time
from pathlib import Path
from typing import Any

#: Rows of a batch.
BATCH_ROWS = 10


def start(
    spark: Any, url: str, directory: Path, *, rows: int = BATCH_ROWS, guarantee: str = "exactlyOnce", **trigger: Any
) -> Any:
    """Start the query of ``directory``; without ``trigger`` it runs until it is stopped."""
    stream = (
        spark.readStream.format("halfmq")
        .options(url=url, subscribe=f"in-{directory.name}", startingOffsets="earliest", columns="value")
        .options(maxOffsetsPerTrigger=str(rows), minPartitions="2")
        .load()
        .writeStream.format("halfmq_stalling")
        .options(url=url, topic=f"out-{directory.name}", maxHalfBatchBytes="4k", guarantee=guarantee)
        .option("checkpointLocation", str(directory / "checkpoint"))
    )
    return (stream.trigger(**trigger) if trigger else stream).start()


def session(name: str, master: str) -> Any:
    """A session with small batches of Arrow, so that a task gets several."""
    from halfmq.spark import builder
    from tests.support.stalling_sink import StallingSource

    made = builder(name, master).config("spark.ui.enabled", "false")
    made = made.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
    spark = made.config("spark.sql.execution.arrow.maxRecordsPerBatch", "1").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(StallingSource)
    return spark


def main(url: str, directory: Path, guarantee: str, names: list[str]) -> None:
    # Stalled tasks keep their slots; a task whose worker dies is tried again.
    spark = session("to be killed", "local[6,4]")
    running = {}
    for name in names:
        running[name] = query = start(spark, url, directory / name, guarantee=guarantee)
        # One after the other: Spark gives a new Python process 10 s to connect, and eight that start at once on a busy machine take longer.
        while query.isActive and not (directory / name / "checkpoint" / "offsets" / "0").exists():
            time.sleep(0.1)
    while True:
        for name, query in list(running.items()):
            if not query.isActive:
                del running[name]
                (directory / name / "ended").write_text(str(query.exception() or ""))
        time.sleep(0.1)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4:])
