"""Somebody else's coordinators: epochs for their processes, and for administrators which ones the broker knows (``core.transaction.coordinators``)."""

import logging
from collections.abc import Callable
from typing import Any, Final

from halfmq import limits
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.actors import actor_with_reason
from halfmq.broker.services.pages import Page, page_of
from halfmq.broker.services.peer import Peer, ThrottledLog
from halfmq.broker.timers import BrokerTime
from halfmq.core.commands import ForgetCoordinator, TakeEpoch
from halfmq.core.decision import CoordinatorForgotten, EpochTaken, Refused, Why
from halfmq.core.engine import Failed
from halfmq.core.state import CoordinatorKey, TakenEpoch
from halfmq.errors import InvalidName
from halfmq.model.coordinator import is_coordinator_name
from halfmq.model.ids import checked_name
from halfmq.model.pending import CoordinatorInfo

log: Final = logging.getLogger("halfmq.operators")


class Coordinators:
    """The coordinators that the broker knows."""

    def __init__(self, sequencer: Sequencer, time: BrokerTime, log_throttled: ThrottledLog) -> None:
        self._sequencer = sequencer
        self._view = sequencer.view
        self._time = time
        self._log_throttled = log_throttled

    def take(
        self, peer: Peer, group: str, name: str, taken_by: str, answer: Callable[[EpochTaken | Refused | Failed], None]
    ) -> None:
        """The next epoch of the coordinator, for the process that ``taken_by`` names; the same one if it asks again.

        Refusals: INVALID_PARAMETER: of the names. LIMIT_REACHED: no space for another coordinator.
        """
        problem = _problem_of(group, name)
        if not taken_by.isprintable() or not 0 < len(taken_by.encode()) <= limits.EPOCH_TAKER_BYTES_MAX:
            problem = f"takenBy: which process, 1 to {limits.EPOCH_TAKER_BYTES_MAX} bytes of printable characters"
        if problem:
            answer(Refused(Why.INVALID_PARAMETER, problem))
            return

        def is_done(_: None, reply: Any) -> None:
            if isinstance(reply, EpochTaken):
                self._log_taken(peer, group, name, taken_by, reply)
            answer(reply)

        self._sequencer.submit(TakeEpoch(group, name, taken_by), is_done)

    def _log_taken(self, peer: Peer, group: str, name: str, taken_by: str, taken: EpochTaken) -> None:
        text = "coordinator %s of group %s has epoch %d, taken by %s from %s"
        told: tuple[object, ...] = name, group, taken.epoch, taken_by, peer.address
        kind: tuple[object, ...] = "epoch", group, name
        if taken.taken_from:
            # Each takeover is a condition of its own: who acts for a coordinator must be found in the log. The throttle bounds all conditions together.
            text += ", who took over from %s"
            told, kind = (*told, taken.taken_from), (*kind, taken.epoch)
        self._log_throttled(log, logging.INFO, kind, peer, text, *told)
        for other_group, other in taken.gave_way:
            self._log_throttled(
                log, logging.WARNING, ("gave way", other_group, other), peer,
                "coordinator %s of group %s gave way to coordinator %s of group %s, for which there was no space, and is forgotten",
                other, other_group, name, group,
            )  # fmt: skip

    def page(self, count: int, start: int) -> Page[CoordinatorInfo]:
        """``count`` coordinators, in no particular order. ``start``: as for ``page_of``."""
        now_ms, undecided = self._time.now_ms(), self._view.derived.undecided_of_coordinator

        def row(known: tuple[CoordinatorKey, TakenEpoch]) -> CoordinatorInfo:
            key, taken = known
            age_ms = max(0, now_ms - taken.taken_at_ms)
            return CoordinatorInfo(*key, taken.epoch, taken.taken_by, age_ms, len(undecided.get(key, ())))

        return page_of(self._view.coordinators.items(), count, start, row)

    def forget(
        self,
        peer: Peer,
        group: str,
        name: str,
        operator: str,
        reason: str,
        answer: Callable[[CoordinatorForgotten | Refused | Failed], None],
    ) -> None:
        """Forget one coordinator: what its processes still send is refused, until one takes an epoch again.

        Refusals: INVALID_PARAMETER: no name or reason. NOT_FOUND. NOT_NOW: it has undecided transactions.
        """
        by = actor_with_reason(peer, operator, reason, "lets the broker forget it")
        if isinstance(by, Refused):
            answer(by)
            return

        def is_done(_: None, reply: Any) -> None:
            if isinstance(reply, CoordinatorForgotten):
                self._log_throttled(
                    log, logging.WARNING, ("coordinator", group, name), peer,
                    "operator %s from %s let the broker forget coordinator %s of group %s, which had epoch %d; reason: %s",
                    by.name, peer.address, name, group, reply.epoch, by.reason,
                )  # fmt: skip
            answer(reply)

        self._sequencer.submit(ForgetCoordinator(group, name, by), is_done)


def _problem_of(group: str, name: str) -> str:
    try:
        checked_name(group, "producer group", limits.GROUP_CHARS_MAX)
    except InvalidName as error:
        return str(error)
    if not is_coordinator_name(name):
        return f"coordinator: 1 to {limits.COORDINATOR_NAME_CHARS_MAX} of letters, digits and ._:-"
    return ""
