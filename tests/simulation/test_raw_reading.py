"""Raw reads in the simulation: they happen in every way, and what they get wrong is seen."""

from collections import Counter
from typing import Any

import pytest

from halfmq.store import raw_messages
from halfmq.store.store import Store
from tests.simulation.run import run_seed
from tests.simulation.swarm import draw

SEEDS = range(1, 11)


def violation_of(seeds: range) -> str:
    """The first one."""
    return next((found for seed in seeds if (found := run_seed(seed, profile="queries").violation)), "")


def test_raw_reads_of_all_kinds_are_compared() -> None:
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        result = run_seed(seed, profile="queries")
        assert not result.violation, "\n".join([*result.story, result.violation])
        counts.update(result.counts)
    for what in (
        "look raw read", "raw read of whole half batches", "raw read, answer 21", "raw read that continues, answer 0",
        "raw read that continues, answer 19",
    ):  # fmt: skip
        assert counts[what] > 0, what


def test_seeds_of_the_record_have_no_raw_watchers_and_later_ones_have() -> None:
    assert not any(draw(seed).raw_watchers for seed in range(1, 255_401, 97))
    assert sum(draw(seed).raw_watchers for seed in range(255_401, 255_421)) == 10


@pytest.mark.parametrize("what", ["checksum", "part"])
def test_a_wrong_half_batch_in_a_raw_read_is_seen(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = raw_messages._half_batches

    def half_batches(*given: Any) -> Any:
        first = given[1].first
        for run, head in usual(*given):
            if what == "checksum":
                yield run, head._replace(checksum=head.checksum ^ 1)
            else:  # a part is taken for the whole
                yield run, head._replace(messages=first[run + 1] - first[run])

    monkeypatch.setattr(raw_messages, "_half_batches", half_batches)
    assert "Raw read" in violation_of(SEEDS)


def test_a_raw_read_that_skips_a_message_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Store.read_raw

    def read_raw(self: Store, topic_id: int, queue_id: int, queue_offset: int, *rest: Any, **named: Any) -> Any:
        return usual(self, topic_id, queue_id, queue_offset + (queue_offset > 3), *rest, **named)

    monkeypatch.setattr(Store, "read_raw", read_raw)
    assert "Raw read" in violation_of(SEEDS)
