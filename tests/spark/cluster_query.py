"""A driver program of ``test_clusters``: reads a topic on a cluster as a batch and as a stream, and prints what became of each.

``python cluster_query.py MASTER '{"register": true, "py_file": "", "sources": [{"url": ...}, {"path": ...}]}'``; the last line of the
output is JSON: for each source [batch, stream], a sorted list of the bodies, or the text of the error.
"""

import json
import sys
import tempfile
from typing import Any


def main() -> None:
    from halfmq.spark import HalfmqDataSource, builder

    given = json.loads(sys.argv[2])
    made = builder("cluster query", sys.argv[1])
    for name, value in {
        "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1", "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.executor.memory": "512m", "spark.task.maxFailures": "1", "spark.sql.warehouse.dir": tempfile.mkdtemp(),
    }.items():  # fmt: skip
        made = made.config(name, value)
    spark = made.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if given["py_file"]:
        spark.sparkContext.addPyFile(given["py_file"])
    if given["register"]:
        spark.dataSource.register(HalfmqDataSource)
    results = [[outcome(read, spark, source) for read in (batch, stream)] for source in given["sources"]]
    spark.stop()
    print(json.dumps(results))


def outcome(read: Any, spark: Any, source: dict[str, str]) -> list[str] | str:
    options = {"subscribe": "orders", "minPartitions": "4", "columns": "value", "startingOffsets": "earliest", **source}
    try:
        return sorted(bytes(row.value).decode() for row in read(spark, options))
    except Exception as error:
        return str(error)


def batch(spark: Any, options: dict[str, str]) -> list[Any]:
    rows: list[Any] = spark.read.format("halfmq").options(**options).load().collect()
    return rows


def stream(spark: Any, options: dict[str, str]) -> list[Any]:
    name = "path" if "path" in options else "url"
    frame = spark.readStream.format("halfmq").options(**options).load()
    query = frame.writeStream.format("memory").queryName(name).trigger(availableNow=True).start()
    query.awaitTermination()
    rows: list[Any] = spark.table(name).collect()
    return rows


if __name__ == "__main__":
    main()
