"""Processes that are measured: figures from /proc, an end by their id, and a clear error when they do not start."""

import sys
from pathlib import Path

import pytest

from halfmq.bench import measured_process
from halfmq.errors import EnvironmentFailed

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, which is Linux's")]


def test_cpu_and_memory_of_a_broker_are_read_and_it_ends() -> None:
    server = measured_process.baseline()
    try:
        assert server.anonymous_bytes() > 1 << 20
        assert server.cpu_seconds() > 0
    finally:
        server.stop()
    assert server.process.poll() is not None


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFailed, match="exited with status"):
        measured_process.broker(tmp_path / "file")
