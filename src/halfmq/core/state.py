"""The broker's state in memory, in three parts:

    State           durable: only ``apply`` changes it, live and in redo; bases and snapshots contain it
    .derived        computed to make decisions fast, mostly from durable state; never stored
    .session        connections, subscriptions, the high watermark: lost by a restart

A topic, a producer group and a policy have the same three parts: their own fields are durable, ``.derived`` and ``.session``
are not.

The one exception in ``producer_groups`` is an empty ``ProducerGroup``: it contains nothing durable. ``apply`` or a session event creates it
on first use of its name, and ``session.forget_idle_groups`` removes it.

Undecided transactions and their halves are immutable and are replaced on change. A snapshot is therefore a copy of references
and can be encoded in another thread.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from heapq import heappop
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec

from halfmq import limits
from halfmq.core.decision import WakeQueue
from halfmq.model.coordinator import Coordinator
from halfmq.model.properties import CLUSTER, REAL_QID, REAL_TOPIC, TRACED
from halfmq.model.query_batch import query_text
from halfmq.model.records import (
    BATCH_HEADER_BYTES,
    MESSAGE_AT,
    Committed,
    Decided,
    Half,
    ParkedBecause,
    Record,
    RolledBack,
    parked_because,
)
from halfmq.model.runtime_settings import RecordedSetting
from halfmq.model.settings import BrokerSettings, GroupSettings, ProducerSettings, caps
from halfmq.model.share import share_of
from halfmq.model.stored_message import size_of
from halfmq.model.users import User

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
#: Width of a bucket of scheduled checks, ms, a power of two. Due times are rounded up, so that no check is early.
CHECK_BUCKET_MS: Final = 64
#: ``(at_ms + CHECK_ROUND_UP) & CHECK_BUCKET_MASK`` is the bucket of a due time.
CHECK_ROUND_UP: Final = CHECK_BUCKET_MS - 1
CHECK_BUCKET_MASK: Final = -CHECK_BUCKET_MS
#: Maximum size in a base of one held queue, or of one client that holds some without its id.
HOLDER_BYTES: Final = 12
#: Up to this number of groups, empty groups are not searched for.
GROUPS_KEPT_MIN: Final = 1_024
#: Later than any time.
NEVER_MS: Final = 1 << 62


# Structs for what exists in large numbers. They contain numbers, text and each other, so no cycle is possible and the garbage
# collector can ignore them (``gc=False``). A snapshot contains them as arrays of their fields, in this order.


_by_place: Final = attrgetter("attempt", "index")


def place_of(halves: tuple[Half, ...], attempt: str, index: int) -> int:
    """Where the half with this attempt and index is in ``halves``, sorted as those of a transaction, or would be inserted.

    A batch of a query may have tens of thousands of half batches, so this is a binary search.
    """
    return bisect_left(halves, (attempt, index), key=_by_place)


class Undecided(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One transaction without a verdict."""

    group: str
    tx_id: str
    #: Sorted by attempt and index, which are unique in the transaction.
    halves: tuple[Half, ...]
    #: Total number of halves; 0 until the last one states it.
    count: int
    #: Broker time of the first half, ms.
    prepared_at_ms: int
    #: No check before this time. Each further half moves it, since the application is evidently still at work.
    grace_until_ms: int
    #: Checks sent.
    checks: int
    #: Broker time, ms; until the first check is sent, not before ``grace_until_ms``. As in records: later than any time if it is parked.
    next_check: int
    #: Who alone settles it, apart from operators and a policy; None: its producer. Absent in snapshots of earlier versions.
    coordinator: Coordinator | None = None
    #: The name of who sent all of its halves; "": the broker had no users. Absent in snapshots of earlier versions.
    user: str = ""

    @property
    def parked(self) -> ParkedBecause | None:
        """Why no check is sent automatically; None: one is."""
        return parked_because(self.next_check)


