"""Entries and messages in one buffer: exactly the messages of the entries, however they lie in the log, and what ends a block."""

import random
import struct
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support.store_writer import V6, StoreWriter

from halfmq.errors import StoreDamaged
from halfmq.model import properties as props
from halfmq.model.records import MESSAGE_AT, HalfRecord
from halfmq.store import raw_messages
from halfmq.store.consume_queue import EncodedEntries
from halfmq.store.layout import QUEUE_ENTRY, QUEUE_ENTRY_BYTES
from halfmq.store.raw_messages import RawBlock, read_block

FREE = 100


@pytest.fixture(autouse=True, params=["arrays", "numpy"])
def _with_and_without_numpy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_messages, "_np", None)
    if request.param == "numpy":
        raw_messages.load_numpy()
        assert raw_messages._np is not None


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[StoreWriter]:
    made = StoreWriter(tmp_path / "data")
    made.topic("orders", 2)
    yield made
    close(made)


def close(writer: StoreWriter) -> None:
    writer.log.close()
    writer.indexes.close()
    writer.page.close()


class Log:
    """The log of the writer, with a count of its reads."""

    def __init__(self, writer: StoreWriter) -> None:
        self._log = writer.log
        self.segment_bytes = writer.segment_bytes
        self.reads: list[int] = []
        self.buffers: list[int] = []
        self.singly = 0
        self.broken: set[int] = set()

    def read_into(self, offset: int, buffers: Sequence[memoryview]) -> int:
        self.reads.append(sum(map(len, buffers)))
        self.buffers.append(len(buffers))
        if any(offset <= place < offset + self.reads[-1] for place in self.broken):
            raise StoreDamaged("unreadable")
        return self._log.read_into(offset, buffers)

    def stored_view(self, offset: int) -> memoryview:
        self.singly += 1
        if offset in self.broken:
            raise StoreDamaged("unreadable")
        return self._log.stored_view(offset)


def block(
    writer: StoreWriter, log: Log | None = None, *, queue: int = 0, start: int = 0, count: int = 10_000,
    bytes_max: int = 1 << 20, changed: dict[int, tuple[int, int]] | None = None,
) -> RawBlock:  # fmt: skip
    """``changed``: index -> (log offset, bytes) that the entry states instead."""
    writer.publish()

    def entries(first: int, number: int) -> EncodedEntries:
        found = writer.indexes.queues.read_encoded(1, queue, first, number, writer.log.end)
        data = bytearray(found.data)
        for index, (offset, size) in (changed or {}).items():
            if index - start < len(found):
                QUEUE_ENTRY.pack_into(data, (index - start) * QUEUE_ENTRY_BYTES, offset, size, 0, 1, 0, -1, 0)
        return EncodedEntries(bytes(data))

    return read_block(entries, log or Log(writer), start, count, bytes_max, FREE)


def expected(writer: StoreWriter, number: int, *, queue: int = 0, start: int = 0) -> bytes:
    """Entries and messages as the readers of single ones see them, with what lies between two records that follow one another."""
    found = writer.indexes.queues.read(1, queue, start, number, writer.log.end)
    assert len(found) == number
    messages = [bytes(writer.log.stored_view(entry.offset)) for entry in found]
    assert all(len(message) == entry.message_bytes for message, entry in zip(messages, found, strict=True))
    parts: list[bytes | bytearray | memoryview] = []
    runs: list[int] = []
    end = -1
    for entry, message in zip(found, messages, strict=True):
        if entry.offset == end:
            head = bytearray(MESSAGE_AT)
            writer.log.read_into(end, [memoryview(head)])
            parts.append(head)
            runs[-1] += 1
        else:
            runs.append(1)
        parts.append(message)
        end = entry.offset + MESSAGE_AT + len(message)
    counts = [count.to_bytes(4, "big") for count in runs]
    return b"".join([*[QUEUE_ENTRY.pack(*entry) for entry in found], *counts, *parts])


def without_heads(data: bytes | bytearray, number: int, runs: int) -> list[bytes | bytearray]:
    """The messages of a block. What is between two of a run is not to be looked at."""
    entries, at = data[: number * QUEUE_ENTRY_BYTES], number * QUEUE_ENTRY_BYTES
    first = set(accumulate(struct.unpack_from(f">{runs}I", data, at), initial=0))
    at += 4 * runs
    found = []
    for place, (_, size, *_) in enumerate(QUEUE_ENTRY.iter_unpack(entries)):
        at += 0 if place in first else MESSAGE_AT
        found.append(data[at : at + size])
        at += size
    assert at == len(data)
    return found


def many(writer: StoreWriter, count: int, body_bytes: int = 100) -> None:
    """Messages in both queues in turn, with undecided and rolled-back halves in between, over several batches and segments."""
    for number in range(count):
        writer.send("orders", number % 2, b"%d" % number + b"x" * body_bytes)
        if number % 5 == 0:
            halves = writer.prepare(f"T{number}", [("orders", 0, b"secret", b"")])
            if number % 10 == 0:
                writer.roll_back(f"T{number}", halves)
        if number % 7 == 0:
            writer.tick()


