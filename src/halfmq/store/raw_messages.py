"""Queue entries and their stored messages in one buffer, with little work for each message: for readers of whole queues.

The messages of a queue lie between those of other queues, records without a message, and halves that nobody may see yet. One
``preadv`` reads up to ``_TOGETHER_MAX`` of them: the system copies each message to its place in the buffer, and what is between two of
them to a small one that is never looked at. So nothing else reaches the buffer, and no byte is copied twice. Heads of records
go to a third buffer, where kind and size of all of them are compared at once with what the entries state, as a pull does.

Measured for messages of 340 bytes (1.3 KiB) in one of eight queues that were written in turn: 0.9 (1.6) us a message, of which the system
call takes 0.3 (1.0). Slices of larger reads take 0.9 (2.5) us, a read for each message 3.7. Decision 0043.
"""

import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple, Protocol

from halfmq import limits
from halfmq.errors import StoreDamaged
from halfmq.model.records import BATCHED, MESSAGE_AT, Kind
from halfmq.runtime.disk import BUFFERS_MAX
from halfmq.store.consume_queue import EncodedEntries
from halfmq.store.layout import QUEUE_ENTRY_BYTES
from halfmq.store.record_codec import MESSAGE_AT_BY_KIND

#: Messages of one read: head, message and what is before them are a buffer each.
_TOGETHER_MAX: Final = BUFFERS_MAX // 3
#: Reading this many unneeded bytes costs less than another read.
_FAR_BYTES: Final = 32_768
#: What one block may read of the log, needed or not, and what a read costs besides; bounds the time to some ms.
_READ_BYTES_MAX: Final = 32 << 20
_READ_COST_BYTES: Final = 32_768
#: A longer record is damage; without a bound a damaged entry would cost a read of a whole segment.
_MESSAGE_BYTES_MAX: Final = limits.FRAME_BYTES_MAX + (1 << 20)
#: From the size of so many messages follows how many entries are read for the rest.
_FIRST_ENTRIES: Final = 128
#: Kinds of records, and of messages in a half batch, whose message is at ``MESSAGE_AT``.
_USUAL: Final = bytes({int(Kind.MESSAGE), int(Kind.HALF), BATCHED})
_HEAD_WORDS: Final = MESSAGE_AT // 4

assert MESSAGE_AT % 4 == 0
assert all(MESSAGE_AT_BY_KIND[kind] == MESSAGE_AT for kind in _USUAL)


class Log(Protocol):
    """Reads of the log; both raise LookupError or StoreDamaged as ``CommitLog.stored_view``."""

    segment_bytes: int

    def read_into(self, offset: int, buffers: Sequence[memoryview]) -> int:
        """Fill ``buffers`` with the bytes from log offset ``offset`` on. Fewer bytes than fit only at the end of its segment."""
        ...

    def stored_view(self, offset: int) -> memoryview:
        """The stored message in the record at a log offset."""
        ...


class RawBlock(NamedTuple):
    """Entries of a queue and their messages. ``data``: free bytes, as many as requested; then the encoded entries; then the messages."""

    entries: int
    data: bytearray
    #: Why the message after the last one cannot be read; "" if it was not tried.
    why: str = ""
    #: The log no longer has that message; and the offset of the record that made it visible.
    is_missing: bool = False
    visible_at: int = 0


def read_block(
    read_entries: Callable[[int, int], EncodedEntries],
    log: Log,
    queue_offset: int,
    entries_max: int,
    bytes_max: int,
    free_bytes: int,
) -> RawBlock:
    """As ``Store.read_raw``. ``read_entries(queue offset, number)``: ``ConsumeQueues.read_encoded`` of one queue."""
    entries = read_entries(queue_offset, min(entries_max, _FIRST_ENTRIES))
    if len(entries) == _FIRST_ENTRIES < entries_max:
        first_bytes = len(entries.data) + sum(entries.message_bytes)
        wanted = bytes_max * _FIRST_ENTRIES * 5 // (max(1, first_bytes) * 4)
        if wanted > _FIRST_ENTRIES:
            entries = read_entries(queue_offset, min(entries_max, wanted))
    ends = list(accumulate([size + QUEUE_ENTRY_BYTES for size in entries.message_bytes]))
    entries = entries.first(max(1, bisect_right(ends, bytes_max)))
    number = len(entries)
    if not number:
        return RawBlock(0, bytearray(), "its queue entry is missing")
    if not 0 < min(entries.message_bytes) <= max(entries.message_bytes) <= _MESSAGE_BYTES_MAX:
        number = next(i for i, size in enumerate(entries.message_bytes) if not 0 < size <= _MESSAGE_BYTES_MAX)
        if not number:
            why = f"the queue entry for log offset {entries.offsets[0]} states {entries.message_bytes[0]} bytes"
            return RawBlock(0, bytearray(), why)
        entries = entries.first(number)
    messages_at = free_bytes + number * QUEUE_ENTRY_BYTES
    data = bytearray(free_bytes + ends[number - 1])
    copied = copy_messages(log, entries.offsets, entries.message_bytes, memoryview(data)[messages_at:])
    if copied.number == number:
        data[free_bytes:messages_at] = entries.data
        return RawBlock(number, data)
    heads = entries.data[: copied.number * QUEUE_ENTRY_BYTES]
    data = data[:free_bytes] + heads + data[messages_at : messages_at + copied.bytes]
    return RawBlock(copied.number, data, copied.why, copied.is_missing, entries.visible_at[copied.number])


