"""Pulls: messages of one queue from an offset on, or a wait until there are some.

    checks in RocketMQ's order: group, topic, queue, subscription -> one read -> found, no match, offset moved, or nothing new
    nothing new and the peer offers to wait -> held -> read again when the queue gets messages, or at the timeout

A pull reads entries before the high watermark only, so a crash can revert nothing that is sent, and a transaction is visible in all its
queues at once. Tags are filtered by their hash in the entry; the client compares the strings. The messages of a response are one
bytearray, patched where the stored bytes differ from what consumers see.

A held pull lives at most ``limits.PULL_SUSPEND_MAX_MS``, less than the time after which a Java client closes its connection (30 s), and
not longer than its peer.
"""

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Final, NamedTuple

from halfmq import limits
from halfmq.broker.peers.outgoing_bytes import OutgoingBytes
from halfmq.broker.peers.peer import Peer
from halfmq.broker.peers.shares import owner_of
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.tag_filter import Filter, parse_filter
from halfmq.broker.services.topics import GroupsOnUse
from halfmq.core.commands import CommitOffset
from halfmq.core.decision import Failed, Refused, WakeQueue, Why
from halfmq.core.queues.pull_place import AtEnd, place
from halfmq.core.state import State, Topic
from halfmq.errors import StoreDamaged
from halfmq.model.queue_reads import PullRequest
from halfmq.model.share import share_of
from halfmq.model.stored_message import AT_PHYSICAL_OFFSET, patch_committed, patch_released
from halfmq.runtime.log_throttle import LogThrottle
from halfmq.store.consume_queue import QueueEntry
from halfmq.store.store import Store

log = logging.getLogger("halfmq.pulls")

#: Topics of RocketMQ for half messages and verdicts, which consumers may not read.
SYSTEM_TOPICS: Final = frozenset({"RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"})
#: RocketMQ's tools pull with this group without being members; every broker has it. A reader that commits nothing leaves nothing
#: behind: no group, no ``%RETRY%`` topic.
TOOLS_GROUP: Final = "TOOLS_CONSUMER"
#: ``ConsumerSession.message_model`` of members that each get every message.
_BROADCASTING: Final = "BROADCASTING"
_READ: Final = 4
#: RocketMQ's maximum from memory, for a client that requests its 32 messages or fewer.
_ROCKETMQ_MESSAGES: Final = 32
_ROCKETMQ_BYTES: Final = 262_144
#: Maximum size of a response while clients do not read theirs; the first message always fits.
SMALL_PULL_BYTES: Final = 65_536
#: Maximum number of held pulls of one peer; further ones get "nothing new" at once.
HELD_MAX: Final = 4_096
_INT64: Final = struct.Struct(">q")
#: More than the head of any record with a message, which is read with it.
_HEADS_BYTES: Final = 96
#: Reading this many unneeded bytes costs less than another read.
_FAR_BYTES: Final = 12_288

#: Memory of one held pull without its filter, bytes.
_HELD_COST: Final = 1_024
#: At the limit for them, one part in so many is freed at once.
_ANSWERED_PART: Final = 256
#: Maximum number of held pulls of one queue that are read for in one go: a few ms for each hundred.
WOKEN_MAX: Final = 1_000


class Status(Enum):
    """Result of a pull."""

    FOUND = "found"
    #: There is nothing after the offset yet, and the wait is over.
    NOTHING_NEW = "nothing new"
    #: The messages up to ``next_offset`` do not match. Pull again from there, at once.
    NO_MATCH = "no match"
    #: The offset is outside of the queue; ``next_offset`` is the nearest one in it.
    OFFSET_MOVED = "offset moved"
    #: The message at ``next_offset``, or its queue entry, is damaged. Nothing is skipped; ``text`` is for people.
    UNREADABLE = "unreadable"


#: Reading a member of an enumeration takes longer than a global; these are used by every pull.
_FOUND: Final = Status.FOUND
_NOTHING_NEW: Final = Status.NOTHING_NEW


class Pulled(NamedTuple):
    """Result of a read. ``body``: the messages in the stored layout, as consumers see them; only if FOUND."""

    status: Status
    #: Pull from here next.
    next_offset: int
    #: The first offset in the queue, and the offset after its last.
    min_offset: int
    max_offset: int
    body: bytearray
    #: For UNREADABLE.
    text: str = ""


