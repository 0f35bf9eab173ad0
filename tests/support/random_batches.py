"""Streams by chance through the sink: sources, shapes of writing, numbers of tasks, failures, and checkpoints that are restored.

A story is one query. Again and again it gets rows and runs until it has caught up, or until something fails: a task, its process, the
driver before or after a decision, the broker. Now and then its checkpoint is replaced by an older copy. Whatever happened, each row is
visible at most once, in the order of its key; and if the query has caught up, each row is visible. The only other end is that the query
stops and says why.

    python -m tests.support.random_batches --batches 200 [--seed N] [--kafka]

A seed repeats the choices; what the clock decides (the rows of a rate source, and so how its query ends) differs.
"""

import argparse
import json
import random
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import functions

from halfmq.client.sync import Client
from tests.support import spark_queries, stalling_sink
from tests.support.amount import seed_of_commit
from tests.support.served import Served
from tests.support.spark_queries import QueryFailed
from tests.support.visible import visible_by_queue

if TYPE_CHECKING:
    from tests.support.kafka import KafkaBroker

TASKS_MAX: Final = 24
#: What a query may say when it stops at a checkpoint that was restored.
REASONS: Final = ("decided with other content", "was decided long ago")
#: What a test's failure says.
_WANTED: Final = "as the test wants it"
_KILLED: Final = "Python worker exited unexpectedly"
OPTION, COLUMN, EACH = SHAPES = ("option topic", "column topic", "two writes in foreachBatch")


class Source(ABC):
    """Rows ``KEY:NUMBER``, with numbers that increase for each key."""

    def __init__(self, spark: Any, broker: Served, place: Path, rng: random.Random) -> None:
        self.spark, self.broker, self.place, self.rng = spark, broker, place, rng
        self.tasks = rng.randint(1, TASKS_MAX)
        self.limit = rng.randint(1, 60)
        self.rows: set[str] = set()
        self._numbers = count()

    @abstractmethod
    def add(self) -> None:
        """More rows."""

    @abstractmethod
    def frame(self) -> Any:
        """A stream with column ``value``."""

    def expected(self, checkpoint: Path) -> set[str]:
        """All rows that the query of a checkpoint has read when it has caught up."""
        return self.rows

    def made(self, key: str, rows: int) -> list[str]:
        made = [f"{key}:{next(self._numbers)}" for _ in range(rows)]
        self.rows.update(made)
        return made


class Files(Source):
    """Of one format. The order of files in a batch is Spark's, so each of some dozens has a key of its own."""

    KEYS: Final = 96

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.format = self.rng.choice(["text", "json", "parquet"])
        self.limit = self.rng.randint(1, TASKS_MAX)
        self._files = count()
        (self.place / "in").mkdir()

    def add(self) -> None:
        for _ in range(self.rng.randint(1, min(2 * self.limit, TASKS_MAX))):
            number = next(self._files)
            self.write("in", number, self.made(f"f{number % self.KEYS}", self.rng.randint(1, 12)))

    def write(self, directory: str, number: int, rows: list[str]) -> None:
        path = self.place / directory / f"{number:06}"
        new = path.with_name(f".{path.name}")
        if self.format == "parquet":
            parquet.write_table(pa.table({"value": rows}), new)
        else:
            new.write_text("".join(f"{row if self.format == 'text' else json.dumps({'value': row})}\n" for row in rows))
        new.rename(path)

    def frame(self) -> Any:
        self.spark.conf.set("spark.sql.files.minPartitionNum", self.tasks)
        return self.read("in")

    def read(self, directory: str) -> Any:
        reader = self.spark.readStream.schema("value string").option("maxFilesPerTrigger", self.limit)
        return reader.format(self.format).load(str(self.place / directory))


