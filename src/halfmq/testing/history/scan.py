"""First pass: reads every event once, joins responses to requests, and adds rows for each message and transaction.

The result does not depend on the order of files or lines, except for the operations of one writer.

Rows for messages, by unique id (``messages``)::

    id, ASKED,  t, place, t answered, place of response, outcome, group, tx, index, topic, queue, crc, key, delay,
                log offset, topic answered, queue answered, queue offset answered, verdict answered, position answered
    id, SEEN,   t, place, reader, queue number, queue offset, log offset, store time, crc, tx, index, key
    id, LOGGED, place, kind, log offset, queue number, queue offset, crc, group, tx
    id, LISTED, place, group, tx                               the database lists it as sent by the transaction
    id, WRITTEN, ...                                           to an outbox; fields as ASKED, the outcome is HELD or NO_ANSWER
    id, DECIDED, t, place, verdict, by whom, t answered, outcome           on a message of an outbox
    id, HANDLED, place, consumer, group, tx                    in a local transaction that committed

and for transactions, by group and id in one string (``transactions``)::

    tx, SUMMARY, ...                                           of a message, from messages.py
    tx, REQUESTED, t, place, verdict, by whom, t answered, place, outcome, verdict answered, position, coordinator
    tx, PREPARED, t, place, coordinator, log offset            a half of a coordinator, which was acknowledged
    tx, LOCAL,  place, outcome, number of messages listed, t, has a marker
    tx, CHECK,  t, place
    tx, RECORD, place, verdict, log offset, by whom, shown
    tx, STORED, place, index, log offset                       a half or a copy in the log without its message id
    tx, BRANCH, t, place, branch, call                         a BranchRow
    tx, DAMAGE, t, place, what, said, t answered, place of response, outcome, verdict, by whom       a DamageRow
    tx, ROW,    ...                                            a WrittenMessage, from messages.py

A message without a transaction has ``tx`` "" and ``group`` "". -1 is "not named" throughout.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import msgspec

from halfmq.testing.history.epochs import Epochs
from halfmq.testing.history.events import (
    Answered,
    AnyEvent,
    BranchWritten,
    CheckReceived,
    CheckUnanswered,
    DamageForgotten,
    DamageListed,
    EndAsked,
    EpochTaken,
    Fault,
    FileStarted,
    HalfSent,
    Local,
    Logged,
    OutboxWritten,
    OutcomeReported,
    PlainSent,
    QueueRead,
    Seen,
    Settled,
    Started,
)
from halfmq.testing.history.facts import Facts
from halfmq.testing.history.reader import Block
from halfmq.testing.history.tables import GroupedTable, Row, Tables

ASKED: Final = 0
SEEN: Final = 1
LOGGED: Final = 2
LISTED: Final = 3
WRITTEN: Final = 4
DECIDED: Final = 5
HANDLED: Final = 6

SUMMARY: Final = 0
REQUESTED: Final = 1
LOCAL: Final = 2
CHECK: Final = 3
RECORD: Final = 4
STORED: Final = 5
ROW: Final = 6
BRANCH: Final = 7
DAMAGE: Final = 8
PREPARED: Final = 9

#: What a row of damage is about: an outcome that was reported, a finding in a list, or a request to forget it.
REPORTED: Final = 0
LISTED_FINDING: Final = 1
FORGOTTEN: Final = 2

#: Outcomes in rows.
NO_ANSWER: Final = 0
OK: Final = 1
SETTLED: Final = 2
REFUSED: Final = 3
HELD: Final = 4
_OUTCOMES: Final = {"ok": OK, "settled": SETTLED, "refused": REFUSED}

#: Kinds of Logged in rows.
LOG_MESSAGE: Final = 0
LOG_HALF: Final = 1
LOG_COPY: Final = 2
LOG_BATCHED: Final = 3
_LOG_KINDS: Final = {"message": LOG_MESSAGE, "half": LOG_HALF, "copy": LOG_COPY, "batched": LOG_BATCHED}
_LOG_VERDICTS: Final = {"commit": "COMMITTED", "rollback": "ROLLED_BACK"}

Request = HalfSent | PlainSent | EndAsked | OutcomeReported | DamageForgotten

#: Every request with the last response to it.
_REQUESTS_WITH_ANSWERS: Final = """
    SELECT requests.event, requests.place, answers.event, max(answers.place)
    FROM requests LEFT JOIN answers USING (writer, op) GROUP BY writer, op, requests.place"""
_ASKED_TWICE: Final = "SELECT writer, op, max(place) FROM requests GROUP BY writer, op HAVING count(*) > 1"
_ANSWERS_ALONE: Final = """
    SELECT count(*) FROM (SELECT writer, op FROM answers EXCEPT SELECT writer, op FROM requests)"""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(AnyEvent).decode


def tx_key(group: str, tx: str) -> str:
    """A transaction in one string; ``report.transaction_name`` makes it readable."""
    return f"{group}\n{tx}"


class Scan:
    """Takes blocks of events, then ``finish``. ``waiting_max``: unmatched requests and responses to keep in memory."""

    def __init__(self, tables: Tables, waiting_max: int) -> None:
        self.facts = Facts()
        self.counts: Counter[type] = Counter()
        self.messages = GroupedTable(tables, "messages")
        self.transactions = GroupedTable(tables, "transactions")
        self.epochs = Epochs()
        #: Responses without a request: a file is missing.
        self.answers_alone = 0
        self._tables = tables
        self._waiting_max = waiting_max
        #: By writer and operation.
        self._requests: dict[tuple[str, str], tuple[Request, int]] = {}
        self._answers: dict[tuple[str, str], tuple[Answered, int]] = {}
        for side in ("requests", "answers"):
            tables.database.execute(f"CREATE TABLE {side} (writer, op, place, event, PRIMARY KEY (writer, op, place))")
        self._take: dict[type, Callable[[Any, int], None]] = {
            FileStarted: self.facts.began,
            HalfSent: self._request,
            PlainSent: self._request,
            EndAsked: self._request,
            EpochTaken: self.epochs.taken,
            OutcomeReported: self._request,
            DamageForgotten: self._request,
            DamageListed: self._damage_listed,
            Answered: self._answered,
            Local: self._local,
            OutboxWritten: self._written,
            BranchWritten: self._branch,
            CheckReceived: self._check,
            CheckUnanswered: lambda event, place: None,
            Seen: self._seen,
            QueueRead: self.facts.queue_read,
            Logged: self._logged,
            Fault: self.facts.fault,
            Started: self.facts.started,
            Settled: self.facts.settled,
        }

    def block(self, block: Block, base: int) -> None:
        """Take a block. ``base``: the place before the first line of its source."""
        place = base + block.line
        take = self._take
        for event in block.events:
            take[type(event)](event, place)
            place += 1
        self.counts.update(map(type, block.events))
        if len(self._requests) + len(self._answers) > self._waiting_max:
            self._spill_waiting()

    @property
    def events(self) -> int:
        """The number of events read."""
        return sum(self.counts.values())

    def finish(self) -> None:
        """All blocks were taken: requests without a response so far have none."""
        self._join_spilled()
        for request, place in self._requests.values():
            self._emit(request, place, None, 0)
        self.answers_alone += len(self._answers)
        self._requests.clear()
        self._answers.clear()
        self.facts.finish()

    # --- requests and responses -----------------------------------------------------------------------------------

    def _request(self, request: Request, place: int) -> None:
        operation = (request.by, request.op)
        answer = self._answers.pop(operation, None)
        if answer is not None:
            self._emit(request, place, *answer)
            return
        if operation in self._requests:
            self._asked_twice(*operation, place)
        self._requests[operation] = (request, place)

    def _answered(self, answer: Answered, place: int) -> None:
        if answer.outcome == "unknown":
            return
        operation = (answer.by, answer.op)
        request = self._requests.pop(operation, None)
        if request is not None:
            self._emit(*request, answer, place)
        else:
            self._answers[operation] = (answer, place)

    def _asked_twice(self, writer: str, op: str, place: int) -> None:
        self.facts.unusable(place, f"operation {op!r} of {writer} was requested before")

    def _spill_waiting(self) -> None:
        """Move unmatched operations to the database: one-way requests never get a response and would fill the memory."""
        for side, waiting in (("requests", self._requests), ("answers", self._answers)):
            rows = ((*operation, place, _encode(event)) for operation, (event, place) in waiting.items())
            self._tables.insert(side, 4, rows)
            waiting.clear()

    def _join_spilled(self) -> None:
        database = self._tables.database
        if not database.execute("SELECT EXISTS (SELECT * FROM requests) OR EXISTS (SELECT * FROM answers)").fetchone()[
            0
        ]:
            return
        self._spill_waiting()
        for writer, op, place in database.execute(_ASKED_TWICE):
            self._asked_twice(writer, op, place)
        for request, place, answer, answered_at in database.execute(_REQUESTS_WITH_ANSWERS):
            self._emit(_decode(request), place, None if answer is None else _decode(answer), answered_at or 0)
        self.answers_alone += database.execute(_ANSWERS_ALONE).fetchone()[0]
        database.execute("DELETE FROM requests")
        database.execute("DELETE FROM answers")

    def _emit(self, request: Request, place: int, answer: Answered | None, answered_at: int) -> None:
        if answer is None:
            t2, outcome, offset, topic2, queue2, qo2, verdict2, position2 = -1, NO_ANSWER, -1, "", -1, -1, None, -1
        else:
            t2 = answer.t_us
            outcome = _OUTCOMES[answer.outcome]
            offset, topic2, queue2, qo2 = answer.offset, answer.topic, answer.queue, answer.queue_offset
            verdict2, position2 = answer.verdict, answer.position
            if t2 < request.t_us:
                self.facts.unusable(answered_at, f"operation {answer.op!r} was answered before it was requested")
        if isinstance(request, OutcomeReported | DamageForgotten):
            what, said, by = FORGOTTEN, "", ""
            if isinstance(request, OutcomeReported):
                what, said, by = REPORTED, request.outcome, "marker" if request.marker else ""
            key = tx_key(request.group, request.tx)
            self.transactions.add(
                (key, DAMAGE, request.t_us, place, what, said, t2, answered_at, outcome, verdict2 or "", by)
            )
            return
        kind = type(request)
        if kind is not PlainSent and request.epoch and outcome in (OK, SETTLED):  # type: ignore[union-attr]
            self.epochs.executed(request, place, t2, answered_at)  # type: ignore[arg-type]
        if kind is EndAsked and request.message:
            self.messages.add(
                (request.message, DECIDED, request.t_us, place, request.verdict, request.decided_by, t2, outcome)  # type: ignore[union-attr]
            )
            return
        if kind is EndAsked:
            key = f"{request.group}\n{request.tx}"  # type: ignore[union-attr]
            row: Row = (
                key, REQUESTED, request.t_us, place, request.verdict, request.decided_by, t2, answered_at,  # type: ignore[union-attr]
                outcome, verdict2, position2, request.coordinator,  # type: ignore[union-attr]
            )  # fmt: skip
            self.transactions.add(row)
            return
        message = request.message
        if kind is HalfSent:
            group, tx, index = request.group, request.tx, request.index  # type: ignore[union-attr]
            if request.coordinator and outcome == OK:  # type: ignore[union-attr]
                self.transactions.add((f"{group}\n{tx}", PREPARED, request.t_us, place, request.coordinator, offset))  # type: ignore[union-attr]
        else:
            group, tx, index = "", "", 0
        row = (
            message, ASKED, request.t_us, place, t2, answered_at, outcome, group, tx, index, request.topic,  # type: ignore[union-attr]
            request.queue, request.crc, request.key, request.delay_ms, offset, topic2, queue2, qo2, verdict2, position2,  # type: ignore[union-attr]
        )  # fmt: skip
        self.messages.add(row)

    # --- other events ---------------------------------------------------------------------------------------------

    def _seen(self, seen: Seen, place: int) -> None:
        message = seen.message
        facts = self.facts
        queue = facts.queues.get((seen.topic, seen.queue))
        if queue is None:
            queue = facts.queue_number(seen.topic, seen.queue)
        reader = facts.readers.get(seen.reader)
        if reader is None:
            reader = facts.reader_number(seen.reader)
        self.messages.add(
            (message, SEEN, seen.t_us, place, reader, queue, seen.queue_offset, seen.offset, seen.store_time_ms, seen.crc,
             seen.tx, seen.index, seen.key)
        )  # fmt: skip

    def _logged(self, record: Logged, place: int) -> None:
        facts = self.facts
        facts.log_records += 1
        if record.offset < facts.log_first:
            facts.log_first = record.offset
        kind = record.kind
        if kind in _LOG_KINDS:
            message = record.message
            if record.tx and not message:
                self.transactions.add((f"{record.group}\n{record.tx}", STORED, place, record.index, record.offset))
                return
            self.messages.add(
                (message, LOGGED, place, _LOG_KINDS[kind], record.offset, facts.queue_number(record.topic, record.queue),
                 record.queue_offset, record.crc, record.group, record.tx)
            )  # fmt: skip
        elif kind in _LOG_VERDICTS:
            key = f"{record.group}\n{record.tx}"
            number = facts.queue_number
            shown = tuple([(number(topic, queue), at, half) for topic, queue, at, half in record.shown])
            self.transactions.add((key, RECORD, place, _LOG_VERDICTS[kind], record.offset, record.decided_by, shown))
        elif kind == "trim" and record.log_start > facts.trimmed_to:
            facts.trimmed_to = record.log_start

    def _local(self, local: Local, place: int) -> None:
        key = f"{local.group}\n{local.tx}"
        self.transactions.add((key, LOCAL, place, local.outcome, len(local.messages), local.t_us, local.marker))
        for message in local.messages:
            self.messages.add((message, LISTED, place, local.group, local.tx))
        if local.handled and local.outcome == "COMMITTED":
            self.messages.add((local.handled, HANDLED, place, local.consumer, local.group, local.tx))

    def _written(self, row: OutboxWritten, place: int) -> None:
        self.messages.add(
            (row.message, WRITTEN, row.t_us, place, -1, 0, HELD if row.hold else NO_ANSWER, row.group, row.tx, 0, row.topic,
             -1, row.crc, row.key, row.delay_ms, -1, "", -1, -1, None, -1)
        )  # fmt: skip

    def _branch(self, branch: BranchWritten, place: int) -> None:
        key = tx_key(branch.group, branch.tx)
        self.transactions.add((key, BRANCH, branch.t_us, place, branch.branch, branch.call))

    def _damage_listed(self, listed: DamageListed, place: int) -> None:
        since_us = listed.t_us if listed.since_us < 0 else listed.since_us
        self.facts.damage_lists.append((since_us, listed.t_us, place))
        for one in listed.findings:
            self.transactions.add(
                (tx_key(one.group, one.tx), DAMAGE, since_us, place, LISTED_FINDING, one.local, listed.t_us, 0, OK, one.verdict,
                 one.decided_by)
            )  # fmt: skip

    def _check(self, check: CheckReceived, place: int) -> None:
        key = f"{check.group}\n{check.tx}"
        self.transactions.add((key, CHECK, check.t_us, place))
