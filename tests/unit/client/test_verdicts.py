"""What is remembered of own transactions, and when a check of them is better answered UNKNOWN."""

from halfmq.client.outcome import Outcome
from halfmq.client.verdicts import END_SINKS_IN_S, Verdicts


def test_open_decided_settled() -> None:
    verdicts = Verdicts()
    assert verdicts.get("t", 0.0) is None
    verdicts.opened("t")
    assert verdicts.get("t", 0.0) is Outcome.UNKNOWN
    verdicts.decided("t", Outcome.COMMIT)
    verdicts.left_open("t")  # the block ends after its verdict: the verdict stays
    assert verdicts.get("t", 0.0) is Outcome.COMMIT
    verdicts.settled("t")
    assert verdicts.get("t", 0.0) is None


def test_block_that_ended_without_verdict_is_the_listeners_business() -> None:
    verdicts = Verdicts()
    verdicts.opened("t")
    verdicts.left_open("t")
    assert verdicts.get("t", 0.0) is None


def test_one_way_end_is_not_repeated_while_it_may_be_on_its_way() -> None:
    verdicts = Verdicts()
    verdicts.decided("t", Outcome.COMMIT)
    verdicts.told("t", 100.0)
    assert verdicts.get("t", 100.0) is Outcome.UNKNOWN
    assert verdicts.get("t", 100.0 + END_SINKS_IN_S) is Outcome.COMMIT


def test_memory_is_bounded_and_forgets_the_oldest_but_no_open_block() -> None:
    verdicts = Verdicts()
    verdicts.opened("open")
    for number in range(20_000):
        verdicts.decided(f"t{number}", Outcome.COMMIT)
        verdicts.told(f"t{number}", 0.0)
    assert len(verdicts._known) <= 10_001
    assert len(verdicts._told) <= 10_001
    assert verdicts.get("t0", 1e9) is None
    assert verdicts.get("t19999", 1e9) is Outcome.COMMIT
    assert verdicts.get("open", 1e9) is Outcome.UNKNOWN
