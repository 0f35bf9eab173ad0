"""Reads of the transaction table (29016), as of a log position, for readers of the whole table.

A read is done within one turn of the event loop, so its size is bounded (``limits.TABLE_READ_ROWS_MAX``, ``TABLE_READ_BYTES_MAX``).
"""

from typing import Any, Final

from halfmq import limits
from halfmq.broker.remoting.gateway import Connection
from halfmq.broker.remoting.handlers import Handlers, Parts
from halfmq.broker.services.pulls import response_bytes_max
from halfmq.broker.services.store_reads import Wanted
from halfmq.core.decision import Refused, Why
from halfmq.model.text_fields import write_fields
from halfmq.wire.remoting.codes import ResponseCode
from halfmq.wire.remoting.header import Request, encode_response_head
from halfmq.wire.remoting.raw_read import HEAD_BYTES, body_bytes, complete_frame
from halfmq.wire.remoting.table_read import EXT_STORE, TOPICS, TableFound, TableReadFields

_WANTED: Final = {wanted.value: wanted for wanted in Wanted}


class TableReadHandlers(Handlers):
    """Serves reads of the transaction table."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._store = parts.store
        self._outgoing = parts.gateway.peers.outgoing

    def read(self, connection: Connection, request: Request[Any]) -> None:
        """29016: responds at once. Everything in it is durable."""
        fields: TableReadFields = request.ext
        store = self._store.uuid
        if fields.end < fields.first:
            text = f"endHalf {fields.end} is before firstHalf {fields.first}"
            self._gateway.answer(connection, request, ResponseCode.INVALID_PARAMETER, text)
        elif fields.store != store:
            text = f"this is store {store}"
            self._gateway.answer(connection, request, ResponseCode.QUERY_NOT_FOUND, text, {EXT_STORE: store})
        else:
            found = self.find(fields)
            if isinstance(found, Refused):
                self._refuse_durably(connection, request, found)
            elif not request.is_oneway:
                ext, data = found
                length = body_bytes(data)
                head = encode_response_head(request, ResponseCode.SUCCESS, None, write_fields(ext), length)
                connection.respond(request, ResponseCode.SUCCESS, complete_frame(head, data))
                connection.flush_if_large(length)

    def find(self, asked: TableReadFields) -> tuple[TableFound, bytearray] | Refused:
        """The rows from ``firstHalf`` on, as ext fields and body. The last row that the table has may be newer than ``position``.

        Refusal NOT_NOW: ask again in a moment.
        """
        store = self._store
        bytes_max = response_bytes_max(self._outgoing, min(max(asked.bytes_max, 1), limits.TABLE_READ_BYTES_MAX))
        if isinstance(bytes_max, Refused):
            return bytes_max
        position = asked.position or store.high_watermark
        end = self._view.next_half_index
        last = max(asked.first, min(asked.end, end))
        wanted, rows_max = _WANTED[asked.wanted], limits.TABLE_READ_ROWS_MAX
        block = store.read_table(asked.first, last, position, wanted, rows_max, bytes_max, HEAD_BYTES)
        # After the read, which writes the indexes: with a full disk they end before what was the newest position.
        newest = store.high_watermark
        if position > newest:
            return Refused(Why.NOT_NOW, f"the store ends at position {newest}, before {position}")
        data = block.data
        data += TOPICS.encode(store.topic_names(block.topic_ids))
        log_start, first = self._view.log_start, store.first_half()
        return TableFound(block.rows, block.record_bytes, block.next_half, position, first, end, log_start), data
