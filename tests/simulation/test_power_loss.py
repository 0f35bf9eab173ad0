"""The promises over many power losses, and the proof that the look at them can fail."""

import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from tests.simulation.power_loss import run_seeds

pytestmark = pytest.mark.slow

SEEDS = int(os.environ.get("HALFMQ_POWER_LOSS_SEEDS", "2000"))
FIRST = int(os.environ.get("HALFMQ_POWER_LOSS_FIRST", "1"))
_STEP = 50


@pytest.mark.timeout(1800)
def test_the_promises_hold_on_every_seed() -> None:
    ranges = [range(first, min(first + _STEP, FIRST + SEEDS)) for first in range(FIRST, FIRST + SEEDS, _STEP)]
    total: Counter[str] = Counter()
    violations: list[str] = []
    with ProcessPoolExecutor(os.cpu_count() or 2, mp_context=get_context("spawn")) as pool:
        for counts, found in pool.map(run_seeds, ranges):
            total += counts
            violations += found
    print(dict(total))
    assert not violations, "\n".join(violations[:20])
    assert total["seeds"] == SEEDS
    # Each kind of look must have had something to look at.
    for what in ("verdicts", "halves", "plains", "pulled", "recoveries_compared", "checks", "half_after_settlement"):
        assert total[what] > SEEDS // 20, f"{what}: {total[what]} in {SEEDS} seeds"
    for what in ("cut_in_operation", "cut_in_recovery"):
        assert total[what] > SEEDS // 5, f"{what}: {total[what]} in {SEEDS} seeds"


@pytest.mark.parametrize("breakage", ["sync", "reply"])
def test_a_disk_that_does_not_sync_and_a_reply_before_the_sync_are_caught(breakage: str) -> None:
    _, violations = run_seeds(range(1, 21), breakage)
    assert len(violations) >= 3, f"with {breakage!r} broken only {violations}"
