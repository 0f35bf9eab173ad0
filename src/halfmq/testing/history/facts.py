"""Facts about the whole history, kept in memory: names, restarts, complete reads of queues, bounds of the log; and of one transaction."""

from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from halfmq.testing.history.events import Fault, FileStarted, QueueRead, Settled, Started
from halfmq.testing.history.tables import Row

#: The queue number that stands for the log.
LOG_QUEUE: Final = 0
#: Topics whose messages are copies of others: redelivery, and dead letters. System topics hold no messages of applications.
_COPIES: Final = ("%RETRY%", "%DLQ%")
_SYSTEM: Final = ("RMQ_SYS_", "SCHEDULE_TOPIC", "rmq_sys_")
#: Infinity, as a time.
FAR: Final = 1 << 62


class Read(NamedTuple):
    """``reader`` received everything in [first, end) that was visible at ``since_us``, when ``end`` was the queue's end."""

    reader: int
    first: int
    end: int
    since_us: int
    place: int


class Facts:
    """Filled by the first pass and, after ``finish``, read by the others. Times are in microseconds."""

    def __init__(self) -> None:
        self.systems: set[str] = set()
        self.policy_groups: set[str] = set()
        self.at_least_once: set[str] = set()
        self.relay_groups: set[str] = set()
        self.atomic = True
        self._in_memory = False
        self.faults: Counter[str] = Counter()
        #: When the first clock was stepped; FAR: none was.
        self.clock_stepped_us = FAR
        #: (topic, queue) to its number. 0 is the log.
        self.queues: dict[tuple[str, int], int] = {("", -1): LOG_QUEUE}
        self.queue_names: list[tuple[str, int]] = [("the log", -1)]
        #: Queues of retry, dead-letter and system topics, which are not checked.
        self.not_judged: set[int] = set()
        self.readers: dict[str, int] = {}
        self.reader_names: list[str] = []
        self.reads: dict[int, list[Read]] = defaultdict(list)
        self._reads_by_topic: dict[str, dict[int, list[tuple[int, Read]]]] = {}
        self._restarts: list[int] = []
        self.broker_starts = 0
        #: Legal power losses: (when the broker restarted, the end of the log that it found).
        self.losses: list[tuple[int, int]] = []
        #: The restart after the last of these; -1: none.
        self.lost_us = -1
        #: Numbers of the readers that read queues to their end.
        self.whole_readers: set[int] = set()
        #: (since, received, place) of each list of findings of damage.
        self.damage_lists: list[tuple[int, int, int]] = []
        #: Time of the last ``Settled``; -1: there was none.
        self.settled_us = -1
        self.unresolved_groups: frozenset[str] = frozenset()
        self.set_aside: frozenset[str] = frozenset()
        self.log_records = 0
        #: Offset of the first record, and log start of the last trim.
        self.log_first = FAR
        self.trimmed_to = -1
        #: Acknowledged records from this offset on must be in the log.
        self.log_start = FAR
        #: (place, reason): contradictions in the recording.
        self.wrong: list[tuple[int, str]] = []

    # --- for the first pass ---------------------------------------------------------------------------------------

    def began(self, began: FileStarted, place: int = 0) -> None:
        """Take the first event of a file."""
        if began.system:
            self.systems.add(began.system)
        self.policy_groups.update(began.policy_groups)
        self.at_least_once.update(began.at_least_once)
        self.relay_groups.update(began.relay_groups)
        self.atomic = self.atomic and began.atomic
        self._in_memory = self._in_memory or began.durability == "memory"

    def queue_number(self, topic: str, queue: int) -> int:
        """The number of a queue; assigns one if it is new."""
        number = self.queues.get((topic, queue))
        if number is None:
            number = self.queues[topic, queue] = len(self.queue_names)
            self.queue_names.append((topic, queue))
            if topic.startswith((*_COPIES, *_SYSTEM)):
                self.not_judged.add(number)
        return number

    def reader_number(self, reader: str) -> int:
        """The number of a reader; assigns one if it is new."""
        number = self.readers.get(reader)
        if number is None:
            number = self.readers[reader] = len(self.reader_names)
            self.reader_names.append(reader)
        return number

    def queue_read(self, read: QueueRead, place: int) -> None:
        """Take a complete read of a queue."""
        since_us = read.t_us if read.since_us < 0 else read.since_us
        entry = Read(self.reader_number(read.reader), read.first, read.end, since_us, place)
        self.whole_readers.add(entry.reader)
        self.reads[self.queue_number(read.topic, read.queue)].append(entry)

    def started(self, started: Started, place: int = 0) -> None:
        """Take a start; only those of brokers count."""
        if started.epoch or started.whom.startswith("broker"):
            self._restarts.append(started.t_us)
            self.broker_starts += 1
        if started.log_end >= 0 and started.durability == "memory":
            self.losses.append((started.t_us, started.log_end))
            self.lost_us = max(self.lost_us, started.t_us)

    def fault(self, fault: Fault, place: int = 0) -> None:
        """Take an injected fault."""
        self.faults[fault.what] += 1
        if fault.what.startswith("clock"):
            self.clock_stepped_us = min(self.clock_stepped_us, fault.t_us)

    def settled(self, settled: Settled, place: int = 0) -> None:
        """Take a ``settled`` event; the last one counts."""
        if settled.t_us >= self.settled_us:
            self.settled_us = settled.t_us
            self.unresolved_groups = frozenset(settled.unresolved_groups)
            self.set_aside = frozenset(settled.set_aside)

    def unusable(self, place: int, why: str) -> None:
        """The event at ``place`` contradicts others; the report then raises UsageError."""
        self.wrong.append((place, why))

    def finish(self) -> None:
        """All events are taken: build the indexes for the methods below."""
        self._restarts.sort()
        self.damage_lists.sort()
        self.log_start = max(self.log_first, self.trimmed_to)
        self._reads_by_topic = {}
        # In an order that does not depend on that of the files, so that a violation always shows the same read.
        for queue, reads in sorted(self.reads.items(), key=lambda one: self.queue_names[one[0]]):
            reads.sort(key=lambda read: (self.reader_names[read.reader], read.since_us))
            topic = self.queue_names[queue][0]
            by_reader = self._reads_by_topic.setdefault(topic, {})
            for read in reads:
                by_reader.setdefault(read.reader, []).append((queue, read))

    # --- for later passes -------------------------------------------------------------------------------------------

    def restarted_between(self, first_us: int, then_us: int) -> bool:
        """Whether a broker started in (first_us, then_us]."""
        at = bisect_right(self._restarts, first_us)
        return at < len(self._restarts) and self._restarts[at] <= then_us

    @property
    def acknowledgements_void(self) -> bool:
        """Acknowledgements prove nothing: a power loss with durability ``memory``, and no ``log_end`` was recorded."""
        return self._in_memory and self.faults["power"] > 0 and not self.losses

    def may_have_lost(self, asked_us: int, place: int) -> bool:
        """Whether a legal power loss may have lost what was acknowledged at log offset ``place`` (-1: not named)."""
        return any(asked_us <= us and (place < 0 or place >= end) for us, end in self.losses)

    def log_must_have(self, offset: int) -> bool:
        """Whether a record that was acknowledged at this log offset must be in the log as it was read."""
        return self.log_records > 0 and offset >= self.log_start and not self.acknowledgements_void

    def place_was_read(self, queue: int, queue_offset: int, visible_us: int) -> Read | None:
        """A read that must have received a message that was visible at this place by ``visible_us``."""
        for read in self.reads.get(queue, ()):
            if queue_offset >= read.first and visible_us <= read.since_us:
                return read
        return None

    def topic_was_read(self, topic: str, queues: tuple[int, ...], visible_us: int) -> Read | None:
        """A read of a reader that must have received a message of ``topic``, in whichever queue it is.

        ``queues``: the queues that it was sent to (-1: any). All reads of this reader in the topic must start at the first message,
        and after ``visible_us``.
        """
        for reads in self._reads_by_topic.get(topic, {}).values():
            if all(read.first == 0 and visible_us <= read.since_us for _, read in reads):
                read_queues = {self.queue_names[queue][1] for queue, _ in reads}
                if all(queue in read_queues or queue < 0 for queue in queues):
                    return reads[0][1]
        return None

    def queue_text(self, queue: int, queue_offset: int) -> str:
        """Describes a place: topic, queue and offset, or log offset."""
        topic, number = self.queue_names[queue]
        return f"log offset {queue_offset}" if queue == LOG_QUEUE else f"{topic} queue {number} offset {queue_offset}"


