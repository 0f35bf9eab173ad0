"""Outcomes are RocketMQ's numbers, and only three."""

from halfmq.client.outcome import Outcome


def test_values_are_those_of_end_transaction() -> None:
    assert {outcome.name: outcome.value for outcome in Outcome} == {"COMMIT": 8, "ROLLBACK": 12, "UNKNOWN": 0}
