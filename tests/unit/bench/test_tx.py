"""Short runs of the whole benchmark against real processes: figures exist and fit together."""

import json
from pathlib import Path

import pytest

from halfmq.bench import tx
from halfmq.bench.load import Plan
from halfmq.errors import EnvironmentFailed

pytestmark = pytest.mark.slow


def test_one_round_gives_figures_of_baseline_and_broker_and_their_ratio(tmp_path: Path) -> None:
    plan = Plan(
        threads=4,
        body_bytes=200,
        seconds=1.0,
        warmup_seconds=0.2,
        acked_end=True,
        rollback_share=0.2,
        unknown_share=0.1,
    )
    said: list[str] = []
    figures = tx.compare(plan, ["memory"], 1, tmp_path, said.append)
    json.dumps(figures)
    run = figures["runs"]["memory"][0]
    assert run["refused"] == 0, run["refusals"]
    assert run["committed"] > run["rolled_back"] > 0
    assert run["unknown"] > 0
    assert run["prepare_p50_us"] <= run["prepare_p99_us"]
    assert run["commit_to_consumer_p50_us"] > 0
    assert run["rss_anon_mb"] > 5
    assert figures["ratio_to_baseline"]["memory"] > 1
    assert said == ["round 1 of 1 ..."]
    table = tx.table(figures)
    assert len(table) == 3
    assert len({len(line) for line in table}) == 1
    assert not list(tmp_path.iterdir()), "stores are removed"


def test_a_broker_that_takes_no_transaction_ends_it_with_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tx.run_broker
    monkeypatch.setattr(
        tx, "run_broker", lambda plan, durability, directory: run(plan, durability, directory, "--undecided-max", "0")
    )
    plan = Plan(threads=2, seconds=0.5, warmup_seconds=0.1)
    with pytest.raises(EnvironmentFailed, match="the broker rejects transactions with code 16"):
        tx.compare(plan, ["memory"], 1, tmp_path, lambda text: None)


def test_a_window_in_which_nothing_ended_has_no_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tx, "run_broker", lambda *_: {"cpu_us_per_tx": None})
    with pytest.raises(EnvironmentFailed, match=r"no transaction ended in 0\.5 s"):
        tx.compare(Plan(threads=2, seconds=0.5, warmup_seconds=0.1), ["memory"], 1, tmp_path, lambda text: None)
