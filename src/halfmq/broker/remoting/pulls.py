"""Pulls (11, 361): messages of one queue from an offset on, or a place to wait for them.

    checks in RocketMQ's order: group, topic, queue, subscription -> one look -> found, skipped, moved, or nothing new
    nothing new and the client may wait -> parked -> looked at again when the queue gets messages, or when time is up

A look reads entries below the published position only, so nothing leaves here that a crash can take back, and a
transaction that is published is visible in all its queues. Tags are filtered by their hash in the entry; the client
compares the strings. The answer is one bytearray, patched where what is stored differs from what consumers see.

A parked pull lives at most 25 s, under the 30 s after which a Java client closes its connection, and not longer than its
connection.
"""

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from halfmq import limits
from halfmq.broker.remoting.connection import Connection
from halfmq.broker.remoting.gateway import Gateway
from halfmq.broker.remoting.outgoing_bytes import SMALL_PULL_BYTES
from halfmq.broker.remoting.refusals import refusal
from halfmq.broker.seldom import Seldom
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.groups import GroupsOnUse
from halfmq.core.commands import CommitOffset
from halfmq.core.decision import Reply, WakeQueue
from halfmq.core.engine import Failed
from halfmq.core.queues.filter import TagFilter, parse_filter
from halfmq.core.queues.long_poll import NotFound, OffsetMoved, place
from halfmq.core.view import TopicView
from halfmq.errors import StoreDamaged
from halfmq.model.stored_message import AT_PHYSICAL_OFFSET, patch_committed, patch_released
from halfmq.store.consume_queue import QueueEntry
from halfmq.wire.remoting.codes import PullFlag, RequestCode, ResponseCode
from halfmq.wire.remoting.header import Request, encode_pull_response_head

log = logging.getLogger("halfmq.pulls")

#: Topics that only the broker reads: halves and verdicts are not messages. RocketMQ's names.
SYSTEM_TOPICS: Final = frozenset({"RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"})
#: RocketMQ's tools pull under this name without being members; every broker has it. A reader that commits nothing under
#: it leaves nothing behind: no group, no ``%RETRY%`` topic.
TOOLS_GROUP: Final = "TOOLS_CONSUMER"
_READ: Final = 4
#: What RocketMQ sends at most from memory, for a client that asks for its 32 messages or fewer.
_STOCK_MESSAGES: Final = 32
_STOCK_BYTES: Final = 262_144
#: Parked pulls of one connection; more are answered at once with "nothing new".
PARKED_MAX: Final = 4_096
_INT64: Final = struct.Struct(">q")
#: More than the head of any record that holds a message: what is read with it.
_HEADS_BYTES: Final = 96
#: Copying so many bytes that nobody asked for costs less than another read.
_FAR_BYTES: Final = 12_288
_COMMIT: Final = int(PullFlag.COMMIT_OFFSET)
_SUSPEND: Final = int(PullFlag.SUSPEND)
_SUBSCRIPTION: Final = int(PullFlag.SUBSCRIPTION)

#: What one parked pull takes, and each of its tags, which it may share with others, bytes.
_PARKED_COST: Final = 1_024
#: Parked pulls of one queue that look again in one go: a few ms each hundred.
WOKEN_MAX: Final = 1_000
_TAG_COST: Final = 80

#: Hashes of the wanted tags; None: everything.
Tags = frozenset[int] | None


class QueueReads(Protocol):
    """What is asked of the store."""

    def bounds(self, topic_id: int, queue_id: int) -> tuple[int, int]: ...

    def read_queue(self, topic_id: int, queue_id: int, queue_offset: int, entries_max: int) -> list[QueueEntry]: ...

    def stored_view(self, offset: int, ahead: int) -> memoryview: ...

    def first_offset(self, offset: int) -> int: ...


class Found(NamedTuple):
    """What one look came to. ``code`` 0 found, 19 nothing new, 20 nothing that matches, 21 another offset, 1 damage."""

    code: int
    remark: str
    next_offset: int
    min_offset: int
    max_offset: int
    body: bytearray


class Wanted(NamedTuple):
    """What is kept of the fields of a parked pull."""

    consumer_group: str
    queue_id: int
    queue_offset: int
    max_msg_nums: int
    max_msg_bytes: int


