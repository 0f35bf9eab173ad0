"""The clock of brokers for tests, and who lives in its time."""

import pytest

from halfmq.sql.rules.check import AgeGuard
from halfmq.testing import Broker

pytestmark = pytest.mark.slow


def test_checks_live_in_the_time_of_the_brokers_while_there_are_any() -> None:
    before = AgeGuard.ahead_ms
    with Broker() as broker:
        broker.advance(3_600)
        with Broker():
            broker.advance(1)
        assert AgeGuard.ahead_ms >= 3_601_000
    assert AgeGuard.ahead_ms == before == 0
