"""Brokers that a benchmark starts claim little of the test machine's disk."""

from pathlib import Path

import pytest

from halfmq.bench import measured_process
from halfmq.bench.measured_process import MeasuredProcess

SEGMENT_BYTES = 16 << 20


def with_small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default segment would be 1 GiB, and the next one is claimed with it."""
    started = measured_process.broker

    def broker(data: Path, *options: str, timeout_seconds: float = 60) -> MeasuredProcess:
        return started(data, "--segment-bytes", str(SEGMENT_BYTES), *options, timeout_seconds=timeout_seconds)

    monkeypatch.setattr(measured_process, "broker", broker)