class BranchRow(NamedTuple):
    """An effect of a call, that a participant has committed."""

    key: str
    #: BRANCH
    kind: int
    us: int
    place: int
    branch: str
    call: str


class DamageRow(NamedTuple):
    """A report of an outcome, a finding in a list, or a request to forget one. ``us``: when it, or the list, was requested."""

    key: str
    #: DAMAGE
    kind: int
    us: int
    place: int
    what: int
    #: What the database did, by the report or the list.
    said: str
    answered_us: int
    answered_place: int
    outcome: int
    #: That of the broker, by its response or the list; empty: not named.
    verdict: str
    #: Who decided, by the list; of a report: "marker", or empty.
    by: str

    @property
    def end_us(self) -> int:
        """When it was over; FAR: not known, so it may still happen."""
        return FAR if self.answered_us < 0 else self.answered_us


class WrittenMessage(NamedTuple):
    """A row for the third pass. Unknown times are ``FAR``, unknown numbers -1."""

    key: str
    #: ROW
    kind: int
    message: str
    topic: str
    written_us: int
    place: int
    sharding_key: str
    delay_ms: int
    #: Since when it was known to be confirmed; -1: it was not held.
    confirmed_us: int
    #: It is withdrawn, skipped or set aside, or somebody tried.
    given_up: bool
    #: The database lists it among the messages of its transaction.
    listed: bool
    seen_us: int
    seen_place: int
    queue: int
    #: The first offset in this queue.
    at: int
    readers: tuple[int, ...]
    store_time: int
    #: A violation was reported, so that its place proves nothing.
    named: bool


