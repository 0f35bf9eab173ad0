"""The benchmark of one large batch, with a small one: it finds what it looks for, and its figures are there."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.bench import large_batch
from tests.bench.large_batch import Timed

pytestmark = [pytest.mark.spark, pytest.mark.slow]
ROWS = 5_000


@pytest.mark.thorough
def test_rows_of_one_decision_are_counted_and_every_wait_is_measured(spark: Any, tmp_path: Path) -> None:
    found = json.loads(json.dumps(large_batch.measure(spark, tmp_path, ROWS, 100, 64 << 20)))
    assert found["checked"] == {"rows": ROWS, "distinct": ROWS, "decisions": 1}
    memory, consumed = found["broker_rss_anon_mib"], found["consumer"]
    assert 5 < memory["before"] <= memory["max"]
    assert consumed["messages"] == ROWS
    assert 0 < consumed["first_message_after_decision_ms"] <= consumed["last_message_after_decision_ms"]
    for what in ("send", "pull", "fdatasync", "sleep"):
        for phase in ("before", "decision"):
            one = found["waits_ms"][what][phase]
            assert one["count"] > 0
            assert 0 < one["median"] <= one["p99"] <= one["max"]
    assert f"{ROWS:,} rows" in large_batch.table(found)


def test_a_request_belongs_to_each_phase_in_which_it_was_in_progress() -> None:
    waits = [Timed(0.0, 1.0), Timed(1.5, 2.5), Timed(4.0, 4.25)]
    assert large_batch._within(waits, 2.0, 3.0) == {"count": 1, "median": 1000.0, "p99": 1000.0, "max": 1000.0}
    assert large_batch._within(waits, 0.5, 5.0) == {"count": 3, "median": 1000.0, "p99": 1000.0, "max": 1000.0}
    assert large_batch._within(waits, 5.0, 6.0)["count"] == 0
