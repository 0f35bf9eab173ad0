"""Small files of jobs, and the lock of a directory."""

import subprocess
import sys
from pathlib import Path

import pytest

from halfmq.errors import EnvironmentFailed, UsageError
from halfmq.spark.jobs import state


def test_settings_are_pinned_and_compared(tmp_path: Path) -> None:
    path = tmp_path / "_job.json"
    for _ in range(2):
        state.pin(path, {"topics": ["t"], "schema": None})
    with pytest.raises(UsageError, match=r"begun with topics = \['t'\], this is topics = \['u'\]"):
        state.pin(path, {"topics": ["u"], "schema": None})
    with pytest.raises(UsageError, match="schema = nothing, this is schema = id long"):
        state.check(path, {"schema": "id long"})
    state.check(tmp_path / "none", {"schema": "id long"})
    assert state.read(path) == {"topics": ["t"], "schema": None}


def test_content_is_replaced_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "_file.new").write_text("of a crash")
    for content in ({"long": "x" * 100}, {"short": 1}):
        state.write(tmp_path / "file", content)
        assert state.read(tmp_path / "file") == content
    assert state.read(tmp_path / "none") is None
    (tmp_path / "file").write_text("{")
    with pytest.raises(EnvironmentFailed, match="cannot be read"):
        state.read(tmp_path / "file")
    with pytest.raises(EnvironmentFailed, match="cannot write"):
        state.write(tmp_path / "file" / "below", {})


def test_one_process_at_a_time(tmp_path: Path) -> None:
    lock = tmp_path / "new" / "_lock"
    program = f"""
from pathlib import Path
from halfmq.spark.jobs import state
with state.claimed(Path({str(lock)!r})):
    pass
"""

    def other() -> str:
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
        return ran.stderr

    with state.claimed(lock):
        assert "another job runs on" in other()
    assert other() == ""
