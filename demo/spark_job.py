"""The PySpark job: a stream from the broker into Parquet tables, through the broker's restarts.

Tables below ``spark/``, one directory ``batch_id=N`` for each micro-batch, replaced as a whole if a batch is run again,
so that each message is in them once:

    orders   one row a message: basket_id, household_id, store_id, day, total_cents, message_id
    lines    one row a line: basket_id, product_id, quantity, sales_cents, department, day
    revenue  department, day, cents, lines: sums of the batch; the sum over batches is the revenue

Nothing is removed as a duplicate here: what stood twice in the topic would stand twice in the tables, and be found.
"""

import argparse
import logging
import signal
import sys
import threading
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from demo.run import ORDERS_TOPIC, Run
from halfmq.spark import HalfmqDataSource, builder

log = logging.getLogger("demo.spark_job")

#: Lines travel as JSON arrays; Spark's reader wants objects, so they are read as arrays of text first.
MESSAGE_SCHEMA = (
    "basket_id long, household_id int, store_id int, sold_at string, total_cents long, lines array<array<string>>"
)
#: Each batch writes three files; more batches cost more and show nothing more.
TRIGGER_SECONDS = 8


def session(run: Run) -> SparkSession:
    spark = (
        builder("halfmq-demo", master="local[2]")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .config("spark.local.dir", str(run.path / "spark-local"))
        .config("spark.sql.warehouse.dir", str(run.path / "spark-warehouse"))
        # The demo shares two cores with everything it watches: the quick compiler is enough.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("WARN")
    spark.dataSource.register(HalfmqDataSource)
    return spark


def messages(spark: SparkSession, run: Run) -> DataFrame:
    return (
        spark.readStream.format("halfmq")
        .option("url", run.url)
        .option("subscribe", ORDERS_TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 25_000)
        .option("columns", "value,message_id")
        .load()
    )


def write_batch(root: Path, batch: DataFrame, batch_id: int) -> None:
    """One micro-batch into the three tables; the same batch again replaces what it wrote."""
    batch.persist()
    order = f.from_json(f.col("value").cast("string"), MESSAGE_SCHEMA)
    parsed = batch.select(order.alias("o"), "message_id").select("o.*", "message_id")
    parsed = parsed.withColumn("day", f.to_date(f.substring("sold_at", 1, 10)))
    lines = parsed.select("basket_id", "day", f.explode("lines").alias("line")).select(
        "basket_id",
        _part(0).cast("long").alias("product_id"),
        _part(1).cast("int").alias("quantity"),
        _part(2).cast("long").alias("sales_cents"),
        _part(3).alias("department"),
        "day",
    )
    lines.persist()
    revenue = lines.groupBy("department", "day").agg(f.sum("sales_cents").alias("cents"), f.count("*").alias("lines"))
    try:
        _write(parsed.drop("lines", "sold_at"), root, "orders", batch_id)
        _write(lines, root, "lines", batch_id)
        _write(revenue, root, "revenue", batch_id)
    finally:
        lines.unpersist()
        batch.unpersist()


def _part(index: int) -> Column:
    return f.col("line").getItem(index)


def _write(table: DataFrame, root: Path, name: str, batch_id: int) -> None:
    table.coalesce(1).write.mode("overwrite").parquet(str(root / name / f"batch_id={batch_id}"))


def run_job(run: Run, stopping: threading.Event) -> None:
    """Stream until told to stop, then read what is there to the end, and return."""
    spark = session(run)
    root = run.path / "spark"
    query = (
        messages(spark, run)
        .writeStream.foreachBatch(lambda batch, batch_id: write_batch(root, batch, batch_id))
        .option("checkpointLocation", str(run.path / "spark-checkpoint"))
        .trigger(processingTime=f"{TRIGGER_SECONDS} seconds")
        .start()
    )
    while not stopping.wait(0.5):
        if query.exception() is not None:
            raise RuntimeError(f"the streaming query stopped: {query.exception()}")
    query.processAllAvailable()
    query.stop()
    log.info("query stopped after batch %s", (query.lastProgress or {}).get("batchId"))
    spark.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    stopping = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stopping.set())
    run_job(Run.load(arguments.directory), stopping)
    return 0


if __name__ == "__main__":
    sys.exit(main())