class Union(Files):
    """A directory, the same one again, and another one."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        (self.place / "other").mkdir()

    def add(self) -> None:
        for directory in ("in", "other"):
            if self.rng.random() < 0.7:
                number = next(self._files)
                rows = self.made(f"{directory}{number % self.KEYS}", self.rng.randint(1, 12))
                self.write(directory, number, rows)
                if directory == "in":
                    self.rows.update(f"again-{row}" for row in rows)

    def frame(self) -> Any:
        one = super().frame()
        return one.union(one.selectExpr("concat('again-', value) as value")).union(self.read("other"))


class Rate(Source):
    """Rows by the clock."""

    def add(self) -> None:
        time.sleep(0.2)  # real time: the source makes rows by the clock

    def frame(self) -> Any:
        # Rows of a batch go to its tasks by turns.
        rate = self.spark.readStream.format("rate").options(rowsPerSecond=self.limit, numPartitions=self.tasks)
        return rate.load().selectExpr(f"concat('r', value % {self.tasks}, ':', value) as value")

    def expected(self, checkpoint: Path) -> set[str]:
        last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name)).name
        seconds = int((checkpoint / "offsets" / last).read_text().splitlines()[-1])
        return {f"r{number % self.tasks}:{number}" for number in range(seconds * self.limit)}


class Halfmq(Source):
    """A topic; a key has its queue."""

    def add(self) -> None:
        with Client(self.broker.url, group="service") as mq:
            for _ in range(self.rng.randint(1, 4)):
                key = f"h{self.rng.randint(0, 5)}"
                for row in self.made(key, self.rng.randint(1, 20)):
                    mq.send(f"in-{self.place.name}", row, sharding_key=key)

    def frame(self) -> Any:
        given = {"url": self.broker.url, "subscribe": f"in-{self.place.name}", "startingOffsets": "earliest"}
        given |= {"minPartitions": str(self.tasks), "maxOffsetsPerTrigger": str(self.limit)}
        return (
            self.spark.readStream.format("halfmq").options(**given).load().selectExpr("cast(value as string) as value")
        )


class Kafka(Source):
    """A topic; a key has its partition."""

    def __init__(self, kafka: "KafkaBroker", *given: Any) -> None:
        super().__init__(*given)
        self._given = {"kafka.bootstrap.servers": kafka.address}
        kafka.create_topic(f"in-{self.place.name}", 2)

    def add(self) -> None:
        rows = [
            row
            for _ in range(self.rng.randint(1, 4))
            for row in self.made(f"k{self.rng.randint(0, 5)}", self.rng.randint(1, 20))
        ]
        # In one task, so that they are sent in this order.
        frame = self.spark.createDataFrame([(row.partition(":")[0], row) for row in rows], "key string, value string")
        frame.coalesce(1).write.format("kafka").options(**self._given, topic=f"in-{self.place.name}").save()

    def frame(self) -> Any:
        given = {**self._given, "subscribe": f"in-{self.place.name}", "startingOffsets": "earliest"}
        given |= {"minPartitions": str(self.tasks), "maxOffsetsPerTrigger": str(self.limit)}
        return (
            self.spark.readStream.format("kafka").options(**given).load().selectExpr("cast(value as string) as value")
        )


#: Of a run that a task of an earlier one, which Spark could not end at once, has replaced: the broker takes whoever comes last for the
#: newest.
_LATE_TASK: Final = "only one run may write"


class Story:
    """One query. ``figures`` counts what happened, by source."""

    def __init__(
        self,
        name: str,
        source: Source,
        shape: str,
        broker: Served,
        rng: random.Random,
        figures: Counter[tuple[str, str]],
    ) -> None:
        self.name, self.source, self.shape, self.broker, self.rng = name, source, shape, broker, rng
        self.place = source.place
        self.checkpoint = self.place / "checkpoint"
        self.moment = self.place / "moment"
        self.figures = figures
        self.kind = type(source).__name__.lower()
        self.log = [f"{name}: {self.kind}, {shape}, {source.tasks} tasks, limit {source.limit}"]
        self._copies: list[Path] = []

    @property
    def topics(self) -> list[str]:
        return [f"out-{self.name}-{number}" for number in range({OPTION: 1, COLUMN: 3, EACH: 2}[self.shape])]

    def count(self, what: str, many: int = 1) -> None:
        self.figures[self.kind, what] += many

    def guarded(self, step: Callable[[], None]) -> None:
        """With the whole story if the query ends in a way that it must not."""
        try:
            step()
        except QueryFailed as failed:
            if _LATE_TASK in str(failed) and any(
                "to fail" in line for line in self.log
            ):  # it says why it stops, and the next step starts it again
                self.count("stopped: a task of an earlier run came late")
                return
            raise AssertionError(self.told(f"the query ended: {failed}")) from failed

    def step(self) -> None:
        chance = self.rng.random()
        if self._copies and chance < 0.3:
            self.restore()
            return
        if chance < 0.95:
            self.source.add()
        if self.rng.random() < 0.1:
            self.log.append("the broker is killed")
            self.broker.kill()
            self.broker.start()
        if self.rng.random() < 0.45:
            self.fail()
        self.run()
        self.check()
        if not self._copies or self.rng.random() < 0.5:
            self._copies.append(self.place / f"copy-{len(self._copies)}")
            shutil.copytree(self.checkpoint, self._copies[-1])
            self.log.append(f"copied to {self._copies[-1].name} after batch {self.last()}")

    def fail(self) -> None:
        """A run that something ends. It may also come to its end, if it has no such batch."""
        where = self.rng.choice(
            [stalling_sink.RAISE_IN_WRITE, stalling_sink.RAISE_AFTER_COMMIT, stalling_sink.KILL_FIRST_WORKER]
        )
        self.moment.write_text(f"{where} {self.last() + self.rng.choice([1, 1, 1, 2])}")
        self.log.append(f"to fail: {self.moment.read_text()}")
        try:
            self.run()
        except QueryFailed as failed:
            if _WANTED not in str(failed) and _KILLED not in str(failed):
                raise
            self.count(f"failed: {where}")
        finally:
            self.moment.unlink()
        self.check(complete=False)

    def restore(self) -> None:
        """Go on from an older copy. If the query stops, its checkpoint of before continues."""
        newest = self.place / "newest"
        shutil.rmtree(newest, ignore_errors=True)
        self.checkpoint.rename(newest)
        copy = self.rng.choice(self._copies)
        shutil.copytree(copy, self.checkpoint)
        has_more = self.rng.random() < 0.7
        if has_more:
            self.source.add()
        before = self.last()
        self.log.append(f"restored {copy.name}, batch {before}, {'with' if has_more else 'without'} more rows")
        try:
            self.run("batches of a restored checkpoint")
        except QueryFailed as stopped:
            reason = next((reason for reason in REASONS if reason in str(stopped)), None)
            if reason is None:
                raise
            self.count(f"stopped: {reason}")
            self.log.append(f"stopped: {reason}")
            self.check(complete=False)
            shutil.rmtree(self.checkpoint)
            newest.rename(self.checkpoint)
            self.run()
        else:
            self.count("restored, and went on")
        self.check()

    def run(self, what: str = "batches") -> None:
        """Until it has caught up. Raises QueryFailed."""
        before = self.last()
        try:
            spark_queries.run(
                self._write().trigger(availableNow=True).option("checkpointLocation", str(self.checkpoint)).start
            )
        finally:
            self.count(what, self.last() - before)
            self.log.append(f"batches {before + 1} to {self.last()}")

    def last(self) -> int:
        return max((int(path.name) for path in (self.checkpoint / "commits").glob("[0-9]*")), default=-1)

    def _write(self) -> Any:
        frame = self.source.frame().withColumn("sharding_key", functions.split("value", ":")[0])
        if self.shape == EACH:
            return frame.writeStream.foreachBatch(self._write_each)
        given = {"url": self.broker.url, "maxHalfBatchBytes": "4k"}
        if self.shape == COLUMN:
            frame = frame.selectExpr(
                "*", f"concat('out-{self.name}-', pmod(hash(sharding_key), {len(self.topics)})) as topic"
            )
        else:
            given["topic"] = self.topics[0]
        return frame.writeStream.format("halfmq_stalling").options(**given)

    def _write_each(self, frame: Any, number: int) -> None:
        for place, topic in enumerate(self.topics):
            self._maybe_raise(number, place)
            given = {
                "url": self.broker.url,
                "topic": topic,
                "txnAppId": f"{self.name}-{place}",
                "txnVersion": str(number),
            }
            given["checkpointLocation"] = str(self.checkpoint)
            frame.write.format("halfmq").mode("append").options(**given).save()
        self._maybe_raise(number, len(self.topics))

    def _maybe_raise(self, number: int, place: int) -> None:
        places = {
            stalling_sink.RAISE_IN_WRITE: 0,
            stalling_sink.KILL_FIRST_WORKER: 1,
            stalling_sink.RAISE_AFTER_COMMIT: 2,
        }
        if self.moment.exists():
            where, batch = self.moment.read_text().split()
            if (places[where], int(batch)) == (place, number):
                raise RuntimeError(_WANTED)

    def check(self, *, complete: bool = True) -> None:
        """Each row at most once, in the order of its key; with ``complete``, all of them."""
        found = visible_by_queue(self.broker, *self.topics)
        rows: Counter[tuple[str, str]] = Counter()
        for topic, queues in found.items():
            for queue in queues:
                newest: dict[str, int] = {}
                for row in (body.decode() for body in queue):
                    rows[topic if self.shape == EACH else "", row] += 1
                    key, _, number = row.partition(":")
                    assert int(number) > newest.get(key, -1), self.told(f"{row} is after {newest.get(key)} in {topic}")
                    newest[key] = int(number)
        twice = [row for row, times in rows.items() if times > 1]
        assert not twice, self.told(f"visible twice: {twice[:5]}")
        if complete:
            expected = self.source.expected(self.checkpoint)
            for topic in self.topics if self.shape == EACH else [""]:
                here = {row for place, row in rows if place == topic}
                assert here == expected, self.told(
                    f"{topic or 'all topics'}: {len(expected - here)} rows are missing ({sorted(expected - here)[:5]}), {len(here - expected)} are too many"
                )
            self.figures[self.kind, "rows"] += len(rows) - self._rows_seen
            self._rows_seen = len(rows)

    _rows_seen = 0

    def told(self, fault: str) -> str:
        return "\n".join([*self.log, fault])


def tell(
    spark: Any, broker: Served, work: Path, batches: int, seed: int, kafka: "KafkaBroker | None" = None
) -> Counter[tuple[str, str]]:
    """Stories with at least ``batches`` batches, and what happened."""
    turns = random.Random(seed)
    figures: Counter[tuple[str, str]] = Counter()
    made: list[Callable[..., Source]] = [Files, Union, Rate, Halfmq]
    if kafka is not None:
        made.append(partial(Kafka, kafka))
    spark.dataSource.register(stalling_sink.StallingSource)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "2")
    try:
        for number, (make, shape) in enumerate(_turns(turns, made)):
            done = _batches(figures)
            if done >= batches:
                return figures
            place = work / f"{seed}-{number}"
            place.mkdir()
            rng = random.Random(place.name)
            story = Story(place.name, make(spark, broker, place, rng), shape, broker, rng, figures)
            end = done + min(rng.randint(3, 12), max(batches // len(made) - 1, 1))
            while _batches(figures) < end:
                story.guarded(story.step)
            story.guarded(story.restore)
            figures[story.kind, f"stories: {shape}"] += 1
            figures[story.kind, f"stories: {'1 to 10' if story.source.tasks <= 10 else '11 to 24'} tasks"] += 1
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
        spark.conf.unset("spark.sql.files.minPartitionNum")
    raise AssertionError("not reached")


def _turns(rng: random.Random, made: list[Callable[..., Source]]) -> Iterator[tuple[Callable[..., Source], str]]:
    while True:
        shapes = [*SHAPES, rng.choice(SHAPES), rng.choice(SHAPES)][: len(made)]
        rng.shuffle(shapes)
        yield from zip(rng.sample(made, len(made)), shapes, strict=True)


def _batches(figures: Counter[tuple[str, str]]) -> int:
    return sum(number for (_, what), number in figures.items() if what.startswith("batches"))


def report(figures: Counter[tuple[str, str]]) -> str:
    kinds = sorted({kind for kind, _ in figures})
    lines = [f"{'':50}" + "".join(f"{kind:>9}" for kind in kinds) + f"{'all':>9}"]
    for what in sorted({what for _, what in figures}):
        numbers = [figures[kind, what] for kind in kinds]
        lines.append(f"{what:50}" + "".join(f"{number:9,}" for number in [*numbers, sum(numbers)]))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--kafka", action="store_true", help="also with Apache Kafka, whose jars Maven fetches")
    arguments = parser.parse_args()
    seed = seed_of_commit() if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    from halfmq.spark import builder
    from tests.bench.spark_kafka import connector_jars
    from tests.support.kafka import FOR_TESTS, KafkaBroker

    work = Path(tempfile.mkdtemp(prefix="random-batches-"))
    broker = Served(work / "data", work / "broker.log")
    kafka = KafkaBroker(work / "kafka", 2, settings=FOR_TESTS) if arguments.kafka else None
    made = (
        builder("random batches", "local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
    )
    if kafka is not None:
        import pyspark

        _, jars = connector_jars(pyspark.__version__)
        made = made.config("spark.jars", ",".join(map(str, jars)))
        kafka.start()
    broker.start()
    began = time.monotonic()
    try:
        spark = made.config(
            "spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
        ).getOrCreate()
        spark.sparkContext.setLogLevel("OFF")
        figures = tell(spark, broker, work, arguments.batches, seed, kafka)
        spark.stop()
        print(report(figures))
        print(f"{time.monotonic() - began:.0f} s, broker killed {broker.kills} times")
    finally:
        broker.stop()
        if kafka is not None:
            kafka.stop()
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
