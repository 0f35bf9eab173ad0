"""Chunks of a replay: everything once, in the order of each queue."""

from bisect import bisect_left
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmq.errors import UsageError
from halfmq.spark.jobs import state
from halfmq.spark.jobs.replay import (
    Settings,
    _check,
    _failed,
    _pinned,
    chunks_of_batches,
    chunks_of_queues,
    chunks_of_times,
    moment,
    run,
)
from halfmq.spark.jobs.settings import SparkSettings
from halfmq.spark.sink.columns import groups_of

TOPICS = {"url": "rocketmq://a:1", "topics": ("t",)}
QUEUES = st.dictionaries(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 3).map(str)),
    st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda pair: (pair[0], pair[0] + pair[1])),
)


@given(QUEUES, st.integers(1, 40))
def test_ranges_of_queues_follow_each_other(bounds: dict[tuple[str, str], tuple[int, int]], rows_max: int) -> None:
    chunks = chunks_of_queues(bounds, rows_max)
    for (topic, queue), (first, end) in bounds.items():
        at = first
        for chunk in chunks:
            low, high = chunk.queues[topic][queue]
            assert low == at <= high
            at = high
        assert not chunks or at == end
    assert sum(chunk.rows for chunk in chunks) == sum(end - first for first, end in bounds.values())
    # Rounding may add one message for each queue.
    assert all(chunk.rows <= rows_max + len(bounds) for chunk in chunks)


TIMES = st.dictionaries(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 3).map(str)),
    st.tuples(st.integers(0, 5), st.lists(st.integers(1, 12), max_size=30).map(sorted)),
)


@given(TIMES, st.integers(1, 20))
def test_what_became_visible_together_is_in_one_chunk(
    queues: dict[tuple[str, str], tuple[int, list[int]]], rows_max: int
) -> None:
    """A transaction has one time. Queues begin at some offset, and have messages of these times."""
    bounds = {name: (first, first + len(times)) for name, (first, times) in queues.items()}

    def before(time_ms: int) -> dict[tuple[str, str], int | None]:
        found = {name: first + bisect_left(times, time_ms) for name, (first, times) in queues.items()}
        return {name: None if at == bounds[name][1] else at for name, at in found.items()}

    chunks = chunks_of_times(bounds, rows_max, before)
    seen: list[set[int]] = []
    at = {name: first for name, (first, _) in bounds.items()}
    for chunk in chunks:
        seen.append(set())
        for (topic, queue), (first, times) in queues.items():
            low, high = chunk.queues[topic][queue]
            assert low == at[topic, queue] <= high
            at[topic, queue] = high
            seen[-1] |= set(times[low - first : high - first])
        assert chunk.rows == sum(high - low for one in chunk.queues.values() for low, high in one.values()) > 0
        assert chunk.rows <= rows_max or len(seen[-1]) == 1, "only one transaction may be larger"
    assert at == {name: end for name, (_, end) in bounds.items()}
    assert sum(map(len, seen)) == len(set().union(*seen)), "a time is in two chunks"


@given(st.lists(st.integers(0, 30)), st.integers(1, 40))
def test_batches_of_an_archive_stay_whole_and_in_order(rows: list[int], rows_max: int) -> None:
    batches = [([f"{number}-a", f"{number}-b"], count) for number, count in enumerate(rows)]
    chunks = chunks_of_batches(batches, rows_max)
    assert [file for chunk in chunks for file in chunk.files] == [file for files, _ in batches for file in files]
    assert all(chunk.rows <= rows_max or len(chunk.files) == 2 or chunk.rows == max(rows) for chunk in chunks)
    assert all(len(chunk.files) % 2 == 0 for chunk in chunks)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "--topics"),
        ({"archive": "a", "topics": ("t",)}, "--archive stands instead"),
        ({"archive": "a", "from_time": "yesterday"}, "--from-time 'yesterday' is not a time"),
        ({"archive": "a", "max_rows": 0}, "--max-rows"),
        ({"archive": "a", "to_options": {"URL": "rocketmq://b:1"}}, "--to-options URL cannot be set .*use --to-url"),
        ({"archive": "a", "to_options": {"txnversion": "7"}}, "--to-options txnversion cannot be set"),
        (TOPICS | {"options": {"startingOffsets": "earliest"}}, "startingOffsets cannot be set .*use --from-time"),
        (TOPICS | {"options": {"startingTimestamp": "5"}}, "startingTimestamp cannot be set .*use --from-time"),
        (
            TOPICS | {"options": {"endingoffsetsbytimestamp": "{}"}},
            "endingoffsetsbytimestamp cannot be set .*use --to-time",
        ),
        ({"archive": "a", "to_options": {"GUARANTEE": "atleastonce"}}, "a replay sends every message exactly once"),
    ],
)
def test_settings_that_do_not_belong_together(given: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        _check(Settings(to_url="u", state="s", **given))  # type: ignore[arg-type]


def test_time_without_a_zone_is_utc() -> None:
    assert moment("2026-11-24T08:00", "from_time") == moment("2026-11-24T09:00+01:00", "from_time")


def test_the_reason_of_a_failed_chunk_is_told_though_spark_begins_with_an_empty_line() -> None:
    error = ValueError("\n[PARSE_SYNTAX_ERROR] Syntax error at or near '='.\n== SQL ==\n=(\n")
    assert str(_failed(error, 0, 2)) == "chunk 1 of 2: [PARSE_SYNTAX_ERROR] Syntax error at or near '='."


def wrapped_error_of_a_queue() -> ValueError:
    """As Spark gives the sink's error: the job has no column that one could omit."""
    batch = pa.record_batch({"value": pa.array([b"a"]), "queue": pa.array([3], pa.int32())})
    with pytest.raises(UsageError, match="queue 3 does not exist") as caught:
        list(groups_of(batch, "t", lambda topic: 2))
    return ValueError(
        f'Job aborted.\n  File "a", line 1, in f\n    g()\nhalfmq.errors.UsageError: {caught.value}\n\tat x'
    )


def test_a_queue_that_the_target_lacks_is_told_with_the_remedy_of_the_job() -> None:
    text = str(_failed(wrapped_error_of_a_queue(), 0, 2))
    assert "topic t has write queues 0 to 1" in text
    assert "--spread" in text
    assert "another --state" in text, "the directory records that this replay keeps the numbers of the queues"
    assert "column" not in text


def test_a_replay_that_has_sent_messages_is_not_told_to_begin_again() -> None:
    text = str(_failed(wrapped_error_of_a_queue(), 1, 2))
    assert "more queues" in text
    assert "would be sent again" in text


def test_the_tags_that_were_selected_cannot_change(tmp_path: Path) -> None:
    def settings(tags: str) -> Settings:
        return Settings(url="rocketmq://a:1", topics=("T",), to_url="u", state=str(tmp_path), options={"tags": tags})

    file = tmp_path / "_replay.json"
    state.pin(file, _pinned(settings("b || a")))
    state.pin(file, _pinned(settings("a || b")))
    with pytest.raises(UsageError, match="tags"):
        state.pin(file, _pinned(settings("a")))


def test_an_archive_that_is_none_is_not_recorded(tmp_path: Path) -> None:
    settings = Settings(archive=str(tmp_path / "wrong"), to_url="u", state=str(tmp_path / "state"))
    with pytest.raises(UsageError, match="is not an archive"):
        run(settings, SparkSettings(), lambda text: None)
    assert not (tmp_path / "state" / "_replay.json").exists()
