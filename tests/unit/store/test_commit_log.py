"""The log: where batches go, what a sync covers, what fails for good and what does not."""

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import log_records as make
from tests.support.faulty_disk import FaultyDisk

from halfmq.errors import InvariantViolated, StoreDamaged, StoreFull, StorePoisoned
from halfmq.model.records import BATCH_HEADER_BYTES, HalfRecord, Kind
from halfmq.runtime.disk import RealDisk
from halfmq.store import segment
from halfmq.store.commit_log import BeforeLogStart
from halfmq.store.log_scan import Batch, LogScan
from halfmq.store.segment import SegmentFiles, segment_name

HOME = Path("/store/log")


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def under(disk: FaultyDisk) -> make.LogUnderTest:
    return make.LogUnderTest(disk, HOME).make().start()


def batches(under: make.LogUnderTest, start: int = 0) -> list[Batch]:
    found = LogScan(SegmentFiles(under.disk, under.directory, make.SEGMENT)).from_batch(start, 0)
    return [one for one in found if isinstance(one, Batch)]


def fill_segment(under: make.LogUnderTest) -> None:
    """Append until the next batch of this kind would begin the next segment."""
    while under.log.end % make.SEGMENT < make.SEGMENT - 9_000:
        under.append(make.plain(b"x" * 8_000))


# --- place ------------------------------------------------------------------------------------------------------


def test_batches_follow_one_another(under: make.LogUnderTest) -> None:
    ends = [under.append(make.plain(), make.checked()) for _ in range(3)]
    assert [one.header.end for one in batches(under)] == ends
    assert under.log.end == ends[-1]


def test_a_batch_that_is_not_where_the_log_goes_on_is_refused(under: make.LogUnderTest) -> None:
    end = under.append(make.plain())
    for start in (0, end - 8, end + 8, make.SEGMENT, 2 * make.SEGMENT):
        with pytest.raises(InvariantViolated):
            under.log.append(make.laid_out(start, [make.plain()]), 1)
    assert under.log.end == end


def test_a_segment_begins_with_a_base_that_says_where_the_log_ended(under: make.LogUnderTest) -> None:
    fill_segment(under)
    end = under.log.end
    for first in (make.plain(), make.base(end - 8)):
        with pytest.raises(InvariantViolated, match="must begin with a base"):
            under.log.append(make.laid_out(make.SEGMENT, [first]), 1)
    under.log.append(make.laid_out(make.SEGMENT, [make.base(end), make.plain()]), 1)
    assert batches(under)[-1].header.offset == make.SEGMENT


def test_the_first_segment_begins_with_a_base_too(under: make.LogUnderTest) -> None:
    with pytest.raises(InvariantViolated, match="must begin with a base"):
        under.log.append(make.laid_out(0, [make.plain()]), 1)


def test_a_batch_lies_whole_in_a_segment(under: make.LogUnderTest) -> None:
    fill_segment(under)
    end = under.log.end
    with pytest.raises(InvariantViolated, match="does not fit its segment"):
        under.log.append(make.laid_out(end, [make.plain(b"x" * 10_000)]), 1)
    assert under.log.end == end


def test_a_segment_is_never_shrunk(under: make.LogUnderTest, disk: FaultyDisk) -> None:
    for _ in range(20):
        under.append(make.plain(b"x" * 8_000))
    assert {len(disk.content(HOME / name)) for name in disk.list(HOME)} == {make.SEGMENT}


def test_one_write_per_batch(under: make.LogUnderTest, disk: FaultyDisk) -> None:
    under.append(make.plain())
    steps: list[str] = []
    disk.before = lambda operation: steps.append(operation.kind)
    under.append(*[make.plain(b"x" * 100)] * 30)
    assert steps == ["write"]


# --- reading ----------------------------------------------------------------------------------------------------


def test_messages_are_read_where_they_lie(under: make.LogUnderTest) -> None:
    end = under.append(make.plain())
    records = make.laid_out(end, [make.half(4, b"the body"), make.checked()])
    under.log.append(records, 1)
    half = records[0]
    assert isinstance(half, HalfRecord)
    assert under.log.read_message(half.offset) == half.message
    assert under.log.kind_at(half.offset) == Kind.HALF
    assert len(under.log.stored_view(half.offset)) == half.size - 16


def test_what_is_no_message_is_a_lookup_error(under: make.LogUnderTest) -> None:
    end = under.append(make.plain())
    records = make.laid_out(end, [make.checked()])
    under.log.append(records, 1)
    for offset in (records[0].offset, under.log.end, under.log.end + 800, 10**15, -1):
        with pytest.raises(LookupError):
            under.log.stored_view(offset)


