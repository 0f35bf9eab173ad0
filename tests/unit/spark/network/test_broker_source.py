"""Which brokers a query reads: each case of what name server and brokers say."""

from collections.abc import Sequence

import pytest

from halfmq.client.blocking import Unavailable
from halfmq.errors import UsageError
from halfmq.model.address import Address
from halfmq.model.queue_reads import Position, TopicBounds
from halfmq.spark.network.broker_source import Answers, HalfmqBroker, Source, source_of
from halfmq.wire.remoting.route import BrokerData

ADDRESS = Address("127.0.0.1", 10911)
TOPIC = {"t": TopicBounds(1, ((0, 1),))}

#: What a broker is: a halfmq broker with or without the topic, a RocketMQ broker, one that does not respond.
HAS, HAS_NOT, STOCK, AWAY = "has", "has not", "rocketmq", "away"


def decide(brokers: dict[str, str], routed: Sequence[str] = (), known: Sequence[str] = ()) -> Source:
    """``brokers``: all that are registered."""
    registered = {name: BrokerData("c", name, {0: "127.0.0.1:10911"}) for name in brokers}
    asked = {*routed, *known} & brokers.keys() or brokers.keys()
    halfmq = {
        name: (ADDRESS, Position(f"store {name}", 1, 1, TOPIC if what == HAS else {}))
        for name, what in brokers.items()
        if what in (HAS, HAS_NOT) and name in asked
    }
    stock = {name for name, what in brokers.items() if what == STOCK and name in asked}
    away = {name: "no response" for name, what in brokers.items() if what == AWAY and name in asked}
    return source_of(registered, routed, known, Answers(halfmq, stock, away), ("t",))


def halfmq(*names: str) -> dict[str, HalfmqBroker]:
    return {name: HalfmqBroker(ADDRESS, f"store {name}") for name in names}


NO_RESPONSE = {"b": "no response"}


@pytest.mark.parametrize(
    ("brokers", "routed", "known", "expected"),
    [
        # one broker
        ({"a": HAS}, "", "", Source(halfmq("a"), {}, False, True)),
        ({"a": HAS_NOT}, "", "", Source(halfmq("a"), {}, False, False)),
        ({"a": STOCK}, "", "", Source({}, {}, False, True)),
        # one of several has the topics; the others do not matter
        ({"a": HAS, "b": HAS_NOT, "c": STOCK, "d": AWAY}, "a", "", Source(halfmq("a"), {}, False, True)),
        ({"a": HAS_NOT, "b": STOCK}, "b", "", Source({}, {}, False, True)),
        ({"a": STOCK, "b": STOCK}, "", "", Source({}, {}, False, False)),
        # nobody has them yet
        ({"a": HAS_NOT, "b": HAS_NOT}, "", "", Source({}, {}, True, False)),
        ({"a": HAS_NOT, "b": STOCK}, "", "", Source({}, {}, True, False)),
        # several
        ({"a": HAS, "b": HAS}, "ab", "", Source(halfmq("a", "b"), {}, True, True)),
        ({"a": HAS, "b": AWAY}, "ab", "", Source(halfmq("a"), NO_RESPONSE, True, True)),
        # an offset of several
        ({"a": HAS, "b": HAS_NOT}, "a", "ab", Source(halfmq("a", "b"), {}, True, True)),
        ({"a": HAS, "b": AWAY}, "a", "ab", Source(halfmq("a"), NO_RESPONSE, True, True)),
        ({"a": HAS}, "a", "ab", Source(halfmq("a"), {}, True, True)),
        ({"a": HAS, "c": HAS}, "ac", "ab", Source(halfmq("a", "c"), {}, True, True)),
        ({}, "", "ab", Source({}, {}, True, False)),
        ({"a": HAS, "b": STOCK}, "a", "ab", Source(halfmq("a"), {"b": "a RocketMQ broker has taken its place"}, True, True)),
    ],
)  # fmt: skip
def test_what_is_read(brokers: dict[str, str], routed: str, known: str, expected: Source) -> None:
    assert decide(brokers, routed, known) == expected


@pytest.mark.parametrize(
    ("brokers", "routed", "known"),
    [({}, "", ""), ({"a": AWAY}, "", ""), ({"a": HAS_NOT, "b": AWAY}, "b", ""), ({"a": AWAY, "b": AWAY}, "", "")],
)
def test_who_is_waited_for(brokers: dict[str, str], routed: str, known: str) -> None:
    with pytest.raises(Unavailable, match="no response" if brokers else "no brokers"):
        decide(brokers, routed, known)


@pytest.mark.parametrize(
    ("brokers", "routed", "known"),
    [({"a": HAS, "b": STOCK}, "ab", ""), ({"a": AWAY, "b": STOCK}, "b", "a"), ({"b": STOCK}, "b", "a")],
)
def test_brokers_of_both_kinds_are_refused_and_named(brokers: dict[str, str], routed: str, known: str) -> None:
    with pytest.raises(UsageError, match=r"topics t are on halfmq and Apache RocketMQ brokers: a \(.*\), b \("):
        decide(brokers, routed, known)


def test_the_source_finds_a_store() -> None:
    several = decide({"a": HAS, "b": HAS}, "ab")
    assert several.with_store("store b") == halfmq("b")["b"]
    assert several.with_store("store c") is None
    assert (several.store, several.only, several.is_rocketmq) == ("", None, False)
    assert decide({"a": HAS}).store == "store a"
    assert decide({"a": STOCK}).store == "rocketmq:"
