"""Sends of clients: find or create the topic, choose the queue, then store a plain message or prepare a half message.

A copy that a client sends because its send-back failed (``reconsume_times`` > 0, or a ``%RETRY%`` topic) is a plain message.
"""

from typing import Final

from msgspec.structs import replace

from halfmq import limits
from halfmq.core.commands import SendBatch, SendHalf, SendMessage
from halfmq.core.decision import NOTHING, Decision, DecisionTuple, Refused, Sent, SentBatch, Why, refuse
from halfmq.core.events import QueueChosen
from halfmq.core.queues.deduplication import sent_before
from halfmq.core.queues.delay import delay_refusal, due_at
from halfmq.core.state import DLQ_PREFIX, RETRY_PREFIX, Destination, RecentMessage, State, Topic
from halfmq.core.topics import PERMISSION_WRITE, NewTopic, first_use, make_topic
from halfmq.core.transaction.machine import DISK_FULL, STORED_BITS, body_too_large, named, prepare, too_many_properties
from halfmq.model.properties import CLUSTER, MSG_REGION, TRACE_ON, append, without
from halfmq.model.records import (
    BATCH_HEADER_BYTES,
    DELAYED_MESSAGE_AT,
    MESSAGE_AT,
    DelayedRecord,
    MessageRecord,
    Record,
)
from halfmq.model.stored_message import StoredMessage, body_crc_of

_new = tuple.__new__
#: Receipt of a pop, which means nothing in a new message. RocketMQ removes it as well.
_POP_RECEIPT: Final = "POP_CK"


def decide_send(state: State, command: SendMessage, now_ms: int) -> DecisionTuple:
    """Store a plain message, or repeat the reply to an earlier send with the same id.

    Replies:
        Sent: stored, now or before.
        Refused: nothing was written.
    """
    found = _place(state, command)
    if isinstance(found, Refused):
        return Decision(NOTHING, found)
    topic, queue_id, _, _ = found
    if topic.exempt or command.reconsume_times > 0:
        return _send_copy(state, command, found, now_ms)
    if queue_id >= topic.write_queues or not topic.permission & PERMISSION_WRITE:
        sent = _sent_before(state, topic, command)
        return Decision(NOTHING, sent or _not_writable(topic, queue_id))
    if queue_id < 0:
        if not topic.write_queues:
            return Decision(NOTHING, _not_writable(topic, queue_id))
        return chosen(topic, decide_send(state, replace(command, queue_id=next_queue(topic)), now_ms))
    return _send_plain(state, command, found, now_ms)


def decide_send_half(state: State, command: SendHalf, now_ms: int) -> DecisionTuple:
    """Store a half message, or repeat the reply to an earlier one. Replies as for ``machine.prepare``."""
    found = _place(state, command)
    if type(found) is Refused:  # where it is not one, ``isinstance`` takes four times as long
        return Decision(NOTHING, found)
    topic, queue_id, _, offset = found
    if queue_id >= topic.write_queues or not topic.permission & PERMISSION_WRITE:
        # Any queue will do: ``prepare`` looks for an earlier half before it uses the queue.
        decision = prepare(state, command, (topic, 0, NOTHING, offset), now_ms)
        records, reply, *_ = decision
        settled = isinstance(reply, Refused) and reply.why in (Why.ALREADY_SETTLED, Why.SEARCH_AGAIN)
        stands = settled or (isinstance(reply, Sent) and not records)
        return decision if stands else Decision(NOTHING, _not_writable(topic, queue_id))
    if queue_id < 0:
        if not topic.write_queues:
            return Decision(NOTHING, _not_writable(topic, queue_id))
        return chosen(topic, decide_send_half(state, replace(command, queue_id=next_queue(topic)), now_ms))
    return prepare(state, command, found, now_ms)