def test_carried_records_copy_the_bytes_they_name(under: make.LogUnderTest) -> None:
    end = under.append(make.plain())
    records = make.laid_out(end, [make.half(4, b"the body")])
    under.log.append(records, 1)
    source = records[0]
    fill_segment(under)
    end = under.log.end
    moved = make.laid_out(
        make.SEGMENT, [make.base(end), make.copied_half(source.offset, source.size - 16, 4), make.trim(0)]
    )
    under.log.append(moved, 1)
    assert isinstance(source, HalfRecord)
    assert under.log.kind_at(moved[1].offset) == Kind.COPIED_HALF
    assert under.log.read_message(moved[1].offset) == source.message
    again = make.laid_out(under.log.end, [make.copied_half(moved[1].offset, source.size - 16, 4)])
    under.log.append(again, 1)
    assert under.log.read_message(again[0].offset) == source.message


def test_rot_is_not_copied(under: make.LogUnderTest, disk: FaultyDisk) -> None:
    end = under.append(make.plain())
    records = make.laid_out(end, [make.half(4, b"the body")])
    under.log.append(records, 1)
    at = disk.content(HOME / segment_name(0)).index(b"the body")
    disk.flip_bit(HOME / segment_name(0), at)
    before = under.log.end
    with pytest.raises(StoreDamaged, match=f"record at log offset {records[0].offset}"):
        under.append(make.copied_half(records[0].offset, records[0].size - 16, 4))
    assert under.log.end == before


# --- durable ----------------------------------------------------------------------------------------------------


def test_batches_name_the_position_that_was_durable_when_they_were_written(under: make.LogUnderTest) -> None:
    first = under.append(make.plain())
    under.append(make.plain())
    under.log.sync(first)
    under.append(make.plain())
    assert [one.header.durable_position for one in batches(under)] == [0, 0, first]


def test_a_sync_covers_every_segment_written_since(disk: FaultyDisk) -> None:
    for seed in range(20):
        lossy = FaultyDisk(seed)
        under = make.LogUnderTest(lossy, HOME).make().start()
        ends = [under.append(make.plain(b"x" * 20_000)) for _ in range(12)]
        assert under.log.sync(under.log.end) == ends[-1]
        lossy.crash()
        assert [one.header.end for one in batches(under)] == ends


def test_a_sync_of_less_is_a_sync_of_less(under: make.LogUnderTest) -> None:
    first = under.append(make.plain())
    under.append(make.plain())
    assert under.log.sync(first) == first
    assert under.log.sync(0) == first


