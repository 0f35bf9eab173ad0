"""Stored messages for commands: read by pull or by query, without committing an offset, and printed so that no terminal obeys them."""

import base64
from collections.abc import Iterator
from typing import Any, Final

from halfmq.cli import output
from halfmq.cli.cluster import Broker, Cluster
from halfmq.cli.exit_status import ExitStatus
from halfmq.cli.moment import moment_text
from halfmq.cli.requests import Commands
from halfmq.client.blocking import Answer
from halfmq.client.message import Message
from halfmq.errors import MissingDependency, ProtocolError
from halfmq.model.ids import parse_offset_message_id
from halfmq.wire.remoting.admin_reports import QueueStats, decode_topic_stats
from halfmq.wire.remoting.codes import PullFlag, RequestCode, ResponseCode
from halfmq.wire.remoting.fields import PulledReply, read_answer_fields
from halfmq.wire.remoting.message_codec import PulledMessage, split_pull, unpack

#: RocketMQ's tools pull as this group, which every broker has, without being members of it.
READERS: Final = "TOOLS_CONSUMER"
#: Messages that are asked for at once; RocketMQ gives no more.
_AT_ONCE: Final = 32
#: Characters of a body in a listing; all of it is in the JSON document.
_BODY_CHARS_MAX: Final = 1_000


class Reader:
    """Reads the queues of topics."""

    def __init__(self, commands: Commands, cluster: Cluster, group: str = READERS) -> None:
        self._commands = commands
        self._cluster = cluster
        self._group = group

    def queues(self, topic: str) -> list[tuple[Broker, QueueStats]]:
        """The queues of the topic on all brokers, with their bounds. Exits with NOT_FOUND if it does not exist."""
        return [
            (broker, queue)
            for broker in self._cluster.brokers_of(topic)
            for queue in self._cluster.read(
                broker, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic}, decode_topic_stats
            )
        ]

    def offset_at(self, broker: Broker, topic: str, queue: int, at_ms: int) -> int:
        """Offset of the first message of the queue that was stored at ``at_ms`` or later."""
        fields = {"topic": topic, "queueId": queue, "timestamp": at_ms}
        answer = self._cluster.ask(broker, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)
        assert answer is not None
        return int(answer.ext.get("offset", "0"))

    def pull(
        self, broker: Broker, topic: str, queue: int, offset: int, count: int = _AT_ONCE
    ) -> tuple[list[Message], int]:
        """(up to ``count`` messages from the offset on, the offset after them). None at the end of the queue: the same offset."""
        fields = {
            "consumerGroup": self._group,
            "topic": topic,
            "queueId": queue,
            "queueOffset": offset,
            "maxMsgNums": min(count, _AT_ONCE),
            "sysFlag": int(PullFlag.SUBSCRIPTION),
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": "*",
            "subVersion": 0,
            "expressionType": "TAG",
        }
        nothing = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)
        answer = self._cluster.ask(broker, RequestCode.PULL_MESSAGE, fields, results=nothing)
        assert answer is not None
        with self._commands.reported():
            following = read_answer_fields(PulledReply, answer.ext).next_begin_offset
            if answer.code == ResponseCode.SUCCESS:
                return _messages(answer), following
        return [], following

    def between(self, broker: Broker, topic: str, queue: int, start: int, end: int) -> Iterator[Message]:
        """The messages of the queue from ``start`` on, before ``end``."""
        while start < end:
            messages, following = self.pull(broker, topic, queue, start, end - start)
            yield from (one for one in messages if one.offset < end)
            if following <= start:
                return
            start = following

    def by_key(self, topic: str, key: str, count: int, *, is_unique: bool) -> list[Message]:
        """Messages with this key, or with this unique id, the newest ones, in the order in which they were stored."""
        found: list[Message] = []
        fields: dict[str, object] = {
            "topic": topic,
            "key": key,
            "maxNum": count,
            "beginTimestamp": 0,
            "endTimestamp": (1 << 63) - 1,
        }
        if is_unique:
            fields["_UNIQUE_KEY_QUERY"] = True
        for broker in self._cluster.brokers_of(topic):
            answer = self._cluster.ask(
                broker, RequestCode.QUERY_MESSAGE, fields, absent=(ResponseCode.QUERY_NOT_FOUND,)
            )
            if answer is not None:
                with self._commands.reported():
                    found += _messages(answer)
        return sorted(found, key=_stored)[-count:]

    def by_offset_id(self, topic: str, message_id: str) -> list[Message]:
        """The message with this offset id, if it is one of the topic's."""
        try:
            _, log_offset = parse_offset_message_id(message_id)
        except ValueError:
            return []
        for broker in self._cluster.brokers_of(topic):
            fields = {"offset": log_offset, "topic": topic}
            answer = self._cluster.ask(
                broker, RequestCode.VIEW_MESSAGE_BY_ID, fields, absent=(ResponseCode.SYSTEM_ERROR,)
            )
            if answer is not None:
                with self._commands.reported():
                    found = [one for one in _messages(answer) if one.offset_id == message_id.upper()]
                if found:
                    return found
        return []

    def last(self, topic: str, count: int) -> list[Message]:
        """The newest messages of all queues, in the order in which they were stored."""
        found: list[Message] = []
        for broker, queue in self.queues(topic):
            start = max(queue.first, queue.end - count)
            found += self.between(broker, topic, queue.queue, start, queue.end)
        return sorted(found, key=_stored)[-count:]

    def since(self, topic: str, at_ms: int, count: int) -> list[Message]:
        """The first messages that were stored at ``at_ms`` or later, of all queues, in the order in which they were stored."""
        found: list[Message] = []
        for broker, queue in self.queues(topic):
            start = max(queue.first, self.offset_at(broker, topic, queue.queue, at_ms))
            found += self.between(broker, topic, queue.queue, start, min(queue.end, start + count))
        return sorted(found, key=_stored)[:count]


