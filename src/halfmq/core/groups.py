"""Consumer groups: created on first use together with their ``%RETRY%`` topic, changed and deleted by an administrator.

RocketMQ deletes a group even while clients consume in it, and keeps both of its topics, which ``mqadmin deleteSubGroup`` then
deletes whatever they contain (``AdminBrokerProcessor.deleteSubscriptionGroup``, ``DeleteSubscriptionGroupCommand``). Here a group with
members is not deleted: without its offsets it would start over while it runs. An empty ``%RETRY%`` topic is deleted with its
group; one that contains messages remains until somebody deletes it.
"""

from dataclasses import fields, replace
from typing import Final

from halfmq import limits
from halfmq.core.audit import signed
from halfmq.core.base_bytes import group_bytes, more_group_bytes, refuse_space
from halfmq.core.commands import DeleteGroup, EnsureGroup, SetGroup
from halfmq.core.decision import DONE, NOTHING, ConsumerGroupDeleted, Decision, Done, Refused, Why, refuse
from halfmq.core.events import ConsumerGroupRemoved, DecisionEvent
from halfmq.core.queues.send import retry_topic
from halfmq.core.schema import group_deleted, group_set
from halfmq.core.state import DLQ_PREFIX, RETRY_PREFIX, State, next_offset
from halfmq.core.topics import make_group, refuse_group, topic_deleted, topic_removed_event
from halfmq.errors import InvalidName
from halfmq.model.ids import checked_name
from halfmq.model.records import OperatorAction, Record
from halfmq.model.settings import GroupSettings

#: Maximum number of consumers that a refusal names.
_NAMED_MAX: Final = 5
#: Fields of a group's settings that a command may name.
_FIELDS: Final = tuple(field.name for field in fields(GroupSettings) if field.name != "name")
#: RocketMQ's settings are Java ints.
_RETRIES_MAX: Final = (1 << 31) - 1


def decide_ensure_group(state: State, command: EnsureGroup, now_ms: int) -> Decision:
    """Create the group and its retry topic if they do not exist."""
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
    """Create or change the group."""
    name = command.name
    group = _changed(state.groups.get(name) or GroupSettings(name), command)
    try:
        checked_name(name, "group", limits.GROUP_CHARS_MAX)
        for topic in group.hold_topics:
            checked_name(topic, "topic", limits.TOPIC_CHARS_MAX)
    except InvalidName as error:
        return refuse(Why.INVALID_PARAMETER, str(error))
    if not 0 <= group.retry_queues <= limits.QUEUES_PER_TOPIC_MAX:
        return refuse(Why.INVALID_PARAMETER, f"{group.retry_queues} retry queues are invalid")
    if not -1 <= group.retry_max_times <= _RETRIES_MAX:
        text = f"{group.retry_max_times} retries are invalid: -1 to {_RETRIES_MAX}"
        return refuse(Why.INVALID_PARAMETER, text)
    if not 0 <= group.hold_ms <= limits.HOLD_MS_MAX:
        text = f"{group.hold_ms} ms are invalid for a hold: 0 (no limit by age) to {limits.HOLD_MS_MAX}"
        return refuse(Why.INVALID_PARAMETER, text)
    if not group.hold_topics and command.hold_ms not in (None, limits.HOLD_MS):
        return refuse(Why.INVALID_PARAMETER, f"group {name!r} holds no topic whose age could be limited")
    if len(group.hold_topics) > limits.HOLD_TOPICS_MAX:
        text = f"group {name!r} may hold {limits.HOLD_TOPICS_MAX} topics, not {len(group.hold_topics)}"
        return refuse(Why.INVALID_PARAMETER, text)
    before = state.groups.get(name)
    more = more_group_bytes(group) - more_group_bytes(before) + (group_bytes(name) if before is None else 0)
    refused = refuse_group(state, name) if before is None else None
    refused = refused or refuse_space(state, more, f"group {name!r} was not changed")
    if refused is not None:
        return Decision(NOTHING, refused)
    record = group_set(next_offset(state), group, state.holders.get(group.name))
    decision = _with_retry_topic(state, group, (record,), next_offset(state) + record.size, by_hand=True)
    return signed(decision, OperatorAction.SET_GROUP, name, command.by)


def _changed(group: GroupSettings, command: SetGroup) -> GroupSettings:
    """``group`` with what ``command`` names."""
    named = {field: getattr(command, field) for field in _FIELDS if getattr(command, field) is not None}
    group = replace(group, **named)
    topics = tuple(sorted(set(group.hold_topics)))
    return replace(group, hold_topics=topics, hold_ms=group.hold_ms if topics else limits.HOLD_MS)


def decide_delete_group(state: State, command: DeleteGroup, now_ms: int) -> Decision:
    """Delete the group, and its offsets if the command says so. Deleting an absent group succeeds.

    Replies:
        ConsumerGroupDeleted: with its remaining topics. Refused NOT_NOW: it has members.
    """
    name = command.name
    session = state.session.consumers.get(name)
    if session is not None and session.members:
        ids = sorted({member.client_id for member in session.members.values()})
        shown = ", ".join(ids[:_NAMED_MAX]) + (" and others" if len(ids) > _NAMED_MAX else "")
        text = f"group {name!r} was not deleted: {len(ids)} consumers are in it ({shown}); stop them first"
        return refuse(Why.NOT_NOW, text)
    records: tuple[Record, ...] = ()
    events: tuple[DecisionEvent, ...] = ()
    topics = [topic for topic in (RETRY_PREFIX + name, DLQ_PREFIX + name) if topic in state.topics_by_name]
    offset = next_offset(state)
    retry = state.topics_by_name.get(RETRY_PREFIX + name)
    if name in state.groups or (command.with_offsets and name in state.offsets):
        records = (group_deleted(offset, name, command.with_offsets),)
        events = (ConsumerGroupRemoved(name, command.with_offsets),)
        if retry is not None and not retry.derived.pending and retry.mins == retry.ends:
            records += (topic_deleted(offset + records[0].size, retry),)
            events += (topic_removed_event(retry),)
            topics.remove(retry.name)
    decision = Decision(records, ConsumerGroupDeleted(tuple(topics)), events=events)
    return signed(decision, OperatorAction.DELETE_GROUP, name, command.by)


def _with_retry_topic(
    state: State, group: GroupSettings, records: tuple[Record, ...], offset: int, *, by_hand: bool = False
) -> Decision:
    if group.retry_queues > 0:
        found = retry_topic(state, group.name, group.retry_queues, offset, by_hand=by_hand)
        if isinstance(found, Refused):
            return Decision(NOTHING, found)
        records += found[1]
    return Decision(records, Done()) if records else DONE
