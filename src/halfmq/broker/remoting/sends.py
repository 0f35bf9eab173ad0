"""Commands of producers: 10, 310 and 320 (send), 37 (end a transaction); and 36, which sends a message back for a retry.

The hot path of the broker: ``services.sends`` and ``services.verdicts`` make one tuple of a request for the sequencer; the response is
formatted here when the sequencer releases the reply.
"""

import struct
from binascii import hexlify
from functools import partial
from typing import Any, Final

from halfmq.broker.peers.peer import REQUEST_COST
from halfmq.broker.remoting.gateway import Connection
from halfmq.broker.remoting.handlers import Handlers, Parts
from halfmq.broker.remoting.refusals import refusal
from halfmq.core.commands import RequestedVerdict
from halfmq.core.decision import Failed, Noted, Refused, Reply, Sent, SentBatch, Settled
from halfmq.core.state import ProducerGroup
from halfmq.model.coordinator import parse_coordinator
from halfmq.model.ids import is_transaction_id
from halfmq.model.records import DecidedBy
from halfmq.wire.remoting.codes import (
    DECIDED_BY_MARKER,
    EXT_COORDINATOR,
    EXT_DURABILITY,
    EXT_POSITION,
    EXT_REPEATED,
    EXT_TX_ID,
    EXT_VERDICT,
    V3_4_9,
    ResponseCode,
)
from halfmq.wire.remoting.header import Request, encode_empty_response, encode_send_response
from halfmq.wire.remoting.message_codec import batch_entries

_WANTED: Final = {0: RequestedVerdict.UNKNOWN, 8: RequestedVerdict.COMMIT, 12: RequestedVerdict.ROLLBACK}

#: ``hexlify`` of it takes a third of what the format ``016X`` does.
_pack_offset: Final = struct.Struct(">q").pack
#: Bound once for the hot path.
_BY_PRODUCER: Final = DecidedBy.PRODUCER

#: What a response needs of its request.
Context = tuple[Connection, Request[Any]]