def _place(state: State, command: SendMessage | SendHalf | SendBatch) -> Destination | Refused:
    """Topic, queue and first record of the message: the sender's queue if it chose one. Creates the topic if necessary."""
    offset = state.log_end if state.batch_open else state.log_end + BATCH_HEADER_BYTES
    try:  # ``get`` takes twice as long
        return state.topics_by_name[command.topic], command.queue_id, NOTHING, offset
    except KeyError:
        found = first_use(state, command.topic, command.default_queues, offset)
    if isinstance(found, Refused):
        return found
    topic, record = found
    return topic, command.queue_id, (record,), offset + record.size


def next_queue(topic: Topic) -> int:
    """The write queue for a sender that leaves the choice to the broker. Queues take turns, if the decision is ``chosen``."""
    return (topic.session.round_robin_index + 1) % max(1, topic.write_queues)


def chosen(topic: Topic, decided: DecisionTuple) -> Decision:
    """The decision, with an event that it used the topic's ``next_queue``."""
    records, reply, effects, events, begins_segment = decided
    if records:
        events = (*events, QueueChosen(topic.topic_id))
    return Decision(records, reply, effects, events, begins_segment)


def _not_writable(topic: Topic, queue_id: int) -> Refused:
    if not topic.permission & PERMISSION_WRITE:
        return Refused(Why.NO_PERMISSION, f"topic {topic.name!r} is not writable")
    if not topic.write_queues:
        return Refused(Why.NO_PERMISSION, f"topic {topic.name!r} has no write queues")
    return Refused(
        Why.INVALID_PARAMETER, f"topic {topic.name!r} has write queues 0 to {topic.write_queues - 1}, not {queue_id}"
    )


def _sent_before(state: State, topic: Topic, command: SendMessage) -> Sent | None:
    """The reply to the earlier send of this plain message; None if there was none."""
    unique_id = command.unique_id
    crc = body_crc_of(command.body)
    sent = sent_before(state, topic, unique_id, crc, command.connection, again=command.sent_again)
    return None if sent is None else Sent(sent.log_offset, sent.queue_id, sent.queue_offset, unique_id)


def _send_plain(state: State, command: SendMessage, place: Destination, now_ms: int) -> Decision:
    if command.unique_id:
        sent = _sent_before(state, place[0], command)
        if sent is not None:
            return Decision(NOTHING, sent)
    else:
        command = named(state, command, place[3])
    facts = (command.tag_hash, command.key_hash, command.keys)
    return store_message(state, place, draft_of(command, place), command.unique_id, facts, command.delay, now_ms)


def draft_of(command: SendMessage, place: Destination) -> StoredMessage:
    body = command.body
    return _new(
        StoredMessage,
        (place[0].name, place[1], 0, command.flag, command.sys_flag, command.born_time_ms, command.born_host, 0, b"",
         command.reconsume_times, 0, body, body_crc_of(body), command.properties),
    )  # fmt: skip


def store_message(
    state: State,
    place: Destination,
    draft: StoredMessage,
    unique_id: str,
    facts: tuple[int, int, bytes],
    delay: int,
    now_ms: int,
) -> Decision:
    """One plain message, visible at once, or later according to ``delay`` (``message_facts.delay_of``).

    ``facts``: ``message_facts.plain_facts`` of its properties, including the unique id.

    The broker's own fields of ``draft`` are set here: queue offset, store time and host, additional properties.
    """
    topic, queue_id, made, offset = place
    _, _, _, flag, sys_flag, born_time_ms, born_host, _, _, reconsume_times, _, body, crc, properties = draft
    if state.session.disk_full:
        return Decision(NOTHING, DISK_FULL)
    if len(body) > state.settings.body_bytes_max:
        return Decision(NOTHING, body_too_large(state, len(body)))
    if b"POP_CK" in properties:
        properties = without(properties, _POP_RECEIPT)
    if b"TRACE_ON" in properties:  # a copy of a stored message
        properties = without(properties, CLUSTER, MSG_REGION, TRACE_ON)
    properties = append(properties, topic.plain_suffix)
    if len(properties) > limits.PROPERTIES_BYTES_MAX:
        return Decision(NOTHING, too_many_properties(len(properties)))
    size = topic.frame_bytes + len(born_host) + len(body) + len(properties)
    if size + 256 > state.record_bytes_max:
        return Decision(NOTHING, _too_large(state, size))
    due_ms = 0
    if delay:
        refused = delay_refusal(state, delay, now_ms)
        if refused is not None:
            return Decision(NOTHING, refused)
        due_ms = due_at(delay, now_ms)
    queue_offset = 0 if due_ms else topic.ends[queue_id]
    sys_flag &= STORED_BITS
    reply = Sent(offset, queue_id, queue_offset, unique_id)
    if due_ms:
        size += DELAYED_MESSAGE_AT - MESSAGE_AT
        delayed = DelayedRecord(
            offset, size, topic.topic_id, topic.name, queue_id, queue_offset, flag, sys_flag, born_time_ms, born_host,
            now_ms, state.settings.store_host, reconsume_times, 0, body, crc, properties, unique_id, due_ms, facts[0],
            facts[1],
        )  # fmt: skip
        return Decision((*made, delayed), reply)
    record = MessageRecord(
        offset, size, topic.topic_id, topic.name, queue_id, queue_offset, flag, sys_flag, born_time_ms, born_host,
        now_ms, state.settings.store_host, reconsume_times, 0, body, crc, properties, unique_id, *facts,
    )  # fmt: skip
    return Decision((*made, record), reply, topic.wakes[queue_id])


