"""The events of a history: one JSON object per line, in any number of files. Format: ``docs/check-history.md``.

Every process writes its own file; the checker reads them all. An event records only what the process knows at that moment: a
request before it is sent, a response when it has arrived, a database outcome when it is known. A request without ``Answered``
has an unknown outcome.

``t_us`` is one clock for all files of a history: CLOCK_MONOTONIC of the machine, or the virtual time of a simulation.
So "the response to A precedes the request for B" holds across processes, and only that is used.

A history of another system leaves out what that system does not report (log positions, transactions of several messages).
The checker uses what is present, and counts what it examined.
"""

from typing import Final, Literal

import msgspec

FORMAT: Final = 1

Verdict = Literal["COMMITTED", "ROLLED_BACK"]
#: Who requested a verdict. ``policy`` is legal only for groups that ``FileStarted`` names.
DecidedBy = Literal["application", "check", "marker", "operator", "policy", "fence", "coordinator"]


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="e", omit_defaults=True, gc=False):
    """Fields of every event."""

    #: Microseconds on the history's clock.
    t_us: int
    #: The process that wrote it; events of one writer are in order.
    by: str


class FileStarted(Event, tag="began", frozen=True, kw_only=True):
    """First line of each file."""

    format: int = FORMAT
    #: "halfmq 0.1.0", "rocketmq 5.5.0"
    system: str = ""
    durability: Literal["memory", "fsync"] = "fsync"
    #: Producer groups whose transactions a policy may decide.
    policy_groups: tuple[str, ...] = ()
    #: Whether all messages of a transaction become visible at one position (not so on an Apache RocketMQ cluster).
    atomic: bool = True
    #: Groups whose outbox is published to a target in which a message may be there twice: every target but halfmq.
    at_least_once: tuple[str, ...] = ()
    #: Producer groups of relays to halfmq. They decide about their batches themselves; what is in these is in an outbox.
    relay_groups: tuple[str, ...] = ()


# --- requests of clients, and responses ---------------------------------------------------------------------------


class HalfSent(Event, tag="half", frozen=True, kw_only=True):
    """A half message is sent, or sent again with the same ``message``."""

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
    #: Delay after the verdict, ms. A delayed message has no order, and is not reported as lost.
    delay_ms: int = 0
    #: As in ``EndAsked``.
    coordinator: str = ""
    epoch: int = 0


class PlainSent(Event, tag="plain", frozen=True, kw_only=True):
    """A non-transactional message is sent."""

    op: str
    message: str
    topic: str
    queue: int = -1
    crc: int = 0
    key: str = ""
    #: Delay, ms. A delayed message has no order, and is not reported as lost.
    delay_ms: int = 0


class OutboxWritten(Event, tag="outbox", frozen=True, kw_only=True):
    """A message is written to the outbox of ``group`` in the local transaction ``tx``. Record it before the row is inserted.

    A block that falls back to its outbox: the transaction of its half messages, which never becomes visible then.
    """

    group: str
    tx: str
    #: Unique id of the message, the same in every delivery.
    message: str
    topic: str
    crc: int = 0
    #: Sharding key; empty: none.
    key: str = ""
    #: Delay, ms. A delayed message has no order, and is not reported as lost.
    delay_ms: int = 0
    #: It is published only after an ``EndAsked`` with this ``message``.
    hold: bool = False


class EndAsked(Event, tag="end", frozen=True, kw_only=True):
    """A verdict is requested by somebody who may decide."""

    op: str
    group: str
    tx: str
    verdict: Verdict
    decided_by: DecidedBy = "application"
    #: Only this message of an outbox: it is confirmed or withdrawn, or skipped by an operator (or a relay, ``policy``). The response is
    #: ``ok`` when the transaction that did it has committed. Empty: the whole transaction.
    message: str = ""
    #: The coordinator that decides, with the epoch of its process; 0: none.
    coordinator: str = ""
    epoch: int = 0


class EpochTaken(Event, tag="epoch", frozen=True, kw_only=True):
    """The process ``by`` of a coordinator got this epoch. It records it when the response has arrived."""

    group: str
    #: With several brokers, whose epochs are their own: ``NAME@BROKER``, in requests too.
    coordinator: str
    epoch: int
    #: When it was requested: what others had got by then is lower. -1: at ``t_us``.
    since_us: int = -1


class Answered(Event, tag="answered", frozen=True, kw_only=True):
    """The response to ``op`` of the same writer.

    To an ``OutcomeReported`` with ``verdict``, that of the broker, which may be the opposite. ``ok``: done. ``settled``: not done, the
    transaction already has ``verdict``. ``refused``: rejected, nothing changed.
    ``unknown``: the client stopped waiting; the same as no event.
    """

    op: str
    outcome: Literal["ok", "settled", "refused", "unknown"]
    code: int = 0
    verdict: Verdict | None = None
    #: Log position of a verdict in the response; -1: none.
    position: int = -1
    #: Log offset of a stored message in the response; -1: none.
    offset: int = -1
    topic: str = ""
    queue: int = -1
    queue_offset: int = -1


# --- the database -------------------------------------------------------------------------------------------------


class Local(Event, tag="local", frozen=True, kw_only=True):
    """How the local transaction ended according to the database, the reference. May be recorded much later."""

    group: str
    tx: str
    outcome: Verdict
    #: Unique ids of the messages that it sent; empty: those of the ``HalfSent`` events.
    messages: tuple[str, ...] = ()
    #: The message that it handled, or compensated, and the consumer group: its inbox row is in this transaction.
    handled: str = ""
    consumer: str = ""
    #: It has a marker, which a service that compares can read: a verdict of an operator, a policy or a coordinator that says the opposite
    #: is found by the time of ``Settled``.
    marker: bool = False


