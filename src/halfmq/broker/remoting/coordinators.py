"""Somebody else's coordinators (29019 to 29021, ``core.transaction.coordinators``): epochs for their processes, and for administrators
which ones the broker knows. The fence (29026), which participants of Try/Confirm/Cancel ask for before they cancel.
"""

import logging
from functools import partial
from typing import Any, Final

from halfmq import limits
from halfmq.broker.remoting.gateway import Connection
from halfmq.broker.remoting.handlers import Handlers, Parts
from halfmq.broker.services.pages import page_of
from halfmq.broker.services.topics import deliver
from halfmq.core.commands import FenceTransaction, ForgetCoordinator, TakeEpoch
from halfmq.core.decision import CoordinatorForgotten, EpochTaken, Fenced, Refused, Why
from halfmq.core.state import CoordinatorKey, TakenEpoch
from halfmq.model.coordinator import is_coordinator_name
from halfmq.model.ids import group_problem, is_generated_id, is_transaction_id
from halfmq.model.pending import CoordinatorInfo
from halfmq.model.text_fields import write_fields
from halfmq.wire.remoting.codes import EXT_POSITION, EXT_VERDICT
from halfmq.wire.remoting.coordinators import (
    COORDINATORS,
    EpochFields,
    FenceFields,
    ForgetCoordinatorFields,
    LogEnd,
    TakeEpochFields,
)
from halfmq.wire.remoting.header import Request

log: Final = logging.getLogger("halfmq.operators")


class CoordinatorCommands(Handlers):
    """Gives epochs to coordinators, lists coordinators, forgets one, and fences transactions."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._time = parts.time
        self._chosen_ids = parts.chosen_ids

    def take(self, connection: Connection, request: Request[Any]) -> None:
        """29019: the next epoch of a coordinator, for the process that ``takenBy`` names; the same one if it asks again.

        Refusals: INVALID_PARAMETER: of the names. LIMIT_REACHED: no space for another coordinator.
        """
        fields: TakeEpochFields = request.ext
        answer = self._answering(connection, request, EpochTaken, _epoch)
        problem = _epoch_problem(fields)
        if problem:
            answer(Refused(Why.INVALID_PARAMETER, problem))
            return

        def is_done(_: None, reply: Any) -> None:
            if isinstance(reply, EpochTaken):
                self._log_taken(connection, fields, reply)
            answer(reply)

        self._sequencer.submit(TakeEpoch(fields.group, fields.coordinator, fields.taken_by), is_done)

    def _log_taken(self, connection: Connection, fields: TakeEpochFields, taken: EpochTaken) -> None:
        group, name = fields.group, fields.coordinator
        text = "coordinator %s of group %s has epoch %d, taken by %s from %s"
        arguments: tuple[object, ...] = name, group, taken.epoch, fields.taken_by, connection.address
        kind: tuple[object, ...] = "epoch", group, name
        if taken.taken_from:
            # Each takeover is a condition of its own: who acts for a coordinator must be found in the log. The throttle bounds all
            # conditions together.
            text += ", who took over from %s"
            arguments, kind = (*arguments, taken.taken_from), (*kind, taken.epoch)
        connection.log_throttled(log, logging.INFO, kind, text, *arguments)
        for other_group, other in taken.gave_way:
            connection.log_throttled(
                log, logging.WARNING, ("gave way", other_group, other),
                "coordinator %s of group %s gave way to coordinator %s of group %s, for which there was no space, and is forgotten",
                other, other_group, name, group,
            )  # fmt: skip

    def list(self, connection: Connection, request: Request[Any]) -> None:
        """29020: a page of coordinators, in no particular order."""
        now_ms, undecided = self._time.now_ms(), self._view.derived.undecided_of_coordinator

        def row(known: tuple[CoordinatorKey, TakenEpoch]) -> CoordinatorInfo:
            key, taken = known
            age_ms = max(0, now_ms - taken.taken_at_ms)
            return CoordinatorInfo(*key, taken.epoch, taken.taken_by, age_ms, len(undecided.get(key, ())))

        page = page_of(self._view.coordinators.items(), request.ext.rows, request.ext.start, row)
        self._answer_page(connection, request, page, COORDINATORS.encode(page.rows))

    def forget(self, connection: Connection, request: Request[Any]) -> None:
        """29021: the broker forgets a coordinator: what its processes still send is refused, until one takes an epoch again.

        Refusals: INVALID_PARAMETER: no name or reason. NOT_FOUND. NOT_NOW: it has undecided transactions.
        """
        fields: ForgetCoordinatorFields = request.ext
        group, name = fields.group, fields.coordinator
        self._forget(
            connection, request, CoordinatorForgotten, _epoch, partial(ForgetCoordinator, group, name),
            ("coordinator", group, name), lambda reply: f"coordinator {name} of group {group}, which had epoch {reply.epoch}",
        )  # fmt: skip

    def fence(self, connection: Connection, request: Request[Any]) -> None:
        """29026: what the transaction is, rolled back if nobody prepared it (``core.transaction.fence``).

        Without an id: the log's end. Every verdict on a transaction that begins now comes after it: its ``since``.
        """
        fields: FenceFields = request.ext
        if not fields.tx_id:
            self._answer_durably(connection, request.to_answer(None), write_fields(LogEnd(self._view.log_end)))
            return
        answer = self._answering(connection, request, Fenced, _fenced)
        problem = _fence_problem(fields)
        if problem:
            answer(Refused(Why.INVALID_PARAMETER, problem))
        else:
            command = FenceTransaction(
                connection.number, fields.group, fields.tx_id, fields.since, user=connection.user
            )
            self._chosen_ids.send(connection, command, deliver, answer)


def _epoch(reply: EpochTaken | CoordinatorForgotten) -> dict[str, Any]:
    return write_fields(EpochFields(reply.epoch))


def _epoch_problem(fields: TakeEpochFields) -> str:
    if not fields.taken_by.isprintable() or not 0 < len(fields.taken_by.encode()) <= limits.EPOCH_TAKER_BYTES_MAX:
        return f"takenBy: which process, 1 to {limits.EPOCH_TAKER_BYTES_MAX} bytes of printable characters"
    problem = group_problem(fields.group)
    if not problem and not is_coordinator_name(fields.coordinator):
        return f"coordinator: 1 to {limits.COORDINATOR_NAME_CHARS_MAX} of letters, digits and ._:-"
    return problem


def _fenced(reply: Fenced) -> dict[str, object]:
    position: dict[str, object] = {EXT_POSITION: reply.position} if reply.position >= 0 else {}
    return {EXT_VERDICT: reply.standing, **position}


def _fence_problem(fields: FenceFields) -> str:
    problem = group_problem(fields.group)
    if not problem and not is_transaction_id(fields.tx_id):
        problem = f"{fields.tx_id[:80]!r} is not a transaction id"
    if not problem and is_generated_id(fields.tx_id):
        # Its verdict could not be found again.
        return f"{fields.tx_id!r} is an id that a client generates; only those that an application chose can be fenced"
    if not problem and fields.since < 0:
        problem = f"since={fields.since}: the log position at which the transaction began"
    return problem
