"""Consumer groups: made on first use together with their ``%RETRY%`` topic, changed by an administrator."""

from halfmq import limits
from halfmq.core.base import group_set
from halfmq.core.commands import EnsureGroup, SetGroup
from halfmq.core.decision import DONE, NOTHING, Decision, Done, Effect, Refused, TopicChanged, Why
from halfmq.core.queues.send import retry_topic
from halfmq.core.state import State, next_offset
from halfmq.core.topics import make_group, refuse_group
from halfmq.errors import InvalidName
from halfmq.model.ids import checked_name
from halfmq.model.records import Record
from halfmq.model.settings import GroupSettings


def decide_ensure_group(state: State, command: EnsureGroup, now_ms: int) -> Decision:
    """Make the group and its retry topic if they are not there."""
    group = state.groups.get(command.name)
    records: tuple[Record, ...] = ()
    offset = next_offset(state)
    if group is None:
        made = make_group(state, offset, command.name)
        if isinstance(made, Refused):
            return Decision(NOTHING, made)
        group, record = made
        records = (record,)
        offset += record.size
    return _with_retry_topic(state, group, records, offset)


def decide_set_group(state: State, command: SetGroup, now_ms: int) -> Decision:
    """Make or change the group."""
    try:
        checked_name(command.name, "group", limits.GROUP_CHARS_MAX)
    except InvalidName as error:
        return Decision(NOTHING, Refused(Why.INVALID_PARAMETER, str(error)))
    if not 0 <= command.retry_queues <= limits.QUEUES_PER_TOPIC_MAX:
        return Decision(NOTHING, Refused(Why.INVALID_PARAMETER, f"{command.retry_queues} retry queues cannot be"))
    refused = refuse_group(state, command.name) if command.name not in state.groups else None
    if refused is not None:
        return Decision(NOTHING, refused)
    group = GroupSettings(command.name, command.retry_max_times, command.retry_queues, command.consume_enabled)
    record = group_set(next_offset(state), group)
    return _with_retry_topic(state, group, (record,), next_offset(state) + record.size)


def _with_retry_topic(state: State, group: GroupSettings, records: tuple[Record, ...], offset: int) -> Decision:
    effects: tuple[Effect, ...] = ()
    if group.retry_queues > 0:
        found = retry_topic(state, group.name, group.retry_queues, offset)
        if isinstance(found, Refused):
            return Decision(NOTHING, found)
        topic, made = found
        records += made
        effects = tuple([TopicChanged(topic.topic_id, topic.name) for _ in made])
    return Decision(records, Done(), effects) if records else DONE
