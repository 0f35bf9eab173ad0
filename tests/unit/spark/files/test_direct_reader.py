"""The store's files on this machine: what is visible, at one position, and what is said when something is gone."""

import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.store_writer import V6, StoreWriter

from halfmq.errors import ConnectError, DataLost, UsageError
from halfmq.model import properties as props
from halfmq.spark.files import direct_reader
from halfmq.spark.files.direct_reader import DirectReader, QueueFiles
from halfmq.spark.options import parse_options
from halfmq.spark.plan.offsets import QueueBoundsSnapshot
from halfmq.spark.plan.partitions import QueueRange, Ranges, ranges_between
from halfmq.spark.retry_deadline import RetryDeadline
from halfmq.spark.rows.byte_slices import Entries
from halfmq.spark.rows.stored_rows import record_batch
from halfmq.spark.source import HalfmqBatchReader
from halfmq.store.layout import QUEUE_FILE_ENTRIES
from halfmq.store.topics_file import TopicInfo, write_topics
from halfmq.store.watermark_page import WatermarkPage

COLUMNS = ("topic", "queue", "offset", "value", "transaction_id", "timestamp")


@pytest.fixture
def writer(tmp_path: Path) -> StoreWriter:
    made = StoreWriter(tmp_path / "data")
    made.topic("orders", 2)
    made.topic("loyalty", 1)
    return made


def reader(writer: StoreWriter, topics: str = "orders,loyalty", timeout_ms: int = 50, **more: str) -> DirectReader:
    chosen = {} if "subscribePattern" in more else {"subscribe": topics}
    options = parse_options({"path": str(writer.directory), **chosen, **more})
    return DirectReader(options, RetryDeadline(timeout_ms))


def whole(snapshot: QueueBoundsSnapshot) -> Ranges:
    starts = {queue: first for queue, (first, _) in snapshot.queues.items()}
    ends = {queue: end for queue, (_, end) in snapshot.queues.items()}
    return Ranges(snapshot.store, tuple(ranges_between(starts, ends, snapshot.topic_id)))


def read(source: DirectReader, ranges: Ranges) -> tuple[list[tuple[str, int, int, bytes, str | None]], list[str]]:
    lost: list[str] = []
    found = []
    for rows in source.read(ranges, lost.append):
        batch = record_batch(rows, COLUMNS, lambda offset, why: lost.append(why))
        found += [tuple(row[name] for name in COLUMNS[:5]) for row in batch.to_pylist()]
    return found, lost


def everything(writer: StoreWriter) -> list[tuple[str, int, int, bytes, str | None]]:
    source = reader(writer)
    found, lost = read(source, whole(source.snapshot()))
    assert lost == []
    return found


def test_only_committed_messages_in_commit_order(writer: StoreWriter) -> None:
    first = writer.prepare("T1", [("orders", 0, b"half of T1", props.encode({"UNIQ_KEY": "T1"}))])
    writer.send("orders", 0, b"plain, after the half of T1 and before its commit")
    second = writer.prepare("T2", [("orders", 0, b"rolled back", b"")])
    writer.prepare("T3", [("orders", 0, b"undecided", b"")])
    writer.commit("T1", first)
    writer.roll_back("T2", second)
    writer.publish()
    assert everything(writer) == [
        ("orders", 0, 0, b"plain, after the half of T1 and before its commit", None),
        ("orders", 0, 1, b"half of T1", "T1"),
    ]


def test_every_kind_of_record_that_can_hold_a_visible_message(writer: StoreWriter) -> None:
    in_old_segment = writer.prepare("T1", [("orders", 1, b"carried", props.encode({"UNIQ_KEY": "T1"}))])
    for _ in range(40):
        writer.send("orders", 0, b"." * 2_000)
    here = writer.prepare("T2", [("orders", 1, b"in place", props.encode({"UNIQ_KEY": "T2"}))])
    writer.commit("T2", here)
    writer.commit("T1", in_old_segment)
    writer.delayed("orders", 1, b"delayed")
    writer.send("orders", 1, b"from an IPv6 host", host=V6)
    writer.publish()
    assert len(writer.files.numbers()) > 1
    assert [row[2:] for row in everything(writer) if row[1] == 1] == [
        (0, b"in place", "T2"),
        (1, b"carried", "T1"),
        (2, b"delayed", None),
        (3, b"from an IPv6 host", None),
    ]


