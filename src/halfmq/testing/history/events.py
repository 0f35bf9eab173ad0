"""What a history is made of: one event a line, as JSON, in any number of files.

Every process that takes part writes its own file, in its own order; the checker reads them all. Nothing is written that
the process does not know at that moment: a request before it leaves, an answer when it is there, what the database
says when it has said it. A request without an ``Answered`` is one whose outcome nobody knows.

``t_us`` is one clock for all files of a history: CLOCK_MONOTONIC of the machine, or the virtual time of a simulation.
So "A was answered before B was asked" can be said across processes, and nothing finer is ever concluded.

A history of another system leaves out what that system does not tell (log positions, transactions of several
messages). The checker looks only at what is there, and counts what it looked at.
"""

from typing import Final, Literal

import msgspec

FORMAT: Final = 1

Verdict = Literal["COMMITTED", "ROLLED_BACK"]
#: Who said a verdict. ``policy`` is legal only for groups that ``Began`` names.
DecidedBy = Literal["application", "check", "marker", "operator", "policy"]


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="e", omit_defaults=True, gc=False):
    t_us: int
    #: Which process wrote it; events of one writer are in the order it saw them.
    by: str


class Began(Event, tag="began", frozen=True, kw_only=True):
    """First line of each file."""

    format: int = FORMAT
    #: "halfmq 0.1.0", "rocketmq 5.4.0"
    system: str = ""
    durability: Literal["memory", "fsync"] = "fsync"
    #: Producer groups whose transactions a policy may decide.
    policy_groups: tuple[str, ...] = ()
    #: Whether all messages of a transaction become visible at one position (not so on an Apache RocketMQ cluster).
    atomic: bool = True


# --- what clients ask, and what they are answered -----------------------------------------------------------------


class HalfAsked(Event, tag="half", frozen=True, kw_only=True):
    """A half message leaves (again, if ``message`` was asked before)."""

    op: str
    group: str
    tx: str
    index: int = 0
    #: Unique id of the message.
    message: str
    topic: str
    queue: int = -1
    crc: int = 0
    #: Sharding key; empty: none.
    key: str = ""
    #: Visible this much after its verdict, ms, and not before: not held to the order of verdicts, and not missed.
    delay_ms: int = 0


class PlainAsked(Event, tag="plain", frozen=True, kw_only=True):
    """A message without a transaction leaves."""

    op: str
    message: str
    topic: str
    queue: int = -1
    crc: int = 0
    key: str = ""
    #: Visible this much later, ms, and not before: not held to the order, and not missed.
    delay_ms: int = 0


class EndAsked(Event, tag="end", frozen=True, kw_only=True):
    """Somebody who may decide says a verdict."""

    op: str
    group: str
    tx: str
    verdict: Verdict
    decided_by: DecidedBy = "application"


class Answered(Event, tag="answered", frozen=True, kw_only=True):
    """The answer to ``op`` of the same writer.

    ``ok``: done as asked. ``settled``: not done, since ``verdict`` stands. ``refused``: not done, nothing changed.
    ``unknown``: the client gave up waiting; the same as no event at all.
    """

    op: str
    outcome: Literal["ok", "settled", "refused", "unknown"]
    code: int = 0
    verdict: Verdict | None = None
    #: Log position that the answer names (of a verdict); -1: none named.
    position: int = -1
    #: Log offset of a stored message; -1: none named.
    offset: int = -1
    topic: str = ""
    queue: int = -1
    queue_offset: int = -1


# --- what the database says ---------------------------------------------------------------------------------------


class Local(Event, tag="local", frozen=True, kw_only=True):
    """How the local transaction ended, from the database itself: the oracle. May be written long after the fact."""

    group: str
    tx: str
    outcome: Verdict
    #: Unique ids of the messages that it sent; empty: as the ``HalfAsked`` events say.
    messages: tuple[str, ...] = ()


# --- checks -------------------------------------------------------------------------------------------------------


class CheckHeard(Event, tag="check", frozen=True, kw_only=True):
    """A producer is asked what became of a transaction. ``times``: as the broker counts, from 1."""

    group: str
    tx: str
    times: int = 0


class CheckUnanswered(Event, tag="no_verdict", frozen=True, kw_only=True):
    """It said UNKNOWN, or failed. (A definite answer is an ``EndAsked`` with ``decided_by="check"`` or ``"marker"``.)"""

    group: str
    tx: str


# --- what readers see ---------------------------------------------------------------------------------------------


class Seen(Event, tag="seen", frozen=True, kw_only=True):
    """A message was handed to a reader."""

    #: Consumer group; redelivery to a group is legal, the same message at two places is not.
    reader: str
    message: str
    topic: str
    queue: int
    queue_offset: int
    #: Transaction and index, where the message carries them; empty: a plain one, or a system that does not tell.
    tx: str = ""
    index: int = 0
    #: Log offset of the message as the pull answer names it; -1: not named.
    offset: int = -1
    #: Store time as the broker stamped it, ms; 0: not named.
    store_time_ms: int = 0
    crc: int = 0
    key: str = ""


class QueueRead(Event, tag="queue_read", frozen=True, kw_only=True):
    """``reader`` saw every message of this queue in [first, end), and ``end`` was the end. Written after all faults.

    For every queue of a topic, or for none: a message that is in none of the queues read is missed.
    """

    reader: str
    topic: str
    queue: int
    first: int
    end: int
    #: When ``end`` was asked for: what was visible by then was seen. -1: at ``t_us``, when nobody wrote any more.
    since_us: int = -1


# --- what the log says --------------------------------------------------------------------------------------------


class Logged(Event, tag="log", frozen=True, kw_only=True):
    """A record of the log, read after the run: what the broker has on the disk. Ascending by ``offset``."""

    kind: Literal["message", "half", "copy", "commit", "rollback", "trim", "other"]
    offset: int
    group: str = ""
    tx: str = ""
    index: int = 0
    message: str = ""
    topic: str = ""
    queue: int = -1
    queue_offset: int = -1
    crc: int = 0
    key: str = ""
    #: Of a verdict: who decided.
    decided_by: str = ""
    #: Of a commit: (topic, queue, queue offset, log offset of the half) of each message that it makes visible.
    shown: tuple[tuple[str, int, int, int], ...] = ()
    #: Of a trim: the log starts here from now on.
    log_start: int = -1


# --- what was done to them ----------------------------------------------------------------------------------------


class Fault(Event, tag="fault", frozen=True, kw_only=True):
    """``what``: kill, power, pause, partition, write_error, sync_error, full, bit_flip, clock_step, ...; ``whom``: to whom."""

    what: str
    whom: str = ""
    detail: str = ""


class Started(Event, tag="started", frozen=True, kw_only=True):
    """``whom`` is back. ``epoch`` and ``log_start`` of a broker, whose name begins with "broker"."""

    whom: str
    epoch: int = 0
    log_start: int = 0
    #: After a power loss: what the level promises, and where the log ended that this start found; -1: not said. At the
    #: level ``memory`` nothing is held against it that was answered before, at or after that place.
    durability: Literal["", "memory", "fsync"] = ""
    log_end: int = -1


class Settled(Event, tag="settled", frozen=True, kw_only=True):
    """All faults ended, every resolver was reachable, and the stated time passed: nothing may be undecided now."""

    #: Groups without any resolver: theirs may wait.
    unresolved_groups: tuple[str, ...] = ()


AnyEvent = (
    Began | HalfAsked | PlainAsked | EndAsked | Answered | Local | CheckHeard | CheckUnanswered | Seen | QueueRead
    | Logged | Fault | Started | Settled
)  # fmt: skip
