"""What the end of a log means: torn at every byte of a batch, and damage on either side of the durable line."""

from pathlib import Path

import pytest
from tests.support import log_records as make
from tests.support.faulty_disk import FaultyDisk

from halfmq.errors import StoreDamaged
from halfmq.model.records import BATCH_ALIGNMENT
from halfmq.store import segment as segment_module
from halfmq.store.batch_codec import decode_batch, encode_batch
from halfmq.store.log_scan import Batch, CorruptInterior, EndOfLog, LogScan, Scanned, TornTail
from halfmq.store.segment import SegmentFiles, segment_name

HOME = Path("/store/log")


def written_log(disk: FaultyDisk) -> make.LogUnderTest:
    return make.LogUnderTest(disk, HOME).make().start()


def scanned(disk: FaultyDisk, start: int = 0, durable: int = 0) -> tuple[list[int], Scanned]:
    """(ends of the whole batches, how it ended)."""
    found = list(LogScan(SegmentFiles(disk, HOME, make.SEGMENT)).from_batch(start, durable))
    assert all(isinstance(one, Batch) for one in found[:-1])
    return [one.header.end for one in found[:-1] if isinstance(one, Batch)], found[-1]


def seg(number: int) -> Path:
    return HOME / segment_name(number * make.SEGMENT)


def poke(disk: FaultyDisk, at: int, data: bytes) -> None:
    """Overwrite the log at a log offset."""
    number, place = divmod(at, make.SEGMENT)
    content = bytearray(disk.content(seg(number)))
    content[place : place + len(data)] = data
    disk.put(seg(number), bytes(content))


def peek(disk: FaultyDisk, start: int, end: int) -> bytes:
    number, place = divmod(start, make.SEGMENT)
    return disk.content(seg(number))[place : place + end - start]


def filled_to(under: make.LogUnderTest, end: int) -> int:
    """Append a batch that ends exactly at log offset ``end``; before it a small one, where a segment begins."""
    if under.log.end % make.SEGMENT == 0:
        under.append(make.plain())
    start = under.log.end
    space = end - start
    fillers = (make.group_set(filler=b"x" * length) for length in range(space - 120, space))
    full = next(one for one in fillers if make.end_of(make.laid_out(start, [one])) == end)
    assert under.append(full) == end
    return end


def batch_at(start: int, *makes: make.Make, epoch: int = 1, durable: int = 0) -> bytes:
    def no_copy(source: int) -> tuple[bytes, bytes, bytes]:
        raise AssertionError(source)

    records = make.laid_out(start, makes)
    return encode_batch(records, broker_time_ms=1, epoch=epoch, durable_position=durable, copy=no_copy)


def test_an_empty_segment_is_the_end_of_the_log() -> None:
    disk = FaultyDisk()
    written_log(disk)
    assert scanned(disk) == ([], EndOfLog(0, 0))


def test_whole_batches_then_zeros() -> None:
    disk = FaultyDisk()
    under = written_log(disk)
    ends = [under.append(make.plain()) for _ in range(5)]
    assert scanned(disk) == (ends, EndOfLog(ends[-1], 1))


def test_a_batch_that_is_written_while_the_log_is_gone_through_is_seen() -> None:
    """What was read ahead may be older than what a broker has written since."""
    disk = FaultyDisk()
    under = written_log(disk)
    ends = [under.append(make.plain(b"x")), under.append(make.plain(b"y"))]
    going = LogScan(SegmentFiles(disk, HOME, make.SEGMENT)).from_batch(0, 0)
    seen = [next(going), next(going)]
    ends.append(under.append(make.plain(b"z")))
    seen += list(going)
    assert [one.header.end for one in seen if isinstance(one, Batch)][-2:] == ends[-2:]


