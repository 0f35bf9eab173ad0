"""The whole checker: clean histories give no false alarm, and splitting a history into files changes nothing."""

import gc
import random
from pathlib import Path

import msgspec
import pytest
from tests.support.histories import Options, made, numbered
from tests.support.planted import KINDS, planted, steps_inside

from halfmq.errors import UsageError
from halfmq.testing.history import HistoryCheck, Report, check_events, check_files, checker
from halfmq.testing.history.checker import MEMORY_BYTES_MIN
from halfmq.testing.history.events import Answered, AnyEvent, EndAsked, Fault, FileStarted
from halfmq.testing.history.reader import EventsSource
from halfmq.testing.history.report import CHECKS, At

_encode = msgspec.json.Encoder().encode


def looks(report: Report) -> list[int]:
    return [one.looked for one in report.looked]


def comparable(report: Report) -> list[tuple[object, ...]]:
    """The report except line numbers and duration."""
    violations = [
        (one.kind, one.promise, one.transaction, one.message, one.sentence, [event.text for event in one.events])
        for one in report.violations
    ]
    return [tuple(report.counts.items()), tuple(looks(report)), report.events, *violations]  # type: ignore[list-item]


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_a_thousand_clean_histories_give_no_false_alarm() -> None:
    """Small and varied histories. In total each check examined thousands of items."""
    total = [0] * len(CHECKS)
    for seed in range(1_000):
        history = made(seed)
        report = check_events(history.events)
        assert report.clean, f"seed {seed}: {report.violations[0].text()}\n{numbered(history.events)}"
        total = [one + two for one, two in zip(total, looks(report), strict=True)]
    assert min(total) > 300, total


def test_clean_histories_of_fresh_seeds_give_no_false_alarm() -> None:
    for seed in range(2_000, 2_040):
        report = check_events(made(seed).events)
        assert report.clean, f"seed {seed}: {report.violations[0].text()}"


def damaged(seed: int) -> list[AnyEvent]:
    """A history with a planted violation, and with some events missing."""
    history = made(seed, Options(transactions=60, kills=1, outbox=0.2))
    rng = random.Random(seed)
    make = rng.choice(list(KINDS.values()))
    events = [
        *history.events,
        *planted(make, steps_inside(history.marks, history.restarts, rng.random()), history.end_us),
    ]
    for missing in range(rng.randrange(4)):
        at = rng.randrange(len(history.events) - missing)  # none of the violation's
        if not isinstance(events[at], FileStarted | EndAsked):
            del events[at]
    return events


@pytest.mark.parametrize("seed", range(25))
def test_splitting_and_shuffling_the_files_changes_nothing(seed: int, tmp_path: Path) -> None:
    events = damaged(seed)
    rng = random.Random(seed)
    whole = tmp_path / "whole.jsonl"
    whole.write_bytes(b"".join(_encode(event) + b"\n" for event in events))
    expected = check_files([whole])
    assert not expected.clean
    began = [event for event in events if isinstance(event, FileStarted)]
    rest = [event for event in events if not isinstance(event, FileStarted)]
    rng.shuffle(rest)
    count = rng.randint(2, 9)
    paths = []
    for number in range(count):
        first = began if number == 0 else began[:1]
        lines = [*first, *rest[number::count]]
        paths.append(tmp_path / f"{number}.jsonl")
        paths[-1].write_bytes(b"".join(_encode(event) + b"\n" for event in lines))
    rng.shuffle(paths)
    split = check_files(paths)
    assert comparable(split)[0:2] == comparable(expected)[0:2]
    assert comparable(split)[3:] == comparable(expected)[3:]
    assert split.files == count


@pytest.mark.parametrize("seed", range(12))
def test_rows_in_the_database_give_the_same_result_as_rows_in_memory(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = damaged(seed)
    roomy = check_events(events)
    # Every test of the memory use finds it exceeded.
    monkeypatch.setattr(checker, "MEMORY_PER_BYTE", 1 << 30)
    monkeypatch.setattr(checker, "MADE_PER_BYTE", 1 << 30)
    monkeypatch.setattr(checker, "_GROUPS_AT_ONCE", 10)
    monkeypatch.setattr(EventsSource, "_AT_ONCE", 100)
    tight = check_events(events, memory_bytes=MEMORY_BYTES_MIN)
    assert tight.spilled_bytes > 0
    assert roomy.spilled_bytes == 0
    assert comparable(tight) == comparable(roomy)


def test_unanswered_one_way_requests_do_not_stay_in_memory() -> None:
    """More requests than may wait. A response that comes much later is still joined with its request."""
    events: list[AnyEvent] = [FileStarted(t_us=0, by="p")]
    events += [EndAsked(t_us=1, by="p", op=str(n), group="g", tx=str(n), verdict="COMMITTED") for n in range(5_000)]
    events += [Answered(t_us=2, by="p", op="0", outcome="ok"), Answered(t_us=3, by="p", op="0", outcome="unknown")]
    with HistoryCheck(1, memory_bytes=MEMORY_BYTES_MIN) as check:
        check.take(EventsSource(events[:4_000]))
        check.take(EventsSource(events[4_000:]))
        report = check.report()
    assert report.spilled_bytes > 0
    assert report.clean
    assert looks(report)[At.VALIDITY] == 1  # one verdict was reported
    assert "are in no file" not in " ".join(report.notes)


def test_a_self_contradictory_history_is_rejected() -> None:
    twice = [
        FileStarted(t_us=0, by="p"),
        EndAsked(t_us=1, by="p", op="1", group="g", tx="a", verdict="COMMITTED"),
        EndAsked(t_us=1, by="p", op="1", group="g", tx="b", verdict="COMMITTED"),
    ]
    with pytest.raises(UsageError, match=r"memory:3: operation '1' of p was requested before"):
        check_events(twice)
    early = [*twice[:2], Answered(t_us=0, by="p", op="1", outcome="ok")]
    with pytest.raises(UsageError, match="answered before it was requested"):
        check_events(early)
    with pytest.raises(UsageError, match="empty"):
        check_events([])


def test_notes_say_what_limits_a_report() -> None:
    report = check_events([FileStarted(t_us=0, by="p"), Answered(t_us=2, by="p", op="0", outcome="ok")])
    text = "\n".join(report.notes)
    for part in ("1 responses to requests that are in no file", "queue_read", "settled", "--log", "restarted"):
        assert part in text


def test_the_garbage_collection_setting_is_restored() -> None:
    assert gc.isenabled()
    check_events([FileStarted(t_us=0, by="p"), Fault(t_us=1, by="p", what="kill", whom="broker")])
    assert gc.isenabled()


def test_a_memory_budget_that_is_too_small_is_refused() -> None:
    with pytest.raises(UsageError, match="8,388,608"):
        HistoryCheck(1, memory_bytes=1_000)