class Copied(NamedTuple):
    """``number`` of messages that were copied, and their bytes. ``why``: as in ``RawBlock``."""

    number: int
    bytes: int
    why: str = ""
    is_missing: bool = False


def copy_messages(log: Log, offsets: Sequence[int], message_bytes: Sequence[int], target: memoryview) -> Copied:
    """Copy the stored messages of the records at ``offsets`` (log offsets), one after the other, to ``target``.

    It ends before a message that cannot be read, and when it has read ``_READ_BYTES_MAX``, but not before the first message.
    """
    done = at = cost = alone = 0
    count = len(offsets)
    while done < count and cost < _READ_BYTES_MAX:
        try:
            if alone:
                message = _one(log, offsets[done], message_bytes[done])
                target[at : at + len(message)] = message
                number, copied, read = 1, len(message), _READ_COST_BYTES
                alone -= 1
            else:
                several = slice(done, min(count, done + _TOGETHER_MAX))
                number, copied, read = _together(log, offsets[several], message_bytes[several], target[at:])
        except _NotUsual as error:
            alone = error.number
            continue
        except (LookupError, ValueError, StoreDamaged) as error:
            return Copied(done, at, str(error), isinstance(error, LookupError))
        done += number
        at += copied
        cost += read + _READ_COST_BYTES
    return Copied(done, at)


class _NotUsual(Exception):
    """One of ``number`` messages is not where nearly all messages are in their records, or cannot be read: read them one by one."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


_heads: Final = bytearray(MESSAGE_AT * _TOGETHER_MAX)
_head_views: Final = [memoryview(_heads)[at : at + MESSAGE_AT] for at in range(0, len(_heads), MESSAGE_AT)]
#: What nobody looks at. One for all reads: they run on the loop's thread.
_between: Final = memoryview(bytearray(_FAR_BYTES))


def _together(
    log: Log, offsets: Sequence[int], message_bytes: Sequence[int], target: memoryview
) -> tuple[int, int, int]:
    """Copy the first messages, as many as are near each other, with one read. (number, bytes copied, bytes read).

    Raises:
        _NotUsual: a kind or size is not the usual one, or the read failed; ``target`` may contain anything.
    """
    start = position = offsets[0]
    segment_end = start - start % log.segment_bytes + log.segment_bytes
    buffers: list[memoryview] = []
    add = buffers.append
    number = at = 0
    for offset, size in zip(offsets, message_bytes, strict=True):
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
    try:
        read = log.read_into(start, buffers)
    except (LookupError, StoreDamaged):
        raise _NotUsual(number) from None
    heads = _heads[: number * MESSAGE_AT]
    words = array("I", heads)
    if sys.byteorder == "little":
        words.byteswap()
    wanted = array("I", [size + MESSAGE_AT for size in message_bytes[:number]])
    if read != position - start or heads[::MESSAGE_AT].translate(None, _USUAL) or words[1::_HEAD_WORDS] != wanted:
        raise _NotUsual(number)
    return number, at, read


def _one(log: Log, offset: int, size: int) -> memoryview:
    """The message of one entry.

    Raises:
        ValueError: there is none of its size.
    """
    message = log.stored_view(offset)
    if len(message) != size:
        raise ValueError(f"the message at log offset {offset} has {len(message)} bytes; its queue entry states {size}")
    return message
