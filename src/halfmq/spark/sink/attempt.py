"""Who a task writes for: its batch and its attempt, from what Spark tells the task.

Spark's local properties are not a documented interface, but its own engine reads them by these names. Where one is missing, writing
exactly once is impossible, and the task says so.
"""

import secrets
import uuid
from dataclasses import dataclass
from typing import Any, Final

from pyspark.taskcontext import TaskContext

from halfmq.errors import EnvironmentFailed
from halfmq.model.query_batch import ANY_TOPIC, RUN_CHARS_MAX, QueryBatch, problem_of

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
#: Spark makes it the id of the run, which is new at each start of a query.
RUN_ID: Final = "spark.jobGroup.id"


@dataclass(frozen=True, slots=True)
class Attempt:
    """``name`` is unique in the run: Spark numbers the attempts of all tasks of an application."""

    batch: QueryBatch
    name: str


def batch_write(app_id: str, version: int, topic: str) -> QueryBatch:
    """The batch of a batch write: of ``app_id`` and its ``version``, or a query of its own. The run is random. ``topic``: the option, "" if
    rows name their topics.
    """
    run = secrets.token_hex(RUN_CHARS_MAX // 2)
    return QueryBatch(app_id, version, run, topic or ANY_TOPIC) if app_id else QueryBatch(str(uuid.uuid4()), 0, run)


def of_batch_write(batch: QueryBatch) -> Attempt:
    """The attempt of the task that calls this, of a batch write."""
    return Attempt(batch, _attempt_name(_context()))


def of_stream(app_id: str, topic: str) -> tuple[Attempt, str]:
    """(the attempt of the task that calls this, id of the query), of a stream. ``app_id``: "" if the id of the query names it. That has one
    sink, so it needs no topic, and the option may change between its runs. ``topic``: as for ``batch_write``.

    Raises:
        EnvironmentFailed: Spark does not say which batch it is.
    """
    context = _context()
    query, batch, run = (_property(context, name) for name in (QUERY_ID, BATCH_ID, RUN_ID))
    named = QueryBatch(query, int(batch) if batch.isdecimal() else -1, run_name(run))
    if app_id:
        named = named._replace(query=app_id, topic=topic or ANY_TOPIC, stream=query)
    attempt = _attempt_name(context)
    problem = problem_of(named, attempt)
    if problem:
        raise EnvironmentFailed(f"Spark names the batch in an unknown way: {problem}")
    return Attempt(named, attempt), query


def run_name(run_id: str) -> str:
    """The name of a run for the broker: the first 12 hex digits of its UUID."""
    return run_id.replace("-", "")[:RUN_CHARS_MAX]


def _context() -> Any:
    context = TaskContext.get()
    if context is None:
        raise EnvironmentFailed("write was called outside of a Spark task")
    return context


def _property(context: Any, name: str) -> str:
    value = context.getLocalProperty(name)
    if not value:
        raise EnvironmentFailed(
            f"Spark does not give its tasks the local property {name}, without which rows cannot be written exactly once",
            hint="tested with Spark 4.3; report this with your version",
        )
    return str(value)


def _attempt_name(context: Any) -> str:
    return f"{context.partitionId()}.{context.taskAttemptId()}"
