"""Each lettered case on a disk, made as it comes about; what is refused changes nothing; what is cut is zero and synced."""

from pathlib import Path

import pytest
from tests.support import log_records as make
from tests.support.faulty_disk import FaultyDisk, Operation, PowerLost

from halfmq.errors import StoreDamaged, StoreFull
from halfmq.store import recovery
from halfmq.store import segment as segment_module
from halfmq.store.log_scan import Batch, LogScan
from halfmq.store.recovery import CUT, CheckpointFound, examine_log, repair
from halfmq.store.recovery_cases import Act
from halfmq.store.segment import SegmentFiles, segment_name

HOME = Path("/store/log")


class Store:
    """A log, and what a start finds of it."""

    def __init__(self) -> None:
        self.disk = FaultyDisk()
        self.under = make.LogUnderTest(self.disk, HOME).make().start()
        self.ends: list[int] = []

    def write(self, count: int, *, sync: bool = True, body_bytes: int = 50) -> "Store":
        for _ in range(count):
            self.ends.append(self.under.append(make.plain(b"x" * body_bytes)))
            if sync:
                self.under.log.sync(self.under.log.end)
        return self

    def fill_up(self) -> "Store":
        """A batch that ends exactly with the segment."""
        start = self.under.log.end
        space = -start % make.SEGMENT
        fillers = (make.group_set(filler=b"x" * length) for length in range(space - 120, space))
        full = next(one for one in fillers if make.end_of(make.laid_out(start, [one])) == start + space)
        self.ends.append(self.under.append(full))
        self.under.log.sync(self.under.log.end)
        return self

    def files(self) -> SegmentFiles:
        return SegmentFiles(self.disk, HOME, make.SEGMENT)

    def settled(self, *checkpoints: CheckpointFound, published: int = 0) -> list[Operation]:
        """Recover once, and tell every operation of it."""
        done: list[Operation] = []
        files = self.files()
        found = examine_log(files, checkpoints, published)
        self.disk.before = done.append
        repair(self.disk, files, found)
        self.disk.before = None
        return done

    def starts(self, *checkpoints: CheckpointFound) -> tuple[str, int, int]:
        """(letter, redo from, end)."""
        found = examine_log(self.files(), checkpoints)
        return found.case.letter, found.redo_from, found.end

    def refused(self, *checkpoints: CheckpointFound) -> str:
        before = self.disk.image()
        steps = self.disk.steps
        with pytest.raises(StoreDamaged) as caught:
            examine_log(self.files(), checkpoints)
        assert self.disk.image() == before
        assert self.disk.steps == steps, "nothing may be touched"
        assert "nothing was changed" in str(caught.value)
        return str(caught.value)

    def flip(self, at: int) -> None:
        number, place = divmod(at, make.SEGMENT)
        self.disk.flip_bit(self.seg(number), place)

    @staticmethod
    def seg(number: int) -> Path:
        return HOME / segment_name(number * make.SEGMENT)

    def whole_batches(self, start: int = 0) -> list[int]:
        found = LogScan(self.files()).from_batch(start, 0)
        return [one.header.end for one in found if isinstance(one, Batch)]


#: What each refusal ends with.
REMEDY = "(nothing was changed; restore the named file from a backup, or start with a new directory)"


def usable(position: int, epoch: int = 1) -> CheckpointFound:
    return CheckpointFound(position, epoch, True)


def unreadable(position: int, epoch: int = 1) -> CheckpointFound:
    return CheckpointFound(position, epoch, False)


def test_a_first_start() -> None:
    disk = FaultyDisk()
    disk.make_directories(HOME)
    found = examine_log(SegmentFiles(disk, HOME, make.SEGMENT), [])
    assert (found.case.letter, found.case.act) == ("A", Act.START_EMPTY)
    assert (found.log_start, found.redo_from, found.end, found.durable_position, found.epoch) == (0, 0, 0, 0, 0)
    assert (found.rolls, found.says) == ({}, "case A: first start")


def test_b_the_log_is_gone_and_a_checkpoint_is_left() -> None:
    disk = FaultyDisk()
    disk.make_directories(HOME)
    for left, what in (
        (usable(4096), "there was a log up to 4096"),
        (unreadable(4096), "there was a log up to 4096"),
        (usable(0), "there was a log up to 0"),
    ):
        with pytest.raises(StoreDamaged) as caught:
            examine_log(SegmentFiles(disk, HOME, make.SEGMENT), [left])
        case = "case B: the segment files are missing, a checkpoint or the watermark page exists"
        assert str(caught.value) == f"the log in {HOME} is damaged ({case}): {what} {REMEDY}"


