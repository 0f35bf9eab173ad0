"""Messages from clients: find or make the topic, choose the queue, then store a plain message or hand over a half.

What makes a half is the property TRAN_MSG, not the prepared bit of the sys flag, as in RocketMQ. The bit without the
property, which RocketMQ stores where no consumer will ever see it, is refused. A retry (``reconsume_times`` above 0, or
a ``%RETRY%`` topic) copies all properties of its original, TRAN_MSG included, and is a plain message.
"""

from typing import Final

from halfmq import limits
from halfmq.core.commands import SendBatch, SendMessage
from halfmq.core.decision import NOTHING, Decided, Decision, Effect, Refused, Sent, SentBatch, TopicChanged, Why
from halfmq.core.events import QueueChosen
from halfmq.core.queues.deduplication import sent_before
from halfmq.core.queues.delay import delay_refusal, due_at
from halfmq.core.state import DLQ_PREFIX, RETRY_PREFIX, Place, SentOnce, State, Topic
from halfmq.core.topics import PERMISSION_WRITE, Made, first_use, make_topic
from halfmq.core.transaction.machine import DISK_FULL, NOT_STORED_BITS, body_too_large, prepare, too_many_properties
from halfmq.model.ids import offset_message_id
from halfmq.model.message_facts import delay_in, delay_of, pairs_of, plain_facts
from halfmq.model.properties import CLUSTER, MSG_REGION, TRACE_ON, TRAN_MSG, UNIQ_KEY, append, find, without
from halfmq.model.records import (
    BATCH_HEADER_BYTES,
    DELAYED_MESSAGE_AT,
    MESSAGE_AT,
    DelayedRecord,
    MessageRecord,
    Record,
)
from halfmq.model.stored_message import SYS_PREPARED, SYS_TRANSACTION_MASK, StoredMessage, body_crc_of

_new = tuple.__new__
_TRAN_MSG: Final = TRAN_MSG.encode()
_UNIQ_KEY: Final = UNIQ_KEY.encode()
#: Receipt of a pop, meaningless in a new message (RocketMQ strips it, too).
_POP_RECEIPT: Final = "POP_CK"


def decide_send(state: State, command: SendMessage, now_ms: int) -> Decided:
    """Store a message, or give the first answer to one that is sent again.

    Replies:
        Sent: stored now or before.
        Refused: nothing was written.
    """
    topic_name = command[2]
    queue_id = command[4]
    offset = state.log_end if state.batch_open else state.log_end + BATCH_HEADER_BYTES
    topic = state.topics_by_name.get(topic_name)
    made: tuple[Record, ...] = NOTHING
    effects: tuple[Effect, ...] = NOTHING
    if topic is None:
        found = first_use(state, topic_name, command[3], offset)
        if isinstance(found, Refused):
            return Decision(NOTHING, found)
        topic, record = found
        made = (record,)
        effects = (TopicChanged(topic.topic_id, topic.name),)
        offset += record.size
    if topic.exempt or command[9] > 0:
        return _send_copy(state, command, (topic, queue_id, made, effects, offset), now_ms)
    if queue_id >= topic.write_queues or not topic.permission & PERMISSION_WRITE:
        return _stored_before(state, command, topic, offset, now_ms) or Decision(
            NOTHING, _not_writable(topic, queue_id)
        )
    if queue_id < 0:
        if not topic.write_queues:
            return Decision(NOTHING, _not_writable(topic, queue_id))
        return chosen(topic, decide_send(state, command._replace(queue_id=next_queue(topic)), now_ms))
    place = (topic, queue_id, made, effects, offset)
    pairs = pairs_of(command[8])
    if pairs.get(_TRAN_MSG, b"").lower() == b"true":
        return prepare(state, command, pairs, place, now_ms)
    if command[5] & SYS_TRANSACTION_MASK == SYS_PREPARED:
        return Decision(NOTHING, _prepared_without_property())
    return _send_plain(state, command, pairs, place, now_ms)


def next_queue(topic: Topic) -> int:
    """A write queue where the sender leaves the choice to us: they take turns, if the decision is ``chosen``."""
    return (topic.session.turn + 1) % max(1, topic.write_queues)


def chosen(topic: Topic, decided: Decided) -> Decision:
    """The decision, with the word that it took the topic's ``next_queue``."""
    records, reply, effects, events = decided
    return Decision(records, reply, effects, (*events, QueueChosen(topic.topic_id)) if records else events)


