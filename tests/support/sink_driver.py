"""A Spark driver in a process of its own, to be killed while its queries are at given moments (``tests.support.stalling_sink``).

Each query reads topic in-NAME and writes topic out-NAME. Its directory DIRECTORY/NAME has ``checkpoint``, ``moment``, and, once it has
ended, ``ended`` with its error (or nothing). The process is ``python -m tests.support.sink_driver URL DIRECTORY GUARANTEE NAME...``.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException

from tests.support import spark_queries, stalling_sink
from tests.support.jvm import QUICK
from tests.support.waiting import PATIENCE_S, wait_until

#: Rows of a batch.
BATCH_ROWS = 10
#: Of a driver with all its queries, one after the other.
_ALL_STARTED_S = 400.0


def start(
    spark: Any, url: str, directory: Path, *, rows: int = BATCH_ROWS, guarantee: str = "exactlyOnce", **trigger: Any
) -> Any:
    """Start the query of ``directory``; without ``trigger`` it runs until it is stopped."""
    stream = (
        spark.readStream.format("halfmq")
        .options(url=url, subscribe=f"in-{directory.name}", startingOffsets="earliest", columns="value")
        .options(maxOffsetsPerTrigger=str(rows), minPartitions="2")
        .load()
        .writeStream.format("halfmq_stalling")
        .options(url=url, topic=f"out-{directory.name}", maxHalfBatchBytes="4k", guarantee=guarantee)
        .option("checkpointLocation", str(directory / "checkpoint"))
    )
    return (stream.trigger(**trigger) if trigger else stream).start()


def run(spark: Any, url: str, directory: Path, **given: Any) -> None:
    """Run the query of ``directory`` in this process until it has caught up. Raises QueryFailed."""
    spark_queries.run(lambda: start(spark, url, directory, availableNow=True, **given))


@contextlib.contextmanager
def stopped_at(
    moments: Mapping[str, str], url: str, work: Path, guarantee: str = "exactlyOnce"
) -> Iterator[Callable[[str], str]]:
    """A driver whose queries, by name, are at their moments; one without a moment has done two batches. Killed at the end of the block.

    Fails as soon as a query or the driver has ended instead. Gives a function that waits for the end of a query and returns its error.
    """
    for name, moment in moments.items():
        (work / name).mkdir(exist_ok=True)
        (work / name / "moment").write_text(moment)
    log = work / "driver.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.sink_driver", url, str(work), guarantee, *moments],
            stdout=output, stderr=output, start_new_session=True, env={**os.environ, "PYTHONPATH": "src:."},
        )  # fmt: skip

    def is_dead() -> str:
        return "" if process.poll() is None else f"the driver ended:\n{log.read_text()[-3_000:]}"

    def has_ended() -> str:
        return is_dead() or "".join(f"{path}: {path.read_text()}\n" for path in work.glob("*/ended"))

    def end_of(name: str) -> str:
        wait_until((work / name / "ended").exists, f"end of query {name}", unless=is_dead)
        return (work / name / "ended").read_text()

    def are_at_moments() -> bool:
        return all(_is_at_moment(work / name, moment) for name, moment in moments.items())

    try:
        wait_until(are_at_moments, "moments of all queries", _ALL_STARTED_S, unless=has_ended)
        yield end_of
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_S)
    assert process.returncode == -signal.SIGKILL, log.read_text()[-3_000:]
    for name in moments:
        (work / name / "moment").unlink(missing_ok=True)


def _is_at_moment(directory: Path, moment: str) -> bool:
    """One whose worker was killed goes on."""
    has_stalled = (directory / "stalled").exists() and not moment.startswith(stalling_sink.KILL_FIRST_WORKER)
    return has_stalled or (directory / "checkpoint" / "commits" / "1").exists()


def session(name: str, master: str) -> Any:
    """A session with small batches of Arrow, so that a task gets several."""
    from halfmq.spark import builder

    made = builder(name, master).config("spark.ui.enabled", "false")
    made = made.config("spark.driver.extraJavaOptions", " ".join(QUICK))
    spark = made.config("spark.sql.execution.arrow.maxRecordsPerBatch", "1").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(stalling_sink.StallingSource)
    return spark


def main(url: str, directory: Path, guarantee: str, names: list[str]) -> None:
    # Stalled tasks keep their slots; a task whose worker dies is tried again.
    spark = session("to be killed", "local[6,4]")
    running = {}
    for name in names:
        place, moment = directory / name, (directory / name / "moment").read_text()
        # One after the other, so that each has the machine for itself.
        try:
            running[name] = spark_queries.start(
                lambda place=place: start(spark, url, place, guarantee=guarantee),
                lambda query, place=place, moment=moment: _is_at_moment(place, moment),
            )
        except spark_queries.QueryFailed as error:
            _note_end(place, error)
    while running:
        for name, query in list(running.items()):
            error = None
            try:
                has_ended = query.awaitTermination(0.1)
            except StreamingQueryException as ended:
                has_ended, error = True, ended
            if has_ended:
                del running[name]
                _note_end(directory / name, error)
    signal.pause()  # whoever started it kills it, also after the end of its queries


def _note_end(directory: Path, error: Exception | None) -> None:
    (directory / "ended.new").write_text(str(error or ""))
    (directory / "ended.new").rename(directory / "ended")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4:])
