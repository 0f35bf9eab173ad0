"""Transactions over the wire: prepare, commit, rollback.

A transaction has an id, a producer group, and one or more half messages. On a halfmq broker the halves share one verdict at
one log position, and END_TRANSACTION may be repeated. On Apache RocketMQ each half is a separate transaction, and END must
never be repeated (a second COMMIT would make a second message): if its response is lost, the check is the fallback.
The Java client sends END one-way; this client sends it two-way, so that it knows whether the broker acknowledged it.

Only ``commit`` and ``rollback`` send a verdict. After any other failure the transaction stays undecided.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Unpack

from halfmq import limits
from halfmq.client.arguments import Notes, checked_messages, checked_text, checked_transaction_id, note_pairs
from halfmq.client.connection import Connection, NoAnswer, NotSent
from halfmq.client.context import ClientContext
from halfmq.client.log import log
from halfmq.client.outcome import Outcome
from halfmq.client.outgoing import OutgoingMessage
from halfmq.client.prepare import Preparation
from halfmq.client.receipts import (
    COMMITTED,
    ROLLED_BACK,
    UNDECIDED,
    Prepared,
    PreparedHalf,
    TransactionReceipt,
    Verdict,
)
from halfmq.client.refusals import RETRIABLE, refusal
from halfmq.client.retry import BACKOFF_MAX_S, Attempts
from halfmq.client.user_code import end_tasks, spawn
from halfmq.client.verdicts import Verdicts
from halfmq.errors import (
    ConnectError,
    CoordinatorSuperseded,
    HalfmqError,
    RequestFailed,
    SendTimeout,
    TransactionRefused,
    TransactionUndecided,
    TransactionUnknown,
    UsageError,
)
from halfmq.model import properties as names
from halfmq.model.ids import ANY_HALF
from halfmq.model.text_fields import write_fields
from halfmq.wire.remoting.codes import EXT_VERDICT, HMQ_STORY, ResponseCode
from halfmq.wire.remoting.fields import EndReply
from halfmq.wire.remoting.message_codec import encode_end
from halfmq.wire.remoting.operators import EXT_STATE, TransactionFields

#: How long an unanswered verdict is retried in the background, seconds: longer than a broker restart. Then only the check
#: remains.
_BACKGROUND_S: Final = 600.0
_REPEATED: Final = "it is retried in the background, and the check is the fallback"
_REPEATED_FOR_COORDINATOR: Final = (
    "it is retried in the background; no check settles it: settle it again, or ask outcome() what stands"
)

#: Maximum length of the remark sent with UNKNOWN, characters; the broker keeps 200.
REMARK_CHARS_MAX: Final = 500

#: Of a verdict of the application whose call has ended without an answer, and which is refused now: nobody else says so.
_DAMAGE: Final = {
    Outcome.COMMIT: "never appear, and its local transaction is committed",
    Outcome.ROLLBACK: "are visible, and its local transaction is rolled back",
}

VERDICT_OF: Final[dict[Outcome, Verdict]] = {Outcome.COMMIT: COMMITTED, Outcome.ROLLBACK: ROLLED_BACK}


class Settlement:
    """The progress of sending one verdict: which halves of an Apache RocketMQ broker must not be sent again."""

    def __init__(self, prepared: Prepared, outcome: Outcome, *, is_clean_up: bool = False) -> None:
        """``is_clean_up``: not the application's; the halves of a prepare that failed are rolled back."""
        self.prepared = prepared
        self.outcome = outcome
        self.what = f"{outcome.name} of {prepared.tx_id}"
        self.is_clean_up = is_clean_up
        #: On an Apache RocketMQ broker: message ids of halves whose END was written, and of those that were acknowledged.
        self.written: set[str] = set()
        self.acknowledged: set[str] = set()
        self.reply: EndReply | None = None

    def frame(
        self, opaque: int, half: PreparedHalf, *, tx_id: str = "", remark: str = "", oneway: bool = False
    ) -> bytes:
        """The encoded END_TRANSACTION for ``half``. ``tx_id``: only for a halfmq broker, where it settles all halves."""
        return encode_end(
            opaque,
            group=self.prepared.group,
            topic=half.topic,
            half_index=half.half_index,
            log_offset=half.log_offset,
            commit_or_rollback=self.outcome.value,
            message_id=half.message_id,
            tx_id=tx_id,
            coordinator=self.prepared.coordinator,
            remark=remark or None,
            oneway=oneway,
        )

    def receipt(self) -> TransactionReceipt:
        """The receipt for what has been acknowledged so far."""
        tx_id, ids = self.prepared.tx_id, tuple(half.message_id for half in self.prepared.halves if half.message_id)
        if self.reply is not None:
            return receipt_of(tx_id, self.outcome, ids, self.reply, atomic=self.prepared.atomic)
        is_acknowledged = self.acknowledged == set(ids)
        verdict = VERDICT_OF[self.outcome]
        return TransactionReceipt(tx_id, verdict, ids, acknowledged=is_acknowledged, atomic=len(ids) == 1)


