"""Queue entries read beside the broker, against what the broker's own reader says."""

from pathlib import Path

import pytest
from tests.support.store_writer import StoreWriter

from halfmq.spark.files import direct_reader
from halfmq.spark.files.direct_reader import QueueFiles
from halfmq.store.layout import QUEUE_ENTRY_BYTES, QUEUE_FILE_ENTRIES


@pytest.fixture
def writer(tmp_path: Path) -> StoreWriter:
    made = StoreWriter(tmp_path, segment_bytes=1 << 20)
    made.topic("t", 2)
    return made


def files(writer: StoreWriter, queue: int = 0) -> QueueFiles:
    return QueueFiles(writer.shard / "queues" / str(writer.topics["t"]) / str(queue))


def test_every_position_bounds_a_queue_as_the_broker_bounds_it(writer: StoreWriter) -> None:
    positions = [writer.publish()]
    for number in range(60):
        writer.send("t", 0, b"x")
        if number % 3 == 0:
            positions.append(writer.publish())
    end = writer.publish()
    visible_at = [entry.visible_at for entry in writer.indexes.queues.read(writer.topics["t"], 0, 0, 100, end)]
    assert len(visible_at) == 60
    for position in {*positions, *visible_at, *(at + 1 for at in visible_at), 0, 1, end}:
        assert files(writer).bounds(0, position)[1] == writer.indexes.queues.bounds(writer.topics["t"], 0, position)[1]


def test_a_time_is_found_as_by_the_broker(writer: StoreWriter) -> None:
    times = []
    for number in range(40):
        writer.send("t", 0, b"x")
        if number % 3 == 0:
            times.append(writer.now_ms)
            writer.tick(number % 7 * 5)
    writer.publish()
    queues, topic = writer.indexes.queues, writer.topics["t"]
    for time_ms in {time + more for time in times for more in (-1, 0, 1, 7)} | {0, 1 << 50}:
        assert files(writer).first_at_time(0, 40, time_ms) == queues.search_by_time(topic, 0, time_ms)
    assert files(writer).first_at_time(5, 9, 0) == 5
    assert files(writer).first_at_time(5, 9, 1 << 50) == 9


def test_what_fits_into_a_number_of_bytes(writer: StoreWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        writer.send("t", 0, b"x" * (1 + number * 37 % 200))
    end = writer.publish()
    sizes = [entry.message_bytes for entry in writer.indexes.queues.read(writer.topics["t"], 0, 0, 30, end)]
    for chunk in (1, 4, 100):
        monkeypatch.setattr(direct_reader, "_CHUNK", chunk)
        for count in range(31):
            total = sum(sizes[:count])
            assert files(writer).fitting(0, 30, total) == (count, total)
            if count:
                assert files(writer).fitting(0, 30, total - 1) == (count - 1, sum(sizes[: count - 1]))
        assert files(writer).fitting(3, 5, 1 << 40) == (2, sum(sizes[3:5]))


def test_a_queue_without_messages_and_one_without_files(writer: StoreWriter) -> None:
    assert files(writer).bounds(0, 1 << 40) == (0, 0)
    assert QueueFiles(writer.shard / "nowhere").bounds(0, 10) == (0, 0)


def test_a_queue_that_spans_files(writer: StoreWriter) -> None:
    for _ in range(QUEUE_FILE_ENTRIES + 10):
        writer.send("t", 1, b"")
    position = writer.publish()
    queue = files(writer, 1)
    assert queue.bounds(0, position) == (0, QUEUE_FILE_ENTRIES + 10)
    entries = queue.read(QUEUE_FILE_ENTRIES - 5, QUEUE_FILE_ENTRIES + 5)
    wanted = writer.indexes.queues.read(writer.topics["t"], 1, QUEUE_FILE_ENTRIES - 5, 10, position)
    assert [int(entry["offset"]) for entry in entries] == [entry.offset for entry in wanted]
    assert [int(entry["half_index"]) for entry in entries] == [-1] * 10


def test_entries_that_are_not_there_are_a_missing_file_never_rows_of_zeros(writer: StoreWriter) -> None:
    writer.send("t", 0, b"x")
    writer.publish()
    with pytest.raises(FileNotFoundError):
        files(writer).read(0, 2)
    with pytest.raises(FileNotFoundError):
        files(writer).read(QUEUE_FILE_ENTRIES, QUEUE_FILE_ENTRIES + 1)


def test_a_file_that_is_still_short_reads_as_no_entries(writer: StoreWriter) -> None:
    for _ in range(3):
        writer.send("t", 0, b"x")
    position = writer.publish()
    (path,) = (writer.shard / "queues" / str(writer.topics["t"]) / "0").iterdir()
    path.write_bytes(path.read_bytes()[: 2 * QUEUE_ENTRY_BYTES])
    assert files(writer).bounds(0, position) == (0, 2)


def test_what_was_trimmed_is_below_the_bounds(writer: StoreWriter) -> None:
    for _ in range(30):
        writer.send("t", 0, b"x" * 100_000)
    writer.trim()
    first, end = files(writer).bounds(writer.log_start, writer.publish())
    assert 0 < first < end == 30
    assert (first, end) == writer.indexes.queues.bounds(writer.topics["t"], 0)
