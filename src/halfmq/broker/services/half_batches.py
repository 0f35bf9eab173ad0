"""Half batches, and decisions on batches of a query. For single halves see ``services.sends``, for verdicts ``services.verdicts``.

Nothing is decided here but whether a payload is correct: its messages are stored as they came.
"""

import logging
from collections.abc import Sequence
from typing import Any, Final

from halfmq import limits
from halfmq.broker.offload import Offload
from halfmq.broker.sequencer import Deliver, Sequencer
from halfmq.broker.services.chosen_ids import ChosenIds
from halfmq.broker.services.payload_arrays import Verify, array_verification
from halfmq.core.commands import DecideBatch, FindDecision, PrepareBatch, Winner
from halfmq.core.decision import Done, Refused, Reply, Why
from halfmq.core.engine import Failed
from halfmq.errors import InvalidName
from halfmq.model.checksum import crc32
from halfmq.model.half_batch import verify_payload
from halfmq.model.ids import checked_name, is_generated_id, is_transaction_id
from halfmq.model.query_batch import QueryBatch, problem_of

log = logging.getLogger("halfmq.half_batches")

_UINT32_MAX: Final = 0xFFFFFFFF
_INT32_MAX: Final = 0x7FFFFFFF
#: Larger numbers do not fit in their fields.
_COUNT_MAX: Final = limits.TRANSACTION_HALF_BATCHES_MAX


class HalfBatches:
    """``deliver(context, reply)`` is called once: at once if the request is invalid, else when the reply is durable."""

    def __init__(self, sequencer: Sequencer, chosen_ids: ChosenIds, offload: Offload) -> None:
        self._sequencer = sequencer
        self._chosen_ids = chosen_ids
        self._offload = offload
        self._settings = sequencer.view.settings
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

    @property
    def store_host(self) -> bytes:
        """What every message of a payload must state as its store host."""
        return self._settings.store_host

    def prepare(
        self,
        connection: int,
        group: str,
        tx_id: str,
        batch: QueryBatch | None,
        attempt: str,
        index: int,
        count: int,
        topic: str,
        default_queues: int,
        queue_id: int,
        messages: int,
        checksum: int,
        grace_ms: int,
        delayed: bool,
        payload: bytes,
        deliver: Deliver,
        context: Any,
    ) -> None:
        """Store a half batch, of a batch of a query (``batch``) or of the transaction ``tx_id``. ``delayed``: all its messages have delays.

        Replies: Sent, Refused, Failed.
        """
        problem = self._names_problem(group, tx_id, batch, attempt, index, count)
        if not problem and not 0 <= queue_id <= _INT32_MAX:
            problem = f"queue {queue_id}: a number from 0 to {_INT32_MAX}"
        if not problem and not 0 < len(topic.encode()) <= limits.TOPIC_CHARS_MAX:
            problem = (
                f"a topic of {len(topic.encode())} bytes; a half batch may have one of 1 to {limits.TOPIC_CHARS_MAX}"
            )
        if not problem and len(payload) > limits.HALF_BATCH_BYTES_MAX:
            problem = f"a payload of {len(payload)} bytes; at most {limits.HALF_BATCH_BYTES_MAX}"
        if not problem and crc32(payload) != checksum:
            problem = "the payload does not have the checksum that the request states"
        if problem:
            deliver(context, Refused(Why.INVALID_PARAMETER, problem))
            return
        host, body_bytes_max = self._settings.store_host, self._settings.body_bytes_max
        if not self._arrays_requested:
            self._request_arrays()
        arrays = None if delayed else self._arrays
        accepted = None if arrays is None else arrays(payload, messages, topic, queue_id, host, body_bytes_max)
        verified = accepted or verify_payload(
            payload,
            messages,
            topic=topic,
            queue_id=queue_id,
            store_host=host,
            body_bytes_max=body_bytes_max,
            delayed=delayed,
        )
        if isinstance(verified, str):
            deliver(context, Refused(Why.MESSAGE_ILLEGAL, verified))
            return
        command = PrepareBatch(
            connection, group, tx_id if batch is None else batch.tx_id, attempt, index, count, topic, default_queues,
            queue_id, messages, checksum, verified.entries_checksum, max(-1, min(grace_ms, limits.CHECK_TIMES_MAX_MS)),
            verified.has_keys, payload, delayed=delayed, batch=batch,
        )  # fmt: skip
        if batch is None and not is_generated_id(tx_id):
            self._chosen_ids.send(command, deliver, context)
        else:
            self._sequencer.submit(command, deliver, context)

    def _names_problem(
        self, group: str, tx_id: str, batch: QueryBatch | None, attempt: str, index: int, count: int
    ) -> str:
        try:
            checked_name(group, "producer group", limits.GROUP_CHARS_MAX)
        except InvalidName as error:
            return str(error)
        if batch is not None:
            problem = problem_of(batch, attempt)
            if problem or count:
                return problem or "a batch of a query does not state how many half batches it has"
        elif attempt or not is_transaction_id(tx_id):
            return f"{tx_id!r} is not a transaction id, or it has an attempt and no query"
        if not 0 <= index < _COUNT_MAX or not 0 <= count <= _COUNT_MAX or (count and index >= count):
            return f"half batch {index} of {count}; a transaction may have {_COUNT_MAX}"
        return ""

    def decide(
        self,
        connection: int,
        group: str,
        batch: QueryBatch,
        digest: bytes,
        winners: Sequence[Winner],
        is_last: bool,
        deliver: Deliver,
        context: Any,
    ) -> None:
        """Decide a batch of a query: see ``core.transaction.batches.decide_batch``. Replies: BatchDecided, Refused, Failed."""
        problem = problem_of(batch)
        for attempt, *numbers in winners:
            if not problem and not all(0 <= number <= _UINT32_MAX for number in numbers):
                problem = f"attempt {attempt}: a number is negative or too large"
            problem = problem or problem_of(batch, attempt)
        if not problem and len({winner.attempt for winner in winners}) < len(winners):
            problem = "an attempt wins twice"
        try:
            checked_name(group, "producer group", limits.GROUP_CHARS_MAX)
        except InvalidName as error:
            problem = str(error)
        if problem:
            deliver(context, Refused(Why.INVALID_PARAMETER, problem))
            return
        command = DecideBatch(connection, group, batch, digest, tuple(winners), is_last)
        self._sequencer.submit_for_receipt(command, self._decided, (command, deliver, context))

    def _decided(self, asked: tuple[DecideBatch, Deliver, Any], reply: Reply | Failed) -> None:
        """Continue if a step copied half batches and did not decide yet."""
        command, deliver, context = asked
        if isinstance(reply, Done) and reply.again:
            self._sequencer.submit_for_receipt(command, self._decided, asked)
        else:
            deliver(context, reply)

    def find(self, connection: int, batch: QueryBatch, deliver: Deliver, context: Any) -> None:
        """Whether a batch is decided. Replies: DecisionFound, Refused, Failed."""
        problem = problem_of(batch)
        if problem:
            deliver(context, Refused(Why.INVALID_PARAMETER, problem))
        else:
            self._sequencer.submit(FindDecision(connection, batch), deliver, context)
