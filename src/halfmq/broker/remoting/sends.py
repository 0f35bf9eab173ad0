"""What producers ask: 10, 310 and 320 (send), 37 (end a transaction), and 36, which sends a message back to be retried.

The hot path of the broker. A send or a verdict becomes one tuple for the sequencer; its answer is formatted bytes when the
sequencer lets it go. Nothing is decided here: whether a send is a half message, a repetition or too much, core says.
"""

import logging
from typing import Any, Final

from halfmq.broker.remoting.connection import Connection
from halfmq.broker.remoting.gateway import Gateway
from halfmq.broker.remoting.refusals import refusal
from halfmq.broker.remoting.send_commands import batch_command, send_command
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.messages import StoredMessages
from halfmq.core.commands import EndTransaction, RequestedVerdict, SendBack, SettledRow
from halfmq.core.decision import Noted, Refused, Reply, Sent, SentBatch, Settled, Why
from halfmq.core.engine import Failed
from halfmq.core.view import ProducerGroupView
from halfmq.model.ids import is_transaction_id
from halfmq.model.records import DecidedBy
from halfmq.model.stored_message import body_crc_of
from halfmq.wire.remoting.codes import (
    DECIDED_BY_MARKER,
    EXT_DURABILITY,
    EXT_POSITION,
    EXT_REPEATED,
    EXT_TX_ID,
    EXT_VERDICT,
    V3_4_9,
    RequestCode,
    ResponseCode,
)
from halfmq.wire.remoting.header import Request, encode_empty_response, encode_send_response

log = logging.getLogger("halfmq.sends")

_WANTED: Final = {0: RequestedVerdict.UNKNOWN, 8: RequestedVerdict.COMMIT, 12: RequestedVerdict.ROLLBACK}

#: Bound once for the hot path.
_BY_PRODUCER: Final = DecidedBy.PRODUCER

#: What an answer needs of its request.
Context = tuple[Connection, Request[Any]]


