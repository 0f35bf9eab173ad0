"""Every script of the matrix, what it reaches, and the proof that it can fail. More losses: ``python -m tests.crash_matrix``.

``make test`` tries a part of the crashes of each script, another part for each commit; ``make test-all`` all of them. A failure says
how to repeat it. ``HALFMQ_TEST_CRASH_STRIDE=1`` is the whole.
"""

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import pytest

from halfmq.store.consume_queue import ConsumeQueues
from halfmq.store.indexes import Indexes
from halfmq.store.store import Store
from halfmq.store.transaction_table import TransactionTable
from tests.crash_matrix.call_sites import call_sites
from tests.crash_matrix.matrix import (
    FIRST_NAME_LOST,
    KILL,
    LOSSES,
    NEWEST_NAME_KEPT,
    NOTHING_KEPT,
    WHOLE,
    Loss,
    Part,
    cases_of,
    go_through,
    letter_of,
    lost,
    random_loss,
    reopened,
)
from tests.crash_matrix.operations import SCRIPTS, SHARD, Script
from tests.crash_matrix.points import REST, Point, points_of
from tests.support.amount import amount, seed_of_commit
from tests.support.faulty_disk import FaultyDisk

#: No common factor with the number of losses.
STRIDE = 19
PART = Part(
    amount(STRIDE, WHOLE.stride, "HALFMQ_TEST_CRASH_STRIDE"),
    amount(seed_of_commit() % STRIDE, WHOLE.offset, "HALFMQ_TEST_CRASH_OFFSET"),
)
REPEAT = f"to repeat: HALFMQ_TEST_CRASH_STRIDE={PART.stride} HALFMQ_TEST_CRASH_OFFSET={PART.offset}\n"
#: Places that change the disk and that no script reaches, with the reason.
UNREACHED = {
    "open_files.py _sync_closed: file.sync": "only with more than 256 index files open; tests/unit/store/test_open_files.py",
    "recovery.py _write_again: segment.file.sync": "only with more than 128 segments since what was known durable; "
    "tests/unit/store/test_recovery.py",
    "checkpoint.py write_snapshot: file.write": "only in snapshots of more than a MiB, which end with the write that is "
    "reached; tests/unit/store/test_snapshot.py loses power at each step of one",
    **dict.fromkeys(
        (
            "backup.py write_manifest: file.write",
            "backup.py write_manifest: disk.sync_directory",
            "backup.py remove_segments: disk.remove",
            "backup.py remove_segments: disk.sync_directory",
        ),
        "of `halfmq backup`, in a directory of its own; tests/unit/cli/test_backup.py",
    ),
    **dict.fromkeys(
        ("whole_file.py make_durable: disk.make_directories", "whole_file.py make_durable: disk.sync_directory"),
        "of `halfmq backup` and `halfmq restore`; tests/scenarios/test_backup_power_loss.py",
    ),
}
#: B to G are damage that no crash leaves; P and Q need a snapshot that is damaged while the log is trimmed. If a script causes
#: one of those, its start is refused, which is a violation here.
CASES_OF_CRASHES = set("AHIJKLMNO")

BY_NAME = {script.name: script for script in SCRIPTS}


@cache
def enumerated() -> tuple[Point, ...]:
    """The points of all scripts; this takes seconds, so it runs once."""
    return tuple(point for script in SCRIPTS for point in points_of(script, thorough=False))


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_every_crash_keeps_the_promises(script: Script) -> None:
    tally = go_through(script, part=PART, thorough=False)
    assert not tally.violations, REPEAT + "\n".join(tally.violations[:20])
    operations = tally.operations[script.name]
    assert operations >= 4
    # Before and after each operation, with each loss; of a part its share.
    assert sum(tally.rows.values()) >= 2 * operations * len(LOSSES) // PART.stride
    assert sum(tally.runs.values()) >= operations // (2 * PART.stride)


@pytest.mark.slow
def test_a_part_has_every_kind_of_crash_of_every_script_and_all_parts_are_the_whole() -> None:
    for script in SCRIPTS:
        cases = list(cases_of(point for point in enumerated() if point.script is script))
        parts = [Part(STRIDE, offset).of(cases) for offset in range(STRIDE)]
        for part in parts:
            assert {point.kind for point, _ in part} == {point.kind for point, _ in cases}, script.name
            assert len(part) <= len(cases) // STRIDE + len({point.kind for point, _ in cases})
        assert {identity(case) for part in parts for case in part} == {identity(case) for case in cases}


def identity(case: tuple[Point, Loss]) -> tuple[int, Loss]:
    return id(case[0]), case[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "restart, torn tail, snapshot",
        *[
            pytest.param(name, marks=pytest.mark.thorough)
            for name in ("first start", "commit, copies from an older segment")
        ],
    ],
)
def test_a_crash_during_the_recovery_from_a_crash_keeps_the_promises(name: str) -> None:
    tally = go_through(BY_NAME[name], (KILL, NOTHING_KEPT), thorough=False, second_level=0.5)
    assert not tally.violations, "\n".join(tally.violations[:20])
    assert tally.second_level >= 15


