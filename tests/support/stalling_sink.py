"""The sink of ``format("halfmq")`` that stops or fails at one moment, which a test kills the driver in.

A file ``moment`` beside the checkpoint directory says which: ``WHERE BATCH``, WHERE one of the constants below. The sink
creates ``stalled`` there when the moment comes, and goes on once ``go`` exists.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType
from pyspark.taskcontext import TaskContext

from halfmq.spark import HalfmqDataSource
from halfmq.spark.sink.writer import HalfmqStreamWriter
from tests.support.waiting import wait_until

BEFORE_COMMIT = "before-commit"
AFTER_COMMIT = "after-commit"
#: In one task, when it has sent some rows and not all.
IN_WRITE = "in-write"
KILL_FIRST_WORKER = "kill-first-worker"
RAISE_IN_WRITE = "raise-in-write"
RAISE_AFTER_COMMIT = "raise-after-commit"
#: Who stalls longer than any test is what a killed test has left behind.
_STALLS_MAX_S = 900.0


class StallingSource(HalfmqDataSource):
    @classmethod
    def name(cls) -> str:
        return "halfmq_stalling"

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802
        return StallingWriter(self._given, schema, overwrite)


class StallingWriter(HalfmqStreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        batch = int(context.getLocalProperty("streaming.sql.batchId") or -1)
        return super().write(self._interrupted(iterator, batch, context.partitionId(), context.attemptNumber()))

    def _interrupted(
        self, iterator: Iterator[pa.RecordBatch], batch: int, partition: int, attempt: int
    ) -> Iterator[pa.RecordBatch]:
        for number, rows in enumerate(iterator):
            # The sink sends the rows of a batch of Arrow when the next one comes, if they fill a half batch.
            if number == 2 and partition == 0:
                if self._is(IN_WRITE, batch):
                    self._stall()
                if self._is(RAISE_IN_WRITE, batch):
                    self._stalled()
                    raise RuntimeError("as the test wants it")
                if self._is(KILL_FIRST_WORKER, batch) and attempt == 0:
                    self._stalled()
                    os.kill(os.getpid(), signal.SIGKILL)
            yield rows

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if self._is(BEFORE_COMMIT, batchId):
            self._stall()
        super().commit(messages, batchId)
        if self._is(AFTER_COMMIT, batchId):
            self._stall()
        if self._is(RAISE_AFTER_COMMIT, batchId):
            self._stalled()
            raise RuntimeError("as the test wants it")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        (self._directory / f"aborted-{batchId}").touch()
        super().abort(messages, batchId)

    @property
    def _directory(self) -> Path:
        return Path(self._options.checkpoint).parent

    def _is(self, where: str, batch: int) -> bool:
        moment = self._directory / "moment"
        return moment.exists() and moment.read_text() == f"{where} {batch}"

    def _stalled(self) -> None:
        (self._directory / "stalled").touch()

    def _stall(self) -> None:
        self._stalled()
        wait_until((self._directory / "go").exists, "permission to go on", _STALLS_MAX_S)