def _not_writable(topic: Topic, queue_id: int) -> Refused:
    if not topic.permission & PERMISSION_WRITE:
        return Refused(Why.NO_PERMISSION, f"topic {topic.name!r} is not writable")
    if not topic.write_queues:
        return Refused(Why.NO_PERMISSION, f"topic {topic.name!r} has no write queues")
    return Refused(
        Why.INVALID_PARAMETER, f"topic {topic.name!r} has write queues 0 to {topic.write_queues - 1}, not {queue_id}"
    )


def _stored_before(state: State, command: SendMessage, topic: Topic, offset: int, now_ms: int) -> Decided | None:
    """What stands for a message that its topic does not take any more, and did; None if it never came before."""
    pairs = pairs_of(command.properties)
    if pairs.get(_TRAN_MSG, b"").lower() == b"true":
        # Any queue does: what stands is looked for before the queue is.
        decision = prepare(state, command, pairs, (topic, 0, NOTHING, NOTHING, offset), now_ms)
        records, reply, _, _ = decision
        settled = isinstance(reply, Refused) and reply.why is Why.ALREADY_SETTLED
        return decision if settled or (isinstance(reply, Sent) and not records) else None
    unique_id = pairs.get(_UNIQ_KEY, b"").decode(errors="surrogateescape")
    sent = sent_before(state, topic, unique_id, body_crc_of(command.body), command.connection, again=command.sent_again)
    return (
        Decision(NOTHING, Sent(sent.log_offset, sent.queue_id, sent.queue_offset, unique_id))
        if sent is not None
        else None
    )


def _prepared_without_property() -> Refused:
    return Refused(
        Why.MESSAGE_ILLEGAL,
        "the sys flag says prepared but property TRAN_MSG is not true: set both for a half message, or neither",
    )


def _send_plain(state: State, command: SendMessage, pairs: dict[bytes, bytes], place: Place, now_ms: int) -> Decision:
    properties = command[8]
    body = command[11]
    crc = body_crc_of(body)
    raw_id = pairs.get(_UNIQ_KEY)
    if raw_id is not None:
        try:
            unique_id = raw_id.decode()
        except UnicodeDecodeError:
            return Decision(NOTHING, _not_text())
        sent = sent_before(state, place[0], unique_id, crc, command[0], again=command[13])
        if sent is not None:
            return Decision(NOTHING, Sent(sent.log_offset, sent.queue_id, sent.queue_offset, unique_id))
    else:
        unique_id, properties = with_unique_id(state, properties, place[4])
        pairs[_UNIQ_KEY] = unique_id.encode()
    draft = draft_of(command, place, crc, properties)
    return store_message(state, place, draft, unique_id, plain_facts(pairs), delay_in(pairs), now_ms)


def _not_text() -> Refused:
    return Refused(Why.MESSAGE_ILLEGAL, "the unique id of the message is not UTF-8")


def draft_of(command: SendMessage, place: Place, crc: int, properties: bytes) -> StoredMessage:
    return _new(
        StoredMessage,
        (place[0].name, place[1], 0, command[7], command[5], command[6], command[12], 0, b"", command[9], 0,
         command[11], crc, properties),
    )  # fmt: skip


def with_unique_id(state: State, properties: bytes, offset: int) -> tuple[str, bytes]:
    """(unique id, properties with it) for a message whose sender gave none: the log offset makes it unique."""
    unique_id = offset_message_id(state.settings.store_host, offset)
    return unique_id, append(properties, f"{UNIQ_KEY}\x01{unique_id}\x02".encode())


def store_message(
    state: State,
    place: Place,
    draft: StoredMessage,
    unique_id: str,
    facts: tuple[int, int, bytes],
    delay: int,
    now_ms: int,
) -> Decision:
    """One plain message, visible at once, or later when ``delay`` (``message_facts.delay_of``) says so.

    ``facts``: ``message_facts.plain_facts`` of its properties, the unique id among them.

    Of ``draft`` the broker's own fields are filled in here: queue offset, store time and host, and what is added to the
    properties.
    """
    topic, queue_id, made, effects, offset = place
    _, _, _, flag, sys_flag, born_time_ms, born_host, _, _, reconsume_times, _, body, crc, properties = draft
    if state.session.disk_full:
        return Decision(NOTHING, DISK_FULL)
    if len(body) > state.settings.body_bytes_max:
        return Decision(NOTHING, body_too_large(state, len(body)))
    if b"POP_CK" in properties:
        properties = without(properties, _POP_RECEIPT)
    if b"TRACE_ON" in properties:  # a copy of a message that was stored before
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
    message = _new(
        StoredMessage,
        (topic.name, queue_id, queue_offset, flag, sys_flag & ~NOT_STORED_BITS, born_time_ms, born_host, now_ms,
         state.settings.store_host, reconsume_times, 0, body, crc, properties),
    )  # fmt: skip
    reply = _new(Sent, (offset, queue_id, queue_offset, unique_id))
    if due_ms:
        size += DELAYED_MESSAGE_AT - MESSAGE_AT
        delayed = DelayedRecord(offset, size, topic.topic_id, message, unique_id, due_ms, facts[0], facts[1])
        return Decision((*made, delayed), reply, effects)
    record = _new(MessageRecord, (offset, size, topic.topic_id, message, unique_id, *facts))
    wakes = topic.wakes[queue_id]
    return _new(Decision, ((*made, record), reply, (*effects, *wakes) if effects else wakes, NOTHING))


