"""What a consumer group receives: everything, at least once, and without delay.

    at least once   a group that has run to the end received every entry of its queues, its retry queue included, that was
                    still there when it reached it; what it sent back, with OK as response, is in a retry or dead-letter
                    queue again
    offsets         no committed offset is beyond what the group received, except for what a trim removed before
    without delay   between two turns of the broker no held pull waits for a message that is visible
    inbox           each handled message has one effect of each handler in the consumers' database

These are not among the ten promises: consumers get messages at least once (docs/promises.md, "What is not promised").
"""

from collections import Counter
from typing import Any

from halfmq.core.queues.offsets import Stored, query_offset
from halfmq.testing.history.events import AnyEvent, Logged, QueueRead, Seen
from tests.simulation.database import Database
from tests.simulation.promises import WHOLE, Violation
from tests.simulation.tags import Sent

GROUP = "readers"
RETRY = f"%RETRY%{GROUP}"
DEAD = f"%DLQ%{GROUP}"


class Consuming:
    def __init__(self, counts: Counter[str], topics: tuple[str, ...], sent: Sent) -> None:
        self._counts = counts
        self._sent = sent
        self._topics = (*topics, RETRY)
        #: (topic, queue) -> offsets that the group received.
        self.given: dict[tuple[str, int], set[int]] = {}
        #: (topic, queue) -> offset after the last of them.
        self._ends: dict[tuple[str, int], int] = {}
        #: (topic, queue) -> offset -> message, as read at the end; and where reading began.
        self._there: dict[tuple[str, int], dict[int, str]] = {}
        #: Durability is ``memory``, and a power loss removed something: offsets and places were assigned again.
        self.forgetful = False
        #: (topic, queue) -> its end when the consumers were stopped.
        self._stopped_at: dict[tuple[str, int], int] = {}

    # --- during the run ----------------------------------------------------------------------------------------------

    def hear(self, event: AnyEvent) -> None:
        if type(event) is not Seen:
            return
        place = (event.topic, event.queue)
        if event.reader == GROUP:
            if not self._sent.is_wanted(event.message):
                raise Violation(f"Tags: {GROUP} was given {event.message}, which has not its tag", event.message)
            self.given.setdefault(place, set()).add(event.queue_offset)
            self._ends[place] = max(self._ends.get(place, 0), event.queue_offset + 1)
        elif event.reader == WHOLE:
            self._there.setdefault(place, {})[event.queue_offset] = event.message

    def look(self, broker: Any) -> None:
        """
        Raises:
            Violation: an offset is committed that the group did not receive, or a held pull waits for a visible message.
        """
        state = broker._sequencer.engine.state
        if not self.forgetful:
            self._look_at_offsets(state)
        if not broker._sequencer.indexes_lag and broker._sequencer.failed is None:
            self._look_at_parked(broker)

    def _look_at_offsets(self, state: Any) -> None:
        committed = {**state.offsets.get(GROUP, {}), **state.session.fresh_offsets.get(GROUP, {})}
        for (topic_id, queue), offset in committed.items():
            topic = state.topics_by_id.get(topic_id)
            if topic is None:
                continue
            self._counts["look committed offset"] += 1
            most = max(self._ends.get((topic.name, queue), 0), topic.mins[queue])
            if not self._sent.all_are_wanted and topic.name != RETRY:
                most = topic.ends[
                    queue
                ]  # the group may have skipped what is in between: ``close`` checks what it wants
            if offset > most:
                raise Violation(f"Consumers: {GROUP} committed {offset} of {topic.name}/{queue}, and was given {most}")

    def _look_at_parked(self, broker: Any) -> None:
        pulls = broker._pulls
        if pulls._store.indexes_wait:
            return  # reading would write staged entries, and the power must not fail in an inspection
        for (topic_id, queue), there in pulls._held.items():
            _, end = pulls._store.bounds(topic_id, queue)
            for parked in there.values():
                self._counts["look held pull"] += 1
                offset = parked.request.queue_offset
                if offset < end and not parked.peer.is_full and _is_there(pulls, topic_id, queue, parked):
                    raise Violation(
                        f"Consumers: a pull at {parked.topic.name}/{queue}@{offset} sleeps, and {end} is visible there"
                    )

    def is_behind(self, state: Any) -> bool:
        """Whether the group has uncommitted messages."""
        for name in self._topics:
            topic = state.topics_by_name.get(name)
            for queue, end in enumerate(topic.ends if topic is not None else ()):
                known = query_offset(state, GROUP, name, queue)
                if end > topic.mins[queue] and (not isinstance(known, Stored) or known.offset < end):
                    return True
        return False

    def stop(self, state: Any) -> None:
        """The group will not receive messages that arrive from here on."""
        for topic in state.topics_by_id.values():
            for queue, end in enumerate(topic.ends):
                self._stopped_at[topic.name, queue] = end

    # --- at the end --------------------------------------------------------------------------------------------------

    def close(self, events: list[AnyEvent], log_start: int, handed_back: dict[str, list[int]]) -> None:
        """Call it if there was a consumer. ``handed_back``: by message, the end of the log at each time.

        Raises:
            Violation: the group missed a message, or one that it handed back is lost.
        """
        if self.forgetful:
            return
        first = {(event.topic, event.queue): event.first for event in events if type(event) is QueueRead}
        for place, entries in self._there.items():
            if place[0] in self._topics:
                self._look_at_queue(place, entries, first.get(place, 0))
        self._look_at_handed_back(events, log_start, handed_back)

    def _look_at_queue(self, place: tuple[str, int], entries: dict[int, str], first: int) -> None:
        given = self.given.get(place, set())
        stop = self._stopped_at.get(place, 0)
        for offset, message in entries.items():
            self._counts["look given"] += 1
            if not self._sent.is_wanted(message):
                continue
            if first <= offset < stop and offset not in given:
                raise Violation(
                    f"Consumers: {GROUP} was never given {message} at {place[0]}/{place[1]}@{offset}", message
                )

    def _look_at_handed_back(self, events: list[AnyEvent], log_start: int, handed_back: dict[str, list[int]]) -> None:
        """Checked in the records of the log, since nobody may pull dead letters."""
        copies = Counter(
            event.message
            for event in events
            if type(event) is Logged and event.kind == "message" and event.topic in (RETRY, DEAD)
        )
        for message, log_ends in handed_back.items():
            kept = sum(end >= log_start for end in log_ends)
            self._counts["look handed back"] += kept
            if copies[message] < kept:
                raise Violation(
                    f"Consumers: {message} was handed back {kept} times with OK, and {copies[message]} are there",
                    message,
                )


def _is_there(pulls: Any, topic_id: int, queue: int, parked: Any) -> bool:
    """Whether one of the messages that the pull waits for is visible."""
    tag_hashes = parked.selection.tag_hashes
    if tag_hashes is None:
        return True
    entries = pulls._store.read_queue(topic_id, queue, parked.request.queue_offset, 1_000)
    return any(entry[2] in tag_hashes for entry in entries)


def look_at_effects(database: Database, counts: Counter[str]) -> None:
    """
    Raises:
        Violation: a message has several effects in the consumers' database, or none although it was handled.
    """
    effects = database.effects_by_message()
    for (handler, message), times in effects.items():
        counts[f"look inbox of {handler}"] += 1
        if times > 1:
            raise Violation(f"Inbox: {message} has {times} effects of {handler}", message)
    for handler, message in database.handled - effects.keys():
        raise Violation(f"Inbox: {message} was handled by {handler}, whose effect is not in the database", message)
