"""Topics: valid names, creation on first use, and changes.

The id of a deleted topic is never reused. A topic with undecided or delayed messages is not deleted: an undecided message is never
discarded (RocketMQ deletes the topic and loses the message at commit).

The number of write queues may be reduced at any time. A read queue is removed only if it is empty and no undecided or delayed
message is destined for it: otherwise a consumer could see some messages of a transaction and not the others. RocketMQ accepts
any counts; messages in a queue above the new count become unreachable, as do messages sent to a queue that is written but
not read.
"""

from typing import Final, NamedTuple

from halfmq import limits
from halfmq.core.audit import signed
from halfmq.core.base_bytes import group_bytes, label_bytes, refuse_named, refuse_space
from halfmq.core.commands import DeleteTopic, EnsureTopic, SetTopic
from halfmq.core.decision import DONE, NOTHING, Decision, Done, Refused, Why, refuse
from halfmq.core.events import TopicRemoved
from halfmq.core.schema import group_set, topic_set
from halfmq.core.state import DLQ_PREFIX, RETRY_PREFIX, State, Topic, next_offset
from halfmq.errors import InvalidName
from halfmq.model.ids import checked_name
from halfmq.model.records import OperatorAction, Record, TopicDeleted, payload_of, payload_record_size
from halfmq.model.settings import GROUPS_PART, QUEUE_BYTES, TOPIC_BYTES, GroupSettings

PERMISSION_WRITE: Final = 2
#: Permission of a topic created on first use: RocketMQ's template TBW102 has 7, of which 1 (inherit) is not passed on.
PERMISSION_DEFAULT: Final = 6

#: Topics that clients may not send to. The first six are RocketMQ's not-allowed set (``TopicValidator``); TBW102 is the template
#: in routes. RMQ_SYS_TRACE_TOPIC and BenchmarkTest are omitted, since clients do send to them.
NOT_FOR_CLIENTS: Final = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "TBW102", "CHECKPOINT_TOPIC",
    }
)  # fmt: skip
_SYSTEM_PREFIX: Final = "rmq_sys_"


class NewTopic(NamedTuple):
    """A topic that this decision creates; it is not in the state until its record is applied."""

    topic: Topic
    record: Record


def topic_refusal(name: str) -> Refused | None:
    """Why a topic of this name cannot be created or used; None if it can."""
    if name in NOT_FOR_CLIENTS or name.startswith(_SYSTEM_PREFIX):
        return Refused(Why.NO_PERMISSION, f"topic {name!r} is a system topic")
    derived = name.startswith((RETRY_PREFIX, DLQ_PREFIX))
    try:
        checked_name(name, "topic", limits.RETRY_TOPIC_CHARS_MAX if derived else limits.TOPIC_CHARS_MAX)
    except InvalidName as error:
        return Refused(Why.INVALID_PARAMETER, str(error))
    return None


def make_topic(
    state: State,
    offset: int,
    name: str,
    read_queues: int,
    write_queues: int,
    permission: int,
    ahead: int = 0,
    *,
    by_hand: bool = False,
    ordered: bool = False,
    message_type: str = "",
) -> NewTopic | Refused:
    """A new topic and its record at ``offset``. ``ahead``: number of topics that the same decision creates before it.

    ``by_hand``: an administrator creates it, who may use names that are reserved for the broker.
    """
    refused = _refuse_queues(name, read_queues, write_queues)
    if refused is not None:
        return refused
    what = f"topic {name!r} was not made"
    if len(state.topics_by_id) + ahead >= state.caps.topics:
        return _limit_reached(what, "topics", state.caps.topics, "--topics-max")
    needed = 2 * TOPIC_BYTES + len(name) + QUEUE_BYTES * max(read_queues, write_queues) + label_bytes(message_type)
    refused = (None if by_hand else refuse_named(state, needed, what)) or refuse_space(state, needed, what)
    if refused is not None:
        return refused
    record = topic_set(
        offset, state.next_topic_id + ahead, name, read_queues, write_queues, permission, ordered=ordered,
        message_type=message_type,
    )  # fmt: skip
    topic = Topic(state.settings, record.topic_id, name, read_queues, write_queues, permission)
    return NewTopic(topic, record)


def _limit_reached(what: str, kind: str, most: int, flag: str) -> Refused:
    text = f"{what}: the limit of {most} {kind} ({flag}) is reached; delete unused ones"
    return Refused(Why.LIMIT_REACHED, text)


