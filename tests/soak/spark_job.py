"""The streaming job of the Spark storm, in a process of its own: ``python -m tests.soak.spark_job URL DIRECTORY``.

Topic ``in`` has numbers; topic ``out`` gets each with its value (``spark_storm.expected``). The executors are processes of their own.
"""

import sys
from pathlib import Path

#: Of a batch: some seconds of the producer, so that there are many batches, and the query keeps up in spite of the kills.
ROWS = 2_000


def main(url: str, directory: Path) -> None:
    from halfmq.spark import HalfmqDataSource, builder

    made = builder("storm", "local-cluster[2,1,640]").config("spark.ui.enabled", "false")
    for name, value in {
        "spark.executor.memory": "512m",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        # Executors are killed all the time: a cluster that gives up after ten of them would be a test of that limit.
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.task.maxFailures": "10",
        "spark.stage.maxConsecutiveAttempts": "20",
        "spark.local.dir": str(directory / "spark-local"),
    }.items():
        made = made.config(name, value)
    spark = made.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(HalfmqDataSource)
    numbers = (
        spark.readStream.format("halfmq")
        .options(url=url, subscribe="in", startingOffsets="earliest", columns="value")
        .options(maxOffsetsPerTrigger=str(ROWS), minPartitions="4")
        .load()
        .selectExpr("cast(cast(value as string) as long) as number")
    )
    rows = numbers.selectExpr(
        "concat(number, ' ', number * number % 1000003) as value", "cast(number as string) as key"
    )
    query = (
        rows.writeStream.format("halfmq")
        .options(url=url, topic="out", maxHalfBatchBytes="4k")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
