"""A consumer failed on a message and sends it back. Deliver it to its group again later, or to the dead-letter queue.

The copy goes to ``%RETRY%group`` with the delay of its level, or to ``%DLQ%group`` after the maximum number of attempts. It keeps
body, flags, birth and properties, including the unique id, and states its origin. Source: RocketMQ
``AbstractSendMessageProcessor.consumerSendMsgBack``.

A group has one retry topic, so a copy may come to a member that does not consume the message's own topic: an old version of a service,
while the new one, with one more topic, is rolled out. That member sends it back as not consumed. Nobody has attempted to handle it, so
that is no attempt. It has a count and delays of its own, from 10 s to 2 h. After ``NOT_CONSUMED_MAX`` times, nearly five hours, the
message is a dead letter that says so: members that differ for good must be noticed.
"""

from typing import Final

from halfmq import limits
from halfmq.core.commands import SendBack
from halfmq.core.decision import NOTHING, Decision, Done, Refused, Why, refuse
from halfmq.core.queues.send import chosen, dead_letter_topic, next_queue, retry_topic, store_message
from halfmq.core.state import State, next_offset
from halfmq.model.ids import offset_message_id
from halfmq.model.message_facts import common_values, plain_facts
from halfmq.model.properties import (
    DELAY,
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    HMQ_DEAD_REASON,
    HMQ_NOT_CONSUMED,
    ORIGIN_MESSAGE_ID,
    REAL_QID,
    REAL_TOPIC,
    RETRY_TOPIC,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    UNIQ_KEY,
    WAIT,
    encode,
    find,
    to_dict,
)
from halfmq.model.stored_message import StoredMessage

#: Delay level of the first retry (10 s); each further retry uses the next level. RocketMQ's rule for delay level 0.
FIRST_RETRY_LEVEL: Final = 3
#: How often a copy comes to members that do not consume its topic. RocketMQ's default number of attempts (``retryMaxTimes``).
NOT_CONSUMED_MAX: Final = 16
#: Largest value of its four bytes; a client may have sent it.
_INT_MAX: Final = (1 << 31) - 1
#: Of a log offset at the end of an offset id.
_OFFSET_DIGITS: Final = 16
#: At most, of a count in a property.
_COUNT_DIGITS: Final = 9
_TIMERS: Final = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)


def decide_send_back(state: State, command: SendBack, now_ms: int) -> Decision:
    """Store a copy for a later attempt, or as a dead letter.

    Replies:
        Done: stored; or the group has no retry queues, and nothing is stored.
        Refused NOT_FOUND: no message is visible at this offset (undecided and rolled-back half messages are not), or it is another one
            than the consumer received: with a durability that lets a power loss remove messages, log offsets are given again.
        Refused GROUP_NOT_EXIST, STORE_FULL, MESSAGE_ILLEGAL (the delay is too long): nothing was written.
    """
    group = state.groups.get(command.group)
    if group is None:
        return refuse(Why.GROUP_NOT_EXIST, f"consumer group {command.group!r} does not exist")
    if group.retry_queues <= 0:
        return Decision(NOTHING, Done())
    message = command.message
    if message is None:
        return refuse(Why.NOT_FOUND, f"no message at log offset {command.offset}")
    if not _is_meant(command, message):
        return refuse(Why.NOT_FOUND, f"the message at log offset {command.offset} is not the one that was received")
    times_max = command.max_reconsume_times if command.max_reconsume_times >= 0 else group.retry_max_times
    not_consumed = _times_not_consumed(message)
    if command.not_consumed:
        dead = not_consumed >= NOT_CONSUMED_MAX
    else:
        dead = message.reconsume_times >= times_max or command.delay_level < 0
    offset = next_offset(state)
    found = (
        dead_letter_topic(state, group.name, offset)
        if dead
        else retry_topic(state, group.name, group.retry_queues, offset)
    )
    if isinstance(found, Refused):
        return Decision(NOTHING, found)
    topic, made = found
    queue_id = next_queue(topic)
    is_exact = command.delay_ms >= 0 and not command.not_consumed
    if dead or is_exact:
        level = 0
    elif command.not_consumed:
        level = retry_level(0, not_consumed)
    else:
        level = retry_level(command.delay_level, message.reconsume_times)
    pairs = _properties(state, command, message, dead, level, topic.name, queue_id)
    place = (topic, queue_id, made, offset + sum([record.size for record in made]))
    if command.not_consumed and not dead:
        pairs[HMQ_NOT_CONSUMED] = str(not_consumed + 1)
    times = message.reconsume_times
    if not command.not_consumed:
        # A message in order is retried by its consumer, and sent back once. RocketMQ's clients then state the number of attempts as well.
        times = min(max(times + 1, command.attempt if dead else 0), _INT_MAX)
    with_reason = _with_reason(pairs, command.failure) if dead else pairs
    copy = message._replace(reconsume_times=times, properties=encode(with_reason))
    delay = limits.DELAY_LEVELS_MS[level - 1] if level else command.delay_ms if is_exact and not dead else 0
    facts = plain_facts(common_values(copy.properties))
    unique_id = pairs.get(UNIQ_KEY, "")
    decision = store_message(state, place, copy, unique_id, facts, delay, now_ms)
    if isinstance(decision.reply, Refused) and with_reason is not pairs:
        # A dead letter is never refused for what it says.
        copy = copy._replace(properties=encode(pairs))
        decision = store_message(state, place, copy, unique_id, facts, delay, now_ms)
    return decision if isinstance(decision.reply, Refused) else chosen(topic, decision._replace(reply=Done()))


