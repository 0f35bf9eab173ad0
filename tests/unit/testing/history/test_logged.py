"""The log of a real store as events, which the checker compares with acknowledgements."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.sample_store import sample_store

from halfmq.errors import UsageError
from halfmq.runtime.disk import RealDisk
from halfmq.store.dump import KIND_OF
from halfmq.testing.history import check_files
from halfmq.testing.history import logged as logged
from halfmq.testing.history.events import FileStarted, Logged
from halfmq.testing.history.logged import log_events, log_source, write_log


def test_records_contain_their_messages_topics_and_verdicts(tmp_path: Path) -> None:
    sample_store(tmp_path)
    first, *records = log_events(RealDisk(), tmp_path)
    assert isinstance(first, FileStarted)
    logged = [record for record in records if isinstance(record, Logged)]
    assert [record.offset for record in logged] == sorted(record.offset for record in logged)
    halves = {record.offset: record for record in logged if record.kind in ("half", "copy")}
    commits = [record for record in logged if record.kind == "commit"]
    assert halves
    assert commits
    for commit in commits:
        for topic, queue, _, half in commit.shown:
            assert (halves[half].topic, halves[half].queue, halves[half].tx) == (topic, queue, commit.tx)
        assert commit.decided_by in ("application", "check", "marker", "operator", "policy")
    messages = [record for record in logged if record.kind == "message"]
    assert all(record.message and record.queue_offset >= 0 for record in messages)


def test_a_log_without_recorded_clients_gives_violations(tmp_path: Path) -> None:
    """Nobody sent its plain messages, and nobody decided its verdicts."""
    sample_store(tmp_path / "store")
    path = write_log(RealDisk(), tmp_path / "store", tmp_path / "log.jsonl")
    report = check_files([path])
    verdicts = sum(1 for event in log_events(RealDisk(), tmp_path / "store") if getattr(event, "kind", "") in ("commit", "rollback"))  # fmt: skip
    assert report.counts["unrequested verdict"] == verdicts > 0
    counts: Counter[str] = Counter()
    list(log_events(RealDisk(), tmp_path / "store", counts=counts))
    said = sum(count for name, count in counts.items() if name.startswith("verdict by "))
    assert counts["committed"] + counts["rolled_back"] == said == verdicts
    assert report.counts["phantom"] > 0


def test_violations_in_a_log_name_the_store_and_the_log_offset(tmp_path: Path) -> None:
    store = tmp_path / "store"
    sample_store(store)
    report = check_files([], logs=[log_source(RealDisk(), store, tmp_path / "log.jsonl")])
    offsets = {event.offset for event in log_events(RealDisk(), store) if isinstance(event, Logged)}
    told = [event for violation in report.violations for event in violation.events]
    assert {event.file for event in told} == {str(store)}
    assert {event.log_offset for event in told} <= offsets


@pytest.mark.parametrize("kind", [kind for kind in KIND_OF.values() if kind not in ("message", "half", "copied_half")])
def test_each_kind_of_record_has_its_event(kind: str) -> None:
    """Red for a kind that was added to the log only."""
    record = SimpleNamespace(group="", tx_id="", decided_by=0, refs=(), log_start=0)
    assert logged._fields(kind, record, None, {}, logged._HalfBatches())["kind"]


def test_a_directory_without_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no store"):
        list(log_events(RealDisk(), tmp_path))
