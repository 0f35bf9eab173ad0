"""Spark batch reads of a store's files beside Spark's own Parquet scan of the same rows: `python -m tests.bench.spark_read`.

Writes N committed messages (every second one as a half message of a transaction) with the store's own log and derived
files, saves the same rows as uncompressed Parquet with Spark, and times ``sum(length(value))`` over both in turns, so
that a noisy machine hits both alike. The figure is the ratio of best times; the first mark is 0.5.
"""

import argparse
import json
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.support.store_writer import StoreWriter

from halfmq.model import properties as props

SEGMENT_BYTES = 256 << 20
QUEUES = 8
ALL = "key,value,topic,queue,offset,timestamp,tag,keys,message_id,transaction_id,properties"
COLUMN_SETS = {"value": "value", "default": ALL.removesuffix(",properties"), "with properties": ALL}


def write_store(directory: Path, messages: int, body_bytes: int) -> None:
    writer = StoreWriter(directory, segment_bytes=SEGMENT_BYTES)
    writer.topic("bench", QUEUES)
    # No two bodies are alike: Parquet would store equal ones once, in a dictionary, and win by not reading them.
    noise = random.Random(body_bytes).randbytes(messages + body_bytes)
    for number in range(0, messages, 2):
        pairs = {"TAGS": "web", "KEYS": f"order-{number}", "UNIQ_KEY": f"7F000001{number:024X}", "WAIT": "true"}
        writer.send("bench", number % QUEUES, noise[number : number + body_bytes], props.encode(pairs))
        pairs |= {"UNIQ_KEY": f"7F000002{number:024X}", "TRAN_MSG": "true", "PGROUP": "bench"}
        half = ("bench", (number + 1) % QUEUES, noise[number + 1 : number + 1 + body_bytes], props.encode(pairs))
        writer.commit(pairs["UNIQ_KEY"], writer.prepare(pairs["UNIQ_KEY"], [half]))
    writer.publish()


def timed(frame: Any) -> tuple[float, int]:
    from pyspark.sql import functions as f

    started = time.perf_counter()
    total = frame.select(f.sum(f.length("value"))).collect()[0][0]
    return time.perf_counter() - started, total


def measure(spark: Any, work: Path, messages: int, body_bytes: int, rounds: int) -> dict[str, Any]:
    store, parquet = work / f"store-{body_bytes}", work / f"parquet-{body_bytes}"
    if not store.exists():
        write_store(store, messages, body_bytes)

    def source(columns: str, **more: str) -> Any:
        return spark.read.format("halfmq").load(str(store), subscribe="bench", columns=columns, **more)

    if not parquet.exists():
        source(ALL).write.option("compression", "none").parquet(str(parquet))
    frames = {"parquet": spark.read.parquet(str(parquet))}
    frames |= {name: source(columns) for name, columns in COLUMN_SETS.items()}
    frames["value, verified"] = source("value", verifyBodies="true")
    best = dict.fromkeys(frames, float("inf"))
    for _ in range(rounds):
        for name, frame in frames.items():
            seconds, total = timed(frame)
            assert total == messages * body_bytes, (name, total)
            best[name] = min(best[name], seconds)
    return {
        "messages": messages,
        "body_bytes": body_bytes,
        "seconds": {name: round(seconds, 3) for name, seconds in best.items()},
        "ratio_to_parquet": {name: round(best["parquet"] / seconds, 3) for name, seconds in best.items()},
        "messages_per_second": {name: round(messages / seconds) for name, seconds in best.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--body-bytes", type=int, nargs="+", default=[100, 1024])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", type=Path, help="keep the stores here for another run")
    parser.add_argument("--output", type=Path, help="write the figures as JSON")
    arguments = parser.parse_args()
    from halfmq.spark import HalfmqDataSource, builder

    work = arguments.work or Path(tempfile.mkdtemp(prefix="halfmq-spark-"))
    spark = builder("halfmq bench").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(HalfmqDataSource)
    try:
        figures = [measure(spark, work, arguments.messages, size, arguments.rounds) for size in arguments.body_bytes]
    finally:
        spark.stop()
        if arguments.work is None:
            shutil.rmtree(work)
    print(json.dumps(figures, indent=1))
    if arguments.output:
        arguments.output.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
