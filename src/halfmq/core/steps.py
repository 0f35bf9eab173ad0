"""Commands of several steps, and why each of them comes to an end.

A step is a decision of its own: it replies ``Done(again=True)``, and whoever submitted the command submits it again if it ``goes_on``.
Between two steps anything may be decided. ``STEPS`` has every such command, with its answers to three rules:

    progress    a step takes something off what is left to do, and no other command adds to it
    exclusion   two commands of several steps do not undo each other's progress
    end         nothing goes on for nobody: not without its caller, and not beside a broker that drains

A command that is not in ``STEPS`` cannot go on; tests check progress and exclusion of each that is (``tests/unit/core/test_steps.py``,
``tests/support/core_log.py``, ``tests/simulation/steps_end.py``).
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from halfmq.core.commands import Command, CopyForward, DecideBatch, Tick
from halfmq.core.decision import Done
from halfmq.core.state import State


class SeveralSteps(NamedTuple):
    """How a command of several steps keeps the rules."""

    #: What is left to do, a number that each step makes smaller. None: what time has made due, which each step takes off its lists.
    left: Callable[[State, Any], int] | None
    #: A request, which ends with its connection. False: the broker's own work, which has no caller.
    has_caller: bool
    #: A broker that drains does not wait for it. False: accepted requests, and what is due, are finished first.
    ends_at_drain: bool


def winners_left_to_copy(state: State, command: DecideBatch) -> int:
    """Half batches of the winners that were never copied. None is copied twice (``transaction.batches``), and the decision comes last."""
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


STEPS: Final[dict[type[Command], SeveralSteps]] = {
    DecideBatch: SeveralSteps(winners_left_to_copy, has_caller=True, ends_at_drain=False),
    CopyForward: SeveralSteps(alive_before, has_caller=False, ends_at_drain=True),
    Tick: SeveralSteps(None, has_caller=False, ends_at_drain=False),
}


def goes_on(kind: type[Command], reply: object, *, has_caller: bool = False, draining: bool = False) -> bool:
    """Whether a command of this kind, which got ``reply``, is to be submitted again. ``has_caller``: its connection is open.

    Raises:
        KeyError: the kind is not in ``STEPS``.
    """
    if not isinstance(reply, Done) or not reply.again:
        return False
    steps = STEPS[kind]
    return (has_caller or not steps.has_caller) and not (draining and steps.ends_at_drain)