def receipt_of(
    tx_id: str, outcome: Outcome, ids: tuple[str, ...], reply: EndReply, *, atomic: bool = True
) -> TransactionReceipt:
    """The receipt for the answer of a halfmq broker. ``ids``: of the messages."""
    position = reply.position if reply.position >= 0 else None
    return TransactionReceipt(
        tx_id, VERDICT_OF[outcome], ids, True, atomic, position, reply.durability, repeated=reply.repeated
    )


class Transactions:
    """Implements ``begin``, ``send_in_transaction`` and ``transaction(session, ...)`` for one producer group."""

    def __init__(self, context: ClientContext, group: str) -> None:
        self._context = context
        self._group = group
        self.verdicts = Verdicts()
        self._background: set[asyncio.Task[None]] = set()
        self._is_closing = False

    # --- prepare --------------------------------------------------------------------------------------------------

    async def prepare(
        self,
        messages: Sequence[OutgoingMessage],
        *,
        tx_id: str,
        name: str = "",
        query_id: str = "",
        broker: str = "",
        timeout_s: float | None = None,
        pairs: Sequence[tuple[str, str]] = (),
        coordinator: str = "",
        **notes: Unpack[Notes],
    ) -> Prepared:
        """Send the halves and wait for all acknowledgements, for ``timeout_s`` seconds (default: the client's timeout). ``broker``: the
        name of the only one that is allowed. ``pairs``: further properties of each message. ``coordinator``: as for ``Preparation``.

        If it raises, the local transaction must not run. Acknowledged halves are rolled back, in the background if
        necessary, others when a late acknowledgement arrives on the same connection, or by the check.

        Raises:
            TransactionRefused: this transaction already has a verdict.
            TransactionUndecided: an earlier transaction with this id has none yet.
            SendTimeout: a half may be stored; nothing becomes visible.
            ConnectError, RequestFailed, UsageError: not sent, rejected, or an argument is wrong.
        """
        _check_arguments(messages, tx_id, name, query_id)
        pairs = [(names.HMQ_QUERY_ID, query_id), *note_pairs(**notes), *pairs]
        preparation = Preparation(self._context, self._group, tx_id, name, timeout_s, coordinator)
        try:
            await preparation.compose(messages, pairs, broker)
            await preparation.send()
        except (TransactionRefused, CoordinatorSuperseded):
            raise
        except TransactionUndecided as error:
            error.tx_id = tx_id
            raise
        except BaseException as error:
            prepared = preparation.so_far()
            if self._may_roll_back(prepared):
                preparation.on_late = self._roll_back_late
            await self._clean_up(prepared, error, preparation.left_s())
            raise
        return preparation.so_far()

    def _may_roll_back(self, prepared: Prepared) -> bool:
        """Whether nobody but this call has run it. Another id may be an earlier run's, which may have committed: its check decides."""
        return self._context.ids.is_own(prepared.tx_id) or not prepared.name

    async def _clean_up(self, prepared: Prepared, error: BaseException, left_s: float) -> None:
        """Roll back the acknowledged halves of a failed prepare: the local transaction has not run."""
        if self._may_roll_back(prepared):
            self.verdicts.decided(prepared.tx_id, Outcome.ROLLBACK)
        if not prepared.halves:
            return
        settlement = Settlement(prepared, Outcome.ROLLBACK, is_clean_up=True)
        if not isinstance(error, Exception) or not left_s:
            self._settle_in_background(settlement)
            return
        try:
            await self._settle(settlement, left_s)
        except (SendTimeout, ConnectError):
            self._settle_in_background(settlement)
        except HalfmqError as lost:
            log.info("%s was not acknowledged (%s); %s settles it", settlement.what, lost, _who_settles(settlement))

    # --- verdicts -------------------------------------------------------------------------------------------------

    async def settle_earlier(
        self, tx_id: str, message: OutgoingMessage, *, broker: str, timeout_s: float | None = None
    ) -> Verdict | None:
        """Roll ``tx_id`` back unless it is committed, whoever has begun it, and whether or not it has reached the broker yet.

        ``tx_id``: chosen by the application, so that the broker refuses what comes later with it. ``message``: any message for it; it
        becomes a half of the transaction if the broker does not know it, so that there is something to roll back.

        Returns COMMITTED, or ROLLED_BACK: then nothing of it ever becomes visible. None: the broker does not know it, and takes no such
        ``message``, so that there is nothing to roll back; a transaction with this message cannot be prepared now.

        Raises:
            SendTimeout, ConnectError, TransactionUnknown: no answer, and nothing is known. Call it again.
            RequestFailed: the broker cannot do it at the moment.
        """
        whole = self._context.attempts(f"settling an earlier {tx_id}", timeout_s)
        # Its halves may be others than this message, and their places are not known here.
        half = PreparedHalf(message.message_id, message.topic, broker, "", ANY_HALF, ANY_HALF)
        any_half = Prepared(tx_id, self._group, "", (half,), atomic=True)
        while True:
            try:
                prepared = await self.prepare([message], tx_id=tx_id, broker=broker, timeout_s=whole.left_s())
            except TransactionRefused as error:
                return COMMITTED if error.standing == COMMITTED else ROLLED_BACK
            except TransactionUndecided:
                prepared = any_half
            except (RequestFailed, UsageError) as error:
                if isinstance(error, RequestFailed) and error.response_code in RETRIABLE:
                    raise
                # Whatever the reason, such as a topic that was deleted: it must not hide what is known of the transaction.
                state = await self.state_at(broker, tx_id, whole)
                if state in (COMMITTED, ROLLED_BACK):
                    return COMMITTED if state == COMMITTED else ROLLED_BACK
                if state != UNDECIDED:
                    return None
                prepared = any_half
            try:
                return (await self.rollback(replace(prepared, timeout_s=whole.left_s()))).verdict
            except TransactionRefused as error:
                return COMMITTED if error.standing == COMMITTED else ROLLED_BACK
            except RequestFailed as error:
                # Not found: settled between the two requests, and no longer in the broker's memory. The next half gets the verdict.
                await whole.refused(error, permanent=False)

    async def state_at(self, broker: str, tx_id: str, attempts: Attempts) -> str:
        """UNDECIDED, COMMITTED, ROLLED_BACK or UNKNOWN, as a halfmq broker finds it by its id: in memory, or in its transaction table.

        Raises:
            SendTimeout, ConnectError: no answer. RequestFailed: the broker has no time to look.
        """
        fields = write_fields(TransactionFields(self._group, tx_id))
        answer = await attempts.ask(
            lambda: self._context.broker(broker),
            lambda connection, timeout_s: connection.request(HMQ_STORY, fields, timeout_s=timeout_s),
        )
        return answer.ext.get(EXT_STATE, "")

    async def commit(self, prepared: Prepared) -> TransactionReceipt:
        """Make all messages of the transaction visible.

        Raises:
            TransactionUnknown: no response; it is retried in the background, and a check is answered with COMMIT.
            TransactionRefused: the transaction has the opposite verdict. TransactionIncomplete: halves are missing; it stays
                undecided, send them or roll back. RequestFailed: the broker rejected it; it stays undecided.
        """
        return await self._decide(Settlement(prepared, Outcome.COMMIT))

    async def rollback(self, prepared: Prepared) -> TransactionReceipt:
        """Discard all messages of the transaction. Raises as ``commit`` does."""
        return await self._decide(Settlement(prepared, Outcome.ROLLBACK))

    async def _decide(self, settlement: Settlement) -> TransactionReceipt:
        tx_id = settlement.prepared.tx_id
        self.verdicts.opened(tx_id)
        try:
            await self._settle(settlement, settlement.prepared.timeout_s or self._context.timeout_s)
        except (TransactionRefused, CoordinatorSuperseded):
            self.verdicts.settled(tx_id)
            raise
        except (SendTimeout, ConnectError) as error:
            self._settle_in_background(settlement)
            raise TransactionUnknown(
                f"{settlement.what} was not acknowledged",
                tx_id=tx_id,
                hint=_REPEATED_FOR_COORDINATOR if settlement.prepared.coordinator else _REPEATED,
            ) from error
        except asyncio.CancelledError:
            self._settle_in_background(settlement)
            raise
        finally:
            # Whatever happened to END: answer checks with this outcome from now on, unless a halfmq broker has settled it.
            if settlement.reply is None and self.verdicts.get(tx_id) is not None:
                self.verdicts.decided(tx_id, settlement.outcome)
        return settlement.receipt()

    async def _settle(self, settlement: Settlement, timeout_s: float) -> None:
        """Send END: once on a halfmq broker, for each half on an Apache RocketMQ broker. ``timeout_s``: seconds in all."""
        whole = self._context.attempts(settlement.what, timeout_s)
        refused: RequestFailed | None = None
        for half in settlement.prepared.halves:
            if half.message_id in settlement.written:
                continue
            try:
                await self._end(settlement, half, whole.left_s())
            except RequestFailed as error:
                if settlement.prepared.atomic:
                    raise
                refused = refused or error
            if settlement.reply is not None:
                self.verdicts.settled(settlement.prepared.tx_id)
                return
        if refused is not None:
            raise refused

    async def _end(self, settlement: Settlement, half: PreparedHalf, timeout_s: float) -> None:
        """Send END_TRANSACTION for one half; on a halfmq broker it settles all halves. Retries.

        Raises:
            SendTimeout, ConnectError: no response in time. RequestFailed: rejected.
        """
        context = self._context
        attempts = context.attempts(settlement.what, timeout_s)
        while True:
            try:
                connection = context.established(half.broker)
                if connection is None:
                    connection = await attempts.within(context.broker(half.broker))
                await connection.ready(attempts.timeout_s())
                if not connection.is_halfmq:
                    return await self._end_at_rocketmq(settlement, half, connection, attempts.timeout_s())
                opaque = connection.next_opaque()
                frame = settlement.frame(opaque, half, tx_id=settlement.prepared.tx_id)
                answer = await connection.call(opaque, frame, attempts.timeout_s())
            except (ConnectError, NotSent, NoAnswer) as error:
                context.router.mark_stale(half.topic)
                await attempts.lost(error)
                continue
            if answer.code == ResponseCode.SUCCESS:
                settlement.reply = answer.read(EndReply)
                return None
            standing = answer.ext.get(EXT_VERDICT, "")
            # For an END a halfmq broker uses code 1 only for permanent errors: wrong group or offsets, unknown transaction.
            await attempts.refused(
                refusal(answer.code, answer.remark, settlement.what, standing),
                permanent=answer.code == ResponseCode.SYSTEM_ERROR,
            )

    async def _end_at_rocketmq(
        self, settlement: Settlement, half: PreparedHalf, connection: Connection, timeout_s: float
    ) -> None:
        """Send END once to an Apache RocketMQ broker; without a response it is left to the check.

        Raises:
            NotSent: nothing was written. RequestFailed: rejected.
        """
        opaque = connection.next_opaque()
        call = connection.call(opaque, settlement.frame(opaque, half), timeout_s)
        settlement.written.add(half.message_id)
        try:
            answer = await call
        except NoAnswer as error:
            log.info("%s: %s; the check settles it", settlement.what, error)
            return
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer.code, answer.remark, settlement.what)
        settlement.acknowledged.add(half.message_id)
        if settlement.outcome is Outcome.COMMIT:
            self.verdicts.committed(half.message_id, connection)

    def tell_unknown(self, prepared: Prepared, remark: str = "") -> None:
        """Send UNKNOWN one-way, as the Java client does. Best effort: the transaction stays undecided either way.

        ``remark``: the reason, shown by ``halfmq tx show``; truncated to 500 characters.
        """
        settlement = Settlement(prepared, Outcome.UNKNOWN)
        for half in prepared.halves[:1] if prepared.atomic else prepared.halves:
            connection = self._context.established(half.broker)
            if connection is not None and not connection.closed:
                tx_id = prepared.tx_id if connection.is_halfmq else ""
                remark = remark[:REMARK_CHARS_MAX]
                connection.send_oneway_frame(
                    settlement.frame(connection.next_opaque(), half, tx_id=tx_id, remark=remark, oneway=True)
                )

    # --- in the background ----------------------------------------------------------------------------------------

    def _roll_back_late(self, prepared: Prepared) -> None:
        if not self._is_closing:
            self._settle_in_background(Settlement(prepared, Outcome.ROLLBACK, is_clean_up=True))

    def _settle_in_background(self, settlement: Settlement) -> None:
        spawn(self._background, self._settle_later(settlement), f"{settlement.what} failed")

    async def _settle_later(self, settlement: Settlement) -> None:
        now = asyncio.get_running_loop().time
        deadline = now() + _BACKGROUND_S
        while now() < deadline:
            try:
                await self._settle(settlement, self._context.timeout_s)
            except (SendTimeout, ConnectError):
                await asyncio.sleep(BACKOFF_MAX_S)
                continue
            except HalfmqError as error:
                if isinstance(error, TransactionRefused) and not settlement.is_clean_up:
                    tx_id, damage = settlement.prepared.tx_id, _DAMAGE[settlement.outcome]
                    log.error("DAMAGE: the messages of %s %s: %s", tx_id, damage, error)
                else:
                    log.warning("late %s was refused: %s", settlement.what, error)
            return
        log.warning(
            "%s was never answered; %s settles it, unless somebody else has", settlement.what, _who_settles(settlement)
        )

    async def close(self, grace_s: float) -> None:
        """Wait up to ``grace_s`` seconds for verdicts in the background; the check settles the rest."""
        self._is_closing = True
        await end_tasks(self._background, grace_s)


def _who_settles(settlement: Settlement) -> str:
    """Who does if this client does not."""
    return "its coordinator" if settlement.prepared.coordinator else "the check"


def _check_arguments(messages: Sequence[OutgoingMessage], tx_id: str, name: str, query_id: str) -> None:
    checked_transaction_id(tx_id)
    checked_messages(messages)
    checked_text(name, "name", "the name of its check")
    checked_text(query_id, "query_id", "the key for its check, such as str(order.id)")
    if not messages:
        raise UsageError("a transaction without messages cannot be prepared")
    if sum(len(message.body) for message in messages) > limits.TRANSACTION_BYTES_MAX:
        raise UsageError(f"the messages of one transaction may have {limits.TRANSACTION_BYTES_MAX} bytes together")
