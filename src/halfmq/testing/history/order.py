"""Fourth pass: checks the order in each queue, and in the log.

If the request for B was sent after A was acknowledged or received, A must have the smaller offset. Operations that overlap in
time may have either order. Along a queue the positions of verdicts and the store times do not decrease, and each place has
one message. One sharding key has one queue.

Messages of an outbox with one sharding key are in the order of their transactions, if these waited for each other: if B was written after
A's commit was known, A must have the smaller offset.
"""

import sqlite3
from collections.abc import Callable, Iterable
from typing import Any, Final

from halfmq.testing.history.facts import FAR, LOG_QUEUE, Facts
from halfmq.testing.history.report import At, Findings, transaction_name
from halfmq.testing.history.tables import Row, SortedTable, Tables

#: Indexes in a row of ``Places``.
(
    _QUEUE, _AT, _MESSAGE, _ASKED_US, _KNOWN_US, _POSITION, _ASKED_PLACE, _KNOWN_PLACE, _TX, _KEY, _READERS, _STORE_TIME,
    _SEEN_US, _SEEN_PLACE,
) = range(14)  # fmt: skip
#: Tolerance: RocketMQ's timers have a resolution of one second, and the broker's clock may run slightly faster.
SLACK_US: Final = 1_000_000
_ADD_KEY: Final = """
    INSERT INTO queues VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE
    SET message = excluded.message, tx = excluded.tx, place = excluded.place WHERE excluded.place < place"""
#: The first message of each sharding key, and the first one after it in another queue.
_KEYS_IN_TWO_QUEUES: Final = """
    SELECT topic, key, first.queue, queues.queue, first.place, message, tx, min(queues.place)
    FROM (SELECT topic, key, queue, min(place) AS place FROM queues GROUP BY topic, key) AS first
    JOIN queues USING (topic, key) WHERE queues.queue <> first.queue GROUP BY topic, key"""


class Places:
    """Collects the known places of messages and verdicts."""

    def __init__(self, tables: Tables, facts: Facts) -> None:
        self.places = SortedTable(tables, "places", 5)
        #: (queue, sharding key, offset, row as of ``places``) of messages of outboxes; the row's times are those of writing and commit.
        self.commits = SortedTable(tables, "commits", 3)
        #: Also has the first message of each sharding key in each queue.
        self.database = tables.database
        self._names = facts.queue_names
        tables.database.execute(
            "CREATE TABLE queues (topic, key, queue, message, tx, place, PRIMARY KEY (topic, key, queue)) WITHOUT ROWID"
        )

    def add(
        self, queue: int, at: int, message: str, asked_us: int, known_us: int, position: int, asked_place: int,
        known_place: int, tx: str, key: str = "", readers: tuple[int, ...] = (), store_time: int = 0, seen_us: int = FAR,
        seen_place: int = 0,
    ) -> None:  # fmt: skip
        """``message`` (or the verdict of ``tx``) is at offset ``at``, assigned between ``asked_us`` and ``known_us``."""
        self.places.add(
            (queue, at, message, asked_us, known_us, position, asked_place, known_place, tx, key, readers, store_time,
             seen_us, seen_place)
        )  # fmt: skip
        if key:
            self.add_key(key, queue, message, tx, seen_place or known_place)

    def add_key(self, key: str, queue: int, message: str, tx: str, place: int) -> None:
        """Note that a message with sharding ``key`` is in ``queue``."""
        topic, number = self._names[queue]
        self.database.execute(_ADD_KEY, (topic, key, number, message, tx, place))