def _too_large(state: State, size: int) -> Refused:
    return Refused(
        Why.MESSAGE_ILLEGAL,
        f"the message takes {size} bytes of log; with segments of {state.settings.segment_bytes} bytes one may take "
        f"{state.record_bytes_max - 256}",
    )


# --- retries that a client sends itself ------------------------------------------------------------------------


def _send_copy(state: State, command: SendMessage, place: Destination, now_ms: int) -> Decision:
    """A copy of a message whose consumer failed, sent by the client because its send-back failed.

    It keeps the unique id of its original, so it is not deduplicated. Beyond the retry limit, or if the group consumes in order, it
    becomes a dead letter (RocketMQ ``SendMessageProcessor.handleRetryAndDLQ``; ``>`` here, ``>=`` in send-back).
    """
    topic, queue_id, made, offset = place
    delay = command.delay
    if topic.name.startswith(RETRY_PREFIX):
        group_name = topic.name[len(RETRY_PREFIX) :]
        group = state.groups.get(group_name)
        if group is None:
            return refuse(Why.GROUP_NOT_EXIST, f"consumer group {group_name!r} does not exist")
        times_max = command.max_reconsume_times if command.max_reconsume_times >= 0 else group.retry_max_times
        if command.reconsume_times > times_max or _consumes_in_order(state, group_name, now_ms):
            found = dead_letter_topic(state, group_name, offset, ahead=len(made))
            if isinstance(found, Refused):
                return Decision(NOTHING, found)
            topic, more = found
            made += more
            offset += sum([record.size for record in more])
            queue_id = delay = 0
    if not topic.permission & PERMISSION_WRITE or queue_id >= topic.write_queues:
        return Decision(NOTHING, _not_writable(topic, queue_id))
    by_turn = queue_id < 0
    if by_turn:
        queue_id = next_queue(topic)
    if not command.unique_id:
        command = named(state, command, offset)
    place = (topic, queue_id, made, offset)
    facts = (command.tag_hash, command.key_hash, command.keys)
    decision = store_message(state, place, draft_of(command, place), command.unique_id, facts, delay, now_ms)
    return chosen(topic, decision) if by_turn else decision


def _consumes_in_order(state: State, group: str, now_ms: int) -> bool:
    session = state.session.consumers.get(group)
    return session is not None and any(lock.until_ms > now_ms for lock in session.locks.values())


def dead_letter_topic(
    state: State, group_name: str, offset: int, ahead: int = 0
) -> tuple[Topic, tuple[Record, ...]] | Refused:
    """The ``%DLQ%`` topic of the group, and its record at ``offset`` if this decision creates it."""
    return _derived_topic(state, DLQ_PREFIX + group_name, 1, offset, ahead)


