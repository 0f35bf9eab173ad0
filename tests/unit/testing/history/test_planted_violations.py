"""Each kind of violation, planted alone into a history of a million events: the checker reports exactly that one, with its name.

The million events are read once, and their messages and transactions checked once, since no plant touches them. A forked process
for each plant continues from there: it reads the plant's file, checks it, and does the final checks on everything.
"""

import multiprocessing
import os
import subprocess
import sys
import time
from typing import Any

import msgspec
import pytest
from tests.support.histories import Mark, Options, Tiled, made, tiled
from tests.support.planted import KINDS, clean, planted, steps_across, steps_inside

from halfmq.testing.history import HistoryCheck, check_events
from halfmq.testing.history.messages import Messages
from halfmq.testing.history.order import Order
from halfmq.testing.history.reader import EventsSource, files_of
from halfmq.testing.history.report import (
    CHANGED,
    DUPLICATE,
    LOST,
    NOT_DURABLE,
    PHANTOM,
    REORDERED,
    STUCK,
    TORN,
    UNREQUESTED,
)
from halfmq.testing.history.transactions import Transactions

EVENTS = 1_000_000
TILE = Options(transactions=2_500, kills=2, topics=1, several=0.2)
#: Parallel processes.
WORKERS = 2


@pytest.fixture(scope="module")
def million(tmp_path_factory: pytest.TempPathFactory) -> Tiled:
    tile = made(1, TILE)
    return tiled(tile, EVENTS // len(tile.events) + 1, tmp_path_factory.mktemp("million"))


def places_for_plants(history: Tiled) -> dict[str, list[Mark]]:
    def inside(number: int, share: float) -> list[Mark]:
        return steps_inside(history.marks(number), history.restarts(number), share)

    middle = history.count // 2
    return {
        "start": inside(0, 0.0),
        "middle": inside(middle, 0.5),
        "end": inside(history.count - 1, 1.0),
        "across a restart": steps_across(history.marks(middle), history.restarts(middle)[0]),
    }


def test_each_kind_is_found_in_a_small_history_wherever_it_is_planted() -> None:
    history = made(5, Options(transactions=300, kills=2))
    places = {
        "start": steps_inside(history.marks, history.restarts, 0.0),
        "middle": steps_inside(history.marks, history.restarts, 0.5),
        "end": steps_inside(history.marks, history.restarts, 1.0),
        "across a restart": steps_across(history.marks, history.restarts[0]),
    }
    assert check_events(history.events).clean
    for kind, make in KINDS.items():
        for where, steps in places.items():
            report = check_events([*history.events, *planted(make, steps, history.end_us)])
            assert {kind for kind, count in report.counts.items() if count} == {kind}, (kind, where)
            assert {one.transaction for one in report.violations} <= {"planted/T", "planted/U"}, (kind, where)
            assert all(one.events for one in report.violations), (kind, where)


@pytest.mark.parametrize(
    ("judge", "method", "missed"),
    [
        (Transactions, "_changed", {CHANGED}),
        (Transactions, "_is_unrequested", {UNREQUESTED}),
        (Transactions, "_phantom", {PHANTOM}),
        (Transactions, "_missing", {LOST, TORN}),
        (Transactions, "_forgotten", {NOT_DURABLE}),
        (Transactions, "_stuck", {STUCK}),
        (Messages, "_one_place", {DUPLICATE}),
        (Order, "_note_late", {REORDERED}),
    ],
)
def test_each_check_is_needed_to_find_its_kind(
    judge: type, method: str, missed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If one check is disabled, its kind is no longer found, but every other one is."""
    history = made(5, Options(transactions=100))
    steps = steps_inside(history.marks, history.restarts, 0.5)
    monkeypatch.setattr(judge, method, lambda *_, **__: False)
    for kind, make in KINDS.items():
        report = check_events([*history.events, *planted(make, steps, history.end_us)])
        assert (report.counts[kind] == 0) == (kind in missed), kind


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_each_kind_alone_is_found_in_a_million_events(million: Tiled, capsys: pytest.CaptureFixture[str]) -> None:
    """At the start and at the end, or in the middle and across a restart. A clean plant gives no false alarm."""
    places = places_for_plants(million)
    # Two places for each kind; the small history above has all four.
    cases = [(kind, where) for n, kind in enumerate((*KINDS, "")) for where in [*places][n % 2 :: 2]]
    started = time.process_time()
    with HistoryCheck(sum(path.stat().st_size for path in million.paths), memory_bytes=4 << 30) as check:
        for file in files_of(million.paths):
            check.take(file)
        check.judge_collected()
        judged_s = time.process_time() - started
        fork = multiprocessing.get_context("fork")
        shares = [cases[number::WORKERS] for number in range(WORKERS)]
        answers = [fork.SimpleQueue() for _ in shares]
        helpers = [
            fork.Process(target=_judge_all, args=(check, million, places, share, answer), daemon=True)
            for share, answer in zip(shares, answers, strict=True)
        ]
        for helper in helpers:
            helper.start()
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for share, answer in zip(shares, answers, strict=True):
            for case in share:
                found[case] = msgspec.json.decode(answer.get())
        for helper in helpers:
            helper.join()
    for (kind, where), report in found.items():
        expected = {kind} if kind else set()
        assert {one for one, count in report["counts"].items() if count} == expected, (kind, where, report)
        assert set(report["transactions"]) <= {"planted/T", "planted/U"}, (kind, where, report)
        assert bool(report["transactions"]) == bool(kind), (kind, where)
        assert report["events"] > EVENTS
    rest = sorted(report["cpu_s"] for report in found.values())
    total = judged_s + rest[len(rest) // 2]
    with capsys.disabled():
        print(
            f"\n{million.events:,} events in {total:.1f} s of CPU ({million.events / total:,.0f} events/s); "
            f"{len(found)} plants, each alone among them"
        )


def _judge_all(check: HistoryCheck, million: Tiled, places: dict[str, list[Mark]], cases: Any, answer: Any) -> None:
    for kind, where in cases:
        child = os.fork()
        if child == 0:
            started = time.process_time()
            check.take(EventsSource(planted(KINDS.get(kind, clean), places[where], million.end_us)))
            report = check.report()
            answer.put(
                msgspec.json.encode(
                    {
                        "counts": report.counts,
                        "transactions": [one.transaction for one in report.violations],
                        "events": report.events,
                        "cpu_s": time.process_time() - started,
                    }
                )
            )
            os._exit(0)
        os.waitpid(child, 0)
    os._exit(0)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_a_million_events_are_checked_within_the_memory_budget(million: Tiled, capsys: Any) -> None:
    """The process grows by no more than its budget, and rows were moved to files."""
    budget = 48 << 20
    program = f"""
import re, sys
from pathlib import Path
import msgspec
from halfmq.testing.history import check_files
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10
before = peak()
paths = [Path(one) for one in sys.argv[1:]]
report = check_files(paths, memory_bytes={budget})
told = {{"clean": report.clean, "spilled": report.spilled_bytes, "grew": peak() - before, "events": report.events}}
print(msgspec.json.encode(told).decode())
"""
    ended = subprocess.run(
        [sys.executable, "-c", program, *map(str, million.paths)], capture_output=True, timeout=240, check=True
    )
    told = msgspec.json.decode(ended.stdout)
    with capsys.disabled():
        print(
            f"\n{told['events']:,} events, budget {budget:,} bytes: grew by {told['grew']:,}, {told['spilled']:,} in files"
        )
    assert told["clean"]
    assert told["spilled"] > budget
    assert told["grew"] <= budget
