"""Verdicts of producers: commit, roll back, or unknown. For operators see ``services.transactions``."""

from typing import Any

from msgspec.structs import replace

from halfmq.broker.sequencer import Deliver, Sequencer
from halfmq.broker.services.messages import StoredMessages
from halfmq.core.commands import EndTransaction, RequestedVerdict, SettledRow
from halfmq.core.decision import Failed, Refused, Reply, Why
from halfmq.model.coordinator import Coordinator
from halfmq.model.records import DecidedBy


class Verdicts:
    """Passes verdicts of producers to the core."""

    def __init__(self, sequencer: Sequencer, rows: StoredMessages) -> None:
        self._sequencer = sequencer
        self._view = sequencer.view
        self._rows = rows

    def end(
        self,
        connection: int,
        group: str,
        tx_id: str,
        half_index: int,
        log_offset: int,
        wanted: RequestedVerdict,
        decided_by: DecidedBy,
        remark: str,
        deliver: Deliver | None,
        context: Any,
        coordinator: Coordinator | None = None,
        user: str = "",
    ) -> None:
        """End a transaction; ``half_index`` and ``log_offset`` belong to any of its halves.

        ``deliver`` is called with Settled, Noted, Refused or Failed when the verdict is durable and readable; None: the producer
        does not wait.
        """
        known = self._view.producer_groups.get(group)
        settled: SettledRow | None = None
        if known is None or not (tx_id in known.undecided or tx_id in known.settled):
            settled = self._rows.settled_row(half_index)
        command = EndTransaction(
            connection, group, tx_id, half_index, log_offset, wanted, decided_by, remark, settled, coordinator, user
        )  # fmt: skip
        if deliver is None:
            self._sequencer.submit_small(command, None)
        else:
            self._sequencer.submit_for_receipt(command, self._ended, (command, deliver, context))

    def _ended(self, asked: tuple[EndTransaction, Deliver, Any], reply: Reply | Failed) -> None:
        """Repeat the command with the row of the transaction table if the decision did not know the transaction.

        A verdict may leave memory between the check in ``end`` and the decision, when the window moves by time or by number. Its row exists
        by now, since rows are written before replies are released.
        """
        command, deliver, context = asked
        if isinstance(reply, Refused) and reply.why is Why.NOT_FOUND:
            row = self._rows.settled_row(command.half_index)
            if row is not None and row.first_offset in (command.log_offset, 0):
                again = replace(command, half_index=row.half_index, settled=row)
                self._sequencer.submit(again, deliver, context)
                return
        deliver(context, reply)