class Delayed(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A stored message that becomes visible at ``due_ms``."""

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
    """A recent verdict."""

    group: str
    tx_id: str
    committed: bool
    #: Log offset of its record.
    position: int
    settled_at_ms: int
    #: A plain number for a single half, the common case; that saves a quarter of the memory.
    half_indexes: int | tuple[int, ...]
    #: -1 if redo read the rollback but not the half.
    first_offsets: int | tuple[int, ...]
    decided_by: int


class RecentMessage(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A plain message in the deduplication window."""

    unique_id: str
    topic_id: int
    body_crc: int
    log_offset: int
    queue_id: int
    queue_offset: int
    stored_at_ms: int
    #: 0 if an earlier run of the broker stored it.
    connection: int


class Comparison(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A verdict that neither the application nor its marker gave, and what is known of the local transaction."""

    group: str
    tx_id: str
    committed: bool
    decided_by: int
    #: The operator's name; "" if it was none.
    by: str
    #: Where its first half was at the verdict, whose properties a reader of markers needs; -1: not known, and not needed.
    half_offset: int
    prepared_at_ms: int
    settled_at_ms: int
    #: Log offset of the verdict, or of the record directly after it.
    position: int
    #: Who reported the opposite local outcome, and when, broker time ms; 0: nobody has, so that it is still to be compared.
    source: str = ""
    found_at_ms: int = 0

    @property
    def is_finding(self) -> bool:
        return self.found_at_ms > 0


class QueryDecision(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The decision on a batch of a query: what the batch contains, and the log offset of the record."""

    batch: int
    digest: bytes
    position: int


class TakenEpoch(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The newest epoch of a coordinator: who took it, and when, broker time ms."""

    epoch: int
    taken_by: str
    taken_at_ms: int


class HeldByUser(msgspec.Struct, gc=False):
    """What a user has undecided. Changed in place, since that is done twice for each transaction."""

    transactions: int = 0
    #: Of their messages.
    message_bytes: int = 0


#: (producer group, name) of a coordinator.
CoordinatorKey = tuple[str, str]
#: Key of a query in ``State.queries``; see ``transaction.queries``.
QueryKey = tuple[str, str]


class Query:
    """A query whose batches become visible at most once each. Durable; forgotten only if it said that it is over."""

    __slots__ = ("decisions", "group", "is_over", "key", "rolled_back_batch", "run", "stream", "superseded", "topic")

    def __init__(self, key: QueryKey, group: str) -> None:
        self.key = key
        #: As in ``query_batch.QueryBatch``; both "" until a record states a topic.
        self.topic = ""
        self.stream = ""
        #: Its producer group, which gets the checks.
        self.group = group
        #: The newest run, and earlier ones, newest first, at most ``limits.QUERY_RUNS_MAX``: what they still send is refused.
        self.run = ""
        self.superseded: tuple[str, ...] = ()
        #: The last batch of this run that was rolled back, which this run cannot prepare again; -1: none.
        self.rolled_back_batch = -1
        #: Whether its last decision said that there are no further batches.
        self.is_over = False
        #: By batch, ascending, the newest ``limits.QUERY_DECISIONS_MAX``. Every batch up to the last one is decided.
        self.decisions: dict[int, QueryDecision] = {}

    @property
    def name(self) -> str:
        return self.key[0]

    @property
    def text(self) -> str:
        """For people."""
        return query_text(self.name, self.topic)

    @property
    def last_batch(self) -> int:
        """The last decided batch; -1: none is."""
        return next(reversed(self.decisions), -1)


class TopicDerived:
    """Computed from the messages of a topic."""

    __slots__ = ("delayed", "groups", "pending", "sent")

    def __init__(self) -> None:
        #: Undecided halves and delayed messages of this topic; and how many of them are delayed messages.
        self.pending = 0
        self.delayed = 0
        #: Consumer groups that have, or were refused, an offset in it. Some no longer exist.
        self.groups: dict[str, None] = {}
        #: Unique id -> the newest message of ``State.sent`` with that id.
        self.sent: dict[str, RecentMessage] = {}


class TopicSession:
    """Session state of a topic."""

    __slots__ = ("round_robin_index",)

    def __init__(self) -> None:
        #: Incremented for each message whose sender leaves the choice of the queue to the broker.
        self.round_robin_index = 0


class Topic:
    """One topic. Its own fields are durable, or constants computed from its name and the broker's settings."""

    __slots__ = (
        "derived", "ends", "exempt", "frame_bytes", "half_suffixes", "message_type", "mins", "name", "ordered", "permission",
        "plain_suffix", "read_queues", "session", "topic_id", "wakes", "write_queues",
    )  # fmt: skip

    def __init__(
        self, settings: BrokerSettings, topic_id: int, name: str, read_queues: int, write_queues: int, permission: int
    ) -> None:
        self.topic_id = topic_id
        self.name = name
        self.read_queues = read_queues
        self.write_queues = write_queues
        self.permission = permission
        #: Labels of an administrator, who reads them again; nothing here depends on them.
        self.ordered = False
        self.message_type = ""
        #: Next queue offset of each queue. As long as the maximum number of queues that the topic ever had.
        self.ends: list[int] = []
        #: First queue offset of each queue that is still in the log.
        self.mins: list[int] = []
        self.derived = TopicDerived()
        self.session = TopicSession()
        # Constants, computed once for the hot path.
        #: No deduplication here: copies of messages keep their unique id.
        self.exempt = name.startswith((RETRY_PREFIX, DLQ_PREFIX))
        #: Size of a message or half record without born host, body and properties.
        self.frame_bytes = MESSAGE_AT + size_of(len(name), 0, 0, 0, len(settings.store_host))
        #: Appended to the properties of a plain message and, for each queue, of a half message.
        self.plain_suffix = f"{CLUSTER}\x01{settings.cluster}\x02{TRACED}".encode()
        self.half_suffixes: list[bytes] = []
        self.wakes: list[tuple[WakeQueue, ...]] = []
        self.resize(settings, read_queues, write_queues)

    def resize(self, settings: BrokerSettings, read_queues: int, write_queues: int) -> None:
        """Set new queue counts. Queues that are no longer written keep their ends."""
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


#: Where a message of one decision will stand: topic, queue id, records of the same decision that come before it (a new topic), log
#: offset. A plain tuple, as ``decision.DecisionTuple``.
Destination = tuple[Topic, int, tuple[Record, ...], int]


class InFlight(NamedTuple):
    """A check whose response is awaited."""

    until_ms: int
    connection: int


class LastUnknown(NamedTuple):
    """The last UNKNOWN about a transaction."""

    at_ms: int
    remark: str


class QueueLock(NamedTuple):
    """The client that may consume a queue in order, and until when."""

    client_id: str
    until_ms: int
    #: Whose the client was when it took the lock; "": nobody knows, since it is from before the start.
    owner: str = ""


class Jump(NamedTuple):
    """A start whose time was implausibly far ahead of the log; see ``core.clock_jumps``."""

    #: Log offset of its record.
    offset: int
    #: Broker time before it, ms.
    at_ms: int
    by_ms: int


class PolicySession:
    """Progress of the policy of a producer group. Reset by a change of the policy and by a restart."""

    __slots__ = ("last_check_delivered", "past", "scan", "scan_at_ms", "scan_next_ms")

    def __init__(self) -> None:
        #: Ids that exceeded a limit when last checked; check again before use. Each id once, however it got here: a decision does
        #: not see its own records.
        self.past: dict[str, None] = {}
        #: Id -> number of its last allowed check that reached a producer in time for a response. Some are settled.
        self.last_check_delivered: dict[str, int] = {}
        #: Ids still to check in this round, which continues in the next tick. The next round begins at ``scan_at_ms``, which is
        #: ``NEVER_MS`` if the policy has no age limit.
        self.scan: deque[str] = deque()
        self.scan_at_ms = 0
        #: Earliest time at which the next round is useful, as far as this round knows.
        self.scan_next_ms = NEVER_MS


class Policy:
    """The policy of a producer group whose transactions do not wait indefinitely."""

    __slots__ = ("session", "settings")

    def __init__(self, settings: ProducerSettings) -> None:
        #: Durable, also in ``State.producer_settings``.
        self.settings = settings
        self.session = PolicySession()


class ProducerDerived:
    """Computed from the undecided transactions of a producer group."""

    __slots__ = ("bytes", "parked", "scheduled")

    def __init__(self) -> None:
        #: Message bytes of all undecided halves.
        self.bytes = 0
        #: Undecided ids by the bucket of their next check, until the bucket is due.
        self.scheduled: dict[int, dict[str, None]] = {}
        #: Undecided ids that are parked, in the order of suspension, which is the order of an operator's checks.
        self.parked: dict[str, None] = {}


class ProducerSession:
    """Connected producers of a group, and the checks sent to them."""

    __slots__ = (
        "due",
        "early",
        "full_until_ms",
        "held_polls",
        "in_flight",
        "last_unknown",
        "members",
        "number",
        "pollers",
        "round_robin_index",
    )  # fmt: skip

    def __init__(self, number: int) -> None:
        #: Ascending in ``State.producer_groups``, so that a listing of all groups can continue after a page.
        self.number = number
        #: Live connections, in order of registration -> client id.
        self.members: dict[int, str] = {}
        #: Live connections that fetch their checks instead of receiving them -> client id; and, of these, those with an open request
        #: -> how many checks it accepts.
        self.pollers: dict[int, str] = {}
        self.held_polls: dict[int, int] = {}
        #: Incremented by each check, so that members take turns.
        self.round_robin_index = 0
        #: Ids whose bucket is due. Some were settled or checked since; check again before use.
        self.due: deque[str] = deque()
        #: Ids to check before their time because a producer connected; check again before use. Separate from ``due``, which has
        #: priority, and independent of the schedule.
        self.early: deque[str] = deque()
        #: By id, in ascending order of deadlines. Separate from the schedule, since a lost connection removes entries.
        self.in_flight: dict[str, InFlight] = {}
        #: Deadline of the oldest check in flight while the limit of checks in flight delays others; else 0.
        self.full_until_ms = 0
        #: By id, for ``story``.
        self.last_unknown: dict[str, LastUnknown] = {}


class ProducerGroup:
    """One producer group: its undecided transactions, recent verdicts, and connected producers."""

    __slots__ = (
        "derived", "name", "policy", "session", "settled", "undecided", "undecided_bytes_max", "undecided_max",
    )  # fmt: skip

    def __init__(self, name: str, settings: BrokerSettings, number: int = 0) -> None:
        self.name = name
        #: From the group's own settings or the broker's.
        self.undecided_max = settings.undecided_max
        self.undecided_bytes_max = settings.undecided_bytes_max
        #: None: its transactions wait indefinitely.
        self.policy: Policy | None = None
        #: In order of preparation.
        self.undecided: dict[str, Undecided] = {}
        #: Recent verdicts by id, each also in ``State.verdicts``.
        self.settled: dict[str, Verdict] = {}
        self.derived = ProducerDerived()
        self.session = ProducerSession(number)


class Subscription(NamedTuple):
    """What a consumer group reads of one topic."""

    topic: str
    #: Tags separated by ``||``, ``*``, or an SQL92 expression.
    expression: str
    expression_type: str
    #: The client's clock at subscription, ms. The newer version wins.
    version: int


class Member(NamedTuple):
    """A client in a consumer group, as it described itself in its last heartbeat. ``version``: number of the client library's version."""

    client_id: str
    version: int
    language: str


class ConsumerSession:
    """Members of a consumer group and their subscriptions. Lost by a restart; the group's settings are in ``State.groups``."""

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
        #: Change it only with the functions of ``queues.ordering``, which keep ``SessionState.locks_held``.
        self.locks: dict[tuple[str, int], QueueLock] = {}
        #: Time of the last removal of expired locks, ms.
        self.locks_checked_at_ms = 0


class DerivedState:
    """Computed from durable state for speed. Redo and a snapshot rebuild it; none of it is stored.

    Code that changes durable state must update it; ``tests/support/invariants.py`` compares the two. ``group_deadlines`` and
    ``policies_due`` also follow session events: checks in flight and the rounds of policies enter and leave them.
    """

    __slots__ = (
        "base_bytes", "coordinators_of_group", "copied", "delayed_heap", "group_deadlines", "groups_bytes", "held_by", "holders_bytes", "idle_queries", "policies", "policies_due", "queries_bytes", "query_of_run",
        "undecided_bytes", "undecided_count", "undecided_delayed", "undecided_groups", "undecided_of_coordinator", "undecided_of_query", "undecided_of_user", "unused_queries", "users_limited_from",
        "verdict_forgotten",
    )  # fmt: skip

    def __init__(self) -> None:
        #: Upper bound of the size of a base (``base_bytes`` computes it). The initial value is that of an empty base.
        self.base_bytes = 128
        #: Share of the consumer groups without their offsets.
        self.groups_bytes = 0
        #: Share of the queries.
        self.queries_bytes = 0
        #: Segment start -> bytes of undecided and delayed messages that were copied there; see ``core.copies``.
        self.copied: dict[int, int] = {}
        #: Topic id -> groups that hold a lock of one of its queues.
        self.held_by: dict[int, dict[str, None]] = {}
        #: Upper bound of the size of ``holders`` in a base.
        self.holders_bytes = 0
        #: Heap of (ms, producer group name): when a tick has work in which group. It contains every bucket of
        #: ``ProducerDerived.scheduled``, every ``ProducerSession.full_until_ms``, and ``PolicySession.scan_at_ms`` of every policy
        #: between two rounds. Other entries are obsolete and never first. The cost of a tick thus depends on what is due, not on the
        #: number of groups.
        self.group_deadlines: list[tuple[int, str]] = []
        #: Undecided transactions of all groups, bytes of their messages, and the number of groups that have any.
        self.undecided_count = 0
        self.undecided_bytes = 0
        #: Messages with delays in undecided half batches: a verdict makes them delayed messages.
        self.undecided_delayed = 0
        self.undecided_groups = 0
        #: Producer groups with a policy. While it is empty, policies cost ticks and connections nothing.
        self.policies: dict[str, None] = {}
        #: Groups whose policy the next tick applies, in the order of their turns. Separate from ``SessionState.asking``, since a policy
        #: also acts without a connected producer, and applying it costs more than a check.
        self.policies_due: dict[str, None] = {}
        #: Coordinator -> ids of its undecided transactions, by the lowest half index of each, which is a number that it keeps. In no
        #: particular order; and producer group -> number of its coordinators.
        self.undecided_of_coordinator: dict[CoordinatorKey, dict[int, str]] = {}
        self.coordinators_of_group: dict[str, int] = {}
        #: By user: its undecided transactions, over all groups; none of what nobody is known of.
        self.undecided_of_user: dict[str, HeldByUser] = {}
        #: While fewer transactions are undecided, over all users, none of these has as many as it may. 0: not known yet.
        self.users_limited_from = 0
        #: Query -> ids of its undecided transactions, in the order of their preparation.
        self.undecided_of_query: dict[QueryKey, dict[str, None]] = {}
        #: Queries without an undecided transaction -> broker time of their last record (of a start, if that was before it), ms, oldest
        #: first: those without a decision, and those with more than one.
        self.unused_queries: dict[QueryKey, int] = {}
        self.idle_queries: dict[QueryKey, int] = {}
        #: (name of a query, its newest run) -> the query.
        self.query_of_run: dict[tuple[str, str], Query] = {}
        #: Position of the newest verdict that left ``State.verdicts`` in this run; -1: none. A search of the log for an id is complete if
        #: it covers this position.
        self.verdict_forgotten = -1
        #: Heap of (due ms, first offset). Every delayed message is in it, or in ``SessionState.delayed_postponed``.
        self.delayed_heap: list[tuple[int, int]] = []


class SessionState:
    """Lost by a restart, and sent again by clients.

    Events of decisions and of the outside change it, through ``session.apply_session``. Two fields change otherwise: the engine sets
    ``sender``, and a new ``ProducerGroup`` takes the next number of ``groups_numbered``, also when ``apply`` creates it.
    """

    __slots__ = (
        "answered",
        "asking",
        "checks_sent",
        "checks_undelivered",
        "checks_unknown",
        "consumers",
        "consumes",
        "copy_progress",
        "delayed_postponed",
        "disk_full",
        "fresh_offsets",
        "groups_kept_max",
        "groups_kept_verdicts",
        "groups_numbered",
        "locks_checked_at_ms",
        "locks_held",
        "locks_of_owner",
        "offsets_due",
        "offsets_due_heap",
        "offsets_logged",
        "offsets_refused",
        "offsets_to_log",
        "produces",
        "published",
        "rolled_back",
        "sender",
    )  # fmt: skip

    def __init__(self) -> None:
        #: First offsets of delayed messages that stay delayed in this run, because their bytes could not be copied.
        self.delayed_postponed: set[int] = set()
        self.disk_full = False
        #: High watermark: readers see the log below this offset.
        self.published = 0
        #: Replies below this offset were released; at or after ``published``.
        self.answered = 0
        #: Connection of the command whose plain messages are being applied; 0 during redo. Set by the engine.
        self.sender = 0
        #: Groups with entries in ``due`` or ``early`` and a reachable producer, in the order of their turns. Some have lost one or the
        #: other since; check again before use. A group without a producer returns when one registers or polls; a group at its limit of
        #: checks in flight returns with a response or when one is overdue.
        self.asking: dict[str, None] = {}
        #: Checks sent, those of them that reached nobody, and answers UNKNOWN to them; and halves that were rolled back, by topic id.
        #: Statistics, which no decision uses.
        self.checks_sent = 0
        self.checks_undelivered = 0
        self.checks_unknown = 0
        self.rolled_back: dict[int, int] = {}
        self.consumers: dict[str, ConsumerSession] = {}
        #: Number of queue locks of all groups, and time of the last search for expired ones, ms.
        self.locks_held = 0
        self.locks_checked_at_ms = 0
        #: Owner -> number of its queue locks, if it has any.
        self.locks_of_owner: dict[str, int] = {}
        #: Connection -> names of the producer and consumer groups in which it registered.
        self.produces: dict[int, dict[str, None]] = {}
        self.consumes: dict[int, dict[str, None]] = {}
        #: The last number that a producer group got.
        self.groups_numbered = 0
        #: At this number of groups, empty ones are removed.
        self.groups_kept_max = GROUPS_KEPT_MIN
        #: Verdicts in memory when empty groups were last removed.
        self.groups_kept_verdicts = 0
        #: Consumer offsets not yet logged, by group, then (topic id, queue id).
        self.fresh_offsets: dict[str, dict[tuple[int, int], int]] = {}
        #: Offsets refused because a base has no space for them; queries return them until there is space.
        self.offsets_refused: dict[str, dict[tuple[int, int], int]] = {}
        #: Group -> when to log its fresh offsets, ms; and the same as a heap, which also has obsolete entries.
        #: ``offsets_to_log``: groups that are due, which are no longer in the heap.
        self.offsets_due: dict[str, int] = {}
        self.offsets_to_log: dict[str, None] = {}
        self.offsets_due_heap: list[tuple[int, str]] = []
        #: Group -> when its offsets were logged last, ms.
        self.offsets_logged: dict[str, int] = {}
        #: Progress of a trim, a ``transaction.retention.CopyProgress``. None: no trim is in preparation.
        self.copy_progress: Any = None


#: A transaction, and the record that settled it. None: it was not known, so that the record names no half.
Settlement = tuple[Undecided | None, Committed | Decided | RolledBack]


class SettledNow:
    """What the records of one batch settled."""

    __slots__ = ("commits", "others")

    def __init__(self) -> None:
        #: What its producer committed, half by half: nearly all, so these are kept as they are.
        self.commits: list[Undecided] = []
        #: All others.
        self.others: list[Settlement] = []


class State:
    """Durable state, which only ``apply`` changes, together with derived and session state.

    Create one, redo the log into it with ``apply`` or ``snapshot.load_rows``, then accept commands. The first record must be the
    base of the first segment in the log.
    """

    __slots__ = (
        "bases", "batch_open", "batch_time_ms", "caps", "comparisons", "configured", "coordinator_epoch", "coordinators", "delayed", "derived", "epoch", "epoch_grace_ms", "groups", "holders",
        "jumps", "loaded", "log_end", "log_start", "next_half_index", "next_topic_id", "offsets", "producer_groups",
        "producer_settings", "queries", "record_bytes_max", "recorded_settings", "restored_half_index", "sent", "session", "settings", "settled_now", "ties", "topics_by_id", "topics_by_name", "users", "verdicts",
    )  # fmt: skip

    def __init__(self, settings: BrokerSettings) -> None:
        #: The settings of the configuration; and those that count, in which ``recorded_settings`` replace them.
        self.configured = settings
        self.settings = settings
        #: By name: what administrators changed while the broker ran, also settings that ``core`` does not read. Change it with
        #: ``schema.set_setting``.
        self.recorded_settings: dict[str, RecordedSetting] = {}
        #: Maximum number of topics and of consumer groups.
        self.caps = caps(settings)
        #: Maximum size of the records of one decision: half a segment, so that it fits after any base.
        self.record_bytes_max = min(limits.TRANSACTION_BYTES_MAX + (1 << 20), settings.segment_bytes // 2)
        self.derived = DerivedState()
        self.session = SessionState()
        #: What the records of the open batch settled: statistics, which no decision uses. None: nobody counts them. Only
        #: ``Engine.report_settled`` begins it, since redo must not count again; each step takes it (``Step.settled``).
        self.settled_now: SettledNow | None = None
        #: False until the first base was applied.
        self.loaded = False
        #: Offset of the next record: after the last one of an open batch, else after the padding of the last batch.
        self.log_end = 0
        self.log_start = 0
        self.batch_open = False
        #: Broker time of the open or last batch.
        self.batch_time_ms = 0
        self.epoch = 0
        #: Default grace period of a half in this epoch, ms; -1 if the record of its start does not state it.
        self.epoch_grace_ms = -1
        #: Starts with an implausible time that nobody has confirmed.
        self.jumps: tuple[Jump, ...] = ()
        self.next_topic_id = 1
        self.next_half_index = 0
        #: The same topics by name and by id. Ids are never reused.
        self.topics_by_name: dict[str, Topic] = {}
        self.topics_by_id: dict[int, Topic] = {}
        self.groups: dict[str, GroupSettings] = {}
        #: The last client that was granted the lock of a queue, by group, then (topic id, queue id). Change it with ``set_holders``.
        self.holders: dict[str, dict[tuple[int, int], str]] = {}
        #: Producer groups with limits or a policy of their own; each is also in ``producer_groups``.
        self.producer_settings: dict[str, ProducerSettings] = {}
        #: Logged consumer offsets, by group, then (topic id, queue id). Deleted topics have none.
        self.offsets: dict[str, dict[tuple[int, int], int]] = {}
        self.producer_groups: dict[str, ProducerGroup] = {}
        self.queries: dict[QueryKey, Query] = {}
        #: The highest epoch that any coordinator got, so that one that was forgotten never gets an epoch of its past again.
        self.coordinator_epoch = 0
        self.coordinators: dict[CoordinatorKey, TakenEpoch] = {}
        #: Halves with a lower index are from before the last restore from a backup; -1: there was none. See ``transaction.restored``.
        self.restored_half_index = -1
        #: By name. Change it with ``schema.set_user``.
        self.users: dict[str, User] = {}
        #: By producer group and transaction id: verdicts that are to be compared with a marker, and findings. Change it with
        #: ``base_bytes.set_comparison``.
        self.comparisons: dict[tuple[str, str], Comparison] = {}
        #: Position of a verdict -> lowest log offset of the half batches that it shows, if that is in an earlier segment. The log must not
        #: start between the two.
        self.ties: dict[int, int] = {}
        #: By first offset.
        self.delayed: dict[int, Delayed] = {}
        #: Recent verdicts, oldest first, within ``dedup_window_ms`` and ``dedup_ids_max``, at or after the log's start.
        self.verdicts: deque[Verdict] = deque()
        #: Recent plain messages, oldest first, within the same bounds. Some are no longer the newest of their id.
        self.sent: deque[RecentMessage] = deque()
        #: Segment start -> ((topic id, queue ends), ...) at that time: the queue minimums after a trim up to there.
        self.bases: dict[int, tuple[tuple[int, tuple[int, ...]], ...]] = {}

    def producer_group(self, name: str) -> ProducerGroup:
        """The group, created on first use. Only its content makes it durable."""
        group = self.producer_groups.get(name)
        if group is None:
            self.session.groups_numbered += 1
            group = self.producer_groups[name] = ProducerGroup(name, self.settings, self.session.groups_numbered)
        return group


def drop_stale_deadlines(state: State) -> None:
    """Restore that the first entry of ``group_deadlines`` is valid. Call it after removing a bucket or moving a deadline."""
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
    """Restore that the first entry of ``offsets_due_heap`` is valid. Call it after a change of ``offsets_due``."""
    heap = state.session.offsets_due_heap
    while heap and state.session.offsets_due.get(heap[0][1]) != heap[0][0]:
        heappop(heap)


def take_turn(state: State, group: ProducerGroup) -> None:
    """Enter the group in ``asking`` if it has a reachable producer and pending checks, so that the next tick serves it."""
    if (group.session.due or group.session.early) and (group.session.members or group.session.held_polls):
        state.session.asking[group.name] = None


def set_holders(state: State, group: str, holders: dict[tuple[int, int], str]) -> None:
    """Set the clients that hold the group's queues; empty: none."""
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
    """Upper bound of the size of ``holders`` in the group's record: each client once, with its queues."""
    clients = set(holders.values())
    return HOLDER_BYTES * (len(holders) + len(clients)) + sum([len(client.encode()) for client in clients])


def next_offset(state: State) -> int:
    """Log offset of the next record."""
    return state.log_end if state.batch_open else state.log_end + BATCH_HEADER_BYTES


def users_limited_from(state: State) -> int:
    """See ``DerivedState.users_limited_from``: the smallest of what users may have, by their own limits or as their share."""
    own = [user.limits.undecided for user in state.users.values() if user.limits.undecided]
    return min([share_of(state.settings.undecided_total_max), *own])


def default_grace_ms(state: State) -> int:
    """Default grace period of a half, ms. Of its epoch, not of the current settings: redo must give the same result."""
    said = state.epoch_grace_ms
    return said if said >= 0 else state.settings.check_immunity_ms
