"""The settings of a session, without starting one."""

import os
import sys
from pathlib import Path

import pytest

from halfmq.spark import session
from halfmq.spark.java import Java


def test_the_builder_has_the_settings_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "find_java", lambda: Java(tmp_path, 17, "the test"))
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    made = session.builder("a test")
    settings = made._options
    assert settings["spark.master"] == "local[*]"
    assert settings["spark.app.name"] == "a test"
    assert settings["spark.python.unix.domain.socket.enabled"] == "true"
    assert settings["spark.sql.streaming.checkpointFileManagerClass"].endswith("FileSystemBasedCheckpointFileManager")
    assert os.environ["JAVA_HOME"] == str(tmp_path)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
