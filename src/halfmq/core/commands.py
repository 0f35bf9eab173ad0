"""Commands: values that front doors create and ``decide`` reads.

A command contains nothing of a protocol: what a property string or a header says is a field here.

What a decision needs from the disk is read first and passed in the command (``settled``, ``message``): decisions do no I/O.
``connection`` is a number that is never reused in one run of the broker; 0 means no connection (timers, operators, replay).
"""

from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

from halfmq.model.coordinator import Coordinator
from halfmq.model.query_batch import QueryBatch
from halfmq.model.records import BatchFacts, DecidedBy
from halfmq.model.runtime_settings import SettingValue
from halfmq.model.settings import ProducerSettings
from halfmq.model.stored_message import StoredMessage
from halfmq.model.users import User

#: Maximum number of delayed messages that one tick releases; the next tick releases the rest.
RELEASES_MAX: Final = 256


class RequestedVerdict(IntEnum):
    """The verdict that a producer or an operator requests."""

    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12


class SendMessage(msgspec.Struct, frozen=True, gc=False):
    """A plain message, or a copy for another attempt after its consumer failed (``reconsume_times`` > 0, or a ``%RETRY%`` topic)."""

    connection: int
    #: The sender's producer group. A plain message belongs to none.
    group: str
    topic: str
    #: Number of queues that the client requests for a topic created on first use.
    default_queues: int
    #: Negative: any write queue.
    queue_id: int
    sys_flag: int
    born_time_ms: int
    flag: int
    #: The property string as stored, without the broker's additions. The fields below repeat what the core uses of it.
    properties: bytes
    reconsume_times: int
    #: -1 if the client sent none.
    max_reconsume_times: int
    body: bytes
    #: Peer address of the connection: 4 or 16 bytes of IP and an int32 port.
    born_host: bytes
    #: Whether the client says that an earlier attempt got no response.
    sent_again: bool
    #: "": none; the broker assigns one that contains the log offset.
    unique_id: str
    #: As computed by ``model.message_facts``.
    tag_hash: int
    key_hash: int
    keys: bytes
    delay: int


class EarlierVerdict(NamedTuple):
    """The newest verdict of a transaction with the id of a half, found in the log."""

    committed: bool
    position: int


class SendHalf(msgspec.Struct, frozen=True, gc=False):
    """A half message: one message of a transaction, invisible until the transaction commits."""

    connection: int
    #: The producer group that receives checks.
    group: str
    #: "": its unique id.
    tx_id: str
    #: Number of the message in its transaction, from 0.
    index: int
    #: Number of messages of the transaction; 0 if not stated yet.
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
    #: As computed by ``model.message_facts``.
    tag_hash: int
    key_hash: int
    id_hash: int
    delay: int
    grace_ms: int
    keys: bytes
    #: The verdicts before this log position were searched for an id that the application chose, and this one was found. -1: not searched,
    #: since the client generated the id and never uses it again.
    searched_to: int = -1
    earlier: EarlierVerdict | None = None
    #: Who alone settles the transaction, in the epoch that it states.
    coordinator: Coordinator | None = None
    #: As in ``records.HalfRecord``.
    has_marker: bool = False
    user: str = ""


class PrepareBatch(msgspec.Struct, frozen=True, gc=False):
    """A half batch: several half messages of a transaction for one queue. Its payload was verified (``model.half_batch``)."""

    connection: int
    group: str
    #: Of a batch of a query: ``QueryBatch.tx_id``.
    tx_id: str
    facts: BatchFacts
    #: Number of the half batch in its attempt or, without one, in its transaction, from 0.
    index: int
    #: Number of half batches of the transaction; 0 if not stated yet, and for a batch of a query.
    count: int
    topic: str
    #: As in ``SendMessage``; the queue must be chosen, since each message states it.
    default_queues: int
    queue_id: int
    #: Requested grace period, ms; -1: the broker's setting.
    grace_ms: int
    payload: bytes
    #: As in ``SendHalf``. A batch of a query is not searched: the state knows its decisions.
    searched_to: int = -1
    earlier: EarlierVerdict | None = None
    #: None unless the facts have an attempt.
    batch: QueryBatch | None = None
    #: The name of who sends it; "": the broker has no users.
    user: str = ""


