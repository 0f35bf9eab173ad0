"""What a disk may give back: damaged logs, snapshots, pages, names and derived files, held against what was written.

Inputs of ``log`` and ``derived`` are programs: a line of damages to a store that is always the same. The others are bytes
of one file.
"""

import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from halfmq.core.snapshot import load_rows
from halfmq.errors import StoreDamaged, WrongVersion
from halfmq.model.stored_message import StoredMessage
from halfmq.store import checkpoint, topics_file, two_slots
from halfmq.store.batch_codec import Header, NotABatch, decode_batch, examine
from halfmq.store.checkpoint import Present, Slot, read_checkpoint, write_checkpoint
from halfmq.store.consume_queue import ConsumeQueues, visible_before
from halfmq.store.identity import Identity, read_identity, write_identity
from halfmq.store.key_index import KeyIndex
from halfmq.store.layout import CHECKPOINT, SLOT_BYTES, WATERMARK
from halfmq.store.log_scan import Batch, CorruptInterior, EndOfLog, LogScan, TornTail
from halfmq.store.open_files import OpenFiles
from halfmq.store.recovery import examine_log, repair
from halfmq.store.segment import SegmentFiles, segment_name
from halfmq.store.transaction_table import TransactionTable
from halfmq.store.watermark_page import Watermark, WatermarkPage, read_watermark_page
from tests.fuzz.target import Target, hold, outcome, same
from tests.support import log_records as make
from tests.support.core_log import CoreLog, end, half, message, part
from tests.support.durable_digest import durable_digest
from tests.support.faulty_disk import FaultyDisk
from tests.support.steps import result_of

HOME: Final = Path("/store")
LOG: Final = HOME / "log"
SEGMENT: Final = make.SEGMENT
STORE: Final = bytes(range(16))

# --- one batch ---------------------------------------------------------------------------------------------------


class Written(NamedTuple):
    """A batch as it was written. ``data`` without padding: nothing depends on that."""

    offset: int
    end: int
    durable_position: int
    data: bytes


class WrittenLog(NamedTuple):
    image: dict[Path, bytes]
    batches: tuple[Written, ...]


@cache
def written_log(variant: int) -> WrittenLog:
    """A log over several segments and two lives, with a record of each kind. 1: synced seldom; 2: large bodies."""
    disk = FaultyDisk()
    under = make.LogUnderTest(disk, LOG).make().start()
    rng = random.Random(variant)
    kinds = [
        make.plain(), make.half(), make.rolled_back(0), make.checked(), make.delayed(), make.topic_set(),
        make.topic_deleted(), make.group_set(), make.offsets_committed(), make.epoch_started(), make.committed(make.ref()),
        make.released(make.ref()), make.trim(0), make.plain(b""), make.plain(b"x" * 900), make.operator_acted(),
    ]  # fmt: skip
    for number in range(26):
        several = [rng.choice(kinds) for _ in range(rng.randrange(1, 5))]
        size = rng.choice((100, 3_000, 9_000)) if variant != 2 else 20_000
        under.append(*several, make.plain(rng.randbytes(size)), time_ms=1_000 + number)
        if variant != 1 or number % 9 == 8:
            under.log.sync(under.log.end)
        if number == 15:
            under.files.close()
            under.start()
    image = {path: disk.content(path) for path in disk.paths() if path.suffix == ".seg"}
    found = list(LogScan(SegmentFiles(disk, LOG, SEGMENT)).from_batch(0, 0))
    batches = [
        Written(header.offset, header.end, header.durable_position, bytes(view[place : place + header.data_length]))
        for header, view, place in (one for one in found if isinstance(one, Batch))
    ]
    assert len(batches) >= 26, len(batches)
    assert isinstance(found[-1], EndOfLog), found[-1]
    return WrittenLog(image, tuple(batches))


def run_batch_bytes(data: bytes) -> None:
    """The bytes may stand anywhere in a larger buffer; they say themselves at which log offset they want to lie."""
    offset = int.from_bytes(data[16:24], "big", signed=True)
    found = examine(b"\xa5" * 5 + data, 5, offset, len(data))
    if isinstance(found, NotABatch):
        hold(bool(found.why), "why it is no batch is said")
        return
    assert isinstance(found, Header)
    known = {batch.data: batch for variant in range(3) for batch in written_log(variant).batches}
    hold(data[: found.data_length] in known, "a batch that nobody wrote is taken for one")
    records = decode_batch(data, 0, found)
    same("number of records", len(records), found.record_count)
    same("end of the last record", records[-1].offset + records[-1].size, found.offset + found.data_length)


