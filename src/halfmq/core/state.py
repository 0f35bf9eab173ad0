"""What the broker knows, in memory, in three parts:

    State           durable: only ``apply`` changes it, live and in redo; bases and snapshots hold it
    .derived        follows from it and makes decisions fast; never stored
    .session        who is connected, what was published: a restart forgets it

A topic, a producer group and its policy have the same parts: what is their own is durable, ``.derived`` and ``.session`` are not.

Undecided transactions and their halves are immutable and are replaced on change, so that a snapshot is a copy of references
and can be encoded in another thread.
"""

from collections import deque
from collections.abc import Mapping
from heapq import heappop
from typing import Any, Final, NamedTuple

import msgspec

from halfmq import limits
from halfmq.core.decision import Effect, WakeQueue
from halfmq.core.transaction.next_check import NextCheck
from halfmq.model.placement import segment_start
from halfmq.model.properties import CLUSTER, REAL_QID, REAL_TOPIC, TRACED
from halfmq.model.records import BATCH_HEADER_BYTES, MESSAGE_AT, Record
from halfmq.model.settings import BrokerSettings, GroupSettings, ProducerSettings, caps
from halfmq.model.stored_message import size_of

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
#: Checks that fall due within this span wait in one bucket; rounded up, so that none is early. A power of two, ms.
CHECK_BUCKET_MS: Final = 64
#: Bytes that one held queue, or one client that holds some, may take in a base; the client's id not counted.
HOLDER_BYTES: Final = 12
#: Up to this many groups nobody asks whether they hold anything.
GROUPS_KEPT_MIN: Final = 1_024
#: Later than any time.
NEVER_MS: Final = 1 << 62


# What there are very many of: structs that the collector leaves alone (``gc=False``: they hold numbers, text and each other, so no
# cycle can form), and that a snapshot has as arrays of their fields, in this order.


