"""Makes brokers that a benchmark starts use little disk space."""

from pathlib import Path

import pytest

from halfmq.bench import measured_process
from halfmq.bench.measured_process import MeasuredProcess

SEGMENT_BYTES = 16 << 20


def with_small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default segment is 1 GiB, and two are preallocated."""
    started = measured_process.broker

    def broker(data: Path, *options: str, timeout_seconds: float = 60) -> MeasuredProcess:
        return started(data, "--segment-bytes", str(SEGMENT_BYTES), *options, timeout_seconds=timeout_seconds)

    monkeypatch.setattr(measured_process, "broker", broker)
