"""Answers the broker's checks, pushed (request 39) or fetched: looks up the check function by the transaction name in the
half message, calls it, and sends its outcome (END_TRANSACTION, 37).

UNKNOWN is always safe, since the broker checks again. So an unregistered name (another release of the application runs
elsewhere), an exception and a wrong return value are all answered UNKNOWN, and logged here.
"""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, Final

from halfmq.client.arguments import advice_in
from halfmq.client.connection import Connection, NoAnswer
from halfmq.client.log import log
from halfmq.client.marker_table import CheckFunction
from halfmq.client.message import Message
from halfmq.client.outcome import Outcome
from halfmq.client.transaction import REMARK_CHARS_MAX
from halfmq.client.transaction_block import Transaction, checked_outcome
from halfmq.client.user_code import RunBlocking, call, end_tasks, is_our_cancellation, spawn
from halfmq.client.verdicts import Verdicts
from halfmq.errors import HalfmqError, ProtocolError
from halfmq.model import properties as names
from halfmq.model.stored_message import SYS_COMPRESSED
from halfmq.wire.remoting.codes import ResponseCode
from halfmq.wire.remoting.fields import CheckFields
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.message_codec import PulledMessage, encode_end, split_pull, unpack

#: Pending checks; more are dropped, and the broker checks again. Precedent: RocketMQ ``checkRequestHoldMax``.
_WAITING_MAX: Final = 2_000
_END_TIMEOUT_S: Final = 3.0
#: Remark of the answer to a check that nobody but a coordinator can answer.
_COORDINATOR_DECIDES: Final = "its coordinator decides"


