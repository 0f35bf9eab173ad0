"""Half batches, decisions on batches of a query (29012 to 29014), and for administrators the queries that the broker remembers (29017,
29018; ``core.transaction.query_limits``). For single halves see ``sends``, for verdicts ``services.verdicts``.

Nothing is decided here but whether a payload is correct: its messages are stored as they came.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple

from halfmq import limits
from halfmq.broker.remoting.gateway import Connection
from halfmq.broker.remoting.handlers import Handlers, Parts
from halfmq.broker.services.pages import page_of
from halfmq.broker.services.payload_arrays import Verify, array_verification
from halfmq.broker.services.topics import deliver
from halfmq.core.commands import DecideBatch, FindDecision, ForgetQuery, PrepareBatch, Winner
from halfmq.core.decision import BatchDecided, DecisionFound, Done, Failed, QueryRemoved, Refused, Reply, Sent, Why
from halfmq.core.state import Query, State
from halfmq.model.checksum import crc32
from halfmq.model.half_batch import Verified, delayed_entries_of, verification
from halfmq.model.ids import group_problem, is_generated_id, is_transaction_id
from halfmq.model.pending import QueryInfo
from halfmq.model.query_batch import QueryBatch, attempt_problem, problem_of, query_text
from halfmq.model.records import BatchFacts
from halfmq.model.steps import Steps
from halfmq.model.text_fields import write_fields
from halfmq.wire.remoting.half_batches import (
    EXT_FENCED,
    EXT_LAST_BATCH,
    EXT_MISSING,
    EXT_OTHER_STREAM,
    QUERIES,
    DecideFields,
    DecisionAnswer,
    ForgetQueryFields,
    PlaceFields,
    PrepareFields,
    answer_ext,
    batch_of,
    decode_winners,
)
from halfmq.wire.remoting.header import Request

log = logging.getLogger("halfmq.half_batches")

_UINT32_MAX: Final = 0xFFFFFFFF
_INT32_MAX: Final = 0x7FFFFFFF
#: Larger numbers do not fit in their fields.
_COUNT_MAX: Final = limits.TRANSACTION_HALF_BATCHES_MAX
#: Messages that are examined before a decision between two places where that may be interrupted, and what a half batch counts besides.
_MESSAGES_AT_ONCE: Final = 65_536
_HALF_BATCH_COST: Final = 128
#: Memory of a winner, bytes.
_WINNER_COST: Final = 256

Answer = Callable[[Any], None]


class _Undecided(NamedTuple):
    """A decision that has no reply yet."""

    connection: Connection
    command: DecideBatch
    answer: Answer
    failed: Callable[[Exception], None]


class HalfBatchCommands(Handlers):
    """Requests of clients that write in batches, and of administrators."""

    FIELD_OF_REASON: ClassVar = {
        Why.FENCED: EXT_FENCED,
        Why.INCOMPLETE: EXT_MISSING,
        Why.OTHER_STREAM: EXT_OTHER_STREAM,
    }

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._store = parts.store
        self._chosen_ids = parts.chosen_ids
        self._offload = parts.offload
        self._settings = self._view.settings
        #: Set once NumPy is imported, which takes 100 ms: not on the loop. Until then payloads are verified message by message.
        self._arrays: Verify | None = None
        self._arrays_requested = False

    def _request_arrays(self) -> None:
        def done(found: Verify | Exception | None) -> None:
            if isinstance(found, Exception):
                log.warning("half batches are verified without NumPy, which takes twice as long: %s", found)
            else:
                self._arrays = found

        self._arrays_requested = True
        self._offload.run(array_verification, done)

    # --- half batches

    def prepare(self, connection: Connection, request: Request[Any]) -> None:
        """29012: store a half batch, of a batch of a query or of a transaction."""
        fields: PrepareFields = request.ext
        payload = bytes(request.body)
        batch = batch_of(fields) if fields.query else None
        answer = self._answering(
            connection, request, Sent, lambda reply: write_fields(PlaceFields(reply.log_offset, reply.queue_offset))
        )
        problem = _problem_of(fields, batch, payload)
        if problem:
            answer(Refused(Why.INVALID_PARAMETER, problem))
            return
        if not self._arrays_requested:
            self._request_arrays()

        def submit(verified: Verified | str) -> None:
            if isinstance(verified, str):
                answer(Refused(Why.MESSAGE_ILLEGAL, verified))
                return
            grace_ms = max(-1, min(fields.grace_ms, limits.CHECK_TIMES_MAX_MS))
            facts = BatchFacts(
                fields.attempt, fields.messages, fields.checksum, verified.entries_checksum, verified.has_keys,
                delayed_entries_of(payload, fields.messages) if fields.delayed else b"",
                *(() if batch is None else (batch.topic, batch.stream)),
            )  # fmt: skip
            command = PrepareBatch(
                connection.number, fields.group, fields.tx_id if batch is None else batch.tx_id, facts, fields.index,
                fields.count, fields.topic, fields.default_queues, fields.queue_id, grace_ms, payload, batch=batch,
                user=connection.user,
            )  # fmt: skip
            if batch is None and not is_generated_id(fields.tx_id):
                self._chosen_ids.send(connection, command, deliver, answer)
            else:
                self._sequencer.submit(command, deliver, answer)

        host, body_bytes_max = self._settings.store_host, self._settings.body_bytes_max
        accepted = None
        if self._arrays is not None and not fields.delayed:
            accepted = self._arrays(payload, fields.messages, fields.topic, fields.queue_id, host, body_bytes_max)
        if accepted is not None:
            submit(accepted)
            return
        steps = verification(
            payload, fields.messages, topic=fields.topic, queue_id=fields.queue_id, store_host=host,
            body_bytes_max=body_bytes_max, delayed=bool(fields.delayed),
        )  # fmt: skip
        failed = partial(self._gateway.failed, connection, request.to_answer(None))
        busy = self._turns.run(connection, len(payload), steps, submit, failed, in_order=True)
        if busy is not None:
            answer(busy)

    # --- decisions

    def decide(self, connection: Connection, request: Request[Any]) -> None:
        """29013: which attempts of a batch become visible: see ``core.transaction.batches.decide_batch``."""
        fields: DecideFields = request.ext
        batch, winners = batch_of(fields), [Winner(*winner) for winner in decode_winners(request.body)]
        answer = self._answering(
            connection, request, BatchDecided, lambda reply: {"position": reply.position, "repeated": reply.repeated}
        )
        problem = group_problem(fields.group) or problem_of(batch) or _winners_problem(winners)
        if problem:
            answer(Refused(Why.INVALID_PARAMETER, problem))
            return
        command = DecideBatch(
            connection.number,
            fields.group,
            batch,
            bytes.fromhex(fields.digest),
            tuple(winners),
            bool(fields.last),
            user=connection.user,
        )
        failed = partial(self._gateway.failed, connection, request.to_answer(None))
        self._submit(_Undecided(connection, command, answer, failed))

    def _submit(self, asked: _Undecided) -> None:
        """Decide, after the half batches of the winners were examined."""

        def examined(_: None) -> None:
            self._sequencer.submit_for_receipt(asked.command, self._decided, asked)

        memory_bytes = _WINNER_COST * len(asked.command.winners)
        steps = self._examination(asked.command)
        busy = self._turns.run(asked.connection, memory_bytes, steps, examined, asked.failed, in_order=True)
        if busy is not None:
            asked.answer(busy)

    def _examination(self, command: DecideBatch) -> Steps[None]:
        """The engine examines what it shows. Of many half batches that takes long, and its decision cannot be interrupted."""
        group = self._view.producer_groups.get(command.group)
        known = group.undecided.get(command.batch.tx_id) if group is not None else None
        won = {winner.attempt for winner in command.winners} if known is not None else ()
        done = 0
        for half in known.halves if known is not None else ():
            if half.attempt in won:
                self._store.examine_shown(half.offset, half.messages)
            done += half.messages + _HALF_BATCH_COST
            if done > _MESSAGES_AT_ONCE:
                done = 0
                yield

    def _decided(self, asked: _Undecided, reply: Reply | Failed) -> None:
        """Continue if a step copied half batches and did not decide yet."""
        if isinstance(reply, Done) and reply.again:
            self._submit(asked)
        else:
            asked.answer(reply)

    def decision(self, connection: Connection, request: Request[Any]) -> None:
        """29014: whether a batch is decided, and what every message of a payload must state as its store host."""
        host = self._settings.store_host
        if not request.ext.query:
            self._answer(connection, request, answer_ext(DecisionAnswer(host, False, b"", -1, -1)))
            return
        batch = batch_of(request.ext)
        answer = self._answering(
            connection, request, DecisionFound,
            lambda reply: answer_ext(DecisionAnswer(host, *reply, query_topic=batch.topic)),
        )  # fmt: skip
        problem = problem_of(batch)
        if problem:
            answer(Refused(Why.INVALID_PARAMETER, problem))
        else:
            self._sequencer.submit(FindDecision(connection.number, batch), deliver, answer)

    # --- queries, for administrators

    def queries(self, connection: Connection, request: Request[Any]) -> None:
        """29017: a page of queries, in the order in which the broker got to know them."""
        known = self._view.queries.values()
        page = page_of(known, request.ext.rows, request.ext.start, lambda query: _info(self._view, query))
        self._answer_page(connection, request, page, QUERIES.encode(page.rows))

    def forget_query(self, connection: Connection, request: Request[Any]) -> None:
        """29018: the broker forgets a query. Its batches can be written again, also those that are visible.

        Refusals: INVALID_PARAMETER: no name or reason. NOT_FOUND. NOT_NOW: it has undecided batches.
        """
        fields: ForgetQueryFields = request.ext
        name, topic = fields.query, fields.query_topic
        self._forget(
            connection, request, QueryRemoved, lambda reply: {EXT_LAST_BATCH: reply.last_batch}, partial(ForgetQuery, name, topic),
            ("query", name, topic),
            lambda reply: f"{query_text(reply.name, reply.topic)}, of which batch {reply.last_batch} was the last one decided",
        )  # fmt: skip


def _info(view: State, query: Query) -> QueryInfo:
    last = query.decisions.get(query.last_batch)
    return QueryInfo(
        query.name, query.topic, query.stream, query.group, query.run, query.last_batch,
        -1 if last is None else last.position, len(query.decisions),
        len(view.derived.undecided_of_query.get(query.key, ())), query.is_over,
    )  # fmt: skip


def _problem_of(fields: PrepareFields, batch: QueryBatch | None, payload: bytes) -> str:
    """Why the fields are refused, or do not fit the payload; empty: they are accepted."""
    problem = group_problem(fields.group) or _names_problem(fields, batch)
    if problem:
        return problem
    if not 0 <= fields.queue_id <= _INT32_MAX:
        return f"queue {fields.queue_id}: a number from 0 to {_INT32_MAX}"
    topic_bytes = len(fields.topic.encode())
    if not 0 < topic_bytes <= limits.TOPIC_CHARS_MAX:
        return f"a topic of {topic_bytes} bytes; a half batch may have one of 1 to {limits.TOPIC_CHARS_MAX}"
    if len(payload) > limits.HALF_BATCH_BYTES_MAX:
        return f"a payload of {len(payload)} bytes; at most {limits.HALF_BATCH_BYTES_MAX}"
    if crc32(payload) != fields.checksum:
        return "the payload does not have the checksum that the request states"
    return ""


def _names_problem(fields: PrepareFields, batch: QueryBatch | None) -> str:
    index, count = fields.index, fields.count
    if batch is not None:
        problem = problem_of(batch, fields.attempt)
        if problem or count:
            return problem or "a batch of a query does not state how many half batches it has"
    elif fields.attempt or not is_transaction_id(fields.tx_id):
        return f"{fields.tx_id!r} is not a transaction id, or it has an attempt and no query"
    if not 0 <= index < _COUNT_MAX or not 0 <= count <= _COUNT_MAX or (count and index >= count):
        return f"half batch {index} of {count}; a transaction may have {_COUNT_MAX}"
    return ""


def _winners_problem(winners: Sequence[Winner]) -> str:
    for attempt, *numbers in winners:
        if min(numbers) < 0 or max(numbers) > _UINT32_MAX:
            return f"attempt {attempt}: a number is negative or too large"
        problem = attempt_problem(attempt)
        if problem:
            return problem
    return "an attempt wins twice" if len({winner.attempt for winner in winners}) < len(winners) else ""
