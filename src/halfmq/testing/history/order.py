"""Fourth pass: places in order. Queue by queue, and the log as one more, from the first offset to the last.

A broker that gives out places in one order must not contradict what could be watched from outside: if the request for
B began after A was acknowledged (or seen), A has the smaller offset. Only that is concluded; what overlapped in time
may stand in either order. Along a queue the positions of verdicts and the store times do not go down, and one place
has one message. One sharding key has one queue.
"""

from collections.abc import Callable, Iterable
from typing import Any

from halfmq.testing.history.facts import FAR, LOG_QUEUE, Facts
from halfmq.testing.history.report import (
    AT_DURABLE_RESTART,
    AT_KEYS,
    AT_ORDER,
    AT_READERS,
    AT_TIME,
    Findings,
    transaction_name,
)
from halfmq.testing.history.spill import ExternalSort, Row, Shuffle, SpillDirectory

#: Indexes in a row of ``Places``.
(
    _QUEUE, _AT, _MESSAGE, _ASKED_US, _KNOWN_US, _POSITION, _ASKED_PLACE, _KNOWN_PLACE, _TX, _KEY, _READERS, _STORE_TIME,
    _SEEN_US, _SEEN_PLACE,
) = range(14)  # fmt: skip


class Places:
    """Every place that a message or a verdict is known to have."""

    def __init__(self, partitions: int, directory: SpillDirectory) -> None:
        self.places = ExternalSort("places", directory)
        self.keys = Shuffle("keys", partitions, directory)

    def add(
        self, queue: int, at: int, message: str, asked_us: int, known_us: int, position: int, asked_place: int,
        known_place: int, tx: str, key: str = "", readers: tuple[int, ...] = (), store_time: int = 0, seen_us: int = FAR,
        seen_place: int = 0,
    ) -> None:  # fmt: skip
        """``message`` (or the verdict of ``tx``) is at offset ``at``: given to it after ``asked_us``, and by ``known_us``."""
        self.places.rows.append(
            (queue, at, message, asked_us, known_us, position, asked_place, known_place, tx, key, readers, store_time,
             seen_us, seen_place)
        )  # fmt: skip
        if key:
            self.keys.add((key, queue, message, tx, seen_place or known_place))

    def spill(self) -> None:
        self.places.spill()
        self.keys.spill()


