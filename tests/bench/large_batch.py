"""One large batch of Spark's sink, and who waits meanwhile: `python -m tests.bench.large_batch [--rows 1000000] [--bytes 100]`.

Spark (local[2]) writes ``range`` into a topic with ``format("halfmq")``, in one batch and so with one decision, to a broker with its
defaults, synced. Four processes run beside it on the same machine:

    broker      its anonymous memory (RssAnon) is sampled
    client      sends one message to another topic, waits for the response, pulls it, waits for the response, and so on. The response to
                the send waits for the broker's event loop and for the disk; that to the pull only for the loop
    consumer    pulls the queues of the topic that is written, each with one request that waits for messages
    probe       now and then writes a sector of a file on the same disk and syncs it, and measures how late a sleep ends: what the disk
                and the busy machine add without the broker

Then Spark reads the topic: all rows, each once, of one decision, or the program fails. Prints a table to stderr and JSON to stdout. Times
in ms unless a name says otherwise; a request belongs to a phase if it was in progress in it:

    before      an idle broker
    write       from the call of Spark until shortly before the decision
    decision    from shortly before the decision until the consumer has its first message, and a moment longer
    after       until the consumer has read all
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import math
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.support.raw_client import RawClient
from tests.support.served import Served

from halfmq.model.placement import SEGMENT_BYTES_DEFAULT
from halfmq.runtime.interpreter import build

#: Default of the sink for a topic that it creates.
QUEUES: Final = 4
CREATE_TOPIC: Final = 17
#: Idle time before the write, s.
_BEFORE_S: Final = 2.0
#: Before the verdict, and after the first message of it, s.
_AROUND_S: Final = 0.25
_SAMPLE_S: Final = 0.02
_PROBE_S: Final = 0.05
#: One request of a helper that gets no response for so long ends the run, s.
_STUCK_S: Final = 60.0
_SECTOR: Final = bytes(512)
MIB: Final = 1 << 20


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Timed(NamedTuple):
    """One measured wait: the clock is ``time.monotonic``, which all processes of a machine share."""

    began_s: float
    ended_s: float
    #: Messages in the response of a pull.
    messages: int = 0


#: Waits by what was waited for.
Waits = dict[str, list[Timed]]


# --- the processes beside it


class Beside:
    """A process that runs ``work(stop, *arguments)``, and its waits."""

    def __init__(self, work: Callable[..., Waits], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._stop = context.Event()
        self._found, found = context.Pipe(duplex=False)
        self._process = context.Process(target=_run, args=(work, self._stop, found, *arguments), daemon=True)
        self._process.start()
        found.close()
        assert self._found.recv() == "ready"

    def finish(self) -> Waits:
        self._stop.set()
        if not self._found.poll(_STUCK_S):
            raise AssertionError("a process beside the write does not end")
        try:
            waits: Waits = self._found.recv()
        except EOFError:
            raise AssertionError("a process beside the write failed; see its output") from None
        self._process.join()
        return waits

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


def _run(work: Callable[..., Waits], stop: Event, found: Connection, *arguments: Any) -> None:
    found.send("ready")
    found.send(work(stop, *arguments))


def client(stop: Event, port: int) -> Waits:
    """Send a message, pull it, and again."""
    return asyncio.run(_client(stop, port))


async def _client(stop: Event, port: int) -> Waits:
    waits: Waits = {"send": [], "pull": []}
    connection = await RawClient.connect(port)
    number = 0
    while not stop.is_set():
        began = time.monotonic()
        sent = await asyncio.wait_for(connection.send("beside", b"%d" % number), _STUCK_S)
        between = time.monotonic()
        pulled = await asyncio.wait_for(connection.pull("beside", number), _STUCK_S)
        ended = time.monotonic()
        assert (sent.code, sent.ext.get("queueOffset")) == (0, str(number)), sent
        assert (pulled.code, b"%d" % number in pulled.body) == (0, True), pulled
        waits["send"].append(Timed(began, between))
        waits["pull"].append(Timed(between, ended))
        number += 1
    await connection.close()
    return waits


def consumer(stop: Event, port: int, topic: str) -> Waits:
    """Read all queues of the topic, waiting for messages, until ``stop`` is set and they are at their ends."""
    return asyncio.run(_consumer(stop, port, topic))


async def _consumer(stop: Event, port: int, topic: str) -> Waits:
    connection = await RawClient.connect(port)
    pulls: list[Timed] = []

    async def read(queue: int) -> None:
        offset = 0
        while True:
            stopping = stop.is_set()
            began = time.monotonic()
            answer = await connection.pull(topic, offset, queue=queue, wait_ms=500, count=1_024)
            ended = time.monotonic()
            messages = _messages_in(answer.body) if answer.code == 0 else 0
            pulls.append(Timed(began, ended, messages))
            offset += messages
            if stopping and not messages:
                return

    await asyncio.gather(*[read(queue) for queue in range(QUEUES)])
    await connection.close()
    return {"pulls": pulls}


def _messages_in(body: bytes) -> int:
    count = at = 0
    while at < len(body):
        at += int.from_bytes(body[at : at + 4], "big")
        count += 1
    return count


def probe(stop: Event, path: str) -> Waits:
    waits: Waits = {"fdatasync": [], "sleep": []}
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(file, 0, SEGMENT_BYTES_DEFAULT >> 4)
    os.fsync(file)
    place = 0
    while not stop.is_set():
        due = time.monotonic() + _PROBE_S
        time.sleep(_PROBE_S)
        woke = time.monotonic()
        os.pwrite(file, _SECTOR, place)
        os.fdatasync(file)
        waits["sleep"].append(Timed(due, woke))
        waits["fdatasync"].append(Timed(woke, time.monotonic()))
        place += len(_SECTOR)
    os.close(file)
    return waits


@dataclass
class Memory:
    """Samples of the RssAnon of a process, bytes, by a thread."""

    process: int
    samples: list[int] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def now(self) -> int:
        for line in Path(f"/proc/{self.process}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) << 10
        raise AssertionError("no RssAnon in /proc: this program needs Linux")

    @contextlib.contextmanager
    def sampled(self) -> Iterator[None]:
        def sample() -> None:
            while not self._stop.wait(_SAMPLE_S):
                self.samples.append(self.now())

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()


# --- the run


def measure(spark: Any, work: Path, rows: int, body_bytes: int, segment_bytes: int) -> dict[str, Any]:
    """Write, read back, and return the figures.

    Raises:
        AssertionError: the topic does not have the rows of one decision, each once, or a helper failed.
    """
    broker = Served(work / "data", work / "broker.log", "--segment-bytes", str(segment_bytes))
    broker.start(120)
    try:
        return _measure(spark, work, broker, rows, body_bytes)
    finally:
        broker.stop()


def _measure(spark: Any, work: Path, broker: Served, rows: int, body_bytes: int) -> dict[str, Any]:
    assert broker.process is not None
    topic = f"large-{uuid.uuid4().hex[:8]}"
    asyncio.run(_create_topic(broker.port, topic))
    # Starts Spark's Python workers, and loads in the broker what the first half batch needs.
    _write(spark, broker, "warm-up", 1_000, body_bytes)
    memory = Memory(broker.process.pid)
    before_bytes = memory.now()
    helpers = {
        "client": Beside(client, broker.port),
        "consumer": Beside(consumer, broker.port, topic),
        "probe": Beside(probe, str(work / "probe")),
    }
    try:
        started = time.monotonic()
        time.sleep(_BEFORE_S)
        with memory.sampled():
            began = time.monotonic()
            _write(spark, broker, topic, rows, body_bytes)
            written = time.monotonic()
            waits: Waits = helpers["consumer"].finish()
            ended = time.monotonic()
        waits |= helpers["client"].finish() | helpers["probe"].finish()
    finally:
        for helper in helpers.values():
            helper.kill()
    after_bytes = memory.now()
    decided = _check(spark, broker, topic, rows) - (time.time() - time.monotonic())
    pulls = waits.pop("pulls")
    assert (read := sum(pull.messages for pull in pulls)) == rows, f"the consumer read {read} messages"
    first = min(pull.ended_s for pull in pulls if pull.messages)
    phases = {
        "before": (started, began),
        "write": (began, decided - _AROUND_S),
        "decision": (decided - _AROUND_S, first + _AROUND_S),
        "after": (first + _AROUND_S, ended),
    }
    return {
        "rows": rows,
        "bytes": body_bytes,
        "write_seconds": round(written - began, 3),
        "rows_per_second": round(rows / (written - began)),
        "broker_rss_anon_mib": {
            "before": round(before_bytes / MIB, 1),
            "max": round(max(memory.samples) / MIB, 1),
            "after": round(after_bytes / MIB, 1),
        },
        "waits_ms": {what: {name: _within(found, *phases[name]) for name in phases} for what, found in waits.items()},
        "consumer": _consumed(pulls, decided, rows),
        "checked": {"rows": rows, "distinct": rows, "decisions": 1},
    }


async def _create_topic(port: int, topic: str) -> None:
    connection = await RawClient.connect(port)
    fields = {"topic": topic, "readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES), "perm": "6"}
    answer = await connection.ask(CREATE_TOPIC, fields)
    assert answer.code == 0, answer
    await connection.close()


def _url(broker: Served) -> str:
    return f"rocketmq://127.0.0.1:{broker.name_port}"


def _write(spark: Any, broker: Served, topic: str, rows: int, body_bytes: int) -> None:
    frame = spark.range(rows).selectExpr(f"cast(rpad(cast(id as string), {body_bytes}, '.') as binary) as value")
    frame.write.format("halfmq").mode("append").options(url=_url(broker), topic=topic).save()


def _check(spark: Any, broker: Served, topic: str, rows: int) -> float:
    """Check what the topic contains; returns the wall-clock time of the decision, s since 1970."""
    from pyspark.sql import functions as f

    read = spark.read.format("halfmq").load(url=_url(broker), subscribe=topic, columns="value")
    number = f.rtrim(f.col("value").cast("string"), f.lit(".")).cast("long")
    count, distinct, low, high = read.select(number.alias("id")).agg(
        f.count("id"), f.count_distinct("id"), f.min("id"), f.max("id")
    ).collect()[0]  # fmt: skip
    assert (count, distinct, low, high) == (rows, rows, 0, rows - 1), (count, distinct, low, high)
    table = spark.read.format("halfmq").load(
        url=_url(broker), view="transactions", columns="settled_at,topics,messages"
    )
    decided = table.where(f.array_contains("topics", topic))
    settled = decided.select(f.unix_millis("settled_at"), "messages").collect()
    assert [one[1] for one in settled] == [rows], settled
    return float(settled[0][0]) / 1_000


def _within(waits: Iterable[Timed], begin_s: float, end_s: float) -> dict[str, float]:
    took = sorted(1_000 * (one.ended_s - one.began_s) for one in waits if one.ended_s > begin_s and one.began_s < end_s)
    if not took:
        return {"count": 0, "median": math.nan, "p99": math.nan, "max": math.nan}
    return {
        "count": len(took),
        "median": round(statistics.median(took), 2),
        "p99": round(took[math.ceil(0.99 * len(took)) - 1], 2),
        "max": round(took[-1], 2),
    }


def _consumed(pulls: list[Timed], decided_s: float, rows: int) -> dict[str, float]:
    """Of the consumer of the written topic. Its gaps are the times between two responses with messages."""
    answered = sorted(pull.ended_s for pull in pulls if pull.messages)
    gaps = [later - earlier for earlier, later in itertools.pairwise(answered)]
    held = [pull.ended_s - pull.began_s for pull in pulls if not pull.messages]
    return {
        "first_message_after_decision_ms": round(1_000 * (answered[0] - decided_s), 1),
        "last_message_after_decision_ms": round(1_000 * (answered[-1] - decided_s), 1),
        "pulls_with_messages": len(answered),
        "longest_gap_ms": round(1_000 * max(gaps, default=0.0), 1),
        "messages": rows,
        # They wait 500 ms for messages.
        "longest_pull_without_messages_ms": round(1_000 * max(held, default=0.0), 1),
    }


def table(found: dict[str, Any]) -> str:
    memory, consumed = found["broker_rss_anon_mib"], found["consumer"]
    lines = [
        f"{found['rows']:,} rows of {found['bytes']} B in one batch: {found['write_seconds']:.1f} s, {found['rows_per_second']:,} rows/s",
        f"broker RssAnon: {memory['before']:.0f} MiB before, {memory['max']:.0f} at most, {memory['after']:.0f} after",
        f"consumer of the topic: first message {consumed['first_message_after_decision_ms']:.0f} ms after the decision, last "
        f"{consumed['last_message_after_decision_ms']:.0f} ms; longest gap between responses {consumed['longest_gap_ms']:.0f} ms",
        f"{'ms':10} {'':9} {'count':>6} {'median':>8} {'p99':>8} {'max':>8}",
    ]
    for what, phases in found["waits_ms"].items():
        for name, one in phases.items():
            lines.append(
                f"{what:10} {name:9} {one['count']:>6} {one['median']:>8.2f} {one['p99']:>8.2f} {one['max']:>8.2f}"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--bytes", type=int, default=100)
    parser.add_argument("--work", type=Path, help="an existing directory on the disk to use; default: a temporary one")
    arguments = parser.parse_args()
    from halfmq.spark import HalfmqDataSource, builder

    with tempfile.TemporaryDirectory(prefix="halfmq-large-batch-", dir=arguments.work) as name:
        work = Path(name)
        spark = (
            builder("halfmq bench", "local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.local.dir", str(work / "spark"))
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
        spark.dataSource.register(HalfmqDataSource)
        try:
            found = measure(spark, work, arguments.rows, arguments.bytes, SEGMENT_BYTES_DEFAULT)
        finally:
            spark.stop()
    versions = {"python": platform.python_version(), "python_build": str(build()), "spark": version("pyspark")}
    say(table(found))
    print(json.dumps({"versions": versions, "cores": os.cpu_count(), **found}, indent=1), flush=True)


if __name__ == "__main__":
    main()