@pytest.mark.slow
def test_every_place_in_the_store_that_changes_the_disk_is_reached() -> None:
    hits = {point.site for point in enumerated() if point.operation.kind != REST}
    assert None not in hits, "an operation that the store did not ask for"
    sites = call_sites()
    assert len(sites) > 50
    unlisted = {hit for hit in hits if hit is not None and not any(site.holds(hit) for site in sites)}
    assert not unlisted, "the list of call sites is not complete"
    unreached = {site.name for site in sites if not any(site.holds(hit) for hit in hits if hit is not None)}
    assert unreached == set(UNREACHED)


@pytest.mark.slow
def test_every_kind_of_disk_operation_is_covered() -> None:
    kinds = {point.operation.kind for point in enumerated()} - {REST}
    assert kinds == {
        "write",
        "sync",
        "allocate",
        "truncate",
        "create",
        "rename",
        "remove",
        "mkdir",
        "rmdir",
        "sync_directory",
    }


@pytest.mark.slow
@pytest.mark.thorough
def test_recoveries_reach_every_case_that_a_crash_can_leave() -> None:
    letters = {letter_of(point, loss) for point in enumerated()[::2] for loss in (KILL, NOTHING_KEPT, random_loss(1))}
    assert letters == CASES_OF_CRASHES


@pytest.mark.slow
@pytest.mark.parametrize("name", ["first checkpoint and snapshot", "next checkpoint and snapshot"])
def test_a_finished_checkpoint_is_used_whatever_is_lost(name: str) -> None:
    done = points_of(BY_NAME[name])[-1]
    newest = max(int(Path(file).stem) for file in done.disk.list(SHARD / "snapshots"))
    for loss in (*LOSSES, *(random_loss(seed) for seed in range(2, 30))):
        house = reopened(done, lost(done, loss))
        house.start()
        assert (house.letter, house.redo_from) == ("H", newest), loss


#: What a client is told in them must be durable.
ANSWERED = (
    "prepare, 1 message", "commit, same segment", "rollback", "plain messages", "half batches", "decision, same segment",
)  # fmt: skip


def found_first(scripts: Iterable[Script], part: Part, **bug: bool) -> list[str]:
    """The violations of the first script that has any."""
    return next(
        (found for script in scripts if (found := go_through(script, part=part, thorough=False, **bug).violations)), []
    )


def part_of_all_and_whole_of_each(names: Iterable[str]) -> list[object]:
    return [
        pytest.param(SCRIPTS, PART, id="a part"),
        *[pytest.param((BY_NAME[name],), WHOLE, id=name, marks=pytest.mark.thorough) for name in names],
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scripts", "part"), part_of_all_and_whole_of_each((*ANSWERED, "prepare in an empty store", "segment roll"))
)
def test_a_disk_that_does_not_sync_is_detected(scripts: Iterable[Script], part: Part) -> None:
    assert found_first(scripts, part, sync_is_a_lie=True), REPEAT


@pytest.mark.slow
@pytest.mark.parametrize(("scripts", "part"), part_of_all_and_whole_of_each(ANSWERED))
def test_replies_released_before_the_sync_are_detected(scripts: Iterable[Script], part: Part) -> None:
    violations = found_first(scripts, part, eager=True)
    assert violations, REPEAT
    assert not any(", kill " in violation for violation in violations), "a kill takes nothing that was written"


def _cuts_no_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionTable, "cut", lambda *_: None)


def _cuts_no_queues(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConsumeQueues, "cut", lambda *_: None)


def _rewrites_nothing_undecided(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Indexes, "rewrite_undecided", lambda *_: None)


def _withdraws_a_checkpoint_without_a_sync(patch: pytest.MonkeyPatch) -> None:
    def withdraw(store: Store) -> None:
        path = store._shard / "checkpoint"
        if store._disk.exists(path):
            store._disk.remove(path)
        store._slots = ()

    patch.setattr(Store, "_withdraw_checkpoint", withdraw)


def _begins_a_log_whose_name_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    real = FaultyDisk.sync_directory

    def sync_directory(disk: FaultyDisk, path: Path) -> None:
        if path.name != "log":
            real(disk, path)

    patch.setattr(FaultyDisk, "sync_directory", sync_directory)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("breaks", "name", "part", "losses"),
    [
        (_cuts_no_rows, "restart, indexes far ahead of the log", PART, LOSSES),
        (_cuts_no_queues, "restart, indexes far ahead of the log", PART, LOSSES),
        (_rewrites_nothing_undecided, "restart, snapshot", PART, LOSSES),
        # One point with one loss, which not every part has.
        (_withdraws_a_checkpoint_without_a_sync, "restart, queues gone", WHOLE, (FIRST_NAME_LOST,)),
        # Of the power losses of each run no other one finds it.
        (_begins_a_log_whose_name_is_not_synced, "first start", WHOLE, (NEWEST_NAME_KEPT,)),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_start_that_omits_a_step_is_detected(
    monkeypatch: pytest.MonkeyPatch,
    breaks: Callable[[pytest.MonkeyPatch], None],
    name: str,
    part: Part,
    losses: tuple[Loss, ...],
) -> None:
    breaks(monkeypatch)
    assert go_through(BY_NAME[name], losses, part=part, thorough=False).violations, REPEAT
