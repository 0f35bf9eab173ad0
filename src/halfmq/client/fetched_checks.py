"""Fetching checks with a long poll per broker, for clients that a pushed check cannot reach (FMQ's Feedback, 3.3.5).

A fetched check is leased to this client: the broker checks with nobody else until the answer is overdue (the broker's
``check_answer_ms``, 5 s). So the client fetches only as many as it can answer at once. When a lease expires, the
transaction is checked again.

Only halfmq brokers support this. An Apache RocketMQ broker pushes checks to registered producers.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from halfmq import limits
from halfmq.client.check_listener import transaction_of
from halfmq.client.connection import Connection, NoAnswer, NotSent
from halfmq.client.log import log
from halfmq.client.outcome import Outcome
from halfmq.client.receipts import UNDECIDED, TransactionReceipt
from halfmq.client.refusals import refusal
from halfmq.client.transaction import receipt_of
from halfmq.errors import (
    ConnectError,
    HalfmqError,
    ProtocolError,
    TransactionUnknown,
    UnsupportedCombination,
)
from halfmq.model import properties as names
from halfmq.model.text_fields import write_fields
from halfmq.wire.remoting.check_polls import PollFields, decode_handed_out
from halfmq.wire.remoting.codes import EXT_VERDICT, HMQ_POLL_CHECKS, ResponseCode
from halfmq.wire.remoting.fields import EndReply
from halfmq.wire.remoting.message_codec import PulledMessage, encode_end

if TYPE_CHECKING:
    from halfmq.client.check_listener import CheckListener
    from halfmq.client.context import ClientContext
    from halfmq.client.transaction_block import Transaction
    from halfmq.model.address import Address

#: Long-poll timeout at the broker, seconds. The broker allows up to 25 s.
WAIT_S: Final = 20.0
#: Additional time for the response, seconds.
_GRACE_S: Final = 5.0
#: Backoff after a failed poll, seconds.
_PAUSE_MIN_S: Final = 0.1
_PAUSE_MAX_S: Final = 2.0
#: How often new brokers are looked for, seconds.
_DISCOVERY_INTERVAL_S: Final = 5.0
#: The broker no longer knows a transaction that it handed out: its verdict is past retention, or the store was lost.
_UNKNOWN_TRANSACTION_HINT: Final = (
    "nothing was changed: drop this check, and fetch again; `halfmq tx show` shows what the broker knows of it"
)


class FetchedCheck:
    """A leased check. Pass it to ``answer_check`` together with the outcome of the local transaction."""

    __slots__ = ("_connection", "_half", "transaction")

    def __init__(self, transaction: "Transaction", half: PulledMessage, connection: Connection) -> None:
        #: The same object that a check function receives: id, name, query id, message, number of checks.
        self.transaction = transaction
        self._half = half
        self._connection = connection

    def __repr__(self) -> str:
        return f"FetchedCheck({self.transaction.id!r}, checks={self.transaction.checks})"

    async def answer(self, group: str, outcome: Outcome, timeout_s: float) -> TransactionReceipt:
        """See ``AsyncClient.answer_check``."""
        connection, message = self._connection, self._half.message
        what = f"the answer {outcome.name} about {self.transaction.id}"
        opaque = connection.next_opaque()
        frame = encode_end(
            opaque,
            group=group,
            topic=message.topic,
            half_index=message.queue_offset,
            log_offset=self._half.log_offset,
            commit_or_rollback=outcome.value,
            message_id=names.to_dict(message.properties).get(names.UNIQ_KEY, ""),
            from_check=True,
            decided_by=self.transaction.decided_by,
            tx_id=self.transaction.id,
            oneway=False,
        )
        try:
            answer = await connection.call(opaque, frame, timeout_s)
        except NotSent as error:
            raise ConnectError(
                f"{what}: {error}", hint="the lease ended with the connection; fetch it again"
            ) from error
        except NoAnswer as error:
            raise TransactionUnknown(
                f"{what} was not acknowledged",
                tx_id=self.transaction.id,
                hint="nothing to do: it is handed out again if the broker did not hear it",
            ) from error
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(
                answer.code, answer.remark, what, answer.ext.get(EXT_VERDICT, ""), hint=_UNKNOWN_TRANSACTION_HINT
            )
        ids = (self.transaction.message.message_id,) if self.transaction.message is not None else ()
        if outcome is Outcome.UNKNOWN:
            return TransactionReceipt(self.transaction.id, UNDECIDED, ids)
        return receipt_of(self.transaction.id, outcome, ids, answer.read(EndReply))


async def fetch(
    context: "ClientContext", group: str, address: "Address", *, checks_max: int, wait_s: float
) -> list[FetchedCheck]:
    """Fetch up to ``checks_max`` checks of ``group`` from one broker, waiting up to ``wait_s`` seconds. May return none.

    Raises:
        ConnectError: no response. RequestFailed: rejected. UnsupportedCombination: the broker does not support fetching.
    """
    connection = await context.brokers.get(address)
    if not connection.is_halfmq:
        raise _unsupported(address)
    poll = PollFields(group, context.membership.client_id, round(wait_s * 1_000), checks_max)
    try:
        answer = await connection.request(HMQ_POLL_CHECKS, write_fields(poll), b"", wait_s + _GRACE_S)
    except (NotSent, NoAnswer) as error:
        raise ConnectError(f"fetching the checks of {group} from {address}: {error}") from error
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise _unsupported(address)
    if answer.code != ResponseCode.SUCCESS:
        raise refusal(answer.code, answer.remark, f"fetching the checks of {group} from {address}")
    fetched = []
    for half in decode_handed_out(bytes(answer.body)):
        try:
            fetched.append(FetchedCheck(transaction_of(half), half, connection))
        except (ProtocolError, ValueError) as error:
            log.warning("a check from %s cannot be read: %s", address, error)
    return fetched


def _unsupported(address: "Address") -> UnsupportedCombination:
    return UnsupportedCombination(
        f"the broker at {address} hands out no checks",
        hint="Apache RocketMQ sends them: leave fetches_checks out, so that this client registers as a producer",
    )


async def fetch_any(context: "ClientContext", group: str, *, checks_max: int, wait_s: float) -> list[FetchedCheck]:
    """Poll all brokers; returns the checks of the first ones that have any. Raises as ``fetch`` if every broker failed."""
    if not context.router.brokers():
        await context.router.learn_brokers()
    tasks = {
        asyncio.ensure_future(fetch(context, group, address, checks_max=checks_max, wait_s=wait_s))
        for address in context.router.brokers().values()
    }
    found: list[FetchedCheck] = []
    failures: list[BaseException] = []
    try:
        waiting = tasks
        while waiting and not found:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                failure = task.exception()
                if failure is None:
                    found += task.result()
                else:
                    failures.append(failure)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if len(failures) == len(tasks):
        raise failures[0]
    return found


class CheckFetcher:
    """Fetches checks from every broker and passes them to ``listener``, at most ``checks`` at once, while ``run`` runs."""

    def __init__(self, context: "ClientContext", group: str, listener: "CheckListener", checks: int) -> None:
        self._context = context
        self._group = group
        self._listener = listener
        self._checks = min(checks, limits.CHECK_POLL_CHECKS_MAX)
        #: Poll loops by broker. The loop of a broker without support has ended, and stays here so that it is not restarted.
        self._loops: dict[Address, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Run until cancelled, with one poll loop per broker."""
        try:
            while True:
                brokers = set(self._context.router.brokers().values())
                for address in [address for address in self._loops if address not in brokers]:
                    self._loops.pop(address).cancel()
                for address in brokers - self._loops.keys():
                    self._loops[address] = asyncio.get_running_loop().create_task(self._loop(address))
                await asyncio.sleep(_DISCOVERY_INTERVAL_S)
        finally:
            loops = list(self._loops.values())
            for task in loops:
                task.cancel()
            await asyncio.gather(*loops, return_exceptions=True)

    async def _loop(self, address: "Address") -> None:
        pause_s = _PAUSE_MIN_S
        while True:
            free = await self._listener.free_slots(self._checks)
            try:
                fetched = await fetch(self._context, self._group, address, checks_max=free, wait_s=WAIT_S)
            except UnsupportedCombination as error:
                log.warning("%s", error)
                return
            except HalfmqError as error:
                log.debug("%s", error)
                await asyncio.sleep(pause_s * self._context.rng.uniform(0.5, 1.0))
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
                continue
            pause_s = _PAUSE_MIN_S
            for check in fetched:
                self._listener.on_fetched(check._connection, check.transaction, check._half)
            if not fetched:
                await asyncio.sleep(_PAUSE_MIN_S)  # bounds the poll rate if the broker returns at once
