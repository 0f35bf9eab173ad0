"""Queues on their own: bounds, time search, files that begin inside their chunk."""

import errno
from pathlib import Path
from typing import Any

import pytest
from tests.support.faulty_disk import FaultyDisk
from tests.support.steps import result_of
from tests.support.vectors import vectors

from halfmq.errors import InvariantViolated
from halfmq.runtime.disk import RealDisk
from halfmq.store import consume_queue
from halfmq.store.consume_queue import ConsumeQueues, QueueEntry, file_end, visible_before
from halfmq.store.layout import QUEUE_ENTRY, QUEUE_ENTRY_BYTES
from halfmq.store.open_files import OpenFiles

ROOT = Path("/q")


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume_queue, "QUEUE_FILE_ENTRIES", 8)


def queues(disk: FaultyDisk | None = None) -> ConsumeQueues:
    disk = disk or FaultyDisk()
    return ConsumeQueues(disk, ROOT, OpenFiles(disk))


def entry(number: int, time_ms: int = 0) -> bytes:
    return QUEUE_ENTRY.pack(1_000 + number, 10, 0, 2_000 + 10 * number, time_ms, -1, number)


def filled(times: list[int], *, start: int = 0) -> ConsumeQueues:
    made = queues()
    made.load(0, 1)
    for number, time_ms in enumerate(times, start):
        made.add(1, 0, number, entry(number, time_ms))
    made.flush()
    return made


def test_an_entry_has_these_bytes() -> None:
    golden = vectors("derived")["queue_entry"]
    assert QUEUE_ENTRY.pack(*QueueEntry(0x1040, 209, -0x1234567, 0x2000, 1_700_000_000_123, 5, -42)) == golden
    assert QueueEntry._make(QUEUE_ENTRY.unpack(golden)).visible_at == 0x2000


def test_a_position_bounds_a_queue_at_every_entry_and_across_files() -> None:
    made = filled([0] * 20)
    for count in range(21):
        below = 2_000 + 10 * count
        assert made.bounds(1, 0, below) == (0, count)
        assert len(made.read(1, 0, 0, 100, below)) == count
    assert made.bounds(1, 0) == (0, 20)
    assert made.bounds(9, 0) == (0, 0)


def test_encoded_entries_are_those_of_a_read_across_files_and_up_to_a_position() -> None:
    made = filled([0] * 20, start=3)
    made.add(1, 0, 23, entry(23))  # staged: readers do not see it
    for start in range(2, 25):
        for count in (1, 6, 30):
            for below in (2_000, 2_030, 2_031, 2_110, 2_111, 9_999):
                wanted = made.read(1, 0, start, count, below)
                found = made.read_encoded(1, 0, start, count, below)
                assert [QueueEntry._make(one) for one in QUEUE_ENTRY.iter_unpack(found.data)] == wanted
                assert list(found.offsets) == [one.offset for one in wanted]
                assert list(found.message_bytes) == [one.message_bytes for one in wanted]
                assert list(found.visible_at) == [one.visible_at for one in wanted]
                assert len(found) == len(wanted)
                assert list(found.first(2).offsets) == [one.offset for one in wanted[:2]]
    assert len(made.read_encoded(1, 7, 0, 10, 9_999)) == 0


def test_reading_starts_and_stops_where_it_is_told() -> None:
    made = filled([0] * 20)
    assert [one.key_hash for one in made.read(1, 0, 6, 5, 1 << 40)] == [6, 7, 8, 9, 10]
    assert made.read(1, 0, 20, 5, 1 << 40) == []
    assert made.read(1, 0, -1, 5, 1 << 40) == []


def test_zeros_are_no_entries_even_between_entries_that_survived() -> None:
    data = b"".join([entry(0), entry(1), bytes(48), entry(3)])
    assert visible_before(lambda at, length: data[at : at + length], 4, 1 << 40) == 2


# Source: RocketMQ ``ConsumeQueue.binarySearchInQueueByTime``.
@pytest.mark.parametrize(
    ("time_ms", "lower", "upper"),
    [
        (99, 0, 0),  # before the first
        (100, 0, 0),
        (150, 1, 0),  # between two
        (200, 1, 3),  # several with that time
        (201, 4, 3),
        (300, 4, 4),
        (301, 5, 4),  # after the last
    ],
)
def test_search_by_time_follows_rocketmq_at_the_edges(time_ms: int, lower: int, upper: int) -> None:
    made = filled([100, 200, 200, 200, 300])
    assert made.search_by_time(1, 0, time_ms) == lower
    assert made.search_by_time(1, 0, time_ms, upper=True) == upper


