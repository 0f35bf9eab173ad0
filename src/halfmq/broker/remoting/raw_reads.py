"""Raw reads (29015): the queue entries of a range of one queue, and their messages as they are in the log, for readers of whole queues.

A pull makes an object of each entry and patches each message. A raw read returns what is stored, and the reader takes from the entry what a
pull would patch: queue offset, time, whether it was a half. What may be read is the same: entries before the high watermark only, of
topics that may be read, and only the messages of these entries; a half that is not committed has none.

A read is done within one turn of the event loop, so its size is bounded (``limits.RAW_READ_BYTES_MAX``, ``RAW_READ_MESSAGES_MAX``).
"""

import logging
from typing import Any, Final, NamedTuple

from halfmq import limits
from halfmq.broker.offload import Offload
from halfmq.broker.remoting.gateway import Connection
from halfmq.broker.remoting.handlers import Handlers, Parts
from halfmq.broker.services.pulls import readable, response_bytes_max
from halfmq.broker.services.store_reads import RawBlock, load_numpy
from halfmq.core.decision import Refused
from halfmq.model.text_fields import write_fields
from halfmq.runtime.log_throttle import LogThrottle
from halfmq.wire.remoting.codes import ResponseCode
from halfmq.wire.remoting.header import Request, encode_response_head
from halfmq.wire.remoting.raw_read import (
    EXT_NEXT,
    EXT_STORE,
    HEAD_BYTES,
    FoundFields,
    RawReadFields,
    body_bytes,
    complete_frame,
)

log = logging.getLogger("halfmq.pulls")


class RawRead(NamedTuple):
    """Result of a raw read. Without ``block``: ``code`` and ``remark`` say why nothing was read."""

    code: int
    remark: str
    #: Read from here next.
    next_offset: int
    #: The first offset in the queue, and the start of the log.
    min_offset: int
    log_start: int
    #: The high watermark that the read saw.
    position: int
    block: RawBlock | None = None


class RawReadHandlers(Handlers):
    """Serves raw reads."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._store = parts.store
        self._outgoing = parts.gateway.peers.outgoing
        self._offload: Offload | None = parts.offload
        self._damage_logged: Final = LogThrottle(parts.loop.time)
        self._delivered = parts.traffic.note

    def read(self, connection: Connection, request: Request[Any]) -> None:
        """29015: responds at once with messages; withheld until the topics are durable where the response depends on them."""
        fields: RawReadFields = request.ext
        before, connection.raw_read_end = connection.raw_read_end, None
        first = fields.first
        if fields.continues == 1:
            topic_id, queue_id, at = before or (-1, -1, 0)
            if (topic_id, queue_id) != (fields.topic_id, fields.queue_id):
                text = "nothing was read that this continues"
                self._answer_durably(connection, request, code=ResponseCode.SYSTEM_BUSY, remark=text)
                return
            if at >= fields.end:
                connection.raw_read_end = before
                end = {EXT_NEXT: fields.end}
                self._gateway.answer(connection, request, ResponseCode.PULL_NOT_FOUND, "the range is read", end)
                return
            first = at
        found = self.find(fields, first)
        if isinstance(found, Refused):
            self._refuse_durably(connection, request, found)
        elif found.block is not None:
            connection.raw_read_end = fields.topic_id, fields.queue_id, found.next_offset
            self._send(connection, request, found, found.block)
        else:
            ext = {
                EXT_NEXT: found.next_offset,
                "minOffset": found.min_offset,
                "logStart": found.log_start,
                "position": found.position,
                EXT_STORE: self._store.uuid,
            }
            self._answer_durably(connection, request, ext, code=found.code, remark=found.remark)

    def _send(self, connection: Connection, request: Request[Any], found: RawRead, block: RawBlock) -> None:
        if request.is_oneway:
            return
        ext = write_fields(FoundFields(
            block.entries, block.runs, found.next_offset, found.min_offset, found.log_start, found.position, 1, len(block.whole)
        ))  # fmt: skip
        length = body_bytes(block.data)
        head = encode_response_head(request, ResponseCode.SUCCESS, None, ext, length)
        frame = complete_frame(head, block.data, block.messages_at, block.whole)
        connection.respond(request, ResponseCode.SUCCESS, frame)
        connection.flush_if_large(length)

    def find(self, asked: RawReadFields, first: int) -> RawRead | Refused:
        """The messages from ``first`` on.

        Refusals: NO_PERMISSION, INVALID_PARAMETER: as with a pull. NOT_NOW: clients do not read their responses; ask again.
        """
        view, store = self._view, self._store
        if asked.store != store.uuid:
            return self._nothing(ResponseCode.QUERY_NOT_FOUND, f"this is store {store.uuid}", first, 0)
        topic = view.topics_by_name.get(asked.topic)
        if topic is None or topic.topic_id != asked.topic_id:
            text = f"topic {asked.topic} {'no longer exists' if topic is None else 'was deleted and created again'}"
            return self._nothing(ResponseCode.TOPIC_NOT_EXIST, text, first, 0)
        refused = readable(view, asked.group, asked.topic, asked.queue_id)
        if isinstance(refused, Refused):
            return refused
        low, high = store.bounds(asked.topic_id, asked.queue_id)
        if first < low:
            return self._nothing(ResponseCode.PULL_OFFSET_MOVED, "past retention", low, low)
        if first >= high:
            return self._nothing(ResponseCode.PULL_NOT_FOUND, "at end", high, low)
        bytes_max = response_bytes_max(self._outgoing, min(max(asked.bytes_max, 1), limits.RAW_READ_BYTES_MAX))
        return bytes_max if isinstance(bytes_max, Refused) else self._read(asked, first, low, bytes_max)

    def _read(self, asked: RawReadFields, first: int, low: int, bytes_max: int) -> RawRead:
        with_stored_checksums = asked.stored_checksums == 1
        if self._offload is not None and with_stored_checksums:
            # From now on readers of half batches are there.
            self._offload.run(load_numpy, lambda result: None)
            self._offload = None
        count = min(max(asked.end - first, 1), limits.RAW_READ_MESSAGES_MAX)
        found = self._store.read_raw(
            asked.topic_id,
            asked.queue_id,
            first,
            count,
            bytes_max,
            HEAD_BYTES,
            with_stored_checksums=with_stored_checksums,
        )
        if not found.entries:
            if found.is_missing and found.visible_at < self._view.log_start:  # trimmed meanwhile
                return self._nothing(ResponseCode.PULL_OFFSET_MOVED, "past retention", first + 1, low)
            return self._damaged(asked, first, low, found.why)
        # A message that cannot be read ends the read, and the next one reports it.
        after = first + found.entries
        self._delivered(asked.group, asked.topic, asked.topic_id, asked.queue_id, after, found.entries)
        return self._nothing(ResponseCode.SUCCESS, "", after, low)._replace(block=found)

    def _nothing(self, code: int, remark: str, next_offset: int, min_offset: int) -> RawRead:
        return RawRead(code, remark, next_offset, min_offset, self._view.log_start, self._view.session.published)

    def _damaged(self, asked: RawReadFields, first: int, low: int, why: str) -> RawRead:
        """Nothing is skipped."""
        text = (
            f"topic {asked.topic} queue {asked.queue_id}: the message at offset {first} cannot be read: "
            f"{why}; nothing is skipped; `halfmq store verify` says what to do"
        )
        if self._damage_logged.is_due((asked.topic_id, asked.queue_id, first)):
            log.error("%s", text)
        return self._nothing(ResponseCode.SYSTEM_ERROR, text, first, low)
