"""For somebody else's coordinator: halfmq as one more participant of its transactions, and by default as its log of decisions.

    recover()   at the start: take over from every earlier process, and list what is undecided
    prepare()   phase one: the messages are stored, and invisible
    settle()    the decision: the first durable one stands, whoever sends which again
    outcome()   what was decided, for branches of other participants whose decision stands

The broker gives each process an epoch (``model.coordinator``) and refuses what a lower one prepares or settles. So nothing that an earlier
process still sends can overrule this one, or add to what it has listed. A check never settles a transaction of a coordinator.

What the caller does with the other participants, in which order, and what holds when somebody is killed: docs/coordinator.md.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

from halfmq import limits
from halfmq.client import forks
from halfmq.client.arguments import advice_in, checked_note, checked_seconds, checked_timeout, checked_transaction_id
from halfmq.client.connection import Answer
from halfmq.client.faces import blocking
from halfmq.client.halfmq_requests import ask
from halfmq.client.outcome import Outcome
from halfmq.client.outgoing import OutgoingMessage
from halfmq.client.receipts import (
    COMMITTED,
    ROLLED_BACK,
    UNDECIDED,
    Prepared,
    PreparedHalf,
    TransactionReceipt,
    Verdict,
)
from halfmq.client.transaction import VERDICT_OF
from halfmq.client.xid import Xid
from halfmq.errors import RequestFailed, TransactionRefused, UsageError
from halfmq.model import coordinator as model
from halfmq.model import properties as names
from halfmq.model.ids import ANY_HALF
from halfmq.model.message_facts import GRACE_MAX_MS
from halfmq.model.pending import PendingTransaction
from halfmq.model.text_fields import write_fields
from halfmq.wire.remoting.codes import HMQ_TAKE_EPOCH, HMQ_TRANSACTIONS, ResponseCode
from halfmq.wire.remoting.coordinators import EpochFields, TakeEpochFields
from halfmq.wire.remoting.operators import EXT_AT, EXT_NEXT, TransactionsFields, decode_pending

if TYPE_CHECKING:
    from halfmq.client.context import ClientContext
    from halfmq.client.transaction import Transactions

#: Default grace period of what a coordinator prepares, seconds: nobody can answer a check in its place, so that an early one is only noise.
GRACE_S: Final = 60.0
UNKNOWN: Final = "UNKNOWN"
#: ``outcome``: "UNKNOWN": never prepared, or past retention.
Standing = Literal["COMMITTED", "ROLLED_BACK", "UNDECIDED", "UNKNOWN"]
_RECOVER_FIRST: Final = "call recover() at the start: it takes over from earlier processes, and lists what they left"


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A transaction of a coordinator that has no verdict, as ``recover`` lists it.

    ``branch``, ``comment`` and ``advice`` as given to ``prepare``. ``epoch``: of the process that prepared it. ``prepared_at_ms``: when, by
    the broker's clock; ``age_s``: seconds since then. ``messages``: that are stored; fewer than ``expected`` if its process was
    interrupted, and then it can only be rolled back (0: their number is not known).
    """

    tx_id: str
    branch: str
    comment: str
    advice: Outcome | None
    epoch: int
    prepared_at_ms: int
    age_s: float
    messages: int
    expected: int
    topics: tuple[str, ...]
    broker: str

    @property
    def is_complete(self) -> bool:
        """Whether it can be committed."""
        return self.messages == self.expected