def test_only_segments_written_since_are_synced(under: make.LogUnderTest, disk: FaultyDisk) -> None:
    for _ in range(12):
        under.append(make.plain(b"x" * 20_000))
    under.log.sync(under.log.end)
    synced: list[str] = []
    disk.before = lambda operation: synced.append(operation.path.name) if operation.kind == "sync" else None
    under.append(make.plain())
    under.log.sync(under.log.end)
    assert synced == [segment_name(under.log.end // make.SEGMENT * make.SEGMENT)]


# --- failures ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failed_write_poisons(under: make.LogUnderTest, disk: FaultyDisk, code: int) -> None:
    under.append(make.plain())
    end = under.log.end
    disk.fail("write", code)
    with pytest.raises(StorePoisoned, match="accepts no more"):
        under.append(make.plain())
    disk.heal()
    steps = disk.steps
    for attempt in (lambda: under.append(make.plain()), lambda: under.log.sync(end)):
        with pytest.raises(StorePoisoned):
            attempt()
    assert not under.log.prepare_next()
    assert disk.steps == steps, "nothing is tried again"
    assert under.log.end == end
    assert under.log.synced_position == 0
    assert under.log.failure is not None
    assert under.log.failure.errno == code


def test_a_failed_sync_poisons(under: make.LogUnderTest, disk: FaultyDisk) -> None:
    first = under.append(make.plain())
    under.log.sync(first)
    end = under.append(make.plain())
    disk.fail("sync")
    with pytest.raises(StorePoisoned):
        under.log.sync(end)
    with pytest.raises(StorePoisoned):
        under.log.sync(end)
    with pytest.raises(StorePoisoned):
        under.append(make.plain())
    assert under.log.synced_position == first
    assert under.log.kind_at(64) == Kind.BASE, "reading goes on"


def test_a_failed_directory_sync_of_a_new_segment_poisons(under: make.LogUnderTest, disk: FaultyDisk) -> None:
    fill_segment(under)
    under.log.sync(under.log.end)
    disk.fail("sync_directory")
    for _ in range(9):
        try:
            under.append(make.plain(b"x" * 8_000))
        except StorePoisoned:
            return
    pytest.fail("the failure was not seen")


# --- a full disk ------------------------------------------------------------------------------------------------


def test_the_next_segment_is_there_before_it_is_needed(under: make.LogUnderTest, disk: FaultyDisk) -> None:
    under.append(make.plain())
    assert not under.log.next_is_ready
    assert under.log.prepare_next()
    assert disk.list(HOME) == [segment_name(0), segment_name(make.SEGMENT)]
    steps: list[str] = []
    disk.before = lambda operation: steps.append(operation.kind)
    fill_segment(under)
    under.append(make.plain(b"x" * 10_000))
    assert set(steps) == {"write"}, "a roll costs nothing on the writer's thread"


def test_a_full_disk_is_known_a_segment_ahead_and_is_no_failure(under: make.LogUnderTest, disk: FaultyDisk) -> None:
    under.append(make.plain())
    disk.fill(make.SEGMENT - 1)
    assert not under.log.prepare_next()
    assert under.log.space_low
    assert under.log.failure is None
    fill_segment(under)  # the reserve: what is left of the current segment
    end = under.log.sync(under.log.end)
    with pytest.raises(StoreFull):
        under.log.reserve_roll()
    with pytest.raises(StoreFull):
        under.append(make.plain(b"x" * 10_000))
    assert under.log.end == end
    assert under.log.failure is None
    under.append(make.checked())  # what still fits is still taken
    disk.heal()
    assert under.log.prepare_next()
    assert not under.log.space_low
    assert under.append(make.plain(b"x" * 10_000)) > make.SEGMENT


def test_space_is_low_when_less_than_the_reserve_is_free(disk: FaultyDisk) -> None:
    under = make.LogUnderTest(disk, HOME).make().start(reserve_bytes=100_000)
    under.append(make.plain())
    disk.fill(make.SEGMENT + 99_999)
    assert not under.log.prepare_next()
    assert under.log.next_is_ready, "the segment is there all the same, for verdicts"
    assert under.log.space_low
    disk.heal()
    assert under.log.prepare_next()
    assert not under.log.space_low


@pytest.fixture
def small_file_system(tmp_path: Path) -> Iterator[Path]:
    """Four segments and a little of real file system."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={4 * make.SEGMENT + 8_192}", "tmpfs", str(tmp_path)],
        capture_output=True,
        check=False,
    )
    if done.returncode:
        pytest.skip("this machine does not let us mount a small file system")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def fill_file_system(under: make.LogUnderTest, refused: list[int]) -> None:
    """``refused`` gets the log's end each time it was known that space is low."""
    for _ in range(100):
        under.append(make.plain(b"x" * 8_000))
        under.log.sync(under.log.end)
        if not under.log.prepare_next():
            refused.append(under.log.end)


def test_a_really_full_file_system(small_file_system: Path) -> None:
    """Fill it, see it refused without damage, free some, go on; then recover."""
    directory = small_file_system / "log"
    under = make.LogUnderTest(RealDisk(), directory).make().start()
    refused: list[int] = []
    with pytest.raises(StoreFull):
        fill_file_system(under, refused)
    assert len(refused) > 3, "known a segment ahead"
    assert under.log.space_low
    assert under.log.failure is None
    kept = under.log.end
    under.append(make.checked())
    assert make.trim_log(under.log, make.SEGMENT) == [0]
    assert under.log.prepare_next()
    end = under.append(make.plain(b"x" * 8_000))
    assert end > kept
    under.log.sync(end)
    under.log.close()
    again = make.LogUnderTest(RealDisk(), directory).start()
    assert (again.recovery.case.letter, again.log.end) == ("L", end)


# --- trim -------------------------------------------------------------------------------------------------------


def test_trim_removes_whole_segments_oldest_first_and_each_durably(under: make.LogUnderTest, disk: FaultyDisk) -> None:
    for _ in range(20):
        under.append(make.plain(b"x" * 8_000))
    under.log.sync(under.log.end)
    steps: list[str] = []
    disk.before = lambda operation: steps.append(f"{operation.kind} {operation.path.name}")
    assert make.trim_log(under.log, 2 * make.SEGMENT + 8) == [0, make.SEGMENT]
    assert steps == [
        f"remove {segment_name(0)}", "sync_directory log", f"remove {segment_name(make.SEGMENT)}", "sync_directory log",
    ]  # fmt: skip
    assert under.log.start == 2 * make.SEGMENT
    with pytest.raises(LookupError):
        under.log.stored_view(64)


def test_what_was_read_last_is_not_found_any_more_once_it_is_trimmed(under: make.LogUnderTest) -> None:
    for _ in range(20):
        under.append(make.plain(b"x" * 8_000))
    under.log.sync(under.log.end)
    first = BATCH_HEADER_BYTES + make.laid_out(0, [make.base(0)])[0].size
    assert under.log.kind_at(64) == Kind.BASE
    assert len(under.log.stored_view(first)) > 8_000
    make.trim_log(under.log, make.SEGMENT)
    for look in (under.log.stored_view, under.log.kind_at, under.log.first_offset):
        with pytest.raises(LookupError):
            look(first)


def test_bytes_from_a_place_on_end_with_the_segment_and_the_log(under: make.LogUnderTest) -> None:
    for _ in range(20):
        under.append(make.plain(b"x" * 8_000))
    under.log.sync(under.log.end)
    assert len(under.log.read_at(64, 10)) == 10
    assert len(under.log.read_at(make.SEGMENT - 5, 100)) == 5
    assert len(under.log.read_at(under.log.end - 7, 100)) == 7
    for offset in (-1, under.log.end):
        with pytest.raises(LookupError):
            under.log.read_at(offset, 1)
    make.trim_log(under.log, make.SEGMENT)
    with pytest.raises(BeforeLogStart):
        under.log.read_at(64, 1)


def test_a_record_that_came_after_the_last_read_is_read_anew(under: make.LogUnderTest) -> None:
    """What is kept of a read ends with the log: behind that were zeros then."""
    ends = [under.append(make.plain(b"a" * 100)), under.append(make.plain(b"b" * 100))]
    assert b"b" * 100 in bytes(under.log.stored_view(ends[0] + BATCH_HEADER_BYTES, 1 << 18))
    under.append(make.plain(b"c" * 100))
    assert b"c" * 100 in bytes(under.log.stored_view(ends[1] + BATCH_HEADER_BYTES))


def test_bytes_that_claim_to_be_a_huge_record_are_not_read(under: make.LogUnderTest, disk: FaultyDisk) -> None:
    """An offset that a peer made up may point into a body that looks like one."""
    claimed = bytes([Kind.MESSAGE, 0, 0, 0]) + (1 << 30).to_bytes(4, "big")
    under.append(make.plain(claimed * 20))
    body_at = disk.content(under.log._directory / segment_name(0)).index(claimed)
    with pytest.raises(LookupError, match="no message"):
        under.log.stored_view(body_at)


def test_trim_never_removes_what_is_not_durable(under: make.LogUnderTest) -> None:
    for _ in range(20):
        under.append(make.plain(b"x" * 8_000))
    assert make.trim_log(under.log, 2 * make.SEGMENT) == []


def test_a_view_survives_a_trim(under: make.LogUnderTest) -> None:
    under.append(make.half(0, b"the body"))
    base = make.laid_out(0, [make.base(0)])[0]
    view = under.log.stored_view(base.offset + base.size)
    for _ in range(20):
        under.append(make.plain(b"x" * 8_000))
    under.log.sync(under.log.end)
    make.trim_log(under.log, make.SEGMENT)
    assert b"the body" in bytes(view)


def test_a_trimmed_log_recovers_from_the_base_of_its_oldest_segment(under: make.LogUnderTest, disk: FaultyDisk) -> None:
    for _ in range(20):
        under.append(make.plain(b"x" * 8_000))
    under.append(make.trim(make.SEGMENT))
    under.log.sync(under.log.end)
    make.trim_log(under.log, make.SEGMENT)
    disk.crash()
    again = make.LogUnderTest(disk, HOME).start()
    assert (again.recovery.case.letter, again.recovery.redo_from) == ("L", make.SEGMENT)


def test_the_names_in_a_verdict_are_read_from_its_record_and_from_no_other(under: make.LogUnderTest) -> None:
    under.append(make.plain())
    makes = (make.half(0, tx_id="T1"), make.rolled_back(0, tx_id="T1"), make.rolled_back(1, tx_id="T2"))
    start = under.log.end
    under.append(*makes)
    half, first, second = make.laid_out(start, makes)
    assert under.log.verdict_names(first.offset) == (make.GROUP, "T1")
    assert under.log.verdict_names(second.offset) == (make.GROUP, "T2")
    assert (under.log.verdict(first.offset), under.log.verdict(second.offset)) == (first, second)
    for nowhere in (half.offset, -1, under.log.end, 1 << 40, first.offset + 8):
        with pytest.raises(LookupError):
            under.log.verdict_names(nowhere)


def test_who_stands_behind_a_verdict_is_found_from_the_verdict(under: make.LogUnderTest) -> None:
    under.append(make.plain())
    acted = make.operator_acted(2, "T2", "ada", "ticket 4711")
    makes = (make.half(0, tx_id="T1"), make.rolled_back(0, tx_id="T1"), acted, make.rolled_back(1, tx_id="T2"))
    start = under.log.end
    under.append(*makes)
    half, first, who, second = make.laid_out(start, makes)
    assert under.log.operator_of(second.offset) == who
    assert [under.log.operator_of(record.offset) for record in (half, first, who)] == [None, None, None]
    for nowhere in (-1, under.log.end, 1 << 40):
        with pytest.raises(LookupError):
            under.log.operator_of(nowhere)


def test_few_segments_are_open_between_checkpoints_at_memory(
    under: make.LogUnderTest, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else syncs there. What is closed is durable, and a sync of many segments opens few."""
    monkeypatch.setattr(segment, "OPEN_SEGMENTS_MAX", 4)
    for _ in range(20):
        under.append(make.plain(b"x" * 40_000))
        under.log.prepare_next()
        assert len(under.files.opened) <= 6
    closed = [number for number in under.files.numbers() if number not in under.files.opened]
    assert len(closed) > 10
    assert under.log.synced_position >= (closed[-1] + 1) * make.SEGMENT
    end = under.log.end
    disk.crash(keep=0.0)
    again = make.LogUnderTest(disk, under.directory).start()
    assert again.log.end >= (closed[-1] + 1) * make.SEGMENT
    assert end >= again.log.end


def test_a_sync_of_many_segments_leaves_few_open(under: make.LogUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(20):
        under.append(make.plain(b"x" * 40_000))
    monkeypatch.setattr(segment, "OPEN_SEGMENTS_MAX", 4)
    under.log.sync(under.log.end)
    assert len(under.files.opened) <= 5


def test_a_sync_that_fails_there_poisons_the_log(
    under: make.LogUnderTest, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "OPEN_SEGMENTS_MAX", 4)
    disk.fail("sync", path_ends=segment_name(0))
    with pytest.raises(StorePoisoned):
        [under.append(make.plain(b"x" * 40_000)) for _ in range(60)]
    with pytest.raises(StorePoisoned):
        under.append(make.plain(b"x"))


def test_readers_of_old_segments_leave_few_open(under: make.LogUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that goes through the whole log causes neither a sync nor a roll, which close them else."""
    for _ in range(20):
        under.append(make.plain(b"x" * 40_000))
    monkeypatch.setattr(segment, "OPEN_SEGMENTS_MAX", 4)
    under.log.sync(under.log.end)
    with monkeypatch.context() as patch:
        patch.setattr(segment, "OPEN_SEGMENTS_MAX", 100)
        plain = [found.header.offset for found in batches(under)]
    under.files.close_old(under.log.end)
    assert len(plain) >= 20
    for offset in plain * 2:
        under.log.kind_at(offset + 64)
        assert len(under.files.opened) <= 5


@pytest.mark.parametrize("body", [b"x", b"x" * 9_000])
def test_properties_are_read_without_the_body(
    under: make.LogUnderTest, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    makers = (make.half(body=body), make.half_batch(count=3, HMQ_COMMENT="ask"), make.checked())
    half, batch, other = records = make.laid_out(under.append(make.plain()), makers)
    under.log.append(records, 1)
    read, sizes = segment.Segment.read, list[int]()
    monkeypatch.setattr(segment.Segment, "read", lambda one, place, size: sizes.append(size) or read(one, place, size))
    assert under.log.properties_at(half.offset) == half.properties
    assert sum(sizes) < 4_500
    assert under.log.properties_at(batch.offset) == b"UNIQ_KEY\x01q1:7:r1-5-0\x02HMQ_COMMENT\x01ask\x02"
    for none in (other.offset, under.log.end, under.log.end + 1_000):
        with pytest.raises(LookupError):
            under.log.properties_at(none)


@pytest.mark.parametrize("wrong", [b"\x7f\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\6"])
def test_lengths_that_contradict_each_other_are_damage(under: make.LogUnderTest, wrong: bytes) -> None:
    records = make.laid_out(under.append(make.plain()), [make.half(body=b"\xff" * 5)])
    under.log.append(records, 1)
    data = bytearray(under.log.read_at(records[0].offset, records[0].size))
    at = records[0].size - len(under.log.stored_view(records[0].offset)) + 84
    data[at : at + 4] = wrong
    under.log._window = (memoryview(bytes(data)), records[0].offset)
    with pytest.raises(StoreDamaged):
        under.log.properties_at(records[0].offset)
