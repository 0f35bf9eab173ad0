"""Messages as consumers may see them: read from the log, with fields patched in the copy that is sent.

Only messages that are visible before the high watermark are found: the indexes end there, and a half message counts once its row in the
transaction table is committed and visible. A look-up or a send-back of an undecided half, a rolled-back one, or a delayed
message before its time therefore finds nothing.
"""

import logging
from typing import Final, NamedTuple

from halfmq import limits
from halfmq.core.commands import SettledRow
from halfmq.core.state import State
from halfmq.errors import StoreDamaged
from halfmq.model.records import BATCHED, Kind
from halfmq.model.steps import Steps
from halfmq.model.stored_message import AT_PHYSICAL_OFFSET, StoredMessage, decode, patch_committed, patch_released
from halfmq.store.consume_queue import QueueEntry
from halfmq.store.indexes import FoundMessage
from halfmq.store.layout import ROW_COMMITTED, ROW_ROLLED_BACK
from halfmq.store.store import Store
from halfmq.store.transaction_table import TransactionRow

log = logging.getLogger("halfmq.stored")

_HALVES: Final = frozenset({Kind.HALF, Kind.COPIED_HALF})
_DELAYED: Final = frozenset({Kind.DELAYED, Kind.COPIED_DELAYED})
_HALF_BATCHES: Final = frozenset({Kind.HALF_BATCH, Kind.COPIED_HALF_BATCH})

#: RocketMQ ``defaultQueryMaxNum``.
KEY_MATCHES_MAX: Final = 32
#: Clients accept no larger frame than ``limits.FRAME_BYTES_MAX``.
_KEY_BYTES_MAX: Final = limits.FRAME_BYTES_MAX // 2


class KeyMatches(NamedTuple):
    """``messages`` in the stored layout, as consumers see them."""

    messages: list[bytearray]
    #: The index is complete up to this position, and this broker time.
    indexed_ms: int
    indexed_to: int


def patched(
    view: memoryview, offset: int, queue_offset: int, store_time_ms: int, *, prepared_offset: int | None = None
) -> bytearray:
    """The stored message in ``view`` (of the record at ``offset``) with its place in a queue, to send.

    ``prepared_offset``: for a former half, its first offset, which its producer knows. None: it never was a half.
    """
    copy = bytearray(view)
    copy[AT_PHYSICAL_OFFSET : AT_PHYSICAL_OFFSET + 8] = offset.to_bytes(8, "big")
    if prepared_offset is not None:
        patch_committed(copy, 0, queue_offset, store_time_ms, prepared_offset)
    else:
        patch_released(copy, 0, queue_offset, store_time_ms)
    return copy


def settled_row(half_index: int, row: TransactionRow) -> SettledRow:
    """The command's value for a row of the transaction table with a verdict."""
    return SettledRow(
        half_index,
        row.original_offset,
        row.state == ROW_COMMITTED,
        row.verdict_position,
        row.id_hash,
        row.group_hash,
        row.decided_by,
        row.settled_at_ms,
        max(1, row.halves),
    )


