"""Half batches and decisions on batches of a query (29012 to 29014), translated to and from ``services.half_batches``."""

from functools import partial
from typing import Any, Final

from halfmq.broker.remoting.connection import Connection
from halfmq.broker.remoting.gateway import Gateway
from halfmq.broker.remoting.refusals import refusal
from halfmq.broker.services.half_batches import HalfBatches
from halfmq.core.commands import Winner
from halfmq.core.decision import BatchDecided, DecisionFound, Refused, Reply, Sent, Why
from halfmq.core.engine import Failed
from halfmq.model.query_batch import QueryBatch
from halfmq.wire.remoting.codes import HMQ_DECIDE, HMQ_DECISION, HMQ_PREPARE_BATCH, ResponseCode
from halfmq.wire.remoting.half_batches import (
    EXT_FENCED,
    EXT_MISSING,
    EXT_OTHER_STREAM,
    DecisionAnswer,
    answer_ext,
    decode_winners,
    place_ext,
    read_batch,
    read_decide,
    read_prepare,
)
from halfmq.wire.remoting.header import Request

_EXT_OF: Final = {Why.FENCED: EXT_FENCED, Why.INCOMPLETE: EXT_MISSING, Why.OTHER_STREAM: EXT_OTHER_STREAM}
#: What a response needs of its request.
Context = tuple[Connection, Request[Any]]


class HalfBatchCommands:
    """Requests of clients that write in batches (29012 to 29014)."""

    def __init__(self, gateway: Gateway, half_batches: HalfBatches) -> None:
        self._gateway = gateway
        self._half_batches = half_batches
        gateway.handlers |= {HMQ_PREPARE_BATCH: self.prepare, HMQ_DECIDE: self.decide, HMQ_DECISION: self.decision}

    def prepare(self, connection: Connection, request: Request[Any]) -> None:
        """29012: a half batch."""
        fields = read_prepare(request.ext)
        batch = None
        if fields.query:
            batch = QueryBatch(fields.query, fields.batch, fields.run, fields.query_topic, fields.stream)
        waits = request.to_answer(None)
        self._half_batches.prepare(
            connection, fields.group, fields.tx_id, batch, fields.attempt, fields.index, fields.count,
            fields.topic, fields.default_queues, fields.queue_id, fields.messages, fields.checksum, fields.grace_ms,
            bool(fields.delayed), bytes(request.body), self._prepared, partial(self._gateway.failed, connection, waits),
            (connection, waits),
        )  # fmt: skip

    def _prepared(self, context: Context, reply: Reply | Failed) -> None:
        if isinstance(reply, Sent):
            self._answer(context, place_ext(reply.log_offset, reply.queue_offset))
        else:
            self._refused(context, reply)

    def decide(self, connection: Connection, request: Request[Any]) -> None:
        """29013: which attempts of a batch become visible."""
        fields = read_decide(request.ext)
        winners = [Winner(*winner) for winner in decode_winners(request.body)]
        waits = request.to_answer(None)
        self._half_batches.decide(
            connection, fields.group, fields.batch, fields.digest, winners, fields.is_last, self._decided,
            partial(self._gateway.failed, connection, waits), (connection, waits),
        )  # fmt: skip

    def _decided(self, context: Context, reply: Reply | Failed) -> None:
        if isinstance(reply, BatchDecided):
            self._answer(context, {"position": reply.position, "repeated": reply.repeated})
        else:
            self._refused(context, reply)

    def decision(self, connection: Connection, request: Request[Any]) -> None:
        """29014: whether a batch is decided."""
        context = connection, request.to_answer(None)
        if not request.ext.get("query"):
            self._answer(context, answer_ext(DecisionAnswer(self._half_batches.store_host, False, b"", -1, -1)))
            return
        batch = read_batch(request.ext)
        self._half_batches.find(connection.number, batch, partial(self._found, batch.topic), context)

    def _found(self, topic: str, context: Context, reply: Reply | Failed) -> None:
        if isinstance(reply, DecisionFound):
            self._answer(context, answer_ext(DecisionAnswer(self._half_batches.store_host, *reply, query_topic=topic)))
        else:
            self._refused(context, reply)

    def _answer(self, context: Context, ext: dict[str, object]) -> None:
        connection, request = context
        self._gateway.answer(connection, request, ResponseCode.SUCCESS, None, ext)

    def _refused(self, context: Context, reply: Reply | Failed) -> None:
        connection, request = context
        code, remark, ext = refusal(reply)
        if isinstance(reply, Refused) and reply.why in _EXT_OF:
            ext = {_EXT_OF[reply.why]: True}
        self._gateway.answer(connection, request, code, remark, ext)