def test_c_a_segment_before_the_snapshot_is_missing() -> None:
    store = Store().write(12, body_bytes=20_000)
    store.disk.remove(store.seg(1))
    what = f"{store.seg(1)} at log offset 65536: the segment is missing; the log was durable up to {store.ends[-1]}"
    case = "case C: a segment is missing in the middle"
    assert store.refused(usable(store.ends[-1])) == f"the log in {HOME} is damaged ({case}): {what} {REMEDY}"


def test_c_a_segment_before_the_snapshot_is_too_short() -> None:
    store = Store().write(12, body_bytes=20_000)
    store.disk.put(store.seg(1), store.disk.content(store.seg(1))[:4096])
    why = f"{store.seg(1)} at log offset 65536: the segment has 4096 bytes instead of 65536"
    assert why in store.refused(usable(store.ends[-1]))


def test_c_the_segment_that_a_snapshot_ends_in_counts_to_its_last_byte() -> None:
    """A snapshot taken where a segment is full needs that segment and not the one behind it."""
    store = Store().write(1).fill_up()
    assert store.ends[-1] == make.SEGMENT
    assert store.starts(usable(make.SEGMENT)) == ("H", make.SEGMENT, make.SEGMENT)
    store.write(2, body_bytes=20_000).fill_up()
    assert store.ends[-1] == 2 * make.SEGMENT
    store.write(1)
    store.disk.remove(store.seg(1))
    assert f"{store.seg(1)} at log offset 65536" in store.refused(usable(2 * make.SEGMENT))


def test_few_segments_are_open_while_those_before_a_snapshot_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_module, "OPEN_SEGMENTS_MAX", 4)
    store = Store().write(16, body_bytes=40_000)
    files = store.files()
    assert examine_log(files, [usable(store.ends[-1])]).case.letter == "H"
    assert len(files.numbers()) >= 16
    assert len(files.opened) <= 6


def test_d_the_checkpoint_is_newer_than_the_log() -> None:
    store = Store().write(4)
    at = store.ends[-1] + 800
    what = f"{store.seg(0)} at log offset {at}: no whole batch ends where the checkpoint was taken"
    case = "case D: the checkpoint is newer than the log, or does not fit it"
    expected = f"the log in {HOME} is damaged ({case}): {what}; the log was durable up to {at} {REMEDY}"
    assert store.refused(usable(at)) == expected


def test_d_the_file_of_a_checkpoint_at_the_end_of_a_segment_is_that_segment() -> None:
    store = Store().write(8, body_bytes=20_000)
    assert f"{store.seg(0)} at log offset {make.SEGMENT}" in store.refused(usable(make.SEGMENT))
    assert f"{store.seg(1)} at log offset {make.SEGMENT + 8}" in store.refused(usable(make.SEGMENT + 8))


def test_d_the_log_behind_the_checkpoint_is_damaged() -> None:
    store = Store().write(4)
    store.flip(store.ends[1] + 70)
    assert "case D" in store.refused(usable(store.ends[2]))


@pytest.mark.parametrize("short_by", [100, make.SEGMENT])
def test_a_segment_may_lack_zeros_at_its_end(short_by: int) -> None:
    """With a checkpoint behind it as without one: nothing that was written is missing."""
    store = Store().write(6, body_bytes=20_000)
    content = store.disk.content(store.seg(0)).rstrip(b"\0")
    left = store.ends[2]
    assert len(content) <= left < make.SEGMENT - 100 < make.SEGMENT < store.ends[3]
    store.disk.put(store.seg(0), store.disk.content(store.seg(0))[: max(left, make.SEGMENT - short_by)])
    assert store.starts() == ("L", 0, store.ends[5])
    for redo_from in (left, *store.ends[3:]):
        assert store.starts(usable(redo_from)) == ("H", redo_from, store.ends[5])
    store.disk.put(store.seg(0), store.disk.content(store.seg(0))[: left - 1])
    for redo_from in (left, *store.ends[3:]):
        assert f"{store.seg(0)}" in store.refused(usable(redo_from))


