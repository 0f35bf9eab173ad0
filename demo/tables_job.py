"""The jobs of ``halfmq pipeline`` on the data of the run, one after the other in one Spark session, when the load is over.

tables/           ingest: the orders, from the topic
transactions/     transactions: what became of each transaction of the order services
reconcile.json    reconcile: orders of the shop's database against messages of the topic, by basket
jobs.html         report: all of it on one page

Exit status: 0, or 1 if reconcile found differences.
"""

import argparse
import sys
from pathlib import Path

from demo.revenue_job import MESSAGE_SCHEMA
from demo.run import LOYALTY_TOPIC, ORDERS_TOPIC, Run
from halfmq.spark.jobs import ingest, reconcile, report, transactions
from halfmq.spark.jobs.settings import SparkSettings

#: Of all jobs. The demo shares two cores with everything it watches: the quick compiler is enough.
SPARK = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def run_jobs(run: Run) -> int:
    spark = SparkSettings(master="local[2]", conf=SPARK | {"spark.local.dir": str(run.path / "spark-local")})

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    orders = ingest.Settings(
        url=run.url, topics=(ORDERS_TOPIC,), output=str(run.path / "tables"), schema=MESSAGE_SCHEMA,
        required=("basket_id", "total_cents", "lines"),
    )  # fmt: skip
    ingest.run(orders, spark, say)
    transactions.run(transactions.Settings(url=run.url, output=str(run.path / "transactions")), spark, say)
    compared = reconcile.Settings(
        database=run.shop_db, table="orders", key=("basket_id",), compare=("household_id", "store_id", "total_cents"),
        sum=("total_cents",), url=run.url, topics=(ORDERS_TOPIC,), json=str(run.path / "reconcile.json"),
    )  # fmt: skip
    status = reconcile.run(compared, spark, say)
    page = report.Settings(
        output=str(run.path / "jobs.html"), title="halfmq demo", url=run.url, topics=(ORDERS_TOPIC, LOYALTY_TOPIC),
        transactions=str(run.path / "transactions"), reconciliation=str(run.path / "reconcile.json"),
    )  # fmt: skip
    report.run(page, spark, say)
    return status


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    return run_jobs(Run.load(parser.parse_args().directory))


if __name__ == "__main__":
    sys.exit(main())
