"""Commands that need several steps, and why each of them comes to an end.

A step is a decision of its own: it replies ``Done(again=True)``, and whoever submitted the command submits it again. Between two steps
anything may be decided, another command of several steps included; the sender may be gone, and the broker may drain. So that neither
can keep the other from its end, and a stop has not to wait for ever, the rule is:

    A step takes something off what is left to do, and no other command can add to it.

``STEPS_LEFT`` has each such command with what is left, a number that each step makes smaller. Tests check it at each step
(``tests/support/core_log.py``); a command that is not here may not reply ``again``.
"""

from collections.abc import Callable
from typing import Any, Final

from halfmq.core.commands import CopyForward, DecideBatch, Tick
from halfmq.core.state import State


def winners_left_to_copy(state: State, command: DecideBatch) -> int:
    """Half batches of the winners that were never copied. None is copied twice (``transaction.batches``), and the decision is the last step."""
    group = state.producer_groups.get(command.group)
    known = group.undecided.get(command.batch.tx_id) if group is not None else None
    if known is None:
        return 0
    won = {winner.attempt for winner in command.winners}
    return sum(1 for half in known.halves if half.attempt in won and half.offset == half.first_offset)


def alive_before(state: State, command: CopyForward) -> int:
    """Messages that are alive in the segments to be removed. A copy lies behind them, and nothing new is written there."""
    halves = sum(
        1
        for group in state.producer_groups.values()
        for known in group.undecided.values()
        for half in known.halves
        if half.offset < command.log_start
    )
    return halves + sum(1 for delayed in state.delayed.values() if delayed.offset < command.log_start)


#: Command -> what is left to do; None: what time has made due, which each step takes off its lists, bounded by what there is.
STEPS_LEFT: Final[dict[type, Callable[[State, Any], int] | None]] = {
    DecideBatch: winners_left_to_copy,
    CopyForward: alive_before,
    Tick: None,
}