def _too_large(state: State, size: int) -> Refused:
    return Refused(
        Why.MESSAGE_ILLEGAL,
        f"the message takes {size} bytes of log; with segments of {state.settings.segment_bytes} bytes one may take "
        f"{state.record_bytes_max - 256}",
    )


# --- retries that a client sends itself ------------------------------------------------------------------------


def _send_copy(state: State, command: SendMessage, place: Place, now_ms: int) -> Decision:
    """A copy of a message that failed in a consumer, sent by the client when its send-back (36) failed.

    It keeps the unique id of its original, so nothing here is taken for sent again. Beyond the retry limit, or while
    the group consumes in order, it becomes a dead letter (RocketMQ ``SendMessageProcessor.handleRetryAndDLQ``;
    ``>`` here, ``>=`` in send-back).
    """
    topic, queue_id, made, effects, offset = place
    delay = delay_of(command.properties)
    if topic.name.startswith(RETRY_PREFIX):
        group_name = topic.name[len(RETRY_PREFIX) :]
        group = state.groups.get(group_name)
        if group is None:
            return Decision(NOTHING, Refused(Why.GROUP_NOT_EXIST, f"consumer group {group_name!r} does not exist"))
        times_max = command.max_reconsume_times if command.max_reconsume_times >= 0 else group.retry_max_times
        if command.reconsume_times > times_max or _consumes_in_order(state, group_name, now_ms):
            found = dead_letter_topic(state, group_name, offset, ahead=len(made))
            if isinstance(found, Refused):
                return Decision(NOTHING, found)
            topic, more = found
            made += more
            offset += sum([record.size for record in more])
            effects += tuple([TopicChanged(topic.topic_id, topic.name) for _ in more])
            queue_id = delay = 0
    if not topic.permission & PERMISSION_WRITE or queue_id >= topic.write_queues:
        return Decision(NOTHING, _not_writable(topic, queue_id))
    by_turn = queue_id < 0
    if by_turn:
        queue_id = next_queue(topic)
    properties = command.properties
    raw_id = find(properties, UNIQ_KEY)
    if raw_id is None:
        unique_id, properties = with_unique_id(state, properties, offset)
    else:
        try:
            unique_id = raw_id.decode()
        except UnicodeDecodeError:
            return Decision(NOTHING, _not_text())
    place = (topic, queue_id, made, effects, offset)
    draft = draft_of(command, place, body_crc_of(command.body), properties)
    decision = store_message(state, place, draft, unique_id, plain_facts(pairs_of(properties)), delay, now_ms)
    return chosen(topic, decision) if by_turn else decision


def _consumes_in_order(state: State, group: str, now_ms: int) -> bool:
    session = state.session.consumers.get(group)
    return session is not None and any(until_ms > now_ms for _, until_ms in session.locks.values())


def dead_letter_topic(
    state: State, group_name: str, offset: int, ahead: int = 0
) -> tuple[Topic, tuple[Record, ...]] | Refused:
    """The ``%DLQ%`` topic of the group, and its record at ``offset`` if this decision makes it."""
    return _derived_topic(state, DLQ_PREFIX + group_name, 1, offset, ahead)


def retry_topic(
    state: State, group_name: str, queues: int, offset: int, *, by_hand: bool = False
) -> tuple[Topic, tuple[Record, ...]] | Refused:
    """The ``%RETRY%`` topic of the group, and its record at ``offset`` if this decision makes it."""
    return _derived_topic(state, RETRY_PREFIX + group_name, queues, offset, 0, by_hand=by_hand)


def _derived_topic(
    state: State, name: str, queues: int, offset: int, ahead: int, *, by_hand: bool = False
) -> tuple[Topic, tuple[Record, ...]] | Refused:
    topic = state.topics_by_name.get(name)
    if topic is not None:
        return topic, ()
    made = make_topic(state, offset, name, queues, queues, 6, ahead, by_hand=by_hand)
    if isinstance(made, Made):
        return made.topic, (made.record,)
    return made


# --- several at once -------------------------------------------------------------------------------------------


