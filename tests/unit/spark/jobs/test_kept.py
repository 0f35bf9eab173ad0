"""Settings beside the output of a job."""

from pathlib import Path

import pytest

from halfmq.errors import UsageError
from halfmq.spark.jobs import kept


def test_settings_are_kept_and_compared(tmp_path: Path) -> None:
    for _ in range(2):
        kept.keep(tmp_path / "out", "_job.json", {"topics": ("t",), "schema": None})
    with pytest.raises(UsageError, match=r"topics was \['t'\]"):
        kept.keep(tmp_path / "out", "_job.json", {"topics": ("u",), "schema": None})


def test_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="something else"):
        kept.keep(tmp_path, "_job.json", {})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    for content in (b"old and long", b"new"):
        kept.replace(tmp_path / "file", content)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"new"
