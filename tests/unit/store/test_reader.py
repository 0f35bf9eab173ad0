"""Reading beside a broker: one position, and loss by name."""

import json
import os
from pathlib import Path

import pytest
from tests.support.sample_store import HALVES, VISIBLE, sample_store
from tests.support.store_writer import StoreWriter

from halfmq.errors import PositionWentBack, SegmentGone, StoreNotReady, StoreReplaced, UsageError
from halfmq.model.stored_message import decode
from halfmq.store.layout import ROW_UNDECIDED
from halfmq.store.published import PublishedPage
from halfmq.store.reader import ReadPosition, StoreReader


def visible(reader: StoreReader) -> list[bytes]:
    bodies = []
    for topic in reader.topics():
        for queue_id in range(topic.read_queues):
            low, high = reader.bounds(topic.topic_id, queue_id)
            entries = reader.entries(topic.topic_id, queue_id, low, high - low)
            bodies.extend(decode(reader.stored_view(entry.offset))[0].body for entry in entries)
    return bodies


def test_everything_visible_is_read_and_nothing_else(tmp_path: Path) -> None:
    sample_store(tmp_path)
    reader = StoreReader.open(tmp_path)
    bodies = visible(reader)
    assert len(bodies) == VISIBLE + 1
    assert (bodies.count(b"p"), bodies.count(b"later")) == (11, 30)
    rows = [reader.transaction_row(index) for index in range(HALVES)]
    assert all(row is not None for row in rows)
    assert sum(row.state == ROW_UNDECIDED for row in rows if row is not None) == 18


def test_a_reader_stays_at_its_position_until_it_takes_another(tmp_path: Path) -> None:
    """A transaction over two topics is seen whole or not at all, whatever is written meanwhile."""
    writer = StoreWriter(tmp_path)
    one, two = writer.topic("a"), writer.topic("b")
    writer.send("a", 0, b"1")
    writer.publish()
    reader = StoreReader.open(tmp_path)
    before = ReadPosition(reader.store_id, reader.epoch, reader.position)
    writer.commit("t", writer.prepare("t", [("a", 0, b"2", b""), ("b", 0, b"3", b"")]))
    writer._flush_batch()  # in the derived files, not published
    assert reader.bounds(one, 0) == (0, 1)
    assert len(reader.entries(one, 0, 0, 10)) == 1
    assert reader.refresh(before) == before
    assert (reader.bounds(one, 0), reader.bounds(two, 0)) == ((0, 1), (0, 0))
    writer.publish()
    assert reader.refresh(before).position > before.position
    assert (reader.bounds(one, 0), reader.bounds(two, 0)) == ((0, 2), (0, 1))


def test_a_segment_that_was_trimmed_is_loss_by_name_but_a_mapped_one_stays(tmp_path: Path) -> None:
    writer = sample_store(tmp_path)
    reader = StoreReader.open(tmp_path)
    mapped = reader.stored_view(reader.entries(1, 0, 0, 1)[0].offset)
    writer.trim()
    assert decode(mapped)[0].body == b"x" * 300
    other = StoreReader.open(tmp_path)
    low, _ = other.bounds(1, 0)
    assert low > 0
    assert other.entries(1, 0, 0, 1) == []
    with pytest.raises(SegmentGone, match="past retention"):
        other.stored_view(64)


def test_another_store_in_the_directory_is_loss_by_name(tmp_path: Path) -> None:
    writer = sample_store(tmp_path)
    reader = StoreReader.open(tmp_path)
    identity = json.loads((tmp_path / "store.json").read_text())
    identity["store"] = "ab" * 16
    (tmp_path / "store.json").write_text(json.dumps(identity))
    PublishedPage.open(writer.disk, writer.shard / "published", b"\xab" * 16, 1).publish(1 << 30, 0, 0, 0)
    with pytest.raises(StoreReplaced):
        reader.refresh()
    with pytest.raises(StoreReplaced):
        StoreReader.open(tmp_path).refresh(ReadPosition(reader.store_id, 1, 64))


@pytest.mark.parametrize("after", [(2, 64), (1, 1 << 40)])
def test_a_smaller_epoch_or_position_is_loss_by_name(tmp_path: Path, after: tuple[int, int]) -> None:
    sample_store(tmp_path)
    reader = StoreReader.open(tmp_path)
    with pytest.raises(PositionWentBack):
        reader.refresh(ReadPosition(reader.store_id, *after))


def test_while_derived_files_are_made_again_nobody_reads(tmp_path: Path) -> None:
    writer = sample_store(tmp_path)
    reader = StoreReader.open(tmp_path)
    writer.page.rebuilding(0, 0, 0)
    with pytest.raises(StoreNotReady) as caught:
        reader.refresh()
    assert caught.value.retriable
    writer.publish()
    reader.refresh()


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no store"):
        StoreReader.open(tmp_path)


def test_a_user_who_may_not_write_can_read(tmp_path: Path) -> None:
    sample_store(tmp_path)
    opened = []
    flags = os.O_RDWR | os.O_WRONLY
    real = os.open

    def watched(path: str, mode: int, *rest: int, **options: int) -> int:
        opened.append((path, mode & flags))
        return real(path, mode, *rest, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", watched)
        assert visible(StoreReader.open(tmp_path))
    assert opened
    assert not [path for path, mode in opened if mode]
