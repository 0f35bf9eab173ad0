"""Power loss over the whole store: log, derived files, checkpoints, snapshots and trims, cut at random operations.

After each start, readers must see exactly what the log holds: each visible message once, in its place, with its body;
each half with its verdict. From time to time everything but the log is deleted first: the log alone is enough.

`HALFMQ_TEST_SEEDS=2000` runs more seeds. A seed repeats exactly.
"""

from pathlib import Path
from typing import Any

import pytest
from tests.support.amount import amount
from tests.support.power_cuts import Lives, Lost, counts_of, is_broken, without_fdatasync
from tests.support.small_broker import QUEUES, SmallBroker

SEEDS = amount(80, 250, "HALFMQ_TEST_SEEDS")
HOME = Path("/store")


class Run(Lives):
    """One seed: a store under load, with power losses."""

    operations = 120

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.broker = SmallBroker(self.disk, HOME)
        self.durable = 0
        self.transactions = 0

    def between_lives(self) -> None:
        if self.rng.random() < 0.15:
            self.delete_what_is_derived()

    def delete_what_is_derived(self) -> None:
        for path in self.disk.image():
            if path.suffix != ".seg" and path.parts[:3] == ("/", "store", "shard-0"):
                self.disk.remove(path)

    def start(self) -> None:
        broker = self.broker.start()
        case = broker.store.recovery.case.letter
        self.counts[f"case {case}"] += 1
        end = broker.store.log.end
        if end < self.durable:
            raise Lost(f"the log ends at {end}, it was durable up to {self.durable}")
        broker.written = [batch for batch in broker.written if batch.end <= end]
        self.durable = end
        problems = broker.problems()
        if problems:
            raise Lost(f"case {case}: {problems[0]} ({len(problems)} in all)")

    def load(self) -> None:
        rng, broker = self.rng, self.broker
        for _ in range(rng.randrange(1, 100)):
            broker.turn([self.action() for _ in range(rng.randrange(1, 4))])
            if rng.random() < 0.3:
                broker.sync()
                self.durable = broker.store.durable_position
            if rng.random() < 0.06:
                self.checkpoint()
            if rng.random() < 0.1:
                self.trim()

    def action(self) -> tuple[Any, ...]:
        rng, undecided = self.rng, self.broker.undecided
        what = rng.random()
        queue = rng.randrange(QUEUES)
        body = rng.randbytes(rng.choice((0, 20, 300, 2_000)))
        if what < 0.4 or len(undecided) > 20:
            if what < 0.2 or not undecided:
                return ("send", queue, body)
        elif what < 0.7 or not undecided:
            self.transactions += 1
            return ("prepare", f"T{self.transactions}", queue, body)
        # One verdict a turn and transaction: its actions are chosen before any is decided.
        tx_id = rng.choice(sorted(undecided))
        if tx_id in self.settling:
            return ("send", queue, body)
        self.settling.add(tx_id)
        return ("commit", tx_id) if rng.random() < 0.7 else ("roll_back", tx_id)

    @property
    def settling(self) -> set[str]:
        """Verdicts chosen since the log last grew."""
        end = self.broker.store.log.end
        if getattr(self, "_settling", (-1, set()))[0] != end:
            self._settling: tuple[int, set[str]] = (end, set())
        return self._settling[1]

    def checkpoint(self) -> None:
        self.broker.sync()
        self.durable = self.broker.store.durable_position
        self.broker.checkpoint()
        self.counts["checkpoints"] += 1

    def trim(self) -> None:
        broker = self.broker
        starts = [next_start for _, next_start, _ in broker.store.closed_segments()]
        if not starts:
            return
        log_start = self.rng.choice(starts)
        if log_start <= broker.state.log_start:
            return
        broker.turn([("trim", log_start)])
        broker.sync()
        self.durable = broker.store.durable_position
        broker.store.trim(log_start)
        self.counts["trims"] += 1


def test_some_seeds() -> None:
    assert counts_of(Run, range(10))["losses"] > 5


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_readers_see_what_the_log_holds_after_every_loss() -> None:
    counts = counts_of(Run, range(SEEDS))
    assert counts["losses"] > SEEDS / 2
    assert counts["checkpoints"] > SEEDS / 2
    assert counts["trims"] > SEEDS / 4
    assert all(counts[f"case {letter}"] for letter in "AHILM"), counts


@pytest.mark.slow
def test_without_fdatasync_it_goes_red(monkeypatch: pytest.MonkeyPatch) -> None:
    without_fdatasync(monkeypatch)
    assert is_broken(Run, 20, more_than=5)


@pytest.mark.slow
def test_publishing_before_the_sync_goes_red(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was shown and answered is gone after the loss."""

    def sync(self: Run) -> None:
        self.durable = self.broker.store.log.end

    monkeypatch.setattr(SmallBroker, "sync", lambda self: None)
    monkeypatch.setattr(Run, "checkpoint", sync)
    assert is_broken(Run, 30, more_than=5)