def _stored(message: Message) -> tuple[Any, int]:
    return message.stored_at, message.log_offset


def _messages(answer: Answer) -> list[Message]:
    return [_message(one) for one in split_pull(answer.body)]


def _message(packed: PulledMessage) -> Message:
    """With its body as it was sent; as it is stored if that cannot be unpacked here."""
    try:
        stored = unpack(packed).message
    except (ProtocolError, MissingDependency):
        stored = packed.message
    return Message(stored, packed.log_offset, stored.body)


def require(commands: Commands, found: list[Message], what: str) -> list[Message]:
    """``found``; exits with NOT_FOUND if it is empty."""
    if not found:
        commands.fail(what, ExitStatus.NOT_FOUND)
    return found


def row_of(message: Message) -> dict[str, Any]:
    """For a JSON document. ``body``: as text, or ``body_base64`` if it is not UTF-8."""
    try:
        body = {"body": message.body.decode()}
    except UnicodeDecodeError:
        body = {"body_base64": base64.b64encode(message.body).decode()}
    return {
        "id": message.message_id,
        "offset_id": message.offset_id,
        "topic": message.topic,
        "queue": message.queue,
        "offset": message.offset,
        "stored_at": moment_text(int(message.stored_at.timestamp() * 1_000)),
        "born_at": moment_text(int(message.born_at.timestamp() * 1_000)),
        "keys": message.keys,
        "tag": message.tag,
        "attempt": message.attempt,
        "transaction": message.transaction_id,
        "properties": dict(message.properties),
        **body,
    }


def say(message: Message) -> None:
    """Print a message: a line of what it is, and one of its body."""
    named = [f"keys {' '.join(message.keys)}"] if message.keys else []
    named += [f"tag {message.tag}"] if message.tag else []
    named += [f"attempt {message.attempt}"] if message.attempt > 1 else []
    stored = moment_text(int(message.stored_at.timestamp() * 1_000))
    output.say("  ".join([f"{message.topic}[{message.queue}]@{message.offset}", stored, message.message_id, *named]))
    output.say(f"    {body_text(message.body)}")


def body_text(body: bytes) -> str:
    """The beginning of a body as text; of one that is not UTF-8 its size only."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return f"({len(body)} bytes, not UTF-8: --json has them in base64)"
    return text if len(text) <= _BODY_CHARS_MAX else f"{text[:_BODY_CHARS_MAX]}... ({len(body)} bytes: --json has all)"
