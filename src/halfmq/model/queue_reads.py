"""What is read of queues: messages, as services serve them and RocketMQ's header asks for them (11 and 361), and bounds (HMQ_POSITION)."""

from typing import NamedTuple

from msgspec import Struct, field

from halfmq.model.text_fields import Fields, Int32, Int64


class PullRequest(Fields, gc=False):
    """Messages of a queue from an offset on. A front door sets what the flags of its protocol leave out to None or 0."""

    group: str = field(name="consumerGroup")
    topic: str
    queue_id: Int32
    queue_offset: Int64
    #: Less than 1 counts as 1, more than ``limits.PULL_MESSAGES_MAX`` as that.
    messages_max: Int32 = field(name="maxMsgNums")
    #: RocketMQ's, which say whether the fields for a commit, a wait and a subscription count.
    sys_flag: Int32 = 0
    #: The group's offset to commit, as with ``CommitOffset``; None: none.
    commit_offset: Int64 | None = None
    #: Maximum wait for messages, ms; 0 or less: do not wait.
    wait_ms: Int64 = field(name="suspendTimeoutMillis", default=0)
    #: None: that of the group's last heartbeat.
    subscription: str | None = None
    #: Without ``subscription``: refused if the heartbeat is older than this.
    subscription_version: Int64 = field(name="subVersion", default=0)
    expression_type: str = "TAG"
    #: Size of the messages as stored; the first one always fits. 0 or less: as much as RocketMQ returns.
    bytes_max: Int32 = field(name="maxMsgBytes", default=0)


class TopicBounds(Struct, frozen=True, omit_defaults=True):
    """Bounds of a topic. ``queues[n]``: (first offset, offset after the last message before the position) of queue n. ``sizes``: (messages,
    their bytes in the log) of each sample that was asked for.
    """

    topic_id: int = field(name="id")
    queues: tuple[tuple[int, int], ...]
    sizes: tuple[tuple[int, int], ...] = ()


class Position(NamedTuple):
    """``store``: UUID, 32 hex digits. ``position``: the high watermark, below which everything is durable: all messages of a transaction
    are before the ends, or none. ``topics``: those that exist.
    """

    store: str
    epoch: int
    position: int
    topics: dict[str, TopicBounds]