class CheckListener:
    """Check functions by transaction name; at most ``checks`` of them run at once."""

    def __init__(self, group: str, verdicts: Verdicts, run_blocking: RunBlocking, checks: int) -> None:
        self._group = group
        self._verdicts = verdicts
        self._run_blocking = run_blocking
        self._turns = asyncio.Semaphore(checks)
        self._listeners: dict[str, CheckFunction] = {}
        #: (transaction id, message id) of running and waiting checks; a duplicate is ignored.
        self._busy: set[tuple[str, str]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        #: Set whenever a check is done.
        self._answered = asyncio.Event()
        self._reported: set[str] = set()
        #: For metrics: received checks by result.
        self.counts: dict[str, int] = {"answered": 0, "unknown-name": 0, "failed": 0, "dropped": 0}

    def register(self, name: str, check: CheckFunction) -> None:
        """Route checks of ``name`` to ``check``; a later registration replaces an earlier one."""
        self._listeners[name] = check
        self._reported.discard(name)

    def on_check(self, connection: Connection, request: Request[Any]) -> None:
        """Handle a pushed check. Returns at once; the answer is sent later on the same connection."""
        try:
            transaction, half, fields = _read(request)
        except (HalfmqError, IndexError, AttributeError, ValueError) as error:
            log.warning("a check from %s cannot be read: %s", connection.address, error)
            return
        self._take(connection, transaction, half, fields)

    def on_fetched(self, connection: Connection, transaction: Transaction, half: PulledMessage) -> None:
        """Handle a check that was fetched on ``connection``, like ``on_check``."""
        unique_id = transaction.message.message_id if transaction.message is not None else ""
        self._take(connection, transaction, half, CheckFields(half.message.queue_offset, half.log_offset, unique_id))

    async def free_slots(self, checks: int) -> int:
        """How many of ``checks`` concurrent checks may start now; waits until at least one may."""
        while len(self._busy) >= checks:
            self._answered.clear()
            await self._answered.wait()
        return checks - len(self._busy)

    def _take(self, connection: Connection, transaction: Transaction, half: PulledMessage, fields: CheckFields) -> None:
        message = transaction.message
        assert message is not None
        group = message.properties.get(names.PGROUP)
        if group != self._group:
            log.warning("a check for producer group %s came to group %s; not answered", group, self._group)
            return
        key = transaction.id, message.message_id
        if key in self._busy:
            return
        if len(self._busy) >= _WAITING_MAX:
            self.counts["dropped"] += 1
            return
        self._busy.add(key)
        answering = self._answer(connection, transaction, half, fields)
        spawn(self._tasks, answering, "answering a check failed").add_done_callback(lambda _: self._done(key))

    def _done(self, key: tuple[str, str]) -> None:
        self._busy.discard(key)
        self._answered.set()

    async def _answer(
        self, connection: Connection, transaction: Transaction, half: PulledMessage, fields: CheckFields
    ) -> None:
        message = transaction.message
        assert message is not None
        outcome = self._verdicts.get(transaction.id)
        if names.HMQ_COORDINATOR in message.properties:
            outcome, transaction.remark = Outcome.UNKNOWN, _COORDINATOR_DECIDES
        if not connection.is_halfmq and self._verdicts.is_echo(message.message_id, connection):
            outcome = Outcome.ROLLBACK
        if outcome is None:
            async with self._turns:
                outcome = await self._ask(transaction, half)
        if connection.closed:
            return  # the broker checks again, on an open connection
        self.counts["answered"] += 1
        oneway = connection.is_halfmq or outcome is not Outcome.COMMIT
        opaque = connection.next_opaque()
        frame = encode_end(
            opaque,
            group=self._group,
            topic=message.topic,
            half_index=fields.tran_state_table_offset,
            log_offset=fields.commit_log_offset,
            commit_or_rollback=outcome.value,
            message_id=fields.msg_id or message.message_id,
            from_check=True,
            decided_by=transaction.decided_by if connection.is_halfmq else "",
            tx_id=transaction.id if connection.is_halfmq else "",
            remark=transaction.remark[:REMARK_CHARS_MAX] if outcome is Outcome.UNKNOWN else None,
            oneway=oneway,
        )
        if oneway:
            connection.send_oneway_frame(frame)
            return
        try:
            answer = await connection.call(opaque, frame, _END_TIMEOUT_S)
        except NoAnswer as error:
            log.debug("COMMIT of %s after a check: %s", transaction.id, error)
        else:
            if answer.code == ResponseCode.SUCCESS:
                self._verdicts.committed(message.message_id, connection)

    async def outcome_of(self, transaction: Transaction) -> Outcome:
        """What the check function says of a transaction that has a verdict, so that nobody sends its half. UNKNOWN also if it raises."""
        async with self._turns:
            outcome = await self._ask(transaction, None)
        self.counts["compared"] = self.counts.get("compared", 0) + 1
        return outcome

    async def _ask(self, transaction: Transaction, half: PulledMessage | None) -> Outcome:
        """Call the check function. ``half`` is decompressed only now, so that memory is bounded by the running checks."""
        check = self._listeners.get(transaction.name)
        if check is None:
            self._report_unknown(transaction)
            # Whoever asks why it is undecided looks at the broker, and not into the log of each client.
            transaction.remark = f"no check is registered for transactions named {transaction.name!r}"
            return Outcome.UNKNOWN
        try:
            if half is not None and half.message.sys_flag & SYS_COMPRESSED:
                plain = await self._run_blocking(unpack, half)
                transaction.message = Message(plain.message, plain.log_offset, plain.message.body)
            return await self._call(check, transaction)
        except (Exception, asyncio.CancelledError) as error:
            if is_our_cancellation(error):
                raise
            self.counts["failed"] += 1
            log.exception("the check of transaction %s (%s) failed; UNKNOWN", transaction.id, transaction.name)
            return Outcome.UNKNOWN

    async def _call(self, check: CheckFunction, transaction: Transaction) -> Outcome:
        """Raises: any exception of the function; TypeError: it returned no Outcome."""
        answer = await call(self._run_blocking, check, transaction)
        return checked_outcome(answer, f"the check of transactions named {transaction.name!r}")

    def _report_unknown(self, transaction: Transaction) -> None:
        self.counts["unknown-name"] += 1
        if transaction.name not in self._reported and len(self._reported) < 1_000:
            self._reported.add(transaction.name)
            log.warning(
                "no listener for transactions named %r (first seen: %s); they stay undecided until a client of group %s"
                " that has one is asked",
                transaction.name, transaction.id, self._group,
            )  # fmt: skip

    async def close(self, grace_s: float) -> None:
        """Wait up to ``grace_s`` seconds for running checks, then cancel the rest."""
        await end_tasks(self._tasks, grace_s)


def _read(request: Request[Any]) -> tuple[Transaction, PulledMessage, CheckFields]:
    fields: CheckFields = request.ext
    half = split_pull(request.body)[0]
    return transaction_of(half, fields.tx_id, fields.msg_id), half, fields


def transaction_of(half: PulledMessage, tx_id: str = "", message_id: str = "") -> Transaction:
    """The transaction that is passed to a check function. ``tx_id`` and ``message_id`` are used if the half carries none.

    Raises:
        ProtocolError: the body does not match its CRC.
    """
    if not half.whole:
        raise ProtocolError(f"the body of half {half.message.queue_offset} is damaged: its CRC differs")
    message = Message(half.message, half.log_offset, half.message.body)
    text = message.properties
    known = text.get(names.HMQ_TX_ID) or tx_id or text.get(names.UNIQ_KEY) or message_id
    transaction = Transaction(known, text.get(names.HMQ_TX_NAME, ""), query_id=text.get(names.HMQ_QUERY_ID, ""))
    transaction.advice = advice_in(text.get(names.HMQ_ADVICE, ""))
    transaction.comment = text.get(names.HMQ_COMMENT, "")
    transaction.message = message
    transaction.marker = text.get(names.HMQ_TX_MARKER, "")
    checks = text.get(names.TRANSACTION_CHECK_TIMES, "")  # the sender's own value if the broker's did not fit
    transaction.checks = int(checks) if checks.isascii() and checks.isdigit() and len(checks) < 10 else 1
    transaction.prepared_at_ms = half.message.store_time_ms or None
    return transaction


def check_of(listener_check: Callable[[Message], Any]) -> CheckFunction:
    """A listener's ``check(message)`` as a check function."""

    def check(transaction: Transaction) -> Any:
        return listener_check(transaction.message)  # type: ignore[arg-type]

    async def check_on_loop(transaction: Transaction) -> Any:
        return await listener_check(transaction.message)  # type: ignore[arg-type]

    return check_on_loop if inspect.iscoroutinefunction(listener_check) else check
