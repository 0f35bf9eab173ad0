"""Deduplication: a message that a client sends again because the response was lost is not stored twice.

There are two windows: plain messages by (topic, unique id), and verdicts by (group, transaction id). Both are rebuilt from the log
by redo, and bounded by age (``dedup_window_ms``) and number (``dedup_ids_max``). They are cut at every batch by the batch's time,
and at a trim by the new start of the log, so that redo of the remaining log gives exactly the windows of the live state.

A plain message is a repetition if topic, unique id and body CRC are equal **and** either the client says that it got no response
(``SendMessage.sent_again``, set by our client), or it arrives on another connection than the first, or before the response to the
first was released. It is legal to send one message object again after a response; that makes two messages. A late retry of a
RocketMQ client on the same connection cannot be distinguished from that.
"""

from typing import Final

from halfmq.core.state import ProducerGroup, RecentMessage, State, Topic, Verdict

#: Plain messages with longer ids are not deduplicated, so that a quarter of a million ids have a bounded size. Ids of clients have
#: 32 characters (RocketMQ ``MessageClientIDSetter``).
UNIQUE_ID_CHARS_MAX: Final = 128


def remember(state: State, topic: Topic, sent: RecentMessage) -> None:
    """Enter a stored plain message in the window. The oldest entry leaves if there are more than ``dedup_ids_max``."""
    if len(sent.unique_id) > UNIQUE_ID_CHARS_MAX:
        return
    topic.derived.sent[sent.unique_id] = sent
    window = state.sent
    window.append(sent)
    if len(window) > state.settings.dedup_ids_max:
        forget_sent(state)


def remember_verdict(state: State, group: ProducerGroup, verdict: Verdict) -> None:
    """Enter a verdict in the window, under the same maximum."""
    group.settled[verdict.tx_id] = verdict
    window = state.verdicts
    window.append(verdict)
    if len(window) > state.settings.dedup_ids_max:
        forget_verdict(state)


def forget_old(state: State) -> None:
    """Remove entries that are older than the window at the time of the batch that begins."""
    horizon_ms = state.batch_time_ms - state.settings.dedup_window_ms
    while state.sent and state.sent[0].stored_at_ms < horizon_ms:
        forget_sent(state)
    while state.verdicts and state.verdicts[0].settled_at_ms < horizon_ms:
        forget_verdict(state)


def forget_sent(state: State) -> None:
    """Remove the oldest plain message. The index keeps its id if a newer message has it."""
    sent = state.sent.popleft()
    topic = state.topics_by_id.get(sent.topic_id)
    if topic is not None and topic.derived.sent.get(sent.unique_id) is sent:
        del topic.derived.sent[sent.unique_id]


def forget_verdict(state: State) -> None:
    """Remove the oldest verdict. The log still holds it; the index of settled ids finds it there by an id that an application chose."""
    verdict = state.verdicts.popleft()
    state.derived.verdict_forgotten = verdict.position
    group = state.producer_groups.get(verdict.group)
    if group is not None and group.settled.get(verdict.tx_id) is verdict:
        del group.settled[verdict.tx_id]


def sent_before(
    state: State, topic: Topic, unique_id: str, body_crc: int, connection: int, *, again: bool
) -> RecentMessage | None:
    """The stored message that this one repeats; None if it is a new one to store.

    ``again``: the client says that it is a repetition; otherwise ``connection`` decides.

    Withheld replies count as not released; hence ``answered`` is session state, reported by the sequencer.
    """
    sent = topic.derived.sent.get(unique_id)
    if sent is None or sent.body_crc != body_crc:
        return None
    if sent.connection == connection and not again and sent.log_offset < state.session.answered:
        return None
    return sent