def test_the_only_segment_may_lack_zeros_too() -> None:
    """No base behind it says where the log leaves it; the checkpoint does."""
    store = Store().write(3)
    for number in store.files().numbers()[1:]:
        store.disk.remove(store.seg(number))
    content = store.disk.content(store.seg(0))
    store.disk.put(store.seg(0), content[: store.ends[2]])
    assert store.starts(usable(store.ends[2])) == ("H", store.ends[2], store.ends[2])
    store.disk.put(store.seg(0), content[: store.ends[2] - 1])
    assert f"{store.seg(0)}" in store.refused(usable(store.ends[2]))


def test_e_a_trimmed_log_whose_first_segment_has_no_base() -> None:
    case = "case E: the oldest segment does not begin with a base, and no snapshot can replace it"
    store = Store().write(12, body_bytes=20_000)
    make.trim_log(store.under.log, make.SEGMENT)
    store.disk.put(store.seg(1), bytes(make.SEGMENT))
    what = f"{store.seg(1)} at log offset {make.SEGMENT}: no batch begins here"
    durable = f"the log was durable up to {store.ends[-2]}"
    assert store.refused() == f"the log in {HOME} is damaged ({case}): {what}; {durable} {REMEDY}"
    assert store.starts(usable(store.ends[-1]))[0] == "H", "a snapshot can stand in"


@pytest.mark.parametrize("content", [bytes(make.SEGMENT), b"\x01" + bytes(make.SEGMENT - 1)])
def test_e_is_named_too_where_nothing_says_what_was_durable(content: bytes) -> None:
    case = "case E: the oldest segment does not begin with a base, and no snapshot can replace it"
    store = Store().write(4, sync=False, body_bytes=20_000)
    store.disk.remove(store.seg(0))
    store.disk.put(store.seg(1), content)
    what = f"{store.seg(1)} is the oldest segment; it is damaged, or the one before it is missing"
    assert store.refused() == f"the log in {HOME} is damaged ({case}): {what} {REMEDY}"


def test_f_damage_behind_the_snapshot_below_a_durable_position() -> None:
    store = Store().write(6)
    store.flip(store.ends[3] + 70)
    text = store.refused(usable(store.ends[1]))
    assert "case F" in text
    assert f"{store.seg(0)} at log offset {store.ends[3]}" in text
    assert f"durable up to {store.ends[4]}" in text


def test_g_damage_below_a_durable_position() -> None:
    store = Store().write(6)
    store.flip(store.ends[3] + 70)
    assert "case G" in store.refused()
    assert "case G" in store.refused(unreadable(store.ends[1]))


def test_g_the_first_batch_of_all_is_damaged_and_was_durable() -> None:
    store = Store().write(3)
    store.flip(70)
    text = store.refused()
    assert "case G" in text
    assert "at log offset 0" in text


def test_g_a_checkpoint_without_its_snapshot_still_says_what_was_durable() -> None:
    store = Store().write(3, sync=False)
    store.flip(store.ends[1] + 70)
    assert store.starts()[0] == "M"
    assert "case G" in store.refused(unreadable(store.ends[2]))


def test_h_clean_end_with_a_snapshot() -> None:
    store = Store().write(6)
    assert store.starts(usable(store.ends[2])) == ("H", store.ends[2], store.ends[5])
    assert store.starts(usable(store.ends[5])) == ("H", store.ends[5], store.ends[5])


def test_h_the_snapshot_at_the_very_start_of_a_trimmed_log_serves() -> None:
    """Taken where a segment was full; then everything before it was trimmed away, and there was a crash."""
    store = Store().write(1).fill_up().write(2)
    make.trim_log(store.under.log, make.SEGMENT)
    assert store.starts(usable(make.SEGMENT)) == ("H", make.SEGMENT, store.ends[3])
    store = Store().write(6, body_bytes=20_000)
    make.trim_log(store.under.log, make.SEGMENT)
    assert "case D" in store.refused(usable(make.SEGMENT)), "no batch ended there"


def test_h_the_older_snapshot_serves_when_the_newer_one_is_unreadable() -> None:
    store = Store().write(6)
    assert store.starts(unreadable(store.ends[4], 1), usable(store.ends[1])) == ("H", store.ends[1], store.ends[5])


def test_i_torn_tail_with_a_snapshot() -> None:
    store = Store().write(4).write(2, sync=False)
    store.flip(store.ends[4] + 70)
    assert store.starts(usable(store.ends[1])) == ("I", store.ends[1], store.ends[4])