class Order:
    """Judges ``Places``."""

    def __init__(self, facts: Facts, findings: Findings) -> None:
        self._facts = facts
        self._findings = findings
        self._looks = findings.looks
        #: (the one that stands before, the first that stands behind it, how many do)
        self._late: tuple[Row, Row, int] | None = None

    def judge(self, places: Iterable[Row], note: Callable[[int], None] = lambda count: None) -> None:
        """All rows of ``Places`` in their order."""
        queue = -1
        first: Row = ()
        position_of: Row = ()
        time_of: Row = ()
        before: Row = ()
        first_asked = position = store_time = -1
        judge_log = not self._facts.forgets
        reads: tuple[Any, ...] = ()
        looked = times = 0
        for row in places:
            looked += 1
            if row[0] != queue:
                self._tell_late()
                queue = row[0]
                first_asked = position = store_time = -1
                before = ()
                reads = tuple(self._facts.reads.get(queue, ()))
                note(looked)
                if queue == LOG_QUEUE and not judge_log:
                    reads = ()
            _, at, _, asked_us, known_us, row_position, _, _, _, _, readers, row_time, _, _ = row
            if before and before[1] == at and (before[2] != row[2] or before[8] != row[8]):
                self._two_at_one_place(before, row)
            before = row
            behind = known_us < first_asked
            if behind:
                self._behind(first, row)
            if asked_us > first_asked:
                first_asked, first = asked_us, row
            if row_position >= position:
                position, position_of = row_position, row
            elif row_position >= 0 and not behind:
                self._position_down(position_of, row)
            if row_time:
                times += 1
                if row_time < store_time:
                    self._time_down(time_of, row)
                else:
                    store_time, time_of = row_time, row
            if readers:
                for read in reads:
                    self._looks[AT_READERS] += 1
                    if read.reader not in readers and read.first <= at and known_us <= read.since_us:
                        self._not_read(read, row)
        self._tell_late()
        self._looks[AT_ORDER] += looked
        self._looks[AT_TIME] += times

    def keys(self, rows: Iterable[Row]) -> None:
        """A partition of ``Places.keys``."""
        told: set[tuple[str, str]] = set()
        names = self._facts.queue_names
        by_key: dict[tuple[str, str], Row] = {}
        for row in sorted(rows, key=lambda row: (row[0], row[4])):
            topic, number = names[row[1]]
            one = (topic, row[0])
            other = by_key.setdefault(one, row)
            if other[1] != row[1] and one not in told:
                told.add(one)
                text = f"sharding key {row[0]!r} of {topic} is in queue {names[other[1]][1]} and in queue {number}"
                self._findings.add(AT_KEYS, row[3], row[2], text, (other[4], row[4]))
        self._looks[AT_KEYS] += len(by_key)

    # --- violations -----------------------------------------------------------------------------------------------

    def _behind(self, first: Row, row: Row) -> None:
        """``row`` was there before ``first`` was asked for, and stands behind it. One misplaced ``first`` is told once."""
        if self._late is not None and self._late[0] is first:
            self._late = (first, self._late[1], self._late[2] + 1)
        else:
            self._tell_late()
            self._late = (first, row, 1)

    def _tell_late(self) -> None:
        if self._late is None:
            return
        first, row, count = self._late
        self._late = None
        more = f", and so do {count - 1} others" if count > 1 else ""
        key = f", both with sharding key {row[_KEY]!r}" if row[_KEY] and row[_KEY] == first[_KEY] else ""
        text = (
            f"{self._name(row)} was there at {row[_KNOWN_US]:,} us, before {self._name(first)} was asked for at "
            f"{first[_ASKED_US]:,} us, but stands behind it: {self._where(first)} and {self._where(row)}{key}{more}"
        )
        subject = first if count > 1 else row
        self._findings.add(
            AT_ORDER, subject[_TX], subject[_MESSAGE], text,
            (first[_ASKED_PLACE], first[_SEEN_PLACE], row[_KNOWN_PLACE], row[_SEEN_PLACE]),
        )  # fmt: skip

    def _position_down(self, first: Row, row: Row) -> None:
        text = (
            f"its verdict stands at log position {row[_POSITION]}, but it is behind {self._name(first)} of position "
            f"{first[_POSITION]}: {self._where(first)} and {self._where(row)}"
        )
        places = (first[_KNOWN_PLACE], first[_SEEN_PLACE], row[_KNOWN_PLACE], row[_SEEN_PLACE])
        self._findings.add(AT_ORDER, row[_TX], row[_MESSAGE], text, places)

    def _time_down(self, first: Row, row: Row) -> None:
        text = (
            f"its store time {row[_STORE_TIME]} ms is before {first[_STORE_TIME]} ms of {self._name(first)}, which stands "
            f"before it: {self._where(first)} and {self._where(row)}"
        )
        self._findings.add(AT_TIME, row[_TX], row[_MESSAGE], text, (first[_SEEN_PLACE], row[_SEEN_PLACE]))

    def _two_at_one_place(self, one: Row, two: Row) -> None:
        first, then = sorted((one, two), key=lambda row: (row[_KNOWN_US], row[_KNOWN_PLACE]))
        places = (first[_KNOWN_PLACE], first[_SEEN_PLACE], then[_KNOWN_PLACE], then[_SEEN_PLACE])
        text = f"it was at {self._where(first)}, where {self._name(then)} is"
        if then[_KNOWN_US] < FAR and self._facts.restarted_between(first[_KNOWN_US], then[_KNOWN_US]):
            if not self._facts.forgets:
                text += " after the broker came back"
                self._findings.add(AT_DURABLE_RESTART, first[_TX], first[_MESSAGE], text, places)
        else:
            self._findings.add(AT_ORDER, first[_TX], first[_MESSAGE], text, places)

    def _not_read(self, read: Any, row: Row) -> None:
        text = f"{self._facts.reader_names[read.reader]} read {self._where(row)} and did not see it; others did"
        self._findings.add(AT_READERS, row[_TX], row[_MESSAGE], text, (row[_SEEN_PLACE], read.place))

    def _where(self, row: Row) -> str:
        return self._facts.queue_text(row[_QUEUE], row[_AT])

    def _name(self, row: Row) -> str:
        if row[_MESSAGE]:
            return f"message {row[_MESSAGE]}"
        return f"the verdict of {transaction_name(row[_TX])}"