def decide_send_batch(state: State, command: SendBatch, now_ms: int) -> Decision:
    """320: plain messages of one topic and queue, all or none.

    Sent again as a whole it gets its first answer. Refused like one message; also on a retry topic, and when an entry is
    a half or delayed (RocketMQ's client does not build such batches; here nothing else would know what to do).
    """
    offset = state.log_end if state.batch_open else state.log_end + BATCH_HEADER_BYTES
    if not command.entries:
        return Decision(NOTHING, Refused(Why.MESSAGE_ILLEGAL, "an empty batch"))
    topic = state.topics_by_name.get(command.topic)
    records: list[Record] = []
    effects: tuple[Effect, ...] = NOTHING
    if topic is None:
        found = first_use(state, command.topic, command.default_queues, offset)
        if isinstance(found, Refused):
            return Decision(NOTHING, found)
        topic = found.topic
        records.append(found.record)
        effects = (TopicChanged(topic.topic_id, topic.name),)
        offset += found.record.size
    refused = _refuse_batch(topic, command)
    if refused is not None:
        return Decision(NOTHING, refused)
    again = _batch_sent_before(state, topic, command)
    if again is not None:
        return Decision(NOTHING, again)
    if max(command.queue_id, 0) >= topic.write_queues or not topic.permission & PERMISSION_WRITE:
        return Decision(NOTHING, _not_writable(topic, command.queue_id))
    if command.queue_id >= 0:
        return _store_batch(state, (topic, command.queue_id, tuple(records), effects, offset), command, now_ms)
    return chosen(
        topic, _store_batch(state, (topic, next_queue(topic), tuple(records), effects, offset), command, now_ms)
    )


def _refuse_batch(topic: Topic, command: SendBatch) -> Refused | None:
    if topic.exempt:
        return Refused(Why.MESSAGE_ILLEGAL, "a batch cannot be sent to a retry or dead-letter topic")
    for _, _, properties in command.entries:
        try:
            properties.decode()  # nothing before here has: they come as bytes inside the body
        except UnicodeDecodeError:
            return Refused(Why.MESSAGE_ILLEGAL, "the properties of a message in the batch are not UTF-8")
        if (find(properties, TRAN_MSG) or b"").lower() == b"true" or command.sys_flag & SYS_TRANSACTION_MASK:
            return Refused(Why.MESSAGE_ILLEGAL, "a batch cannot hold half messages")
        if delay_of(properties):
            return Refused(Why.MESSAGE_ILLEGAL, "a batch cannot hold delayed messages")
    return None


def _batch_sent_before(state: State, topic: Topic, command: SendBatch) -> SentBatch | None:
    """The first answer when every entry was stored before, in this order; else None."""
    before: list[SentOnce] = []
    for _, body, properties in command.entries:
        raw_id = find(properties, UNIQ_KEY)
        if raw_id is None:
            return None
        sent = sent_before(
            state, topic, raw_id.decode(), body_crc_of(body), command.connection, again=command.sent_again
        )
        if sent is None:
            return None
        before.append(sent)
    first = before[0]
    in_a_row = [(first.queue_id, first.queue_offset + at) for at in range(len(before))]
    if [(sent.queue_id, sent.queue_offset) for sent in before] != in_a_row:
        return None
    return SentBatch(tuple([sent.log_offset for sent in before]), first.queue_id, first.queue_offset)


def _store_batch(state: State, place: Place, command: SendBatch, now_ms: int) -> Decision:
    topic, queue_id, made, effects, offset = place
    records = list(made)
    places: list[int] = []
    queue_offset = topic.ends[queue_id]
    for flag, body, properties in command.entries:
        raw_id = find(properties, UNIQ_KEY)
        if raw_id is not None:
            unique_id = raw_id.decode()
        else:
            unique_id, properties = with_unique_id(state, properties, offset)
        draft = StoredMessage(
            topic.name, queue_id, 0, flag, command.sys_flag, command.born_time_ms, command.born_host, 0, b"", 0, 0, body,
            body_crc_of(body), properties,
        )  # fmt: skip
        facts = plain_facts(pairs_of(properties))
        decision = store_message(state, (topic, queue_id, (), (), offset), draft, unique_id, facts, 0, now_ms)
        if not decision.records:
            return decision
        record = decision.records[0]
        assert isinstance(record, MessageRecord)
        at = queue_offset + len(places)
        records.append(record._replace(message=record.message._replace(queue_offset=at)))
        places.append(offset)
        offset += record.size
    if offset - place[4] + 256 > state.record_bytes_max:
        return Decision(NOTHING, _too_large(state, offset - place[4]))
    return Decision(
        tuple(records), SentBatch(tuple(places), queue_id, queue_offset), (*effects, *topic.wakes[queue_id])
    )