def test_a_topic_with_a_long_name_has_another_layout(writer: StoreWriter) -> None:
    topic = "%RETRY%" + "g" * 140
    writer.topic(topic, 1)
    writer.send(topic, 0, b"again", props.encode({"UNIQ_KEY": "U"}))
    writer.publish()
    source = reader(writer, topic)
    assert read(source, whole(source.snapshot())) == ([(topic, 0, 0, b"again", None)], [])


def test_a_transaction_is_wholly_on_one_side_of_every_cut(writer: StoreWriter) -> None:
    source = reader(writer)
    snapshots = 0
    for number in range(30):
        halves = writer.prepare(f"T{number}", [("orders", number % 2, b"o", b""), ("loyalty", 0, b"l", b"")])
        if number % 4:
            writer.commit(f"T{number}", halves)
        writer.publish()
        snapshot = source.snapshot()
        orders = snapshot.queues["orders", "0"][1] + snapshot.queues["orders", "1"][1]
        assert orders == snapshot.queues["loyalty", "0"][1]
        snapshots += orders > 0
    assert snapshots > 20


def test_what_is_written_but_not_published_is_not_seen(writer: StoreWriter) -> None:
    writer.send("orders", 0, b"published")
    writer.publish()
    writer.send("orders", 0, b"in the log and in its queue")
    writer.tick()
    assert writer.indexes.queues.bounds(writer.topics["orders"], 0) == (0, 2)
    assert reader(writer).snapshot().queues["orders", "0"] == (0, 1)