def test_i_whole_batches_behind_the_damage_are_cut_with_it() -> None:
    store = Store().write(4).write(6, sync=False)
    store.flip(store.ends[4] + 70)
    found = examine_log(store.files(), [usable(store.ends[1])])
    assert (found.case.letter, found.end) == ("I", store.ends[4])
    damage = f"at {store.ends[4]}: a record ends beyond its batch"
    what = f"cutting at {store.ends[4]} ({damage}), 4 whole batches after it were never acknowledged"
    assert found.says == f"case I: torn tail, snapshot; {what}"


def test_a_clean_start_says_its_case_only() -> None:
    store = Store().write(4)
    assert examine_log(store.files(), []).says == "case L: clean end, no checkpoint"


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("snapshot", [None, 0, 2, 3])
def test_the_redo_is_told_where_the_log_leaves_each_segment(torn: bool, snapshot: int | None) -> None:
    """Also where the tail is torn, and where the snapshot was taken just before the log went on in the next segment."""
    store = Store().write(10, body_bytes=20_000).write(1, sync=False)
    if torn:
        store.flip(store.ends[10] - 40)
    rolls = {end: -(-end // make.SEGMENT) * make.SEGMENT for end in (store.ends[2], store.ends[5], store.ends[8])}
    start = 0 if snapshot is None else store.ends[snapshot]
    found = examine_log(store.files(), [] if snapshot is None else [usable(start)])
    assert found.case.cut is torn
    assert found.redo_from == start
    assert found.rolls == {end: next_start for end, next_start in rolls.items() if end >= start}
    again = LogScan(store.files()).again(found.redo_from, found.end, found.rolls)
    wanted = [end for end in store.ends[: 10 if torn else 11] if end > start]
    assert [batch.header.end for batch in again] == wanted


def test_j_a_crash_before_the_first_batch() -> None:
    store = Store()
    assert store.starts() == ("J", 0, 0)


def test_k_a_crash_in_the_first_batch() -> None:
    store = Store().write(1, sync=False)
    store.flip(70)
    assert store.starts() == ("K", 0, 0)


def test_l_clean_end_without_a_checkpoint() -> None:
    store = Store().write(6)
    assert store.starts() == ("L", 0, store.ends[5])


def test_m_torn_tail_without_a_checkpoint() -> None:
    store = Store().write(4).write(1, sync=False)
    store.flip(store.ends[3] + 70)
    assert store.starts() == ("M", 0, store.ends[3])


def test_n_and_o_the_snapshot_is_unreadable() -> None:
    store = Store().write(4).write(1, sync=False)
    assert store.starts(unreadable(store.ends[1])) == ("N", 0, store.ends[4])
    store.flip(store.ends[3] + 70)
    assert store.starts(unreadable(store.ends[1])) == ("O", 0, store.ends[3])


def test_p_and_q_the_snapshot_is_older_than_the_logs_start() -> None:
    store = Store().write(12, body_bytes=20_000).write(1, sync=False)
    make.trim_log(store.under.log, 2 * make.SEGMENT)
    assert store.starts(usable(store.ends[0])) == ("P", 2 * make.SEGMENT, store.ends[12])
    found = examine_log(store.files(), [usable(store.ends[0])])
    assert (found.log_start, found.durable_position) == (2 * make.SEGMENT, store.ends[11])
    store.flip(store.ends[11] + 70)
    assert store.starts(usable(store.ends[0])) == ("Q", 2 * make.SEGMENT, store.ends[11])


def test_the_epoch_is_the_highest_that_was_ever_there() -> None:
    store = Store().write(3)
    assert examine_log(store.files(), []).epoch == 1
    assert examine_log(store.files(), [usable(store.ends[1], 8)]).epoch == 8
    store.under.log.epoch = 12
    store.write(2, sync=False)
    store.flip(store.ends[3] + 70)
    assert examine_log(store.files(), [usable(store.ends[1], 8)]).epoch == 12
    store.under.log.epoch = 13
    store.write(1, sync=False)
    assert examine_log(store.files(), []).epoch == 13, "also of a batch that is cut"


def test_cutting_makes_everything_behind_zero_and_durable() -> None:
    store = Store().write(2).write(8, sync=False, body_bytes=20_000)
    store.flip(store.ends[1] + 70)
    under = make.LogUnderTest(store.disk, HOME).start()
    end = store.ends[1]
    assert under.log.end == end
    assert not any(store.disk.content(store.seg(0))[end:])
    assert len(store.disk.content(store.seg(0))) == make.SEGMENT, "no byte more is written"
    assert store.disk.list(HOME) == [store.seg(0).name, store.seg(1).name], "one blank segment is prepared"
    assert not any(store.disk.content(store.seg(1)))
    image = store.disk.image()
    for _ in range(20):
        store.disk.crash()
    assert {path: data for path, data in store.disk.image().items() if path.suffix == ".seg"} == image


def test_after_a_cut_the_log_goes_on_and_nothing_old_comes_back() -> None:
    store = Store().write(2).write(4, sync=False)
    store.flip(store.ends[1] + 70)
    under = make.LogUnderTest(store.disk, HOME).start()
    end = under.append(make.plain(b"x" * 50))
    under.log.sync(end)
    assert end == store.ends[2], "as large as the batch that was cut"
    assert store.whole_batches() == [*store.ends[:2], end]
    assert store.starts() == ("L", 0, end)


def test_a_crash_at_any_step_of_a_cut_is_cut_again() -> None:
    for step in range(1, 12):
        for seed in range(5):
            store = Store().write(2).write(8, sync=False, body_bytes=20_000)
            store.disk.rng.seed(seed)
            store.flip(store.ends[1] + 70)
            store.disk.power_fails_after(step)
            try:
                make.LogUnderTest(store.disk, HOME).start()
            except PowerLost:
                store.disk.crash()
            under = make.LogUnderTest(store.disk, HOME).start()
            assert under.log.end == store.ends[1]
            end = under.append(make.plain())
            under.log.sync(end)
            store.disk.crash()
            assert store.whole_batches() == [*store.ends[:2], end]


def test_a_cut_at_the_very_beginning_keeps_the_first_segment() -> None:
    """A blank prepared segment that outlived it would look like the oldest one of a trimmed log."""
    store = Store().write(1, sync=False)
    store.under.log.prepare_next()
    store.flip(70)
    make.LogUnderTest(store.disk, HOME).start()
    assert store.disk.exists(store.seg(0))
    store.disk.crash()
    assert store.starts()[0] == "J"


@pytest.mark.parametrize("believed", [False, True])
def test_what_a_failed_sync_dropped_is_written_again(believed: bool) -> None:
    """The process saw a sync fail and was restarted: the pages look clean, and a second sync would skip them."""
    store = Store().write(2).write(2, sync=False, body_bytes=5_000)
    store.disk.fail("sync")
    with pytest.raises(Exception, match="accepts no more"):
        store.under.log.sync(store.under.log.end)
    store.disk.kill(drop_cache=False)
    under = make.LogUnderTest(store.disk, HOME).start(published=store.ends[3] if believed else 0)
    assert under.log.synced_position == store.ends[3], "recovery takes what it reads for the log"
    store.disk.crash()
    survived = store.whole_batches() == store.ends
    assert survived is not believed, (
        "where it is said to be durable, nothing is written: so acknowledged messages are lost"
    )


@pytest.mark.parametrize("published", [True, False])
def test_a_cut_whose_sync_failed_is_made_again(published: bool) -> None:
    """The start after it reads zeros that the disk does not have. A power loss brings the old batch back, behind a new one."""
    store = Store().write(3).write(2, body_bytes=5_000)
    store.flip(store.ends[3] + 70)
    durable = store.ends[3] if published else 0
    files = store.files()
    store.disk.failed_sync_keeps_share = 0.0
    store.disk.fail("sync")
    with pytest.raises(OSError, match="error"):
        repair(store.disk, files, examine_log(files, [], durable))
    store.disk.kill(drop_cache=False)
    assert store.disk.exists(HOME / CUT)
    make.LogUnderTest(store.disk, HOME).start(published=durable)
    assert not store.disk.exists(HOME / CUT)
    store.disk.crash()
    assert not any(store.disk.content(store.seg(0))[store.ends[3] :])


def test_what_was_made_zero_once_is_not_written_again() -> None:
    """Else each start writes the whole segment, where a backup or a copy made its zeros data."""
    store = Store().write(2)
    end = store.ends[1]
    store.disk.put(store.seg(0), store.disk.content(store.seg(0)))
    segment = store.files().get(0)
    assert segment is not None
    segment.file.write(end, [bytes(make.SEGMENT - end)])
    segment.file.sync()
    writes = [one for one in store.settled() if one.kind == "write"]
    assert [one for one in writes if one.at >= end] == []


def test_a_segment_whose_allocation_was_lost_gets_its_space_back() -> None:
    store = Store().write(2)
    store.disk.put(store.seg(0), store.disk.content(store.seg(0))[: store.ends[1]])
    under = make.LogUnderTest(store.disk, HOME).start()
    assert len(store.disk.content(store.seg(0))) == make.SEGMENT
    assert under.append(make.plain()) > store.ends[1]


def test_no_room_to_get_it_back_is_a_full_disk() -> None:
    store = Store().write(2)
    store.disk.put(store.seg(0), store.disk.content(store.seg(0))[: store.ends[1]])
    store.disk.fill(0)
    files = store.files()
    with pytest.raises(StoreFull, match="free some space"):
        repair(store.disk, files, examine_log(files, []))


def test_a_restored_segment_with_holes_gets_its_space_before_the_disk_is_full() -> None:
    """A copy has holes where the zeros were; a batch that meets a full disk there would stop the broker."""
    store = Store().write(2)
    store.under.log.prepare_next()
    for number in (0, 1):
        store.disk.put(store.seg(number), store.disk.content(store.seg(number)))
    under = make.LogUnderTest(store.disk, HOME).start()
    store.disk.fill(0)
    for _ in range(4):
        under.append(make.plain(b"x" * 20_000))
    assert under.log.end > make.SEGMENT


def test_a_prepared_segment_with_holes_goes_when_there_is_no_room_for_it() -> None:
    """It is made again when there is; the one that is written keeps its space for verdicts."""
    store = Store().write(2)
    store.under.log.prepare_next()
    store.disk.put(store.seg(1), store.disk.content(store.seg(1)))
    store.disk.fill(0)
    under = make.LogUnderTest(store.disk, HOME).start()
    assert not store.disk.exists(store.seg(1))
    under.append(make.plain())


def test_a_prepared_segment_that_is_too_short_is_made_again() -> None:
    store = Store().write(1)
    store.under.log.prepare_next()
    store.disk.put(store.seg(1), bytes(100))
    under = make.LogUnderTest(store.disk, HOME).start()
    for _ in range(5):
        under.append(make.plain(b"x" * 20_000))
    assert under.log.end > make.SEGMENT


def kinds(done: list[Operation]) -> list[tuple[str, Path]]:
    return [(one.kind, one.path) for one in done]


def test_a_clean_start_writes_nothing() -> None:
    """Neither what is whole nor the blank one prepared behind it: a restart must not cost writes. It asks for their space."""
    store = Store().write(2)
    store.under.log.prepare_next()
    asked = [
        ("allocate", store.seg(1)),
        ("sync", store.seg(1)),
        ("allocate", store.seg(0)),
        ("sync", store.seg(0)),
        ("sync_directory", HOME),
    ]
    assert kinds(store.settled(published=store.ends[1])) == asked
    assert kinds(store.settled(usable(store.ends[0]), published=store.ends[1])) == asked
    assert store.disk.list(HOME) == [store.seg(0).name, store.seg(1).name]


def test_a_prepared_segment_with_anything_in_it_is_removed() -> None:
    """Even a single byte, at its beginning or end."""
    for place in (0, make.SEGMENT - 1):
        store = Store().write(2)
        store.under.log.prepare_next()
        content = bytearray(make.SEGMENT)
        content[place] = 1
        store.disk.put(store.seg(1), bytes(content))
        assert ("remove", store.seg(1)) in kinds(store.settled(published=store.ends[1]))


def test_an_allocation_that_comes_back_is_synced() -> None:
    store = Store().write(2)
    store.disk.put(store.seg(0), store.disk.content(store.seg(0))[: store.ends[1]])
    done = kinds(store.settled(published=store.ends[1]))
    assert done.index(("allocate", store.seg(0))) < done.index(("sync", store.seg(0)))


@pytest.mark.parametrize("torn", [False, True])
def test_exactly_what_was_not_known_durable_is_written_again(torn: bool) -> None:
    """From the last durable position, in the first segment, to the end, in the third; byte for byte, and not more."""
    store = Store().write(2, body_bytes=20_000).write(1).write(6, sync=False, body_bytes=20_000)
    end = store.ends[8]
    if torn:
        end = store.ends[7]
        store.flip(store.ends[8] - 40)
    assert end > 2 * make.SEGMENT
    before = store.disk.image()
    writes = [one for one in store.settled() if one.kind == "write"]
    again: set[int] = set()
    for one in writes[1 if torn else 0 :]:  # the first one is the cut
        start = int(one.path.stem) + one.at
        again.update(range(start, start + one.length))
    durable = store.ends[2]  # what the last batches say
    kept = {place for place in range(durable, end) if before[store.seg(place // make.SEGMENT)][place % make.SEGMENT]}
    assert kept <= again
    assert min(again) == durable
    assert max(again) == end - 1
    after = store.disk.image()
    for number in range(2):
        assert after[store.seg(number)] == before[store.seg(number)]


def test_a_cut_at_the_end_of_a_segment_does_not_make_it_longer() -> None:
    store = Store().write(2, body_bytes=20_000).write(1, sync=False, body_bytes=20_000)
    store.flip(store.ends[1] + 70)
    writes = [one for one in store.settled(published=store.ends[1]) if one.kind == "write"]
    assert {one.path for one in writes} == {store.seg(0)}
    assert max(one.at + one.length for one in writes) <= make.SEGMENT
    assert len(store.disk.content(store.seg(0))) == make.SEGMENT
    assert not any(store.disk.content(store.seg(0))[store.ends[1] :])


def test_a_trimmed_log_is_written_again_from_its_durable_position() -> None:
    """Segments before it are gone, and nobody asks for them."""
    store = Store().write(7, body_bytes=20_000).write(2, sync=False)
    make.trim_log(store.under.log, make.SEGMENT)
    writes = [one for one in store.settled() if one.kind == "write"]
    assert {one.path for one in writes} == {store.seg(2)}
    assert store.whole_batches(make.SEGMENT)[-1] == store.ends[-1]


def test_a_cut_is_told_before_the_first_zero_is_written() -> None:
    """A kill between the two would leave zeros in the cache that no later start writes again."""
    store = Store().write(3)
    store.flip(store.ends[1] + 70)
    done = kinds(store.settled())
    cut, seg = HOME / CUT, store.seg(0)
    assert (
        done.index(("create", cut))
        < done.index(("write", seg))
        < done.index(("sync", seg))
        < done.index(("remove", cut))
    )


def test_few_segments_are_open_when_much_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that is closed was synced: who opens it anew may not be told of a write that failed."""
    monkeypatch.setattr(segment_module, "OPEN_SEGMENTS_MAX", 1_000)
    store = Store().write(24, sync=False, body_bytes=40_000)
    monkeypatch.setattr(segment_module, "OPEN_SEGMENTS_MAX", 4)
    files = store.files()
    found = examine_log(files, [])
    done: list[Operation] = []
    store.disk.before = done.append
    repair(store.disk, files, found)
    written = {one.path for one in done if one.kind == "write"}
    assert len(written) > 10
    assert len(files.opened) == 4
    synced = {one.path for one in done if one.kind == "sync"}
    closed = {path for path in written if int(path.stem) // make.SEGMENT not in files.opened}
    assert len(closed) > 5
    assert closed <= synced


def test_what_was_trimmed_away_was_durable() -> None:
    store = Store().write(6, sync=False, body_bytes=20_000)
    store.disk.remove(store.seg(0))
    found = examine_log(store.files(), [])
    assert (found.log_start, found.durable_position, found.end) == (make.SEGMENT, make.SEGMENT, store.ends[5])


# --- before the snapshot ----------------------------------------------------------------------------------------


def test_batches_before_the_snapshot_must_follow_each_other_and_bodies_there_are_not_looked_at() -> None:
    store = Store().write(6)
    last = usable(store.ends[-1])
    store.flip(store.ends[2] - 20)  # the end of a body
    assert store.starts(last)[0] == "H"
    store.flip(store.ends[2])  # the header of the batch behind it
    text = store.refused(last)
    assert (
        f"at log offset {store.ends[2]}: before the checkpoint at {store.ends[-1]} batches do not follow each other"
        in text
    )
    assert store.starts(last, usable(store.ends[3]))[0] == "H", "from the checkpoint before on, all is well"


def test_the_look_back_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store().write(6)
    store.flip(store.ends[2])
    monkeypatch.setattr(recovery, "LOOK_BACK_BYTES_MAX", store.ends[-1])
    assert "do not follow" in store.refused(usable(store.ends[-1]))
    monkeypatch.setattr(recovery, "LOOK_BACK_BYTES_MAX", store.ends[-1] - 1)
    assert store.starts(usable(store.ends[-1]))[0] == "H"
