"""Spark with halfmq beside Spark with Parquet and with Apache Kafka, on this machine: `python -m tests.bench.spark_kafka`.

One Spark session (local[2]) runs the same batch queries over the same rows, in turns, so that a noisy machine hits all alike. A round
runs each line once, every second round in reverse order; one round before the others is not counted.

    read-files   sum(length(value)) from the files of a store, beside a scan of column value in Parquet
    read-wire    the same over the network, beside Spark's Kafka source: a topic whose messages were sent one by one, half of them as half
                 messages, and one that the sink wrote, as Kafka's was
    write        rows of a Parquet file into a topic, beside Spark's Kafka sink; "input" reads the file and writes nowhere

Prints a table to stderr and JSON to stdout: rows per second of all rounds; CPU time per row of the broker, Spark's JVM and its Python
workers; and the ratio of rates, ours to theirs, within each round. Broker and Spark share the machine.

Bodies are random bytes. halfmq runs with its defaults, synced: a write is visible once, and durable when it returns. Kafka's sink is at
least once, and its broker leaves syncing to the system, which is done between the runs here. "tuned" is the best of what was tried; see
``TUNED``. Needs Java 17 or later and Maven, which fetches the published jars of Kafka and of Spark's Kafka connector.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from tests.bench.broker_store import write_broker_store
from tests.bench.cpu import cpu_seconds, descendants
from tests.bench.spark_read import ALL, COLUMN_SETS, timed
from tests.support import served
from tests.support.kafka import POM as KAFKA_POM
from tests.support.kafka import VERSION as KAFKA_VERSION
from tests.support.kafka import KafkaBroker
from tests.support.maven import CACHE, MavenFailed, copy_jars

from halfmq.runtime.interpreter import build

PHASES = ("read-files", "read-wire", "write")
ROWS = {100: 2_000_000, 1024: 500_000}
SEGMENT_BYTES = 256 << 20
#: Queues and partitions of all topics. That of the default of our sink.
QUEUES = 4
#: Spark's Kafka connector is published apart from PySpark; where Maven has none of PySpark's version, this one, which works with it.
CONNECTOR_OTHERWISE = "4.2.0"
#: Options of the Kafka source and sink.
TUNED = {
    "read": {
        # A consumer that reaches the end of its partition while it prefetches holds up its task for this time; the default is 500 ms.
        "kafka.fetch.max.wait.ms": "1",
        "kafka.max.partition.fetch.bytes": str(4 << 20),
        "kafka.fetch.max.bytes": str(64 << 20),
        "kafka.receive.buffer.bytes": str(4 << 20),
        "kafka.max.poll.records": "20000",
    },
    "write": {
        "kafka.acks": "1",
        "kafka.linger.ms": "10",
        "kafka.batch.size": str(256 << 10),
        "kafka.max.request.size": str(8 << 20),
        "kafka.buffer.memory": str(64 << 20),
        "kafka.send.buffer.bytes": str(4 << 20),
        "kafka.compression.type": "none",
    },
}
WRITTEN = {"value": ("value",), "key and value": ("key", "value")}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def stop_with(text: str) -> NoReturn:
    say(text)
    raise SystemExit(2)


@dataclass
class Line:
    """One line of the table. ``beside``: names of the lines that it is compared with; ``run`` takes seconds, or it is timed."""

    name: str
    run: Callable[[], float]
    broker: Callable[[], float]
    beside: tuple[str, ...] = ()
    seconds: list[float] = field(default_factory=list)
    #: Of each round: seconds of CPU by process.
    cpu: list[dict[str, float]] = field(default_factory=list)


class Bench:
    def __init__(self, spark: Any, work: Path, rounds: int) -> None:
        self.spark = spark
        self.work = work
        self.rounds = rounds
        self.results: list[dict[str, Any]] = []

    # --- running

    def run_rounds(self, phase: str, rows: int, body_bytes: int, lines: list[Line]) -> None:
        for number in range(self.rounds + 1):
            for line in lines if number % 2 else reversed(lines):
                # The dirty pages of the run before must not slow down this one.
                os.sync()
                before = self._cpu(line)
                seconds = line.run()
                after = self._cpu(line)
                if number:
                    line.seconds.append(seconds)
                    line.cpu.append({name: after[name] - before[name] for name in after})
                what = f"round {number}" if number else "warm-up"
                say(f"  {phase}, {body_bytes} B, {what}: {line.name}: {rows / seconds:,.0f} rows/s")
        by_name = {line.name: line for line in lines}
        self.results += [figures(phase, rows, body_bytes, line, by_name) for line in lines]

    def _cpu(self, line: Line) -> dict[str, float]:
        jvm = self.spark.sparkContext._gateway.proc.pid
        workers = [number for number, name in descendants(jvm) if name.startswith("python")]
        return {
            "broker": line.broker(),
            "jvm": (jvm_alone := cpu_seconds(jvm, ended_children=False)),
            # A worker's time is its parent's once it has ended: that of the daemon that forks them, whose parent is the JVM.
            "python workers": cpu_seconds(jvm) - jvm_alone + cpu_seconds(*workers),
        }

    # --- one size of bodies

    def measure(self, rows: int, body_bytes: int, phases: list[str]) -> None:
        store, parquet = self.work / f"store-{rows}-{body_bytes}", self.work / f"parquet-{rows}-{body_bytes}"
        started = time.monotonic()
        if not store.exists():
            say(f"writing a store of {rows:,} messages of {body_bytes} B ...")
            half_made = self.work / "store-half-made"
            shutil.rmtree(half_made, ignore_errors=True)
            write_broker_store(half_made, rows, body_bytes, queues=QUEUES, segment_bytes=SEGMENT_BYTES, overlap=False)
            half_made.rename(store)
        if not (parquet / "_SUCCESS").exists():
            say("writing the same rows as Parquet ...")
            frame = self.spark.read.format("halfmq").load(str(store), subscribe="bench", columns=ALL)
            frame.write.mode("overwrite").parquet(str(parquet))
        say(f"data is there after {time.monotonic() - started:.0f} s")
        if "read-files" in phases:
            self._read_files(rows, body_bytes, store, parquet)
        for phase, measure, data in (
            ("read-wire", self._read_wire, store),
            ("write", self._write, self.work / "store-written"),
        ):
            if phase in phases:
                with self._brokers(data) as (broker, kafka):
                    measure(rows, body_bytes, parquet, broker, kafka)
        shutil.rmtree(self.work / "store-written", ignore_errors=True)

    @contextmanager
    def _brokers(self, store: Path) -> Iterator[tuple[served.Served, KafkaBroker]]:
        served.SEGMENT_BYTES = SEGMENT_BYTES
        broker = served.Served(store, self.work / "halfmq.log")
        kafka = KafkaBroker(self.work / "kafka", QUEUES)
        try:
            broker.start(120)
            kafka.start()
            yield broker, kafka
        finally:
            kafka.stop()
            broker.stop()
            shutil.rmtree(self.work / "kafka", ignore_errors=True)

    def _sum(self, frame: Any, total: int) -> Callable[[], float]:
        def run() -> float:
            seconds, found = timed(frame)
            assert found == total, (found, total)
            return seconds

        return run

    def _read_files(self, rows: int, body_bytes: int, store: Path, parquet: Path) -> None:
        lines = [Line("Parquet", self._sum(self.spark.read.parquet(str(parquet)), rows * body_bytes), nothing)]
        for name in ("value", "default"):
            frame = self.spark.read.format("halfmq").load(str(store), subscribe="bench", columns=COLUMN_SETS[name])
            lines.append(Line(f"halfmq path, {name}", self._sum(frame, rows * body_bytes), nothing, ("Parquet",)))
        self.run_rounds("read-files", rows, body_bytes, lines)

    def _read_wire(self, rows: int, body_bytes: int, parquet: Path, broker: served.Served, kafka: KafkaBroker) -> None:
        say("writing the same rows to Kafka, and to another topic of halfmq, with their sinks ...")
        source = self.spark.read.parquet(str(parquet)).select("key", "value")
        self._to_kafka(source, kafka, "bench", TUNED["write"])()
        sink = f"sink-{uuid.uuid4().hex[:8]}"
        source.write.format("halfmq").mode("append").options(url=url(broker), topic=sink).save()
        lines = []
        for name, options in (("Kafka, default", {}), ("Kafka, tuned", TUNED["read"])):
            asked = {"kafka.bootstrap.servers": kafka.address, "subscribe": "bench", **options}
            frame = self.spark.read.format("kafka").options(**asked).load()
            lines.append(Line(name, self._sum(frame, rows * body_bytes), kafka.cpu_seconds))
        theirs = tuple(line.name for line in lines)
        for topic, written in (("bench", ""), (sink, ", by the sink")):
            for name in ("value", "default"):
                frame = self.spark.read.format("halfmq").load(
                    url=url(broker), subscribe=topic, columns=COLUMN_SETS[name]
                )
                run = self._sum(frame, rows * body_bytes)
                lines.append(Line(f"halfmq url, {name}{written}", run, cpu_of(broker), theirs))
        self.run_rounds("read-wire", rows, body_bytes, lines)

    def _write(self, rows: int, body_bytes: int, parquet: Path, broker: served.Served, kafka: KafkaBroker) -> None:
        for columns, names in WRITTEN.items():
            source = self.spark.read.parquet(str(parquet)).select(*names)
            ours, topics = (
                f"w-{uuid.uuid4().hex[:8]}",
                {kind: f"w-{uuid.uuid4().hex[:8]}" for kind in ("default", "tuned")},
            )
            lines = [Line(f"input, {columns}", time_of(source.write.format("noop").mode("overwrite").save), nothing)]
            for kind, options in (("default", {}), ("tuned", TUNED["write"])):
                run = self._to_kafka(source, kafka, topics[kind], options)
                lines.append(Line(f"Kafka, {kind}, {columns}", run, kafka.cpu_seconds))
            theirs = tuple(line.name for line in lines[1:])
            writer = source.write.format("halfmq").mode("append").options(url=url(broker), topic=ours)
            lines.append(Line(f"halfmq, {columns}", time_of(writer.save), cpu_of(broker), theirs))
            self.run_rounds("write", rows, body_bytes, lines)
            expected = rows * (self.rounds + 1)
            read = self.spark.read.format("halfmq").load(url=url(broker), subscribe=ours, columns="offset")
            assert (count := read.count()) == expected, (count, expected)
            for topic in topics.values():
                asked = {"kafka.bootstrap.servers": kafka.address, "subscribe": topic}
                read = self.spark.read.format("kafka").options(**asked).load()
                assert (count := read.count()) >= expected, (count, expected)

    def _to_kafka(self, source: Any, kafka: KafkaBroker, topic: str, options: dict[str, str]) -> Callable[[], float]:
        asked = {"kafka.bootstrap.servers": kafka.address, "topic": topic, **options}
        return time_of(source.write.format("kafka").options(**asked).save)


def nothing() -> float:
    return 0.0


def cpu_of(broker: served.Served) -> Callable[[], float]:
    def used() -> float:
        assert broker.process is not None
        return cpu_seconds(broker.process.pid)

    return used


def url(broker: served.Served) -> str:
    return f"rocketmq://127.0.0.1:{broker.name_port}"


def time_of(call: Callable[[], None]) -> Callable[[], float]:
    def run() -> float:
        started = time.perf_counter()
        call()
        return time.perf_counter() - started

    return run


def figures(phase: str, rows: int, body_bytes: int, line: Line, lines: dict[str, Line]) -> dict[str, Any]:
    def ratio(other: Line) -> dict[str, float]:
        each = [theirs / ours for ours, theirs in zip(line.seconds, other.seconds, strict=True)]
        return {name: round(of(each), 3) for name, of in (("median", statistics.median), ("min", min), ("max", max))}

    rates = [round(rows / seconds) for seconds in line.seconds]
    return {
        "phase": phase,
        "line": line.name,
        "bytes": body_bytes,
        "rows": rows,
        "rows_per_second": {"median": round(statistics.median(rates)), "rounds": rates},
        "cpu_us_per_row": {
            name: round(statistics.median(used[name] for used in line.cpu) / rows * 1e6, 3) for name in line.cpu[0]
        },
        "ratio": {name: ratio(lines[name]) for name in line.beside},
    }


def table(results: list[dict[str, Any]]) -> str:
    text = [
        f"{'':32} {'bytes':>5} {'rows/s':>11} {'CPU us/row: broker':>19} {'JVM':>6} {'Python':>6}   x theirs (min to max)"
    ]
    phase = ""
    for one in results:
        if one["phase"] != phase:
            phase = one["phase"]
            text.append(phase)
        cpu = one["cpu_us_per_row"]
        ratios = (
            f"{ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f}) {name}"
            for name, ratio in one["ratio"].items()
        )
        text.append(
            f"  {one['line']:30} {one['bytes']:>5} {one['rows_per_second']['median']:>11,} {cpu['broker']:>19.2f} "
            f"{cpu['jvm']:>6.2f} {cpu['python workers']:>6.2f}   {'; '.join(ratios)}"
        )
    return "\n".join(text)


def connector_jars(spark_version: str) -> tuple[str, list[Path]]:
    """(version, jars) of Spark's Kafka connector for this PySpark. Raises MavenFailed."""
    failed: MavenFailed | None = None
    for tried in dict.fromkeys((spark_version, CONNECTOR_OTHERWISE)):
        try:
            jars = copy_jars(KAFKA_POM, CACHE / f"spark-kafka-{tried}", "-Pconnector", f"-Dspark.version={tried}")
            return tried, sorted(jars.glob("*.jar"))
        except MavenFailed as error:
            say(f"Maven has no Kafka connector for Spark {tried}")
            failed = error
    assert failed is not None
    raise failed


