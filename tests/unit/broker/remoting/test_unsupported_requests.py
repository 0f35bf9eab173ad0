"""Who asks for what is not offered here is said: with client, group and command, and not for ever."""

import pytest

from halfmq.broker.remoting.unsupported_requests import GAP_S, UnsupportedRequests
from halfmq.core.state import Subscription
from halfmq.runtime.log_throttle import REST_S
from halfmq.wire.remoting.header import Request


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def pop(group: str = "C", code: int = 200_050) -> Request[dict[str, str]]:
    return Request(code=code, ext={"consumerGroup": group}, opaque=1)


def test_a_client_that_tries_for_ever_is_said_once_and_again_after_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    unsupported_requests = UnsupportedRequests(clock)
    for second in range(1_000):
        clock.now = 100.0 + second
        unsupported_requests.command(f"192.0.2.7:{second}", pop())
    assert len(caplog.records) == 1 + int(1_000 // REST_S)
    said = caplog.messages[0]
    assert "client 192.0.2.7:0, group C: command 200050 (POP_MESSAGE)" in said
    assert "configure the consumer to pull" in said


def test_names_that_a_client_makes_up_give_one_line_a_second_and_short_ones(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    unsupported_requests = UnsupportedRequests(clock)
    for number in range(5_000):
        clock.now = 100.0 + number * 0.01
        unsupported_requests.command("192.0.2.7:1", pop("g" * 10_000, code=300_000 + number))
        unsupported_requests.mode("192.0.2.7:1", f"g{number}", "T" * 10_000, "POP" * 10_000)
        unsupported_requests.subscription(f"c{number}", f"g{number}", Subscription("T", "x" * 10_000, "SQL92", 1))
    assert len(caplog.records) == 50 / GAP_S
    assert max(map(len, caplog.messages)) < 600


def test_what_is_remembered_of_names_is_short() -> None:
    """1,024 of them are, for ten minutes, and each may be as long as a frame."""
    clock = Clock()
    unsupported_requests = UnsupportedRequests(clock)
    unsupported_requests.mode("192.0.2.7:1", "g" * 10_000, "T" * 10_000, "POP")
    clock.now += GAP_S
    unsupported_requests.subscription("me@1", "g" * 10_000, Subscription("T" * 10_000, "x", "SQL92", 1))
    remembered = unsupported_requests._throttle._said
    assert [max(map(len, what)) for what in remembered] == [100, 100]  # type: ignore[call-overload]


def test_a_subscription_and_a_handshake_say_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    unsupported_requests = UnsupportedRequests(clock)
    unsupported_requests.subscription("me@1", "C", Subscription("T", "a > 5", "SQL92", 1))
    clock.now += GAP_S
    unsupported_requests.tls("192.0.2.7:4000")
    assert "client me@1, group C: it subscribes to topic T by SQL92 'a > 5'" in caplog.messages[0]
    assert "only tags" in caplog.messages[0]
    assert "192.0.2.7:4000 starts a TLS handshake" in caplog.messages[1]
    assert "tls.enable=false" in caplog.messages[1]