def test_a_scan_starts_at_any_batch() -> None:
    disk = FaultyDisk()
    under = written_log(disk)
    ends = [under.append(make.plain()) for _ in range(5)]
    assert scanned(disk, ends[2]) == (ends[3:], EndOfLog(ends[-1], 1))
    assert scanned(disk, ends[4]) == ([], EndOfLog(ends[-1], 0))


def test_the_log_goes_on_in_the_next_segment_where_its_base_says() -> None:
    disk = FaultyDisk()
    under = written_log(disk)
    ends = [under.append(make.plain(b"x" * 20_000)) for _ in range(8)]
    assert ends[-1] > 2 * make.SEGMENT
    assert scanned(disk) == (ends, EndOfLog(ends[-1], 1))
    assert scanned(disk, ends[2])[0] == ends[3:]


def test_a_segment_that_is_full_to_its_last_byte() -> None:
    disk = FaultyDisk()
    under = written_log(disk)
    first = under.append(make.plain())
    ends = [first, filled_to(under, make.SEGMENT)]
    assert ends[-1] == make.SEGMENT
    assert scanned(disk) == (ends, EndOfLog(make.SEGMENT, 1))
    ends.append(under.append(make.plain()))
    assert scanned(disk) == (ends, EndOfLog(ends[-1], 1))
    assert scanned(disk, make.SEGMENT) == (ends[2:], EndOfLog(ends[-1], 1))


def test_a_last_batch_torn_at_any_byte_is_a_torn_tail() -> None:
    disk = FaultyDisk()
    under = written_log(disk)
    start = under.append(make.plain(), make.checked())
    end = under.append(make.half(1, b"body" * 9), make.committed(make.ref()), make.plain(b"x"))
    whole = peek(disk, start, end)
    length = len(whole.rstrip(b"\0"))
    for kept in range(length):
        poke(disk, start, whole[:kept] + bytes(len(whole) - kept))
        ends, last = scanned(disk)
        assert ends == [start]
        if any(whole[:kept]):
            assert isinstance(last, TornTail), kept
            assert (last.cut_at, last.epoch, last.whole_batches) == (start, 1, 0)
        else:
            assert last == EndOfLog(start, 1)
    for kept in range(1, length):  # the front is missing instead
        poke(disk, start, bytes(kept) + whole[kept:])
        assert isinstance(scanned(disk)[1], TornTail), kept


def test_any_damaged_byte_of_the_last_batch_is_a_torn_tail() -> None:
    disk = FaultyDisk()
    under = written_log(disk)
    start = under.append(make.plain(), make.checked())
    under.append(make.half(1, b"body" * 9), make.committed(make.ref()))
    end = under.log.end
    for at in range(start, start + len(peek(disk, start, end).rstrip(b"\0"))):
        number, place = divmod(at, make.SEGMENT)
        disk.flip_bit(seg(number), place, at % 8)
        last = scanned(disk)[1]
        assert isinstance(last, TornTail), at
        assert last.cut_at == start
        disk.flip_bit(seg(number), place, at % 8)


@pytest.mark.parametrize("synced_after", range(7))
@pytest.mark.parametrize("damaged", range(6))
def test_damage_below_the_durable_line_is_corrupt_and_above_it_torn(synced_after: int, damaged: int) -> None:
    """Six batches; after ``synced_after`` of them comes a sync, which only the batches behind it can tell of."""
    disk = FaultyDisk()
    under = written_log(disk)
    starts = []
    for number in range(6):
        if number == synced_after:
            under.log.sync(under.log.end)
        starts.append(under.log.end)
        under.append(make.plain(b"x" * 50))
    tell_of_it = set(range(synced_after, 6)) - {damaged}
    line = starts[synced_after] if tell_of_it else 0
    disk.flip_bit(seg(0), starts[damaged] + 100)
    ends, last = scanned(disk)
    assert ends == starts[1 : damaged + 1]
    if starts[damaged] < line:
        assert isinstance(last, CorruptInterior)
        assert (last.at, last.file, last.durable_position) == (starts[damaged], seg(0), line)
    else:
        assert isinstance(last, TornTail)
        assert (last.cut_at, last.whole_batches) == (starts[damaged], 5 - damaged)


