"""The streaming job: orders from the broker, revenue by department and day back into the broker, exactly once, through every kill.

Each micro-batch reads the messages of topic ``orders`` that are new, adds up their lines, and writes one message for each department and
day to topic ``revenue``: the part of this batch. Batch N is written as version N of writer ``demo-revenue``, so that a batch that runs
again after a kill writes nothing a second time; a consumer that adds up all messages gets the revenue to the cent.
"""

import argparse
import logging
import signal
import sys
import threading
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from demo.checkpoint import checkpoint
from demo.run import ORDERS_TOPIC, REVENUE_TOPIC, Run
from halfmq.spark import HalfmqDataSource, builder

log = logging.getLogger("demo.revenue_job")

MESSAGE_SCHEMA: Final = (
    "basket_id long, household_id int, store_id int, sold_at string, total_cents long,"
    " lines array<struct<product_id: long, quantity: int, cents: long, department: string>>"
)
#: A batch costs about a second, whatever is in it.
TRIGGER_SECONDS: Final = 4
#: The writer's name on the broker: with the number of a batch, what makes writing it again harmless.
WRITER: Final = "demo-revenue"


def session(run: Run, name: str) -> SparkSession:
    spark = (
        builder(name, master="local[2]")
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


def orders(spark: SparkSession, run: Run) -> DataFrame:
    return (
        spark.readStream.format("halfmq")
        .option("url", run.url)
        .option("subscribe", ORDERS_TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 25_000)
        .option("columns", "value")
        .load()
    )


def write_batch(run: Run, batch: DataFrame, batch_id: int) -> None:
    """The revenue of one micro-batch into the topic; the same batch again writes nothing."""
    order = f.from_json(f.col("value").cast("string"), MESSAGE_SCHEMA)
    lines = batch.select(order.alias("o")).select(
        f.substring("o.sold_at", 1, 10).alias("day"), f.explode("o.lines").alias("line")
    )
    sums = lines.groupBy("line.department", "day").agg(f.sum("line.cents").alias("cents"), f.count("*").alias("lines"))
    rows = sums.select(
        f.to_json(f.struct("department", "day", "cents", "lines")).alias("value"),
        f.translate(f.concat_ws("/", "department", "day"), " ", "_").alias("key"),
    )
    writer = rows.write.format("halfmq").mode("append").option("url", run.url).option("topic", REVENUE_TOPIC)
    writer.option("txnAppId", WRITER).option("txnVersion", str(batch_id)).save()


def run_job(run: Run, stopping: threading.Event) -> None:
    """Stream until told to stop, then read what is there to the end, and return."""
    spark = session(run, "halfmq-demo")
    query = (
        orders(spark, run)
        .writeStream.foreachBatch(lambda batch, batch_id: write_batch(run, batch, batch_id))
        .option("checkpointLocation", str(checkpoint(run.path)))
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
