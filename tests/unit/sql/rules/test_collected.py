"""Messages go with the savepoints in which they were collected."""

from halfmq.client.outgoing import compose
from halfmq.model.properties import HMQ_TX_MARKER, encode, to_dict
from halfmq.sql.rules.block import CollectedMessages


def test_messages_of_a_savepoint_that_was_rolled_back_are_dropped() -> None:
    collected = CollectedMessages()
    assert not collected
    outer, inner = object(), object()
    for topic, savepoints in (("a", ()), ("b", (outer,)), ("c", (outer, inner)), ("d", (outer,))):
        collected.add(compose(topic, b"x"), savepoints)
    assert collected
    collected.drop(inner)
    assert [half.topic for half in collected.halves(b"")] == ["a", "b", "d"]
    collected.drop(object())
    collected.drop(outer)
    assert [half.topic for half in collected.halves(b"")] == ["a"]


def test_halves_carry_the_origin_beside_their_own_properties() -> None:
    collected = CollectedMessages()
    collected.add(compose("a", b"x", tag="t"), ())
    collected.add(compose("a", b"x"), ())
    halves = collected.halves(encode([(HMQ_TX_MARKER, "7.1")]))
    assert [to_dict(half.properties).get("TAGS") for half in halves] == ["t", None]
    assert [to_dict(half.properties)[HMQ_TX_MARKER] for half in halves] == ["7.1", "7.1"]
