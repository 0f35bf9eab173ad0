"""Indexes against a plain fold over the same records: live, after a redo, after power loss, after a reset."""

import copy
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.support import log_records as make
from tests.support.faulty_disk import FaultyDisk
from tests.support.random_log import GROUP, SEGMENT, Expected, RandomLog
from tests.support.steps import result_of
from tests.support.store_writer import StoreWriter
from tests.support.waiting import PATIENCE_S

from halfmq.errors import InvariantViolated
from halfmq.model.records import Batch, Committed, CopiedDelayed, Ref, Released, Restored
from halfmq.runtime.disk import Disk, RealDisk
from halfmq.store import consume_queue, transaction_table
from halfmq.store.indexes import Indexes, indexes_are_there
from halfmq.store.topics_file import TopicInfo, read_topics

ROOT = Path("/store/shard-0")


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of 16 entries and 64 rows, so that a short log crosses many of them."""
    monkeypatch.setattr(consume_queue, "QUEUE_FILE_ENTRIES", 16)
    monkeypatch.setattr(transaction_table, "_FILE_PAGES", 2)
    monkeypatch.setattr(transaction_table, "TRANSACTION_FILE_ROWS", 64)
    monkeypatch.setattr(transaction_table, "_FILE_BYTES", 64 * 128)
    monkeypatch.setattr(transaction_table, "_PAGES_MAX", 2)


def opened(disk: Disk, log: RandomLog, *, redo_from: int = 0, log_start: int = 0, root: Path = ROOT) -> Indexes:
    disk.make_directories(root)
    indexes = Indexes.open(
        disk,
        root,
        store="5a",
        segment_bytes=SEGMENT,
        redo_from=redo_from,
        log_start=log_start,
        log=log,
    )
    indexes._files._open_max = 8
    return indexes


def fresh(disk: Disk, log: RandomLog, root: Path = ROOT) -> Indexes:
    indexes = opened(disk, log, root=root)
    indexes.reset()
    indexes.cut(0, 0)
    return indexes


def assert_as_expected(indexes: Indexes, batches: list[Batch], *, since: int = 0) -> None:
    """``since``: where a redo without older records began; rows of halves before it may say less."""
    expected = Expected(batches)
    seen = 0
    for (topic_id, queue_id), entries in expected.entries.items():
        low, high = indexes.queues.bounds(topic_id, queue_id)
        kept = {
            offset: entry for offset, entry in entries.items() if entry.visible_at >= max(expected.log_start, since)
        }
        if kept:
            assert (low, high) == (min(kept), max(kept) + 1)
        else:
            assert low == high
        found = indexes.queues.read(topic_id, queue_id, low, 1 << 30, 1 << 62)
        assert dict(enumerate(found, low)) == kept
        seen += len(found)
    for half_index, fields in expected.rows.items():
        row = indexes.table.row(half_index)
        if max(fields["current_offset"], fields.get("verdict_position", 0)) >= since:
            assert row is not None
            wanted = fields if fields["current_offset"] >= since else {"state": fields["state"]}
            assert {name: getattr(row, name) for name in wanted} == wanted, half_index
        seen += 1
    ids = indexes.settled_ids
    while (part := ids.next_part) is not None:
        ids.use_part(part, ids.read_part(part))
    for tx_id, position in expected.settled.items():
        says = [one for one in ids.find(GROUP, tx_id) if one >= expected.log_start]
        assert says == [position] * (position >= max(expected.log_start, since)), tx_id
    assert expected.settled
    assert seen, "nothing was compared"


@pytest.mark.parametrize("seed", range(4))
def test_following_a_log_gives_what_its_records_say(seed: int, tmp_path: Path) -> None:
    log = RandomLog(seed)
    log.grow(300)
    indexes = fresh(RealDisk(), log, tmp_path)
    for batch in log.batches:
        indexes.stage(batch)
        indexes.flush()
    assert_as_expected(indexes, log.batches)
    undecided = {half.half_index for one in log.open for half in one.halves}
    assert indexes._not_unique_ids <= undecided, "what was settled is forgotten"
    assert log.log_start > 0
    assert any(isinstance(record, Restored) for batch in log.batches for record in batch.records)
    names = Expected(log.batches).topics
    indexes.sync()
    assert {one.topic_id: one.name for one in read_topics(RealDisk(), tmp_path / "topics.json")[1]} == names
    indexes.close()


@pytest.mark.parametrize("seed", range(40))
def test_after_power_loss_a_redo_from_the_checkpoint_gives_the_same(seed: int) -> None:
    """Follow on a faulty disk with syncs now and then; lose power, redo from the last sync, twice in a row."""
    log = RandomLog(seed)
    rng = random.Random(seed)
    disk = FaultyDisk(seed)
    indexes = fresh(disk, log)
    synced = 0
    log_start = 0
    done = 0
    for _ in range(3):
        log.grow(rng.randrange(5, 60))
        for batch in log.batches[done:]:
            indexes.stage(batch)
            indexes.flush()
            if rng.random() < 0.05:
                indexes.sync()
                disk.sync_directory(ROOT)
                disk.sync_directory(ROOT.parent)
                disk.sync_directory(ROOT.parent.parent)
                synced, log_start = batch.end, indexes.log_start
        done = len(log.batches)
        if synced == 0:
            indexes.close()
            return
        disk.crash()
        indexes = opened(disk, log, redo_from=synced, log_start=log_start)
        for batch in log.batches:
            if batch.offset >= synced:
                indexes.redo(batch)
        indexes.cut(log.end, log.next_half)
        indexes.rewrite_undecided(log.undecided())
        indexes.rewrite_topics(TopicInfo(number, name, 3, 3, 6) for number, name in log.topics.items())
        assert_as_expected(indexes, log.batches)
    indexes.close()


@pytest.mark.parametrize("seed", range(20))
def test_what_a_lost_log_end_left_is_not_there_after_the_cut(seed: int) -> None:
    """With durability `memory` indexes may survive a power loss that their log did not; then another life goes on."""
    log = RandomLog(seed)
    disk = FaultyDisk(seed)
    indexes = fresh(disk, log)
    log.grow(20)
    redo_from = log.end
    log.grow(20)
    kept = copy.deepcopy(log)
    log.grow(20)
    assert log.log_start == 0, "this test is about logs before their first trim"
    for batch in log.batches:
        indexes.stage(batch)
        indexes.flush()
    indexes.close()
    indexes = opened(disk, kept, redo_from=redo_from)
    for batch in kept.batches:
        if batch.offset >= redo_from:
            indexes.redo(batch)
    indexes.cut(kept.end, kept.next_half)
    indexes.rewrite_undecided(kept.undecided())
    deleted = set(Expected(kept.batches).topics) - set(Expected(log.batches).topics)
    if deleted:  # the log that was lost deleted a topic: its queues cannot come back without a reset
        return
    assert_as_expected(indexes, kept.batches)
    for number in range(kept.next_half, log.next_half):
        assert indexes.table.row(number) is None
    kept.rng = random.Random(seed + 1_000)
    before = len(kept.batches)
    kept.grow(20)
    for batch in kept.batches[before:]:
        indexes.stage(batch)
        indexes.flush()
    assert_as_expected(indexes, kept.batches)
    indexes.close()
    # Nothing of the lost end lies where the next start would take it for entries of this life.
    assert_as_expected(opened(disk, kept, redo_from=kept.end, log_start=kept.log_start), kept.batches)


@pytest.mark.parametrize("seed", range(4))
def test_everything_removed_is_made_again_from_what_the_log_still_has(seed: int) -> None:
    log = RandomLog(seed)
    log.grow(300)
    disk = FaultyDisk(seed)
    indexes = opened(disk, log, redo_from=0, log_start=log.log_start)
    indexes.reset()
    for batch in log.batches:
        if batch.offset >= log.log_start:
            indexes.redo(batch)
    indexes.cut(log.end, log.next_half)
    indexes.rewrite_undecided(log.undecided())
    assert log.log_start > 0
    assert_as_expected(indexes, log.batches, since=log.log_start)


def test_a_batch_that_comes_twice_is_refused() -> None:
    log = RandomLog(2)
    log.grow(3)
    indexes = fresh(FaultyDisk(), log)
    indexes.stage(log.batches[0])
    indexes.flush()
    with pytest.raises(InvariantViolated, match="again"):
        indexes.stage(log.batches[0])


def test_a_queue_offset_that_is_not_the_queues_end_is_refused() -> None:
    log = RandomLog(3)
    log.batch(1)
    log.batch(0)
    log._records = []
    log.plain()
    record = log._records[0]
    wrong = replace(record, queue_offset=7)  # type: ignore[union-attr]
    indexes = fresh(FaultyDisk(), log)
    with pytest.raises(InvariantViolated, match="queue offset 7"):
        indexes.stage(Batch(log.end, log.end + 4_096, 1, [wrong]))


def test_a_message_is_found_by_each_of_its_keys_and_only_while_it_is_visible() -> None:
    log = RandomLog(4)
    log.grow(80)
    indexes = fresh(FaultyDisk(), log)
    for batch in log.batches:
        indexes.stage(batch)
        indexes.flush()
    expected = Expected(log.batches)
    visible = {entry.offset for entries in expected.entries.values() for entry in entries.values()}
    found_by_key = found_by_id = hidden = 0
    for offset, (_, message) in log.messages.items():
        topic_id = next((number for number, name in log.topics.items() if name == message.topic), None)
        if topic_id is None:
            continue
        pairs = dict(pair.split("\x01") for pair in message.properties.decode().split("\x02") if pair)
        for key in pairs.get("KEYS", "").split():
            offsets = {one.entry.offset for one in result_of(indexes.find_by_key(topic_id, message.topic, key, 1_000))}
            assert (offset in offsets) == (offset in visible)
            found_by_key += offset in offsets
            hidden += offset not in offsets
        offsets = {
            one.entry.offset for one in result_of(indexes.find_by_key(topic_id, message.topic, pairs["UNIQ_KEY"], 10))
        }
        assert (offset in offsets) == (offset in visible)
        found_by_id += offset in offsets
    assert found_by_key
    assert found_by_id
    assert hidden
    assert result_of(indexes.find_by_key(next(iter(log.topics)), "topic-1", "no-such-key", 10)) == []


def test_removed_directories_are_noticed() -> None:
    disk = FaultyDisk()
    log = RandomLog(5)
    assert not indexes_are_there(disk, ROOT)
    indexes = fresh(disk, log)
    indexes.sync()
    assert indexes_are_there(disk, ROOT)
    indexes.close()
    disk.remove(ROOT / "queues" / "begun")
    assert not indexes_are_there(disk, ROOT)


def test_a_table_file_goes_once_nobody_may_be_told_its_verdicts(tmp_path: Path) -> None:
    log = RandomLog(6)
    indexes = fresh(RealDisk(), log, tmp_path)
    while not log.open:
        log.grow(1)
    forgotten = log.open.pop(0)  # nobody settles it: its file stays
    log.grow(700)
    for batch in log.batches:
        indexes.stage(batch)
        indexes.flush()
    assert log.log_start > forgotten.halves[0].offset
    rows = Expected(log.batches).rows
    expired = indexes.table.expired(log.log_start, indexes.table.full())
    assert expired
    for base in range(0, log.next_half - 64, 64):
        verdicts = [rows[number].get("verdict_position", 1 << 62) for number in range(base, base + 64)]
        assert (base in expired) == (max(verdicts) < log.log_start)
    indexes.table.drop(expired[0])
    assert indexes.table.row(expired[0]) is None
    indexes.close()


def test_a_half_that_is_committed_with_a_delay_is_seen_when_it_is_released() -> None:
    log = RandomLog(7)
    log.batch(0)
    log._records = []
    log._at = log.end + 64
    topic_id = next(iter(log.topics))
    message = log._message(topic_id, 1, 0)
    half = make.half_record(log._at, 500, topic_id, message, 0, "orders", "t", 0, 1)
    log.messages[half.offset + 2_000] = (8, message)
    ref = Ref(half.offset, 484, half.offset, 0, topic_id, 1, -1, 9_000, 3, 4)
    indexes = fresh(FaultyDisk(), log)
    indexes.stage(log.batches[0])
    indexes.flush()
    indexes.stage(
        Batch(log.end, log.end + 1_000, 100, [half, Committed(half.offset + 500, 99, "orders", "t", 1, (ref,))])
    )
    indexes.flush()
    row = indexes.table.row(0)
    assert row is not None
    assert (row.state, row.queue_offset, row.due_ms) == (2, -1, 9_000)
    assert indexes.queues.bounds(topic_id, 1) == (0, 0)
    moved = half.offset + 2_000
    carried = CopiedDelayed(moved, 600, half.offset, half.offset, 0, topic_id, 1, 484, 9_000, 3, 4)
    shown = replace(ref, offset=moved, queue_offset=0, due_ms=0)
    indexes.stage(Batch(log.end + 1_900, log.end + 4_000, 9_001, [carried, Released(moved + 600, 80, (shown,))]))
    indexes.flush()
    row = indexes.table.row(0)
    assert row is not None
    assert (row.state, row.queue_offset, row.current_offset, row.original_offset) == (2, 0, moved, half.offset)
    assert indexes.queues.read(topic_id, 1, 0, 5, 1 << 40) == [(moved, 484, 3, moved + 600, 9_001, 0, 4)]


def test_topics_that_change_while_a_checkpoint_writes_the_file_are_in_it_and_the_writer_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both would write the same temporary file. Method: a topic comes while the checkpoint's thread is about to rename it."""
    writer = StoreWriter(tmp_path)
    indexes = writer.indexes
    here = threading.get_ident()
    inside, go_on = threading.Event(), threading.Event()
    renamed_here: list[Path] = []
    rename = RealDisk.rename

    def watched(disk: RealDisk, old: Path, new: Path) -> None:
        if threading.get_ident() == here:
            renamed_here.append(new)
        elif not inside.is_set():
            inside.set()
            assert go_on.wait(PATIENCE_S)
        rename(disk, old, new)

    monkeypatch.setattr(RealDisk, "rename", watched)
    indexes._topics_changed = True  # as between ``stage`` and the end of ``flush``
    with ThreadPoolExecutor(1) as checkpoint:
        late = checkpoint.submit(indexes.write_late_topics)
        try:
            assert inside.wait(PATIENCE_S)
            writer.topic("two")
            writer.publish()
        finally:
            go_on.set()
        assert late.result(PATIENCE_S)
    assert not renamed_here, "the loop does not wait for the fsync of the checkpoint's thread, nor write beside it"
    path = writer.shard / "topics.json"
    assert [topic.name for topic in read_topics(writer.disk, path)[1]] == ["two"]
    assert not indexes._topics_changed
    writer.topic("three")
    writer.publish()
    assert len(renamed_here) == 1
    assert [topic.name for topic in read_topics(writer.disk, path)[1]] == ["two", "three"]
    indexes.close()
