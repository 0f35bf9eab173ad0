"""Queue entries and their stored messages in one buffer, with little work for each message: for readers of whole queues.

The messages of a queue lie between those of other queues, records without a message, and halves that nobody may see yet. One
``preadv`` reads up to ``_TOGETHER_MAX`` runs of them: the system copies each run to its place in the buffer, and what is between two of
them to a small one that is never looked at. So nothing else reaches the buffer, and no byte is copied twice. The first heads of
runs go to a third buffer, where kind and size of all of them are compared at once with what the entries state, as a pull does.

A run is messages whose records follow one another: those of a half batch, or of a client that sends alone. They are copied with the heads
between them. If a run is all messages of a half batch, the checksum that was stored with it covers the run, and the queue entries: then
whoever reads it needs no other (decision 0051).

Measured in decision 0043.
"""

import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from operator import add, sub
from typing import Any, Final, NamedTuple

from halfmq import limits
from halfmq.errors import StoreDamaged
from halfmq.model.half_batch import ENTRY_BYTES, ITEM_HEAD_BYTES, WHOLE
from halfmq.model.records import BATCHED, HALF_BATCH_PAYLOAD_AT, MESSAGE_AT, Kind
from halfmq.runtime.disk import BUFFERS_MAX
from halfmq.store.commit_log import RECORD_BYTES_MAX, CommitLog
from halfmq.store.consume_queue import EncodedEntries
from halfmq.store.half_names import HALF_BATCHES
from halfmq.store.layout import QUEUE_ENTRY_BYTES
from halfmq.store.record_codec import MESSAGE_AT_BY_KIND, HalfBatchHead, half_batch_head

#: Runs of one read: the first head, the rest and what is before them are a buffer each.
_TOGETHER_MAX: Final = BUFFERS_MAX // 3
#: Reading this many unneeded bytes costs less than another read.
_FAR_BYTES: Final = 32_768
#: What one block may read of the log, needed or not, and what a read costs besides; bounds the time to some ms.
_READ_BYTES_MAX: Final = 32 << 20
_READ_COST_BYTES: Final = 32_768
#: Of each message in a block, at most: its entry, and the number of a run or what is between two messages of a run.
_BESIDE_BYTES: Final = QUEUE_ENTRY_BYTES + MESSAGE_AT
#: Messages that are tested at once for fitting, and for being in one run; and the bytes of heads before each of these, and after them.
_CHUNK: Final = 64
_HEADS_BEFORE: Final = range(0, (_CHUNK + 1) * MESSAGE_AT, MESSAGE_AT)
#: From the size of so many messages follows how many entries are read for the rest.
_FIRST_ENTRIES: Final = 128
#: Kinds of records, and of messages in a half batch, whose message is at ``MESSAGE_AT``.
_USUAL: Final = bytes({int(Kind.MESSAGE), int(Kind.HALF), BATCHED})
_HEAD_WORDS: Final = MESSAGE_AT // 4
#: Half batches with fewer messages are no different from other messages: to look for their checksum would cost more than it saves.
_HALF_BATCH_MESSAGES: Final = 16
#: Kind and size in the head of a record, and of a message in a half batch.
_head: Final = struct.Struct(">B3xI").unpack_from

assert MESSAGE_AT % 4 == 0
assert ITEM_HEAD_BYTES == MESSAGE_AT
assert all(MESSAGE_AT_BY_KIND[kind] == MESSAGE_AT for kind in _USUAL)


#: NumPy, once ``load_numpy`` was called and found it.
_np: Any = None


def load_numpy() -> None:
    """Import NumPy, which makes reads of half batches cheaper. This takes 0.1 s: not on the loop. Nothing else changes without it."""
    global _np
    try:
        import numpy
    except ImportError:
        return
    _np = numpy


class RawBlock(NamedTuple):
    """Entries of a queue and their messages. ``data``: free bytes, as many as requested; then the encoded entries; of each run of
    messages their number, 4 bytes; then the messages, and before each of them but the first of a run ``MESSAGE_AT`` bytes to skip.

    If there are whole half batches, the numbers of their messages include ``WHOLE``, and after the numbers of all runs are the stored
    checksums of the half batches, 4 bytes each, and 4 free bytes.
    """

    entries: int
    runs: int
    data: bytearray
    #: Why the message after the last one cannot be read; "" if it was not tried.
    why: str = ""
    #: The log no longer has that message; and the offset of the record that made it visible.
    is_missing: bool = False
    visible_at: int = 0
    #: Start and end in ``data`` of the messages of each whole half batch.
    whole: Sequence[tuple[int, int]] = ()
    #: Where the messages begin in ``data``; 0 if some could not be read.
    messages_at: int = 0


