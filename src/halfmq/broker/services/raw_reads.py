"""Raw reads: the queue entries of a range of one queue, and their messages as they are in the log, for readers of whole queues.

A pull makes an object of each entry and patches each message. A raw read returns what is stored, and the reader takes from the entry what a
pull would patch: queue offset, time, whether it was a half. What may be read is the same: entries before the high watermark only, of
topics that may be read, and only the messages of these entries; a half that is not committed has none.

A read is done within one turn of the event loop, so its size is bounded (``limits.RAW_READ_BYTES_MAX``, ``RAW_READ_MESSAGES_MAX``).
"""

import logging
from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple, Protocol

from halfmq import limits
from halfmq.broker.offload import Offload
from halfmq.broker.services.pulls import SMALL_PULL_BYTES, Outgoing, readable
from halfmq.core.decision import Refused, Why
from halfmq.core.view import View
from halfmq.runtime.log_throttle import LogThrottle
from halfmq.store.raw_messages import RawBlock, load_numpy

log = logging.getLogger("halfmq.pulls")


class RawReadsStore(Protocol):
    """What this service needs from the store. Reads raise StoreDamaged or OSError if the disk cannot read the queue."""

    @property
    def uuid(self) -> str:
        """UUID of the store, 32 hex digits."""
        ...

    def bounds(self, topic_id: int, queue_id: int) -> tuple[int, int]:
        """(first offset in the queue, offset after the last visible message); (0, 0) for a queue without messages."""
        ...

    def read_raw(
        self, topic_id: int, queue_id: int, queue_offset: int, entries_max: int, bytes_max: int, free_bytes: int,
        *, with_stored_checksums: bool,
    ) -> RawBlock:  # fmt: skip
        """Entries from ``queue_offset`` on, and their messages, up to the first that cannot be read."""
        ...


class Status(Enum):
    """Result of a raw read."""

    FOUND = "found"
    #: The queue ends at or before the first offset.
    AT_END = "at end"
    #: The messages before ``next_offset`` are past retention.
    PAST_RETENTION = "past retention"
    #: The topic was deleted, or created again: the messages do not exist any more.
    OTHER_TOPIC = "other topic"
    #: This is another store, whose offsets mean something else.
    OTHER_STORE = "other store"
    #: The message at ``next_offset``, or its queue entry, is damaged. Nothing is skipped; ``text`` is for people.
    UNREADABLE = "unreadable"


class RawReadRequest(NamedTuple):
    """A reader's request: messages [``first``, ``end``) of a queue, at most ``bytes_max`` of them; the first one always fits."""

    group: str
    store: str
    topic: str
    topic_id: int
    queue_id: int
    first: int
    end: int
    bytes_max: int
    #: Bytes to leave free before the entries, for the front door.
    free_bytes: int
    #: Return whole half batches with the checksums that are stored with them.
    with_stored_checksums: bool = False


class RawRead(NamedTuple):
    """Result of a raw read. ``block`` only if FOUND."""

    status: Status
    #: Read from here next.
    next_offset: int
    #: The first offset in the queue, and the start of the log.
    min_offset: int
    log_start: int
    #: The high watermark that the read saw.
    position: int
    block: RawBlock | None = None
    text: str = ""


class RawReads:
    """Serves raw reads."""

    def __init__(
        self, view: View, store: RawReadsStore, outgoing: Outgoing, clock: Callable[[], float], offload: Offload
    ) -> None:
        self._view = view
        self._store = store
        self._outgoing = outgoing
        self._offload: Offload | None = offload
        self._damage_said: Final = LogThrottle(clock)
        #: Called with (group, topic, topic id, queue id, offset after the last, number) of messages that were returned.
        self.on_given: Callable[[str, str, int, int, int, int], None] = lambda *given: None

    def read(self, request: RawReadRequest) -> RawRead | Refused:
        """The messages from ``first`` on. The caller withholds OTHER_TOPIC, and a refusal, until the topics themselves are durable.

        Refusals: NO_PERMISSION, INVALID_PARAMETER: as with a pull. NOT_NOW: clients do not read their responses; ask again.
        """
        view, store = self._view, self._store
        if request.store != store.uuid:
            return self._without(Status.OTHER_STORE, request.first, 0, f"this is store {store.uuid}")
        topic = view.topics_by_name.get(request.topic)
        if topic is None or topic.topic_id != request.topic_id:
            text = f"topic {request.topic} {'no longer exists' if topic is None else 'was deleted and created again'}"
            return self._without(Status.OTHER_TOPIC, request.first, 0, text)
        refused = readable(view, request.group, request.topic, request.queue_id)
        if isinstance(refused, Refused):
            return refused
        low, high = store.bounds(request.topic_id, request.queue_id)
        if request.first < low:
            return self._without(Status.PAST_RETENTION, low, low)
        if request.first >= high:
            return self._without(Status.AT_END, high, low)
        bytes_max = min(max(request.bytes_max, 1), limits.RAW_READ_BYTES_MAX)
        if self._outgoing.is_near:
            if self._outgoing.is_over:
                return Refused(Why.NOT_NOW, "clients do not read their responses: ask again in a moment")
            bytes_max = min(bytes_max, SMALL_PULL_BYTES)
        return self._read(request, low, bytes_max)

    def _read(self, request: RawReadRequest, low: int, bytes_max: int) -> RawRead:
        if self._offload is not None and request.with_stored_checksums:
            # From now on readers of half batches are there.
            self._offload.run(load_numpy, lambda result: None)
            self._offload = None
        first = request.first
        count = min(max(request.end - first, 1), limits.RAW_READ_MESSAGES_MAX)
        found = self._store.read_raw(
            request.topic_id, request.queue_id, first, count, bytes_max, request.free_bytes,
            with_stored_checksums=request.with_stored_checksums,
        )  # fmt: skip
        if not found.entries:
            if found.is_missing and found.visible_at < self._view.log_start:  # trimmed meanwhile
                return self._without(Status.PAST_RETENTION, first + 1, low)
            return self._damaged(request, low, found.why)
        # A message that cannot be read ends the read, and the next one reports it.
        after = first + found.entries
        self.on_given(request.group, request.topic, request.topic_id, request.queue_id, after, found.entries)
        return self._without(Status.FOUND, after, low)._replace(block=found)

    def _without(self, status: Status, next_offset: int, min_offset: int, text: str = "") -> RawRead:
        view = self._view
        return RawRead(status, next_offset, min_offset, view.log_start, view.session.published, text=text)

    def _damaged(self, request: RawReadRequest, low: int, why: str) -> RawRead:
        text = (
            f"topic {request.topic} queue {request.queue_id}: the message at offset {request.first} cannot be read: "
            f"{why}; nothing is skipped; `halfmq store verify` says what to do"
        )
        if self._damage_said.is_due((request.topic_id, request.queue_id, request.first)):
            log.error("%s", text)
        return self._without(Status.UNREADABLE, request.first, low, text)
