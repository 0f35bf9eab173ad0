"""The settings of a session, without starting one."""

import os
import sys
from pathlib import Path

import pytest

from halfmq.spark import session
from halfmq.spark.java import Java

NAMES = (
    "JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYSPARK_GATEWAY_PORT", "SPARK_SUBMIT_OPTS", "SPARK_HOME",
    "SPARK_CONF_DIR",
)  # fmt: skip


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what a session reads, and restored after it has written there."""
    monkeypatch.setattr(session, "find_java", lambda: Java(tmp_path, 17, "the test"))
    for name in NAMES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_the_builder_has_the_settings_and_the_environment(tmp_path: Path) -> None:
    settings = session.builder("a test")._options
    assert settings["spark.master"] == "local[*]"
    assert settings["spark.app.name"] == "a test"
    assert settings["spark.python.unix.domain.socket.enabled"] == "true"
    assert settings["spark.sql.streaming.checkpointFileManagerClass"].endswith("FileSystemBasedCheckpointFileManager")
    assert os.environ["JAVA_HOME"] == str(tmp_path)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_a_submitted_master_is_kept_and_a_given_one_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert "spark.master" not in session.builder("a test")._options
    assert session.builder("a test", "spark://h:7077")._options["spark.master"] == "spark://h:7077"


def test_a_python_of_the_cluster_is_that_of_a_discovered_source_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/spark-env/bin/python")
    session.builder("a test")
    assert os.environ["PYSPARK_PYTHON"] == os.environ["PYSPARK_DRIVER_PYTHON"] == "/opt/spark-env/bin/python"


def test_spark_logs_as_an_installation_or_the_user_says_and_else_without_what_it_says_at_each_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def arguments(given: str) -> str:
        monkeypatch.setenv("SPARK_SUBMIT_OPTS", given)
        session.builder("a test")
        return os.environ["SPARK_SUBMIT_OPTS"]

    file = Path(session.__file__).with_name("log4j2.properties")
    assert file.is_file()
    assert arguments("-Dmine=1") == f"-Dlog4j2.configurationFile={file.as_uri()} -Dmine=1"
    assert arguments("-Dlog4j2.configurationFile=mine") == "-Dlog4j2.configurationFile=mine"
    monkeypatch.setenv("SPARK_CONF_DIR", "/etc/spark")
    assert arguments("-Dmine=1") == "-Dmine=1"