def read_block(
    read_entries: Callable[[int, int], EncodedEntries],
    log: CommitLog,
    queue_offset: int,
    entries_max: int,
    bytes_max: int,
    free_bytes: int,
    *,
    with_stored_checksums: bool = False,
) -> RawBlock:
    """As ``Store.read_raw``. ``read_entries(queue offset, number)``: ``ConsumeQueues.read_encoded`` of one queue."""
    entries = read_entries(queue_offset, min(entries_max, _FIRST_ENTRIES))
    if len(entries) == _FIRST_ENTRIES < entries_max:
        first_bytes = len(entries.data) + sum(entries.message_bytes)
        wanted = bytes_max * _FIRST_ENTRIES * 5 // (max(1, first_bytes) * 4)
        if wanted > _FIRST_ENTRIES:
            entries = read_entries(queue_offset, min(entries_max, wanted))
    if not len(entries):
        return RawBlock(0, 0, bytearray(), "its queue entry is missing")
    runs = runs_of(entries, bytes_max)
    number = runs.first[-1]
    if not number:
        why = f"the queue entry for log offset {entries.offsets[0]} states {entries.message_bytes[0]} bytes"
        return RawBlock(0, 0, bytearray(), why)
    counts = _counts(runs.first)
    checksums: list[int] = []
    whole: list[int] = []
    if with_stored_checksums:
        # What cuts the last run is then the end of what was requested.
        is_all = number == entries_max < limits.RAW_READ_MESSAGES_MAX
        for run, head in _half_batches(log, runs):
            if head.messages == counts[run]:
                whole.append(run)
                checksums.append(head.checksum)
                counts[run] |= WHOLE
            elif run and run == len(counts) - 1 and not is_all and _would_fit(head, bytes_max):
                # The next block begins with it, and has it whole.
                runs = Runs(entries, [*runs.first[:-1]], runs.offsets[:-1], runs.bytes[:-1])
                number = runs.first[-1]
                counts.pop()
    table = _big_endian([*counts, *checksums, 0] if checksums else counts)
    counts_at = free_bytes + number * QUEUE_ENTRY_BYTES
    messages_at = counts_at + len(table)
    data = bytearray(messages_at + sum(runs.bytes))
    data[free_bytes:counts_at] = memoryview(entries.data)[: number * QUEUE_ENTRY_BYTES]
    data[counts_at:messages_at] = table
    copied = copy_messages(log, runs, memoryview(data)[messages_at:])
    if copied.number == number and copied.has_heads:
        ends = list(accumulate(runs.bytes, initial=messages_at))
        places = [(ends[run], ends[run + 1]) for run in whole]
        return RawBlock(number, len(runs.bytes), data, whole=places, messages_at=messages_at)
    # Without the stored checksums, which also cover the heads, and are of no use for a part.
    number = copied.number
    first = [*runs.first[: bisect_left(runs.first, number)], number]
    heads = entries.data[: number * QUEUE_ENTRY_BYTES] + _big_endian(_counts(first))
    data = data[:free_bytes] + heads + data[messages_at : messages_at + copied.bytes]
    visible_at = entries.visible_at[number] if number < len(entries) else 0
    return RawBlock(number, len(first) - 1, data, copied.why, copied.is_missing, visible_at)


class Runs(NamedTuple):
    """Runs of ``messages`` whose records follow one another in the log. Of each run: number and log offset of its first message, and
    bytes from the start of that message to the end of the last one. ``first`` ends with the number of all messages.
    """

    messages: EncodedEntries
    first: Sequence[int]
    offsets: Sequence[int]
    bytes: Sequence[int]


def runs_of(messages: EncodedEntries, bytes_max: int) -> Runs:
    """The runs of ``messages``, as far as their records are usual ones, up to ``bytes_max`` with their
    entries, or to one whose size is impossible. The first message always fits.

    Each offset is compared: halves are committed in another order than they lie in the log, so neither the sum of some sizes nor the place
    of the last message says where those between are. Most of what Spark writes is one run, and ``_CHUNK`` messages are compared at once.
    """
    offsets, message_bytes = messages.offsets, messages.message_bytes
    number = _fitting(message_bytes, bytes_max)
    if _np is not None and number > _CHUNK:
        first: list[int] = _first_of_runs(_np, offsets, message_bytes, number)
        return _as_runs(messages, first)
    first = []
    position = offsets[0] - 1
    for chunk in range(0, number, _CHUNK):
        after = min(number, chunk + _CHUNK)
        here, sizes = offsets[chunk:after], message_bytes[chunk:after]
        if first and here[0] == position:
            *places, end = map(add, accumulate(sizes, initial=position), _HEADS_BEFORE)
            if places == list(here):
                position = end
                continue
        for message, (offset, size) in enumerate(zip(here, sizes, strict=True), chunk):
            if offset != position:
                first.append(message)
            position = offset + MESSAGE_AT + size
    first.append(number)
    return _as_runs(messages, first)