class Sends:
    def __init__(
        self, gateway: Gateway, sequencer: Sequencer, stored: StoredMessages, *, store_host: bytes, durability: str
    ) -> None:
        self._gateway = gateway
        self._sequencer = sequencer
        self._stored = stored
        self._durability = durability
        #: An offset message id is this and the log offset in 16 hex digits (``model.ids.offset_message_id``).
        self._id_prefix = store_host.hex().upper()
        gateway.handlers |= {
            RequestCode.SEND_MESSAGE: self.send,
            RequestCode.SEND_MESSAGE_V2: self.send,
            RequestCode.SEND_BATCH_MESSAGE: self.send_batch,
            RequestCode.END_TRANSACTION: self.end,
            RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back,
        }

    # --- 10, 310

    def send(self, connection: Connection, request: Request[Any]) -> None:
        command = send_command(connection.number, connection.born_host, request.ext, request.body)
        if isinstance(command, Refused):
            self._refused((connection, request), command)
        else:
            self._sequencer.submit_small(command, self._sent, (connection, request))

    def _sent(self, context: Context, reply: Reply | Failed) -> None:
        if type(reply) is not Sent:
            self._refused(context, reply)
            return
        connection, request = context
        if request.flag & 2:
            return
        unique_id = reply.unique_id
        # Bytes first: they are asked in a sixth of the time.
        if not (unique_id.encode().isalnum() or unique_id.isalnum() or is_transaction_id(unique_id)):
            unique_id = ""  # it would need escaping; clients know it anyway
        message_id = f"{self._id_prefix}{reply.log_offset:016X}"
        connection.send(
            encode_send_response(
                request.opaque, message_id, reply.queue_id, reply.queue_offset, unique_id, binary=request.binary
            )
        )

    # --- 320

    def send_batch(self, connection: Connection, request: Request[Any]) -> None:
        command = batch_command(connection.number, connection.born_host, request.ext, request.body)
        if isinstance(command, Refused):
            self._refused((connection, request), command)
        else:
            self._sequencer.submit(command, self._sent_batch, (connection, request))

    def _sent_batch(self, context: Context, reply: Reply | Failed) -> None:
        connection, request = context
        if not isinstance(reply, SentBatch):
            self._refused(context, reply)
        elif not request.is_oneway:
            ids = ",".join(f"{self._id_prefix}{offset:016X}" for offset in reply.log_offsets)
            connection.send(
                encode_send_response(request.opaque, ids, reply.queue_id, reply.queue_offset, "", binary=request.binary)
            )

    # --- 37

    def end(self, connection: Connection, request: Request[Any]) -> None:
        fields = request.ext
        wanted = _WANTED.get(fields.commit_or_rollback)
        if wanted is None:
            self._gateway.answer(connection, request, ResponseCode.SYSTEM_ERROR, "commitOrRollback field wrong")
            return
        group = fields.producer_group
        half_index = fields.tran_state_table_offset
        known = self._sequencer.view.producer_groups.get(group)
        tx_id = _tx_id(fields, known)
        settled: SettledRow | None = None
        if known is None or not (tx_id in known.undecided or tx_id in known.settled):
            settled = self._stored.settled_row(half_index)
        command = EndTransaction(
            connection.number,
            group,
            tx_id,
            half_index,
            fields.commit_log_offset,
            wanted,
            _decided_by(fields) if fields.from_transaction_check else _BY_PRODUCER,
            request.remark or "",
            settled,
        )
        if request.flag & 2:
            self._sequencer.submit_small(command, None)
        else:
            self._sequencer.submit_for_receipt(command, self._ended, (connection, request))

    def _asked_again(self, context: Context, reply: Reply | Failed) -> bool:
        """Ask once more, with the row of the transaction table, where the decision knew nothing of the transaction.

        Between the look of ``end`` and the decision memory may have forgotten a verdict: the window moved on, by time or
        by number. Its row is there now, since rows are written before answers leave.
        """
        if not isinstance(reply, Refused) or reply.why is not Why.NOT_FOUND:
            return False
        connection, request = context
        fields = request.ext
        row = self._stored.settled_row(fields.tran_state_table_offset)
        if row is None or row.first_offset not in (fields.commit_log_offset, 0):
            return False
        command = EndTransaction(
            connection.number,
            fields.producer_group,
            _tx_id(fields, self._sequencer.view.producer_groups.get(fields.producer_group)),
            row.half_index,
            fields.commit_log_offset,
            _WANTED[fields.commit_or_rollback],
            _decided_by(fields) if fields.from_transaction_check else _BY_PRODUCER,
            request.remark or "",
            row,
        )
        self._sequencer.submit(command, self._ended_at_last, context)
        return True

    def _ended_at_last(self, context: Context, reply: Reply | Failed) -> None:
        if isinstance(reply, Refused):
            self._refused(context, reply)
        else:
            self._ended(context, reply)

    def _ended(self, context: Context, reply: Reply | Failed) -> None:
        connection, request = context
        if isinstance(reply, Settled):
            ext = {
                EXT_TX_ID: reply.tx_id,
                EXT_VERDICT: "COMMITTED" if reply.committed else "ROLLED_BACK",
                EXT_POSITION: reply.position,
                EXT_DURABILITY: self._durability,
                EXT_REPEATED: reply.repeated,
            }
            self._gateway.answer(connection, request, ResponseCode.SUCCESS, None, ext)
        elif isinstance(reply, Noted):
            # A Java broker leaves a two-way UNKNOWN without an answer; stock clients send it one-way. Who asks is told.
            connection.send(encode_empty_response(request.opaque, binary=request.binary))
        elif not self._asked_again(context, reply):
            self._refused(context, reply)

    # --- 36

    def send_back(self, connection: Connection, request: Request[Any]) -> None:
        fields = request.ext
        message = self._stored.visible(fields.offset)
        if message is not None and body_crc_of(message.body) != message.body_crc:
            # Written again it would be damage in a new record, which no start could take.
            text = (
                f"the body of the message at log offset {fields.offset} is damaged: its CRC differs from the stored one"
            )
            self._gateway.say(
                log, logging.ERROR, ("damaged", fields.offset), connection,
                "not handed back to group %s: %s (halfmq store verify)", fields.group, text,
            )  # fmt: skip
            self._gateway.answer(connection, request, ResponseCode.SYSTEM_ERROR, text)
            return
        command = SendBack(
            connection.number,
            fields.group,
            fields.offset,
            fields.delay_level,
            fields.max_reconsume_times if request.version >= V3_4_9 else -1,
            fields.origin_msg_id,
            message,
        )
        self._sequencer.submit(command, self._sent_back, (connection, request))

    def _sent_back(self, context: Context, reply: Reply | Failed) -> None:
        connection, request = context
        if isinstance(reply, Sent) or not hasattr(reply, "text"):
            self._gateway.answer(connection, request, ResponseCode.SUCCESS)
        else:
            self._refused(context, reply)

    def _refused(self, context: Context, reply: Reply | Failed) -> None:
        connection, request = context
        code, remark, ext = refusal(reply)
        self._gateway.answer(connection, request, code, remark, ext)


def _tx_id(fields: Any, group: ProducerGroupView | None) -> str:
    """Which transaction an END is about.

    A stock client that answers a check of a transaction of ours, with several halves, names it by what it echoes of the
    check: the UNIQ_KEY of the half (``msgId``), which is no transaction's id then, and ``transactionId``, which is.
    """
    named: str = fields.tx_id or fields.msg_id or fields.transaction_id
    echoed: str = fields.transaction_id
    if fields.from_transaction_check and echoed and echoed != named and group is not None and not fields.tx_id:
        for known in (group.undecided, group.settled):
            if named in known:
                return named
            if echoed in known:
                return echoed
    return named


def _decided_by(fields: Any) -> DecidedBy:
    """Who stands behind the answer to a check. Believed, as the verdict itself is."""
    return DecidedBy.MARKER if fields.decided_by == DECIDED_BY_MARKER else DecidedBy.CHECK