def _refuse_queues(name: str, read_queues: int, write_queues: int) -> Refused | None:
    queues = max(read_queues, write_queues)
    if 0 < queues <= limits.QUEUES_PER_TOPIC_MAX and min(read_queues, write_queues) >= 0:
        return None
    return Refused(Why.INVALID_PARAMETER, f"topic {name!r}: 1 to {limits.QUEUES_PER_TOPIC_MAX} queues, not {queues}")


def first_use(state: State, name: str, queues_wished: int, offset: int) -> NewTopic | Refused:
    """Create the topic that a message or a route request names.

    As RocketMQ creates it from TBW102: with as many queues as the client requests, at most the template's. ``%RETRY%`` and
    ``%DLQ%`` topics have one queue.
    """
    refused = topic_refusal(name)
    if refused is not None:
        return refused
    if name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return make_topic(state, offset, name, 1, 1, PERMISSION_DEFAULT)
    if not state.settings.auto_create_topics:
        return Refused(Why.TOPIC_NOT_EXIST, f"topic {name!r} does not exist, and topics are not created on first use")
    queues = max(1, min(queues_wished, state.settings.default_topic_queues))
    return make_topic(state, offset, name, queues, queues, PERMISSION_DEFAULT)


def decide_ensure_topic(state: State, command: EnsureTopic, now_ms: int) -> Decision:
    """Create the topic if it does not exist and is allowed."""
    if command.name in state.topics_by_name:
        return DONE
    made = first_use(state, command.name, command.queues, next_offset(state))
    if isinstance(made, Refused):
        return Decision(NOTHING, made)
    return Decision((made.record,), Done())


def decide_set_topic(state: State, command: SetTopic, now_ms: int) -> Decision:
    """Create or change the topic.

    Replies:
        Done. Refused NO_PERMISSION, INVALID_PARAMETER: the request is invalid. LIMIT_REACHED: there is no space, or messages would
            become unreachable; the text names the queue, its content, and what to do. Nothing was changed.
    """
    refused = topic_refusal(command.name)
    if refused is not None:
        return Decision(NOTHING, refused)
    if not 0 <= command.permission <= 7:
        return refuse(Why.INVALID_PARAMETER, f"permission {command.permission} is not 0 to 7")
    if command.write_queues > command.read_queues:
        text = (
            f"topic {command.name!r}: {command.write_queues} write queues and {command.read_queues} read queues: nobody could "
            "read what is sent to the others"
        )
        return refuse(Why.INVALID_PARAMETER, text)
    label = command.message_type or ""
    if len(label) > limits.MESSAGE_TYPE_CHARS_MAX or not label.isascii():
        text = f"topic {command.name!r}: a message type has at most {limits.MESSAGE_TYPE_CHARS_MAX} ASCII characters"
        return refuse(Why.INVALID_PARAMETER, text)
    topic = state.topics_by_name.get(command.name)
    if topic is not None:
        return _change_topic(state, topic, command)
    made = make_topic(
        state,
        next_offset(state),
        command.name,
        command.read_queues,
        command.write_queues,
        command.permission,
        by_hand=True,
        ordered=command.ordered or False,
        message_type=label,
    )
    if isinstance(made, Refused):
        return Decision(NOTHING, made)
    decision = Decision((made.record,), Done())
    return signed(decision, OperatorAction.SET_TOPIC, command.name, command.by)


def _change_topic(state: State, topic: Topic, command: SetTopic) -> Decision:
    _, read_queues, write_queues, permission, by, ordered, message_type = command
    ordered = topic.ordered if ordered is None else ordered
    message_type = topic.message_type if message_type is None else message_type
    more = max(read_queues, write_queues) - len(topic.ends)
    more_bytes = QUEUE_BYTES * max(more, 0) + max(label_bytes(message_type) - label_bytes(topic.message_type), 0)
    refused = _refuse_queues(topic.name, read_queues, write_queues)
    refused = refused or refuse_space(state, more_bytes, f"topic {topic.name!r} was not changed")
    if refused is not None:
        return Decision(NOTHING, refused)
    text = _out_of_reach(state, topic, read_queues)
    if text:
        return refuse(Why.LIMIT_REACHED, text)
    record = topic_set(
        next_offset(state), topic.topic_id, topic.name, read_queues, write_queues, permission, ordered=ordered,
        message_type=message_type,
    )  # fmt: skip
    decision = Decision((record,), Done())
    return signed(decision, OperatorAction.SET_TOPIC, topic.name, by)


