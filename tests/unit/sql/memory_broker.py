"""The broker's side of a transaction in memory, for tests of the database side: halves, write-once verdicts, checks.

It implements the Protocols of ``halfmq.client.marker_table``; faults are steered by the test.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Unpack

from sqlalchemy.util import greenlet_spawn

from halfmq.client.arguments import Notes
from halfmq.client.outcome import Outcome
from halfmq.client.outgoing import OutgoingMessage
from halfmq.client.receipts import COMMITTED, ROLLED_BACK, Prepared, PreparedHalf, TransactionReceipt, Verdict
from halfmq.errors import TransactionRefused
from halfmq.model.properties import HMQ_TX_MARKER, to_dict


@dataclass
class Asked:
    id: str
    prepared_at_ms: int | None = 0
    decided_by: str = ""
    marker: str = ""
    remark: str = ""


@dataclass
class Held:
    messages: list[OutgoingMessage]
    name: str
    query_id: str
    notes: Notes = field(default_factory=Notes)
    verdict: Verdict | None = None


@dataclass
class MemoryBroker:
    transactions: dict[str, Held] = field(default_factory=dict)
    #: What reached the broker, in order: ("prepare" | "commit" | "rollback", id).
    calls: list[tuple[str, str]] = field(default_factory=list)
    #: Called while the halves are stored, before they are acknowledged; may raise, and call ``faces.wait``.
    on_prepare: Callable[[str], None] = lambda _tx_id: None
    #: Raised instead of an answer to COMMIT or ROLLBACK.
    end_error: Exception | None = None
    #: What the checks said with UNKNOWN, by transaction.
    remarks: dict[str, str] = field(default_factory=dict)
    _next: int = 0

    def new_transaction_id(self) -> str:
        self._next += 1
        return f"tx-{self._next}"

    def prepare(
        self, messages: Sequence[OutgoingMessage], tx_id: str, name: str, query_id: str, notes: Notes
    ) -> Prepared:
        self.calls.append(("prepare", tx_id))
        self.transactions[tx_id] = Held(list(messages), name, query_id, notes)
        self.on_prepare(tx_id)
        halves = tuple(PreparedHalf(f"{tx_id}.{n}", m.topic, "b", "", n, n) for n, m in enumerate(messages))
        return Prepared(tx_id, "shop", name, halves, atomic=True)

    def end(self, prepared: Prepared, verdict: Verdict) -> TransactionReceipt:
        self.calls.append(("commit" if verdict == COMMITTED else "rollback", prepared.tx_id))
        if self.end_error is not None:
            raise self.end_error
        return self.settle(prepared.tx_id, verdict)

    def settle(self, tx_id: str, verdict: Verdict) -> TransactionReceipt:
        held = self.transactions[tx_id]
        if held.verdict not in (None, verdict):
            raise TransactionRefused(f"{tx_id} is {held.verdict}", standing=held.verdict or "")
        held.verdict = verdict
        return TransactionReceipt(tx_id, verdict)

    def visible(self) -> list[OutgoingMessage]:
        return [m for held in self.transactions.values() if held.verdict == COMMITTED for m in held.messages]

    def undecided(self) -> list[str]:
        return [tx_id for tx_id, held in self.transactions.items() if held.verdict is None]

    def asked(self, tx_id: str) -> Asked:
        """The question, with what the halves carry of the marker."""
        carried = {to_dict(message.properties).get(HMQ_TX_MARKER, "") for message in self.transactions[tx_id].messages}
        (marker,) = carried
        return Asked(tx_id, marker=marker)

    async def check(self, function: Callable[[Asked], Outcome | Awaitable[Outcome]]) -> dict[str, Outcome]:
        """Ask about everything that is undecided, and settle what is answered."""
        answers = {}
        for tx_id in self.undecided():
            asked = self.asked(tx_id)
            answer = function(asked)
            answers[tx_id] = outcome = await answer if isawaitable(answer) else answer
            if outcome is Outcome.UNKNOWN:
                self.remarks[tx_id] = asked.remark
            else:
                self.settle(tx_id, COMMITTED if outcome is Outcome.COMMIT else ROLLED_BACK)
        return answers


class MemoryClient:
    """``BlockingTransactionCalls``."""

    group = "shop"

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    def new_transaction_id(self) -> str:
        return self._broker.new_transaction_id()

    def prepare(
        self,
        messages: Sequence[OutgoingMessage],
        *,
        tx_id: str,
        name: str = "",
        query_id: str = "",
        timeout: float | None = None,
        **notes: Unpack[Notes],
    ) -> Prepared:
        return self._broker.prepare(messages, tx_id, name, query_id, notes)

    def commit(self, prepared: Prepared) -> TransactionReceipt:
        return self._broker.end(prepared, COMMITTED)

    def rollback(self, prepared: Prepared) -> TransactionReceipt:
        return self._broker.end(prepared, ROLLED_BACK)


class AsyncMemoryClient:
    """``TransactionCalls``."""

    group = "shop"

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    def new_transaction_id(self) -> str:
        return self._broker.new_transaction_id()

    async def prepare(
        self,
        messages: Sequence[OutgoingMessage],
        *,
        tx_id: str,
        name: str = "",
        query_id: str = "",
        timeout: float | None = None,  # noqa: ASYNC109
        **notes: Unpack[Notes],
    ) -> Prepared:
        return await greenlet_spawn(self._broker.prepare, messages, tx_id, name, query_id, notes)

    async def commit(self, prepared: Prepared) -> TransactionReceipt:
        return self._broker.end(prepared, COMMITTED)

    async def rollback(self, prepared: Prepared) -> TransactionReceipt:
        return self._broker.end(prepared, ROLLED_BACK)
