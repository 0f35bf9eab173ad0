"""What is remembered of a user's requests is bounded, in number and in length."""

from halfmq import limits
from halfmq.broker.peers.principal import Principal


def test_names_that_are_longer_than_any_that_exists_are_not_remembered() -> None:
    principal = Principal("shop")
    principal.grant("SEND_MESSAGE", ("t" * 1_000_000, "g"))
    principal.grant("GET_ROUTEINFO_BY_TOPIC", "t" * 1_000_000)
    assert principal.granted == {}
    usual = ("t" * limits.TOPIC_CHARS_MAX, "g" * limits.GROUP_CHARS_MAX)
    principal.grant("SEND_MESSAGE", usual)
    assert principal.granted == {"SEND_MESSAGE": {usual}}


def test_so_many_are_remembered_and_then_forgotten_together() -> None:
    principal = Principal("shop")
    for number in range(10_000):
        principal.grant(f"KIND_{number % 3}", ("t", str(number)))
        assert sum(map(len, principal.granted.values())) <= 1_024
    assert ("t", "9999") in principal.granted["KIND_0"]