class Winner(NamedTuple):
    """An attempt whose messages become visible, and what it has prepared: the sums over its half batches."""

    attempt: str
    half_batches: int
    messages: int
    #: Sum of the checksums, modulo 2**32.
    checksum: int


class DecideBatch(NamedTuple):
    """Make the messages of ``winners`` visible, and nothing else of this batch, ever. ``winners`` may be empty."""

    connection: int
    group: str
    batch: QueryBatch
    #: 16 bytes.
    digest: bytes
    winners: tuple[Winner, ...]
    #: Whether the query has no further batches.
    is_last: bool = False
    #: As in ``PrepareBatch``.
    user: str = ""


class FindDecision(NamedTuple):
    """Whether a batch of a query is decided. The run of ``batch`` supersedes earlier ones only once it prepares or decides."""

    connection: int
    batch: QueryBatch


class BatchEntry(msgspec.Struct, frozen=True, gc=False):
    """One message of a batch. Fields as in ``SendMessage``."""

    flag: int
    body: bytes
    properties: bytes
    unique_id: str
    tag_hash: int
    key_hash: int
    keys: bytes


class SendBatch(NamedTuple):
    """Several plain messages for one queue of one topic, all or none. None is delayed."""

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
    """The row in the transaction table of a half that is no longer in memory."""

    half_index: int
    #: 0: unknown. The table was rebuilt from a log with the verdict but without the half; then only names identify it.
    first_offset: int
    committed: bool
    verdict_position: int
    id_hash: int
    group_hash: int
    #: For the story of the transaction: who decided, when, and how many halves.
    decided_by: int = 0
    settled_at_ms: int = 0
    halves: int = 1


class EndTransaction(msgspec.Struct, frozen=True, gc=False):
    """A verdict, or UNKNOWN as the response to a check."""

    connection: int
    group: str
    #: HMQ_TX_ID if the client is ours, else ``msgId`` (UNIQ_KEY).
    tx_id: str
    #: Half index and first log offset of any half of the transaction, as the reply to that half stated them; both ``ANY_HALF``: by the id
    #: alone, which a rollback may, and a coordinator.
    half_index: int
    log_offset: int
    wanted: RequestedVerdict
    #: PRODUCER on its own initiative; CHECK, or MARKER if the client says so, in response to a check; COORDINATOR if there is one.
    decided_by: DecidedBy
    remark: str
    settled: SettledRow | None
    #: The coordinator that sends it, in the epoch that it states.
    coordinator: Coordinator | None = None
    #: As in ``PrepareBatch``.
    user: str = ""


class SendBack(NamedTuple):
    """Deliver this message again later, or move it to the dead-letter queue."""

    connection: int
    group: str
    offset: int
    delay_level: int
    #: -1 if the client sent none.
    max_reconsume_times: int
    origin_message_id: str
    #: The stored message at ``offset`` that consumers may see; None: there is none.
    message: StoredMessage | None
    #: Why the attempt failed; "" if the client does not say. A dead letter keeps it.
    failure: str = ""
    #: When the next attempt begins, ms from now; it comes before ``delay_level``. -1: as that says.
    delay_ms: int = -1
    #: The member does not consume the message's topic: this was no attempt, and the two fields of delays do not count.
    not_consumed: bool = False
    #: The number of this attempt, as a client says that has retried by itself; 0: one more than the message says. A dead letter keeps it.
    attempt: int = 0


class Actor(NamedTuple):
    """The operator who sent a command, as stated by the request. The log records it."""

    #: "" if the request has no field for a name, as those of mqadmin.
    name: str = ""
    reason: str = ""
    #: ``ip:port`` of the connection.
    peer: str = ""


class ForgetQuery(NamedTuple):
    """An operator lets the broker forget a query with its decisions. ``topic``: as in ``QueryBatch``."""

    name: str
    topic: str
    by: Actor


