"""Spark's checkpoint: the digest of the input of a batch, and that it is on the disk before the decision."""

import os
from pathlib import Path

import pytest

from halfmq.errors import EnvironmentFailed, UsageError
from halfmq.spark.sink import checkpoint
from halfmq.spark.sink.checkpoint import Checkpoint, digest_of


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "c"
    (made / "offsets").mkdir(parents=True)
    (made / "metadata").write_text('{"id":"q-1"}')
    (made / "offsets" / "2").write_text("v1\n{}\nbefore\n-")
    write(made, "one", "two")
    return made


def write(directory: Path, *sources: str, times: str = "{}") -> None:
    (directory / "offsets" / "3").write_text("\n".join(["v1", times, *sources]))


def test_digest_is_of_the_lines_of_the_sources(directory: Path) -> None:
    made = Checkpoint(str(directory))
    digest = made.secure(3).digest
    assert len(digest) == 16
    write(directory, "one", "two", times='{"batchTimestampMs":5}')
    assert made.secure(3).digest == digest
    for sources in (("one", "three"), ("one",), ("two", "one"), ("onetwo",)):
        write(directory, *sources)
        assert made.secure(3).digest != digest


def test_digests_of_texts_keep_their_boundaries() -> None:
    assert len({digest_of("ab", "c"), digest_of("a", "bc"), digest_of("abc"), digest_of("abc", "")}) == 4


def test_files_and_directories_are_synced(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def sync(number: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{number}"))
        real(number)

    monkeypatch.setattr(checkpoint.os, "fsync", sync)
    write(directory, '{"logOffset":1}', "two")
    log = directory / "sources" / "0"
    log.mkdir(parents=True)
    for number in (0, 1):
        (log / str(number)).write_text(f'v1\n{{"path":"file:///f","timestamp":5,"batchId":{number}}}')
    (directory / "offsets" / "2").write_text('v1\n{}\n{"logOffset":0}\n-')
    Checkpoint(str(directory)).secure(3)
    there = ["sources/0/1", "sources/0", "sources", "offsets/2", "offsets/3", "metadata", "offsets"]
    # A file before the directory that names it.
    assert synced == [*(str(directory / name) for name in there), str(directory), str(directory.parent)]


def test_sync_that_fails_prevents_the_decision(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sync(number: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(checkpoint.os, "fsync", sync)
    with pytest.raises(EnvironmentFailed, match="cannot be synced"):
        Checkpoint(str(directory)).secure(3)


def test_incomplete_and_missing_files(directory: Path) -> None:
    made = Checkpoint(str(directory))
    with pytest.raises(EnvironmentFailed, match="cannot be read"):
        made.secure(4)
    write(directory)
    with pytest.raises(EnvironmentFailed, match="incomplete: it has 2 lines"):
        made.secure(3)
    assert made.query_id() == "q-1"
    for text in ("", "[]", "{}"):
        (directory / "metadata").write_text(text)
        with pytest.raises(EnvironmentFailed, match="does not contain the id"):
            made.query_id()


@pytest.mark.parametrize("location", ["/a/c", "file:/a/c", "file:///a/c", "file://localhost/a/c", "FILE:/a/c"])
def test_local_locations(location: str) -> None:
    assert Checkpoint(location).directory == Path("/a/c")


@pytest.mark.parametrize("location", ["hdfs://h/a", "s3a://b/c", "file://other/c", "dbfs:/a"])
def test_other_locations_are_refused(location: str) -> None:
    with pytest.raises(UsageError, match="not a directory of the driver's machine"):
        Checkpoint(location)


def test_relative_location_is_of_the_working_directory() -> None:
    assert Checkpoint("c").directory == Path.cwd() / "c"
