"""Waiting for a broker that is away."""

import pytest

from halfmq.client.blocking import NotTrusted, Unavailable
from halfmq.errors import ConnectError, EnvironmentFailed
from halfmq.spark.retry_deadline import Attempts, RetryDeadline


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def retry_deadline(clock: Clock, timeout_ms: int) -> RetryDeadline:
    return RetryDeadline(timeout_ms, clock=lambda: clock.now, sleep=clock.sleep)


def test_it_goes_on_as_soon_as_the_broker_is_back() -> None:
    clock = Clock()

    def attempt() -> str:
        if clock.now < 30:
            raise Unavailable("nobody listens")
        return "there"

    assert retry_deadline(clock, 120_000).until(attempt, "broker") == "there"
    assert 30 <= clock.now < 33
    assert max(clock.pauses) <= 2
    assert clock.pauses[0] <= 0.05


def test_it_gives_up_at_the_time_that_was_said_and_says_why() -> None:
    clock = Clock()

    def attempt() -> None:
        raise Unavailable("nobody listens")

    with pytest.raises(ConnectError, match=r"broker: nobody listens; waited 10 s") as error:
        retry_deadline(clock, 10_000).until(attempt, "broker")
    assert clock.now == pytest.approx(10)
    assert "brokerTimeout" in error.value.hint


def test_other_errors_are_not_waited_out() -> None:
    clock = Clock()

    def attempt() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        retry_deadline(clock, 10_000).until(attempt, "broker")
    assert clock.pauses == []


def test_at_most_a_fifth_of_the_time_is_spent_on_a_broker_that_does_not_respond() -> None:
    clock = Clock()
    attempts = Attempts(clock=lambda: clock.now)
    asked = 0

    def attempt() -> None:
        nonlocal asked
        asked += 1
        clock.now += 3
        raise Unavailable("no response")

    while clock.now < 300:
        with pytest.raises(Unavailable, match="no response"):
            attempts.of("a", attempt)
        assert attempts.of("b", lambda: "there") == "there"
        clock.now += 0.25
    assert 18 <= asked <= 20
    clock.now += 15
    assert attempts.of("a", lambda: "back") == "back"
    assert attempts.of("a", lambda: "still") == "still"


def test_a_certificate_that_is_not_trusted_is_not_waited_for() -> None:
    clock = Clock()

    def attempt() -> None:
        raise NotTrusted("no TLS with h:1 (give the CA of the server)")

    with pytest.raises(EnvironmentFailed, match=r"broker: no TLS with h:1 \(give the CA") as caught:
        retry_deadline(clock, 120_000).until(attempt, "broker")
    assert clock.pauses == []
    assert not caught.value.retriable