def _first_of_runs(np: Any, offsets: Sequence[int], message_bytes: Sequence[int], number: int) -> list[int]:
    """As in ``Runs``, with NumPy: a tenth of the time."""
    starts = np.asarray(offsets, np.int64)[:number]
    ends = starts + np.asarray(message_bytes, np.int64)[:number] + MESSAGE_AT
    return [0, *(np.flatnonzero(starts[1:] != ends[:-1]) + 1).tolist(), number]


def _as_runs(messages: EncodedEntries, first: list[int]) -> Runs:
    offsets, message_bytes, number = messages.offsets, messages.message_bytes, first[-1]
    if len(first) > number:
        return Runs(messages, first, offsets[:number], message_bytes[:number])
    starts = [offsets[message] for message in first[:-1]]
    ends = [offsets[message - 1] + message_bytes[message - 1] for message in first[1:]]
    return Runs(messages, first, starts, list(map(sub, ends, starts)))


def _fitting(message_bytes: Sequence[int], bytes_max: int) -> int:
    """How many messages fit in ``bytes_max`` with what is beside them, up to the first of an impossible size. The first one always fits."""
    number = 0
    while number < len(message_bytes):
        chunk = message_bytes[number : number + _CHUNK]
        left = bytes_max - sum(chunk) - _BESIDE_BYTES * len(chunk)
        if left < 0 or min(chunk) <= 0:
            break
        bytes_max = left
        number += len(chunk)
    for size in message_bytes[number : number + _CHUNK]:
        bytes_max -= size + _BESIDE_BYTES
        if not 0 < size <= RECORD_BYTES_MAX or (bytes_max < 0 and number):
            break
        number += 1
    return number


def _counts(first: Sequence[int]) -> list[int]:
    return list(map(sub, first[1:], first))


def _big_endian(numbers: Sequence[int]) -> bytes:
    words = array("I", numbers)
    if sys.byteorder == "little":
        words.byteswap()
    return words.tobytes()


def _half_batches(log: CommitLog, runs: Runs) -> Iterator[tuple[int, HalfBatchHead]]:
    """(run, head of its record) of each run that begins with the first message of a half batch without delays, and has no message more
    than that. What the heads state is not verified: whoever uses a checksum finds out.
    """
    before = HALF_BATCH_PAYLOAD_AT
    data = memoryview(bytearray(before))
    for run, (begin, end) in enumerate(pairwise(runs.first)):
        offset = runs.offsets[run]
        if end - begin < _HALF_BATCH_MESSAGES or offset < before:
            continue
        try:
            if log.read_into(offset - before, [data]) != len(data):
                continue
        except (LookupError, StoreDamaged):
            continue
        if data[0] not in HALF_BATCHES:
            continue
        head = half_batch_head(data, 0)
        items = head.payload_bytes - head.messages * ENTRY_BYTES - ITEM_HEAD_BYTES
        if items == runs.bytes[run] if head.messages == end - begin else items > runs.bytes[run]:
            yield run, head


def _would_fit(head: HalfBatchHead, bytes_max: int) -> bool:
    """Whether all messages of the half batch fit in one block."""
    return (
        head.messages <= limits.RAW_READ_MESSAGES_MAX
        and head.payload_bytes + head.messages * _BESIDE_BYTES <= bytes_max
    )


class Copied(NamedTuple):
    """``number`` of messages that were copied, and the bytes that they take. ``why``: as in ``RawBlock``."""

    number: int
    bytes: int
    why: str = ""
    is_missing: bool = False
    #: Whether what is between two messages of a run was copied.
    has_heads: bool = True


def copy_messages(log: CommitLog, runs: Runs, target: memoryview) -> Copied:
    """Copy the stored messages, one after the other, to ``target``, with ``MESSAGE_AT`` bytes
    between two messages of a run.

    It ends before a message that cannot be read, and when it has read ``_READ_BYTES_MAX``, but not before the first message.
    """
    run = at = cost = 0
    has_heads = True
    while run < len(runs.offsets) and cost < _READ_BYTES_MAX:
        try:
            run, copied, read = _together(log, runs, run, target[at:])
        except _NotUsual as error:
            for number in range(runs.first[run], runs.first[error.after]):
                if cost >= _READ_BYTES_MAX:
                    return Copied(number, at, has_heads=has_heads)
                try:
                    message = _one(log, runs, number)
                except (LookupError, ValueError, StoreDamaged) as why:
                    return Copied(number, at, str(why), isinstance(why, LookupError))
                if number == runs.first[run + 1]:
                    run += 1
                elif number != runs.first[run]:
                    target[at : at + MESSAGE_AT] = bytes(MESSAGE_AT)
                    at += MESSAGE_AT
                    has_heads = False
                target[at : at + len(message)] = message
                at += len(message)
                cost += _READ_COST_BYTES
            run = error.after
        else:
            at += copied
            cost += read + _READ_COST_BYTES
    return Copied(runs.first[run], at, has_heads=has_heads)


