"""``Sent``: the messages that became visible since a moment, read up to the end that the broker states, so that nobody waits."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from halfmq.client.blocking import Answer, Connection, Unavailable
from halfmq.client.message import Message
from halfmq.errors import ConnectError, RequestFailed
from halfmq.model.address import Address, Security
from halfmq.wire.remoting.admin_reports import QueueStats, decode_topic_stats
from halfmq.wire.remoting.codes import PullFlag, RequestCode, ResponseCode
from halfmq.wire.remoting.fields import PulledReply, read_answer_fields
from halfmq.wire.remoting.message_codec import split_pull, unpack

if TYPE_CHECKING:
    from halfmq.testing.broker import Broker

#: RocketMQ's tools pull as this group, which every broker has, without being members of it.
_READERS: Final = "TOOLS_CONSUMER"
#: Messages that are asked for at once; RocketMQ gives no more.
_AT_ONCE: Final = 32
_NO_TOPIC: Final = frozenset({ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SYSTEM_ERROR})
#: Topics that the broker writes by itself, of consumer groups.
_OF_GROUPS: Final = ("%RETRY%", "%DLQ%")


class Sent:
    """``sent("order-created")``: what became visible in that topic since the object was made, in the order of becoming visible.

    A transaction's messages are in it if it was committed; those of an undecided one, and delayed ones, are not yet.
    """

    def __init__(self, broker: "Broker", since: Mapping[str, Sequence[int]]) -> None:
        """``since``: the end of each queue, by topic, from which on messages count. Topics that are missing are new."""
        self._broker = broker
        self._since = since
        self._undecided = set(broker.undecided())
        self._waiting = broker.waiting().keys()

    def __call__(self, topic: str, *, tag: str | None = None) -> list[Message]:
        """The messages of ``topic``, or those with ``tag``; an empty list also if there is no such topic. Nothing is acknowledged, and no
        consumer notices.

        Raises:
            ConnectError: the broker does not answer. RequestFailed: it refuses to say.
        """
        found = [message for message in self._read(topic) if tag is None or message.tag == tag]
        return sorted(found, key=lambda message: (message.stored_at, message.log_offset))

    def counts(self) -> dict[str, int]:
        """How many became visible, by topic; topics without any are left out, and so are those for redeliveries and dead letters."""
        found = {}
        for topic, ends in self._broker.positions().items():
            since = self._since.get(topic, ())
            # A topic that was deleted and made again has begun at 0.
            count = sum(
                end - start if end >= start else end for end, start in zip(ends, _padded(since, len(ends)), strict=True)
            )
            if count and not topic.startswith(_OF_GROUPS):
                found[topic] = count
        return found

    def nothing(self) -> None:
        """Assert that nothing was sent, and that nothing is on its way: no message is visible, undecided or delayed.

        Raises:
            AssertionError: it says what was.
        """
        found = [f"{count} in topic {topic}: {self._shown(topic)}" for topic, count in self.counts().items()]
        undecided = [one for one in self._broker.undecided() if one not in self._undecided]
        found += [f"transaction {one.tx_id} of group {one.group}, which is undecided" for one in undecided]
        waiting: dict[str, list[float]] = {}
        for key, one in self._broker.waiting().items():
            if key not in self._waiting:
                waiting.setdefault(one.topic, []).append(one.due_s)
        for topic, due_s in waiting.items():
            found.append(f"{len(due_s)} delayed in topic {topic}, the first in {due_s[0]:g} s")
        if found:
            raise AssertionError("\n  ".join(["something was sent:", *found]))

    def _shown(self, topic: str) -> str:
        return ", ".join(repr(message.body[:80]) for message in self(topic)[:3])

    def _read(self, topic: str) -> Iterator[Message]:
        try:
            connection = Connection.open(Address("127.0.0.1", self._broker.port), Security())
        except Unavailable as error:
            raise ConnectError(f"the broker does not answer: {error}", hint="was it stopped?") from error
        try:
            answer = connection.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
            if answer.code in _NO_TOPIC:
                return
            for queue in decode_topic_stats(_successful(answer).body):
                yield from self._queue(connection, topic, queue)
        except Unavailable as error:
            raise ConnectError(f"the broker does not answer: {error}") from error
        finally:
            connection.close()

    def _queue(self, connection: Connection, topic: str, queue: QueueStats) -> Iterator[Message]:
        since = self._since.get(topic, ())
        start = since[queue.queue] if queue.queue < len(since) else 0
        start = max(queue.first, start if start <= queue.end else 0)
        while start < queue.end:
            answer = connection.ask(
                RequestCode.PULL_MESSAGE,
                {
                    "consumerGroup": _READERS,
                    "topic": topic,
                    "queueId": queue.queue,
                    "queueOffset": start,
                    "maxMsgNums": min(queue.end - start, _AT_ONCE),
                    "sysFlag": int(PullFlag.SUBSCRIPTION),
                    "commitOffset": 0,
                    "suspendTimeoutMillis": 0,
                    "subscription": "*",
                    "subVersion": 0,
                    "expressionType": "TAG",
                },
            )
            _successful(answer)
            for packed in split_pull(answer.body):
                whole = unpack(packed)
                yield Message(whole.message, whole.log_offset, whole.message.body)
            start = read_answer_fields(PulledReply, answer.ext).next_begin_offset


def _padded(since: Sequence[int], length: int) -> list[int]:
    return [*since, *[0] * length][:length]


def _successful(answer: Answer) -> Answer:
    if answer.code != ResponseCode.SUCCESS:
        raise RequestFailed(f"the broker refuses to say what was sent: {answer.remark}", response_code=answer.code)
    return answer
