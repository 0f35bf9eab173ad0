"""The life of a transaction as one table: stage x event -> records, reply, next stage. Whole: every pair has a cell.

``machine``, ``check_schedule``, ``policy`` and ``retention`` do what it says; a test plays each cell against them, and
``docs/transactions.md`` is made from it. The core does not look into it: what it decides is compared with it, by a test for each
cell.

The stage *parked* is of a transaction that has all its messages. One that was parked while it was incomplete takes
the halves that are missing and refuses a COMMIT, as an incomplete one does, and stays parked.

An event that cannot come in a stage has no cell content (``None``): a check cannot be answered before it was sent.
"""

from enum import Enum
from typing import Final, NamedTuple

from halfmq.core.decision import Why
from halfmq.model.records import Kind


class Stage(Enum):
    """Where a transaction is. The three in the middle are UNDECIDED."""

    ABSENT = "unknown"
    PARTIAL = "incomplete"
    OPEN = "undecided"
    ASIDE = "parked"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    #: Settled, and the log no longer has the verdict.
    PAST = "past retention"


class Event(Enum):
    """What comes. An END may come from the producer by itself or as the answer to a check: the cell is the same."""

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
    """Replies that are no refusal."""

    SENT = "first answer"
    SETTLED = "receipt"
    REPEATED = "receipt, repeated"
    NOTED = "noted"
    ASKED = "who is asked"
    #: Nobody asked for a reply.
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
    """A verdict by hand: who gave it stands before it."""
    return {stage: Cell((Kind.OPERATOR_ACTED, kind), Said.SETTLED, to) for stage in stages}


def _stays(kind: Kind, reply: Said, *stages: Stage) -> _Row:
    return {stage: Cell((kind,), reply, stage) for stage in stages}


def _never(*stages: Stage) -> _Row:
    return dict.fromkeys(stages)


TRANSITIONS: Final[dict[Event, _Row]] = {
    # An id that is used again after its verdict was forgotten cannot be told from a new one: ids must not be reused.
    Event.PART: {
        **_logged(Kind.HALF, Said.SENT, _P, _A, _P, _X),
        **_nothing(Why.INVALID_PARAMETER, _O, _S),
        **_nothing(Why.ALREADY_SETTLED, _C, _R),
    },
    Event.LAST: {
        **_logged(Kind.HALF, Said.SENT, _O, _A, _P, _X),
        **_nothing(Why.INVALID_PARAMETER, _O, _S),
        **_nothing(Why.ALREADY_SETTLED, _C, _R),
    },
    Event.AGAIN: {**_nothing(Said.SENT, _P, _O, _S), **_nothing(Why.ALREADY_SETTLED, _C, _R), **_never(_A, _X)},
    Event.OTHER: {
        **_nothing(Why.INVALID_PARAMETER, _P, _O, _S),
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
    # Logged where the interval is shorter than the time for an answer: the next check is sooner now.
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
    # What is undecided moves on with the log; a verdict goes with its segment.
    Event.CARRY: {
        **_stays(Kind.COPIED_HALF, Said.NOTHING, _P, _O, _S),
        **_nothing(Said.NOTHING, _A, _X),
        _C: Cell((), Said.NOTHING, _X),
        _R: Cell((), Said.NOTHING, _X),
    },
    Event.RESTART: _nothing(Said.NOTHING, *Stage),
}
