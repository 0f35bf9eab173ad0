"""What a decision consists of: records for the log, one reply, effects for later, events for session state. All are values.

The caller appends and applies ``records`` in order, then makes the ``events`` happen, and holds ``reply`` and ``effects`` until
the log is durable up to where it ended at the decision, **also when there are no records**: nothing that a crash can take back
may leave.
"""

from enum import Enum
from typing import NamedTuple

from msgspec import Struct

from halfmq.core.events import DecisionEvent
from halfmq.model.records import ParkedBecause, Record
from halfmq.model.settings import ProducerSettings


class Why(Enum):
    """Reasons of a refusal. The gateway maps them to the protocol's numbers (``wire.remoting.codes``)."""

    MESSAGE_ILLEGAL = "message-illegal"
    INVALID_PARAMETER = "invalid-parameter"
    TOPIC_NOT_EXIST = "topic-not-exist"
    GROUP_NOT_EXIST = "group-not-exist"
    NO_PERMISSION = "no-permission"
    STORE_FULL = "store-full"
    LIMIT_REACHED = "limit-reached"
    NOT_FOUND = "not-found"
    #: A half that is sent again after its transaction was settled; clients do not retry it.
    ALREADY_SETTLED = "already-settled"
    #: The opposite verdict stands.
    VERDICT_CONFLICT = "verdict-conflict"
    #: Not every half that the transaction says it has is here; it stays undecided.
    INCOMPLETE = "incomplete"
    WRONG_GROUP = "wrong-group"
    WRONG_OFFSETS = "wrong-offsets"
    #: Nobody can or may be asked just now; nothing was changed.
    NOT_NOW = "not-now"
    #: What a consumer wants is not known: its heartbeat did not come yet, or does not name the topic.
    SUBSCRIPTION_NOT_EXIST = "subscription-not-exist"
    #: A newer heartbeat of the consumer is still on its way.
    SUBSCRIPTION_NOT_LATEST = "subscription-not-latest"
    SUBSCRIPTION_PARSE_FAILED = "subscription-parse-failed"
    #: A type of expression that is known elsewhere, and not offered here.
    FILTER_NOT_OFFERED = "filter-not-offered"
    #: The client that is to be given something is not connected, or does not read.
    CLIENT_NOT_REACHED = "client-not-reached"
    #: A client that was asked gave no answer.
    CLIENT_TIMEOUT = "client-timeout"


class Sent(Struct, frozen=True, gc=False):
    """Stored (or already stored, when it was sent again). For a half, ``queue_offset`` is its half index."""

    log_offset: int
    queue_id: int
    queue_offset: int
    unique_id: str


class SentBatch(NamedTuple):
    log_offsets: tuple[int, ...]
    queue_id: int
    queue_offset: int


class Settled(Struct, frozen=True, gc=False):
    """This verdict stands: now, or since earlier (``repeated``)."""

    group: str
    tx_id: str
    committed: bool
    position: int
    repeated: bool


class Refused(NamedTuple):
    """Nothing was changed. ``standing`` is "COMMITTED" or "ROLLED_BACK" where a verdict is the reason, with its position."""

    why: Why
    text: str
    standing: str = ""
    position: int = -1


class Noted(NamedTuple):
    """UNKNOWN was heard; nothing is settled. Stock clients get no answer to it."""


class Asked(NamedTuple):
    """A check goes to this client. No name: to whoever fetches the group's checks next."""

    client_id: str
    checks: int


class ParkedChecked(NamedTuple):
    """Checks of these transactions, which were parked, go out; so many others of the group are parked still."""

    tx_ids: tuple[str, ...]
    left: int


class ProducerIsSet(NamedTuple):
    """Limits and policy of a producer group, as they hold from here on."""

    settings: ProducerSettings


class Locked(NamedTuple):
    """These of the queues that it asked for are the client's."""

    queues: tuple[tuple[str, int], ...]
    #: Of the others some may have been refused because as many locks are held as may be (``limits.LOCKS_MAX``).
    is_full: bool = False


class Done(NamedTuple):
    """Asked and done; nothing to tell. ``again``: more of the same is due, call again soon."""

    again: bool = False


class GroupIsGone(NamedTuple):
    """The consumer group was deleted, or was not there. ``kept``: topics of it that stay, since messages are in them."""

    kept: tuple[str, ...]


Reply = (
    Sent | SentBatch | Settled | Refused | Noted | Asked | ParkedChecked | ProducerIsSet | GroupIsGone | Locked | Done
)


class WakeQueue(NamedTuple):
    """Messages became visible in this queue; held pulls for it look again."""

    topic_id: int
    queue_id: int


class SendCheck(NamedTuple):
    """Ask the producer behind ``connection`` about this transaction. If it cannot be sent: ``CheckNotSent``.

    ``half_index``, ``first_offset`` identify the transaction's first half; its bytes are at ``offset``.
    """

    connection: int
    group: str
    tx_id: str
    half_index: int
    first_offset: int
    offset: int
    checks: int


class PolicyActed(NamedTuple):
    """The policy of a group settled a transaction or set it aside: an operator should see it."""

    group: str
    tx_id: str
    because: ParkedBecause
    checks: int
    rolled_back: bool


class OffsetNotStored(NamedTuple):
    """A base has no room for an offset that is new: an operator should see it."""

    group: str
    topic: str
    queue_id: int


class TopicChanged(NamedTuple):
    topic_id: int
    name: str


Effect = WakeQueue | SendCheck | TopicChanged | PolicyActed | OffsetNotStored


class Decision(NamedTuple):
    records: tuple[Record, ...]
    reply: Reply
    effects: tuple[Effect, ...] = ()
    events: tuple[DecisionEvent, ...] = ()


#: What a decision is, without its name: what is decided for each message is a plain tuple, which Python makes in half the time.
Decided = tuple[tuple[Record, ...], Reply, tuple[Effect, ...], tuple[DecisionEvent, ...]]

NOTHING: tuple[()] = ()
DONE = Decision(NOTHING, Done())