class TakeEpoch(NamedTuple):
    """A process begins to act for a coordinator, in an epoch of its own. The same ``taken_by`` gets the epoch that it has."""

    group: str
    name: str
    taken_by: str


class ForgetCoordinator(NamedTuple):
    """An operator lets the broker forget a coordinator."""

    group: str
    name: str
    by: Actor


class SetUser(NamedTuple):
    """An administrator makes a user, or changes one."""

    name: str
    user: User
    #: Whether there must be none of this name yet; else there must be one.
    is_new: bool
    by: Actor | None


class RemoveUser(NamedTuple):
    """An administrator removes a user."""

    name: str
    by: Actor | None


class Compare(NamedTuple):
    """Somebody says what a local transaction did: whoever reads its marker (``is_marker``), or who holds another database's outcome."""

    group: str
    tx_id: str
    committed: bool
    source: str
    is_marker: bool
    settled: SettledRow | None = None
    #: The operator who gave the verdict, if he is known; for a finding of a transaction that is not expected.
    operator: str = ""


class ForgetDamage(NamedTuple):
    """An operator lets the broker forget a finding, or a comparison that nobody can make any more."""

    group: str
    tx_id: str
    by: Actor


class SetTopic(NamedTuple):
    """Create or change a topic. None: as it is, or the default of a new topic."""

    name: str
    read_queues: int
    write_queues: int
    permission: int
    by: Actor | None = None
    ordered: bool | None = None
    #: "": none.
    message_type: str | None = None


class DeleteTopic(NamedTuple):
    name: str
    by: Actor | None = None


class SetGroup(NamedTuple):
    """Create or change a consumer group, including one created on first use. The fields of ``model.settings.GroupSettings``; None: as it
    is, or the default of a new group.
    """

    name: str
    retry_max_times: int | None = None
    retry_queues: int | None = None
    consume_enabled: bool | None = None
    by: Actor | None = None
    #: In any order; empty: the group holds nothing any more.
    hold_topics: tuple[str, ...] | None = None
    hold_ms: int | None = None
    broadcast_enabled: bool | None = None
    from_min_enabled: bool | None = None
    notifies_members: bool | None = None


class DeleteGroup(NamedTuple):
    """Delete a consumer group. ``with_offsets``: its offsets as well; else a later group of this name resumes from them."""

    name: str
    with_offsets: bool
    by: Actor | None = None


class EnsureGroup(NamedTuple):
    """A heartbeat or a pull names a consumer group: create it and its %RETRY% topic if they do not exist."""

    name: str


class LockQueues(NamedTuple):
    """A client requests or renews exclusive locks of these queues (topic, queue id) within its group."""

    group: str
    client_id: str
    queues: tuple[tuple[str, int], ...]
    #: Whose the client is: a user, or an address; "": nobody knows.
    owner: str = ""


class UnlockQueues(NamedTuple):
    """A client releases these queues; None: all of the group's."""

    group: str
    client_id: str
    queues: tuple[tuple[str, int], ...] | None


class EnsureTopic(NamedTuple):
    """A client requested the route of a %RETRY% topic, or of a topic that may be created on first use."""

    name: str
    queues: int


class CommitOffset(NamedTuple):
    """A consumer reports its offset: session state, which a later ``Tick`` logs."""

    group: str
    topic: str
    queue_id: int
    offset: int
    #: The sender is not a member of the group: an operator resets the offset, which is logged at once.
    by: Actor | None = None


class CheckNotSent(NamedTuple):
    """The check was not sent and does not count. ``connection``: its intended receiver."""

    group: str
    tx_id: str
    connection: int
    #: The half message cannot be read, so no check is possible; the connection is not at fault.
    unreadable: bool = False


class ResolveTransaction(NamedTuple):
    """A named operator decides (promise 2)."""

    group: str
    tx_id: str
    wanted: RequestedVerdict
    operator: str
    #: The row of the transaction table, if the verdict is no longer in memory.
    settled: SettledRow | None = None
    #: None: only ``operator`` is known.
    by: Actor | None = None
    #: As in ``PrepareBatch``; ``operator`` is who this is said to be.
    user: str = ""


