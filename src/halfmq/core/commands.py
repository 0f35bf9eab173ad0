"""What the outside world asks of the broker: values that front doors make and ``decide`` reads.

No command has anything of a protocol in it: what a property string or a header says is a field here.

What a decision needs from disk is read first and comes along in the command (``settled``, ``message``): decisions do no I/O.
``connection`` is a number that is never used twice in one run of the broker; 0 means nobody (timers, operators, replay).
"""

from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

from halfmq.model.records import DecidedBy
from halfmq.model.settings import ProducerSettings
from halfmq.model.stored_message import StoredMessage

#: Delayed messages that one tick releases at most; the rest follow in the next one.
RELEASES_MAX: Final = 256


class RequestedVerdict(IntEnum):
    """What a producer or an operator wants to become of a transaction."""

    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12


class SendMessage(msgspec.Struct, frozen=True, gc=False):
    """A plain message, or the copy of one that its sender could not handle (``reconsume_times`` above 0, or a ``%RETRY%`` topic)."""

    connection: int
    #: The sender's; a plain message belongs to none.
    group: str
    topic: str
    #: Queues that a topic made on first use gets, as the client wishes.
    default_queues: int
    #: Negative: any write queue.
    queue_id: int
    sys_flag: int
    born_time_ms: int
    flag: int
    #: The property string that is stored, but for what the broker adds. What it says that matters stands in the fields below.
    properties: bytes
    reconsume_times: int
    #: -1 when the client sent none.
    max_reconsume_times: int
    body: bytes
    #: 4 or 16 bytes of IP and an int32 port: the peer of the connection.
    born_host: bytes
    #: The client says that an earlier attempt got no answer.
    sent_again: bool
    #: "": it has none, and gets one that its log offset makes unique.
    unique_id: str
    #: As ``model.message_facts`` reads them.
    tag_hash: int
    key_hash: int
    keys: bytes
    delay: int


class SendHalf(msgspec.Struct, frozen=True, gc=False):
    """A half message: one of the messages of a transaction, to be shown when the transaction commits."""

    connection: int
    #: The producer group that is asked about it.
    group: str
    #: "": its unique id.
    tx_id: str
    #: Which message of its transaction it is, from 0.
    index: int
    #: How many there are; 0 while not yet said.
    count: int
    topic: str
    #: As in ``SendMessage``.
    default_queues: int
    queue_id: int
    sys_flag: int
    born_time_ms: int
    flag: int
    properties: bytes
    reconsume_times: int
    body: bytes
    born_host: bytes
    unique_id: str
    #: As ``model.message_facts`` reads them.
    tag_hash: int
    key_hash: int
    id_hash: int
    delay: int
    grace_ms: int
    keys: bytes


class BatchEntry(msgspec.Struct, frozen=True, gc=False):
    """One message of a batch. The fields as in ``SendMessage``."""

    flag: int
    body: bytes
    properties: bytes
    unique_id: str
    tag_hash: int
    key_hash: int
    keys: bytes


class SendBatch(NamedTuple):
    """Several plain messages of one topic and queue, all or none. None is delayed."""

    connection: int
    group: str
    topic: str
    default_queues: int
    queue_id: int
    sys_flag: int
    born_time_ms: int
    born_host: bytes
    entries: tuple[BatchEntry, ...]
    #: As in ``SendMessage``.
    sent_again: bool = False


class SettledRow(NamedTuple):
    """What the transaction table says of a half that memory no longer knows."""

    half_index: int
    #: 0: not known. The table was made again from a log that had this half no more, but its verdict: names must do.
    first_offset: int
    committed: bool
    verdict_position: int
    id_hash: int
    group_hash: int
    #: For the story: who decided and when, and how many halves.
    decided_by: int = 0
    settled_at_ms: int = 0
    halves: int = 1


class EndTransaction(msgspec.Struct, frozen=True, gc=False):
    """A verdict, or UNKNOWN as the answer to a check."""

    connection: int
    group: str
    #: HMQ_TX_ID where our client sent one, else ``msgId`` (UNIQ_KEY).
    tx_id: str
    #: ``tranStateTableOffset`` and ``commitLogOffset`` of any half of the transaction.
    half_index: int
    log_offset: int
    wanted: RequestedVerdict
    #: PRODUCER by itself; CHECK, or MARKER where the client said so, in answer to a check.
    decided_by: DecidedBy
    remark: str
    settled: SettledRow | None


class SendBack(NamedTuple):
    """Deliver this message again later, or to the dead-letter queue."""

    connection: int
    group: str
    offset: int
    delay_level: int
    #: -1 when the client sent none.
    max_reconsume_times: int
    origin_message_id: str
    #: What the log holds at ``offset`` and consumers may see; None: not found.
    message: StoredMessage | None


