"""Reads of the transaction table (29016), translated to and from ``services.table_reads``."""

from typing import Any

from halfmq.broker.remoting.connection import Connection
from halfmq.broker.remoting.durable_answer import DurableAnswers
from halfmq.broker.remoting.gateway import Gateway
from halfmq.broker.remoting.refusals import refusal
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.table_reads import WANTED, OtherStore, TableRead, TableReadRequest, TableReads
from halfmq.core.decision import Refused
from halfmq.wire.remoting.codes import HMQ_TABLE_READ, ResponseCode
from halfmq.wire.remoting.header import Request, encode_response_head
from halfmq.wire.remoting.raw_read import HEAD_BYTES, body_bytes, complete_frame
from halfmq.wire.remoting.table_read import EXT_STORE, TableFound, decode_request_fields, encode_found, encode_topics


class TableReadHandlers:
    """Reads of the transaction table (29016)."""

    def __init__(self, gateway: Gateway, sequencer: Sequencer, reads: TableReads) -> None:
        self._gateway = gateway
        self._reads = reads
        self._durably = DurableAnswers(gateway, sequencer)
        gateway.handlers[HMQ_TABLE_READ] = self.read

    def read(self, connection: Connection, request: Request[Any]) -> None:
        """29016: responds at once."""
        fields = decode_request_fields(request.ext)
        if isinstance(fields, str):
            self._gateway.answer(connection, request, ResponseCode.INVALID_PARAMETER, fields)
            return
        wanted = WANTED[fields.wanted]
        found = self._reads.read(
            TableReadRequest(
                fields.store, wanted, fields.first, fields.end, fields.position, fields.bytes_max, HEAD_BYTES
            )
        )
        if isinstance(found, Refused):
            self._durably.tell(connection, request, *refusal(found))
        elif isinstance(found, OtherStore):
            text = f"this is store {found.store}"
            self._gateway.answer(connection, request, ResponseCode.QUERY_NOT_FOUND, text, {EXT_STORE: found.store})
        else:
            self._send(connection, request, found)

    def _send(self, connection: Connection, request: Request[Any], found: TableRead) -> None:
        if request.is_oneway:
            return
        block = found.block
        data = block.data
        data += encode_topics(found.topics)
        ext = TableFound(
            block.rows, block.record_bytes, block.next_half, found.position, found.first, found.end, found.log_start
        )
        length = body_bytes(data)
        head = encode_response_head(request, ResponseCode.SUCCESS, None, encode_found(ext), length)
        connection.send(complete_frame(head, data))
        connection.flush_if_large(length)
