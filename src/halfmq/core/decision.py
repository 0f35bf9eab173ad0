"""The parts of a decision, all values: records for the log, a reply, effects, and events for session state.

The caller appends and applies ``records`` in order, then applies ``events``. It withholds ``reply`` and ``effects`` until the log
is durable up to its end at the time of the decision, **even without records**: nothing that a crash can revert may leave the
broker.
"""

from enum import Enum
from typing import NamedTuple, final

from msgspec import Struct

from halfmq.core.events import DecisionEvent
from halfmq.model.records import ParkedBecause, Record
from halfmq.model.settings import ProducerSettings


class Why(Enum):
    """Reasons of a refusal. Each front door maps them to codes of its protocol (``broker/remoting/refusals.py``)."""

    MESSAGE_ILLEGAL = "message-illegal"
    INVALID_PARAMETER = "invalid-parameter"
    TOPIC_NOT_EXIST = "topic-not-exist"
    GROUP_NOT_EXIST = "group-not-exist"
    NO_PERMISSION = "no-permission"
    STORE_FULL = "store-full"
    LIMIT_REACHED = "limit-reached"
    NOT_FOUND = "not-found"
    #: A half message that is sent again after its transaction was settled. Clients do not retry it.
    ALREADY_SETTLED = "already-settled"
    #: The search for an earlier verdict of a half's id missed verdicts that memory no longer has: search again, then repeat the command.
    SEARCH_AGAIN = "search-again"
    #: A half that does not belong to the undecided transaction that has its id.
    STILL_UNDECIDED = "still-undecided"
    #: The transaction already has the opposite verdict.
    VERDICT_CONFLICT = "verdict-conflict"
    #: Some half messages of the transaction are missing; it stays undecided.
    INCOMPLETE = "incomplete"
    #: A later run of the query has begun, which alone may prepare and decide.
    FENCED = "fenced"
    #: A later process of the coordinator has begun, which alone may prepare and settle.
    SUPERSEDED = "superseded"
    #: The transaction has a coordinator, which alone may settle it.
    OF_COORDINATOR = "of-coordinator"
    #: The transaction was undecided when the store was restored from a backup, so a rollback waits for an operator.
    AFTER_RESTORE = "after-restore"
    #: There is a user of this name already.
    USER_EXISTS = "user-exists"
    #: The query belongs to another stream, or to batch writes.
    OTHER_STREAM = "other-stream"
    WRONG_GROUP = "wrong-group"
    WRONG_OFFSETS = "wrong-offsets"
    #: A check is impossible or not allowed at the moment; nothing was changed.
    NOT_NOW = "not-now"
    #: No heartbeat of the consumer has arrived, or none that names the topic.
    SUBSCRIPTION_NOT_EXIST = "subscription-not-exist"
    #: The broker has not received the consumer's newest heartbeat yet.
    SUBSCRIPTION_NOT_LATEST = "subscription-not-latest"
    SUBSCRIPTION_PARSE_FAILED = "subscription-parse-failed"
    #: An expression type of RocketMQ that this broker does not support.
    FILTER_NOT_SUPPORTED = "filter-not-supported"
    #: The client to call is not connected, or does not read.
    CLIENT_NOT_REACHED = "client-not-reached"
    #: The called client did not respond in time.
    CLIENT_TIMEOUT = "client-timeout"


class Sent(Struct, frozen=True, gc=False):
    """Stored, now or by an earlier request with the same id. For a half, ``queue_offset`` is its half index."""

    log_offset: int
    queue_id: int
    queue_offset: int
    unique_id: str


class SentBatch(NamedTuple):
    """All messages of a batch were stored, in order and in one queue. ``queue_offset``: of the first; each further one has the next."""

    log_offsets: tuple[int, ...]
    queue_id: int
    queue_offset: int


class Settled(Struct, frozen=True, gc=False):
    """The transaction has this verdict, since now or since earlier (``repeated``)."""

    group: str
    tx_id: str
    committed: bool
    position: int
    repeated: bool


class Fenced(NamedTuple):
    """What the transaction is: "COMMITTED" or "ROLLED_BACK", with the position of the verdict, or "UNDECIDED" (-1)."""

    standing: str
    position: int


class BatchDecided(NamedTuple):
    """The batch of a query is decided with the requested digest, at this log offset; ``repeated``: since earlier."""

    position: int
    repeated: bool


class DecisionFound(NamedTuple):
    """Whether a batch of a query is decided."""

    is_decided: bool
    #: Empty if it is not decided, or longer ago than ``limits.QUERY_DECISIONS_MAX`` batches.
    digest: bytes
    position: int
    #: The last decided batch of the query; -1: none.
    last_batch: int


@final
class Refused(NamedTuple):
    """Nothing was changed. If a verdict is the reason, ``standing`` is "COMMITTED" or "ROLLED_BACK", with its position; "UNDECIDED"
    without one if there is none yet."""

    why: Why
    text: str
    standing: str = ""
    position: int = -1