def test_queues_are_looked_at_again_only_when_something_was_published(
    writer: StoreWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.send("orders", 0, b"x")
    writer.publish()
    source = reader(writer)
    before = source.snapshot()
    looked: list[Path] = []
    monkeypatch.setattr(direct_reader, "QueueFiles", lambda path: looked.append(path) or QueueFiles(path))
    assert source.snapshot() == before
    assert looked == []
    writer.send("orders", 0, b"x")
    writer.publish()
    assert source.snapshot().queues["orders", "0"] == (0, 2)
    assert len(looked) == 3


def test_timestamps_are_those_of_the_commit(writer: StoreWriter) -> None:
    halves = writer.prepare("T1", [("orders", 0, b"x", b"")])
    writer.tick(5_000)
    writer.commit("T1", halves)
    writer.publish()
    source = reader(writer)
    (rows,) = source.read(whole(source.snapshot()), lambda what: None)
    assert rows.store_times_ms.tolist() == [writer.now_ms]


def test_a_topic_that_does_not_exist_is_not_in_the_cut_and_an_empty_one_is(writer: StoreWriter) -> None:
    writer.publish()
    snapshot = reader(writer, "loyalty,nowhere").snapshot()
    assert snapshot.topics == {"loyalty": 2}
    assert snapshot.queues == {("loyalty", "0"): (0, 0)}


def test_sizes_of_samples(writer: StoreWriter) -> None:
    for number in range(100):
        writer.send("orders", 0, b"x" * (100 if number < 50 else 10_000))
    writer.publish()
    source = reader(writer)
    source.snapshot()
    head = 91 + len("orders")
    one = QueueRange("orders", writer.topics["orders"], "", 0, 0, 100)
    assert source.size_samples([one._replace(end=20), one._replace(start=60), one._replace(start=98)]) == [
        (16, 16 * (100 + head)),
        (16, 16 * (10_000 + head)),
        (2, 2 * (10_000 + head)),
    ]
    (writer.shard / "queues" / str(one.topic_id) / "0" / f"{0:020d}.q").unlink()
    assert source.size_samples([one]) == [(0, 0)]


def test_a_queue_of_large_messages_beside_one_of_small_ones_gives_tasks_of_equal_bytes(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "mixed", segment_bytes=1 << 20)
    writer.topic("orders", 2)
    sizes = {0: 50_000, 1: 100}
    for number in range(2_000):
        writer.send("orders", 1, b"x" * sizes[1])
        if number % 20 == 0:
            writer.send("orders", 0, b"x" * sizes[0])
    writer.publish()
    given = {"path": str(writer.directory), "subscribe": "orders", "minPartitions": "5"}
    parts = HalfmqBatchReader(parse_options(given).for_batch()).partitions()
    head = 91 + len("orders")
    found = [
        sum((one.end - one.start) * (sizes[one.queue] + head) for one in part.ranges)  # type: ignore[attr-defined]
        for part in parts
    ]
    assert len(found) == 5
    mean = sum(found) / 5
    assert max(abs(size - mean) for size in found) <= sizes[0] + head, "a cut is wrong by half a message on each side"


def test_a_task_that_does_not_see_the_directory_names_its_machine(writer: StoreWriter, tmp_path: Path) -> None:
    writer.send("orders", 0, b"x")
    writer.publish()
    ranges = whole(reader(writer).snapshot())
    elsewhere = DirectReader(parse_options({"path": str(tmp_path / "none"), "subscribe": "orders"}), RetryDeadline(50))
    with pytest.raises(UsageError, match=f"none holds no store on {socket.gethostname()}") as error:
        list(elsewhere.read(ranges, [].append))
    assert "all executors" in error.value.hint


def test_offsets_by_time_within_the_snapshot(writer: StoreWriter) -> None:
    begin_ms = writer.now_ms
    for _ in range(20):
        writer.send("orders", 0, b"x")
        writer.tick(10)
    writer.publish()
    source = reader(writer)
    snapshot = source.snapshot()
    writer.send("orders", 0, b"after the snapshot")
    writer.publish()
    for time_ms, expected in (
        (0, 0), (begin_ms, 0), (begin_ms + 1, 1), (begin_ms + 50, 5), (begin_ms + 190, 19), (begin_ms + 191, None),
        (begin_ms + 200, None),
    ):  # fmt: skip
        found = source.offsets_at({("orders", "0"): time_ms, ("orders", "1"): time_ms}, snapshot)
        assert found == {("orders", "0"): expected, ("orders", "1"): None}


def test_a_time_splits_no_transaction(writer: StoreWriter) -> None:
    begin_ms = writer.now_ms
    for number in range(8):
        halves = [("orders", queue, b"%d" % number, b"") for queue in (0, 1)]
        prepared = writer.prepare(f"T{number}", halves)
        for _ in range(number % 3):
            writer.send("orders", number % 2, b"plain")
        writer.tick(5)
        writer.commit(f"T{number}", prepared)
        writer.tick(number % 3)
    writer.publish()
    splits = 0
    for time_ms in range(begin_ms - 1, writer.now_ms + 2):
        options = {"path": str(writer.directory), "subscribe": "orders", "columns": "queue,value"}
        late = {"startingTimestamp": str(time_ms), "startingOffsetsByTimestampStrategy": "latest"}
        sides = []
        for more in (late, {"endingTimestamp": str(time_ms)}):
            made = HalfmqBatchReader(parse_options({**options, **more}).for_batch())
            rows = [row for part in made.partitions() for batch in made.read(part) for row in batch.to_pylist()]
            by_queue = [{row["value"] for row in rows if row["queue"] == queue} - {b"plain"} for queue in (0, 1)]
            assert by_queue[0] == by_queue[1]
            sides.append(len(by_queue[0]))
        assert sum(sides) == 8
        splits += 0 < sides[0] < 8
    assert splits > 10


def test_messages_past_retention_have_no_time_and_no_size(writer: StoreWriter) -> None:
    for number in range(60):
        writer.send("orders", 0, str(number).encode().ljust(4_000))
    writer.publish()
    source = reader(writer)
    before = source.snapshot()
    sizes = [
        entry.message_bytes for entry in writer.indexes.queues.read(writer.topics["orders"], 0, 0, 60, writer.log.end)
    ]
    assert source.fitting(("orders", "0"), 3, 60, sum(sizes[3:9]), before) == (6, sum(sizes[3:9]))
    writer.trim()
    first = writer.indexes.queues.bounds(writer.topics["orders"], 0)[0]
    assert 9 < first < 59
    assert source.offsets_at({("orders", "0"): 0}, before) == {("orders", "0"): first}
    assert source.fitting(("orders", "0"), 3, 60, sizes[first], before) == (first - 3 + 1, sizes[first])
    assert source.fitting(("orders", "0"), 3, first - 1, 1, before) == (first - 4, 0)


@pytest.mark.parametrize(
    ("pattern", "found"), [("orders|loy.*", {"orders", "loyalty"}), ("order", set()), (".*", {"orders", "loyalty"})]
)
def test_a_pattern_chooses_among_the_topics_of_the_store(writer: StoreWriter, pattern: str, found: set[str]) -> None:
    writer.topic("%RETRY%orders", 1)
    writer.publish()
    source = reader(writer, subscribePattern=pattern)
    names_and_ids = [TopicInfo(number, name, 1, 1, 6) for name, number in writer.topics.items()]
    write_topics(writer.disk, writer.shard / "topics.json", writer.store_id.hex(), names_and_ids)
    assert set(source.snapshot().topics) == found
    names_and_ids.append(TopicInfo(9, "loyal-later", 1, 1, 6))
    write_topics(writer.disk, writer.shard / "topics.json", writer.store_id.hex(), names_and_ids)
    writer.send("orders", 0, b"the creation of a topic moves the position")
    writer.publish()
    later = {"loyal-later"} if pattern != "order" else set()
    assert set(source.snapshot().topics) == found | later


def test_messages_with_other_tags_are_skipped_by_the_hash_in_the_entry(writer: StoreWriter) -> None:
    """Their segment is not even looked at."""
    for number, tag in enumerate(["Aa", "x", "BB", None, "Aa"]):
        writer.send("orders", 0, b"%d" % number, props.encode({"TAGS": tag}) if tag else b"")
    writer.publish()
    source = reader(writer, "orders", tags="Aa")
    found, lost = read(source, whole(source.snapshot()))
    assert [row[2] for row in found] == [0, 2, 4], "BB has the same hash; its text is compared later"
    assert lost == []
    nothing = reader(writer, "orders", tags="none")
    assert read(nothing, whole(source.snapshot())) == ([], [])
    for path in (writer.shard / "log").glob("*"):
        path.unlink()
    assert read(nothing, whole(source.snapshot())) == ([], [])
    one = reader(writer)
    _, lost = read(one, whole(source.snapshot()))
    assert lost


def test_a_batch_has_only_messages_with_the_text_of_a_tag(writer: StoreWriter) -> None:
    for number, tag in enumerate(["Aa", "x", "BB", None, "Aa"]):
        writer.send("orders", 0, b"%d" % number, props.encode({"TAGS": tag}) if tag else b"")
    writer.publish()
    options = {"path": str(writer.directory), "subscribe": "orders", "columns": "value"}
    for tags, expected in (
        ("Aa", [b"0", b"4"]),
        ("BB||x", [b"1", b"2"]),
        ("none", []),
        ("*", [b"0", b"1", b"2", b"3", b"4"]),
    ):
        made = HalfmqBatchReader(parse_options({**options, "tags": tags}).for_batch())
        batches = [batch for part in made.partitions() for batch in made.read(part)]
        assert [value for batch in batches for value in batch["value"].to_pylist()] == expected


def test_a_directory_that_holds_no_store(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no store"):
        DirectReader(parse_options({"path": str(tmp_path), "subscribe": "t"}), RetryDeadline(0)).snapshot()


def test_a_store_that_has_published_nothing_or_is_being_made_again_is_waited_for(writer: StoreWriter) -> None:
    with pytest.raises(ConnectError, match="it has no high watermark"):
        reader(writer).snapshot()
    writer.send("orders", 0, b"x")
    writer.publish()
    writer.page.rebuilding(0, 0, 0)
    with pytest.raises(ConnectError, match="rebuilding the indexes"):
        reader(writer).snapshot()


def test_a_segment_that_was_trimmed_after_the_plan_is_a_loss_by_name(writer: StoreWriter) -> None:
    for _ in range(60):
        writer.send("orders", 0, b"." * 2_000)
    writer.publish()
    source = reader(writer)
    planned = whole(source.snapshot())
    writer.trim()
    found, lost = read(source, planned)
    kept = writer.indexes.queues.bounds(1, 0)[0]
    assert [row[2] for row in found] == list(range(kept, 60))
    assert 0 < kept < 60
    assert lost
    assert all("past retention" in what for what in lost)


def test_a_mapped_segment_outlives_its_file(writer: StoreWriter) -> None:
    for _ in range(60):
        writer.send("orders", 0, b"." * 2_000)
    writer.publish()
    source = reader(writer)
    reading = source.read(whole(source.snapshot()), lambda what: None)
    first = next(reading)
    writer.trim()
    assert record_batch(first, ("value",), lambda offset, why: None).column(0).to_pylist()[0] == b"." * 2_000


def test_another_store_in_the_directory_is_a_loss_by_name(writer: StoreWriter) -> None:
    writer.send("orders", 0, b"x")
    writer.publish()
    source = reader(writer)
    planned = whole(source.snapshot())
    shutil.rmtree(writer.directory)
    StoreWriter(writer.directory).publish()
    found, lost = read(source, planned)
    assert found == []
    assert "was planned" in lost[0]


def test_a_deleted_topic_is_a_loss_by_name(writer: StoreWriter) -> None:
    writer.send("orders", 0, b"x")
    writer.publish()
    source = reader(writer)
    planned = whole(source.snapshot())
    writer.delete_topic("orders")
    writer.publish()
    found, lost = read(source, planned)
    assert found == []
    assert lost == ["messages 0 to 0 of queue 0 of topic orders are past retention, or their topic was deleted"]


def test_planned_entries_that_are_gone_for_now_are_waited_for(writer: StoreWriter) -> None:
    writer.send("orders", 0, b"x")
    writer.publish()
    source = reader(writer)
    planned = whole(source.snapshot())
    shutil.rmtree(writer.shard / "queues")
    with pytest.raises(ConnectError, match="queue 0 of topic orders"):
        read(source, planned)


class Disturbed(QueueFiles):
    """``disturb`` happens between the look at the watermark page and the look at the files."""

    disturb: Callable[[], None]

    def bounds(self, log_start: int, position: int) -> tuple[int, int]:
        self.disturb()
        return super().bounds(log_start, position)

    def read(self, start: int, end: int) -> Entries:
        self.disturb()
        return super().read(start, end)


def test_queues_that_a_starting_broker_removes_while_they_are_looked_at_are_not_empty(
    writer: StoreWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.send("orders", 0, b"x")
    writer.publish()
    source = reader(writer)

    def start_over(self: QueueFiles) -> None:
        writer.page.rebuilding(0, 0, 0)
        shutil.rmtree(writer.shard / "queues", ignore_errors=True)

    monkeypatch.setattr(Disturbed, "disturb", start_over, raising=False)
    monkeypatch.setattr(direct_reader, "QueueFiles", Disturbed)
    with pytest.raises(ConnectError, match="rebuilding the indexes"):
        source.snapshot()


def test_a_broker_that_has_made_the_queues_again_meanwhile_is_looked_at_again(
    writer: StoreWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.send("orders", 0, b"x")
    writer.publish()
    queue = writer.shard / "queues" / "1" / "0"
    lives: list[int] = []

    def live_again(self: QueueFiles) -> None:
        """A whole life of a broker: the queue is removed, made again, and published, all between two looks."""
        if not lives:
            lives.append(2)
            queue.rename(queue.with_name("away"))
            page = WatermarkPage.open(writer.disk, writer.shard / "published", writer.store_id, 2)
            page.rebuilding(0, 0, 0)
            page.publish(writer.log.end, 0, 0, 0)
        elif not queue.exists():
            queue.with_name("away").rename(queue)

    monkeypatch.setattr(Disturbed, "disturb", live_again, raising=False)
    monkeypatch.setattr(direct_reader, "QueueFiles", Disturbed)
    source = reader(writer, timeout_ms=10_000)  # the writing here may take long, and is waited for
    assert source.snapshot().queues["orders", "0"] == (0, 1)
    assert source.snapshot().epoch == 2
    lives.clear()
    assert read(source, whole(source.snapshot()))[0] == [("orders", 0, 0, b"x", None)]


def test_a_topic_that_a_starting_broker_has_not_named_yet_is_not_deleted(
    writer: StoreWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.send("orders", 0, b"x")
    writer.publish()
    source = reader(writer)
    planned = whole(source.snapshot())

    def start_over(self: QueueFiles) -> None:
        if queue.exists():
            writer.page.rebuilding(0, 0, 0)
            shutil.rmtree(queue)
            write_topics(writer.disk, writer.shard / "topics.json", writer.store_id.hex(), [])

    queue = writer.shard / "queues" / "1" / "0"
    monkeypatch.setattr(Disturbed, "disturb", start_over, raising=False)
    monkeypatch.setattr(direct_reader, "QueueFiles", Disturbed)
    with pytest.raises(ConnectError, match="rebuilding the indexes"):
        read(source, planned)


def test_only_what_is_past_retention_is_lost_of_a_part_that_spans_queue_files(writer: StoreWriter) -> None:
    start = writer.ends[1, 0] = QUEUE_FILE_ENTRIES - 10
    writer.indexes.queues.begin_at(1, 0, start)
    for _ in range(20):
        writer.send("orders", 0, b"x")
    writer.publish()
    source = reader(writer)
    planned = Ranges(writer.store_id.hex(), (QueueRange("orders", 1, "", 0, start, QUEUE_FILE_ENTRIES + 10),))
    assert len(read(source, planned)[0]) == 20
    (writer.shard / "queues" / "1" / "0" / f"{start:020d}.q").unlink()
    found, lost = read(source, planned)
    assert [row[2] for row in found] == list(range(QUEUE_FILE_ENTRIES, QUEUE_FILE_ENTRIES + 10))
    assert lost == [
        f"messages {start} to {QUEUE_FILE_ENTRIES - 1} of queue 0 of topic orders are past retention, "
        "or their topic was deleted"
    ]


@pytest.mark.parametrize("how", ["size", "kind", "truncated"])
def test_an_entry_that_leads_to_no_message_is_named_with_its_file_and_never_a_row(
    writer: StoreWriter, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    for body in (b"x", b"y", b"z"):
        writer.send("orders", 0, body * 100)
    writer.publish()
    number = 2 if how == "truncated" else 1
    damaged = int(writer.indexes.queues.read(1, 0, number, 1, 1 << 40)[0].offset)
    path = writer.shard / "log" / f"{0:020d}.seg"
    data = bytearray(path.read_bytes())
    if how == "size":
        data[damaged + 16 : damaged + 24] = bytes(8)
    elif how == "kind":
        data[damaged] = 255
    path.write_bytes(data[: damaged + 50] if how == "truncated" else data)
    planned = whole(reader(writer).snapshot())
    found, lost = read(reader(writer), planned)
    assert [row[2] for row in found] == [row for row in range(3) if row != number]
    assert len(lost) == 1
    assert f"1 of the messages {number} to {number} of queue 0 of topic orders cannot be read" in lost[0]
    assert f"log offset {damaged}" in lost[0]
    assert f"{path} at byte {damaged}" in lost[0]
    given = {"path": str(writer.directory), "subscribe": "orders", "columns": "offset"}
    with pytest.raises(DataLost, match=f"log offset {damaged}"):
        list(HalfmqBatchReader(parse_options(given)).read(planned))
    lenient = HalfmqBatchReader(parse_options({**given, "failOnDataLoss": "false"}))
    assert sum(batch.num_rows for batch in lenient.read(planned)) == 2
    assert f"log offset {damaged}" in caplog.text


def test_a_damaged_body_is_noticed_where_bodies_are_verified(
    writer: StoreWriter, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        writer.send("orders", 0, b"body %d" % number)
    writer.publish()
    path = writer.shard / "log" / f"{0:020d}.seg"
    path.write_bytes(path.read_bytes().replace(b"body 1", b"bodx 1"))
    planned = whole(reader(writer).snapshot())

    def values(**more: str) -> list[bytes | None]:
        given = {"path": str(writer.directory), "subscribe": "orders,loyalty", "columns": "value", **more}
        made = HalfmqBatchReader(parse_options(given))
        return [value for batch in made.read(planned) for value in batch.column(0).to_pylist()]

    assert values() == [b"body 0", b"bodx 1", b"body 2"]
    with pytest.raises(DataLost, match=r"message 1 of queue 0 of topic orders: its body is damaged.*store verify"):
        values(verifyBodies="true")
    assert values(verifyBodies="true", failOnDataLoss="false") == [b"body 0", None, b"body 2"]
    assert "message 1 of queue 0 of topic orders" in caplog.text