def test_the_durable_line_is_seen_behind_the_damage_only() -> None:
    """The only batch that names the line lies behind the damage, in a later segment, behind more damage."""
    disk = FaultyDisk()
    under = written_log(disk)
    first = under.append(make.plain())
    second = under.append(make.plain(b"x" * 30_000))
    under.append(make.plain(b"x" * 30_000))
    under.append(make.plain(b"y" * 30_000))
    under.log.sync(second)
    last_start = under.log.end
    under.append(make.plain())
    assert last_start > make.SEGMENT
    disk.flip_bit(seg(0), first + 80)
    disk.flip_bit(seg(1), 90)
    ends, last = scanned(disk)
    assert ends == [first]
    assert last == CorruptInterior(first, seg(0), "the checksum of the batch is wrong", second)


def test_whole_batches_behind_a_torn_one_are_torn_tail_too() -> None:
    disk = FaultyDisk()
    under = written_log(disk)
    ends = [under.append(make.plain(b"x" * 9_000)) for _ in range(12)]
    poke(disk, ends[3], bytes(512))
    found, last = scanned(disk)
    assert found == ends[:4]
    assert isinstance(last, TornTail)
    assert (last.cut_at, last.whole_batches) == (ends[3], 7)


def test_a_checkpoint_draws_the_line_too() -> None:
    disk = FaultyDisk()
    under = written_log(disk)
    ends = [under.append(make.plain()) for _ in range(4)]
    disk.flip_bit(seg(0), ends[1] + 70)
    assert isinstance(scanned(disk, 0, durable=ends[1])[1], TornTail)
    last = scanned(disk, 0, durable=ends[2])[1]
    assert isinstance(last, CorruptInterior)
    assert last.durable_position == ends[2]


def test_a_log_that_ends_before_it_was_durable_is_corrupt_though_nothing_is_torn() -> None:
    disk = FaultyDisk()
    under = written_log(disk)
    ends = [under.append(make.plain()) for _ in range(4)]
    poke(disk, ends[1], bytes(ends[3] - ends[1]))
    assert scanned(disk) == (ends[:2], EndOfLog(ends[1], 1))
    assert scanned(disk, 0, durable=ends[2]) == (
        ends[:2],
        CorruptInterior(ends[1], seg(0), "the log ends in zeros here", ends[2]),
    )


def test_a_missing_segment_between_durable_ones_is_corrupt() -> None:
    disk = FaultyDisk()
    under = written_log(disk)
    ends = []
    for _ in range(8):
        ends.append(under.append(make.plain(b"x" * 20_000)))
        under.log.sync(under.log.end)
    disk.remove(seg(1))
    found, last = scanned(disk)
    in_first = [end for end in ends if end <= make.SEGMENT]
    assert found == in_first
    assert isinstance(last, CorruptInterior)
    assert (last.at, last.file, last.why) == (make.SEGMENT, seg(1), "the segment is missing")


def test_a_missing_segment_that_was_never_durable_is_torn_tail() -> None:
    disk = FaultyDisk()
    under = written_log(disk)
    ends = [under.append(make.plain(b"x" * 20_000)) for _ in range(8)]
    disk.remove(seg(1))
    last = scanned(disk)[1]
    assert isinstance(last, TornTail)
    assert last.cut_at == max(end for end in ends if end <= make.SEGMENT)
    assert last.whole_batches > 0


def test_a_base_that_knows_of_more_before_it_shows_that_something_is_missing() -> None:
    disk = FaultyDisk()
    under = written_log(disk)
    ends = [under.append(make.plain(b"x" * 20_000)) for _ in range(4)]
    assert ends[3] > make.SEGMENT
    poke(disk, ends[1], bytes(ends[2] - ends[1]))
    found, last = scanned(disk)
    assert found == ends[:2]
    assert isinstance(last, TornTail)
    assert last.cut_at == ends[1]
    assert f"ended at {ends[2]}, not {ends[1]}" in last.why