class Failed(NamedTuple):
    """The decision raised, or a message that it must copy is damaged. Nothing was changed. The broker logs the details."""

    text: str


class Noted(NamedTuple):
    """UNKNOWN was received; the transaction stays undecided. RocketMQ clients expect no response."""


class Asked(NamedTuple):
    """A check was sent to this client. An empty name: the next client that fetches checks of the group gets it."""

    client_id: str
    checks: int


class ParkedChecked(NamedTuple):
    """Checks of these parked transactions were sent; the group has this many other parked ones."""

    tx_ids: tuple[str, ...]
    left: int


class ProducerSettingsStored(NamedTuple):
    """Limits and policy of a producer group from now on."""

    settings: ProducerSettings


class Locked(NamedTuple):
    """The requested queues that the client now holds."""

    queues: tuple[tuple[str, int], ...]
    #: Some of the others may have been refused because of ``limits.LOCKS_MAX``.
    is_full: bool = False


class Done(NamedTuple):
    """Done; no further information. ``again``: more of the same is left, send the command again. See ``core.steps``."""

    again: bool = False


class QueryRemoved(NamedTuple):
    """The query is forgotten. ``last_batch``: the last one that it had decided; -1: none."""

    name: str
    topic: str
    last_batch: int


class EpochTaken(NamedTuple):
    """The coordinator's epoch from now on. ``taken_from``: the process whose epoch was the newest; empty: no other's was.

    ``gave_way``: (producer group, name) of coordinators that were forgotten to make space.
    """

    epoch: int
    taken_from: str = ""
    gave_way: tuple[tuple[str, str], ...] = ()


class CoordinatorForgotten(NamedTuple):
    """The coordinator is forgotten. ``epoch``: its last one."""

    epoch: int


class UserIsSet(NamedTuple):
    """The user is as the command says."""


class UserRemoved(NamedTuple):
    """There is no user of this name any more."""


class ComparisonMade(NamedTuple):
    """The verdict on a transaction, who gave it, and whether the reported local outcome agrees with it."""

    group: str
    tx_id: str
    committed: bool
    decided_by: int
    #: The operator's name; "" if it was none.
    by: str
    agrees: bool
    #: It is a finding since now.
    is_new: bool = False


class ConsumerGroupDeleted(NamedTuple):
    """The consumer group no longer exists. ``kept``: its topics that remain because they contain messages."""

    kept: tuple[str, ...]


Reply = (
    Sent
    | SentBatch
    | Settled
    | Fenced
    | Refused
    | Noted
    | Asked
    | ParkedChecked
    | ProducerSettingsStored
    | ConsumerGroupDeleted
    | QueryRemoved
    | EpochTaken
    | CoordinatorForgotten
    | ComparisonMade
    | UserIsSet
    | UserRemoved
    | Locked
    | Done
    | BatchDecided
    | DecisionFound
)


class WakeQueue(NamedTuple):
    """Messages became visible in this queue; held pulls for it read again."""

    topic_id: int
    queue_id: int


class SendCheck(NamedTuple):
    """Send a check of this transaction to the producer at ``connection``. If that fails, submit ``CheckNotSent``.

    ``half_index`` and ``first_offset`` identify the transaction's first half; its bytes are at ``offset``.
    """

    connection: int
    group: str
    tx_id: str
    half_index: int
    first_offset: int
    offset: int
    checks: int


class NotCompared(NamedTuple):
    """A verdict that will not be compared with the marker of its transaction, since there is no space to remember it; it is logged."""

    group: str
    tx_id: str


class PolicyActed(NamedTuple):
    """The policy of a group settled or parked a transaction; the broker logs a warning."""

    group: str
    tx_id: str
    because: ParkedBecause
    checks: int
    rolled_back: bool


class OffsetNotStored(NamedTuple):
    """A base has no space for a new offset; the broker logs a warning."""

    group: str
    topic: str
    queue_id: int


class SettingChanged(NamedTuple):
    """A setting has another value; what the broker computed from it is computed again."""

    name: str


Effect = WakeQueue | SendCheck | PolicyActed | NotCompared | OffsetNotStored | SettingChanged


class Decision(NamedTuple):
    """The outcome of one command. The caller applies and withholds its parts in the order that the module states.

    ``records``: for the log, with offsets that follow its end; empty if the command is refused or changes session state only.
    ``begins_segment``: they are to begin one. If the current one has other records, roll, and decide again.
    """

    records: tuple[Record, ...]
    reply: Reply | Failed
    effects: tuple[Effect, ...] = ()
    events: tuple[DecisionEvent, ...] = ()
    begins_segment: bool = False


#: A ``Decision`` as a plain tuple, for the decisions of the hot path: Python creates it in half the time.
DecisionTuple = tuple[tuple[Record, ...], Reply | Failed, tuple[Effect, ...], tuple[DecisionEvent, ...], bool]

NOTHING: tuple[()] = ()
DONE = Decision(NOTHING, Done())


def refuse(why: Why, text: str) -> Decision:
    return Decision(NOTHING, Refused(why, text))
