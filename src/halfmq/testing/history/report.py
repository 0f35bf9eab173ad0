"""The checker's report: violations, and how many items each check examined."""

import heapq
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from halfmq.printable import printable

#: Violations of each kind that are kept with their events: the first ones in the files. All are counted.
KEPT_OF_A_KIND: Final = 1_000
#: Events shown per violation.
_EVENTS_MAX: Final = 8

LOST: Final = "lost"
PHANTOM: Final = "phantom"
DUPLICATE: Final = "duplicate"
TORN: Final = "torn"
REORDERED: Final = "reordered"
UNREQUESTED: Final = "unrequested verdict"
CHANGED: Final = "verdict changed"
NOT_DURABLE: Final = "acknowledged but not durable"
STUCK: Final = "stuck"
#: All kinds, in the order of the promises.
KINDS: Final = (CHANGED, UNREQUESTED, PHANTOM, LOST, DUPLICATE, TORN, NOT_DURABLE, STUCK, REORDERED)


class Check(NamedTuple):
    """One check: the number of its promise in docs/promises.md, the kind of violation, and what it examines."""

    promise: int
    kind: str
    what: str


#: All checks, in the order of the promises.
CHECKS: Final[list[Check]] = []


def _check(promise: int, kind: str, what: str) -> int:
    CHECKS.append(Check(promise, kind, what))
    return len(CHECKS) - 1


class At:
    """Index of each check in ``CHECKS`` and ``Findings.examined``."""

    AGREEMENT: Final = _check(1, CHANGED, "transactions whose verdict was reported at least twice")
    FENCED: Final = _check(1, CHANGED, "transactions that were fenced")
    VALIDITY: Final = _check(2, UNREQUESTED, "transactions whose verdict was reported")
    EPOCHS: Final = _check(2, UNREQUESTED, "requests of coordinators that were not refused, by their epochs")
    EPOCHS_RISE: Final = _check(2, UNREQUESTED, "epochs that processes of coordinators got")
    COORDINATED: Final = _check(2, UNREQUESTED, "transactions of coordinators whose verdict was reported")
    BRANCH_VERDICT: Final = _check(2, UNREQUESTED, "global transactions whose branches ended")
    MESSAGE_PHANTOM: Final = _check(2, PHANTOM, "messages that were seen, or are visible in the log")
    OUTBOX_PHANTOM: Final = _check(2, PHANTOM, "messages of an outbox that were seen")
    FALLBACK: Final = _check(2, PHANTOM, "messages of an outbox that were sent as half messages before")
    BRANCH_ENDS: Final = _check(2, PHANTOM, "branches that ended")
    DAMAGE_SAID: Final = _check(2, PHANTOM, "transactions of which findings of damage were listed")
    MISSED: Final = _check(3, LOST, "messages that had to be visible in completely read queues")
    READERS: Final = _check(3, LOST, "visible messages that a reader had to see")
    OUTBOX_MISSED: Final = _check(3, LOST, "messages of an outbox that had to be visible in completely read queues")
    DAMAGE_FOUND: Final = _check(
        3, LOST, "verdicts that contradicted a readable marker before the history settled, in later lists of findings"
    )
    ONCE: Final = _check(3, DUPLICATE, "messages with a place in a queue or in the log")
    HANDLED: Final = _check(3, DUPLICATE, "messages that consumers handled, each in a transaction")
    BRANCH_CALLS: Final = _check(3, DUPLICATE, "branches of global transactions")
    DAMAGE_ONCE: Final = _check(3, DUPLICATE, "findings of damage in lists")
    WHOLE: Final = _check(4, TORN, "transactions of several messages that became visible")
    BRANCHES_WHOLE: Final = _check(4, TORN, "global transactions of several branches")
    DURABLE_LOG: Final = _check(5, NOT_DURABLE, "acknowledgements compared with the log")
    DURABLE_RESTART: Final = _check(5, NOT_DURABLE, "acknowledgements compared with the state after a restart")
    DAMAGE_STAYS: Final = _check(5, NOT_DURABLE, "findings of damage that were known, in later lists")
    PROGRESS: Final = _check(7, STUCK, "transactions prepared before the history settled")
    BRANCH_HELD: Final = _check(7, STUCK, "branches tried before the history settled")
    ORDER: Final = _check(8, REORDERED, "places in queues and in the log, by time of request and response")
    KEYS: Final = _check(8, REORDERED, "sharding keys, one queue each")
    OUTBOX_ORDER: Final = _check(
        8, REORDERED, "messages of an outbox with a sharding key, by time of commit and writing"
    )
    DUE: Final = _check(8, REORDERED, "delayed messages, by due time and time of receipt")
    TIME: Final = _check(9, REORDERED, "store times along queues")


def transaction_name(key: str) -> str:
    """``group/id`` of a transaction as rows name it."""
    return key.replace("\n", "/", 1).removeprefix("/")


