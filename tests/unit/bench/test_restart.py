"""A small run of the restart benchmark, with everything that it does to a store."""

from pathlib import Path

import pytest

from halfmq.bench import restart

pytestmark = pytest.mark.slow


def test_every_start_is_measured_and_undecided_transactions_cost_memory(tmp_path: Path) -> None:
    said: list[str] = []
    figures = restart.measure(3_000, 1_000, 100, tmp_path, said.append)
    assert 0 < figures["start_empty_s"] < 30
    assert 0 < figures["start_after_kill_s"] < 30
    assert 0 < figures["start_without_snapshots_s"] < 60
    assert figures["rss_anon_mb_with_undecided"] > 5
    assert len(said) == 4
    assert not list(tmp_path.iterdir()), "the store is removed"