def _out_of_reach(state: State, topic: Topic, read_queues: int) -> str:
    """Describes the messages that could not be pulled with this number of read queues, and what to do; "" if there are none."""
    for queue_id in range(read_queues, topic.read_queues):
        messages = topic.ends[queue_id] - topic.mins[queue_id]
        if messages:
            return (
                f"topic {topic.name!r} keeps its {topic.read_queues} read queues: queue {queue_id} holds {messages} messages "
                f"that nobody could pull with {read_queues}. Lower the write queues now, and the read queues when retention "
                "has emptied them; or delete the topic"
            )
    coming = (
        _coming_from(state, topic, read_queues) if topic.derived.pending and read_queues < topic.read_queues else ""
    )
    if not coming:
        return ""
    return (
        f"topic {topic.name!r} keeps its {topic.read_queues} read queues: {coming}, which could not be pulled with "
        f"{read_queues}. Lower the write queues now, settle it or wait for it, and lower the read queues when retention has "
        "emptied them"
    )


def _coming_from(state: State, topic: Topic, queue_id: int) -> str:
    """The first undecided or delayed message for this queue or a later one of the topic; "" if there is none.

    It searches all undecided and delayed messages, once for each such request of an administrator.
    """
    for group in state.producer_groups.values():
        for known in group.undecided.values():
            for half in known.halves:
                if half.topic_id == topic.topic_id and half.queue_id >= queue_id:
                    return f"transaction {known.tx_id!r} of group {group.name!r} is undecided and goes to queue {half.queue_id}"
    for delayed in state.delayed.values():
        if delayed.topic_id == topic.topic_id and delayed.queue_id >= queue_id:
            return f"a delayed message, due at {delayed.due_ms} ms, goes to queue {delayed.queue_id}"
    return ""


def decide_delete_topic(state: State, command: DeleteTopic, now_ms: int) -> Decision:
    """Delete the topic and the offsets in it. Its name may be used again, with another id. Deleting an absent topic succeeds."""
    topic = state.topics_by_name.get(command.name)
    if topic is None:
        return DONE
    if topic.derived.pending:
        return refuse(
            Why.LIMIT_REACHED,
            f"topic {topic.name!r} has {topic.derived.pending} undecided or delayed messages; settle them first",
        )
    record = topic_deleted(next_offset(state), topic)
    decision = Decision((record,), Done(), events=(topic_removed_event(topic),))
    return signed(decision, OperatorAction.DELETE_TOPIC, topic.name, command.by)


def topic_removed_event(topic: Topic) -> TopicRemoved:
    return TopicRemoved(topic.topic_id, len(topic.ends), tuple(topic.derived.groups))


def topic_deleted(offset: int, topic: Topic) -> TopicDeleted:
    payload = payload_of(topic.topic_id)
    return TopicDeleted(offset, payload_record_size(payload), topic.topic_id, payload)


# --- groups ----------------------------------------------------------------------------------------------------


def refuse_group(state: State, name: str) -> Refused | None:
    """Why there is no space for a new consumer group; None if there is."""
    what = f"group {name!r} was not made"
    if len(state.groups) >= state.caps.groups:
        return _limit_reached(what, "consumer groups", state.caps.groups, "--groups-max")
    share = GROUPS_PART.bytes_max(state.settings.segment_bytes)
    if state.derived.groups_bytes + group_bytes(name) > share:
        text = (
            f"{what}: consumer groups take {state.derived.groups_bytes} of the {share} bytes that they may take of the "
            f"base of a segment of {state.settings.segment_bytes} bytes; delete unused groups, or use a store with "
            "larger segments"
        )
        return Refused(Why.LIMIT_REACHED, text)
    return refuse_space(state, group_bytes(name), what)


def make_group(state: State, offset: int, name: str) -> tuple[GroupSettings, Record] | Refused:
    """A consumer group with default settings, and its record at ``offset``."""
    try:
        checked_name(name, "group", limits.GROUP_CHARS_MAX)
    except InvalidName as error:
        return Refused(Why.INVALID_PARAMETER, str(error))
    if not state.settings.auto_create_groups:
        return Refused(Why.GROUP_NOT_EXIST, f"group {name!r} does not exist, and groups are not created on first use")
    refused = refuse_group(state, name) or refuse_named(state, group_bytes(name), f"group {name!r} was not made")
    if refused is not None:
        return refused
    group = GroupSettings(name)
    return group, group_set(offset, group, None)