class SendCommands(Handlers):
    """Requests of producers."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._sends = parts.sends
        self._verdicts = parts.verdicts
        self._durability = parts.durability
        #: An offset message id is this and the log offset in 16 hex digits (``model.ids.offset_message_id``).
        self._id_prefix = self._view.settings.store_host.hex().upper().encode()

    # --- 10, 310

    def send(self, connection: Connection, request: Request[Any]) -> None:
        """10, 310: a plain message or a half message."""
        self._sends.send(connection, request.ext, request.body, self._sent, (connection, request))

    def _sent(self, context: Context, reply: Reply | Failed) -> None:
        if type(reply) is not Sent:
            self._refused(context, reply)
            return
        connection, request = context
        if request.flag & 2:
            return
        unique_id = reply.unique_id.encode()
        # Bytes first: that is six times as fast.
        if not (unique_id.isalnum() or reply.unique_id.isalnum() or is_transaction_id(reply.unique_id)):
            unique_id = b""  # it would need escaping; the client knows it anyway
        message_id = self._id_prefix + hexlify(_pack_offset(reply.log_offset)).upper()
        frame = encode_send_response(
            request.opaque, message_id, reply.queue_id, reply.queue_offset, unique_id, request.binary
        )
        connection.respond(request, 0, frame)

    # --- 320

    def send_batch(self, connection: Connection, request: Request[Any]) -> None:
        """320: several plain messages for one queue."""
        self._sends.send_batch(
            connection, request.ext, batch_entries(request.body), REQUEST_COST + len(request.body), self._sent_batch,
            partial(self._gateway.failed, connection, request), (connection, request.to_answer(None)),
        )  # fmt: skip

    def _sent_batch(self, context: Context, reply: Reply | Failed) -> None:
        connection, request = context
        if not isinstance(reply, SentBatch):
            self._refused(context, reply)
        elif not request.is_oneway:
            ids = b",".join([b"%b%016X" % (self._id_prefix, offset) for offset in reply.log_offsets])
            frame = encode_send_response(
                request.opaque, ids, reply.queue_id, reply.queue_offset, b"", binary=request.binary
            )
            connection.respond(request, ResponseCode.SUCCESS, frame)

    # --- 37

    def end(self, connection: Connection, request: Request[Any]) -> None:
        """37: commit, roll back, or unknown."""
        fields = request.ext
        wanted = _WANTED.get(fields.commit_or_rollback)
        if wanted is None:
            self._gateway.answer(connection, request, ResponseCode.SYSTEM_ERROR, "commitOrRollback field wrong")
            return
        group = fields.producer_group
        tx_id = fields.tx_id or fields.msg_id or fields.transaction_id
        decided_by = _BY_PRODUCER
        coordinator = None
        if fields.coordinator and not fields.from_transaction_check:
            coordinator = parse_coordinator(fields.coordinator)
            if coordinator is None:
                text = f"{EXT_COORDINATOR}: an epoch and a name"
                self._gateway.answer(connection, request, ResponseCode.INVALID_PARAMETER, text)
                return
            decided_by = DecidedBy.COORDINATOR
        elif fields.from_transaction_check:
            tx_id = _checked_id(fields, tx_id, self._sequencer.view.producer_groups.get(group))
            # Trusted, as the verdict itself is.
            decided_by = DecidedBy.MARKER if fields.decided_by == DECIDED_BY_MARKER else DecidedBy.CHECK
        self._verdicts.end(
            connection.number, group, tx_id, fields.tran_state_table_offset, fields.commit_log_offset, wanted, decided_by,
            request.remark or "", None if request.flag & 2 else self._ended, (connection, request), coordinator, connection.user,
        )  # fmt: skip

    def _ended(self, context: Context, reply: Reply | Failed) -> None:
        connection, request = context
        if isinstance(reply, Settled):
            ext = settled_ext(reply, self._durability)
            self._gateway.answer(connection, request, ResponseCode.SUCCESS, None, ext)
        elif isinstance(reply, Noted):
            # RocketMQ's broker does not respond to a two-way UNKNOWN; its clients send it one-way. Here it gets a response.
            connection.respond(
                request, ResponseCode.SUCCESS, encode_empty_response(request.opaque, binary=request.binary)
            )
        else:
            self._refused(context, reply)

    # --- 36

    def send_back(self, connection: Connection, request: Request[Any]) -> None:
        """36: a consumer failed on a message; it is delivered again later."""
        fields = request.ext
        self._sends.send_back(
            connection, fields.group, fields.offset, fields.delay_level,
            fields.max_reconsume_times if request.version >= V3_4_9 else -1, fields.origin_msg_id, fields.failure,
            fields.attempt, fields.delay_ms, fields.not_consumed, self._sent_back, partial(self._gateway.failed, connection, request),
            (connection, request),
        )  # fmt: skip

    def _sent_back(self, context: Context, reply: Reply | Failed) -> None:
        connection, request = context
        if isinstance(reply, Refused | Failed):
            self._refused(context, reply)
        else:
            self._answer(connection, request)

    def _refused(self, context: Context, reply: Reply | Failed) -> None:
        connection, request = context
        code, remark, ext = refusal(reply)
        self._gateway.answer(connection, request, code, remark, ext)


def settled_ext(settled: Settled, durability: str) -> dict[str, object]:
    """The receipt of a verdict: of its producer (37) or of an operator (29004)."""
    return {
        EXT_TX_ID: settled.tx_id,
        EXT_VERDICT: "COMMITTED" if settled.committed else "ROLLED_BACK",
        EXT_POSITION: settled.position,
        EXT_DURABILITY: durability,
        EXT_REPEATED: settled.repeated,
    }


def _checked_id(fields: Any, named: str, group: ProducerGroup | None) -> str:
    """The transaction to which the response to a check refers.

    A RocketMQ client that responds to a check of one of our transactions with several halves identifies it by fields of the check: the
    UNIQ_KEY of the half (``msgId``), which is not the transaction's id then, and ``transactionId``, which is.
    """
    echoed: str = fields.transaction_id
    if echoed and echoed != named and group is not None and not fields.tx_id:
        for known in (group.undecided, group.settled):
            if named in known:
                return named
            if echoed in known:
                return echoed
    return named