class Parked(NamedTuple):
    connection: Connection
    #: With ``Wanted``, and no body: a client may write what it likes into the rest.
    request: Request[Any]
    topic: TopicView
    tags: Tags
    timer: asyncio.TimerHandle


class PullService:
    def __init__(
        self,
        gateway: Gateway,
        sequencer: Sequencer,
        store: QueueReads,
        loop: asyncio.AbstractEventLoop,
        groups: GroupsOnUse,
    ) -> None:
        self._gateway = gateway
        self._sequencer = sequencer
        self._store = store
        self._loop = loop
        self._groups = groups
        self._view = sequencer.view
        #: (topic id, queue id) -> key -> parked pull; queues without any are absent.
        self._parked: dict[tuple[int, int], dict[int, Parked]] = {}
        #: Connection number -> where its parked pulls are. Same pulls as in ``_parked``.
        self._of_connection: dict[int, dict[int, tuple[int, int]]] = {}
        #: Connections that were full when there was something for a parked pull of theirs.
        self._missed: set[int] = set()
        #: Key -> queue of every parked pull, the one that waits longest first.
        self._oldest: dict[int, tuple[int, int]] = {}
        self.parked_bytes = 0
        self._next_key = 0
        #: Told (group, topic, topic id, queue id, one past the last, how many) of messages that a member is given.
        self.on_given: Callable[[str, str, int, int, int, int], None] = lambda *given: None
        self._damage_said = Seldom(loop.time)
        gateway.handlers |= {RequestCode.PULL_MESSAGE: self.pull, RequestCode.LITE_PULL_MESSAGE: self.pull}

    @property
    def parked(self) -> int:
        return sum(map(len, self._parked.values()))

    @property
    def has_parked(self) -> bool:
        return bool(self._parked)

    # --- a pull arrives

    def pull(self, connection: Connection, request: Request[Any]) -> None:
        fields = request.ext
        group = fields.consumer_group
        if group not in self._view.groups and (group != TOOLS_GROUP or fields.sys_flag & _COMMIT):
            self._groups.ensure(
                group,
                lambda refused: (
                    self._refuse(connection, request, *refusal(refused)[:2])
                    if refused
                    else self.pull(connection, request)
                ),
            )
            return
        refused = self._refusal(fields)
        if refused is not None:
            self._refuse(connection, request, *refused)
            return
        tags = self._tags(connection, fields)
        if isinstance(tags, tuple):
            self._refuse(connection, request, *tags)
            return
        if fields.sys_flag & _COMMIT:
            self._sequencer.submit(
                CommitOffset(fields.consumer_group, fields.topic, fields.queue_id, fields.commit_offset), _nothing
            )
        topic = self._view.topics_by_name[fields.topic]
        found = self._look(topic, fields, tags)
        if found.code == ResponseCode.PULL_NOT_FOUND and self._may_park(connection, fields):
            self._park(connection, request, topic, tags)
        else:
            self._answer(connection, request, found)

    def _refusal(self, fields: Any) -> tuple[int, str] | None:
        """Why this pull may not be served; RocketMQ's order and codes."""
        settings = self._view.groups.get(fields.consumer_group)
        if settings is not None and not settings.consume_enabled:
            return ResponseCode.NO_PERMISSION, f"group {fields.consumer_group} may not consume"
        if fields.topic in SYSTEM_TOPICS:
            return ResponseCode.NO_PERMISSION, f"{fields.topic} is the broker's own and may not be consumed"
        topic = self._view.topics_by_name.get(fields.topic)
        if topic is None:
            return ResponseCode.TOPIC_NOT_EXIST, f"topic {fields.topic} does not exist, apply first please!"
        if not topic.permission & _READ:
            return ResponseCode.NO_PERMISSION, f"topic {fields.topic} may not be read"
        if not 0 <= fields.queue_id < topic.read_queues:
            return ResponseCode.INVALID_PARAMETER, (
                f"queue {fields.queue_id} of topic {fields.topic} does not exist; it has {topic.read_queues}"
            )
        return None

    def _tags(self, connection: Connection, fields: Any) -> Tags | tuple[int, str]:
        """The wanted tags, from the pull or from the group's heartbeat; (code, text) where neither says."""
        if fields.sys_flag & _SUBSCRIPTION:
            expression, expression_type = fields.subscription, fields.expression_type
        else:
            session = self._view.session.consumers.get(fields.consumer_group)
            if session is None or not session.members:
                return (
                    ResponseCode.SUBSCRIPTION_NOT_EXIST,
                    f"no consumer of group {fields.consumer_group} is registered",
                )
            known = session.subscriptions.get(fields.topic)
            if known is None:
                return ResponseCode.SUBSCRIPTION_NOT_EXIST, (
                    f"group {fields.consumer_group} is not subscribed to {fields.topic}"
                )
            if known.version < fields.sub_version:
                return ResponseCode.SUBSCRIPTION_NOT_LATEST, (
                    f"the subscription of {fields.consumer_group} to {fields.topic} is newer than its heartbeat"
                )
            expression, expression_type = known.expression, known.expression_type
        parsed = parse_filter(expression, expression_type or "")
        if isinstance(parsed, TagFilter):
            return parsed.hashes
        if parsed.unknown_type:
            return ResponseCode.SYSTEM_ERROR, parsed.text
        return ResponseCode.SUBSCRIPTION_PARSE_FAILED, parsed.text

    # --- one look

    def _look(self, topic: TopicView, fields: Any, tags: Tags) -> Found:
        """What is there for this pull. Never raises for what the disk cannot read: a wake comes from the sequencer's turn."""
        try:
            return self._look_at(topic, fields, tags)
        except (StoreDamaged, OSError) as error:
            return self._damaged(topic, fields.queue_id, fields.queue_offset, 0, 0, error)

    def _look_at(self, topic: TopicView, fields: Any, tags: Tags) -> Found:
        start = fields.queue_offset
        low, high = self._store.bounds(topic.topic_id, fields.queue_id)
        where = place(start, low, high)
        if isinstance(where, NotFound):
            return Found(19, "PULL_NOT_FOUND", where.next_begin, low, high, bytearray())
        if isinstance(where, OffsetMoved):
            return Found(21, "PULL_OFFSET_MOVED", where.next_begin, low, high, bytearray())
        count = min(max(fields.max_msg_nums, 1), limits.PULL_MESSAGES_MAX)
        bytes_max = _STOCK_BYTES if count <= _STOCK_MESSAGES else limits.PULL_BYTES_MAX
        if fields.max_msg_bytes > 0:
            bytes_max = min(fields.max_msg_bytes, limits.PULL_BYTES_MAX)
        outgoing = self._gateway.outgoing
        if outgoing.is_near:
            if outgoing.is_over:  # not parked: it comes again at once, and by then others were closed
                return Found(20, "NO_MATCHED_MESSAGE", start, low, high, bytearray())
            bytes_max = min(bytes_max, SMALL_PULL_BYTES)
        entries = self._store.read_queue(
            topic.topic_id, fields.queue_id, start, count if tags is None else limits.PULL_SCAN_MAX
        )
        body, next_offset, given = self._collect(entries, start, tags, count, bytes_max)
        if body:
            self.on_given(fields.consumer_group, topic.name, topic.topic_id, fields.queue_id, next_offset, given)
            return Found(0, "FOUND", next_offset, low, high, body)
        if not entries or next_offset < start + len(entries):
            return self._damaged(topic, fields.queue_id, next_offset, low, high)
        if next_offset > start:
            return Found(20, "NO_MATCHED_MESSAGE", next_offset, low, high, body)
        return Found(19, "PULL_NOT_FOUND", start, low, high, body)

    def _collect(
        self, entries: list[QueueEntry], start: int, tags: Tags, count: int, bytes_max: int
    ) -> tuple[bytearray, int, int]:
        """(messages as they leave, the offset behind the last entry that was looked at, how many). The first always fits.

        It ends before an entry that names no message of its size, and is not trimmed: that is damage.
        """
        body = bytearray()
        at = 0
        queue_offset = start
        left = count
        log_start = self._view.log_start
        stored_view = self._store.stored_view
        ahead_until = _dense_until(entries, count, bytes_max)
        for offset, message_bytes, tag_hash, visible_at, store_time_ms, half_index, _ in entries:
            if tags is None or tag_hash in tags:
                end = at + message_bytes
                if end > bytes_max and at:
                    break
                try:
                    ahead = ahead_until - offset
                    body += stored_view(offset, ahead if ahead > 0 else message_bytes + _HEADS_BYTES)
                except LookupError:
                    if visible_at >= log_start:
                        break
                    queue_offset += 1  # trimmed since: gone, as in RocketMQ's MESSAGE_WAS_REMOVING
                    continue
                except StoreDamaged:
                    if not at:
                        raise
                    break  # what is before it leaves; the next pull is told
                if len(body) != end:
                    del body[at:]
                    break
                if half_index != -1:
                    first_offset = self._store.first_offset(offset) if half_index >= 0 else offset
                    _patch(body, at, offset, queue_offset, store_time_ms, half_index, first_offset)
                at = end
                left -= 1
            queue_offset += 1
            if not left:
                break
        return body, queue_offset, count - left

    def _damaged(
        self, topic: TopicView, queue_id: int, queue_offset: int, low: int, high: int, error: Exception | None = None
    ) -> Found:
        """The answer where an entry, or what it names, is damaged: the consumer stays there, nothing is skipped."""
        text = f"topic {topic.name} queue {queue_id}: the message at offset {queue_offset} cannot be read: " + (
            f"{error}; nothing is skipped"
            if error is not None
            else "its queue entry, or the log where it points, is damaged (nothing is skipped; `halfmq store verify` says "
            "what to do)"
        )
        if self._damage_said.is_due((topic.topic_id, queue_id, queue_offset)):
            log.error("%s", text)
        return Found(ResponseCode.SYSTEM_ERROR, text, queue_offset, low, high, bytearray())

    def _answer(self, connection: Connection, request: Request[Any], found: Found) -> None:
        if not request.flag & 2:
            body = found.body
            head = encode_pull_response_head(
                request, found.code, found.remark, found.next_offset, found.min_offset, found.max_offset, len(body)
            )
            connection.send(head)
            if body:
                connection.send(body)
                connection.relieve(len(body))

    def _refuse(self, connection: Connection, request: Request[Any], code: int, remark: str) -> None:
        self._gateway.answer(connection, request, code, remark)

    # --- parked

    def _may_park(self, connection: Connection, fields: Any) -> bool:
        return bool(
            fields.sys_flag & _SUSPEND
            and fields.suspend_timeout_millis > 0
            and not self._gateway.draining
            and len(self._of_connection.get(connection.number, ())) < PARKED_MAX
        )

    def _park(self, connection: Connection, request: Request[Any], topic: TopicView, tags: Tags) -> None:
        fields = request.ext
        queue = (topic.topic_id, fields.queue_id)
        self._next_key += 1
        key = self._next_key
        wait_ms = min(fields.suspend_timeout_millis, limits.PULL_SUSPEND_MAX_MS)
        timer = self._loop.call_later(wait_ms / 1000, self._time_is_up, queue, key)
        wanted = Wanted(
            fields.consumer_group, fields.queue_id, fields.queue_offset, fields.max_msg_nums, fields.max_msg_bytes
        )
        request = Request(
            code=request.code, ext=wanted, flag=request.flag, opaque=request.opaque, binary=request.binary
        )
        self.parked_bytes += _cost(tags)
        self._oldest[key] = queue
        self._parked.setdefault(queue, {})[key] = Parked(connection, request, topic, tags, timer)
        self._of_connection.setdefault(connection.number, {})[key] = queue
        while self.parked_bytes > limits.PARKED_BYTES_MAX:
            oldest = next(iter(self._oldest))
            self._time_is_up(self._oldest[oldest], oldest)

    def _unpark(self, queue: tuple[int, int], key: int) -> Parked | None:
        there = self._parked.get(queue)
        parked = there.pop(key, None) if there is not None else None
        if parked is None or there is None:
            return None
        if not there:
            del self._parked[queue]
        del self._oldest[key]
        self.parked_bytes -= _cost(parked.tags)
        parked.timer.cancel()
        mine = self._of_connection.get(parked.connection.number)
        if mine is not None:
            mine.pop(key, None)
            if not mine:
                del self._of_connection[parked.connection.number]
        return parked

    def wake(self, effect: WakeQueue) -> None:
        """Messages became visible in this queue: its parked pulls look again; who finds nothing new stays parked."""
        there = self._parked.get((effect.topic_id, effect.queue_id))
        if not there:
            return
        queue = (effect.topic_id, effect.queue_id)
        if len(there) <= WOKEN_MAX:
            for key in list(there):
                self._look_again(queue, key)
        else:
            self._wake_some(queue, deque(there))

    def _wake_some(self, queue: tuple[int, int], keys: deque[int]) -> None:
        """The next of many: others have their turn in between."""
        for _ in range(min(WOKEN_MAX, len(keys))):
            key = keys.popleft()
            if key in self._parked.get(queue, ()):
                self._look_again(queue, key)
        self._gateway.flush()
        if keys:
            self._loop.call_soon(self._wake_some, queue, keys)

    def _look_again(self, queue: tuple[int, int], key: int) -> None:
        """Answer a parked pull if there is something for it, and if its connection takes answers."""
        parked = self._parked[queue][key]
        if parked.connection.is_full:
            self._missed.add(parked.connection.number)
            return
        found = self._look(parked.topic, parked.request.ext, parked.tags)
        if found.code != ResponseCode.PULL_NOT_FOUND:
            self._unpark(queue, key)
            self._answer(parked.connection, parked.request, found)

    def drained(self, connection: Connection) -> None:
        """The connection takes answers again: what its parked pulls missed meanwhile."""
        if connection.number in self._missed:
            self._missed.discard(connection.number)
            for key, queue in list(self._of_connection.get(connection.number, {}).items()):
                self._look_again(queue, key)

    def _time_is_up(self, queue: tuple[int, int], key: int) -> None:
        parked = self._unpark(queue, key)
        if parked is not None:
            found = self._look(parked.topic, parked.request.ext, parked.tags)
            if found.body and parked.connection.is_full:  # "nothing new" keeps no messages; it will pull again
                start = parked.request.ext.queue_offset
                found = Found(19, "PULL_NOT_FOUND", start, found.min_offset, found.max_offset, bytearray())
            self._answer(parked.connection, parked.request, found)
            self._gateway.flush()

    def connection_closed(self, number: int) -> None:
        self._missed.discard(number)
        for key, queue in list(self._of_connection.get(number, {}).items()):
            self._unpark(queue, key)

    def release_all(self) -> None:
        """Answer every parked pull now: the broker drains, or a topic is gone."""
        for queue, there in list(self._parked.items()):
            for key in list(there):
                self._time_is_up(queue, key)


