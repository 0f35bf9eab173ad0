"""The life of a transaction as one table: stage x event -> records, reply, next stage. It has a cell for every pair.

A test runs each cell against ``machine``, ``check_schedule``, ``policy`` and ``retention``, and ``docs/transactions.md`` is
generated from it. The core does not use it.

The stage *parked* is that of a transaction with all its messages. One that was parked while incomplete accepts the missing
halves and refuses a COMMIT, like any incomplete one, and stays parked.

A cell is ``None`` if the event cannot occur in that stage: for example, a check cannot be answered before it was sent.
"""

from enum import Enum
from typing import Final, NamedTuple

from halfmq.core.decision import Why
from halfmq.model.records import Kind


class Stage(Enum):
    """The stage of a transaction. The three in the middle are UNDECIDED."""

    ABSENT = "unknown"
    PARTIAL = "incomplete"
    OPEN = "undecided"
    ASIDE = "parked"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    #: Settled, and the log no longer contains the verdict.
    PAST = "past retention"


class Event(Enum):
    """The events. An END may come from the producer itself or as the answer to a check: the cell is the same."""

    PART = "a half, more to come"
    LAST = "the half that makes it whole"
    AGAIN = "a half of it, sent again"
    OTHER = "another message in place of a half"
    COMMIT = "END COMMIT"
    ROLLBACK = "END ROLLBACK"
    UNKNOWN = "END UNKNOWN, nobody asked"
    ANSWER_UNKNOWN = "END UNKNOWN, as the answer to a check"
    OPERATOR_COMMIT = "operator: COMMIT"
    OPERATOR_ROLLBACK = "operator: ROLLBACK"
    OPERATOR_ASKS = "operator: ask now"
    DUE = "a check is due, a producer is there"
    DUE_NOBODY = "a check is due, nobody is there"
    NOT_SENT = "a check reached nobody"
    LIMIT_ROLLBACK = "check limit, policy rollback"
    LIMIT_ASIDE = "check limit, policy parked"
    AGE = "skip age, policy"
    CARRY = "its segment is to be trimmed"
    RESTART = "restart"


class Said(Enum):
    """Replies that are not refusals."""

    SENT = "first answer"
    SETTLED = "receipt"
    REPEATED = "receipt, repeated"
    NOTED = "noted"
    ASKED = "who is asked"
    #: Nobody requested a reply.
    NOTHING = ""


class Cell(NamedTuple):
    #: Kinds of the records that are logged, in order.
    records: tuple[Kind, ...]
    reply: Said | Why
    next: Stage


_A, _P, _O, _S, _C, _R, _X = Stage
_Row = dict[Stage, Cell | None]


def _nothing(reply: Said | Why, *stages: Stage) -> _Row:
    """In these stages nothing is logged and nothing changes."""
    return {stage: Cell((), reply, stage) for stage in stages}


def _logged(kind: Kind, reply: Said, to: Stage, *stages: Stage) -> _Row:
    return {stage: Cell((kind,), reply, to) for stage in stages}


def _by_operator(kind: Kind, to: Stage, *stages: Stage) -> _Row:
    """A verdict of an operator: the record that names the operator precedes it."""
    return {stage: Cell((Kind.OPERATOR_ACTED, kind), Said.SETTLED, to) for stage in stages}


def _stays(kind: Kind, reply: Said, *stages: Stage) -> _Row:
    return {stage: Cell((kind,), reply, stage) for stage in stages}


def _never(*stages: Stage) -> _Row:
    return dict.fromkeys(stages)