class Actor(NamedTuple):
    """The operator behind a command, as far as the request says. Where a command has one, the log keeps it."""

    #: "" where the request has no place for a name, as those of mqadmin.
    name: str = ""
    reason: str = ""
    #: ``ip:port`` of the connection.
    peer: str = ""


class SetTopic(NamedTuple):
    """Make or change a topic."""

    name: str
    read_queues: int
    write_queues: int
    permission: int
    by: Actor | None = None


class DeleteTopic(NamedTuple):
    name: str
    by: Actor | None = None


class SetGroup(NamedTuple):
    """Make or change a consumer group, also one made on first use. ``settings`` as in ``model.settings.GroupSettings``."""

    name: str
    retry_max_times: int
    retry_queues: int
    consume_enabled: bool
    by: Actor | None = None


class DeleteGroup(NamedTuple):
    """Delete a consumer group. ``with_offsets``: its offsets as well; else they are kept for a group of this name that comes again."""

    name: str
    with_offsets: bool
    by: Actor | None = None


class EnsureGroup(NamedTuple):
    """A consumer group was named by a heartbeat or a pull: make it and its %RETRY% topic if they are not there."""

    name: str


class LockQueues(NamedTuple):
    """A client wants to be the only one of its group who handles these queues (topic, queue id), or says that it still is."""

    group: str
    client_id: str
    queues: tuple[tuple[str, int], ...]


class UnlockQueues(NamedTuple):
    """A client gives these queues up; None: all of the group's."""

    group: str
    client_id: str
    queues: tuple[tuple[str, int], ...] | None


class EnsureTopic(NamedTuple):
    """A route was asked for %RETRY% or a topic that may be made on first use."""

    name: str
    queues: int


class CommitOffset(NamedTuple):
    """A consumer says where it stands: session state, logged by a later ``Tick``."""

    group: str
    topic: str
    queue_id: int
    offset: int
    #: It is no member of the group that says it: an operator resets the offset, which is logged at once.
    by: Actor | None = None


class CheckNotSent(NamedTuple):
    """The check did not leave: it is not counted. ``connection``: which one was to be asked."""

    group: str
    tx_id: str
    connection: int
    #: The half cannot be read, so nobody can be asked about it; no fault of the connection that was to be asked.
    unreadable: bool = False


class ResolveTransaction(NamedTuple):
    """A named operator decides (promise 2)."""

    group: str
    tx_id: str
    wanted: RequestedVerdict
    operator: str
    #: What the transaction table says, where memory has forgotten the verdict.
    settled: SettledRow | None = None
    #: None: ``operator`` is all that is known.
    by: Actor | None = None


class NoteTime(NamedTuple):
    """Nothing was written for a while: let the log say that the broker ran, so that its time is not taken for a jump."""


class CheckNow(NamedTuple):
    """An operator wants a producer to be asked about this transaction now, and again if it was parked."""

    group: str
    tx_id: str
    #: As in ``ResolveTransaction``.
    settled: SettledRow | None = None


class CheckParked(NamedTuple):
    """An operator wants what a policy parked in this group to be asked about again: the next ``asked_max`` of it."""

    group: str
    asked_max: int


class SetProducer(NamedTuple):
    """An administrator gives a producer group limits and a policy, or takes them away.

    ``only``: names of the fields of ``settings`` that are given, beside who sets them; the others stay as they stand when
    this is decided. None: all of them.
    """

    settings: ProducerSettings
    only: tuple[str, ...] | None = None
    by: Actor | None = None


class Tick(NamedTuple):
    """Time has passed: whatever is due (checks, releases, offsets to log) happens now. Bounded work; asks to be called again.

    ``releases_max``: delayed messages that are shown at most, the first to be due first.
    """

    releases_max: int = RELEASES_MAX


class CopyForward(NamedTuple):
    """Move what is alive below ``log_start`` forward, at most ``records_max`` records; then ``TrimLog`` may follow."""

    log_start: int
    records_max: int


class TrimLog(NamedTuple):
    """The log shall start at ``log_start``, the start of a sealed segment. Refused while anything alive lies below."""

    log_start: int


Command = (
    SendMessage | SendHalf | SendBatch | EndTransaction | SendBack | SetTopic | DeleteTopic | SetGroup | DeleteGroup | EnsureGroup | EnsureTopic
    | CommitOffset | CheckNotSent | ResolveTransaction | CheckNow | CheckParked | SetProducer | Tick | NoteTime | CopyForward | TrimLog
    | LockQueues | UnlockQueues
)  # fmt: skip