def test_a_segment_that_begins_without_a_base_is_not_taken() -> None:
    disk = FaultyDisk()
    under = written_log(disk)
    ends = [under.append(make.plain(b"x" * 20_000)) for _ in range(4)]
    batch = make.laid_out(make.SEGMENT, [make.plain()])
    poke(disk, make.SEGMENT, bytes(make.SEGMENT))
    data = encode_batch(batch, broker_time_ms=1, epoch=1, durable_position=0, copy=under.log.copy_of)
    poke(disk, make.SEGMENT, data)
    last = scanned(disk)[1]
    assert isinstance(last, TornTail)
    assert last.cut_at == ends[2]
    assert last.why == f"at {make.SEGMENT}: the first batch of the segment has no base record"


def test_a_batch_of_an_earlier_epoch_does_not_continue_the_log() -> None:
    disk = FaultyDisk()
    under = written_log(disk)
    under.log.epoch = 7
    first = under.append(make.plain())
    under.log.epoch = 6
    under.append(make.plain())
    found, last = scanned(disk)
    assert found == [first]
    assert last == TornTail(first, 7, f"at {first}: the batch at {first} is of epoch 6, the one before of 7", 1)


def test_a_segment_of_an_earlier_epoch_does_not_continue_the_log() -> None:
    """The log leaves the segment before its end, so that zeros lie between the two batches."""
    disk = FaultyDisk()
    under = written_log(disk)
    under.log.epoch = 7
    ends = [under.append(make.plain(b"x" * 40_000))]
    under.log.epoch = 6
    under.append(make.plain(b"x" * 40_000))
    why = f"the batch at {make.SEGMENT} is of epoch 6, the one before of 7"
    assert scanned(disk) == (ends, TornTail(ends[0], 7, f"at {make.SEGMENT}: {why}", 1))


def test_epochs_of_what_is_cut_count() -> None:
    disk = FaultyDisk()
    under = written_log(disk)
    first = under.append(make.plain())
    under.append(make.plain())
    under.log.epoch = 9
    under.append(make.plain())
    disk.flip_bit(seg(0), first + 70)
    last = scanned(disk)[1]
    assert isinstance(last, TornTail)
    assert last.epoch == 9


def test_garbage_behind_the_end_is_torn_tail() -> None:
    disk = FaultyDisk()
    under = written_log(disk)
    end = under.append(make.plain())
    poke(disk, make.SEGMENT - 1, b"\x01")
    last = scanned(disk)[1]
    assert isinstance(last, TornTail)
    assert last.cut_at == end


def test_magic_in_garbage_does_no_harm() -> None:
    disk = FaultyDisk()
    under = written_log(disk)
    end = under.append(make.plain())
    poke(disk, end, b"HMQB" * 500)
    last = scanned(disk)[1]
    assert isinstance(last, TornTail)
    assert last.cut_at == end


