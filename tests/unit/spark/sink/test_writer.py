"""Spark's interfaces: what is checked when a query begins, and what travels to tasks."""

import pickle
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructType

from halfmq.errors import UsageError
from halfmq.model.query_batch import QueryBatch
from halfmq.spark.sink import writer
from halfmq.spark.sink.at_least_once import Confirmed
from halfmq.spark.sink.task import Prepared
from halfmq.spark.sink.writer import HalfmqBatchWriter, HalfmqStreamWriter
from halfmq.spark.source import HalfmqDataSource

SCHEMA = StructType().add("value", StringType())
OPTIONS = {"url": "rocketmq://127.0.0.1:1", "topic": "t"}
STREAM = {**OPTIONS, "checkpointlocation": "/c"}


def test_source_makes_the_writers() -> None:
    assert isinstance(HalfmqDataSource(OPTIONS).writer(SCHEMA, overwrite=False), HalfmqBatchWriter)
    assert isinstance(HalfmqDataSource(STREAM).streamWriter(schema=SCHEMA, overwrite=False), HalfmqStreamWriter)


@pytest.mark.parametrize("kind", [HalfmqBatchWriter, HalfmqStreamWriter])
def test_invalid_options_columns_and_modes_are_refused_at_once(kind: Any) -> None:
    given = OPTIONS if kind is HalfmqBatchWriter else STREAM
    with pytest.raises(UsageError, match="cannot be overwritten"):
        kind(given, SCHEMA, True)
    with pytest.raises(UsageError, match="unknown option subscribe"):
        kind({**given, "subscribe": "t"}, SCHEMA, False)
    with pytest.raises(UsageError, match="unknown column other"):
        kind(given, StructType().add("value", StringType()).add("other", LongType()), False)


def test_batch_and_stream_check_their_own_options() -> None:
    with pytest.raises(UsageError, match="txnVersion is not set"):
        HalfmqBatchWriter({**OPTIONS, "txnAppId": "a"}, SCHEMA, False)
    with pytest.raises(UsageError, match="checkpointLocation is set without txnAppId"):
        HalfmqBatchWriter(STREAM, SCHEMA, False)
    with pytest.raises(UsageError, match="checkpointLocation is not set"):
        HalfmqStreamWriter(OPTIONS, SCHEMA, False)


def test_copies_of_a_batch_write_have_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    made = HalfmqBatchWriter(OPTIONS, SCHEMA, False)
    decided: list[Any] = []
    monkeypatch.setattr(writer.decide, "decide_batch_write", lambda *given: decided.append(given))
    message = Prepared("", made._batch, "0.1", False, 1, 1, 1)
    for one in (made, pickle.loads(pickle.dumps(made))):
        one.commit([pickle.loads(pickle.dumps(message)), None])
    assert decided[0] == decided[1] == ([message], made._options, made._batch)


def test_abort_of_a_batch_write(monkeypatch: pytest.MonkeyPatch) -> None:
    aborted: list[Any] = []
    monkeypatch.setattr(writer.decide, "abort_batch_write", lambda *given: aborted.append(given))
    made = HalfmqBatchWriter(OPTIONS, SCHEMA, False)
    made.abort([None])
    assert aborted == [(made._options, made._batch)]


def test_at_least_once_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "decide", None)
    given = {**OPTIONS, "guarantee": "atLeastOnce"}
    batch, stream = HalfmqBatchWriter(given, SCHEMA, False), HalfmqStreamWriter(given, SCHEMA, False)
    batch.commit([Confirmed(3), None])
    batch.abort([None])
    stream.commit([Confirmed(3)], 1)
    stream.abort([None], 1)


def test_guarantee_chooses_what_a_task_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer.task, "_context", lambda: Context())
    called: list[Any] = []
    monkeypatch.setattr(writer.at_least_once, "write", lambda *given: called.append(("plain", *given[1:])))
    monkeypatch.setattr(writer.task, "write", lambda *given: called.append(("half", *given[1:])))
    for guarantee in ("atLeastOnce", "exactlyOnce"):
        batch = HalfmqBatchWriter({**OPTIONS, "guarantee": guarantee}, SCHEMA, False)
        stream = HalfmqStreamWriter({**STREAM, "guarantee": guarantee}, SCHEMA, False)
        batch.write(iter([]))
        stream.write(iter([]))
        first, second = called[-2:]
        if guarantee == "atLeastOnce":
            assert first == ("plain", batch._options, batch._batch, 0)
            assert second == ("plain", stream._options, QueryBatch("query", 5, "a1b2c3d4e5f6"), 0)
        else:
            assert (first[0], second[0]) == ("half", "half")


class Context:
    """What Spark tells a task."""

    def partitionId(self) -> int:  # noqa: N802
        return 2

    def taskAttemptId(self) -> int:  # noqa: N802
        return 9

    def getLocalProperty(self, name: str) -> str:  # noqa: N802
        return {"sql.streaming.queryId": "query", "streaming.sql.batchId": "5"}.get(name, "a1b2c3d4-e5f6-0000")
