"""Whole histories with power losses, checked after each start, and the proof that these checks can fail."""

from collections import Counter

import pytest

from tests.simulation.run import run_seed
from tests.support.amount import amount, seed_of_commit

pytestmark = pytest.mark.slow

SEEDS = amount(50, 500, "HALFMQ_TEST_POWER_LOSS_SEEDS")
FIRST = amount(1 + seed_of_commit(), 1 + seed_of_commit(), "HALFMQ_TEST_POWER_LOSS_FIRST")
#: Number of seeds in one test; the next free worker takes the next ones.
STEP = 50
RANGES = [range(first, min(first + STEP, FIRST + SEEDS)) for first in range(FIRST, FIRST + SEEDS, STEP)]
#: Minimum of what a seed examines or does on average.
EXAMINED = {
    "look after a start": 3.0,
    "look recovery before a start": 0.5,
    "look undecided after a start": 1.0,
    "look all or none after a start": 10.0,
    "look durable plain after a start": 10.0,
    "look order after a start": 10.0,
    "look agreement": 10.0,
    "look half": 10.0,
    "look plain": 5.0,
    "look half after verdict": 1.0,
    "look check sent": 3.0,
    "fault power_in_step": 1.0,
    "crash while starting": 0.2,
    "only the newest name survives": 0.5,
}


def test_all_seeds_are_run() -> None:
    assert sum(len(seeds) for seeds in RANGES) == SEEDS > 0


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seeds", RANGES, ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
def test_the_promises_hold_after_each_power_loss(seeds: range) -> None:
    counts: Counter[str] = Counter()
    violations = []
    for seed in seeds:
        result = run_seed(seed, profile="power_loss")
        counts += result.counts
        if result.violation:
            violations.append(result.violation)
    print(dict(counts))
    assert not violations, "\n".join(violations[:20])
    few = {name: counts[name] for name, least in EXAMINED.items() if counts[name] < least * len(seeds)}
    assert not few or len(seeds) < STEP, few
    assert counts["look after a start with a trimmed log"] > 0 or len(seeds) < STEP


@pytest.mark.parametrize("breakage", ["sync", "reply"])
def test_a_disk_that_does_not_sync_and_a_reply_before_the_sync_are_detected(breakage: str) -> None:
    violations = [seed for seed in range(1, 21) if run_seed(seed, breakage, profile="power_loss").violation]
    assert len(violations) >= 3, f"with {breakage!r} broken only {violations}"
