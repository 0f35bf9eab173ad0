"""Settings that decisions depend on, as values. Where each comes from (flag, environment, file) is the shells' business."""

from dataclasses import dataclass
from enum import Enum

from halfmq import limits
from halfmq.model.placement import SEGMENT_BYTES_DEFAULT


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """What ``core`` needs to know. ``store_host`` is the advertised address, packed: 4 or 16 bytes IP, int32 port."""

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
    check_immunity_ms: int = limits.CHECK_IMMUNITY_MS
    check_interval_ms: int = limits.CHECK_INTERVAL_MS
    check_interval_max_ms: int = limits.CHECK_INTERVAL_MAX_MS
    check_answer_ms: int = limits.CHECK_ANSWER_MS
    checks_in_flight_max: int = limits.CHECKS_IN_FLIGHT_MAX
    sent_again_ms: int = limits.SENT_AGAIN_MS
    sent_again_ids_max: int = limits.SENT_AGAIN_IDS_MAX


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """One topic. ``permission``: RocketMQ bits, 4 read, 2 write, 1 inherit."""

    topic_id: int
    name: str
    read_queues: int
    write_queues: int
    permission: int = 6


@dataclass(frozen=True, slots=True)
class GroupSettings:
    name: str
    retry_max_times: int = limits.RETRY_TIMES_MAX
    retry_queues: int = 1
    consume_enabled: bool = True


class PastLimit(Enum):
    """What becomes of a transaction that asking ``check_limit`` times did not settle."""

    #: It is asked about for ever.
    WAIT = "wait"
    #: It is rolled back, and the record says that a policy did it. RocketMQ's default is near: it throws the half away.
    ROLLBACK = "rollback"
    #: Nobody is asked any more by itself; it stays undecided, for an operator or a late verdict.
    SET_ASIDE = "set-aside"


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """Limits and policy of one producer group. Without one a group has what ``BrokerSettings`` says, and waits for ever."""

    name: str
    #: Checks that reach a producer before ``past_limit`` takes effect; 0: no limit, and only then ``WAIT``.
    check_limit: int = 0
    past_limit: PastLimit = PastLimit.WAIT
    #: A transaction older than this is set aside, never inside its immunity; 0: never.
    skip_age_ms: int = 0
    #: Undecided transactions of the group, and bytes of their messages; -1: as the broker's.
    undecided_max: int = -1
    undecided_bytes_max: int = -1
    #: Who set this last.
    set_by: str = ""

    @property
    def is_default(self) -> bool:
        """Whether the group is as it would be without these settings."""
        return self == ProducerSettings(self.name, set_by=self.set_by)