class Half(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One undecided half: where it is and what its queue entry will say."""

    index: int
    half_index: int
    #: Where its bytes lie now; another than ``first_offset`` once it was copied forward.
    offset: int
    #: Its identity for clients (``commitLogOffset``).
    first_offset: int
    topic_id: int
    queue_id: int
    message_bytes: int
    tag_hash: int
    key_hash: int
    #: As ``message_facts.delay_of`` says it; applied at commit.
    delay: int


class Undecided(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One transaction without a verdict."""

    group: str
    tx_id: str
    #: Sorted by index, which is unique among them.
    halves: tuple[Half, ...]
    #: How many halves it has in all; 0 while the last one has not said so.
    count: int
    #: Broker time of the first half, ms.
    prepared_at_ms: int
    #: No check before this; each further half moves it on, since the application is evidently at work.
    grace_until_ms: int
    #: Checks sent.
    checks: int
    #: At or after ``grace_until_ms`` while no check was sent.
    next_check: NextCheck


class Delayed(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A stored message that nobody sees before ``due_ms``."""

    offset: int
    first_offset: int
    half_index: int
    topic_id: int
    queue_id: int
    message_bytes: int
    due_ms: int
    tag_hash: int
    key_hash: int


class Verdict(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A verdict of the recent past."""

    group: str
    tx_id: str
    committed: bool
    #: Log offset of its record.
    position: int
    settled_at_ms: int
    #: Plain numbers where there is one half, which is the common case: that saves a quarter of the memory.
    half_indexes: int | tuple[int, ...]
    #: -1 where redo found the rollback but no longer the half.
    first_offsets: int | tuple[int, ...]
    decided_by: int


class RecentMessage(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A plain message that may be sent again."""

    unique_id: str
    topic_id: int
    body_crc: int
    log_offset: int
    queue_id: int
    queue_offset: int
    stored_at_ms: int
    #: 0 when another run of the broker stored it.
    connection: int


class TopicDerived:
    """What follows from the messages of a topic."""

    __slots__ = ("groups", "pending", "sent")

    def __init__(self) -> None:
        #: Undecided halves and delayed messages that will come to this topic.
        self.pending = 0
        #: Consumer groups that have an offset in it, or had one refused. Some of them are deleted.
        self.groups: dict[str, None] = {}
        #: Unique id to the newest message of ``State.sent`` that has it.
        self.sent: dict[str, RecentMessage] = {}


class TopicSession:
    """What a restart forgets of a topic."""

    __slots__ = ("turn",)

    def __init__(self) -> None:
        #: Counts up with each message whose sender leaves the choice of a queue to the broker.
        self.turn = 0


class Topic:
    """One topic. The fields of its own are durable, or constants that follow from its name and the broker's settings."""

    __slots__ = (
        "derived", "ends", "exempt", "frame_bytes", "half_suffixes", "mins", "name", "permission", "plain_suffix", "read_queues",
        "session", "topic_id", "wakes", "write_queues",
    )  # fmt: skip

    def __init__(
        self, settings: BrokerSettings, topic_id: int, name: str, read_queues: int, write_queues: int, permission: int
    ) -> None:
        self.topic_id = topic_id
        self.name = name
        self.read_queues = read_queues
        self.write_queues = write_queues
        self.permission = permission
        #: Per queue: the next queue offset. As long as the most queues that the topic ever had.
        self.ends: list[int] = []
        #: Per queue: the first queue offset that the log still holds.
        self.mins: list[int] = []
        self.derived = TopicDerived()
        self.session = TopicSession()
        # Constants, computed once for the hot path.
        #: Copies of messages keep their unique id here, so nothing is taken for sent again.
        self.exempt = name.startswith((RETRY_PREFIX, DLQ_PREFIX))
        #: Size of a message or half record without born host, body and properties.
        self.frame_bytes = MESSAGE_AT + size_of(len(name), 0, 0, 0, len(settings.store_host))
        #: What is added to the properties of a plain message and, per queue, of a half message.
        self.plain_suffix = f"{CLUSTER}\x01{settings.cluster}\x02{TRACED}".encode()
        self.half_suffixes: list[bytes] = []
        self.wakes: list[tuple[WakeQueue, ...]] = []
        self.resize(settings, read_queues, write_queues)

    def resize(self, settings: BrokerSettings, read_queues: int, write_queues: int) -> None:
        """Take new queue counts. Queues that are no longer written keep their ends."""
        self.read_queues = read_queues
        self.write_queues = write_queues
        self.keep_queues(settings, max(read_queues, write_queues))

    def keep_queues(self, settings: BrokerSettings, queues: int) -> None:
        """Have ends and ready-made parts for at least this many queues."""
        for queue_id in range(len(self.ends), queues):
            self.ends.append(0)
            self.mins.append(0)
            self.half_suffixes.append(
                f"{REAL_TOPIC}\x01{self.name}\x02{REAL_QID}\x01{queue_id}\x02".encode() + self.plain_suffix
            )
            self.wakes.append((WakeQueue(self.topic_id, queue_id),))


#: Where a message of one decision will stand: topic, queue id, records and effects of the same decision that come before it
#: (a new topic), log offset. Without a name of its own, as ``decision.Decided``.
Place = tuple[Topic, int, tuple[Record, ...], tuple[Effect, ...], int]


class InFlight(NamedTuple):
    """A check that may still be answered."""

    until_ms: int
    connection: int


class Heard(NamedTuple):
    """The last UNKNOWN about a transaction."""

    at_ms: int
    remark: str


class QueueLock(NamedTuple):
    """Who may handle a queue in order, and until when."""

    client_id: str
    until_ms: int


class Jump(NamedTuple):
    """A start whose time was further ahead of the log than is plausible; see ``core.clock_jumps``."""

    #: Of its record.
    offset: int
    #: Before it, ms.
    at_ms: int
    by_ms: int


class PolicySession:
    """How far the policy of a producer group has got: made anew when the policy changes, and at a start."""

    __slots__ = ("left", "past", "scan", "scan_at_ms", "scan_next_ms")

    def __init__(self) -> None:
        #: Ids that were past a limit when they were looked at; who takes one looks again. Each once, however it got here:
        #: the decision that settles it does not see its own records.
        self.past: dict[str, None] = {}
        #: Id -> number of its last allowed check, which reached a producer in time to be answered. Some are settled.
        self.left: dict[str, int] = {}
        #: Ids that are still to be looked at in this round, which goes on in the next tick; the next round begins at
        #: ``scan_at_ms``, at ``NEVER_MS`` if the policy does not go by age.
        self.scan: deque[str] = deque()
        self.scan_at_ms = 0
        #: What the round says so far about when the next one is worth it.
        self.scan_next_ms = NEVER_MS


class Policy:
    """The policy of a producer group that does not wait for ever."""

    __slots__ = ("session", "settings")

    def __init__(self, settings: ProducerSettings) -> None:
        #: Durable, also in ``State.producer_settings``.
        self.settings = settings
        self.session = PolicySession()


class ProducerDerived:
    """What follows from the undecided transactions of a producer group."""

    __slots__ = ("bytes", "scheduled", "suspended")

    def __init__(self) -> None:
        #: Message bytes of all undecided halves.
        self.bytes = 0
        #: Undecided ids by the bucket of their ``Scheduled``, until the bucket's time has come.
        self.scheduled: dict[int, dict[str, None]] = {}
        #: Undecided ids that are ``Suspended``, in that order: an operator asks about the first ones first.
        self.suspended: dict[str, None] = {}


class ProducerSession:
    """Who of a producer group is connected, and what was asked."""

    __slots__ = (
        "due",
        "early",
        "full_until_ms",
        "heard",
        "held_polls",
        "in_flight",
        "members",
        "number",
        "pollers",
        "turn",
    )  # fmt: skip

    def __init__(self, number: int) -> None:
        #: Ascending in ``State.producer_groups``, so that who pages through all can go on.
        self.number = number
        #: Live connections, in order of registration, with their client ids.
        self.members: dict[int, str] = {}
        #: Live connections that fetch their checks instead of being sent them, with their client ids; and of these
        #: the ones that wait for some now, with how many they take.
        self.pollers: dict[int, str] = {}
        self.held_polls: dict[int, int] = {}
        #: Counts up with each check, so that members take turns.
        self.turn = 0
        #: Ids whose bucket's time has come. Some were settled or asked since; who takes one looks again.
        self.due: deque[str] = deque()
        #: Ids that are asked about before their time, since a producer connected; the same holds. Apart from ``due``, since
        #: what is due goes first, and here the schedule is not looked at.
        self.early: deque[str] = deque()
        #: By id. Deadlines ascend. Apart from the schedule, since a lost connection ends it.
        self.in_flight: dict[str, InFlight] = {}
        #: While as many checks are in flight as may be, and more are to be sent: when the first of them is overdue. Else 0.
        self.full_until_ms = 0
        #: By id, for ``story``.
        self.heard: dict[str, Heard] = {}


class ProducerGroup:
    """One producer group: its undecided transactions, recent verdicts, and who can be asked."""

    __slots__ = (
        "derived", "name", "policy", "session", "settled", "undecided", "undecided_bytes_max", "undecided_max",
    )  # fmt: skip

    def __init__(self, name: str, settings: BrokerSettings, number: int = 0) -> None:
        self.name = name
        #: From the group's own settings or the broker's.
        self.undecided_max = settings.undecided_max
        self.undecided_bytes_max = settings.undecided_bytes_max
        #: None: its transactions wait for ever.
        self.policy: Policy | None = None
        #: In order of preparation.
        self.undecided: dict[str, Undecided] = {}
        #: Recent verdicts by id, each also in ``State.verdicts``.
        self.settled: dict[str, Verdict] = {}
        self.derived = ProducerDerived()
        self.session = ProducerSession(number)


class Subscription(NamedTuple):
    topic: str
    #: Tags separated by ``||``, ``*``, or an SQL92 expression.
    expression: str
    expression_type: str
    #: The client's clock at subscription, ms: the newer one wins.
    version: int


class Member(NamedTuple):
    client_id: str
    version: int
    language: str


class ConsumerSession:
    """Who consumes in a group, and what. A restart forgets all of it; its settings are in ``State.groups``."""

    __slots__ = (
        "consume_type",
        "from_where",
        "locks",
        "locks_checked_at_ms",
        "members",
        "message_model",
        "subscriptions",
    )

    def __init__(self) -> None:
        self.members: dict[int, Member] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.message_model = "CLUSTERING"
        self.consume_type = ""
        self.from_where = ""
        #: (topic, queue id) -> its lock, for ordered consumption.
        #: Change them with the functions of ``queues.ordering``, or count them in ``SessionState.locks_held``.
        self.locks: dict[tuple[str, int], QueueLock] = {}
        #: When those that ran out were dropped.
        self.locks_checked_at_ms = 0


class DerivedState:
    """What follows from durable state and is kept for speed: redo and a snapshot make it again, and nothing of it is stored.

    Whoever changes durable state keeps it in step; ``transaction.invariants.check`` compares the two.
    """

    __slots__ = (
        "base_bytes", "copied", "delayed_heap", "group_deadlines", "groups_bytes", "held_by", "holders_bytes", "looking", "policies",
        "undecided_bytes", "undecided_count", "undecided_groups",
    )  # fmt: skip

    def __init__(self) -> None:
        #: At least as many bytes as a base takes (``base_bytes``, which counts them); the first number is of an empty one.
        self.base_bytes = 128
        #: Of these, what consumer groups take beside their offsets.
        self.groups_bytes = 0
        #: Segment start -> message bytes of what is undecided or delayed and was copied there; see ``core.copies``.
        self.copied: dict[int, int] = {}
        #: Topic id -> groups that hold the lock of a queue of it.
        self.held_by: dict[int, dict[str, None]] = {}
        #: At least as many bytes as ``holders`` takes in a base.
        self.holders_bytes = 0
        #: (ms, producer group name), a heap: when a tick has to do something in which group. Every bucket of
        #: ``ProducerDerived.scheduled``, every ``ProducerSession.full_until_ms``, and ``PolicySession.scan_at_ms`` of a policy
        #: that rests are in it; other entries are not true any more, or not first. So a tick costs what is due, not how many
        #: groups there are.
        self.group_deadlines: list[tuple[int, str]] = []
        #: Undecided transactions of all groups, bytes of their messages, and how many groups have any.
        self.undecided_count = 0
        self.undecided_bytes = 0
        self.undecided_groups = 0
        #: Producer groups with a policy: while there is none, ticks and connections pay nothing for policies.
        self.policies: dict[str, None] = {}
        #: Of these the ones that the next tick has to look at, in the order in which they take turns. Apart from
        #: ``SessionState.asking``, since a policy acts also while nobody is connected, and a look costs more than a check.
        self.looking: dict[str, None] = {}
        #: (due ms, first offset), a heap; every delayed message is in it, or in ``SessionState.delayed_postponed``.
        self.delayed_heap: list[tuple[int, int]] = []


class SessionState:
    """What a restart forgets and clients say again: only ``session.apply_session`` changes it."""

    __slots__ = (
        "answered",
        "asking",
        "consumers",
        "consumes",
        "copy_progress",
        "delayed_postponed",
        "disk_full",
        "fresh_offsets",
        "groups_kept_max",
        "groups_numbered",
        "locks_checked_at_ms",
        "locks_held",
        "offsets_due",
        "offsets_due_heap",
        "offsets_logged",
        "offsets_refused",
        "offsets_to_log",
        "produces",
        "published",
        "sender",
    )  # fmt: skip

    def __init__(self) -> None:
        #: First offsets of delayed messages that are not shown in this run: their bytes could not be copied.
        self.delayed_postponed: set[int] = set()
        self.disk_full = False
        #: Readers see the log below this position.
        self.published = 0
        #: Answers below this position have left; at or after ``published``.
        self.answered = 0
        #: Connection behind the command whose records are applied; 0 during redo. The engine sets it.
        self.sender = 0
        #: Groups with entries in ``due`` or ``early`` and somebody who can be asked now, in the order in which they take
        #: turns. Some have lost one or the other since: who takes one looks again. A group without anybody comes back when
        #: somebody registers or polls, one with as many checks in flight as may be when an answer comes, or is overdue.
        self.asking: dict[str, None] = {}
        self.consumers: dict[str, ConsumerSession] = {}
        #: Queue locks of all of them; and when those that ran out were looked for among all.
        self.locks_held = 0
        self.locks_checked_at_ms = 0
        #: Connection -> names of the producer and consumer groups that it registered in.
        self.produces: dict[int, dict[str, None]] = {}
        self.consumes: dict[int, dict[str, None]] = {}
        #: The last number that a producer group got.
        self.groups_numbered = 0
        #: With this many groups, those that hold nothing are forgotten.
        self.groups_kept_max = GROUPS_KEPT_MIN
        #: Consumer offsets not yet logged, by group, then (topic id, queue id).
        self.fresh_offsets: dict[str, dict[tuple[int, int], int]] = {}
        #: Those that were refused for want of space in a base, until there is some: who asks is told them.
        self.offsets_refused: dict[str, dict[tuple[int, int], int]] = {}
        #: Group -> when its fresh offsets shall be logged, ms; and the same as a heap, with some entries that are no longer true.
        #: ``offsets_to_log``: those whose time has come, which are in the heap no more.
        self.offsets_due: dict[str, int] = {}
        self.offsets_to_log: dict[str, None] = {}
        self.offsets_due_heap: list[tuple[int, str]] = []
        #: Group -> when its offsets were logged last, ms.
        self.offsets_logged: dict[str, int] = {}
        #: How far a trim is prepared, a ``transaction.retention.CopyProgress``. None: nobody has begun.
        self.copy_progress: Any = None


class State:
    """Durable state, which only ``apply`` changes, with what is derived from it and the session.

    Make one, redo the log into it with ``apply`` or ``snapshot.load_rows``, then let commands in. Its first record ever is the base of the
    first segment that the log still has.
    """

    __slots__ = (
        "bases", "batch_open", "batch_time_ms", "caps", "delayed", "derived", "epoch", "epoch_grace_ms", "groups", "holders",
        "jumps", "loaded", "log_end", "log_start", "next_half_index", "next_topic_id", "offsets", "producer_groups",
        "producer_settings", "record_bytes_max", "sent", "session", "settings", "topics_by_id", "topics_by_name", "verdicts",
    )  # fmt: skip

    def __init__(self, settings: BrokerSettings) -> None:
        self.settings = settings
        #: How many topics and consumer groups there may be.
        self.caps = caps(settings)
        #: Most bytes of records that one decision may need: half a segment, so that it fits after any base.
        self.record_bytes_max = min(limits.TRANSACTION_BYTES_MAX + (1 << 20), settings.segment_bytes // 2)
        self.derived = DerivedState()
        self.session = SessionState()
        #: False until the first base was applied.
        self.loaded = False
        #: Where the next record starts: after the last one in an open batch, else after its padding.
        self.log_end = 0
        self.log_start = 0
        self.batch_open = False
        #: Broker time of the open or last batch.
        self.batch_time_ms = 0
        self.epoch = 0
        #: What a half rests that asks for nothing else, in this epoch, ms; -1 where its start did not say so.
        self.epoch_grace_ms = -1
        #: Of starts that nobody has confirmed.
        self.jumps: tuple[Jump, ...] = ()
        self.next_topic_id = 1
        self.next_half_index = 0
        #: The same topics by name and by id; ids must not be reused.
        self.topics_by_name: dict[str, Topic] = {}
        self.topics_by_id: dict[int, Topic] = {}
        self.groups: dict[str, GroupSettings] = {}
        #: Who was granted the lock of a queue last, by group, then (topic id, queue id). Change it with ``set_holders``.
        self.holders: dict[str, dict[tuple[int, int], str]] = {}
        #: Of the producer groups that an administrator gave limits or a policy; each is also in ``producer_groups``.
        self.producer_settings: dict[str, ProducerSettings] = {}
        #: Logged consumer offsets, by group, then (topic id, queue id). Topics that are gone have none.
        self.offsets: dict[str, dict[tuple[int, int], int]] = {}
        self.producer_groups: dict[str, ProducerGroup] = {}
        #: By first offset.
        self.delayed: dict[int, Delayed] = {}
        #: Recent verdicts, oldest first, within ``dedup_window_ms`` and ``dedup_ids_max``, at or after the log's start.
        self.verdicts: deque[Verdict] = deque()
        #: Recent plain messages, oldest first, within the same bounds. Some are no longer the newest of their id.
        self.sent: deque[RecentMessage] = deque()
        #: Segment start -> ((topic id, queue ends), ...) when it began: what a trim to there leaves as queue minimums.
        self.bases: dict[int, tuple[tuple[int, tuple[int, ...]], ...]] = {}

    @property
    def grace_ms(self) -> int:
        """What a half rests that asks for nothing else, ms. Of its epoch, not of today's settings: redo must agree."""
        said = self.epoch_grace_ms
        return said if said >= 0 else self.settings.check_immunity_ms

    def producer_group(self, name: str) -> ProducerGroup:
        """The group, made if it was never heard of. It is durable only by what it holds."""
        group = self.producer_groups.get(name)
        if group is None:
            self.session.groups_numbered += 1
            group = self.producer_groups[name] = ProducerGroup(name, self.settings, self.session.groups_numbered)
        return group


def drop_stale_deadlines(state: State) -> None:
    """Restore that the first of ``group_deadlines`` is true. For whoever removed a bucket or moved a time."""
    heap = state.derived.group_deadlines
    while heap:
        at_ms, name = heap[0]
        group = state.producer_groups.get(name)
        if group is not None:
            policy = group.policy
            if at_ms in group.derived.scheduled or group.session.full_until_ms == at_ms:
                return
            if policy is not None and policy.session.scan_at_ms == at_ms:
                return
        heappop(heap)


def drop_stale_offsets(state: State) -> None:
    """See to it that the first of ``offsets_due_heap`` is when a group's offsets are due. For who changed that."""
    heap = state.session.offsets_due_heap
    while heap and state.session.offsets_due.get(heap[0][1]) != heap[0][0]:
        heappop(heap)


def take_turn(state: State, group: ProducerGroup) -> None:
    """If the group has somebody to ask, and something to ask about: the next tick looks at it."""
    if (group.session.due or group.session.early) and (group.session.members or group.session.held_polls):
        state.session.asking[group.name] = None


def set_holders(state: State, group: str, holders: dict[tuple[int, int], str]) -> None:
    """The group's queues are held by these clients; none: by nobody."""
    before = state.holders.pop(group, None) or {}
    state.derived.holders_bytes += holders_bytes(holders) - holders_bytes(before)
    if holders:
        state.holders[group] = holders
    topics_before = {topic_id for topic_id, _ in before}
    topics_now = {topic_id for topic_id, _ in holders}
    for topic_id in topics_now - topics_before:
        state.derived.held_by.setdefault(topic_id, {})[group] = None
    for topic_id in topics_before - topics_now:
        groups = state.derived.held_by[topic_id]
        del groups[group]
        if not groups:
            del state.derived.held_by[topic_id]


def holders_bytes(holders: Mapping[tuple[int, int], str]) -> int:
    """At least what they take in the group's record: each client once, with its queues."""
    clients = set(holders.values())
    return HOLDER_BYTES * (len(holders) + len(clients)) + sum([len(client.encode()) for client in clients])


def next_offset(state: State) -> int:
    """Where the next record will start."""
    return state.log_end if state.batch_open else state.log_end + BATCH_HEADER_BYTES


def current_segment(state: State) -> int:
    """Start of the segment that the next record goes to."""
    return segment_start(next_offset(state), state.settings.segment_bytes)