def test_messages_between_others_over_batches_and_segments(writer: StoreWriter) -> None:
    many(writer, 1_500)
    log = Log(writer)
    for queue in (0, 1):
        found = block(writer, log, queue=queue)
        assert (found.entries, found.why) == (750, "")
        assert found.data[FREE:] == expected(writer, 750, queue=queue)
        assert b"secret" not in found.data
    assert len(writer.files.numbers()) > 3
    assert log.singly == 0
    assert len(log.reads) < 60, "they are read together"


def in_runs(writer: StoreWriter, count: int) -> None:
    """Half of the messages of queue 0 follow one another in runs of 1 to 20, in batches of their own."""
    sent = 0
    for run in range(count):
        for _ in range(run % 20 + 1):
            writer.send("orders", 0, b"%d" % sent + b"x" * (sent % 90))
            sent += 1
        writer.prepare(f"R{run}", [("orders", 0, b"secret", b"")])
        if run % 3 == 0:
            writer.tick()


def test_messages_that_follow_one_another_are_read_as_one(writer: StoreWriter) -> None:
    in_runs(writer, 100)
    log = Log(writer)
    found = block(writer, log)
    total = found.entries
    assert (total, found.why) == (1_050, "")
    assert found.data[FREE:] == expected(writer, total)
    assert b"secret" not in found.data
    assert log.singly == 0
    assert max(log.buffers) < 3 * 110, "a run is one buffer"
    for start, count in ((0, 1), (1, 1), (3, 30), (500, 400)):
        assert block(writer, start=start, count=count).data[FREE:] == expected(writer, count, start=start)


@pytest.mark.parametrize("how", ["swap", "another of its size", "stragglers", "reversed", "shuffled"])
@pytest.mark.parametrize("seed", range(4))
def test_halves_that_are_committed_in_another_order_than_they_lie_in_the_log(
    writer: StoreWriter, how: str, seed: int
) -> None:
    rng = random.Random(f"{how}{seed}")
    halves = [
        writer.prepare(f"T{number:03d}", [("orders", 0, b"secret  " + b"%04d" % number, b"")]) for number in range(300)
    ]
    order = list(range(200))
    match how:
        case "swap":
            at = rng.randrange(70, 126)
            order[at : at + 2] = order[at + 1], order[at]
        case "another of its size":
            order[rng.randrange(70, 126)] = 250
        case "stragglers":
            order.sort(key=lambda number: number + rng.choice([0, 0, 0, 0, 3.5]))
        case "reversed":
            order[64:128] = reversed(order[64:128])
        case "shuffled":
            rng.shuffle(order)
    for number in order:
        writer.commit(f"T{number:03d}", halves[number])
    found = block(writer)
    assert found.data[FREE:] == expected(writer, 200)
    for number in range(300):
        assert found.data.count(b"secret  %04d" % number) == (number in order)


def test_every_kind_of_record_that_can_hold_a_visible_message(writer: StoreWriter) -> None:
    halves = writer.prepare("T1", [("orders", 0, b"carried", b"")])
    old = writer.prepare("T2", [("orders", 0, b"same segment", b"")])
    writer.commit("T2", old)
    many(writer, 800)
    writer.commit("T1", halves)
    writer.delayed("orders", 0, b"delayed", props.encode({"TAGS": "t"}))
    writer.send("orders", 0, b"six", host=V6)
    found = block(writer)
    assert (found.entries, found.why) == (404, "")
    assert found.data[FREE:] == expected(writer, 404)
    for body in (b"carried", b"same segment", b"delayed", b"six"):
        assert found.data.count(body) == 1


def test_a_block_ends_at_its_bounds_and_has_at_least_one_message(writer: StoreWriter) -> None:
    many(writer, 600)
    assert block(writer, count=3).data[FREE:] == expected(writer, 3)
    assert block(writer, bytes_max=1).data[FREE:] == expected(writer, 1)
    one = len(expected(writer, 1))
    found = block(writer, bytes_max=10 * one + 40)
    assert 9 <= found.entries <= 10
    assert len(found.data) - FREE <= 10 * one + 40
    assert found.data[FREE:] == expected(writer, found.entries)
    middle = block(writer, start=150, count=20)
    assert middle.data[FREE:] == expected(writer, 20, start=150)


