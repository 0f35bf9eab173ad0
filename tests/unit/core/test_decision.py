"""Replies are values that can be compared, and reasons have stable names."""

from msgspec import Struct

from halfmq.core.decision import DONE, NOTHING, Decision, Done, Refused, Reply, Why


def test_reasons_have_distinct_stable_names() -> None:
    assert len({why.value for why in Why}) == len(Why)
    assert all(why.value == why.name.lower().replace("_", "-") for why in Why)


def test_a_refusal_without_a_verdict_names_no_position() -> None:
    assert Refused(Why.NOT_FOUND, "text")[2:] == ("", -1)


def test_nothing_to_do_is_one_value() -> None:
    assert Decision(NOTHING, Done(), NOTHING) == DONE
    assert all(issubclass(reply, tuple | Struct) for reply in Reply.__args__)