class FenceTransaction(msgspec.Struct, frozen=True, gc=False):
    """A participant of Try/Confirm/Cancel asks what the transaction is; it is rolled back if nobody prepared it."""

    connection: int
    group: str
    #: Chosen by the application: the verdict of a generated id is not found again.
    tx_id: str
    #: The log position at which the transaction began: all verdicts on it are after that.
    since: int
    #: As in ``SendHalf``.
    searched_to: int = -1
    earlier: EarlierVerdict | None = None
    #: As in ``PrepareBatch``.
    user: str = ""


class NoteTime(NamedTuple):
    """Nothing was written for a while: log that the broker runs, so that a later start does not see a jump of time."""


class NoteAction(NamedTuple):
    """Log that an operator did something that changes no durable state. ``action``: an ``OperatorAction``."""

    action: int
    subject: str
    by: Actor


class CheckNow(NamedTuple):
    """An operator requests a check of this transaction now, also if it was parked."""

    group: str
    tx_id: str
    #: As in ``ResolveTransaction``.
    settled: SettledRow | None = None


class CheckParked(NamedTuple):
    """An operator requests checks of the next ``asked_max`` parked transactions of this group."""

    group: str
    asked_max: int


class SetProducer(NamedTuple):
    """An administrator sets or removes limits and the policy of a producer group.

    ``only``: names of the fields of ``settings`` to change, besides the administrator's name; the others keep their values at the
    time of the decision. None: all fields.
    """

    settings: ProducerSettings
    only: tuple[str, ...] | None = None
    by: Actor | None = None


class SetSetting(NamedTuple):
    """An administrator gives a setting of the broker another value while it runs.

    ``configured``: the value that it has in the configuration, which the broker alone knows of settings that ``core`` does not read.
    ``preview``: decide it, and write nothing.
    """

    name: str
    value: SettingValue
    configured: SettingValue
    by: Actor
    preview: bool = False


class UnsetSetting(NamedTuple):
    """An administrator gives a setting the value of the configuration again. ``preview``: decide it, and write nothing."""

    name: str
    by: Actor
    preview: bool = False


class Tick(NamedTuple):
    """Time has passed: execute what is due (checks, delayed messages, offsets to log). The work is bounded; ``Done.again``: send it again.

    ``releases_max``: maximum number of delayed messages to release, earliest first.
    """

    releases_max: int = RELEASES_MAX


class CopyForward(NamedTuple):
    """Copy what is alive before ``log_start`` forward, at most ``records_max`` records; ``TrimLog`` may follow."""

    log_start: int
    records_max: int


class Unread(NamedTuple):
    """Messages of one queue that a consumer group holds and has not read: queue offsets ``first`` to ``end`` - 1. See ``core.holds``."""

    group: str
    topic: str
    queue_id: int
    first: int
    end: int


class TrimLog(NamedTuple):
    """Let the log start at ``log_start``, the start of a sealed segment. Refused while anything is alive before it, or is held and not
    ``given_up``.
    """

    log_start: int
    #: The result of ``core.holds.unread_between`` when the limits of retention allowed this start.
    given_up: tuple[Unread, ...] = ()


Command = (
    SendMessage | SendHalf | SendBatch | EndTransaction | SendBack | SetTopic | DeleteTopic | SetGroup | DeleteGroup | EnsureGroup | EnsureTopic
    | CommitOffset | CheckNotSent | ResolveTransaction | CheckNow | CheckParked | SetProducer | Tick | NoteTime | NoteAction | CopyForward | TrimLog
    | LockQueues | UnlockQueues | PrepareBatch | DecideBatch | FindDecision | ForgetQuery
    | TakeEpoch | ForgetCoordinator
    | Compare | ForgetDamage | FenceTransaction
    | SetUser | RemoveUser
    | SetSetting | UnsetSetting
)  # fmt: skip
