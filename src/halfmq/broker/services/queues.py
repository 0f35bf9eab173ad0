"""Bounds of queues, offsets of groups, and the content of queues at one position.

Everything is read before the high watermark, so a crash reverts nothing of it except new topics: the front door withholds ``position``
until they are durable. Consumer offsets are session state without a promise: they may be returned at once.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from halfmq import limits
from halfmq.broker.peers.peer import Peer
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.topics import deliver
from halfmq.core.commands import Actor, CommitOffset
from halfmq.core.decision import Done, Failed, Refused, Why
from halfmq.core.queues.assignment import assigned_queues
from halfmq.core.queues.offsets import PossiblyUnlogged, Stored, query_offset
from halfmq.errors import StoreDamaged
from halfmq.limits import SIZE_SAMPLE_MESSAGES
from halfmq.model.queue_reads import Position, TopicBounds
from halfmq.model.steps import Steps
from halfmq.store.store import Store

#: A queue that was never trimmed counts as new while the log from its first message on is not longer than this. A new group starts
#: a new queue at its beginning, whatever its clients say. In RocketMQ "new" means that the first message is still in memory
#: (``checkInDiskByConsumeOffset``, 40% of the machine's). It matters for a topic created by its first message: a consumer that waited
#: for it would otherwise skip that very message.
NEW_QUEUE_BYTES: Final = 1 << 30
#: Maximum number of messages whose sizes one request adds up: about 2 ms of the event loop.
FITTING_MAX: Final = 4_096
#: Number of queues between two places where ``position`` may be interrupted.
_QUEUES_AT_ONCE: Final = 256


class Queues:
    """A read raises StoreDamaged or OSError if the disk cannot read: refuse that one request, serve others."""

    def __init__(self, sequencer: Sequencer, store: Store) -> None:
        self._sequencer = sequencer
        self._store = store
        self._view = sequencer.view

    # --- bounds

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """(first offset in the queue, offset after the last message); (0, 0) if the queue does not exist."""
        known = self._view.topics_by_name.get(topic)
        return (0, 0) if known is None else self._store.bounds(known.topic_id, queue_id)

    def offset_at(self, topic: str, queue_id: int, time_ms: int, *, upper: bool) -> int:
        """The offset of the first message stored at ``time_ms`` or later, or the queue's end; ``upper``: of the last message stored at
        ``time_ms`` or before, or 0. As RocketMQ's boundary type. 0 if the topic does not exist.
        """
        known = self._view.topics_by_name.get(topic)
        return 0 if known is None else self._store.search_by_time(known.topic_id, queue_id, time_ms, upper=upper)

    def earliest_ms(self, topic: str, queue_id: int) -> int | None:
        """Store time of the first message in the queue, ms; None: there is none."""
        known = self._view.topics_by_name.get(topic)
        if known is None:
            return None
        first = self._store.read_queue(known.topic_id, queue_id, self._store.bounds(known.topic_id, queue_id)[0], 1)
        return first[0].store_time_ms if first else None

    def fitting(self, topic: str, queue_id: int, start: int, end: int, bytes_max: int) -> tuple[int, int]:
        """(number, bytes) of the visible messages from ``start`` on, before ``end``, whose stored sizes add up to at most ``bytes_max``.

        Examines at most ``FITTING_MAX`` messages: ask again after them. (0, 0) if the next one is larger or does not exist.
        """
        known = self._view.topics_by_name.get(topic)
        wanted = min(end - start, FITTING_MAX)
        if known is None or wanted < 1 or start < 0:
            return 0, 0
        count = size_bytes = 0
        for entry in self._store.read_queue(known.topic_id, queue_id, start, wanted):
            if size_bytes + entry.message_bytes > bytes_max:
                break
            count += 1
            size_bytes += entry.message_bytes
        return count, size_bytes

    def position(
        self, names: Iterable[str], samples: Mapping[str, Sequence[tuple[int, int]]]
    ) -> Steps[Position | Refused]:
        """Bounds of every queue of these topics at one position, with the sizes of ``samples`` by topic (``sampled_sizes``); topics that do
        not exist are omitted. INVALID_PARAMETER: too many queues.
        """
        position = self._view.session.published
        known = [topic for name in names if (topic := self._view.topics_by_name.get(name)) is not None]
        queues = sum([len(topic.ends) for topic in known])
        if queues > limits.POSITION_QUEUES_MAX:
            text = f"these topics have {queues} queues, and a response has at most {limits.POSITION_QUEUES_MAX}: name fewer topics"
            return Refused(Why.INVALID_PARAMETER, text)
        topics = {}
        for topic in known:
            bounds: list[tuple[int, int]] = []
            for queue_id in range(len(topic.ends)):
                if not queue_id % _QUEUES_AT_ONCE:
                    yield
                bounds.append(self._store.bounds_at(topic.topic_id, queue_id, position))
            sizes = self.sampled_sizes(topic.name, samples.get(topic.name, ()))
            topics[topic.name] = TopicBounds(topic.topic_id, tuple(bounds), sizes)
        return Position(self._store.uuid, self._view.epoch, position, topics)

    def sampled_sizes(self, topic: str, samples: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
        """For each (queue, offset): how many messages from the offset on were examined, at most ``SIZE_SAMPLE_MESSAGES``, and their bytes
        in the log. (0, 0): there are none, or their entries cannot be read.

        Bound the number of samples: each is one read of the disk. They are estimates, so damage does not fail the others; a pull reports
        it.
        """
        known = self._view.topics_by_name.get(topic)
        if known is None:
            return ()
        found = []
        for queue_id, offset in samples:
            try:
                entries = self._store.read_queue(known.topic_id, queue_id, offset, SIZE_SAMPLE_MESSAGES)
            except (StoreDamaged, OSError):
                entries = []
            found.append((len(entries), sum(entry.message_bytes for entry in entries)))
        return tuple(found)

    # --- groups

    def assigned(self, group: str, topic: str, client_id: str, *, strategy: str, is_broadcasting: bool) -> range | None:
        """The queues of the topic that this member reads, if the group leaves the assignment to the broker.

        None: the topic or the group's members are not known (yet): the client keeps its queues and asks again soon.
        ``strategy``: RocketMQ's name, see ``core.queues.assignment``.
        """
        known = self._view.topics_by_name.get(topic)
        session = self._view.session.consumers.get(group)
        if known is None or session is None or not session.members:
            return None
        if is_broadcasting:
            return range(known.read_queues)
        members = [member.client_id for member in session.members.values()]
        return assigned_queues(strategy, known.read_queues, members, client_id)

    def consumer_offset(self, group: str, topic: str, queue_id: int, *, new_from_start: bool) -> int | None:
        """The group's next offset in the queue. None: it has no offset, and its clients choose where to begin.

        A submitted offset counts from its turn on: a client that commits and queries at once gets its response after that turn
        (``Sequencer.after_turn``).

        ``new_from_start``: a group without an offset begins a new queue at its first message, see ``NEW_QUEUE_BYTES``.
        """
        known = query_offset(self._view, group, topic, queue_id)
        if isinstance(known, Stored):
            return known.offset
        if isinstance(known, PossiblyUnlogged):
            return self.bounds(topic, queue_id)[0]
        return 0 if new_from_start and self._is_new(topic, queue_id) else None

    def _is_new(self, topic: str, queue_id: int) -> bool:
        known = self._view.topics_by_name.get(topic)
        if known is None:
            return False
        low, high = self._store.bounds(known.topic_id, queue_id)
        if low > 0 or high == 0:
            return False
        first = self._store.read_queue(known.topic_id, queue_id, 0, 1)
        return bool(first) and self._view.session.published - first[0].offset <= NEW_QUEUE_BYTES

    def commit_offset(
        self,
        peer: Peer,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        waits: bool,
        answer: Callable[[Done | Refused | Failed], None],
    ) -> None:
        """Commit the group's offset. A lower one is valid: that is how offsets are reset.

        ``waits``: the peer waits for the response. Consumers do not; a peer that does and is not a member of the group is an operator, whom
        the log records.

        Refusals: TOPIC_NOT_EXIST, GROUP_NOT_EXIST, INVALID_PARAMETER: there is nothing to commit. LIMIT_REACHED: it is known until the
            next start only.
        """
        by = Actor(peer.user, peer=peer.address) if waits and not self._is_member(peer, group) else None
        self._sequencer.submit(CommitOffset(group, topic, queue_id, offset, by), deliver, answer)

    def _is_member(self, peer: Peer, group: str) -> bool:
        session = self._view.session.consumers.get(group)
        return session is not None and peer.number in session.members