class Order:
    """Checks the rows of ``Places``."""

    def __init__(self, facts: Facts, findings: Findings) -> None:
        self._facts = facts
        self._findings = findings
        self._examined = findings.examined
        #: (the earlier row, the first misplaced row after it, number of those)
        self._late: tuple[Row, Row, int] | None = None

    def judge(self, places: Iterable[Row], note: Callable[[int], None] = lambda count: None) -> None:
        """Check all rows of ``Places``, in their order."""
        queue = -1
        first: Row = ()
        position_of: Row = ()
        time_of: Row = ()
        before: Row = ()
        first_asked = position = store_time = -1
        judge_log = not self._facts.acknowledgements_void
        reads: tuple[Any, ...] = ()
        looked = times = 0
        for row in places:
            looked += 1
            if row[0] != queue:
                self._report_late()
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
            is_late = known_us < first_asked
            if is_late:
                self._note_late(first, row)
            if asked_us > first_asked:
                first_asked, first = asked_us, row
            if row_position >= position:
                position, position_of = row_position, row
            elif row_position >= 0 and not is_late:
                self._position_down(position_of, row)
            if row_time:
                times += 1
                if row_time < store_time:
                    self._time_down(time_of, row)
                else:
                    store_time, time_of = row_time, row
            if readers:
                for read in reads:
                    self._examined[At.READERS] += 1
                    if read.reader not in readers and read.first <= at and known_us <= read.since_us:
                        self._not_read(read, row)
        self._report_late()
        self._examined[At.ORDER] += looked
        self._examined[At.TIME] += times

    def judge_keys(self, database: sqlite3.Connection) -> None:
        """Check that each sharding key of a topic is in one queue."""
        for topic, key, first, then, first_place, message, tx, place in database.execute(_KEYS_IN_TWO_QUEUES):
            text = f"sharding key {key!r} of {topic} is in queue {first} and in queue {then}"
            self._findings.add(At.KEYS, tx, message, text, (first_place, place))
        self._examined[At.KEYS] += database.execute(
            "SELECT count(*) FROM (SELECT DISTINCT topic, key FROM queues)"
        ).fetchone()[0]

    def judge_commits(self, commits: Iterable[Row]) -> None:
        """Check all rows of ``Places.commits``, in their order."""
        queue, key, first_asked = -1, "", -1
        first: Row = ()
        for row_queue, row_key, _, row in commits:
            self._examined[At.OUTBOX_ORDER] += 1
            if (row_queue, row_key) != (queue, key):
                self._report_late(At.OUTBOX_ORDER)
                queue, key, first_asked = row_queue, row_key, -1
            if row[_KNOWN_US] < first_asked:
                self._note_late(first, row)
            if row[_ASKED_US] > first_asked:
                first_asked, first = row[_ASKED_US], row
        self._report_late(At.OUTBOX_ORDER)

    # --- violations -----------------------------------------------------------------------------------------------

    def _note_late(self, first: Row, row: Row) -> None:
        """``row`` existed before ``first`` was requested, but is after it. A misplaced ``first`` is reported once."""
        if self._late is not None and self._late[0] is first:
            self._late = (first, self._late[1], self._late[2] + 1)
        else:
            self._report_late()
            self._late = (first, row, 1)

    def _report_late(self, check: int = At.ORDER) -> None:
        if self._late is None:
            return
        first, row, count = self._late
        self._late = None
        more = f", and so are {count - 1} others" if count > 1 else ""
        key = f", both with sharding key {row[_KEY]!r}" if row[_KEY] and row[_KEY] == first[_KEY] else ""
        existed, requested = ("existed", "requested") if check == At.ORDER else ("was committed", "written")
        text = (
            f"{self._name(row)} {existed} at {row[_KNOWN_US]:,} us, before {self._name(first)} was {requested} at "
            f"{first[_ASKED_US]:,} us, but is after it: {self._where(first)} and {self._where(row)}{key}{more}"
        )
        subject = first if count > 1 else row
        self._findings.add(
            check, subject[_TX], subject[_MESSAGE], text,
            (first[_ASKED_PLACE], first[_SEEN_PLACE], row[_KNOWN_PLACE], row[_SEEN_PLACE]),
        )  # fmt: skip

    def _position_down(self, first: Row, row: Row) -> None:
        text = (
            f"its verdict is at log position {row[_POSITION]}, but it is after {self._name(first)}, whose position is "
            f"{first[_POSITION]}: {self._where(first)} and {self._where(row)}"
        )
        places = (first[_KNOWN_PLACE], first[_SEEN_PLACE], row[_KNOWN_PLACE], row[_SEEN_PLACE])
        self._findings.add(At.ORDER, row[_TX], row[_MESSAGE], text, places)

    def _time_down(self, first: Row, row: Row) -> None:
        text = (
            f"its store time {row[_STORE_TIME]} ms is less than {first[_STORE_TIME]} ms of {self._name(first)}, which "
            f"precedes it: {self._where(first)} and {self._where(row)}"
        )
        self._findings.add(At.TIME, row[_TX], row[_MESSAGE], text, (first[_SEEN_PLACE], row[_SEEN_PLACE]))

    def _two_at_one_place(self, one: Row, two: Row) -> None:
        first, then = sorted((one, two), key=lambda row: (row[_KNOWN_US], row[_KNOWN_PLACE]))
        places = (first[_KNOWN_PLACE], first[_SEEN_PLACE], then[_KNOWN_PLACE], then[_SEEN_PLACE])
        text = f"it was at {self._where(first)}, where {self._name(then)} is"
        if then[_KNOWN_US] < FAR and self._facts.restarted_between(first[_KNOWN_US], then[_KNOWN_US]):
            if not self._facts.acknowledgements_void:
                text += " after the broker restarted"
                self._findings.add(At.DURABLE_RESTART, first[_TX], first[_MESSAGE], text, places)
        else:
            self._findings.add(At.ORDER, first[_TX], first[_MESSAGE], text, places)

    def _not_read(self, read: Any, row: Row) -> None:
        text = f"{self._facts.reader_names[read.reader]} read {self._where(row)} and did not receive it; others did"
        self._findings.add(At.READERS, row[_TX], row[_MESSAGE], text, (row[_SEEN_PLACE], read.place))

    def _where(self, row: Row) -> str:
        return self._facts.queue_text(row[_QUEUE], row[_AT])

    def _name(self, row: Row) -> str:
        if row[_MESSAGE]:
            return f"message {row[_MESSAGE]}"
        return f"the verdict of {transaction_name(row[_TX])}"


def check_due(
    facts: Facts, findings: Findings, tx: str, message: str, due_us: int, seen_us: int, places: tuple[int, ...]
) -> None:
    """Add a violation if a delayed message was received too early. ``due_us``: when it is due; ``places``: of the events to show.

    The delay counts from the first request, for a half from the first COMMIT request: the broker cannot have started it earlier.
    It uses its own clock, so nothing is checked after a clock step.
    """
    if seen_us >= facts.clock_stepped_us:
        return
    findings.examined[At.DUE] += 1
    if seen_us < due_us - SLACK_US:
        text = f"it was seen at {seen_us:,} us, {due_us - seen_us:,} us before it was due"
        findings.add(At.DUE, tx, message, text, places)
