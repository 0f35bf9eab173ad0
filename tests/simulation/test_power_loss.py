"""The promises over many power losses, and the proof that the look at them can fail."""

import os

import pytest

from tests.simulation.power_loss import run_seeds

pytestmark = pytest.mark.slow

SEEDS = int(os.environ.get("HALFMQ_POWER_LOSS_SEEDS", "1000"))
FIRST = int(os.environ.get("HALFMQ_POWER_LOSS_FIRST", "1"))
#: Seeds of one test: whichever worker is free takes the next ones.
STEP = 100
RANGES = [range(first, min(first + STEP, FIRST + SEEDS)) for first in range(FIRST, FIRST + SEEDS, STEP)]


def test_all_seeds_are_run() -> None:
    assert sum(len(seeds) for seeds in RANGES) == SEEDS > 0


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seeds", RANGES, ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
def test_the_promises_hold_on_every_seed(seeds: range) -> None:
    counts, violations = run_seeds(seeds)
    print(dict(counts))
    assert not violations, "\n".join(violations[:20])
    assert counts["seeds"] == len(seeds)
    # Each kind of look must have had something to look at.
    for what in ("verdicts", "halves", "plains", "pulled", "recoveries_compared", "checks", "half_after_settlement"):
        assert counts[what] > len(seeds) // 20, f"{what}: {counts[what]} in {len(seeds)} seeds"
    for what in ("cut_in_operation", "cut_in_recovery"):
        assert counts[what] > len(seeds) // 5, f"{what}: {counts[what]} in {len(seeds)} seeds"


@pytest.mark.parametrize("breakage", ["sync", "reply"])
def test_a_disk_that_does_not_sync_and_a_reply_before_the_sync_are_caught(breakage: str) -> None:
    _, violations = run_seeds(range(1, 21), breakage)
    assert len(violations) >= 3, f"with {breakage!r} broken only {violations}"