Answer = Callable[[Pulled | Refused | Failed], None]


class HeldPull(NamedTuple):
    """A pull that found nothing and waits for messages."""

    peer: Peer
    #: Without its subscription, which may be long.
    request: PullRequest
    topic: Topic
    selection: Filter
    answer: Answer
    timer: asyncio.TimerHandle


class _PullsOfPeer(dict[int, tuple[int, int]]):
    """Key -> queue of the held pulls of one peer."""

    __slots__ = ("memory_bytes", "peer")

    def __init__(self, peer: Peer) -> None:
        super().__init__()
        self.peer = peer
        self.memory_bytes = 0


class Pulls:
    """Serves pulls from the queues, and holds those that find nothing."""

    def __init__(
        self,
        sequencer: Sequencer,
        store: Store,
        loop: asyncio.AbstractEventLoop,
        groups: GroupsOnUse,
        outgoing: OutgoingBytes,
        flush: Callable[[], None],
    ) -> None:
        """``flush``: called after responses that belong to no request and no turn of the sequencer, so that they are sent."""
        self._sequencer = sequencer
        self._store = store
        self._loop = loop
        self._groups = groups
        self._outgoing = outgoing
        self._flush = flush
        self._view = sequencer.view
        #: (topic id, queue id) -> key -> held pull; queues without any are absent.
        self._held: dict[tuple[int, int], dict[int, HeldPull]] = {}
        #: Peer's number -> its held pulls. Same pulls as in ``_held``.
        self._of_peer: dict[int, _PullsOfPeer] = {}
        #: Peers that did not read when there were messages for one of their held pulls.
        self._missed: set[int] = set()
        #: Key -> queue of every held pull, the oldest first.
        self._oldest: dict[int, tuple[int, int]] = {}
        self.held_bytes = 0
        self._draining = False
        self._next_key = 0
        #: Called with (group, topic, topic id, queue id, offset after the last, number) of messages given to a member.
        self.on_given: Callable[[str, str, int, int, int, int], None] = lambda *given: None
        self._damage_said = LogThrottle(loop.time)

    @property
    def held(self) -> int:
        """Number of held pulls."""
        return sum(map(len, self._held.values()))

    @property
    def has_held(self) -> bool:
        """Whether any pull is held."""
        return bool(self._held)

    # --- a pull arrives

    def pull(self, peer: Peer, request: PullRequest, answer: Answer) -> None:
        """Respond with messages, at once or when there are some.

        ``answer`` may be kept for ``limits.PULL_SUSPEND_MAX_MS``: it must not reference anything large of the request.

        Refusals: NO_PERMISSION, TOPIC_NOT_EXIST, INVALID_PARAMETER, GROUP_NOT_EXIST, LIMIT_REACHED: as named.
            SUBSCRIPTION_NOT_EXIST, SUBSCRIPTION_NOT_LATEST: send a heartbeat, and pull again.
            SUBSCRIPTION_PARSE_FAILED, FILTER_NOT_SUPPORTED: of the expression and its type.
        """
        group, commit_offset = request.group, request.commit_offset
        if group not in self._view.groups and (group != TOOLS_GROUP or commit_offset is not None):
            self._groups.ensure(group, partial(self._ensured, peer, request, answer))
            return
        topic = readable(self._view, request.group, request.topic, request.queue_id)
        if isinstance(topic, Refused):
            answer(topic)
            return
        selection = self._filter(request)
        if isinstance(selection, Refused):
            answer(selection)
            return
        if commit_offset is not None:
            self._sequencer.submit(CommitOffset(group, request.topic, request.queue_id, commit_offset), None)
        pulled = self._look(topic, request, selection)
        if pulled.status is _NOTHING_NEW and self._may_park(peer, request):
            self._hold(peer, request, topic, selection, answer)
        else:
            answer(pulled)

    def _ensured(self, peer: Peer, request: PullRequest, answer: Answer, refused: Refused | Failed | None) -> None:
        if refused is not None:
            answer(refused)
        elif peer.is_open:
            self.pull(peer, request, answer)

    def _filter(self, request: PullRequest) -> Filter | Refused:
        """The filter of the subscription, from the pull or from the group's heartbeat."""
        group, topic = request.group, request.topic
        if request.subscription is not None:
            expression, expression_type = request.subscription, request.expression_type
        else:
            session = self._view.session.consumers.get(group)
            if session is None or not session.members:
                return Refused(Why.SUBSCRIPTION_NOT_EXIST, f"no consumer of group {group} is registered")
            settings = self._view.groups.get(group)
            if session.message_model == _BROADCASTING and settings is not None and not settings.broadcast_enabled:
                return Refused(Why.NO_PERMISSION, f"group {group} may not consume by broadcasting")
            known = session.subscriptions.get(topic)
            if known is None:
                return Refused(Why.SUBSCRIPTION_NOT_EXIST, f"group {group} is not subscribed to {topic}")
            if known.version < request.subscription_version:
                text = f"the subscription of {group} to {topic} is newer than its heartbeat"
                return Refused(Why.SUBSCRIPTION_NOT_LATEST, text)
            expression, expression_type = known.expression, known.expression_type
        return parse_filter(expression, expression_type or "")

    # --- one look

    def _look(self, topic: Topic, request: PullRequest, selection: Filter) -> Pulled:
        """Read for this pull. It never raises because of unreadable data: a wake-up comes from the sequencer's turn."""
        try:
            return self._look_at(topic, request, selection)
        except (StoreDamaged, OSError) as error:
            return self._damaged(topic, request.queue_id, request.queue_offset, 0, 0, error)

    def _look_at(self, topic: Topic, request: PullRequest, selection: Filter) -> Pulled:
        start, queue_id = request.queue_offset, request.queue_id
        low, high = self._store.bounds(topic.topic_id, queue_id)
        where = place(start, low, high)
        if where is not None:
            if isinstance(where, AtEnd):
                return Pulled(_NOTHING_NEW, where.offset, low, high, bytearray())
            return Pulled(Status.OFFSET_MOVED, where.nearest, low, high, bytearray())
        count = min(max(request.messages_max, 1), limits.PULL_MESSAGES_MAX)
        bytes_max = _ROCKETMQ_BYTES if count <= _ROCKETMQ_MESSAGES else limits.PULL_BYTES_MAX
        if request.bytes_max > 0:
            bytes_max = min(request.bytes_max, limits.PULL_BYTES_MAX)
        outgoing = self._outgoing
        if outgoing.near_limit:
            if outgoing.over_limit:  # not held: it comes again at once, and by then other connections were closed
                return Pulled(Status.NO_MATCH, start, low, high, bytearray())
            bytes_max = min(bytes_max, SMALL_PULL_BYTES)
        scanned = count if selection.tag_hashes is None else limits.PULL_SCAN_MAX
        entries = self._store.read_queue(topic.topic_id, queue_id, start, scanned)
        body, next_offset, given = self._collect(entries, start, selection, count, bytes_max)
        if body:
            self.on_given(request.group, topic.name, topic.topic_id, queue_id, next_offset, given)
            return Pulled(_FOUND, next_offset, low, high, body)
        if not entries or next_offset < start + len(entries):
            return self._damaged(topic, queue_id, next_offset, low, high)
        return Pulled(Status.NO_MATCH, next_offset, low, high, body)

    def _collect(
        self, entries: list[QueueEntry], start: int, selection: Filter, count: int, bytes_max: int
    ) -> tuple[bytearray, int, int]:
        """(messages to send, offset after the last examined entry, number of messages). The first one always fits.

        It ends before an entry that refers to no message of its size and is not trimmed, which is damage.
        """
        body = bytearray()
        at = 0
        queue_offset = start
        left = count
        tag_hashes = selection.tag_hashes
        log_start = self._view.log_start
        stored_view = self._store.stored_view
        ahead_until = _dense_until(entries, count, bytes_max)
        half_batch, moved_by = -1, 0
        for offset, message_bytes, tag_hash, visible_at, store_time_ms, half_index, _ in entries:
            if tag_hashes is None or tag_hash in tag_hashes:
                end = at + message_bytes
                if end > bytes_max and at:
                    break
                try:
                    ahead = ahead_until - offset
                    body += stored_view(offset, ahead if ahead > 0 else message_bytes + _HEADS_BYTES)
                except LookupError:
                    if visible_at >= log_start:
                        break
                    queue_offset += 1  # trimmed meanwhile: skipped, as with RocketMQ's MESSAGE_WAS_REMOVING
                    continue
                except StoreDamaged:
                    if not at:
                        raise
                    break  # return what is before it; the next pull reports the damage
                if len(body) != end:
                    del body[at:]
                    break
                if half_index != -1:
                    # Messages with one half index are of one half batch, which was copied as a whole. Finding where it was first reads
                    # its head; to do that for each message would read ``ahead`` bytes again for the next one.
                    if half_index != half_batch:
                        half_batch = half_index
                        moved_by = offset - self._store.first_offset(offset) if half_index >= 0 else 0
                    _patch(body, at, offset, queue_offset, store_time_ms, half_index, offset - moved_by)
                at = end
                left -= 1
            queue_offset += 1
            if not left:
                break
        return body, queue_offset, count - left

    def _damaged(
        self, topic: Topic, queue_id: int, queue_offset: int, low: int, high: int, error: Exception | None = None
    ) -> Pulled:
        """The result if an entry, or its message, is damaged: the consumer stays there, nothing is skipped."""
        text = f"topic {topic.name} queue {queue_id}: the message at offset {queue_offset} cannot be read: " + (
            f"{error}; nothing is skipped"
            if error is not None
            else "its queue entry, or the log where it points, is damaged (nothing is skipped; `halfmq store verify` says "
            "what to do)"
        )
        if self._damage_said.is_due((topic.topic_id, queue_id, queue_offset)):
            log.error("%s", text)
        return Pulled(Status.UNREADABLE, queue_offset, low, high, bytearray(), text)

    # --- held

    def _may_park(self, peer: Peer, request: PullRequest) -> bool:
        return request.wait_ms > 0 and not self._draining and len(self._of_peer.get(peer.number, ())) < HELD_MAX

    def _hold(self, peer: Peer, request: PullRequest, topic: Topic, selection: Filter, answer: Answer) -> None:
        queue = (topic.topic_id, request.queue_id)
        self._next_key += 1
        key = self._next_key
        wait_ms = min(request.wait_ms, limits.PULL_SUSPEND_MAX_MS)
        timer = self._loop.call_later(wait_ms / 1000, self._time_is_up, queue, key)
        self.held_bytes += _HELD_COST + selection.memory_bytes
        self._oldest[key] = queue
        request.subscription, request.expression_type = None, ""
        self._held.setdefault(queue, {})[key] = HeldPull(peer, request, topic, selection, answer, timer)
        mine = self._of_peer.get(peer.number)
        if mine is None:
            mine = self._of_peer[peer.number] = _PullsOfPeer(peer)
        mine[key] = queue
        mine.memory_bytes += _HELD_COST + selection.memory_bytes
        if self.held_bytes > limits.HELD_BYTES_MAX:
            self._answer_some()

    def _answer_some(self) -> None:
        """Answer the oldest held pulls; if one user, or one address, has more than its share of the memory, the oldest ones of that one.

        A few more than necessary, since all peers that hold any are looked at.
        """
        most = limits.HELD_BYTES_MAX
        of_owner: dict[str, list[_PullsOfPeer]] = {}
        for mine in self._of_peer.values():
            of_owner.setdefault(owner_of(mine.peer), []).append(mine)
        flooding: set[int] | None = None
        for all_of_one in of_owner.values():
            if sum([mine.memory_bytes for mine in all_of_one]) > share_of(most):
                flooding = {mine.peer.number for mine in all_of_one}
        too_much = self.held_bytes - (most - most // _ANSWERED_PART)
        answered = []
        for key, queue in self._oldest.items():
            held = self._held[queue][key]
            if flooding is None or held.peer.number in flooding:
                answered.append((queue, key))
                too_much -= _HELD_COST + held.selection.memory_bytes
                if too_much <= 0:
                    break
        for queue, key in answered:
            self._time_is_up(queue, key)

    def _release(self, queue: tuple[int, int], key: int) -> HeldPull | None:
        there = self._held.get(queue)
        held = there.pop(key, None) if there is not None else None
        if held is None or there is None:
            return None
        if not there:
            del self._held[queue]
        del self._oldest[key]
        self.held_bytes -= _HELD_COST + held.selection.memory_bytes
        held.timer.cancel()
        mine = self._of_peer.get(held.peer.number)
        if mine is not None:
            mine.pop(key, None)
            mine.memory_bytes -= _HELD_COST + held.selection.memory_bytes
            if not mine:
                del self._of_peer[held.peer.number]
        return held

    def wake(self, effect: WakeQueue) -> None:
        """Messages became visible in this queue: read again for its held pulls; those without new messages stay held.

        The caller flushes the responses.
        """
        there = self._held.get((effect.topic_id, effect.queue_id))
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
            if key in self._held.get(queue, ()):
                self._look_again(queue, key)
        self._flush()
        if keys:
            self._loop.call_soon(self._wake_some, queue, keys)

    def _look_again(self, queue: tuple[int, int], key: int) -> None:
        """Serve a held pull if there are messages for it and its peer reads."""
        held = self._held[queue][key]
        if held.peer.is_full:
            self._missed.add(held.peer.number)
            return
        pulled = self._look(held.topic, held.request, held.selection)
        if pulled.status is not _NOTHING_NEW:
            self._release(queue, key)
            held.answer(pulled)

    def drained(self, peer: Peer) -> None:
        """The peer reads again: serve its held pulls that missed messages. The caller flushes the responses."""
        if peer.number in self._missed:
            self._missed.discard(peer.number)
            for key, queue in list(self._of_peer.get(peer.number, {}).items()):
                self._look_again(queue, key)

    def _time_is_up(self, queue: tuple[int, int], key: int) -> None:
        held = self._release(queue, key)
        if held is not None:
            pulled = self._look(held.topic, held.request, held.selection)
            if pulled.body and held.peer.is_full:  # "nothing new" keeps no messages; the client will pull again
                start = held.request.queue_offset
                pulled = Pulled(_NOTHING_NEW, start, pulled.min_offset, pulled.max_offset, bytearray())
            held.answer(pulled)
            self._flush()

    def peer_gone(self, number: int) -> None:
        """Remove its held pulls."""
        self._missed.discard(number)
        for key, queue in list(self._of_peer.get(number, {}).items()):
            self._release(queue, key)

    def drain(self) -> None:
        """The broker stops: respond to every held pull now, and hold no more."""
        self._draining = True
        for queue, there in list(self._held.items()):
            for key in list(there):
                self._time_is_up(queue, key)


def response_bytes_max(outgoing: OutgoingBytes, bytes_max: int) -> int | Refused:
    """The maximum of a response that may have ``bytes_max``: less while clients do not read theirs. Refusal NOT_NOW: ask again."""
    if not outgoing.near_limit:
        return bytes_max
    if outgoing.over_limit:
        return Refused(Why.NOT_NOW, "clients do not read their responses: ask again in a moment")
    return min(bytes_max, SMALL_PULL_BYTES)


def readable(view: State, group: str, name: str, queue_id: int) -> Topic | Refused:
    """The topic, or why the group may not read this queue of it, in RocketMQ's order."""
    settings = view.groups.get(group)
    if settings is not None and not settings.consume_enabled:
        return Refused(Why.NO_PERMISSION, f"group {group} may not consume")
    if name in SYSTEM_TOPICS:
        return Refused(Why.NO_PERMISSION, f"{name} is the broker's own and may not be consumed")
    topic = view.topics_by_name.get(name)
    if topic is None:
        return Refused(Why.TOPIC_NOT_EXIST, f"topic {name} does not exist, apply first please!")
    if not topic.permission & _READ:
        return Refused(Why.NO_PERMISSION, f"topic {name} may not be read")
    if not 0 <= queue_id < topic.read_queues:
        text = f"queue {queue_id} of topic {name} does not exist; it has {topic.read_queues}"
        return Refused(Why.INVALID_PARAMETER, text)
    return topic


def _dense_until(entries: list[QueueEntry], count: int, bytes_max: int) -> int:
    """Log offset up to which one read serves the first ``count`` of these entries; 0 if they are too far apart."""
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
    """Patch the fields of a half or a delayed message for consumers: its place, the time it became visible, its current offset.

    Its prepared offset is the half's first one, which its producer knows: copying a half forward does not change it.
    """
    _INT64.pack_into(body, at + AT_PHYSICAL_OFFSET, offset)
    if half_index >= 0:
        patch_committed(body, at, queue_offset, store_time_ms, first_offset)
    else:
        patch_released(body, at, queue_offset, store_time_ms)