class BranchWritten(Event, tag="branch", frozen=True, kw_only=True):
    """A participant of Try/Confirm/Cancel has committed the effect of a call. ``empty``: the row of a cancel that found no try.

    ``group``, ``tx``: of the global transaction. Record it when the commit has returned, or whenever the database says so.
    """

    group: str
    tx: str
    branch: str
    call: Literal["try", "confirm", "cancel", "empty"]


# --- damage: verdicts of others, compared with the database --------------------------------------------------------


class OutcomeReported(Event, tag="reported", frozen=True, kw_only=True):
    """Somebody tells the broker what a database did: what its marker says, or whoever holds the outcome of another database."""

    op: str
    group: str
    tx: str
    outcome: Verdict
    source: str = ""
    #: By a reader of markers: no news to the broker once the verdict was compared, so it brings no finding back that was forgotten.
    marker: bool = False


class Damage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A finding, as the broker lists it: the verdict, and what the database did."""

    group: str
    tx: str
    verdict: Verdict
    local: Verdict
    #: Who gave the verdict, as in ``EndAsked``; empty: not recorded.
    decided_by: str = ""


class DamageListed(Event, tag="damaged", frozen=True, kw_only=True):
    """The broker listed these findings, and no others."""

    findings: tuple[Damage, ...] = ()
    #: When the list was requested: what was known by then is in it. -1: at ``t_us``.
    since_us: int = -1


class DamageForgotten(Event, tag="forgotten", frozen=True, kw_only=True):
    """An operator lets the broker forget a finding. Record it before the request."""

    op: str
    group: str
    tx: str


# --- checks -------------------------------------------------------------------------------------------------------


class CheckReceived(Event, tag="check", frozen=True, kw_only=True):
    """A producer received a check. ``times``: the broker's count of checks, from 1."""

    group: str
    tx: str
    times: int = 0


class CheckUnanswered(Event, tag="no_verdict", frozen=True, kw_only=True):
    """The check was answered UNKNOWN, or failed. (A definite answer is an ``EndAsked`` with ``decided_by="check"`` or ``"marker"``)."""

    group: str
    tx: str


# --- readers ------------------------------------------------------------------------------------------------------


class Seen(Event, tag="seen", frozen=True, kw_only=True):
    """A reader received a message."""

    #: Consumer group; redelivery to a group is legal, the same message at two places is not.
    reader: str
    message: str
    topic: str
    queue: int
    queue_offset: int
    #: Transaction and index, if the message carries them; empty: not transactional, or not reported.
    tx: str = ""
    index: int = 0
    #: Log offset of the message in the pull response; -1: not reported.
    offset: int = -1
    #: Store time as set by the broker, ms; 0: not reported.
    store_time_ms: int = 0
    crc: int = 0
    key: str = ""


class QueueRead(Event, tag="queue_read", frozen=True, kw_only=True):
    """``reader`` received every message of the queue in [first, end), and ``end`` was its end. Record it after all faults.

    Record it for every queue of a topic or for none: a message in none of these queues is reported as lost.
    """

    reader: str
    topic: str
    queue: int
    first: int
    end: int
    #: When ``end`` was queried: everything visible by then was received. -1: at ``t_us``.
    since_us: int = -1


# --- the log ------------------------------------------------------------------------------------------------------


class Logged(Event, tag="log", frozen=True, kw_only=True):
    """A record of the broker's log, read after the run, in the order of the log.

    ``batched`` is no record, but one message of a half batch that a verdict shows. It comes before that verdict, once for each such
    message; of half batches that are undecided, or did not win, there is none. Its ``offset`` is that of the message.
    """

    kind: Literal["message", "half", "copy", "batched", "commit", "rollback", "trim", "other"]
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
    #: Verdicts: who decided. ``query``: the transaction is a batch of a query, whose runs and decisions decide; no other request is
    #: necessary.
    decided_by: str = ""
    #: Commits: (topic, queue, queue offset, log offset of the half) of each message that it makes visible.
    shown: tuple[tuple[str, int, int, int], ...] = ()
    #: Trims: the new start of the log.
    log_start: int = -1


# --- faults and restarts ------------------------------------------------------------------------------------------


class Fault(Event, tag="fault", frozen=True, kw_only=True):
    """``what``: kill, power, pause, partition, write_error, sync_error, full, bit_flip, clock_step, ...; ``whom``: the target process."""

    what: str
    whom: str = ""
    detail: str = ""


class Started(Event, tag="started", frozen=True, kw_only=True):
    """``whom`` has started. ``epoch`` and ``log_start`` are for brokers, whose names begin with "broker"."""

    whom: str
    epoch: int = 0
    log_start: int = 0
    #: After a power loss: the durability level, and the end of the log that this start found; -1: unknown. With ``memory``
    #: earlier acknowledgements at or after that offset are ignored.
    durability: Literal["", "memory", "fsync"] = ""
    log_end: int = -1


class Settled(Event, tag="settled", frozen=True, kw_only=True):
    """All faults have ended, everybody who can decide was running, and the stated time has passed: nothing may be undecided."""

    #: Groups in which nobody can decide; their transactions may stay undecided.
    unresolved_groups: tuple[str, ...] = ()
    #: Messages of outboxes that are set aside. They and those behind them with the same sharding key may be unpublished.
    set_aside: tuple[str, ...] = ()


AnyEvent = (
    FileStarted | HalfSent | PlainSent | OutboxWritten | EndAsked | EpochTaken | Answered | Local | BranchWritten | OutcomeReported
    | DamageListed | DamageForgotten | CheckReceived | CheckUnanswered | Seen | QueueRead | Logged | Fault | Started | Settled
)  # fmt: skip
