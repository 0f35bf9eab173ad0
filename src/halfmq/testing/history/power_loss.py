"""Ignores what a power loss may legally lose with durability ``memory``; everything else is checked.

A broker that restarts after a power loss reports the end of the log that it found (``Started.log_end``). Earlier
acknowledgements at or after that offset prove nothing, and the offset is used again. So of requests before the restart,

    a response that names a place before that end   counts
    any other response                              is ignored, as if it had never arrived
    a finding of damage in a list                   is ignored; a report of an outcome, or a request to forget one, may be lost
    a half of a coordinator                         counts as a response does
    a check                                         is ignored: it may have been for a transaction that is lost
    a received message                              counts if its reader read the queues to their end afterwards; other
                                                    readers may have received it before the power loss

Rows are those of ``scan``. Requests and log records remain.
"""

from collections.abc import Iterable, Iterator

from halfmq.testing.history.facts import Facts
from halfmq.testing.history.scan import (
    ASKED,
    CHECK,
    DAMAGE,
    LISTED_FINDING,
    LOG_BATCHED,
    LOGGED,
    NO_ANSWER,
    OK,
    PREPARED,
    REQUESTED,
    SEEN,
    SETTLED,
    WRITTEN,
)
from halfmq.testing.history.tables import Row

_NO_RESPONSE = (-1, 0, NO_ANSWER, None, -1)
_NO_REPORT = (-1, 0, NO_ANSWER, "", "")
_NO_PLACE = (-1, "", -1, -1, None, -1)


def of_message(facts: Facts, rows: list[Row]) -> list[Row]:
    """The rows of one message that remain valid."""
    lost_us = facts.lost_us
    # A message of an unrecorded query may have been sent before; without a place in the log nobody knows of it.
    in_log = any(row[1] == LOGGED and row[3] == LOG_BATCHED for row in rows)
    first_us = min((row[2] for row in rows if row[1] in (ASKED, WRITTEN)), default=lost_us + (not in_log))
    return list(_message_rows(facts, rows, before=first_us <= lost_us))


def _message_rows(facts: Facts, rows: Iterable[Row], *, before: bool) -> Iterator[Row]:
    for row in rows:
        kind = row[1]
        if kind == ASKED:
            outcome = row[6]
            place = row[15] if outcome == OK else row[20]
            if outcome in (OK, SETTLED) and facts.may_have_lost(row[2], place):
                yield (*row[:4], -1, 0, NO_ANSWER, *row[7:15], *_NO_PLACE)
                continue
        elif kind == SEEN and before and (row[2] <= facts.lost_us or row[4] not in facts.whole_readers):
            continue
        yield row


def of_transaction(facts: Facts, rows: list[Row]) -> list[Row]:
    """The rows of one transaction that remain valid; its summaries were made from the rows of ``of_message``."""
    kept: list[Row] = []
    for row in rows:
        kind = row[1]
        if kind == REQUESTED and row[8] in (OK, SETTLED) and facts.may_have_lost(row[2], row[10]):
            kept.append((*row[:6], *_NO_RESPONSE, *row[11:]))
        elif kind == DAMAGE and facts.may_have_lost(row[2], -1):
            if row[4] != LISTED_FINDING:
                kept.append((*row[:6], *_NO_REPORT))
        elif kind == PREPARED and facts.may_have_lost(row[2], row[5]):
            continue
        elif kind != CHECK or row[2] > facts.lost_us:
            kept.append(row)
    return kept
