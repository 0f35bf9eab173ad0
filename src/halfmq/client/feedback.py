"""Fetching checks instead of being sent them: a long poll per broker, for where a push cannot reach (FMQ's Feedback, 3.3.5).

What a broker hands out is leased to this client: it asks nobody else before an answer is overdue (``check_answer_ms`` of the
broker, 5 s). So a client fetches no more than it can answer at once. A lease that ends costs nothing but a check; the
transaction is handed out again.

Only a halfmq broker hands checks out. An Apache RocketMQ broker sends them to who is registered as a producer.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from halfmq import limits
from halfmq.client.check_listener import transaction_of
from halfmq.client.connection import Connection, NoAnswer, NotSent
from halfmq.client.log import log
from halfmq.client.outcome import Outcome
from halfmq.client.receipts import COMMITTED, ROLLED_BACK, UNDECIDED, TransactionReceipt, Verdict
from halfmq.client.refusals import refusal
from halfmq.errors import (
    ConnectError,
    HalfmqError,
    ProtocolError,
    TransactionUnknown,
    UnsupportedCombination,
)
from halfmq.model import properties as names
from halfmq.wire.remoting.codes import EXT_VERDICT, ResponseCode
from halfmq.wire.remoting.feedback import HMQ_FEEDBACK, Poll, decode_handed_out, encode_poll
from halfmq.wire.remoting.message_codec import PulledMessage, encode_end
from halfmq.wire.remoting.replies import EndReply, read_reply

if TYPE_CHECKING:
    from halfmq.client.check_listener import CheckListener
    from halfmq.client.connector import Address
    from halfmq.client.plumbing import Plumbing
    from halfmq.client.transaction_block import Transaction

#: How long a poll waits at the broker, seconds. Below the 25 s that a broker allows.
WAIT_S: Final = 20.0
#: How long its answer may take beyond that, seconds.
_GRACE_S: Final = 5.0
#: After a failure the next poll waits at least and at most so long, seconds.
_PAUSE_MIN_S: Final = 0.1
_PAUSE_MAX_S: Final = 2.0
#: How often it is looked for brokers that are new, seconds.
_LOOK_S: Final = 5.0
#: The broker does not know what it once asked about: its verdict is past retention, or the store was lost.
_FORGET_IT: Final = (
    "nothing was changed: forget this check, and fetch anew; `halfmq tx show` tells what the broker knows of it"
)
_VERDICT_OF: Final[dict[Outcome, Verdict]] = {Outcome.COMMIT: COMMITTED, Outcome.ROLLBACK: ROLLED_BACK}


class FetchedCheck:
    """One transaction that this client is asked about, on lease. Give it to ``answer_check`` with what is true of it."""

    __slots__ = ("_connection", "_half", "transaction")

    def __init__(self, transaction: "Transaction", half: PulledMessage, connection: Connection) -> None:
        #: As a check function gets it: id, name, query id, message, how often it was asked.
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
            raise refusal(answer.code, answer.remark or "", what, answer.ext.get(EXT_VERDICT, ""), hint=_FORGET_IT)
        ids = (self.transaction.message.message_id,) if self.transaction.message is not None else ()
        if outcome is Outcome.UNKNOWN:
            return TransactionReceipt(self.transaction.id, UNDECIDED, ids)
        reply = read_reply(answer, EndReply)
        return TransactionReceipt(
            self.transaction.id,
            _VERDICT_OF[outcome],
            ids,
            position=reply.position if reply.position >= 0 else None,
            durability=reply.durability,
            repeated=reply.repeated,
        )


async def fetch(
    plumbing: "Plumbing", group: str, address: "Address", *, checks_max: int, wait_s: float
) -> list[FetchedCheck]:
    """The checks of ``group`` that the broker at ``address`` has now, or within ``wait_s`` seconds; possibly none.

    Raises:
        ConnectError: it does not answer. RequestFailed: it refused. UnsupportedCombination: it hands out no checks.
    """
    connection = await plumbing.brokers.get(address)
    if not connection.is_halfmq:
        raise _not_there(address)
    poll = Poll(group, plumbing.membership.client_id, round(wait_s * 1_000), checks_max)
    try:
        answer = await connection.request(HMQ_FEEDBACK, encode_poll(poll), b"", wait_s + _GRACE_S)
    except (NotSent, NoAnswer) as error:
        raise ConnectError(f"fetching the checks of {group} from {address}: {error}") from error
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise _not_there(address)
    if answer.code != ResponseCode.SUCCESS:
        raise refusal(answer.code, answer.remark or "", f"fetching the checks of {group} from {address}")
    fetched = []
    for half in decode_handed_out(bytes(answer.body)):
        try:
            fetched.append(FetchedCheck(transaction_of(half), half, connection))
        except (ProtocolError, ValueError) as error:
            log.warning("a check from %s cannot be read: %s", address, error)
    return fetched


def _not_there(address: "Address") -> UnsupportedCombination:
    return UnsupportedCombination(
        f"the broker at {address} hands out no checks",
        hint="Apache RocketMQ sends them: leave fetches_checks out, so that this client registers as a producer",
    )


async def fetch_any(plumbing: "Plumbing", group: str, *, checks_max: int, wait_s: float) -> list[FetchedCheck]:
    """From whichever brokers have some first. Raises as ``fetch``, if every broker failed."""
    if not plumbing.router.brokers():
        await plumbing.router.learn_brokers()
    brokers = list(plumbing.router.brokers().values())
    if not brokers:
        raise ConnectError(
            f"fetching the checks of {group}: no broker is known", hint="send or consume something first"
        )
    tasks = {
        asyncio.ensure_future(fetch(plumbing, group, address, checks_max=checks_max, wait_s=wait_s))
        for address in brokers
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
    """Fetches checks from every broker for as long as ``run`` runs, and gives them to the listener."""

    def __init__(self, plumbing: "Plumbing", group: str, listener: "CheckListener", checks: int) -> None:
        self._plumbing = plumbing
        self._group = group
        self._listener = listener
        self._checks = min(checks, limits.FEEDBACK_CHECKS_MAX)
        #: By broker; that of one that hands out no checks has ended, and is not begun anew.
        self._loops: dict[Address, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Until cancelled. One loop for each broker; new ones are found within seconds."""
        try:
            while True:
                brokers = set(self._plumbing.router.brokers().values())
                for address in [address for address in self._loops if address not in brokers]:
                    self._loops.pop(address).cancel()
                for address in brokers - self._loops.keys():
                    self._loops[address] = asyncio.get_running_loop().create_task(self._loop(address))
                await asyncio.sleep(_LOOK_S)
        finally:
            loops = list(self._loops.values())
            for task in loops:
                task.cancel()
            await asyncio.gather(*loops, return_exceptions=True)

    async def _loop(self, address: "Address") -> None:
        pause_s = _PAUSE_MIN_S
        while True:
            room = await self._listener.room(self._checks)
            try:
                fetched = await fetch(self._plumbing, self._group, address, checks_max=room, wait_s=WAIT_S)
            except UnsupportedCombination as error:
                log.warning("%s", error)
                return
            except HalfmqError as error:
                log.debug("%s", error)
                await asyncio.sleep(pause_s * self._plumbing.rng.uniform(0.5, 1.0))
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
                continue
            pause_s = _PAUSE_MIN_S
            for check in fetched:
                self._listener.on_fetched(check._connection, check.transaction, check._half)
            if not fetched:
                await asyncio.sleep(_PAUSE_MIN_S)  # also where a broker does not wait, it is not asked all the time
