"""Half batches, and decisions on batches of a query. For single halves see ``services.sends``, for verdicts ``services.verdicts``.

Nothing is decided here but whether a payload is correct: its messages are stored as they came.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from halfmq import limits
from halfmq.broker.offload import Offload
from halfmq.broker.sequencer import Deliver, Sequencer
from halfmq.broker.services.chosen_ids import ChosenIds
from halfmq.broker.services.payload_arrays import Verify, array_verification
from halfmq.broker.services.peer import Peer
from halfmq.broker.turns import BUSY, Turns
from halfmq.core.commands import DecideBatch, FindDecision, PrepareBatch, Winner
from halfmq.core.decision import Done, Refused, Reply, Why
from halfmq.core.engine import Failed
from halfmq.errors import InvalidName
from halfmq.model.checksum import crc32
from halfmq.model.half_batch import Verified, verification
from halfmq.model.ids import checked_name, is_generated_id, is_transaction_id
from halfmq.model.query_batch import QueryBatch, attempt_problem, problem_of
from halfmq.model.steps import Steps

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


class Examines(Protocol):
    """What this service needs from the store."""

    def examine_shown(self, offset: int, messages: int) -> None:
        """Examine now the half batch of ``messages`` at ``offset``, which a verdict shows soon."""
        ...


class _Asked(NamedTuple):
    """A decision that is not answered."""

    peer: Peer
    command: DecideBatch
    deliver: Deliver
    failed: Callable[[Exception], None]
    context: Any


class HalfBatches:
    """``deliver(context, reply)`` is called once: at once if the request is invalid, else when the reply is durable."""

    def __init__(
        self, sequencer: Sequencer, store: Examines, chosen_ids: ChosenIds, offload: Offload, turns: Turns
    ) -> None:
        self._store = store
        self._turns = turns
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
        peer: Peer,
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
        failed: Callable[[Exception], None],
        context: Any,
    ) -> None:
        """Store a half batch, of a batch of a query (``batch``) or of the transaction ``tx_id``. ``delayed``: all its messages have delays.

        Replies: Sent, Refused, Failed. ``failed`` is called instead with an exception of the verification, which is a bug.
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

        def submit(verified: Verified | str) -> None:
            if isinstance(verified, str):
                deliver(context, Refused(Why.MESSAGE_ILLEGAL, verified))
                return
            command = PrepareBatch(
                peer.number, group, tx_id if batch is None else batch.tx_id, attempt, index, count, topic, default_queues,
                queue_id, messages, checksum, verified.entries_checksum, max(-1, min(grace_ms, limits.CHECK_TIMES_MAX_MS)),
                verified.has_keys, payload, delayed=delayed, batch=batch,
            )  # fmt: skip
            if batch is None and not is_generated_id(tx_id):
                self._chosen_ids.send(command, deliver, context)
            else:
                self._sequencer.submit(command, deliver, context)

        accepted = None if arrays is None else arrays(payload, messages, topic, queue_id, host, body_bytes_max)
        if accepted is not None:
            submit(accepted)
            return
        steps = verification(
            payload,
            messages,
            topic=topic,
            queue_id=queue_id,
            store_host=host,
            body_bytes_max=body_bytes_max,
            delayed=delayed,
        )
        if not self._turns.run(peer, len(payload), steps, submit, failed, in_order=True):
            deliver(context, Refused(Why.NOT_NOW, BUSY))

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
        peer: Peer,
        group: str,
        batch: QueryBatch,
        digest: bytes,
        winners: Sequence[Winner],
        is_last: bool,
        deliver: Deliver,
        failed: Callable[[Exception], None],
        context: Any,
    ) -> None:
        """Decide a batch of a query: see ``core.transaction.batches.decide_batch``. Replies: BatchDecided, Refused, Failed.

        ``failed``: as for ``prepare``.
        """
        problem = problem_of(batch) or _winners_problem(winners)
        try:
            checked_name(group, "producer group", limits.GROUP_CHARS_MAX)
        except InvalidName as error:
            problem = str(error)
        if problem:
            deliver(context, Refused(Why.INVALID_PARAMETER, problem))
            return
        self._submit(
            _Asked(
                peer, DecideBatch(peer.number, group, batch, digest, tuple(winners), is_last), deliver, failed, context
            )
        )

    def _submit(self, asked: "_Asked") -> None:
        """Decide, after the half batches of the winners were examined."""

        def examined(_: None) -> None:
            self._sequencer.submit_for_receipt(asked.command, self._decided, asked)

        memory_bytes = _WINNER_COST * len(asked.command.winners)
        steps = self._examination(asked.command)
        if not self._turns.run(asked.peer, memory_bytes, steps, examined, asked.failed, in_order=True):
            asked.deliver(asked.context, Refused(Why.NOT_NOW, BUSY))

    def _examination(self, command: DecideBatch) -> Steps[None]:
        """The engine examines what it shows. Of many half batches that takes long, and its decision cannot be interrupted."""
        group = self._sequencer.view.producer_groups.get(command.group)
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

    def _decided(self, asked: "_Asked", reply: Reply | Failed) -> None:
        """Continue if a step copied half batches and did not decide yet."""
        if isinstance(reply, Done) and reply.again:
            self._submit(asked)
        else:
            asked.deliver(asked.context, reply)

    def find(self, connection: int, batch: QueryBatch, deliver: Deliver, context: Any) -> None:
        """Whether a batch is decided. Replies: DecisionFound, Refused, Failed."""
        problem = problem_of(batch)
        if problem:
            deliver(context, Refused(Why.INVALID_PARAMETER, problem))
        else:
            self._sequencer.submit(FindDecision(connection, batch), deliver, context)


def _winners_problem(winners: Sequence[Winner]) -> str:
    for attempt, *numbers in winners:
        if min(numbers) < 0 or max(numbers) > _UINT32_MAX:
            return f"attempt {attempt}: a number is negative or too large"
        problem = attempt_problem(attempt)
        if problem:
            return problem
    return "an attempt wins twice" if len({winner.attempt for winner in winners}) < len(winners) else ""
