"""Runs queries and jobs of Spark: once more if Spark's time for a new Python process was too short, and red with the cause alone.

Spark gives the Python process of a streaming source 10 s to connect back, which cannot be configured and which a loaded machine may need.
The query then ends with ``CONNECT_BACK``, before it has read anything. Every other error is raised at once, without the JVM's stack traces.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from halfmq.errors import HalfmqError
from halfmq.spark.jobs.source import cause
from tests.support.waiting import wait_until

T = TypeVar("T")

CONNECT_BACK: Final = "failed to connect back"
ATTEMPTS: Final = 5
#: How long a query may take. It only bounds a red test.
QUERY_S: Final = 240.0
_POLL_S: Final = 0.1


class QueryFailed(Exception):
    """An error of Spark; the text is its cause."""


def run(make: Callable[[], Any]) -> Any:
    """Let a query, which ``make`` starts with the trigger availableNow, run to its end. Returns it.

    Raises QueryFailed if it ended with an error.
    """
    return start(make, lambda query: False)


def start(make: Callable[[], Any], begun: Callable[[Any], object] = lambda query: query.lastProgress) -> Any:
    """The query that ``make`` starts, once it has completed a batch (or ``begun(query)`` is true), or has ended without an error.

    Raises QueryFailed if it ended with an error.
    """
    __tracebackhide__ = True

    def attempt() -> Any:
        __tracebackhide__ = True
        query = make()
        try:
            wait_until(lambda: query.awaitTermination(_POLL_S) or begun(query), "progress of a query", QUERY_S)
        except BaseException:
            query.stop()
            raise
        return query

    return again(attempt)


def again(call: Callable[[], T]) -> T:
    """The result of ``call``, which runs queries to their end, such as a job. Errors are its own; those of Spark are ``QueryFailed``."""
    __tracebackhide__ = True
    for left in reversed(range(ATTEMPTS)):
        try:
            return call()
        except (HalfmqError, PySparkException, Py4JError) as error:
            if left and _is_connect_back(error):
                continue
            if not isinstance(error, HalfmqError):
                raise QueryFailed(cause(error)) from None
            error.__cause__, error.__suppress_context__ = None, True  # Spark's, of which it says the cause
            raise
    raise AssertionError("not reached")


def until(query: Any, condition: Callable[[], T], what: str) -> T:
    """Wait for what a running query does; raises QueryFailed as soon as the query has ended without it."""
    __tracebackhide__ = True

    def look() -> T:
        __tracebackhide__ = True
        reason = "it ended"
        if not (found := condition()):
            try:
                has_ended = query.awaitTermination(_POLL_S)
            except PySparkException as error:
                has_ended, reason = True, cause(error)
            if has_ended and not (found := condition()):
                raise QueryFailed(f"waiting in vain for {what}: {reason}") from None
        return found

    return wait_until(look, what, QUERY_S)


def _is_connect_back(error: BaseException | None) -> bool:
    return error is not None and (CONNECT_BACK in str(error) or _is_connect_back(error.__cause__))