class Evidence(msgspec.Struct, frozen=True):
    """An event that proves a violation: ``line`` of ``file`` and its text, or a record of a store's log."""

    file: str
    line: int
    t_us: int
    by: str
    text: str
    #: If ``file`` is a store, the record's offset in its log; -1: ``file`` is a file of lines.
    log_offset: int = -1

    @property
    def where(self) -> str:
        """``file:line``, or store and log offset."""
        return f"{self.file}:{self.line}" if self.log_offset < 0 else f"{self.file} log offset {self.log_offset}"


class Violation(msgspec.Struct, frozen=True):
    """A broken promise, with the events that prove it."""

    kind: str
    #: Number in docs/promises.md.
    promise: int
    #: ``group/id``; empty for a plain message, and for an epoch.
    transaction: str
    #: Unique id of the message; empty when it is about the whole transaction.
    message: str
    sentence: str
    events: tuple[Evidence, ...] = ()

    def text(self) -> str:
        """The violation for people, in several lines. Text of the history cannot begin one."""
        what = " ".join(part for part in (self.transaction, self.message and f"message {self.message}") if part)
        lines = [f"{self.kind}: {what}" if what else self.kind, f"  {self.sentence} (promise {self.promise})"]
        lines += [f"  {one.t_us:>16,} us  {one.by:<14} {one.where}  {one.text}" for one in self.events]
        return "\n".join(map(printable, lines))


class Coverage(msgspec.Struct, frozen=True):
    """How many items (``looked``) a check examined, and the violations of its kind."""

    promise: int
    kind: str
    what: str
    looked: int
    violations: int


class Report(msgspec.Struct, frozen=True):
    """The result of a check. ``clean`` proves nothing for a check that examined nothing: see ``looked``."""

    events: int
    files: int
    #: Incomplete lines of killed processes.
    torn_lines: int
    systems: tuple[str, ...]
    faults: dict[str, int]
    broker_starts: int
    event_counts: dict[str, int]
    looked: tuple[Coverage, ...]
    counts: dict[str, int]
    #: Further copies of messages of outboxes, with the same message id, in targets where that is legal (``at_least_once``).
    duplicates: int
    #: The first ones of each kind; ``counts`` has the total.
    violations: tuple[Violation, ...]
    #: What limits the report.
    notes: tuple[str, ...]
    #: Bytes that did not fit into the memory budget and went to temporary files.
    spilled_bytes: int
    seconds: float

    @property
    def clean(self) -> bool:
        """There is no violation."""
        return not any(self.counts.values())

    @property
    def looked_at_nothing(self) -> bool:
        """No check examined anything, so ``clean`` proves nothing."""
        return self.clean and not any(one.looked for one in self.looked)

    def of_kind(self, kind: str) -> list[Violation]:
        """The kept violations of one of ``KINDS``."""
        return [one for one in self.violations if one.kind == kind]

    def as_json(self) -> bytes:
        """The whole report as indented JSON."""
        fields: dict[str, Any] = {
            "clean": self.clean,
            "looked_at_nothing": self.looked_at_nothing,
        } | msgspec.to_builtins(self)
        return msgspec.json.format(msgspec.json.encode(fields), indent=2)


class Finding(NamedTuple):
    """A violation whose events are not loaded yet."""

    first_place: int
    kind: str
    promise: int
    tx: str
    message: str
    sentence: str
    places: tuple[int, ...]


class Findings:
    """Collects violations, and counts examined items. ``examined`` is indexed by ``At``."""

    def __init__(self) -> None:
        self.examined = [0] * len(CHECKS)
        self.counts = dict.fromkeys(KINDS, 0)
        #: Legal ones: see ``Report``.
        self.duplicates = 0
        self._kept: dict[str, list[tuple[tuple[int, str], int, Finding]]] = {kind: [] for kind in KINDS}
        self._serial = 0

    def add(self, check: int, tx: str, message: str, sentence: str, places: Sequence[int]) -> None:
        """Add a violation. ``check``: one of ``At``. ``places``: of the events that prove it, in any order; 0: none."""
        promise, kind, _ = CHECKS[check]
        self.counts[kind] += 1
        shown = tuple(sorted({place for place in places if place > 0}))[:_EVENTS_MAX]
        first = shown[0] if shown else 0
        found = Finding(first, kind, promise, tx, message, sentence, shown)
        self._serial += 1
        # A heap of negated places, so that the last violation is dropped first when there are too many.
        entry = ((-first, tx), self._serial, found)
        kept = self._kept[kind]
        if len(kept) < KEPT_OF_A_KIND:
            heapq.heappush(kept, entry)
        else:
            heapq.heappushpop(kept, entry)

    def kept(self) -> list[Finding]:
        """By kind in the order of ``KINDS``, then by the first event, the transaction and the sentence."""
        return [
            found
            for kind in KINDS
            for found in sorted((entry[2] for entry in self._kept[kind]), key=lambda one: (one[0], one[3], one[5]))
        ]