class _NotUsual(Exception):
    """A message before run ``after`` is not where nearly all messages are in their records, or cannot be read: read them one by one."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after


_heads: Final = bytearray(MESSAGE_AT * _TOGETHER_MAX)
_head_views: Final = [memoryview(_heads)[at : at + MESSAGE_AT] for at in range(0, len(_heads), MESSAGE_AT)]
#: Scratch buffer for the bytes between messages; its content is discarded. One for all reads: they run on the loop's thread.
_between: Final = memoryview(bytearray(_FAR_BYTES))


def _together(log: CommitLog, runs: Runs, run: int, target: memoryview) -> tuple[int, int, int]:
    """Copy run ``run`` and those after it that are near each other, with one read. (the run after them, bytes copied, bytes read).

    Raises:
        _NotUsual: a kind or size is not the usual one, or the read failed; ``target`` may contain anything.
    """
    several = slice(run, run + _TOGETHER_MAX)
    start = position = runs.offsets[run]
    segment_end = start - start % log.segment_bytes + log.segment_bytes
    buffers: list[memoryview] = []
    add = buffers.append
    number = at = 0
    for offset, size in zip(runs.offsets[several], runs.bytes[several], strict=True):
        if offset != position:
            if not 0 < offset - position <= _FAR_BYTES or offset >= segment_end:
                break
            add(_between[: offset - position])
        add(_head_views[number])
        end = at + size
        add(target[at:end])
        at = end
        number += 1
        position = offset + MESSAGE_AT + size
    after = run + number
    try:
        read = log.read_into(start, buffers)
    except (LookupError, StoreDamaged):
        raise _NotUsual(after) from None
    heads = _heads[: number * MESSAGE_AT]
    words = array("I", heads)
    if sys.byteorder == "little":
        words.byteswap()
    first = runs.first[run : after + 1]
    sizes = runs.messages.message_bytes
    wanted = array("I", [sizes[message] + MESSAGE_AT for message in first[:-1]])
    if read != position - start:
        raise _NotUsual(after)
    if heads[::MESSAGE_AT].translate(None, _USUAL) or words[1::_HEAD_WORDS] != wanted:
        stated = zip(heads[::MESSAGE_AT], words[1::_HEAD_WORDS], strict=True)
        unusual = [
            one
            for one, (kind, size), usual in zip(range(run, after), stated, wanted, strict=True)
            if kind not in _USUAL or size != usual
        ]
        _copy_one_by_one(log, runs, run, unusual, target)
        read += len(unusual) * _READ_COST_BYTES
    if first[-1] - first[0] > number and not _ends_are_right(runs, range(run, after), target):
        raise _NotUsual(after)
    return after, at, read


def _copy_one_by_one(log: CommitLog, runs: Runs, run: int, unusual: Sequence[int], target: memoryview) -> None:
    """Replace the messages of runs ``unusual``, whose message is elsewhere in its record (a delayed one, a copy). ``target`` begins with
    ``run``.

    Raises:
        _NotUsual: one cannot be read, or has others after it.
    """
    places = list(accumulate(runs.bytes[run : unusual[-1]], initial=0))
    for one in unusual:
        number = runs.first[one]
        try:
            if runs.first[one + 1] != number + 1:
                raise ValueError("records with messages elsewhere do not follow one another")
            message = _one(log, runs, number)
        except (LookupError, ValueError, StoreDamaged):
            raise _NotUsual(unusual[-1] + 1) from None
        at = places[one - run]
        target[at : at + len(message)] = message


def _ends_are_right(runs: Runs, several: range, target: memoryview) -> bool:
    """Whether the last record of each run is what its entry states. Those between follow one another from the first to the last."""
    offsets, message_bytes = runs.messages.offsets, runs.messages.message_bytes
    at = 0
    for run in several:
        last = runs.first[run + 1] - 1
        if last > runs.first[run]:
            kind, size = _head(target, at + offsets[last] - runs.offsets[run] - MESSAGE_AT)
            if kind not in _USUAL or size != message_bytes[last] + MESSAGE_AT:
                return False
        at += runs.bytes[run]
    return True


def _one(log: CommitLog, runs: Runs, number: int) -> memoryview:
    """One message.

    Raises:
        ValueError: there is none of its size.
    """
    offset, size = runs.messages.offsets[number], runs.messages.message_bytes[number]
    message = log.stored_view(offset)
    if len(message) != size:
        raise ValueError(f"the message at log offset {offset} has {len(message)} bytes; its queue entry states {size}")
    return message