# --- a damaged log -------------------------------------------------------------------------------------------------

_STEP_BYTES: Final = 6


def _damaged(log: WrittenLog, program: bytes) -> FaultyDisk:
    disk = FaultyDisk()
    content = {path: bytearray(data) for path, data in log.image.items()}
    total = len(content) * SEGMENT
    paths = sorted(content)
    for at in range(0, len(program) - _STEP_BYTES + 1, _STEP_BYTES):
        step, where, size = program[at], int.from_bytes(program[at + 1 : at + 4], "big"), program[at + 4] + 1
        argument = program[at + 5]
        # Half of the damages fall on the edge of a batch, where the fields are that count.
        if argument & 1:
            batch = log.batches[where % len(log.batches)]
            place = batch.offset + argument // 2 % (64 if argument & 2 else max(1, len(batch.data)))
        else:
            place = where % total
        path = paths[min(place // SEGMENT, len(paths) - 1)]
        data = content.get(path)
        if data is None:
            continue
        here = place % SEGMENT
        match step % 9:
            case 0:
                if here < len(data):
                    data[here] ^= 1 << (argument & 7)
            case 1:
                _over(data, here, bytes((argument,)) * (size % 8 + 1))
            case 2:
                _over(data, here, bytes(size * (512 if argument & 4 else 1)))
            case 3:
                _over(data, here, random.Random(argument).randbytes(size))
            case 4:  # a sector that kept what another one has
                other = log.batches[argument % len(log.batches)]
                _over(data, here - here % 8, other.data)
            case 5:
                del data[here:]
            case 6 if argument > 128:
                del content[path]
            case 7:  # a write that went to the wrong place
                _over(data, here // 512 * 512, bytes(data[: 512 * (argument % 4 + 1)]))
            case _:  # the tail never reached the disk
                _over(data, here, bytes(SEGMENT))
    disk.make_directories(LOG)
    for path, data in content.items():
        _put(disk, path, bytes(data))
    return disk


def _over(data: bytearray, at: int, new: bytes) -> None:
    """Overwrite; a segment keeps its length."""
    room = max(0, len(data) - at)
    data[at : at + len(new[:room])] = new[:room]


def _lives(disk: FaultyDisk, batch: Written) -> bool:
    path = LOG / segment_name(batch.offset // SEGMENT * SEGMENT)
    if not disk.exists(path):
        return False
    at = batch.offset % SEGMENT
    length = batch.end - batch.offset
    content = disk.content(path)
    return content[at : at + len(batch.data)] == batch.data and len(content) >= at + length


def _nonzero_behind(disk: FaultyDisk, position: int) -> bool:
    for path in disk.paths():
        start = int(path.name[:20])
        if path.suffix == ".seg" and start + SEGMENT > position and any(disk.content(path)[max(0, position - start) :]):
            return True
    return False


def run_log(data: bytes) -> None:
    if len(data) < 2:
        return
    log = written_log(data[0] % 3)
    disk = _damaged(log, data[2:])
    alive = [_lives(disk, batch) for batch in log.batches]
    first = alive.index(False) if False in alive else len(alive)
    prefix = log.batches[:first]
    stop = prefix[-1].end if prefix else 0
    named = log.batches[data[1] % len(log.batches)].end if data[1] & 1 else 0
    durable = max([named, *(batch.durable_position for batch, lives in zip(log.batches, alive, strict=True) if lives)])

    found = list(LogScan(SegmentFiles(disk, LOG, SEGMENT)).from_batch(0, named))
    batches = [
        bytes(one.view[one.place : one.place + one.header.data_length]) for one in found if isinstance(one, Batch)
    ]
    same("the batches that were found", batches, [batch.data for batch in prefix])
    match found[-1]:
        case CorruptInterior(at, file, why, position):
            hold(stop < durable, f"damage at {at} is refused, but nothing behind {stop} was durable")
            same("durable position of the refusal", position, durable)
            hold(bool(why) and file.parent == LOG, "the place is said")
        case TornTail(cut_at, _, _, whole_batches):
            hold(stop >= durable, f"cut at {cut_at}, below the durable position {durable}")
            same("cut at", cut_at, stop)
            same("whole batches behind the cut", whole_batches, sum(alive[first:]))
            hold(_nonzero_behind(disk, stop), "a torn tail of zeros")
        case EndOfLog(at, _):
            hold(stop >= durable, f"the log ends at {at}, below the durable position {durable}")
            same("the end", at, stop)
            hold(not _nonzero_behind(disk, stop), "something lies behind the end")
        case other:
            hold(False, f"a scan ends with {other}")
    if disk.exists(LOG / segment_name(0)):
        _settles(disk, stop, len(prefix), isinstance(found[-1], CorruptInterior) and not named)


def _settles(disk: FaultyDisk, stop: int, batches: int, refused: bool) -> None:
    """A start refuses, or cuts and then finds a clean end."""
    files = SegmentFiles(disk, LOG, SEGMENT)
    recovery = outcome(StoreDamaged, examine_log, files, ())
    if refused:
        same("a start", recovery.kind, "StoreDamaged")
    if recovery.error is None:
        same("recovered end", recovery.value.end, stop)
        repair(disk, files, recovery.value)
        again = list(LogScan(SegmentFiles(disk, LOG, SEGMENT)).from_batch(0, 0))
        same("batches after the cut", len(again) - 1, batches)
        hold(isinstance(again[-1], EndOfLog) and again[-1].at == stop, f"after the cut: {again[-1]}")


def _programs(seed: int, count: int) -> list[bytes]:
    rng = random.Random(seed)
    return [
        bytes((rng.randrange(3), rng.randrange(256))) + rng.randbytes(_STEP_BYTES * (number % 5))
        for number in range(count)
    ]


# --- files that are one piece --------------------------------------------------------------------------------------


@cache
def _state() -> CoreLog:
    log = CoreLog()
    replies = [log.do(half(f"T{number}", group=f"G{number % 2}")) for number in range(10)]
    log.do(part("P", 0))
    log.do(end("T0", replies[0], group="G0"))
    log.do(message("M1", queue=1))
    log.do(message("M2", DELAY="3"))
    log.roll()
    return log


@cache
def _snapshot_file() -> tuple[int, bytes]:
    log = _state()
    disk = FaultyDisk()
    chunks = log.snapshot()
    position = log.state.log_end
    checkpoint.write_snapshot(disk, HOME / "snapshots", STORE, 3, position, chunks)
    return position, disk.content(checkpoint.snapshot_path(HOME / "snapshots", position))


def run_snapshot(data: bytes) -> None:
    position, written = _snapshot_file()
    disk = _with(checkpoint.snapshot_path(HOME / "snapshots", position), data)
    match checkpoint.read_snapshot(disk, HOME / "snapshots", STORE, position):
        case checkpoint.WholeSnapshot(_, _, _, _, chunks):
            same("the file", data, written)
            log = _state()
            same("the state", durable_digest(load_rows(log.settings, chunks)), durable_digest(log.state))
        case two_slots.Unreadable(why):
            hold(bool(why) and data != written, "a whole snapshot cannot be read")
        case other:
            hold(False, f"reading gives {other}")


_SLOTS: Final = (Slot(4, 2, 4_096, 77), Slot(5, 2, 8_192, 78))
_PAGES: Final = ((4_096, 0, 1_000, 4_096), (8_192, 64, 2_000, 9_000))


@cache
def _checkpoint_slots() -> tuple[bytes, bytes]:
    disk = FaultyDisk()
    disk.make_directories(HOME)
    for slot in _SLOTS:
        write_checkpoint(disk, HOME / "checkpoint", STORE, slot)
    content = disk.content(HOME / "checkpoint")
    return content[: CHECKPOINT.size], content[SLOT_BYTES:][: CHECKPOINT.size]


@cache
def _published_slots() -> tuple[bytes, bytes]:
    disk = FaultyDisk()
    disk.make_directories(HOME)
    page = WatermarkPage.open(disk, HOME / "published", STORE, 2)
    for facts in _PAGES:
        page.publish(*facts)
    content = disk.content(HOME / "published")
    return content[SLOT_BYTES:][: WATERMARK.size], content[: WATERMARK.size]


def run_checkpoint(data: bytes) -> None:
    """``data``: both slots, one behind the other."""
    first, second = data[: CHECKPOINT.size], data[CHECKPOINT.size : 2 * CHECKPOINT.size]
    disk = _with(HOME / "checkpoint", first.ljust(SLOT_BYTES, b"\0") + second)
    whole = [slot for slot, raw in zip(_SLOTS, _checkpoint_slots(), strict=True) if raw in (first, second)]
    match read_checkpoint(disk, HOME / "checkpoint", STORE):
        case Present(slots):
            same("the slots", sorted(set(slots)), whole)
        case other:
            hold(not whole, f"a whole slot is not found: {other}")


def run_published(data: bytes) -> None:
    """``data``: both slots, one behind the other."""
    first, second = data[: WATERMARK.size], data[WATERMARK.size : 2 * WATERMARK.size]
    disk = _with(HOME / "published", first.ljust(SLOT_BYTES, b"\0") + second)
    whole = [facts for facts, raw in zip(_PAGES, _published_slots(), strict=True) if raw in (first, second)]
    match read_watermark_page(disk, HOME / "published"):
        case Watermark(_, store, epoch, rebuilding, position, log_start, time_ms, durable):
            same("what is published", (position, log_start, time_ms, durable), whole[-1])
            same("by whom", (store, epoch, rebuilding), (STORE, 2, False))
        case other:
            hold(not whole, f"a whole slot is not found: {other}")


def _with(path: Path, content: bytes) -> FaultyDisk:
    disk = FaultyDisk()
    _put(disk, path, content)
    return disk


def _put(disk: FaultyDisk, path: Path, content: bytes) -> None:
    disk.make_directories(path.parent)
    disk.open(path, create=True).close()
    disk.put(path, content)


@cache
def _named_files() -> tuple[bytes, bytes]:
    disk = FaultyDisk()
    disk.make_directories(HOME)
    write_identity(disk, HOME, Identity(STORE, SEGMENT))
    topics_file.write_topics(disk, HOME / "topics.json", STORE.hex(), _TOPICS)
    return disk.content(HOME / "store.json"), disk.content(HOME / "topics.json")


_TOPICS: Final = (topics_file.TopicInfo(3, "orders", 4, 4, 6), topics_file.TopicInfo(4, "größe", 1, 1, 6))


def read_store_json(data: bytes) -> Identity | None:
    return read_identity(_with(HOME / "store.json", data), HOME)


def read_topics_json(data: bytes) -> tuple[str, list[topics_file.TopicInfo]]:
    path = HOME / "topics.json"
    return topics_file.read_topics(_with(path, data), path)


def run_identity(data: bytes) -> None:
    found = outcome((StoreDamaged, WrongVersion), read_store_json, data)
    if found.value is not None:
        hold(
            len(found.value.store_id) == 16 and found.value.segment_bytes > 0,
            f"an identity that cannot be: {found.value}",
        )


def run_topics(data: bytes) -> None:
    found = outcome((StoreDamaged, WrongVersion), read_topics_json, data)
    if found.error is None and found.value[1]:
        same("the topics", found.value[1], list(_TOPICS))


# --- derived files -------------------------------------------------------------------------------------------------


@cache
def _derived_files() -> dict[str, bytes]:
    """Files of the sample store by name, cut to what is used of them."""
    import tempfile

    from tests.support.sample_store import sample_store

    with tempfile.TemporaryDirectory() as folder:
        writer = sample_store(Path(folder))
        files = {}
        for path in sorted(writer.shard.rglob("*")):
            if path.suffix in (".q", ".tx", ".key"):
                files[str(path.relative_to(writer.shard))] = path.read_bytes().rstrip(b"\0") + b"\0" * 96
        writer.files.close()
    return files


def run_derived(data: bytes) -> None:
    """``data``: which file, then its bytes: a queue, the transaction table, or a key file."""
    if not data:
        return
    names = sorted(_derived_files())
    name = names[data[0] % len(names)]
    disk = _with(HOME / name, data[1:])
    files = OpenFiles(disk)
    if name.endswith(".tx"):
        table = TransactionTable(disk, HOME / "transactions", files)
        rows = [row for half_index in range(len(data) // 128 + 2) if (row := table.row(half_index)) is not None]
        hold(len(rows) <= len(data) // 128 + 1, "more rows than bytes")
        table.search_settled("", "T1", 4)
        for base in table.bases():
            table.expired(1 << 40, [base])
    elif name.endswith(".key"):
        index = KeyIndex(disk, HOME / "keys", files, SEGMENT)
        for position, entries_max in ((1 << 40, len(data) // 16), (SEGMENT // 2, 0)):
            index.load(position, _no_message)  # the entries of a segment that is still written must name messages
            hold(len(list(index.find("orders", "common"))) <= entries_max, f"more entries than {entries_max}")
    else:
        _read_queue(ConsumeQueues(disk, HOME / "queues", files), name, data[1:])


def _no_message(offset: int) -> tuple[int, StoredMessage]:
    raise LookupError(offset)


def _read_queue(queues: ConsumeQueues, name: str, content: bytes) -> None:
    topic_id, queue_id = (int(part) for part in name.split("/")[1:3])
    entries = len(content) // 48
    for position in _positions(content):
        seen = visible_before(lambda at, length: content[at : at + length], entries, position)
        hold(0 <= seen <= entries, "a bound outside of the file")
        queues.load(position, 0)
        first, stop = queues.bounds(topic_id, queue_id)
        hold(0 <= first <= stop <= entries, f"bounds {first} to {stop} of {entries} entries")
        found = queues.read(topic_id, queue_id, first, 1_000, position)
        hold(len(found) <= stop - first, "more entries than the bounds say")
        for upper in (False, True):
            at = queues.search_by_time(topic_id, queue_id, 1_700_000_000_050, upper=upper)
            hold(0 <= at <= stop, f"a time is found at {at}")
        result_of(queues.find_offset(topic_id, queue_id, position))
        hold(sum(map(len, queues.find_key(topic_id, 0))) <= stop - first, "more keys than entries")


def _positions(content: bytes) -> Iterator[int]:
    yield from (0, 1, 5_000, 100_000, (1 << 63) - 1)
    if len(content) >= 24:
        yield int.from_bytes(content[17:24], "big")


def _derived_seeds() -> list[bytes]:
    return [bytes((number,)) + data for number, (_, data) in enumerate(sorted(_derived_files().items()))]


TARGETS: Final = (
    Target(
        "batch-bytes", "examining any bytes says that they are a batch only if one was written, and never raises",
        run_batch_bytes,
        lambda: [batch.data.ljust(batch.end - batch.offset, b"\0") for batch in written_log(0).batches],
        ("halfmq.store.batch_codec", "halfmq.store.record_codec"), fresh=300,
    ),
    Target(
        "log", "a scan of a damaged log gives the batches before the damage, then the outcome that the durable position asks "
        "for, as a second reader works it out; a start cuts what may be cut and finds a clean end",
        run_log, lambda: _programs(7, 40), ("halfmq.store.log_scan", "halfmq.store.recovery"), fresh=60,
    ),
    Target(
        "snapshot", "a snapshot is unreadable or gives the state that was saved",
        run_snapshot, lambda: [_snapshot_file()[1]], ("halfmq.store.checkpoint", "halfmq.core.snapshot", "halfmq.core.schema"),
    ),
    Target(
        "checkpoint", "a whole slot is found, a damaged one is not believed",
        run_checkpoint, lambda: [b"".join(_checkpoint_slots())], ("halfmq.store.checkpoint", "halfmq.store.two_slots"),
    ),
    Target(
        "published", "the newest whole slot is found, a damaged one is not believed",
        run_published, lambda: [b"".join(_published_slots())], ("halfmq.store.watermark_page", "halfmq.store.two_slots"),
    ),
    Target(
        "identity", "store.json is read or refused by name",
        run_identity, lambda: [_named_files()[0]], ("halfmq.store.identity",),
    ),
    Target(
        "topics", "topics.json is what was written, or refused by name",
        run_topics, lambda: [_named_files()[1]], ("halfmq.store.topics_file",),
    ),
    Target(
        "derived", "readers of damaged queues, tables and keys stay within the file and come to an end",
        run_derived, _derived_seeds,
        ("halfmq.store.consume_queue", "halfmq.store.transaction_table", "halfmq.store.key_index"), fresh=80,
    ),
)  # fmt: skip
