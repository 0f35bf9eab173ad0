"""What is remembered of the recent past, so that a message sent again because its answer was lost is not stored twice.

Two windows, both rebuilt from the log by redo and both bounded by age (``dedup_window_ms``) and number
(``dedup_ids_max``): plain messages by (topic, unique id), and verdicts by (group, transaction id). They are cut at
every batch, by the batch's own time, and at a trim, by the log's new start, so that redo of what is left of the log
remembers exactly what live state does.

A plain message is the same one if topic, unique id and body CRC are the same **and** the client says that it got no answer
(``SendMessage.sent_again``, which ours does), or it comes on another connection than the first, or before the first's
answer was released. Sending one message object twice after an answer is legal and makes two messages. A stock client's
late retry on the same connection is what cannot be told from that.
"""

from typing import Final

from halfmq.core.state import ProducerGroup, RecentMessage, State, Topic, Verdict

#: Longer ids of plain messages are not remembered, so that a quarter of a million of them have a bound. Clients' are
#: 32 characters (RocketMQ ``MessageClientIDSetter``).
UNIQUE_ID_CHARS_MAX: Final = 128


def remember(state: State, topic: Topic, sent: RecentMessage) -> None:
    if len(sent.unique_id) > UNIQUE_ID_CHARS_MAX:
        return
    topic.derived.sent[sent.unique_id] = sent
    window = state.sent
    window.append(sent)
    if len(window) > state.settings.dedup_ids_max:
        forget_sent(state)


def remember_verdict(state: State, group: ProducerGroup, verdict: Verdict) -> None:
    group.settled[verdict.tx_id] = verdict
    window = state.verdicts
    window.append(verdict)
    if len(window) > state.settings.dedup_ids_max:
        forget_verdict(state)


def forget_old(state: State) -> None:
    """Forget what is older than the window at the time of the batch that begins."""
    horizon_ms = state.batch_time_ms - state.settings.dedup_window_ms
    while state.sent and state.sent[0].stored_at_ms < horizon_ms:
        forget_sent(state)
    while state.verdicts and state.verdicts[0].settled_at_ms < horizon_ms:
        forget_verdict(state)


def forget_sent(state: State) -> None:
    """Forget the oldest plain message, unless a newer one has its id."""
    sent = state.sent.popleft()
    topic = state.topics_by_id.get(sent.topic_id)
    if topic is not None and topic.derived.sent.get(sent.unique_id) is sent:
        del topic.derived.sent[sent.unique_id]


def forget_verdict(state: State) -> None:
    verdict = state.verdicts.popleft()
    group = state.producer_groups.get(verdict.group)
    if group is not None and group.settled.get(verdict.tx_id) is verdict:
        del group.settled[verdict.tx_id]


def sent_before(
    state: State, topic: Topic, unique_id: str, body_crc: int, connection: int, *, again: bool
) -> RecentMessage | None:
    """The stored message that this one is, or None: then it is another one and shall be stored.

    ``again``: its client says that it sends it again. Otherwise ``connection`` tells.

    Held answers count as not released, which is why ``answered`` is session state that the sequencer reports.
    """
    sent = topic.derived.sent.get(unique_id)
    if sent is None or sent.body_crc != body_crc:
        return None
    if sent.connection == connection and not again and sent.log_offset < state.session.answered:
        return None
    return sent