@dataclass(slots=True)
class TransactionFacts:
    """What the rows of one transaction state."""

    key: str
    group: str
    #: SUMMARY rows, by index.
    messages: list[Row] = field(default_factory=list)
    #: When each verdict was requested first, whatever the response.
    attempted_us: dict[str, int] = field(default_factory=dict)
    #: Time and place of the first request that was not refused. If all were refused: no time, and the place of the first one.
    requested_us: dict[str, int] = field(default_factory=dict)
    request_place: dict[str, int] = field(default_factory=dict)
    #: (by whom, verdict) -> time of the first request that was not refused; those of policies too.
    deciders: dict[tuple[str, str], int] = field(default_factory=dict)
    #: Coordinators whose halves of it were acknowledged -> place of the first one.
    coordinators: dict[str, int] = field(default_factory=dict)
    #: (verdict, time, place, by whom, coordinator) of each request that was not refused.
    requests: list[tuple[str, int, int, str, str]] = field(default_factory=list)
    #: (time, place, log position) of the first response to a participant that it is rolled back.
    fenced: tuple[int, int, int] | None = None
    #: What the database did, by reports that were not refused and by findings.
    contradicted: set[str] = field(default_factory=set)
    #: (verdict, time, place, log position) of each acknowledgement.
    acknowledged: list[Any] = field(default_factory=list)
    #: RECORD and STORED rows.
    records: list[Row] = field(default_factory=list)
    stored: list[Row] = field(default_factory=list)
    branches: list[BranchRow] = field(default_factory=list)
    written: list[WrittenMessage] = field(default_factory=list)
    damage: list[DamageRow] = field(default_factory=list)
    #: How the local transaction ended; empty if that is not known.
    local: str = ""
    local_place: int = 0
    local_us: int = FAR
    has_marker: bool = False
    #: The number of messages that the database lists.
    listing: int = 0
    #: Its messages went to the outbox, so its half messages roll back, whatever became of the local transaction.
    fell_back: bool = False
    checked_us: int = -1
    checked_place: int = 0
    #: Number of messages that were seen, and the one that was seen first.
    seen: int = 0
    first_seen: Row | None = None