class StoredMessages:
    """Single messages: by log offset, by key, as a half of a check."""

    def __init__(self, view: State, store: Store) -> None:
        self._view = view
        self._store = store

    def settled_row(self, half_index: int) -> SettledRow | None:
        """The verdict in the transaction table for a half; None if it has none."""
        row = self._store.transaction_row(half_index)
        if row is None or row.state not in (ROW_COMMITTED, ROW_ROLLED_BACK):
            return None
        return settled_row(half_index, row)

    def half_bytes(self, offset: int) -> bytes | None:
        """The stored half whose record is at ``offset``, undecided or not.

        None if the log no longer has it, or if it is damaged: then no check of it is possible, but others are.
        """
        try:
            half = bytes(self._store.stored_view(offset))
            decode(half)
        except LookupError:
            return None
        except (ValueError, StoreDamaged) as error:
            log.error(
                "the half at log offset %d is damaged, so no check is possible; its transaction stays undecided: "
                "restore its segment from a backup, or roll the transaction back, which needs no copy (%s)",
                offset, error,
            )  # fmt: skip
            return None
        return half

    def visible_bytes(self, offset: int) -> Steps[bytearray | None]:
        """The message whose record is at ``offset``, as consumers see it; None: no message is visible there.

        Raises:
            StoreDamaged, OSError: the disk cannot read it.
        """
        if not 0 <= offset < self._view.session.published:
            return None
        try:
            view = self._store.stored_view(offset)
            message, physical_offset, _ = decode(view)
            kind = self._store.kind_at(offset)
            if kind == BATCHED:
                return (yield from self._batched(view, offset))
        except (LookupError, ValueError):
            return None  # an invented offset may point anywhere into the log
        if physical_offset != offset or kind in _HALF_BATCHES:
            return None
        if kind in _HALVES:
            row = self._store.transaction_row(message.queue_offset)
            if row is None or row.state != ROW_COMMITTED or row.queue_offset < 0:
                return None
            if offset not in (row.original_offset, row.current_offset):
                return None
            return patched(view, offset, row.queue_offset, row.settled_at_ms, prepared_offset=row.original_offset)
        if kind in _DELAYED:
            return (yield from self._released(view, offset))
        return bytearray(view)

    def _batched(self, view: memoryview, offset: int) -> Steps[bytearray | None]:
        """A message of a half batch."""
        start, half_index, number = self._store.batched_place(offset)
        row = self._store.transaction_row(half_index)
        if row is None or row.state != ROW_COMMITTED or start not in (row.original_offset, row.current_offset):
            return None
        if row.queue_offset < 0:
            return (yield from self._released(view, offset))
        prepared = row.original_offset + offset - start
        return patched(view, offset, row.queue_offset + number, row.settled_at_ms, prepared_offset=prepared)

    def _released(self, view: memoryview, offset: int) -> Steps[bytearray | None]:
        """A delayed message: visible once a queue leads to it."""
        message, _, _ = decode(view)
        topic = self._view.topics_by_name.get(message.topic)
        if topic is None:
            return None
        found = yield from self._store.find_offset(topic.topic_id, message.queue_id, offset)
        if not found:
            return None
        queue_offset, entry = found
        try:
            return self._as_it_leaves(self._store.stored_view(offset), queue_offset, entry)
        except LookupError:
            return None  # trimmed during the search

    def visible(self, offset: int) -> Steps[StoredMessage | None]:
        """``visible_bytes``, decoded."""
        found = yield from self.visible_bytes(offset)
        return None if found is None else decode(found)[0]

    def by_key(
        self, topic: str, key: str, messages_max: int, begin_ms: int, end_ms: int, *, is_unique: bool
    ) -> Steps[KeyMatches]:
        """Visible messages of ``topic`` with this key or unique id, stored between two times, newest first.

        At most ``KEY_MATCHES_MAX``, and at most half a frame of bytes, but always the first one. ``is_unique``: the key is a unique id, and
        ``messages_max`` does not apply: all repeated copies are of interest.
        """
        count = KEY_MATCHES_MAX if is_unique else min(max(messages_max, 1), KEY_MATCHES_MAX)
        found: list[bytearray] = []
        known = self._view.topics_by_name.get(topic)
        matches: list[FoundMessage] = []
        if known is not None:
            matches = yield from self._store.find_by_key(known.topic_id, topic, key, count)
        size = 0
        for one in matches:
            entry = one.entry
            if not begin_ms <= entry.store_time_ms <= end_ms:
                continue
            try:
                view = self._store.stored_view(entry.offset)
            except LookupError:
                continue  # trimmed during the search
            size += len(view)
            if found and size > _KEY_BYTES_MAX:
                break
            found.append(
                bytearray(view) if entry.half_index == -1 else self._as_it_leaves(view, one.queue_offset, entry)
            )
        return KeyMatches(found, self._view.batch_time_ms, self._view.session.published)

    def _as_it_leaves(self, view: memoryview, queue_offset: int, entry: QueueEntry) -> bytearray:
        prepared = self._store.first_offset(entry.offset) if entry.half_index >= 0 else None
        return patched(view, entry.offset, queue_offset, entry.store_time_ms, prepared_offset=prepared)
