"""Names of batches, runs and attempts, from what Spark tells its tasks."""

from typing import Any

import pytest

from halfmq.errors import EnvironmentFailed
from halfmq.model.query_batch import QueryBatch, problem_of
from halfmq.spark.sink import task
from halfmq.spark.sink.task import BATCH_ID, QUERY_ID, RUN_ID

QUERY = "0f0f0f0f-1111-2222-3333-444455556666"


class Context:
    def __init__(self, properties: dict[str, str]) -> None:
        self.properties = properties

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802
        return self.properties.get(name)

    def partitionId(self) -> int:  # noqa: N802
        return 3

    def taskAttemptId(self) -> int:  # noqa: N802
        return 71


@pytest.fixture
def properties(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    found = {QUERY_ID: QUERY, BATCH_ID: "12", RUN_ID: "abcdef01-2345-6789-0000-000000000000"}
    monkeypatch.setattr(task.TaskContext, "get", lambda: Context(found))
    return found


def test_attempt_of_a_stream(properties: dict[str, str]) -> None:
    made, query_id = task.of_stream("", "T")
    assert made == task.Attempt(QueryBatch(QUERY, 12, "abcdef012345"), "3.71")
    assert query_id == QUERY
    of_app = QueryBatch("mine", 12, "abcdef012345", "T", QUERY)
    assert task.of_stream("mine", "T")[0].batch == of_app
    assert task.of_stream("mine", "")[0].batch == of_app._replace(topic="*")


@pytest.mark.parametrize("name", [QUERY_ID, BATCH_ID, RUN_ID])
def test_missing_property_is_named(properties: dict[str, str], name: str) -> None:
    del properties[name]
    with pytest.raises(EnvironmentFailed, match=f"local property {name}"):
        task.of_stream("", "T")


@pytest.mark.parametrize(("name", "value"), [(BATCH_ID, "x"), (QUERY_ID, "a b"), (RUN_ID, "!")])
def test_property_of_another_form_is_refused(properties: dict[str, str], name: str, value: str) -> None:
    properties[name] = value
    with pytest.raises(EnvironmentFailed, match="in an unknown way"):
        task.of_stream("", "T")


def test_outside_of_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task.TaskContext, "get", lambda: None)
    for call in (lambda: task.of_stream("", "T"), lambda: task.of_batch_write(QueryBatch("q", 0, "r"))):
        with pytest.raises(EnvironmentFailed, match="outside of a Spark task"):
            call()  # type: ignore[no-untyped-call]


def test_batch_writes_have_names_of_their_own(properties: dict[str, str]) -> None:
    made: list[Any] = [task.batch_write("", -1, "T") for _ in range(2)] + [
        task.batch_write("app", 7, "T") for _ in range(2)
    ]
    assert [problem_of(one) for one in made] == [""] * 4
    assert len({one.query for one in made}) == 3
    assert len({one.run for one in made}) == 4
    assert [(one.query, one.batch, one.topic) for one in made[2:]] == [("app", 7, "T")] * 2
    assert task.batch_write("app", 7, "").topic == "*"
    assert task.of_batch_write(made[0]) == task.Attempt(made[0], "3.71")
