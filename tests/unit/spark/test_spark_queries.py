"""How tests run queries (``tests.support.spark_queries``): again for one error, and no other."""

from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from tests.support.spark_queries import ATTEMPTS, QueryFailed, again, run, start, until

from halfmq.spark.jobs.stream import JobFailed

LATE = "[STREAM_FAILED] Query terminated with exception: Python worker failed to connect back.\n\tat org.apache"
OTHER = "[STREAM_FAILED] Query terminated: disk full\n\tat org.apache\n\tat org.apache"


class Query:
    """Ends with ``error``, or without one (""), or runs (None), with a batch completed."""

    def __init__(self, error: str | None) -> None:
        self.error, self.isActive, self.lastProgress = error, error is None, {"batchId": 0}

    def awaitTermination(self, seconds: float) -> bool:  # noqa: N802
        if self.error:
            raise StreamingQueryException(self.error)
        return not self.isActive

    def stop(self) -> None:
        self.isActive = False


def queries(*errors: str | None) -> tuple[Any, list[Query]]:
    made: list[Query] = []
    return lambda: made.append(Query(errors[len(made)])) or made[-1], made


@pytest.mark.parametrize(("way", "ends"), [(run, ""), (start, ""), (start, None)])
def test_a_query_is_started_again_if_its_python_process_was_late(way: Any, ends: str | None) -> None:
    make, made = queries(LATE, LATE, ends, "not reached")
    assert way(make) is made[2]
    assert made[2].isActive == (ends is None)


@pytest.mark.parametrize("way", [run, start])
def test_another_error_is_raised_at_once_with_its_cause_alone(way: Any) -> None:
    make, made = queries(OTHER, "")
    with pytest.raises(QueryFailed) as caught:
        way(make)
    assert str(caught.value) == "[STREAM_FAILED] Query terminated: disk full"
    assert caught.value.__suppress_context__
    assert len(made) == 1


def test_a_process_that_is_always_late_is_an_error() -> None:
    make, made = queries(*[LATE] * ATTEMPTS)
    with pytest.raises(QueryFailed, match="failed to connect back"):
        run(make)
    assert len(made) == ATTEMPTS


def test_a_job_is_run_again_also_if_it_names_only_the_first_cause() -> None:
    errors = [LATE, OTHER]

    def job() -> None:
        try:
            raise StreamingQueryException(errors.pop(0))
        except StreamingQueryException as error:
            raise JobFailed("the job's own words") from error

    with pytest.raises(JobFailed, match="own words") as caught:
        again(job)
    assert not errors
    assert caught.value.__cause__ is None


def test_nothing_is_awaited_of_a_query_that_has_ended() -> None:
    make, made = queries(None)
    query = start(make)
    assert until(query, lambda: 5, "five") == 5
    made[0].isActive, made[0].error = False, OTHER
    with pytest.raises(QueryFailed, match=r"in vain for six: .*disk full"):
        until(query, lambda: 0, "six")
    assert until(query, lambda: 6, "six") == 6
