"""Raw reads (29015), translated to and from ``services.raw_reads``."""

from typing import Any, Final

from halfmq.broker.remoting.connection import Connection
from halfmq.broker.remoting.durable_answer import DurableAnswers
from halfmq.broker.remoting.gateway import Gateway
from halfmq.broker.remoting.refusals import refusal
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.raw_reads import RawRead, RawReadRequest, RawReads, Status
from halfmq.core.decision import Refused
from halfmq.wire.remoting.codes import HMQ_RAW_READ, ResponseCode
from halfmq.wire.remoting.header import Request, encode_response_head
from halfmq.wire.remoting.raw_read import (
    EXT_CONTINUES,
    EXT_ENTRIES,
    EXT_HALF_BATCHES,
    EXT_LOG_START,
    EXT_MIN,
    EXT_NEXT,
    EXT_POSITION,
    EXT_RUNS,
    EXT_STORE,
    HEAD_BYTES,
    body_bytes,
    complete_frame,
    decode_request_fields,
)

_CODES: Final = {
    Status.FOUND: ResponseCode.SUCCESS,
    Status.AT_END: ResponseCode.PULL_NOT_FOUND,
    Status.PAST_RETENTION: ResponseCode.PULL_OFFSET_MOVED,
    Status.OTHER_TOPIC: ResponseCode.TOPIC_NOT_EXIST,
    Status.OTHER_STORE: ResponseCode.QUERY_NOT_FOUND,
    Status.UNREADABLE: ResponseCode.SYSTEM_ERROR,
}


class RawReadHandlers:
    """Raw reads (29015)."""

    def __init__(self, gateway: Gateway, sequencer: Sequencer, reads: RawReads, *, store: str) -> None:
        """``store``: UUID of the store, 32 hex digits."""
        self._gateway = gateway
        self._reads = reads
        self._store = store
        self._durably = DurableAnswers(gateway, sequencer)
        gateway.handlers[HMQ_RAW_READ] = self.read

    def read(self, connection: Connection, request: Request[Any]) -> None:
        """29015: responds at once with messages; withheld until the topics are durable where the response depends on them."""
        fields = decode_request_fields(request.ext)
        before, connection.raw_read_end = connection.raw_read_end, None
        if isinstance(fields, str):
            self._gateway.answer(connection, request, ResponseCode.INVALID_PARAMETER, fields)
            return
        if fields.continues:
            topic_id, queue_id, at = before or (-1, -1, 0)
            if (topic_id, queue_id) != (fields.topic_id, fields.queue_id):
                self._durably.tell(
                    connection, request, ResponseCode.SYSTEM_BUSY, "nothing was read that this continues"
                )
                return
            if at >= fields.end:
                connection.raw_read_end = before
                end = {EXT_NEXT: fields.end}
                self._gateway.answer(connection, request, ResponseCode.PULL_NOT_FOUND, "the range is read", end)
                return
            fields = fields._replace(first=at)
        found = self._reads.read(
            RawReadRequest(*fields[:8], HEAD_BYTES, with_stored_checksums=fields.with_stored_checksums)
        )
        if isinstance(found, Refused):
            self._durably.tell(connection, request, *refusal(found))
        elif found.status is Status.FOUND:
            connection.raw_read_end = fields.topic_id, fields.queue_id, found.next_offset
            self._send(connection, request, found)
        else:
            ext = {**_place(found), EXT_STORE: self._store}
            self._durably.tell(connection, request, _CODES[found.status], found.text or found.status.value, ext)

    def _send(self, connection: Connection, request: Request[Any], found: RawRead) -> None:
        block = found.block
        if request.is_oneway or block is None:
            return
        ext = {EXT_ENTRIES: block.entries, EXT_RUNS: block.runs, **_place(found), EXT_CONTINUES: 1}
        if block.whole:
            ext[EXT_HALF_BATCHES] = len(block.whole)
        length = body_bytes(block.data)
        head = encode_response_head(request, ResponseCode.SUCCESS, None, ext, length)
        connection.send(complete_frame(head, block.data, block.messages_at, block.whole))
        connection.flush_if_large(length)


def _place(found: RawRead) -> dict[str, int]:
    return {
        EXT_NEXT: found.next_offset, EXT_MIN: found.min_offset, EXT_LOG_START: found.log_start, EXT_POSITION: found.position,
    }  # fmt: skip
