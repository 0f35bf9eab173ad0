"""Whole histories: a few fixed seeds each time, new ones as time allows, and the proof that the simulation can fail."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.run import run_seed
from tests.simulation.swarm import draw

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("seed", range(1, 9))
def test_the_promises_hold(seed: int) -> None:
    result = run_seed(seed)
    assert not result.violation, "\n".join([*result.story, result.violation])
    assert result.events > 50


@pytest.mark.parametrize("seed", range(1, 4))
def test_the_promises_hold_when_most_transactions_stay_undecided_and_trims_copy_them(seed: int) -> None:
    result = run_seed(seed, profile="crowded")
    assert not result.violation, "\n".join([*result.story, result.violation])
    assert result.counts["look retention"] > 5


def test_seeds_of_the_record_are_not_crowded_and_some_later_ones_are() -> None:
    assert not any(draw(seed).looked_at_max for seed in range(1, 202_801, 97))
    assert 20 < sum(draw(seed).looked_at_max > 0 for seed in range(202_801, 203_801)) < 150


def test_the_promises_hold_when_queries_write_half_batches_and_segments_are_copied_tied_and_trimmed() -> None:
    counts: Counter[str] = Counter()
    for seed in range(1, 9):
        result = run_seed(seed, profile="queries")
        assert not result.violation, "\n".join([*result.story, result.violation])
        counts.update(result.counts)
    for what in (
        "look decision", "look decision repeated", "look conflict", "look missing", "look decision of a copy",
        "look decision across segments", "look decision with losers", "look decision too old", "look retention",
        "look delayed half batch", "look delayed message of a half batch",
        "query died while it decided", "look order of an attempt", "look decision in the state", "look after a start",
    ):  # fmt: skip
        assert counts[what] > 0, what


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(11_457_060_143_573, id="a response is under way at a power loss without durability"),
        pytest.param(3_146_717_855_801, id="the end of a transaction of half batches is lost without durability"),
    ],
)
def test_the_promises_hold_for_a_seed_that_once_misjudged_a_correct_broker(seed: int) -> None:
    result = run_seed(seed)
    assert not result.violation, "\n".join([*result.story, result.violation])


def test_seeds_of_the_record_have_no_queries_and_some_later_ones_have() -> None:
    assert not any(draw(seed).queries for seed in range(1, 252_801, 97))
    assert 150 < sum(draw(seed).queries > 0 for seed in range(252_801, 253_801)) < 350


def test_the_promises_hold_with_coordinators_fences_and_verdicts_of_people() -> None:
    counts: Counter[str] = Counter()
    for seed in (2, 9, 10, 12):
        result = run_seed(seed, profile="coordinators")
        assert not result.violation, "\n".join([*result.story, result.violation])
        counts.update(result.counts)
    for what in (
        "knob coordinator took over", "knob coordinator recovered a transaction", "look coordinator superseded",
        "checker 2 unrequested verdict: requests of coordinators that were not refused, by their epochs",
        "look fence nobody prepared ROLLED_BACK", "look fence known COMMITTED", "look fence known UNDECIDED", "look half after a fence",
        "look fences of the log", "look verdict compared", "look contradiction found", "look finding",
        "knob finding forgotten, answer 0",
    ):  # fmt: skip
        assert counts[what] > 0, what


def test_seeds_of_the_record_have_no_coordinators_and_some_later_ones_have() -> None:
    assert not any(draw(seed).coordinators or draw(seed).fencers for seed in range(1, 255_401, 97))
    assert 150 < sum(draw(seed).coordinators > 0 for seed in range(255_401, 256_401)) < 350


@pytest.mark.parametrize("breakage", ["sync", "reply", "verdict"])
def test_planted_bugs_are_found(breakage: str) -> None:
    for seed in range(1, 41):
        if run_seed(seed, breakage).violation:
            return
    pytest.fail(f"{breakage} is broken, and 40 seeds do not see it")


@pytest.mark.slow
def test_a_seed_does_the_same_in_every_process() -> None:
    hashes = set()
    for hash_seed in ("0", "1", "4711"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--seed", "5"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        (line,) = [line for line in done.stdout.splitlines() if "trace" in line]
        hashes.add(line)
    assert len(hashes) == 1, hashes