def retry_topic(
    state: State, group_name: str, queues: int, offset: int, *, by_hand: bool = False
) -> tuple[Topic, tuple[Record, ...]] | Refused:
    """The ``%RETRY%`` topic of the group, and its record at ``offset`` if this decision creates it."""
    return _derived_topic(state, RETRY_PREFIX + group_name, queues, offset, 0, by_hand=by_hand)


def _derived_topic(
    state: State, name: str, queues: int, offset: int, ahead: int, *, by_hand: bool = False
) -> tuple[Topic, tuple[Record, ...]] | Refused:
    topic = state.topics_by_name.get(name)
    if topic is not None:
        return topic, ()
    made = make_topic(state, offset, name, queues, queues, 6, ahead, by_hand=by_hand)
    if isinstance(made, NewTopic):
        return made.topic, (made.record,)
    return made


# --- several at once -------------------------------------------------------------------------------------------


def decide_send_batch(state: State, command: SendBatch, now_ms: int) -> Decision:
    """Plain messages for one queue of one topic, all or none.

    A repeated batch gets the reply to the first one. Refusals as for a single message, and on a retry topic.
    """
    if not command.entries:
        return refuse(Why.MESSAGE_ILLEGAL, "an empty batch")
    place = _place(state, command)
    if isinstance(place, Refused):
        return Decision(NOTHING, place)
    topic, queue_id, made, offset = place
    if topic.exempt:
        refused = Refused(Why.MESSAGE_ILLEGAL, "a batch cannot be sent to a retry or dead-letter topic")
        return Decision(NOTHING, refused)
    again = _batch_sent_before(state, topic, command)
    if again is not None:
        return Decision(NOTHING, again)
    if max(queue_id, 0) >= topic.write_queues or not topic.permission & PERMISSION_WRITE:
        return Decision(NOTHING, _not_writable(topic, queue_id))
    if queue_id >= 0:
        return _store_batch(state, place, command, now_ms)
    return chosen(topic, _store_batch(state, (topic, next_queue(topic), made, offset), command, now_ms))


def _batch_sent_before(state: State, topic: Topic, command: SendBatch) -> SentBatch | None:
    """The reply to the earlier send if every entry was stored before, in this order; else None."""
    before: list[RecentMessage] = []
    for one in command.entries:
        if not one.unique_id:
            return None
        crc = body_crc_of(one.body)
        sent = sent_before(state, topic, one.unique_id, crc, command.connection, again=command.sent_again)
        if sent is None:
            return None
        before.append(sent)
    first = before[0]
    in_a_row = [(first.queue_id, first.queue_offset + at) for at in range(len(before))]
    if [(sent.queue_id, sent.queue_offset) for sent in before] != in_a_row:
        return None
    return SentBatch(tuple([sent.log_offset for sent in before]), first.queue_id, first.queue_offset)


def _store_batch(state: State, place: Destination, command: SendBatch, now_ms: int) -> Decision:
    topic, queue_id, made, offset = place
    records = list(made)
    places: list[int] = []
    queue_offset = topic.ends[queue_id]
    for one in command.entries:
        if not one.unique_id:
            one = named(state, one, offset)
        draft = StoredMessage(
            topic.name, queue_id, 0, one.flag, command.sys_flag, command.born_time_ms, command.born_host, 0, b"", 0, 0,
            one.body, body_crc_of(one.body), one.properties,
        )  # fmt: skip
        facts = (one.tag_hash, one.key_hash, one.keys)
        decision = store_message(state, (topic, queue_id, (), offset), draft, one.unique_id, facts, 0, now_ms)
        if not decision.records:
            return decision
        record = decision.records[0]
        assert isinstance(record, MessageRecord)
        at = queue_offset + len(places)
        records.append(replace(record, queue_offset=at))
        places.append(offset)
        offset += record.size
    if offset - place[3] + 256 > state.record_bytes_max:
        return Decision(NOTHING, _too_large(state, offset - place[3]))
    return Decision(tuple(records), SentBatch(tuple(places), queue_id, queue_offset), topic.wakes[queue_id])
