"""Settings of decisions, as values. The caller of ``Broker`` determines their source: the flags of `halfmq serve`, or a test."""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple

from halfmq import limits
from halfmq.model.placement import SEGMENT_BYTES_DEFAULT, SEGMENT_BYTES_MIN


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Settings of ``core``. ``store_host`` is the advertised address, packed: 4 or 16 bytes IP, int32 port."""

    broker_name: str = "halfmq"
    cluster: str = "DefaultCluster"
    store_host: bytes = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
    segment_bytes: int = SEGMENT_BYTES_DEFAULT
    auto_create_topics: bool = True
    auto_create_groups: bool = True
    default_topic_queues: int = 8
    body_bytes_max: int = limits.BODY_BYTES_MAX
    undecided_max: int = limits.UNDECIDED_MAX
    undecided_bytes_max: int = limits.UNDECIDED_BYTES_MAX
    #: Over all producer groups; and the maximum number of groups with undecided transactions.
    undecided_total_max: int = limits.UNDECIDED_TOTAL_MAX
    undecided_total_bytes_max: int = limits.UNDECIDED_TOTAL_BYTES_MAX
    undecided_groups_max: int = limits.UNDECIDED_GROUPS_MAX
    #: Stored messages that are not visible yet, over all topics.
    delayed_total_max: int = limits.DELAYED_TOTAL_MAX
    #: Topics and consumer groups; -1: as in ``limits``. Items that clients create by naming them are limited further, see
    #: ``BasePart``.
    topics_max: int = -1
    groups_max: int = -1
    queries_max: int = limits.QUERIES_MAX
    check_immunity_ms: int = limits.CHECK_IMMUNITY_MS
    check_interval_ms: int = limits.CHECK_INTERVAL_MS
    check_interval_max_ms: int = limits.CHECK_INTERVAL_MAX_MS
    check_answer_ms: int = limits.CHECK_ANSWER_MS
    checks_in_flight_max: int = limits.CHECKS_IN_FLIGHT_MAX
    dedup_window_ms: int = limits.DEDUP_WINDOW_MS
    dedup_ids_max: int = limits.DEDUP_IDS_MAX


#: Maximum fraction of a segment for its base: a decision may need half, and one sixteenth is spare.
_BASE_PART: Final = (7, 16)
#: Size of one in a base without its name: of a topic without queues, of a queue, of a consumer group (``core.base_bytes``).
TOPIC_BYTES: Final = 48
QUEUE_BYTES: Final = 9
GROUP_BYTES: Final = 32


class Caps(NamedTuple):
    """Maximum number of topics and consumer groups. Existing ones stay, and may be changed."""

    topics: int
    groups: int


def base_bytes_max(segment_bytes: int) -> int:
    return segment_bytes * _BASE_PART[0] // _BASE_PART[1]


def caps(settings: BrokerSettings) -> Caps:
    """The maximum numbers."""
    return Caps(
        limits.TOPICS_MAX if settings.topics_max < 0 else settings.topics_max,
        limits.GROUPS_MAX if settings.groups_max < 0 else settings.groups_max,
    )


class BasePart(NamedTuple):
    """The part of a base that clients may fill with items that they create by naming them.

    The rest is for offsets, limits of producer groups, and items of administrators. ``broker/peer_state.py`` lists what counts where.
    """

    part: int
    of: int

    def bytes_max(self, segment_bytes: int) -> int:
        return base_bytes_max(segment_bytes) * self.part // self.of

    def __str__(self) -> str:
        return f"{self.part}/{self.of}"


#: All such items together.
NAMED_PART: Final = BasePart(3, 4)
#: Of that: consumer groups without their offsets and ``%RETRY%`` topics; queries; coordinators.
GROUPS_PART: Final = BasePart(1, 4)
QUERIES_PART: Final = BasePart(1, 8)
COORDINATORS_PART: Final = BasePart(1, 32)
#: Of a base, and not of that: users, whom only administrators make.
USERS_PART: Final = BasePart(1, 32)


def caps_that_fit(settings: BrokerSettings) -> Caps:
    """Numbers that fit in the base of a segment whatever the names are."""
    segment_bytes = settings.segment_bytes
    groups_bytes, *others_bytes = [
        part.bytes_max(segment_bytes) for part in (GROUPS_PART, QUERIES_PART, COORDINATORS_PART)
    ]
    topics_bytes = NAMED_PART.bytes_max(segment_bytes) - groups_bytes - sum(others_bytes)
    # With the longest name that a client chooses (a ``%RETRY%`` topic's is not longer), and the queues of a topic created on first use.
    topic_bytes = TOPIC_BYTES + limits.TOPIC_CHARS_MAX + QUEUE_BYTES * settings.default_topic_queues
    return Caps(topics_bytes // topic_bytes, groups_bytes // (GROUP_BYTES + limits.GROUP_CHARS_MAX))


def segment_bytes_for(settings: BrokerSettings) -> int:
    """The smallest segment size whose base has space for the configured topics and groups."""
    size = SEGMENT_BYTES_MIN
    while True:
        fit = caps_that_fit(replace(settings, segment_bytes=size))
        if fit.topics >= settings.topics_max and fit.groups >= settings.groups_max:
            return size
        size *= 2


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Settings of one consumer group. ``retry_max_times``: redeliveries before a message goes to the dead-letter topic; ``retry_queues``:
    queues of its ``%RETRY%`` topic.
    """

    name: str
    retry_max_times: int = limits.RETRY_TIMES_MAX
    retry_queues: int = 1
    consume_enabled: bool = True
    #: Topics whose messages retention keeps until the group has read them, sorted; see ``core.holds``.
    hold_topics: tuple[str, ...] = ()
    #: The age at which they are no longer kept, ms; 0: no limit by age. The default if the group holds nothing.
    hold_ms: int = limits.HOLD_MS
    #: Whether its members may consume by broadcasting.
    broadcast_enabled: bool = True
    #: Of RocketMQ's tools, which show it again; nothing reads it, here or there.
    from_min_enabled: bool = True
    #: Whether members are told when others join or leave. If not, they notice at their next own look (20 s).
    notifies_members: bool = True


class PastLimit(Enum):
    """What happens to a transaction that ``check_limit`` checks did not settle."""

    #: It gets checks indefinitely.
    WAIT = "wait"
    #: It is rolled back, and the record names a policy. RocketMQ's default is similar: it discards the half.
    ROLLBACK = "rollback"
    #: No further checks are sent automatically; it stays undecided, for an operator or a late verdict.
    PARKED = "set-aside"


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """Limits and policy of one producer group. Without one a group has the limits of ``BrokerSettings`` and waits indefinitely."""

    name: str
    #: Number of checks that reach a producer before ``past_limit`` applies; 0: no limit, and only then ``WAIT``.
    check_limit: int = 0
    past_limit: PastLimit = PastLimit.WAIT
    #: A transaction older than this is parked, never within its grace period; 0: never.
    skip_age_ms: int = 0
    #: Undecided transactions of the group, and bytes of their messages; -1: the broker's limits.
    undecided_max: int = -1
    undecided_bytes_max: int = -1
    #: The administrator who set this last.
    set_by: str = ""

    @property
    def is_default(self) -> bool:
        """Whether the settings equal those of a group without any."""
        return self == ProducerSettings(self.name, set_by=self.set_by)
