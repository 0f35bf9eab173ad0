"""What is remembered of own transactions, and which checks are echoes."""

from halfmq.client.outcome import Outcome
from halfmq.client.verdicts import Verdicts


def test_open_decided_settled() -> None:
    verdicts = Verdicts()
    assert verdicts.get("t") is None
    verdicts.opened("t")
    assert verdicts.get("t") is Outcome.UNKNOWN
    verdicts.decided("t", Outcome.COMMIT)
    verdicts.left_open("t")  # the block ends after its verdict: the verdict stays
    assert verdicts.get("t") is Outcome.COMMIT
    verdicts.settled("t")
    assert verdicts.get("t") is None


def test_block_that_ended_without_verdict_is_the_listeners_business() -> None:
    verdicts = Verdicts()
    verdicts.opened("t")
    verdicts.left_open("t")
    assert verdicts.get("t") is None


def test_check_on_the_connection_that_acknowledged_is_an_echo_and_on_another_it_is_not() -> None:
    verdicts = Verdicts()
    one, two = object(), object()
    assert not verdicts.is_echo("m", one)
    verdicts.committed("m", one)
    assert verdicts.is_echo("m", one)
    assert not verdicts.is_echo("m", two)


def test_memory_is_bounded_and_forgets_the_oldest_but_no_open_block() -> None:
    verdicts = Verdicts()
    connection = object()
    verdicts.opened("open")
    for number in range(20_000):
        verdicts.decided(f"t{number}", Outcome.COMMIT)
        verdicts.committed(f"m{number}", connection)
    assert len(verdicts._known) <= 10_001
    assert len(verdicts._committed) == 10_000
    assert verdicts.get("t0") is None
    assert verdicts.get("t19999") is Outcome.COMMIT
    assert verdicts.get("open") is Outcome.UNKNOWN
    assert not verdicts.is_echo("m0", connection)
    assert verdicts.is_echo("m19999", connection)
