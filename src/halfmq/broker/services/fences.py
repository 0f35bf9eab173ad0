"""Fences, which participants of Try/Confirm/Cancel ask for before they cancel (``core.transaction.fence``)."""

from typing import Any

from halfmq import limits
from halfmq.broker.sequencer import Deliver
from halfmq.broker.services.chosen_ids import ChosenIds
from halfmq.core.commands import FenceTransaction
from halfmq.core.decision import Refused, Why
from halfmq.core.view import View
from halfmq.errors import InvalidName
from halfmq.model.ids import checked_name, is_generated_id, is_transaction_id


class Fences:
    """``deliver(context, reply)`` is called once: at once if the request is invalid, else when the reply is durable."""

    def __init__(self, view: View, chosen_ids: ChosenIds) -> None:
        self._view = view
        self._chosen_ids = chosen_ids

    @property
    def position(self) -> int:
        """The log's end. Every verdict on a transaction that begins now comes after it: its ``since``."""
        return self._view.log_end

    def fence(self, connection: int, group: str, tx_id: str, since: int, deliver: Deliver, context: Any) -> None:
        """What the transaction is, rolled back if nobody prepared it. Replies: Fenced, Refused, Failed."""
        problem = ""
        try:
            checked_name(group, "producer group", limits.GROUP_CHARS_MAX)
        except InvalidName as error:
            problem = str(error)
        if not problem and not is_transaction_id(tx_id):
            problem = f"{tx_id[:80]!r} is not a transaction id"
        if not problem and is_generated_id(tx_id):
            # Its verdict could not be found again.
            problem = f"{tx_id!r} is an id that a client generates; only those that an application chose can be fenced"
        if not problem and since < 0:
            problem = f"since={since}: the log position at which the transaction began"
        if problem:
            deliver(context, Refused(Why.INVALID_PARAMETER, problem))
        else:
            self._chosen_ids.send(FenceTransaction(connection, group, tx_id, since), deliver, context)
