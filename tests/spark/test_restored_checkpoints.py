"""A checkpoint that is restored to an older state, with new input: the query writes each row once, or stops with the reason.

Spark then makes batches of numbers that were written before. Their lines of offsets may be the same, and their rows others.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from tests.support import spark_queries
from tests.support.served import Served
from tests.support.spark_queries import QueryFailed
from tests.support.visible import visible

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

CONTRADICTION: Final = "decided with other content"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    work = tmp_path_factory.mktemp("broker")
    served = Served(work / "data", work / "broker.log")
    served.start()
    yield served
    served.stop()


class Query:
    """From directories of text files to topic NAME, the name of ``place``."""

    def __init__(self, spark: Any, broker: Served, place: Path) -> None:
        self.spark, self.broker, self.place = spark, broker, place
        self.checkpoint = place / "checkpoint"
        place.mkdir()

    def put(self, *lines: str, directory: str = "in") -> None:
        """One more file."""
        place = self.place / directory
        place.mkdir(exist_ok=True)
        new = place / f".{lines[0]}"
        new.write_text("".join(f"{line}\n" for line in lines))
        new.rename(place / lines[0])

    def read(self, directory: str = "in", **options: Any) -> Any:
        (self.place / directory).mkdir(exist_ok=True)
        return self.spark.readStream.format("text").options(**options).load(str(self.place / directory))

    def run(self, frame: Any) -> None:
        """Until it has caught up. Raises QueryFailed."""
        write = frame.writeStream.format("halfmq").options(url=self.broker.url, topic=self.place.name)
        write = write.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True)
        spark_queries.run(write.start)

    def run_each(self, write: Callable[[Any, int], None]) -> None:
        """With ``foreachBatch``."""
        stream = self.read().writeStream.foreachBatch(write).option("checkpointLocation", str(self.checkpoint))
        spark_queries.run(stream.trigger(availableNow=True).start)

    def copy(self) -> None:
        shutil.copytree(self.checkpoint, self.place / "copy")

    def restore(self) -> None:
        shutil.rmtree(self.checkpoint)
        shutil.copytree(self.place / "copy", self.checkpoint)

    def rows(self) -> list[str]:
        return sorted(body.decode() for body in visible(self.broker, self.place.name))


@pytest.fixture
def query(spark: Any, broker: Served, tmp_path: Path, request: pytest.FixtureRequest) -> Query:
    name, _, parameter = request.node.name.partition("[")
    return Query(spark, broker, tmp_path / (name.split("_")[1] + parameter.removesuffix("]")))


def test_files_under_the_same_line_of_offsets_stop_the_query(query: Query) -> None:
    frame = query.read()
    query.put("a")
    query.run(frame)
    query.copy()
    query.put("b")
    query.run(frame)
    query.restore()
    query.put("c")
    for _ in range(2):
        with pytest.raises(QueryFailed, match=CONTRADICTION):
            query.run(frame)
        assert query.rows() == ["a", "b"]


def test_repeated_batches_of_the_same_files_are_the_same_also_when_compacted(query: Query) -> None:
    query.spark.conf.set("spark.sql.streaming.fileSource.log.compactInterval", "2")
    try:
        frame = query.read(maxFilesPerTrigger=1)
        query.put("a")
        query.run(frame)
        query.copy()
        for name in "bcd":
            query.put(name)
        query.run(frame)
        query.restore()
        query.run(frame)
        query.put("e")
        query.run(frame)
        assert query.rows() == ["a", "b", "c", "d", "e"]
        assert (query.checkpoint / "sources" / "0" / "3.compact").exists()
    finally:
        query.spark.conf.unset("spark.sql.streaming.fileSource.log.compactInterval")


@pytest.mark.thorough
def test_second_source_of_a_union_that_has_the_first_one_twice(query: Query) -> None:
    query.put("a", directory="one")
    query.put("b", directory="two")
    one = query.read("one")
    frame = one.union(one.selectExpr("concat(value, '-again') as value")).union(query.read("two"))
    query.run(frame)
    query.copy()
    query.put("c", directory="two")
    query.run(frame)
    query.restore()
    query.run(frame)
    query.restore()
    query.put("d", directory="two")
    with pytest.raises(QueryFailed, match=CONTRADICTION):
        query.run(frame)
    assert query.rows() == ["a", "a-again", "b", "c"]


@pytest.mark.parametrize("lockstep", [True, False])
def test_union_whose_last_batch_comes_again_after_a_log_has_grown(query: Query, lockstep: bool) -> None:
    """What Spark writes next is not synced: a power loss may keep sources/0/K+1 and lose commits/N, which came before it."""
    frame = query.read("one").union(query.read("two"))
    query.put("a", directory="one")
    query.put("b", directory="two")
    query.run(frame)
    if not lockstep:
        query.put("c", directory="one")
        query.run(frame)
    query.put("d", directory="one")
    query.put("e", directory="two")
    query.run(frame)
    query.copy()
    query.put("f", directory="one")
    query.run(frame)
    newest = max((query.checkpoint / "sources" / "0").iterdir(), key=lambda path: (path.name.isdecimal(), path.name))
    shutil.copy(newest, query.place / "copy" / "sources" / "0")
    last = max(int(path.name) for path in (query.place / "copy" / "commits").iterdir() if path.name.isdecimal())
    query.restore()
    (query.checkpoint / "commits" / str(last)).unlink()
    (query.checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)
    query.run(frame)
    assert query.rows() == [*("ab" if lockstep else "abc"), "d", "e", "f"]


@pytest.mark.thorough
def test_named_sources(query: Query) -> None:
    query.spark.conf.set("spark.sql.streaming.queryEvolution.enableSourceEvolution", "true")
    try:
        query.put("a", directory="one")
        query.put("b", directory="two")
        frame = None
        for name in ("one", "two"):
            read = query.spark.readStream.name(name).format("text").load(str(query.place / name))
            frame = read if frame is None else frame.union(read)
        query.run(frame)
        query.copy()
        query.put("c", directory="one")
        query.run(frame)
        query.restore()
        query.run(frame)
        query.restore()
        query.put("d", directory="one")
        with pytest.raises(QueryFailed, match=CONTRADICTION):
            query.run(frame)
        assert query.rows() == ["a", "b", "c"]
    finally:
        query.spark.conf.unset("spark.sql.streaming.queryEvolution.enableSourceEvolution")


def test_each_batch_that_is_written_with_the_checkpoint_of_its_stream(query: Query) -> None:
    """``foreachBatch``: without the checkpoint, the number of the batch alone says what it is."""

    def write(frame: Any, number: int) -> None:
        given = {"url": query.broker.url, "topic": query.place.name, "checkpointLocation": str(query.checkpoint)}
        given |= {"txnAppId": query.place.name, "txnVersion": str(number)}
        frame.write.format("halfmq").mode("append").options(**given).save()

    query.put("a")
    query.run_each(write)
    query.copy()
    query.put("b")
    query.run_each(write)
    query.restore()
    query.run_each(write)
    query.restore()
    query.put("c")
    with pytest.raises(QueryFailed, match=CONTRADICTION):
        query.run_each(write)
    assert query.rows() == ["a", "b"]