def test_search_by_time_in_a_queue_that_does_not_begin_at_zero() -> None:
    made = filled([100, 200], start=13)
    assert made.search_by_time(1, 0, 50) == 13
    assert made.search_by_time(1, 0, 50, upper=True) == 0
    assert made.search_by_time(1, 0, 500) == 15
    assert made.search_by_time(9, 0, 500) == 0


def test_the_first_file_of_a_queue_may_begin_inside_its_chunk() -> None:
    made = filled([0] * 9, start=13)
    assert made.bounds(1, 0) == (13, 22)
    assert file_end(13) == 16
    assert [one.key_hash for one in made.read(1, 0, 13, 100, 1 << 40)] == list(range(13, 22))


def test_a_message_is_found_by_its_offset_from_where_it_could_be_visible() -> None:
    made = filled([0] * 20)
    assert result_of(made.find_offset(1, 0, 1_017)) == (17, QueueEntry._make(QUEUE_ENTRY.unpack(entry(17))))
    assert result_of(made.find_offset(1, 0, 5)) is None


def test_bytes_that_look_like_a_key_in_another_field_are_no_hit() -> None:
    made = queues()
    made.load(0, 0)
    tricky = QUEUE_ENTRY.pack(77, 10, 0, 2_000, 77, -1, 5)
    made.add(1, 0, 0, tricky)
    made.add(1, 0, 1, QUEUE_ENTRY.pack(78, 10, 0, 2_010, 0, -1, 77))
    made.flush()
    assert [place for found in made.find_key(1, 77) for _, place, _ in found] == [1]


@pytest.mark.parametrize("at", range(6))
def test_zeros_among_what_was_written_are_damage_and_no_end(at: int) -> None:
    """A consumer that stands there must be told, not wait for ever: wherever they are, the queue ends where it did."""
    disk = FaultyDisk()
    made = queues(disk)
    made.load(0, 1)
    for number in range(6):
        made.add(1, 0, number, entry(number))
    made.flush()
    file = disk.open(ROOT / "1" / "0" / f"{0:020d}.q")
    file.write(at * QUEUE_ENTRY.size, [bytes(QUEUE_ENTRY.size)])
    assert made.bounds(1, 0, 1 << 40) == (0, 6)


def test_a_new_queue_of_an_untrimmed_log_begins_at_zero() -> None:
    made = queues()
    made.load(0, 0)
    made.cut(0)
    with pytest.raises(InvariantViolated, match="queue offset 3"):
        made.add(1, 0, 3, entry(3))


def test_a_trim_keeps_the_newest_file_so_that_the_end_is_known() -> None:
    disk = FaultyDisk()
    made = queues(disk)
    made.load(0, 0)
    for number in range(20):
        made.add(1, 0, number, entry(number))
    made.trim(1 << 40)
    assert made.bounds(1, 0) == (20, 20)
    assert disk.list(ROOT / "1" / "0") == [f"{16:020d}.q"]
    again = queues(disk)
    again.load(1 << 40, 1 << 40)
    assert again.bounds(1, 0) == (20, 20)


def test_a_deleted_topics_files_go_and_what_was_staged_with_them() -> None:
    disk = FaultyDisk()
    made = queues(disk)
    made.load(0, 0)
    made.add(1, 0, 0, entry(0))
    made.add(2, 0, 0, entry(0))
    made.flush()
    made.add(1, 0, 1, entry(1))
    made.delete_topic(1)
    made.flush()
    assert disk.list(ROOT) == ["2"], "nor do empty directories stay, one for each topic that ever was"
    assert made.bounds(1, 0) == (0, 0)
    assert made.bounds(2, 0) == (0, 1)
    made.delete_topic(3)


class _NotLookedThrough(dict[Any, Any]):
    def __iter__(self) -> Any:
        raise AssertionError("a look at each queue of the store")

    keys = values = items = __iter__


