"""The lettered cases of what a start may find on the disk, as a table. Exactly one matches and says what to do.

The four things of ``Evidence`` are examined without changing anything.
The letters appear in log lines, in `docs/recovery.md` and in the tests, which cover all combinations.
"""

from enum import Enum
from typing import Final, NamedTuple


class Log(Enum):
    """The segment files, from the oldest to the start of the redo."""

    EMPTY = "no segment files"
    WHOLE = "segment files without a gap up to the redo"
    GAP = "a segment file is missing"


class Checkpoint(Enum):
    """The newest checkpoint that helps, or why none does."""

    NONE = "no checkpoint"
    USABLE = "a checkpoint with its snapshot"
    UNREADABLE = "a checkpoint whose snapshot is missing or damaged"
    BEFORE_START = "a checkpoint older than the oldest segment"
    PAST_END = "a checkpoint at a position where no batch ends"


class OldestSegment(Enum):
    """How the oldest segment begins; redo starts there without a usable checkpoint."""

    BASE = "the oldest segment begins with a base"
    BLANK = "the first segment of all has no whole batch at its beginning"
    NO_BASE = "the oldest segment of a trimmed log does not begin with a base"


class Tail(Enum):
    """How the scan of the log ended."""

    END = "the log ends in zeros"
    TORN = "torn tail"
    CORRUPT = "damage below a durable position"


class Act(Enum):
    """What the start does."""

    START_EMPTY = "start with an empty log"
    REDO_FROM_SNAPSHOT = "load the snapshot, redo the log after it"
    REDO_FROM_BASE = "redo the whole log from the base of its oldest segment; indexes are rebuilt"
    REFUSE = "change nothing and say why"


class Evidence(NamedTuple):
    """``front`` matters only without a usable checkpoint."""

    log: Log
    checkpoint: Checkpoint
    front: OldestSegment
    tail: Tail


class Case(NamedTuple):
    """``cut``: everything from the torn tail on is zeroed before the first append."""

    letter: str
    log: frozenset[Log]
    checkpoint: frozenset[Checkpoint]
    front: frozenset[OldestSegment]
    tail: frozenset[Tail]
    act: Act
    cut: bool
    says: str

    def matches(self, evidence: Evidence) -> bool:
        return (
            evidence.log in self.log
            and evidence.checkpoint in self.checkpoint
            and evidence.front in self.front
            and evidence.tail in self.tail
        )


_ANY_FRONT: Final = frozenset(OldestSegment)
_ANY_TAIL: Final = frozenset(Tail)
_ANY_CHECKPOINT: Final = frozenset(Checkpoint)
_WHOLE: Final = frozenset({Log.WHOLE})
_NONE: Final = frozenset({Checkpoint.NONE})
_USABLE: Final = frozenset({Checkpoint.USABLE})
_UNREADABLE: Final = frozenset({Checkpoint.UNREADABLE})
_BEFORE_START: Final = frozenset({Checkpoint.BEFORE_START})
#: Redo starts at the oldest segment.
_FROM_START: Final = _NONE | _UNREADABLE | _BEFORE_START
_BASE: Final = frozenset({OldestSegment.BASE})
_BLANK: Final = frozenset({OldestSegment.BLANK})
_END: Final = frozenset({Tail.END})
_TORN: Final = frozenset({Tail.TORN})
_CORRUPT: Final = frozenset({Tail.CORRUPT})

CASES: Final = (
    Case("A", frozenset({Log.EMPTY}), _NONE, _ANY_FRONT, _ANY_TAIL, Act.START_EMPTY, False,
         "first start"),
    Case("B", frozenset({Log.EMPTY}), _ANY_CHECKPOINT - _NONE, _ANY_FRONT, _ANY_TAIL, Act.REFUSE, False,
         "the segment files are missing, a checkpoint or the watermark page exists"),
    Case("C", frozenset({Log.GAP}), _ANY_CHECKPOINT, _ANY_FRONT, _ANY_TAIL, Act.REFUSE, False,
         "a segment is missing in the middle"),
    Case("D", _WHOLE, frozenset({Checkpoint.PAST_END}), _ANY_FRONT, _ANY_TAIL, Act.REFUSE, False,
         "the checkpoint is newer than the log, or does not fit it"),
    Case("E", _WHOLE, _FROM_START, frozenset({OldestSegment.NO_BASE}), _ANY_TAIL, Act.REFUSE, False,
         "the oldest segment does not begin with a base, and no snapshot can replace it"),
    Case("F", _WHOLE, _USABLE, _ANY_FRONT, _CORRUPT, Act.REFUSE, False,
         "damage after the snapshot, below a durable position"),
    Case("G", _WHOLE, _FROM_START, _BASE | _BLANK, _CORRUPT, Act.REFUSE, False,
         "damage below a durable position"),
    Case("H", _WHOLE, _USABLE, _ANY_FRONT, _END, Act.REDO_FROM_SNAPSHOT, False,
         "clean end, snapshot"),
    Case("I", _WHOLE, _USABLE, _ANY_FRONT, _TORN, Act.REDO_FROM_SNAPSHOT, True,
         "torn tail, snapshot"),
    Case("J", _WHOLE, _FROM_START, _BLANK, _END, Act.START_EMPTY, False,
         "a crash before the first batch"),
    Case("K", _WHOLE, _FROM_START, _BLANK, _TORN, Act.START_EMPTY, True,
         "a crash in the first batch"),
    Case("L", _WHOLE, _NONE, _BASE, _END, Act.REDO_FROM_BASE, False,
         "clean end, no checkpoint"),
    Case("M", _WHOLE, _NONE, _BASE, _TORN, Act.REDO_FROM_BASE, True,
         "torn tail, no checkpoint"),
    Case("N", _WHOLE, _UNREADABLE, _BASE, _END, Act.REDO_FROM_BASE, False,
         "clean end, the snapshot is missing or unreadable"),
    Case("O", _WHOLE, _UNREADABLE, _BASE, _TORN, Act.REDO_FROM_BASE, True,
         "torn tail, the snapshot is missing or unreadable"),
    Case("P", _WHOLE, _BEFORE_START, _BASE, _END, Act.REDO_FROM_BASE, False,
         "clean end, the snapshot is older than the log's start"),
    Case("Q", _WHOLE, _BEFORE_START, _BASE, _TORN, Act.REDO_FROM_BASE, True,
         "torn tail, the snapshot is older than the log's start"),
)  # fmt: skip


def case_of(evidence: Evidence) -> Case:
    """The one case that matches."""
    (case,) = [case for case in CASES if case.matches(evidence)]
    return case