def test_a_block_reads_a_bounded_part_of_the_log(writer: StoreWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    many(writer, 1_500)
    monkeypatch.setattr(raw_messages, "_READ_BYTES_MAX", 100_000)
    log = Log(writer)
    found = block(writer, log)
    assert 0 < found.entries < 750
    assert (found.why, found.data[FREE:]) == ("", expected(writer, found.entries))
    assert sum(log.reads) < 250_000


def test_messages_far_from_each_other_are_not_read_with_all_that_is_between(
    writer: StoreWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raw_messages, "_FAR_BYTES", 1_000)
    for _ in range(10):
        writer.send("orders", 0, b"few")
        for _ in range(10):
            writer.send("orders", 1, b"x" * 200)
    log = Log(writer)
    found = block(writer, log)
    assert found.data[FREE:] == expected(writer, 10)
    assert sum(log.reads) < 10 * 300


class Filled(NamedTuple):
    writer: StoreWriter
    #: A half that nobody decided.
    half: HalfRecord


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Filled]]:
    """Two logs that are only read."""
    made = {}
    for name, fill in (("alternating", lambda one: many(one, 800)), ("in runs", lambda one: in_runs(one, 100))):
        writer = StoreWriter(tmp_path_factory.mktemp("filled"))
        writer.topic("orders", 2)
        fill(writer)
        made[name] = Filled(writer, writer.prepare("T9", [("orders", 0, b"secret", b"")])[0])
        writer.publish()
    yield made
    for one in made.values():
        close(one.writer)


@pytest.mark.parametrize(
    ("name", "at"),
    [*(("alternating", at) for at in (0, 1, 200, 399)), *(("in runs", at) for at in (230, 231, 240, 249))],
)
@pytest.mark.parametrize(
    "how",
    [
        "size",
        "larger",
        "zero",
        "below zero",
        "huge",
        "offset",
        "offset and size",
        "other record",
        "negative",
        "unreadable",
    ],
)
def test_a_block_ends_before_a_message_that_cannot_be_read(
    filled: dict[str, Filled], name: str, at: int, how: str
) -> None:
    writer, half = filled[name]
    entry = writer.indexes.queues.read(1, 0, at, 1, writer.log.end)[0]
    log = Log(writer)
    offset, size = entry.offset, entry.message_bytes
    changed = {
        "size": {at: (offset, size - 1)},
        "larger": {at: (offset, size + 400)},
        "zero": {at: (offset, 0)},
        "below zero": {at: (offset, -(1 << 30))},
        "huge": {at: (offset, 1 << 30)},
        "offset": {at: (offset + 8, size)},
        "offset and size": {at: (offset + 3, size - 3)},
        "other record": {at: (half.offset, size)},
        "negative": {at: (-5, size)},
        "unreadable": {},
    }[how]
    if how == "unreadable":
        log.broken.add(offset)
    found = block(writer, log, changed=changed)
    assert found.entries == at
    is_tried = how not in ("zero", "below zero", "huge")
    assert found.why or (at and not is_tried), "the next block reports what an entry states"
    assert b"secret" not in found.data
    if at:
        assert without_heads(found.data[FREE:], at, found.runs) == without_heads(expected(writer, at), at, found.runs)
    if is_tried:
        assert found.visible_at > 0


def test_a_single_damaged_entry_is_read_as_one(writer: StoreWriter) -> None:
    writer.send("orders", 0, b"one")
    writer.publish()
    size = writer.indexes.queues.read(1, 0, 0, 1, writer.log.end)[0].message_bytes
    for changed in (-1, 0, 1 << 62):
        found = block(writer, count=1, changed={0: (changed, size)})
        assert found.entries == 0
        assert found.why


def test_the_first_of_a_run_is_the_beginning_of_a_run(writer: StoreWriter) -> None:
    for _ in range(3):
        writer.send("orders", 0, b"same size")
    writer.publish()
    last = writer.indexes.queues.read(1, 0, 2, 1, writer.log.end)[0]
    found = block(writer, count=3, changed={2: (last.offset - 1, last.message_bytes)})
    assert (found.entries, found.runs) == (2, 1)


def test_a_message_that_the_log_no_longer_has_is_missing(writer: StoreWriter) -> None:
    many(writer, 800)
    writer.publish()
    entry = writer.indexes.queues.read(1, 0, 0, 1, writer.log.end)[0]
    found = block(writer, changed={2: (writer.log.end + 4_096, entry.message_bytes)})
    assert (found.entries, found.is_missing) == (2, True)


def test_there_are_no_entries_outside_of_the_queue(writer: StoreWriter) -> None:
    many(writer, 10)
    assert block(writer, start=5).entries == 0


@pytest.mark.parametrize("is_broken", [False, True])
def test_messages_that_are_read_one_by_one_come_without_what_is_between_them(
    writer: StoreWriter, is_broken: bool
) -> None:
    """Then the stored checksum of a half batch, which covers that, does not fit."""
    in_runs(writer, 200)
    writer.publish()
    log = Log(writer)
    entries = writer.indexes.queues.read_encoded(1, 0, 0, 100, writer.log.end)
    runs = raw_messages.runs_of(entries, 1 << 20)
    run = next(run for run, count in enumerate(raw_messages._counts(runs.first)) if count > 2)
    if is_broken:
        log.broken = {runs.offsets[run] + 1}  # no message begins there, so each can be read alone
    target = memoryview(bytearray(sum(runs.bytes)))
    copied = raw_messages.copy_messages(log, runs, target)
    assert (copied.number, copied.bytes, copied.why) == (runs.first[-1], len(target), "")
    assert copied.has_heads is not is_broken