def test_topics_are_deleted_and_keys_found_without_a_look_at_the_queues_of_others() -> None:
    made = queues()
    made.load(0, 0)
    for topic_id in (1, 2):
        for queue_id in (0, 1):
            made.begin_at(topic_id, queue_id, 5)
            made.add(topic_id, queue_id, 5, entry(5))
    made.flush()
    made._queues = _NotLookedThrough(made._queues)
    assert [queue_id for found in made.find_key(1, 5) for queue_id, _, _ in found] == [0, 1]
    made.delete_topic(1)
    assert [made.bounds(topic_id, 1) for topic_id in (1, 2)] == [(0, 0), (5, 6)]
    assert list(made.find_key(1, 5)) == []
    made.load(0, 0)
    made.reset()
    assert made.bounds(2, 1) == (0, 0)


def test_what_is_in_the_directory_of_a_deleted_topic_and_is_not_ours_stays() -> None:
    disk = FaultyDisk()
    made = queues(disk)
    made.load(0, 0)
    made.add(1, 0, 0, entry(0))
    made.add(1, 1, 0, entry(0))
    made.flush()
    disk.open(ROOT / "1" / "1" / "note", create=True).write(0, [b"mine"])
    made.delete_topic(1)
    assert disk.paths() == (ROOT / "1" / "1" / "note",)
    assert disk.list(ROOT / "1") == ["1"]


def test_directories_without_files_are_no_queues() -> None:
    """Releases before kept those of deleted topics, and a crash may: each start would take memory for all of them."""
    disk = FaultyDisk()
    disk.make_directories(ROOT / "1" / "0")
    made = queues(disk)
    made.load(0, 0)
    assert not made._queues


def test_no_look_touches_what_was_never_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is behind a queue's end is zeros, or of a log end that did not survive."""
    monkeypatch.setattr(consume_queue, "QUEUE_FILE_ENTRIES", 65_536)
    looks: list[int] = []

    def looked(read: Any, entries: int, position: int, *, zeros_end: bool) -> int:
        looks.append(entries)
        return visible_before(read, entries, position, zeros_end=zeros_end)

    monkeypatch.setattr(consume_queue, "visible_before", looked)
    disk = RealDisk()
    files = OpenFiles(disk)
    made = ConsumeQueues(disk, tmp_path, files)
    made.load(0, 1)
    for number in range(100):
        made.add(1, 0, number, entry(number))
        if number == 89:
            made.flush()
    assert made.bounds(1, 0, 1 << 40) == (0, 90)
    assert looks == [1, 90]
    made.flush()
    files.sync()
    files.close()
    looks.clear()
    again = ConsumeQueues(disk, tmp_path, OpenFiles(disk))
    again.load(2_000 + 10 * 70, 1)
    assert again.bounds(1, 0) == (0, 70)
    page_entries = -(-100 * QUEUE_ENTRY.size // 4_096) * 4_096 // QUEUE_ENTRY.size
    assert max(looks) <= page_entries
    assert again.bounds(1, 0, 2_000 + 10 * 60) == (0, 60)


def many(number: int, count: int) -> bytes:
    return b"".join(map(entry, range(number, number + count)))


def test_entries_of_a_large_verdict_are_written_in_parts_that_readers_do_not_see(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consume_queue, "MANY_BYTES_MAX", 6 * QUEUE_ENTRY_BYTES)
    disk = FaultyDisk()
    made = queues(disk)
    made.load(0, 1)
    most = 0
    for number in range(0, 60, 4):
        made.add_many(1, number // 4 % 3, number // 12 * 4, many(number, 4))
        staged = sum(len(part) for queue in made._queues.values() for part in queue.staged)
        most = max(most, staged)
        assert all(made.bounds(1, queue, 2_000)[1] == 0 for queue in range(3))
    assert 0 < most < 6 * QUEUE_ENTRY_BYTES
    made.flush()
    for queue in range(3):
        found = made.read(1, queue, 0, 100, 1 << 40)
        assert [one.key_hash for one in found] == [12 * part + 4 * queue + at for part in range(5) for at in range(4)]


def test_entries_of_a_large_verdict_that_a_full_disk_does_not_take_stay_staged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume_queue, "MANY_BYTES_MAX", 2 * QUEUE_ENTRY_BYTES)
    disk = FaultyDisk()
    made = queues(disk)
    made.load(0, 1)
    disk.fail("write", errno.ENOSPC, times=100)
    made.add_many(1, 0, 0, many(0, 3))
    made.add_many(1, 0, 3, many(3, 3))
    with pytest.raises(OSError, match="No space"):
        made.flush()
    disk.heal()
    made.flush()
    assert [one.key_hash for one in made.read(1, 0, 0, 100, 1 << 40)] == list(range(6))
    disk.fail("write", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        made.add_many(1, 0, 6, many(6, 3))