def test_a_checkpoint_belongs_to_the_log_where_a_whole_batch_ends() -> None:
    disk = FaultyDisk()
    under = written_log(disk)
    ends = [under.append(make.plain(b"HMQB" * 5_000)) for _ in range(7)]
    scan = LogScan(SegmentFiles(disk, HOME, make.SEGMENT))
    assert all(scan.batch_ends_at(end) for end in (0, *ends))
    assert not scan.batch_ends_at(ends[0] + 8)
    assert not scan.batch_ends_at(ends[-1] + 8)
    assert not scan.batch_ends_at(10 * make.SEGMENT)
    full = filled_to(under, make.SEGMENT * (ends[-1] // make.SEGMENT + 1))
    assert LogScan(under.files).batch_ends_at(full), "also where it ends with its segment"
    disk.flip_bit(seg(0), ends[0] - 40)
    assert not LogScan(SegmentFiles(disk, HOME, make.SEGMENT)).batch_ends_at(ends[0])


@pytest.mark.parametrize("durable", [0, 1 << 40])
def test_few_segments_are_open_however_many_lie_behind_the_damage(
    durable: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes two descriptors, and a process has about a thousand: a large damaged log must be refused by name."""
    disk = FaultyDisk()
    under = written_log(disk)
    ends = [under.append(make.plain(b"x" * 40_000)) for _ in range(20)]
    poke(disk, ends[1] - 10, b"\xff\xff")
    monkeypatch.setattr(segment_module, "OPEN_SEGMENTS_MAX", 4)
    files = SegmentFiles(disk, HOME, make.SEGMENT)
    *_, last = LogScan(files).from_batch(0, durable)
    assert isinstance(last, CorruptInterior if durable else TornTail)
    assert len(files.numbers()) > 15
    assert len(files.opened) <= 6


def test_no_epoch_is_seen_where_the_first_batch_is_torn() -> None:
    disk = FaultyDisk()
    written_log(disk).append(make.plain())
    disk.flip_bit(seg(0), 100)
    assert scanned(disk) == ([], TornTail(0, 0, "at 0: the checksum of the batch is wrong", 0))


def test_a_full_segment_goes_on_only_where_the_next_base_says_so() -> None:
    disk = FaultyDisk()
    under = written_log(disk)
    ends = [under.append(make.plain()), filled_to(under, make.SEGMENT)]
    under.log.prepare_next()
    for opening, why in (
        (
            (make.base(ends[0]),),
            f"the base of the segment says the log before it ended at {ends[0]}, not {make.SEGMENT}",
        ),
        ((make.plain(),), "the first batch of the segment has no base record"),
    ):
        poke(disk, make.SEGMENT, batch_at(make.SEGMENT, *opening))
        assert scanned(disk) == (ends, TornTail(make.SEGMENT, 1, f"at {make.SEGMENT}: {why}", 1))
    poke(disk, make.SEGMENT, batch_at(make.SEGMENT, make.base(make.SEGMENT)))
    assert scanned(disk)[0][:2] == ends
    assert len(scanned(disk)[0]) == 3, "the same bytes are the log's next batch when their base fits"


def test_a_scan_begins_only_where_a_segment_has_its_base() -> None:
    """What a trimmed log begins with: its base may say any end, but there must be one."""
    disk = FaultyDisk()
    under = written_log(disk)
    filled_to(under, make.SEGMENT)
    under.log.prepare_next()
    poke(disk, make.SEGMENT, batch_at(make.SEGMENT, make.base(4_096)))
    assert len(scanned(disk, make.SEGMENT)[0]) == 1
    poke(disk, make.SEGMENT, batch_at(make.SEGMENT, make.plain()))
    last = scanned(disk, make.SEGMENT)[1]
    why = f"at {make.SEGMENT}: the first batch of the segment has no base record"
    assert last == TornTail(make.SEGMENT, 1, why, 1)


def test_a_blank_segment_behind_a_full_one_is_damaged_when_more_was_durable() -> None:
    disk = FaultyDisk()
    under = written_log(disk)
    ends = [under.append(make.plain()), filled_to(under, make.SEGMENT)]
    under.log.prepare_next()
    assert scanned(disk, 0, durable=make.SEGMENT) == (ends, EndOfLog(make.SEGMENT, 1))
    refused = CorruptInterior(make.SEGMENT, seg(1), "no batch begins here", make.SEGMENT + 8)
    assert scanned(disk, 0, durable=make.SEGMENT + 8) == (ends, refused)


def test_a_scan_that_begins_in_a_missing_segment_names_it() -> None:
    disk = FaultyDisk()
    under = written_log(disk)
    ends = [under.append(make.plain(b"x" * 20_000)) for _ in range(8)]
    start = next(end for end in ends if end > make.SEGMENT)
    disk.remove(seg(1))
    assert scanned(disk, start, durable=ends[-1]) == (
        [],
        CorruptInterior(start, seg(1), "the segment is missing", ends[-1]),
    )


def test_a_batch_inside_a_whole_batch_is_not_counted_and_one_behind_unaligned_magic_is() -> None:
    """Behind the damage: a body that holds a batch with its own right offset, magic between the places where batches
    may begin, a whole batch at such a place, and then a whole batch of the log, which alone knows what was durable."""
    disk = FaultyDisk()
    under = written_log(disk)
    first = under.append(make.plain())
    outer = under.append(make.plain())
    shell = batch_at(outer, make.plain(b"x" * 2_000))
    body_from = outer + shell.find(b"x" * 2_000)
    inner_from = -(-body_from // BATCH_ALIGNMENT) * BATCH_ALIGNMENT
    inner = batch_at(inner_from, make.plain(), epoch=40)
    body = b"x" * (inner_from - body_from) + inner
    garbage = under.append(make.plain(body + b"x" * (2_000 - len(body))))
    unaligned = batch_at(garbage + 12, make.plain(), epoch=50)
    poke(disk, garbage, b"xHMQB" + bytes(7) + unaligned)
    last_from = -(-(garbage + 12 + len(unaligned)) // BATCH_ALIGNMENT) * BATCH_ALIGNMENT
    poke(disk, last_from, batch_at(last_from, make.plain(), epoch=2))
    disk.flip_bit(seg(0), first + 80)
    what = f"at {first}: the checksum of the batch is wrong"
    assert scanned(disk) == ([first], TornTail(first, 2, what, 2))
    poke(disk, last_from, batch_at(last_from, make.plain(), epoch=2, durable=outer))
    assert isinstance(scanned(disk)[1], CorruptInterior)


def log_in_many_segments(disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], SegmentFiles]:
    """Ends of 20 batches, one in each segment, to be read with few segments open."""
    monkeypatch.setattr(segment_module, "OPEN_SEGMENTS_MAX", 4)
    under = written_log(disk)
    ends = [under.append(make.plain(b"x" * 40_000)) for _ in range(20)]
    return ends, SegmentFiles(disk, HOME, make.SEGMENT)


def test_few_segments_are_open_while_a_whole_log_is_scanned_and_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FaultyDisk()
    ends, files = log_in_many_segments(disk, monkeypatch)
    seen = 0
    for _ in LogScan(files).from_batch(0, 0):
        assert len(files.opened) <= 6
        seen += 1
    assert seen == len(ends) + 1
    files.close()
    rolls = {end: -(-end // make.SEGMENT) * make.SEGMENT for end in ends[:-1]}
    assert [batch.header.end for batch in LogScan(files).again(0, ends[-1], rolls)] == ends
    assert len(files.opened) <= 6


def test_few_segments_are_open_while_blank_ones_behind_the_damage_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FaultyDisk()
    ends, files = log_in_many_segments(disk, monkeypatch)
    for number in range(1, 20):
        disk.put(seg(number), bytes(make.SEGMENT))
    *_, last = LogScan(files).from_batch(0, ends[1])
    assert last == CorruptInterior(ends[0], seg(0), "the log ends in zeros here", ends[1])
    assert len(files.opened) <= 6


def read_again(disk: FaultyDisk, start: int, end: int, rolls: dict[int, int]) -> list[int]:
    scan = LogScan(SegmentFiles(disk, HOME, make.SEGMENT))
    return [batch.header.end for batch in scan.again(start, end, rolls)]


def test_a_redo_goes_on_in_the_next_segment_also_from_its_first_batch_on() -> None:
    disk = FaultyDisk()
    under = written_log(disk)
    ends = [under.append(make.plain(b"x" * 20_000)) for _ in range(5)]
    rolls = {ends[2]: make.SEGMENT}
    assert ends[2] < make.SEGMENT < ends[3]
    assert read_again(disk, 0, ends[4], rolls) == ends
    assert read_again(disk, ends[0], ends[3], rolls) == ends[1:4]
    assert read_again(disk, ends[2], ends[4], rolls) == ends[3:], "the snapshot was taken just before the roll"
    assert read_again(disk, ends[4], ends[4], rolls) == []


def test_a_log_that_changes_between_examination_and_redo_is_refused_by_name() -> None:
    disk = FaultyDisk()
    under = written_log(disk)
    ends = [under.append(make.plain(b"x" * 20_000)) for _ in range(5)]
    rolls = {ends[2]: make.SEGMENT}

    def refused() -> str:
        with pytest.raises(StoreDamaged) as caught:
            read_again(disk, 0, ends[4], rolls)
        return str(caught.value)

    hint = "(another process must not touch a store; check the disk)"
    poke(disk, ends[3], b"none")
    assert refused() == f"{seg(1)} changed while it was read, at log offset {ends[3]} {hint}"
    disk.remove(seg(1))
    assert refused() == f"{seg(1)} changed while it was read, at log offset {make.SEGMENT} {hint}"


def test_a_single_byte_at_the_very_beginning_of_a_segment_is_seen() -> None:
    disk = FaultyDisk()
    written_log(disk)
    disk.open(seg(1), create=True).allocate(make.SEGMENT)
    scan = LogScan(SegmentFiles(disk, HOME, make.SEGMENT))
    assert (scan.is_blank(0), scan.is_blank(1)) == (True, True)
    poke(disk, make.SEGMENT, b"\x01")
    scan = LogScan(SegmentFiles(disk, HOME, make.SEGMENT))
    assert (scan.is_blank(0), scan.is_blank(1)) == (True, False)


def test_a_segment_is_whole_at_exactly_its_size() -> None:
    disk = FaultyDisk()
    written_log(disk)
    disk.open(seg(1), create=True).allocate(make.SEGMENT - 1)
    scan = LogScan(SegmentFiles(disk, HOME, make.SEGMENT))
    assert [scan.is_whole(number) for number in range(3)] == [True, False, False]


def test_the_records_of_every_batch_are_read_at_the_place_that_the_scan_says() -> None:
    disk = FaultyDisk()
    under = written_log(disk)
    for _ in range(5):
        under.append(make.plain(b"x" * 20_000))
    kinds = [
        [type(record).__name__ for record in decode_batch(one.view, one.place, one.header)]
        for one in LogScan(under.files).from_batch(0, 0)
        if isinstance(one, Batch)
    ]
    first, other = ["Base", "MessageRecord"], ["MessageRecord"]
    assert kinds == [first, other, other, first, other]


def test_a_checkpoint_at_the_beginning_belongs_to_every_log() -> None:
    disk = FaultyDisk()
    written_log(disk).append(make.plain())
    disk.flip_bit(seg(0), 100)
    assert LogScan(SegmentFiles(disk, HOME, make.SEGMENT)).batch_ends_at(0)


def test_whole_batches_behind_are_counted_in_every_piece_of_every_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked at piece by piece begins, in a later segment too, behind the last batch that was found."""
    monkeypatch.setattr(segment_module, "_CHUNK", 4_096)
    monkeypatch.setattr(segment_module, "_ZEROS", bytes(4_096))
    disk = FaultyDisk()
    under = written_log(disk)
    ends = [under.append(make.plain(b"x" * 6_000)) for _ in range(20)]
    assert ends[-1] > make.SEGMENT + 40_000
    poke(disk, ends[1] - 10, b"\xff\xff")
    *_, last = scanned(disk)
    assert isinstance(last, TornTail)
    assert last.whole_batches == 18