def report(arguments: argparse.Namespace, connector: str, results: list[dict[str, Any]]) -> None:
    """Also of a run that was ended early."""
    results.sort(key=lambda one: PHASES.index(one["phase"]))
    say(table(results))
    versions = {
        "python": platform.python_version(), "python_build": str(build()), "spark": version("pyspark"), "spark_kafka_connector": connector,
        "kafka": KAFKA_VERSION,
    }  # fmt: skip
    found = {"versions": versions, "cores": os.cpu_count(), "kafka_tuned": TUNED, "results": results}
    text = json.dumps(found, indent=1)
    print(text, flush=True)
    if arguments.output:
        arguments.output.write_text(text)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, help="default 2,000,000 of 100 B, 500,000 of 1 KiB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bytes", type=int, nargs="+", default=[100, 1024])
    parser.add_argument("--only", choices=PHASES, nargs="+", default=list(PHASES))
    parser.add_argument("--output", type=Path, help="write the JSON here as well")
    parser.add_argument("--work", type=Path, help="keep store and Parquet here for another run")
    parser.add_argument("--limit-seconds", type=int, default=3_600, help="give up after this time")
    return parser.parse_args()


def main() -> None:
    arguments = parsed()
    missing = [program for program in ("java", "mvn") if shutil.which(program) is None]
    if missing:
        stop_with(f"{' and '.join(missing)} not found on the PATH: install a JDK (>= 17) and Maven (>= 3.6)")

    def give_up(number: int, frame: Any) -> NoReturn:
        raise SystemExit(f"ended by signal {signal.Signals(number).name}")

    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, give_up)
    signal.alarm(arguments.limit_seconds)
    from halfmq.spark import HalfmqDataSource, builder

    try:
        connector, jars = connector_jars(version("pyspark"))
        KafkaBroker(Path(), QUEUES).fetch()
    except MavenFailed as error:
        stop_with(f"Maven could not fetch the jars of Kafka:\n{error}")
    work = arguments.work or Path(tempfile.mkdtemp(prefix="halfmq-spark-kafka-"))
    spark = (
        builder("halfmq bench", "local[2]")
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.local.dir", str(work / "spark"))
        # Consumers and producers are kept for minutes, with their buffers, which would fill the heap over the rounds.
        .config("spark.kafka.consumer.cache.timeout", "5s")
        .config("spark.kafka.consumer.cache.evictorThreadRunInterval", "2s")
        .config("spark.kafka.consumer.fetchedData.cache.timeout", "5s")
        .config("spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval", "2s")
        .config("spark.jars", ",".join(map(str, jars)))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(HalfmqDataSource)
    bench = Bench(spark, work, arguments.rounds)
    try:
        for size in arguments.bytes:
            rows = arguments.rows or ROWS.get(size) or max(100_000, min(2_000_000, (512 << 20) // size))
            bench.measure(rows, size, [phase for phase in PHASES if phase in arguments.only])
            if arguments.work is None:
                shutil.rmtree(work / f"store-{rows}-{size}")
    finally:
        spark.stop()
        if arguments.work is None:
            shutil.rmtree(work, ignore_errors=True)
        report(arguments, connector, bench.results)


if __name__ == "__main__":
    main()
