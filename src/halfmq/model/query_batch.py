"""The name of a batch of a query, as the id of a transaction: ``QUERY:BATCH:RUN``.

A query is an application with numbered batches, such as a Spark stream. A batch may be prepared by several runs of the query: each is a
transaction of its own, and at most one of them is decided. Pure functions.
"""

import re
from typing import Final, NamedTuple

#: Maximum length of the names; together with the number they fit in a transaction id.
QUERY_CHARS_MAX: Final = 40
RUN_CHARS_MAX: Final = 12
ATTEMPT_CHARS_MAX: Final = 40
BATCH_MAX: Final = 2**31 - 1
_QUERY: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{QUERY_CHARS_MAX}}}")
_RUN: Final = re.compile(rf"[A-Za-z0-9]{{1,{RUN_CHARS_MAX}}}")
_ATTEMPT: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{ATTEMPT_CHARS_MAX}}}")


class QueryBatch(NamedTuple):
    """One batch, as one run of its query prepares it."""

    query: str
    batch: int
    #: Changes with each start of the query.
    run: str

    @property
    def tx_id(self) -> str:
        return f"{self.query}:{self.batch}:{self.run}"


def of_tx_id(tx_id: str) -> QueryBatch:
    """The inverse of ``QueryBatch.tx_id``, for an id that it returned.

    Raises:
        ValueError: it is not such an id.
    """
    query, batch, run = tx_id.rsplit(":", 2)
    return QueryBatch(query, int(batch), run)


def problem_of(batch: QueryBatch, attempt: str | None = None) -> str:
    """Why these names are invalid; "" if they are valid. ``attempt`` None: there is none."""
    if _QUERY.fullmatch(batch.query) is None:
        return f"{batch.query!r} is not the name of a query: 1 to {QUERY_CHARS_MAX} letters, digits, '.', '_' and '-'"
    if not 0 <= batch.batch <= BATCH_MAX:
        return f"batch {batch.batch} of query {batch.query} is not a number from 0 to {BATCH_MAX}"
    if _RUN.fullmatch(batch.run) is None:
        return f"{batch.run!r} is not the run of a query: 1 to {RUN_CHARS_MAX} letters and digits"
    if attempt is not None and _ATTEMPT.fullmatch(attempt) is None:
        return f"{attempt!r} is not an attempt: 1 to {ATTEMPT_CHARS_MAX} letters, digits, '.', '_' and '-'"
    return ""
