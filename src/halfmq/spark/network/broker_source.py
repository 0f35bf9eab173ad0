"""Which brokers a query reads, decided from what the name server and the brokers say. Pure functions."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from halfmq.client.blocking import Unavailable
from halfmq.errors import UsageError
from halfmq.model.address import Address
from halfmq.model.queue_reads import Position
from halfmq.spark.plan.offsets import ROCKETMQ_STORE
from halfmq.wire.remoting.route import BrokerData


class Answers(NamedTuple):
    """What brokers responded to HMQ_POSITION. ``rocketmq``: those that do not know it; ``away``: why others did not respond."""

    halfmq: dict[str, tuple[Address, Position]]
    rocketmq: set[str]
    away: dict[str, str]


class HalfmqBroker(NamedTuple):
    """A halfmq broker, and its store."""

    address: Address
    store: str


class Source(NamedTuple):
    """What is read. ``brokers``: halfmq brokers by name: one, or with ``is_several`` any number, none if topics exist nowhere yet.
    ``away``: brokers that may have topics, and do not respond. ``has_topics``: whether any topic of the query is there. Without ``brokers``
    and ``is_several`` it is Apache RocketMQ.
    """

    brokers: dict[str, HalfmqBroker]
    away: dict[str, str]
    is_several: bool
    has_topics: bool

    @property
    def is_rocketmq(self) -> bool:
        return not self.brokers and not self.is_several

    @property
    def only(self) -> HalfmqBroker | None:
        """The one halfmq broker that is read, if it is one."""
        return None if self.is_several else next(iter(self.brokers.values()), None)

    @property
    def store(self) -> str:
        """The store of the one broker; ROCKETMQ_STORE; empty if they are several."""
        if self.is_rocketmq:
            return ROCKETMQ_STORE
        return "" if self.only is None else self.only.store

    def with_store(self, store: str) -> HalfmqBroker | None:
        return next((broker for broker in self.brokers.values() if broker.store == store), None)


def source_of(
    registered: Mapping[str, BrokerData],
    routed: Collection[str],
    known: Collection[str],
    answers: Answers,
    topics: Collection[str],
) -> Source:
    """What to read. Brokers without the topics do not matter: they may belong to another cluster.

    Args:
        registered: the brokers of the name server.
        routed: those that have topics of the query, according to the name server; empty if there is one broker.
        known: of the query's offset, which is of several brokers; empty if it is not.
        answers: of ``routed`` and ``known``; if both are empty, of all.
        topics: of the query, for the text of an error.

    Raises:
        UsageError: the topics are on halfmq and on RocketMQ brokers.
        Unavailable: no broker responded, or none of those that may have the topics.
    """
    found = {name: HalfmqBroker(address, at.store) for name, (address, at) in answers.halfmq.items()}
    serving = {name: found[name] for name, (_, at) in answers.halfmq.items() if at.topics}
    stock = answers.rocketmq & set(routed)
    if stock and (serving or known):
        named = ", ".join(
            f"{name} ({registered[name].master_text if name in registered else 'not registered'})"
            for name in sorted(stock | serving.keys() | set(known))
        )
        raise UsageError(
            f"topics {', '.join(topics)} are on halfmq and Apache RocketMQ brokers: {named}; a query reads brokers of one kind",
            hint="start one query for each kind, with url=rocketmq:// and an address of its own: a halfmq broker is a name server too",
        )
    if known:
        away = {name: why for name, why in answers.away.items() if name in routed or name in known}
        away |= dict.fromkeys(answers.rocketmq & set(known), "a RocketMQ broker has taken its place")
        return Source({**serving, **{name: found[name] for name in known if name in found}}, away, True, bool(serving))
    away = {name: why for name, why in answers.away.items() if name in routed}
    if answers.rocketmq and not serving and (stock or not found):
        return Source({}, {}, False, bool(routed) or len(registered) == 1)
    if not found or (not serving and away):
        reasons = "; ".join(f"broker {name}: {why}" for name, why in answers.away.items())
        raise Unavailable(reasons or "the name server has no brokers")
    if not serving:
        return Source({} if len(registered) > 1 else found, {}, len(registered) > 1, False)
    return Source(serving, away, len(serving) + len(away) > 1, True)