TRANSITIONS: Final[dict[Event, _Row]] = {
    # An id that is reused after its verdict was forgotten is indistinguishable from a new one: ids must not be reused.
    Event.PART: {
        **_logged(Kind.HALF, Said.SENT, _P, _A, _P, _X),
        **_nothing(Why.STILL_UNDECIDED, _O, _S),
        **_nothing(Why.ALREADY_SETTLED, _C, _R),
    },
    Event.LAST: {
        **_logged(Kind.HALF, Said.SENT, _O, _A, _P, _X),
        **_nothing(Why.STILL_UNDECIDED, _O, _S),
        **_nothing(Why.ALREADY_SETTLED, _C, _R),
    },
    Event.AGAIN: {**_nothing(Said.SENT, _P, _O, _S), **_nothing(Why.ALREADY_SETTLED, _C, _R), **_never(_A, _X)},
    Event.OTHER: {
        **_nothing(Why.STILL_UNDECIDED, _P, _O, _S),
        **_nothing(Why.ALREADY_SETTLED, _C, _R),
        **_never(_A, _X),
    },
    Event.COMMIT: {
        **_logged(Kind.COMMITTED, Said.SETTLED, _C, _O, _S),
        **_nothing(Why.INCOMPLETE, _P),
        **_nothing(Said.REPEATED, _C),
        **_nothing(Why.VERDICT_CONFLICT, _R),
        **_nothing(Why.NOT_FOUND, _A, _X),
    },
    Event.ROLLBACK: {
        **_logged(Kind.ROLLED_BACK, Said.SETTLED, _R, _P, _O, _S),
        **_nothing(Said.REPEATED, _R),
        **_nothing(Why.VERDICT_CONFLICT, _C),
        **_nothing(Why.NOT_FOUND, _A, _X),
    },
    Event.UNKNOWN: {**_nothing(Said.NOTED, _P, _O, _S, _C, _R), **_nothing(Why.NOT_FOUND, _A, _X)},
    # Logged if the interval is shorter than the response timeout, since the next check is then sooner.
    Event.ANSWER_UNKNOWN: {**_stays(Kind.CHECKED, Said.NOTED, _P, _O), **_never(_A, _S, _C, _R, _X)},
    Event.OPERATOR_COMMIT: {
        **_by_operator(Kind.COMMITTED, _C, _O, _S),
        **_nothing(Why.INCOMPLETE, _P),
        **_nothing(Said.REPEATED, _C),
        **_nothing(Why.VERDICT_CONFLICT, _R),
        **_nothing(Why.NOT_FOUND, _A, _X),
    },
    Event.OPERATOR_ROLLBACK: {
        **_by_operator(Kind.ROLLED_BACK, _R, _P, _O, _S),
        **_nothing(Said.REPEATED, _R),
        **_nothing(Why.VERDICT_CONFLICT, _C),
        **_nothing(Why.NOT_FOUND, _A, _X),
    },
    Event.OPERATOR_ASKS: {
        **_stays(Kind.CHECKED, Said.ASKED, _P, _O),
        **_logged(Kind.CHECKED, Said.ASKED, _O, _S),
        **_nothing(Why.ALREADY_SETTLED, _C, _R),
        **_nothing(Why.NOT_FOUND, _A, _X),
    },
    Event.DUE: {**_stays(Kind.CHECKED, Said.NOTHING, _P, _O), **_nothing(Said.NOTHING, _A, _S, _C, _R, _X)},
    Event.DUE_NOBODY: _nothing(Said.NOTHING, *Stage),
    Event.NOT_SENT: {**_stays(Kind.CHECKED, Said.NOTHING, _P, _O), **_nothing(Said.NOTHING, _A, _S, _C, _R, _X)},
    Event.LIMIT_ROLLBACK: {
        **_logged(Kind.ROLLED_BACK, Said.NOTHING, _R, _P, _O),
        **_nothing(Said.NOTHING, _A, _S, _C, _R, _X),
    },
    Event.LIMIT_ASIDE: {
        **_logged(Kind.PARKED, Said.NOTHING, _S, _P, _O),
        **_nothing(Said.NOTHING, _A, _S, _C, _R, _X),
    },
    Event.AGE: {
        **_logged(Kind.PARKED, Said.NOTHING, _S, _P, _O),
        **_nothing(Said.NOTHING, _A, _S, _C, _R, _X),
    },
    # Undecided halves are copied forward; a verdict is removed with its segment.
    Event.CARRY: {
        **_stays(Kind.COPIED_HALF, Said.NOTHING, _P, _O, _S),
        **_nothing(Said.NOTHING, _A, _X),
        _C: Cell((), Said.NOTHING, _X),
        _R: Cell((), Said.NOTHING, _X),
    },
    Event.RESTART: _nothing(Said.NOTHING, *Stage),
}
