"""The calls of a client with ``telemetry``, each in its span. Without it the client has the classes that these are derived from, so that
nothing is paid for what is not measured.
"""

from collections.abc import Sequence
from typing import Any

from halfmq.client.arguments import checked_messages
from halfmq.client.check_listener import CheckListener
from halfmq.client.context import ClientContext
from halfmq.client.marker_table import CheckFunction
from halfmq.client.outcome import Outcome
from halfmq.client.outgoing import OutgoingMessage
from halfmq.client.producer import Producer
from halfmq.client.receipts import Prepared, Receipt, TransactionReceipt
from halfmq.client.telemetry import OUTCOME, ClientTelemetry, Operation
from halfmq.client.transaction import Transactions
from halfmq.client.transaction_block import Transaction
from halfmq.model.address import Address, parse_address


def _with_ids(context: ClientContext, messages: Sequence[OutgoingMessage]) -> list[OutgoingMessage]:
    """The messages with their ids, which are also in the span of a send that fails."""
    return [
        message if message.message_id else message._replace(message_id=context.ids.message_id()) for message in messages
    ]


class TracedProducer(Producer):
    """Plain sends, those of requests included."""

    def __init__(self, context: ClientContext, group: str, telemetry: ClientTelemetry) -> None:
        super().__init__(context, group)
        self._telemetry = telemetry

    async def send(self, message: OutgoingMessage, timeout_s: float | None = None) -> Receipt:
        with self._telemetry.sending(_with_ids(self._context, [message])) as operation:
            receipt = await super().send(operation.outgoing[0], timeout_s)
            operation.answered(self._context.router.address_of(receipt.broker))
            return receipt

    async def send_many(
        self, topic: str, messages: Sequence[OutgoingMessage], timeout_s: float | None = None
    ) -> list[Receipt]:
        if not messages:
            return await super().send_many(topic, messages, timeout_s)
        with self._telemetry.sending(_with_ids(self._context, messages)) as operation:
            return await super().send_many(topic, operation.outgoing, timeout_s)


class TracedTransactions(Transactions):
    """Half messages and verdicts; those of blocks of a database and of coordinators included."""

    def __init__(self, context: ClientContext, group: str, telemetry: ClientTelemetry) -> None:
        super().__init__(context, group)
        self._telemetry = telemetry

    async def prepare(self, messages: Sequence[OutgoingMessage], *, tx_id: str, **named: Any) -> Prepared:
        checked_messages(messages)
        with self._telemetry.sending(_with_ids(self._context, messages), tx_id) as operation:
            prepared = await super().prepare(operation.outgoing, tx_id=tx_id, **named)
            operation.answered(_server(prepared))
            return prepared

    async def commit(self, prepared: Prepared) -> TransactionReceipt:
        with self._settling("commit", prepared):
            return await super().commit(prepared)

    async def rollback(self, prepared: Prepared) -> TransactionReceipt:
        with self._settling("rollback", prepared):
            return await super().rollback(prepared)

    def _settling(self, operation: str, prepared: Prepared) -> Operation:
        halves = prepared.halves
        topics, ids = [half.topic for half in halves], [half.message_id for half in halves]
        settling = self._telemetry.settling(operation, topics, ids, prepared.tx_id)
        settling.answered(_server(prepared))
        return settling


class TracedCheckListener(CheckListener):
    """Calls of check functions. A check that the client answers without one has no span."""

    def __init__(self, *given: Any, telemetry: ClientTelemetry) -> None:
        super().__init__(*given)
        self._telemetry = telemetry

    async def _call(self, check: CheckFunction, transaction: Transaction) -> Outcome:
        half = transaction.message
        if half is None:  # a verdict is compared with a marker: nobody asked
            return await super()._call(check, transaction)
        with self._telemetry.checking(half, transaction.id, transaction.name, transaction.checks) as operation:
            outcome = await super()._call(check, transaction)
            operation.note(OUTCOME, outcome.name)
            return outcome


def _server(prepared: Prepared) -> Address | None:
    """The broker that has it; None: not known, as for one of an earlier process."""
    text = prepared.halves[0].address if prepared.halves else ""
    return parse_address(text) if text else None