def _dense_until(entries: list[QueueEntry], count: int, bytes_max: int) -> int:
    """Log offset up to which one read serves the first ``count`` of these entries; 0 where they lie too far apart."""
    if len(entries) < 2:
        return 0
    offset, message_bytes = entries[0][:2]
    number = min(count, len(entries), 1 + bytes_max // max(1, message_bytes))
    last = entries[number - 1]
    end = last.offset + last.message_bytes + _HEADS_BYTES
    return end if end - offset <= number * (message_bytes + _FAR_BYTES) else 0


def _patch(
    body: bytearray, at: int, offset: int, queue_offset: int, store_time_ms: int, half_index: int, first_offset: int
) -> None:
    """What consumers see of a half or a delayed message: its place, the time it became visible, where it lies now.

    Its prepared offset is the half's first one, as its producer was answered: carrying a half forward does not change it.
    """
    _INT64.pack_into(body, at + AT_PHYSICAL_OFFSET, offset)
    if half_index >= 0:
        patch_committed(body, at, queue_offset, store_time_ms, first_offset)
    else:
        patch_released(body, at, queue_offset, store_time_ms)


def _cost(tags: Tags) -> int:
    return _PARKED_COST + (_TAG_COST * len(tags) if tags else 0)


def _nothing(context: None, reply: Reply | Failed) -> None:
    """Nobody waits for this reply."""