def _times_not_consumed(message: StoredMessage) -> int:
    """As the property says, which other clients may have written."""
    text = find(message.properties, HMQ_NOT_CONSUMED) or b"0"
    return min(int(text), NOT_CONSUMED_MAX) if len(text) <= _COUNT_DIGITS and text.isdigit() else 0


def _is_meant(command: SendBack, message: StoredMessage) -> bool:
    """Whether ``message`` is the one that the consumer received.

    What clients call a message's id, and send here: its UNIQ_KEY, or without one the offset id, whose last 16 digits are the log offset
    (the address before them is that which the client sees). Source: ``MessageClientExt.getMsgId``; the clients of Go and C++ do the same.
    """
    stated = command.origin_message_id
    if not stated or stated == to_dict(message.properties).get(UNIQ_KEY):
        return True
    return stated[-_OFFSET_DIGITS:].upper() == f"{command.offset:0{_OFFSET_DIGITS}X}"


def _with_reason(pairs: dict[str, str], failure: str) -> dict[str, str]:
    """``pairs`` with it; themselves if there is none, or no space for it."""
    pairs.pop(HMQ_DEAD_REASON, None)
    found = {**pairs, HMQ_DEAD_REASON: failure}
    return found if failure and len(encode(found)) <= limits.PROPERTIES_BYTES_MAX else pairs


def retry_level(delay_level: int, reconsume_times: int) -> int:
    """Standard delay level, from 1, of the next attempt. ``delay_level`` 0: the broker chooses."""
    level = delay_level if delay_level > 0 else FIRST_RETRY_LEVEL + reconsume_times
    return min(level, len(limits.DELAY_LEVELS_MS))


def _properties(
    state: State, command: SendBack, message: StoredMessage, dead: bool, level: int, topic: str, queue_id: int
) -> dict[str, str]:
    pairs = to_dict(message.properties)
    for name in _TIMERS:
        pairs.pop(name, None)
    origin = offset_message_id(state.settings.store_host, command.offset)
    pairs.setdefault(RETRY_TOPIC, message.topic)
    pairs.setdefault(ORIGIN_MESSAGE_ID, origin)
    pairs[WAIT] = "false"
    pairs.pop(DELAY, None)
    if dead:
        pairs.pop(HMQ_NOT_CONSUMED, None)
        pairs.setdefault(DLQ_ORIGIN_TOPIC, pairs[RETRY_TOPIC])
        pairs.setdefault(DLQ_ORIGIN_MESSAGE_ID, pairs[ORIGIN_MESSAGE_ID])
    if level:
        pairs[DELAY] = str(level)
    pairs[REAL_TOPIC] = topic
    pairs[REAL_QID] = str(queue_id)
    return pairs
