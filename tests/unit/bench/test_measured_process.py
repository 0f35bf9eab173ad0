"""Processes that are measured: figures from /proc, an end by their id, and a clear error when they do not start."""

import sys
import tempfile
from pathlib import Path

import pytest

from halfmq.bench import measured_process
from halfmq.errors import EnvironmentFailed

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, which is Linux's")]


@pytest.mark.parametrize("which", ["baseline", "broker"])
def test_cpu_and_memory_are_read_and_the_process_ends_and_leaves_nothing(
    which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    server = measured_process.baseline() if which == "baseline" else measured_process.broker(tmp_path / "data")
    try:
        assert server.anonymous_bytes() > 1 << 20
        assert server.cpu_seconds() > 0
    finally:
        server.stop()
    assert server.process.poll() is not None
    assert list(temporary.iterdir()) == []


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFailed, match="exited with status"):
        measured_process.broker(tmp_path / "file")