class Coordinator:
    """One process of a coordinator: made by ``AsyncClient.coordinator``. One at a time acts for each name in a producer group."""

    def __init__(
        self,
        context: "ClientContext",
        transactions: "Transactions",
        register: "Callable[[], object]",
        group: str,
        name: str,
    ) -> None:
        """``register``: lets the client join its producer group."""
        if not isinstance(name, str) or not model.is_coordinator_name(name):
            hint = f"1 to {limits.COORDINATOR_NAME_CHARS_MAX} characters of A-Z a-z 0-9 . _ : -"
            raise UsageError(f"{name!r} is not the name of a coordinator", hint=hint)
        self.name = name
        self.group = group
        self._context = context
        self._transactions = transactions
        self._register = register
        self._epochs: dict[str, int] = {}
        #: Broker of the undecided transactions that this process has seen.
        self._broker_of: dict[str, str] = {}

    @property
    def epochs(self) -> Mapping[str, int]:
        """The epoch of this process at each broker, by name; empty before ``recover``."""
        return MappingProxyType(self._epochs)

    def _here(self, *, after_recovery: bool = False) -> "ClientContext":
        self._context.refuse_other_loop("this coordinator")
        if self._context.brokers.closed:
            raise UsageError("the client of this coordinator is closed", hint="make a new one: mq.coordinator(name)")
        if after_recovery and not self._epochs:
            raise UsageError("this coordinator has no epoch yet", hint=_RECOVER_FIRST)
        return self._context

    async def recover(self) -> list[PreparedTransaction]:
        """Take over from every earlier process of this coordinator, and list its undecided transactions, at all brokers, oldest first.

        Call it at the start, then settle each of them: from now on nobody else adds to them or settles them, apart from operators and a
        policy of the group. It may be called again.

        Raises:
            ConnectError, RequestFailed: a broker did not answer, or refused; nothing can be settled. Call it again.
            UnsupportedCombination: a broker is Apache RocketMQ.
        """
        context = self._here()
        whole = context.attempts(f"recovery of coordinator {self.name}")
        brokers = await whole.find(context.router.all_brokers)
        self._epochs = {}
        epochs = {}
        # One text for the whole call: an attempt whose answer was lost gets the same epoch again, also if it arrives late.
        own = "-".join(context.ids.transaction_id().split("-")[-2:])
        taken_by = f"{context.membership.client_id} {own}".encode()
        text = taken_by[-limits.EPOCH_TAKER_BYTES_MAX :].decode(errors="ignore")
        fields = write_fields(TakeEpochFields(self.group, self.name, text))
        for broker in brokers:
            answer = await self._ask(broker, HMQ_TAKE_EPOCH, fields, whole.left_s())
            epochs[broker] = answer.read(EpochFields).epoch
        found = [one for broker in brokers for one in await self._undecided_at(broker)]
        self._epochs = epochs
        self._broker_of = {one.tx_id: one.broker for one in found}
        return sorted(found, key=lambda one: one.prepared_at_ms)

    async def _undecided_at(self, broker: str) -> list[PreparedTransaction]:
        """Each page has the time of a call: however many there are, they can be listed."""
        found: list[PreparedTransaction] = []
        start = 0
        while True:
            fields = write_fields(TransactionsFields(start=start, group=self.group, coordinator=self.name))
            answer = await self._ask(broker, HMQ_TRANSACTIONS, fields, self._context.timeout_s)
            _, rows = decode_pending(answer.ext, answer.body)
            now_ms = int(answer.ext[EXT_AT])
            found += [_prepared_transaction(row, broker, now_ms) for row in rows]
            following = answer.ext.get(EXT_NEXT, "")
            if not following.isdecimal() or int(following) <= start:
                return found
            start = int(following)

    async def _ask(self, broker: str, code: int, fields: dict[str, str], timeout_s: float) -> Answer:
        what = f"coordinator {self.name} at {broker}"
        return await ask(self._context, broker, code, fields, what, timeout_s, lacks="knows no coordinators")

    async def prepare(
        self,
        messages: Sequence[OutgoingMessage],
        *,
        tx_id: str = "",
        branch: Xid | bytes | str = b"",
        grace: float = GRACE_S,
        comment: str = "",
        advice: Outcome | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - one timeout= everywhere, with retries inside
    ) -> Prepared:
        """Phase one: store the messages, invisible. Then decide, and call ``settle``.

        ``messages``: made by ``compose``. ``tx_id``: your own, used once; by default it follows from ``branch``, if that is an ``Xid``,
        else it is
        generated. ``branch``: what your coordinator calls this branch; ``recover`` gives it back, bytes as hex. ``grace``: seconds before
        the group gets a check, which settles nothing (``halfmq tx`` shows it); at most 3 days. ``comment``, ``advice``: for whoever must
        decide in your place.

        Prepare here before the other participants: then a branch of theirs whose ``outcome`` is UNKNOWN is past retention, and never one
        that was just not prepared here yet.

        Raises:
            CoordinatorSuperseded: another process took over; stop.
            TransactionRefused: a transaction with this id has a verdict. TransactionUndecided: it has none.
            SendTimeout, ConnectError, RequestFailed, UsageError: it is not prepared. Decide ROLLBACK, and ``settle`` it after a
                SendTimeout: what may have arrived waits for that, or for the next ``recover``.
        """
        self._here(after_recovery=True)
        text = _branch_text(branch)
        if tx_id == "":
            tx_id = branch.tx_id if isinstance(branch, Xid) else self._context.ids.transaction_id()
        checked_transaction_id(tx_id)
        seconds = math.ceil(checked_seconds(grace, "grace", zero=True, at_most=GRACE_MAX_MS // 1_000))
        checked_timeout(timeout)
        await self._context.answered(timeout)
        self._register()
        whole = self._context.attempts(f"prepare of {tx_id}", timeout)
        broker = await whole.within(self._broker_for(messages))
        prepared = await self._transactions.prepare(
            messages,
            tx_id=tx_id,
            broker=broker,
            timeout_s=whole.left_s(),
            pairs=[(names.HMQ_BRANCH, text), (names.CHECK_IMMUNITY_SECONDS, str(seconds))],
            coordinator=self._text(broker),
            comment=comment,
            advice=advice,
        )
        self._broker_of[tx_id] = broker
        return prepared if timeout is None else replace(prepared, timeout_s=timeout)

    async def _broker_for(self, messages: Sequence[OutgoingMessage]) -> str:
        """A broker at which this process has an epoch, and which has a queue for the first message."""
        if len(self._epochs) == 1 or not messages or not isinstance(messages[0], OutgoingMessage):
            return next(iter(self._epochs))
        router, topic = self._context.router, messages[0].topic
        route = router.cached(topic) or await router.publish_route(topic)
        those = sorted({target.broker for target in route.writable} & self._epochs.keys())
        if not those:
            raise UsageError(f"no broker of topic {topic} was there at recover()", hint=_RECOVER_FIRST)
        return self._context.rng.choice(those)

    def _text(self, broker: str) -> str:
        if broker not in self._epochs:  # recover() runs meanwhile
            raise UsageError("this coordinator has no epoch", hint=_RECOVER_FIRST)
        return model.Coordinator(self.name, self._epochs[broker]).text

    async def settle(
        self,
        transaction: str | Prepared,
        outcome: Outcome,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> TransactionReceipt:
        """Decide a transaction, by its id alone or as ``prepare`` returned it, in any process. The first durable verdict stands; the same
        one again is confirmed.

        Raises:
            TransactionRefused: the opposite verdict stands (``standing``). TransactionIncomplete: COMMIT, and messages are missing: roll
                back.
            CoordinatorSuperseded: another process took over; stop. ``outcome`` says what stands.
            TransactionUnknown: no answer; this client repeats it in the background. Call it again, or ``recover`` in a new process.
            RequestFailed: never prepared, or past retention.
        """
        if not isinstance(outcome, Outcome) or outcome not in VERDICT_OF:
            raise UsageError(f"settle(..., {outcome!r})", hint="Outcome.COMMIT or Outcome.ROLLBACK")
        self._here(after_recovery=True)
        checked_timeout(timeout)
        prepared = transaction if isinstance(transaction, Prepared) else await self._by_id(transaction)
        if not prepared.halves:
            raise UsageError(f"{prepared!r} has no messages", hint="what prepare returned, or the id")
        broker = prepared.halves[0].broker
        if broker not in self._epochs:
            raise UsageError(f"broker {broker} was not there at recover()", hint=_RECOVER_FIRST)
        prepared = replace(prepared, coordinator=self._text(broker), timeout_s=timeout or prepared.timeout_s)
        decide = self._transactions.commit if outcome is Outcome.COMMIT else self._transactions.rollback
        try:
            receipt = await decide(prepared)
        except RequestFailed as error:
            if error.response_code != ResponseCode.SYSTEM_ERROR:
                raise
            receipt = await self._settled_long_ago(prepared, VERDICT_OF[outcome], error)
        self._broker_of.pop(prepared.tx_id, None)
        return receipt

    async def _by_id(self, tx_id: str) -> Prepared:
        checked_transaction_id(tx_id)
        broker = self._broker_of.get(tx_id, "")
        if not broker:
            broker, _ = await self._found(tx_id)
        half = PreparedHalf("", "", broker, "", ANY_HALF, ANY_HALF)
        return Prepared(tx_id, self.group, "", (half,), atomic=True)

    async def _settled_long_ago(self, prepared: Prepared, wanted: Verdict, error: RequestFailed) -> TransactionReceipt:
        """The broker's memory does not have it, and its transaction table may."""
        _, standing = await self._found(prepared.tx_id, (prepared.halves[0].broker,))
        if standing == wanted:
            return TransactionReceipt(prepared.tx_id, wanted, repeated=True)
        if standing in (COMMITTED, ROLLED_BACK):
            text = f"transaction {prepared.tx_id} is {standing} for long"
            raise TransactionRefused(text, standing=standing, hint=f"it is {standing}") from error
        raise error

    async def outcome(self, tx_id: str) -> Standing:
        """What stands: COMMITTED, ROLLED_BACK, UNDECIDED, or UNKNOWN: never prepared, or past retention.

        After ``recover``, what is UNKNOWN here and was prepared after this (see ``prepare``) is past retention: a person decides.

        Raises:
            ConnectError, SendTimeout: a broker did not answer, so that it may be there. RequestFailed: a broker has no time to look.
        """
        self._here()
        checked_transaction_id(tx_id)
        return (await self._found(tx_id))[1]

    async def _found(self, tx_id: str, brokers: Sequence[str] = ()) -> tuple[str, Standing]:
        """(broker, state) of the transaction; the first broker, if none knows it."""
        whole = self._context.attempts(f"asking for {tx_id}")
        brokers = brokers or list(self._epochs) or await whole.find(self._context.router.all_brokers)
        for broker in brokers:
            attempts = self._context.attempts(f"asking {broker} for {tx_id}", whole.left_s())
            state = await self._transactions.state_at(broker, tx_id, attempts)
            if state in (COMMITTED, ROLLED_BACK, UNDECIDED):
                return broker, state  # type: ignore[return-value]
        return next(iter(brokers), ""), "UNKNOWN"


class BlockingCoordinator:
    """Made by ``Client.coordinator``: ``Coordinator`` without asyncio, with the same methods."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._made_in = forks.generation
        self.name = coordinator.name
        self.group = coordinator.group

    @property
    def epochs(self) -> Mapping[str, int]:
        """See ``Coordinator.epochs``."""
        return self._coordinator.epochs

    recover = blocking(Coordinator.recover)
    prepare = blocking(Coordinator.prepare)
    settle = blocking(Coordinator.settle)
    outcome = blocking(Coordinator.outcome)

    def _live(self) -> Coordinator:
        forks.refuse_in_child(self._made_in, "this coordinator", "make another one in the child, and recover()")
        return self._coordinator


def _branch_text(branch: object) -> str:
    text = branch.hex() if isinstance(branch, bytes) else str(branch) if isinstance(branch, Xid) else branch
    most = limits.BRANCH_CHARS_MAX
    return checked_note(text, "branch", most, f"an Xid, or at most {most} printable characters, bytes as hex")


def _prepared_transaction(row: PendingTransaction, broker: str, now_ms: int) -> PreparedTransaction:
    return PreparedTransaction(
        row.tx_id, row.branch, row.comment, advice_in(row.advice), row.epoch, now_ms - row.age_ms, row.age_ms / 1_000, row.messages, row.expected,
        row.topics, broker,
    )  # fmt: skip
