"""The name of a batch of a query, as the id of a transaction: ``QUERY:BATCH:RUN``.

A query is an application with numbered batches, such as a Spark stream. A batch may be prepared by several runs of the query: each is a
transaction of its own, and at most one of them is decided.

An application may write several outputs with one name and one number, such as two topics in one ``foreachBatch``. So a query is identified
by its name **and** its topic, which are never joined into one text: the id has no space for both. It need not: a run writes to one
topic only (``core.transaction.queries``), so the id is unique nevertheless. Pure functions.
"""

import re
from typing import Final, NamedTuple

from halfmq import limits
from halfmq.model.ids import is_name

#: Maximum length of the names; together with the number they fit in a transaction id.
QUERY_CHARS_MAX: Final = 40
RUN_CHARS_MAX: Final = 12
ATTEMPT_CHARS_MAX: Final = 40
BATCH_MAX: Final = 2**31 - 1
STREAM_CHARS_MAX: Final = 40
#: Instead of a topic, of a query whose rows name their topics.
ANY_TOPIC: Final = "*"
_QUERY: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{QUERY_CHARS_MAX}}}")
_RUN: Final = re.compile(rf"[A-Za-z0-9]{{1,{RUN_CHARS_MAX}}}")
_STREAM: Final = re.compile(rf"[A-Za-z0-9-]{{1,{STREAM_CHARS_MAX}}}")
_ATTEMPT: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{ATTEMPT_CHARS_MAX}}}")


class QueryBatch(NamedTuple):
    """One batch, as one run of its query prepares it."""

    query: str
    batch: int
    #: Changes with each start of the query.
    run: str
    #: Where the query writes: a topic, or ``ANY_TOPIC``. "": its name alone identifies it, as that of a stream without a name of its own.
    topic: str = ""
    #: The application's id of the stream that writes it, if it is one; only with ``topic``. It survives restarts, unlike the run.
    stream: str = ""

    @property
    def tx_id(self) -> str:
        return f"{self.query}:{self.batch}:{self.run}"

    @property
    def text(self) -> str:
        """For people: ``batch 7 of query totals, topic orders``."""
        return f"batch {self.batch} of {query_text(self.query, self.topic)}"


def query_text(query: str, topic: str) -> str:
    """For people: ``query totals, topic orders``."""
    return f"query {query}, topic {topic}" if topic else f"query {query}"


def of_tx_id(tx_id: str) -> tuple[str, int, str]:
    """(name of the query, batch, run) of an id that ``QueryBatch.tx_id`` returned. The id does not contain the topic.

    Raises:
        ValueError: it is not such an id.
    """
    query, batch, run = tx_id.rsplit(":", 2)
    return query, int(batch), run


def problem_of(batch: QueryBatch, attempt: str | None = None) -> str:
    """Why these names are invalid; "" if they are valid. ``attempt`` None: there is none."""
    if _QUERY.fullmatch(batch.query) is None:
        return f"{batch.query!r} is not the name of a query: 1 to {QUERY_CHARS_MAX} letters, digits, '.', '_' and '-'"
    if not 0 <= batch.batch <= BATCH_MAX:
        return f"batch {batch.batch} of query {batch.query} is not a number from 0 to {BATCH_MAX}"
    if _RUN.fullmatch(batch.run) is None:
        return f"{batch.run!r} is not the run of a query: 1 to {RUN_CHARS_MAX} letters and digits"
    if batch.topic not in ("", ANY_TOPIC) and not is_name(batch.topic, limits.TOPIC_CHARS_MAX):
        return f"{batch.topic!r} is not a topic, nor {ANY_TOPIC!r}"
    if batch.stream and (not batch.topic or _STREAM.fullmatch(batch.stream) is None):
        return f"{batch.stream!r} is not the id of a stream: 1 to {STREAM_CHARS_MAX} letters, digits and '-', of a query with a topic"
    return "" if attempt is None else attempt_problem(attempt)


def attempt_problem(attempt: str) -> str:
    """Why it cannot be the name of an attempt; "" if it can."""
    if _ATTEMPT.fullmatch(attempt) is None:
        return f"{attempt!r} is not an attempt: 1 to {ATTEMPT_CHARS_MAX} letters, digits, '.', '_' and '-'"
    return ""
