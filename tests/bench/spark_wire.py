"""Spark batch reads over the network, before and now: `python -m tests.bench.spark_wire --before WORKTREE`.

Writes a store with the broker's own code (half of the messages were half messages of transactions), then for each tree starts its broker
and its Spark session, and times ``sum(length(value))`` for the default columns and for ``value`` only. Broker and Spark share the
machine. CPU time a row: of the broker, of Spark's JVM, of Spark's Python workers; and, in one process without Spark, of the
reader's stages. The command prints JSON. ``--before`` is a git worktree of the version to compare with; without it only this tree is
measured.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.bench.cpu import cpu_seconds, descendants
from tests.bench.spark_read import COLUMN_SETS, timed
from tests.support import served

SEGMENT_BYTES = 256 << 20


def stages(url: str, columns: str, messages: int) -> dict[str, float]:
    """CPU time of the stages of a read in this process, us a row."""
    from halfmq.client import blocking
    from halfmq.spark import source
    from halfmq.spark.network import raw_reader
    from halfmq.spark.options import parse_options

    spent: dict[str, float] = {}

    def watch(owner: Any, name: str, stage: str) -> None:
        call = getattr(owner, name)

        def watched(*given: Any, **named: Any) -> Any:
            started = time.process_time_ns()
            result = call(*given, **named)
            if stage == "arrow":
                result = list(result)
            spent[stage] = spent.get(stage, 0) + time.process_time_ns() - started
            return result

        setattr(owner, name, watched)

    watch(blocking.RawConnection, "_exactly", "socket")
    watch(raw_reader, "is_intact", "checksum")
    watch(raw_reader, "_wrong_half_batches", "checksum")
    watch(raw_reader, "_rows", "decode")
    watch(source, "record_batches", "arrow")
    options = parse_options({"url": url, "subscribe": "bench", "columns": columns, "minPartitions": "1"})
    planner = source.HalfmqBatchReader(options.for_batch())
    started = time.process_time_ns()
    for part in planner.partitions():
        for _ in planner.read(part):
            pass
    spent["all"] = time.process_time_ns() - started
    return {stage: round(nanoseconds / messages / 1e3, 3) for stage, nanoseconds in spent.items()}


def measure(store: Path, messages: int, body_bytes: int, rounds: int, *, with_stages: bool) -> dict[str, Any]:
    """In a process of the tree to measure."""
    from halfmq.spark import HalfmqDataSource, builder

    served.SEGMENT_BYTES = SEGMENT_BYTES
    broker = served.Served(store, store.parent / "broker.log", "--durability", "memory")
    broker.start(120)
    assert broker.process is not None
    url = f"rocketmq://127.0.0.1:{broker.name_port}"
    spark = builder("halfmq bench").config("spark.ui.enabled", "false").master("local[2]").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(HalfmqDataSource)
    found: dict[str, Any] = {}
    try:
        for name in ("value", "default"):
            frame = spark.read.format("halfmq").load(url=url, subscribe="bench", columns=COLUMN_SETS[name])
            best: dict[str, float] = {"seconds": float("inf")}
            for _ in range(rounds):
                others = descendants(os.getpid())
                jvm = [number for number, comm in others if comm == "java"]
                workers = [number for number, comm in others if comm.startswith("python")]
                workers = [number for number in workers if number != broker.process.pid]
                before = [cpu_seconds(broker.process.pid), cpu_seconds(*jvm), cpu_seconds(*workers)]
                seconds, total = timed(frame)
                assert total == messages * body_bytes, total
                after = [cpu_seconds(broker.process.pid), cpu_seconds(*jvm), cpu_seconds(*workers)]
                if seconds < best["seconds"]:
                    names = ("broker", "jvm", "python workers")
                    used = [round((b - a) / messages * 1e6, 2) for a, b in zip(before, after, strict=True)]
                    best = {"seconds": round(seconds, 3), "rows_per_second": round(messages / seconds)}
                    best |= {f"cpu us a row: {name}": each for name, each in zip(names, used, strict=True)}
            found[name] = best
        if with_stages:
            found["stages without Spark, cpu us a row"] = {
                name: stages(url, COLUMN_SETS[name], messages) for name in ("value",)
            }
    finally:
        spark.stop()
        broker.stop()
    return found


def run(tree: Path, arguments: argparse.Namespace, store: Path, body_bytes: int, *, with_stages: bool) -> Any:
    """``measure`` of that tree, in a process of its own: with this program as it was there, since it uses the store's own code."""
    command = [
        sys.executable, "-m", "tests.bench.spark_wire", "--measure", str(store), "--messages", str(arguments.messages),
        "--body-bytes", str(body_bytes), "--rounds", str(arguments.rounds), *(["--stages"] if with_stages else []),
    ]  # fmt: skip
    path = f"{tree / 'src'}:{tree}"
    done = subprocess.run(
        command, cwd=tree, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, check=True, timeout=600
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="a git worktree to compare with")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--body-bytes", type=int, nargs="+", default=[100, 1024])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--work", type=Path, help="keep the stores here for another run")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--stages", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        (size,) = arguments.body_bytes
        figures = measure(arguments.measure, arguments.messages, size, arguments.rounds, with_stages=arguments.stages)
        print(json.dumps(figures))
        return
    from tests.bench.broker_store import write_broker_store

    work = arguments.work or Path(tempfile.mkdtemp(prefix="halfmq-spark-wire-"))
    here = Path(__file__).parents[2]
    found: dict[str, Any] = {"messages": arguments.messages}
    try:
        for size in arguments.body_bytes:
            store = work / f"broker-{arguments.messages}-{size}"
            if not store.exists():
                write_broker_store(store, arguments.messages, size, segment_bytes=SEGMENT_BYTES)
            found[f"{size} bytes"] = {"now": run(here, arguments, store, size, with_stages=True)}
            if arguments.before:
                found[f"{size} bytes"]["before"] = run(arguments.before, arguments, store, size, with_stages=False)
    finally:
        if arguments.work is None:
            shutil.rmtree(work)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
