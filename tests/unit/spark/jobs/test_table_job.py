"""Settings that the rows of a table depend on cannot change. Whole runs: tests/spark/jobs/test_ingest.py."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from halfmq.errors import EnvironmentFailed, UsageError
from halfmq.spark.jobs import archive, stream, table_job
from halfmq.spark.jobs.settings import SparkSettings
from halfmq.spark.jobs.source import reader_options
from halfmq.spark.jobs.table_job import TableSettings
from halfmq.spark.options import parse_options


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "run", lambda *given, **named: None)


def run(output: Path, **given: Any) -> None:
    """A run without rows, as ``ingest`` and ``archive`` start it."""
    values = {"url": "rocketmq://127.0.0.1:1", "topics": ("ta", "tb"), **given}
    settings = TableSettings(output=str(output), **values)
    with table_job.opened("ingest", settings, {}):
        table_job.run(MagicMock(), "ingest", settings, {}, [], MagicMock(), print)


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ({}, {"topics": ("ta",)}, r"begun with topics = \['ta', 'tb'\], this is topics = \['ta'\]"),
        ({}, {"topics": (), "pattern": "t."}, r"begun with topics = \['ta', 'tb'\], this is topics = nothing"),
        ({"topics": (), "pattern": "t."}, {"topics": (), "pattern": "ta"}, "pattern = t., this is pattern = ta"),
        ({}, {"options": {"tags": "a"}}, r"tags = nothing, this is tags = \['a'\]"),
        ({"options": {"tags": "a||b"}}, {"options": {"Tags": "a"}}, r"tags = \['a', 'b'\], this is tags = \['a'\]"),
        ({}, {"options": {"includeHeaders": "true"}}, "headers = False, this is headers = True"),
    ],
)
def test_what_selects_rows_cannot_change(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any], text: str
) -> None:
    run(tmp_path, **first)
    with pytest.raises(UsageError, match=text):
        run(tmp_path, **second)
    run(tmp_path, **first)


@pytest.mark.parametrize(
    "second",
    [
        {"topics": ("tb", "ta")},
        {"topics": ("tb", "ta", "tb")},
        {"url": "rocketmq://127.0.0.1:2"},
        {"url": None, "path": "/data"},
        {
            "options": {
                "tags": '["b","a"]',
                "failOnDataLoss": "false",
                "brokerTimeout": "5s",
                "startingOffsets": "latest",
            }
        },
        {"max_rows": 5, "follow": True, "trigger": 1.0},
    ],
)
def test_what_does_not_select_rows_may_change(tmp_path: Path, second: dict[str, Any]) -> None:
    tags = {"options": {"tags": "a || b"}}
    run(tmp_path, **tags)
    run(tmp_path, **tags | second)


@pytest.mark.parametrize("option", ["group", "publishposition", "HOLD"])
def test_options_do_not_replace_the_hold_of_an_archive(tmp_path: Path, option: str) -> None:
    settings = archive.Settings(
        url="rocketmq://127.0.0.1:1", topics=("t",), output=str(tmp_path), hold="g", options={option: "false"}
    )
    with pytest.raises(UsageError, match=f"--options {option} cannot be set .*use --hold"):
        archive.run(settings, SparkSettings(), print)


def test_a_batch_has_a_limit_of_rows_and_one_of_bytes() -> None:
    settings = TableSettings(url="rocketmq://127.0.0.1:1", topics=("t",), output="o", max_rows=5)
    found = parse_options(reader_options(settings, ("value",), **table_job.stream_options(settings)))
    assert (found.max_offsets_per_trigger, found.max_bytes_per_trigger) == (5, 1 << 30)


@pytest.mark.parametrize("left", [(), ("0",)])
def test_a_checkpoint_without_the_offsets_of_its_last_batch_is_refused_before_spark_starts(
    tmp_path: Path, left: tuple[str, ...]
) -> None:
    run(tmp_path)
    checkpoint = tmp_path / "_checkpoint"
    for name in ("offsets", "commits"):
        (checkpoint / name).mkdir(parents=True)
        for batch in ("0", "1", ".1.crc"):
            (checkpoint / name / batch).touch()
    (checkpoint / "metadata").touch()
    run(tmp_path)
    for path in (checkpoint / "offsets").iterdir():
        if path.name not in left:
            path.unlink()
    if not left:
        (checkpoint / "offsets").rmdir()
    with pytest.raises(EnvironmentFailed, match=r"damaged: batch 1 is over, but its offsets are gone .*restore"):
        run(tmp_path)


def test_a_batch_that_was_begun_and_not_ended_is_no_damage(tmp_path: Path) -> None:
    run(tmp_path)
    (tmp_path / "_checkpoint" / "offsets").mkdir(parents=True)
    (tmp_path / "_checkpoint" / "offsets" / "0").touch()
    run(tmp_path)


@pytest.mark.parametrize("size", ["0", "-1", "abc", "1.5m"])
def test_a_wrong_size_is_refused_in_the_name_of_the_setting(size: str) -> None:
    settings = TableSettings(url="rocketmq://127.0.0.1:1", topics=("t",), output="o", max_bytes=size)
    with pytest.raises(UsageError, match=f"--max-bytes is '{size}'"):
        table_job.stream_options(settings)


def test_input_of_a_batch_is_noted_once_and_compared(tmp_path: Path) -> None:
    """The tables know a batch by its number only."""
    path = tmp_path / "_inputs.json"
    for batch in range(table_job._INPUTS_MAX + 3):
        for _ in range(2):
            table_job.remember_input(path, batch, [b"input %d" % batch])
    noted = json.loads(path.read_text())
    assert (len(noted), min(map(int, noted))) == (table_job._INPUTS_MAX, 3)
    for batch, digest in ((5, b"other"), (2, b"input 2")):
        with pytest.raises(EnvironmentFailed, match=f"batch {batch} of .* was written with other input"):
            table_job.remember_input(path, batch, [digest])
    table_job.remember_input(path, 5, [b"likelier by now", b"input 5"])
    assert json.loads(path.read_text()) == noted
