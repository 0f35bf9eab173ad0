"""What half batches and decisions promise to a query, verified at each response and, on the log and the queues, at the end.

    once        of each batch at most one decision is in the log; what is visible of it are all messages of that decision's winners, each
                once, at one position, and in each queue in the order in which each attempt prepared them; those with delays later,
                each once, and until then they wait in the broker's state (their times: ``delays``, ``promises``)
    validity    no message of a loser, of another run or of an undecided batch is ever visible
    durable     a decision that was acknowledged is repeated with the same position, and is never answered with "missing", "undecided"
                or "fenced" afterwards; the newest ones survive every trim
    truth       "missing", "fenced" and a conflict are answered only if something that was requested explains it
    fencing     once a run was acknowledged, an earlier one that was acknowledged before prepares and decides nothing

Like ``promises`` it knows only requests and responses, until ``close`` reads the log. A transaction of half batches without a query
is one batch of its own here, whose END is the decision.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

from halfmq.model.half_batch import ITEM_HEAD_BYTES, item_places
from halfmq.model.query_batch import of_tx_id
from halfmq.model.records import HALF_BATCH_PAYLOAD_AT, Decided
from halfmq.model.stored_message import StoredMessage
from halfmq.model.stored_message import decode as decode_message
from halfmq.store.record_codec import half_batch_head
from halfmq.store.segment import segment_name
from halfmq.testing.history.events import AnyEvent, EndAsked
from tests.simulation.damage import LOG
from tests.simulation.promises import Violation
from tests.support.faulty_disk import FaultyDisk

#: (topic, queue, queue offset)
Place = tuple[str, int, int]


class Part(NamedTuple):
    """A half batch as it is prepared. ``messages``: unique ids, in order."""

    topic: str
    queue: int
    messages: tuple[str, ...]
    checksum: int
    #: Of each message, at least 1, from the decision; empty: they have none.
    delays_ms: tuple[int, ...] = ()
    #: Bytes from the start of the record to each message.
    items: tuple[int, ...] = ()


class Attempt:
    """What one attempt of a task has prepared."""

    def __init__(self) -> None:
        #: By index, as sent.
        self.parts: dict[int, Part] = {}
        #: By index: acknowledged log offset.
        self.acked: dict[int, int] = {}
        #: Durability is ``memory``, and a power loss removed something.
        self.forgotten = False

    @property
    def sums(self) -> tuple[int, int, int]:
        """Number of half batches, of messages, and sum of the checksums."""
        parts = self.parts.values()
        return len(parts), sum(len(part.messages) for part in parts), sum(part.checksum for part in parts) & 0xFFFFFFFF

    def in_queue(self, topic: str, queue: int) -> list[str]:
        """Its messages that a decision makes visible at once."""
        return [
            message
            for _, part in sorted(self.parts.items())
            if (part.topic, part.queue) == (topic, queue) and not part.delays_ms
            for message in part.messages
        ]


class Wish(NamedTuple):
    """A decision as it was requested."""

    batch: int
    run: str
    digest: str
    #: (attempt, half batches, messages, sum of checksums)
    winners: tuple[tuple[str, int, int, int], ...]
    asked_us: int


class Batch:
    """A batch of a query, in all its runs."""

    def __init__(self) -> None:
        #: (run, attempt) ->
        self.attempts: dict[tuple[str, str], Attempt] = {}
        self.wishes: list[Wish] = []
        #: (position, digest) of the first acknowledged decision, and when that response came.
        self.decided: tuple[int, str] | None = None
        self.decided_us = -1
        #: Runs in which somebody asked for a rollback, and those in which it was acknowledged, with the time.
        self.rollback_asked: set[str] = set()
        self.rolled_back: dict[str, int] = {}
        self.forgotten = False
        #: Durability is ``memory``, and a power loss may have removed an end that was acknowledged.
        self.has_lost_an_end = False


class Acked(NamedTuple):
    """When a run was acknowledged first: between these times it began."""

    asked_us: int
    answered_us: int


class QueryPromises:
    """Call ``..._asked`` before a request, ``..._answered`` with its response. They raise ``Violation``.

    ``decisions_max``: how many decisions of a query the broker remembers; ``runs_max``: how many runs it refuses by name.
    """

    def __init__(self, counts: Counter[str], *, segment_bytes: int, decisions_max: int, runs_max: int) -> None:
        self.counts = counts
        self._segment_bytes = segment_bytes
        self.batches: dict[tuple[str, int], Batch] = {}
        #: message -> (query, batch, run, attempt)
        self.of_message: dict[str, tuple[str, int, str, str]] = {}
        self._decisions_max = decisions_max
        self._runs_max = runs_max
        #: By query: run -> when it asked first, and when it was acknowledged first, in the order in which they began.
        self._asked_by: dict[str, dict[str, int]] = {}
        self._acked_by: dict[str, dict[str, Acked]] = {}
        #: When a power loss last removed something of the log.
        self._lost_us = -1
        #: Query -> up to which batch a log record says that decisions are forgotten, for want of space in a base.
        self._shortened: dict[str, int] = {}

    def shortened(self, query: str) -> None:
        """A record leaves only the last decision of the query, before the one that is being made."""
        decided = [number for (name, number), one in self.batches.items() if name == query and one.wishes]
        self._shortened[query] = max(decided, default=-1) - 2

    def batch(self, query: str, number: int) -> Batch:
        return self.batches.setdefault((query, number), Batch())

    # --- prepare -----------------------------------------------------------------------------------------------------

    def prepare_asked(
        self, query: str, number: int, run: str, attempt: str, index: int, part: Part, now_us: int
    ) -> None:
        one = self.batch(query, number).attempts.setdefault((run, attempt), Attempt())
        known = one.parts.setdefault(index, part)
        assert known == part, "an attempt prepares one thing at one index"
        for message in part.messages:
            self.of_message[message] = query, number, run, attempt
        self._asked_by.setdefault(query, {}).setdefault(run, now_us)

    def prepared(
        self, query: str, number: int, run: str, attempt: str, index: int, offset: int, asked_us: int, now_us: int
    ) -> None:
        """The response was OK."""
        if self._is_void(asked_us):
            return
        batch = self.batches[query, number]
        one = batch.attempts[run, attempt]
        what = f"{query}:{number}:{run}/{attempt}.{index}"
        self.counts["look half batch"] += 1
        if not batch.forgotten and not one.forgotten and one.acked.setdefault(index, offset) != offset:
            raise Violation(f"Once: half batch {what} was at {one.acked[index]}, now at {offset}", what)
        one.acked[index] = offset
        if batch.decided is not None and batch.decided_us < asked_us:
            raise Violation(f"Agreement: half batch {what} was taken, though its batch is {batch.decided}", what)
        if run in batch.rolled_back and batch.rolled_back[run] < asked_us:
            raise Violation(f"Agreement: half batch {what} was taken, though this run was rolled back", what)
        if run:
            self._acknowledged(query, run, asked_us, now_us, what)

    def attempt_failed(self, query: str, number: int, run: str, attempt: str) -> None:
        """A half batch does not fit to what the broker has of its attempt: legal only if that was rolled back, or lost."""
        batch = self.batches[query, number]
        one = batch.attempts[run, attempt]
        self.counts["look attempt failed"] += 1
        if not (batch.forgotten or one.forgotten or batch.rollback_asked or self._wishes_from(query, number)):
            others = self._asked_by.get(query, {}).keys() - {run}
            if not others:
                raise Violation(f"Durable: {query}:{number}:{run}/{attempt} has lost {one.acked}", query)

    def prepare_refused_as_settled(self, query: str, number: int, run: str, verdict: str, position: int) -> None:
        """Its batch is decided, or was rolled back in this run."""
        self.counts["look half batch after a verdict"] += 1
        batch = self.batches[query, number]
        what = f"{query}:{number}:{run}"
        if verdict == "COMMITTED":
            if batch.decided is not None and position not in (-1, batch.decided[0]) and not batch.forgotten:
                raise Violation(f"Agreement: {what} was {batch.decided}, and is now said to be at {position}", what)
            if not self._wishes_from(query, number):
                raise Violation(f"Validity: {what} is said to be decided, and nobody decided", what)
        elif run and not batch.rollback_asked and not self._wishes_from(query, number):
            raise Violation(f"Validity: {what} is said to be rolled back, and nobody asked for it", what)

    # --- runs --------------------------------------------------------------------------------------------------------

    def _acknowledged(self, query: str, run: str, asked_us: int, now_us: int, what: str) -> None:
        """Something that only the newest run may do was done, after ``asked_us``."""
        acked = self._acked_by.setdefault(query, {})
        mine = acked.get(run)
        self.counts["look newest run"] += 1
        if mine is not None:
            later = [
                other for other, one in acked.items()
                if other != run and mine.answered_us < one.asked_us and one.answered_us < asked_us
            ]  # fmt: skip
            if later and len(later) < self._runs_max:
                raise Violation(f"Fence: {what} was done, though run {later[-1]} had begun after this one", what)
        else:
            acked[run] = Acked(asked_us, now_us)

    def fenced(self, query: str, run: str, what: str) -> None:
        self.counts["look fenced"] += 1
        if len(self._asked_by.get(query, {}).keys() - {run}) == 0:
            raise Violation(f"Fence: {what} was refused for a later run, and there is no other", what)

    def known_runs(self, query: str) -> int:
        return len(self._acked_by.get(query, {}))

    # --- decide ------------------------------------------------------------------------------------------------------

    def decide_asked(self, query: str, wish: Wish) -> None:
        self.batch(query, wish.batch).wishes.append(wish)
        if wish.run:
            self._asked_by.setdefault(query, {}).setdefault(wish.run, wish.asked_us)

    def winners(self, query: str, wish: Wish) -> Iterable[Attempt]:
        """Attempts that have prepared something of those that ``wish`` names."""
        attempts = self.batch(query, wish.batch).attempts
        return [attempts[wish.run, row[0]] for row in wish.winners if (wish.run, row[0]) in attempts]

    def decided(self, query: str, wish: Wish, position: int, *, repeated: bool, now_us: int) -> None:
        """The response was OK."""
        batch = self.batches[query, wish.batch]
        if self._is_void(wish.asked_us):
            batch.has_lost_an_end = True
            return
        what = f"{query}:{wish.batch}:{wish.run}"
        self.counts["look decision repeated" if repeated else "look decision"] += 1
        heard = batch.decided
        if heard is not None:
            if heard[0] != position:
                raise Violation(f"Durable: {what} was decided at {heard[0]}, and now at {position}", what)
            if heard[1] != wish.digest:
                raise Violation(
                    f"Agreement: {what} was decided with {heard[1]}, and now {wish.digest} is accepted", what
                )
            if not repeated and batch.decided_us < wish.asked_us:
                raise Violation(f"Once: {what} was decided at {heard[0]}, and is decided again", what)
        else:
            batch.decided, batch.decided_us = (position, wish.digest), now_us
        if not repeated:
            for row in wish.winners:
                there = batch.attempts.get((wish.run, row[0]), Attempt())
                if there.sums != row[1:]:
                    raise Violation(f"Validity: {what} was decided with {row}, and {there.sums} was prepared", what)
            if wish.run:
                self._acknowledged(query, wish.run, wish.asked_us, now_us, what)

    def _wishes_from(self, query: str, number: int) -> bool:
        """Whether somebody wanted to decide this batch or a later one."""
        return any(one.wishes for (name, other), one in self.batches.items() if name == query and other >= number)

    def _decided_after(self, query: str, number: int) -> int:
        """How many later batches may be decided."""
        return sum(bool(one.wishes) for (name, other), one in self.batches.items() if name == query and other > number)

    def conflict(self, query: str, wish: Wish, position: int) -> None:
        self.counts["look conflict"] += 1
        batch = self.batches[query, wish.batch]
        what = f"{query}:{wish.batch}:{wish.run}"
        if batch.forgotten:
            return
        if position >= 0:
            if batch.decided is not None and batch.decided[0] != position:
                raise Violation(f"Agreement: {what} was {batch.decided}, and a conflict names {position}", what)
            if all(other.digest == wish.digest for other in batch.wishes):
                raise Violation(f"Agreement: {what} is in conflict, and nobody asked for anything else", what)
        else:
            self._digest_is_old(query, wish.batch, what)

    def _digest_is_old(self, query: str, number: int, what: str) -> None:
        batch = self.batch(query, number)
        later = self._decided_after(query, number)
        is_known = later < self._decisions_max and number > self._shortened.get(query, -1)
        if batch.decided is not None and not batch.forgotten and is_known:
            raise Violation(f"Durable: the decision {batch.decided} of {what} is not known after {later} others", what)
        if not later:
            raise Violation(f"Validity: {what} is said to be decided long ago, and no later batch was", what)
        self.counts["look decision too old"] += 1

    def missing(self, query: str, wish: Wish) -> None:
        """It was refused since half batches of its winners are missing."""
        self.counts["look missing"] += 1
        batch = self.batches[query, wish.batch]
        what = f"{query}:{wish.batch}:{wish.run}"
        if batch.forgotten:
            return
        if batch.decided is not None and batch.decided_us < wish.asked_us:
            raise Violation(f"Durable: {what} was decided: {batch.decided}, and now half batches are missing", what)
        if batch.rollback_asked or len(self._asked_by.get(query, {})) > 1 or self._decided_after(query, wish.batch):
            return  # they may have been rolled back
        for row in wish.winners:
            there = batch.attempts.get((wish.run, row[0]), Attempt())
            if there.sums != row[1:] or there.acked.keys() != there.parts.keys() or there.forgotten:
                return
        raise Violation(f"Durable: {what} is incomplete, and everything of its winners was acknowledged", what)

    def decide_fenced(self, query: str, wish: Wish) -> None:
        batch = self.batches[query, wish.batch]
        what = f"{query}:{wish.batch}:{wish.run}"
        if batch.decided is not None and batch.decided_us < wish.asked_us and not batch.forgotten:
            raise Violation(f"Durable: {what} was decided: {batch.decided}, and now it is fenced", what)
        self.fenced(query, wish.run, what)

    def found(self, query: str, number: int, *, decided: bool, digest: str, position: int, asked_us: int) -> None:
        """The response to the question whether a batch is decided."""
        self.counts["look decision found"] += 1
        batch = self.batch(query, number)
        what = f"{query}:{number}"
        if not decided:
            if batch.decided is not None and batch.decided_us < asked_us and not batch.forgotten:
                raise Violation(f"Durable: {what} was decided: {batch.decided}, and now it is not", what)
            return
        if not self._wishes_from(query, number):
            raise Violation(f"Validity: {what} is said to be decided, and nobody decided", what)
        if not digest:
            self._digest_is_old(query, number, what)
        elif all(wish.digest != digest for wish in batch.wishes):
            raise Violation(f"Validity: {what} is said to be decided with {digest}, which nobody wanted", what)
        elif batch.decided is not None and batch.decided != (position, digest) and not batch.forgotten:
            raise Violation(f"Durable: {what} was decided: {batch.decided}, and now {(position, digest)}", what)

    def hear(self, event: AnyEvent) -> None:
        """Operators roll back what they see undecided."""
        if type(event) is EndAsked and event.decided_by == "operator" and event.verdict == "ROLLED_BACK":
            query, *rest = event.tx.split(":")
            if len(rest) == 2 and rest[0].isdigit():
                self.rollback_asked(query, int(rest[0]), rest[1])
            elif (event.tx, 0) in self.batches:
                self.rollback_asked(event.tx, 0, "")

    # --- rollbacks ---------------------------------------------------------------------------------------------------

    def rollback_asked(self, query: str, number: int, run: str) -> None:
        self.batch(query, number).rollback_asked.add(run)

    def rolled_back(self, query: str, number: int, run: str, asked_us: int, now_us: int) -> None:
        if self._is_void(asked_us):
            self.batch(query, number).has_lost_an_end = True
            return
        self.counts["look rollback of a batch"] += 1
        self.batch(query, number).rolled_back.setdefault(run, now_us)

    # --- losses ------------------------------------------------------------------------------------------------------

    def forget_from(self, end: int, now_us: int) -> None:
        """Durability is ``memory``, and after a power loss the log ends here: acknowledgements after this end are void."""
        self._lost_us = now_us
        self._acked_by.clear()
        for batch in self.batches.values():
            if batch.rolled_back or (batch.decided is not None and batch.decided[0] >= end):
                batch.has_lost_an_end = True
            batch.rolled_back.clear()
            for one in batch.attempts.values():
                kept = {index: offset for index, offset in one.acked.items() if offset < end}
                one.forgotten = one.forgotten or kept.keys() != one.parts.keys()
                one.acked = kept
            if batch.decided is None or batch.decided[0] >= end:
                batch.decided = None
                batch.forgotten = True

    def has_lost_its_end(self, tx_id: str) -> bool:
        """Whether an end of a transaction of half batches without a query was acknowledged, may be lost since a power loss, and none is
        acknowledged since. Its application will not send another.
        """
        batch = self.batches.get((tx_id, 0))
        return batch is not None and batch.has_lost_an_end and batch.decided is None and not batch.rolled_back

    def _is_void(self, asked_us: int) -> bool:
        """Whether a power loss came between a request and its response, which was under way: what it acknowledges may be lost."""
        return asked_us <= self._lost_us

    # --- the log and the queues --------------------------------------------------------------------------------------

    def look_at_visible(self, places: dict[str, Place], log_start: int, state: Any) -> None:
        """What the queues hold, after a start or at the end; and what the broker's state knows.

        Raises:
            Violation: an acknowledged decision is not known, or its messages are not visible, or others are.
        """
        shown: dict[tuple[str, int], dict[str, Place]] = {}
        for message, place in places.items():
            whose = self.of_message.get(message)
            if whose is not None:
                shown.setdefault(whose[:2], {})[message] = place
        for (name, number), batch in self.batches.items():
            there = shown.get((name, number), {})
            what = f"{name}:{number}"
            if there and not batch.wishes:
                raise Violation(f"Validity: {sorted(there)[:3]} are visible, and nobody decided {what}", what)
            if batch.decided is None or batch.forgotten or batch.decided[0] < log_start:
                continue
            self.counts["look decided batch whole"] += 1
            same = [wish for wish in batch.wishes if wish.digest == batch.decided[1]]
            if not any(self._is_shown_by(name, wish, there.keys(), state) for wish in same):
                raise Violation(f"Once: {what} was decided: {batch.decided}; visible of it are {sorted(there)}", what)
            query = state.queries.get((name, ""))
            is_known = self._decided_after(name, number) < self._decisions_max and number > self._shortened.get(
                name, -1
            )
            if query is not None and is_known:
                found = query.decisions.get(number)
                self.counts["look decision in the state"] += 1
                if found is None or (found.position, found.digest.hex()) != batch.decided:
                    raise Violation(f"Durable: {what} was decided: {batch.decided}; the state has {found}", what)

    def _is_shown_by(self, query: str, wish: Wish, there: Collection[str], state: Any) -> bool:
        """Whether exactly what ``wish`` names is visible or, with a delay, waiting."""
        waiting = {
            message
            for one in self.winners(query, wish)
            for index, part in one.parts.items()
            for message, item in zip(part.messages if part.delays_ms else (), part.items, strict=False)
            if one.acked.get(index, -1) + item in state.delayed
        }
        self.counts["look messages of half batches that wait"] += len(waiting)
        twice = waiting & set(there)
        if twice:
            raise Violation(f"Once: {sorted(twice)} are visible and are delayed", query)
        return self._messages(query, wish) == waiting | set(there)

    def _messages(self, query: str, wish: Wish) -> set[str]:
        return {
            message for one in self.winners(query, wish) for part in one.parts.values() for message in part.messages
        }

    def close(
        self, records: list[Any], places: dict[str, Place], visible_at: dict[Place, int], log_start: int, state: Any,
        shown_by: Callable[[Decided], list[str]],
    ) -> None:  # fmt: skip
        """The end of the history. ``records``: the log; ``places``: of all visible messages; ``visible_at``: the position in the queue
        entry there; ``shown_by``: ids of the messages that a verdict in the log shows.

        Raises:
            Violation
        """
        self.look_at_visible(places, log_start, state)
        decisions: dict[tuple[str, int], Decided] = {}
        for record in records:
            if type(record) is Decided:
                query, number, run = of_tx_id(record.tx_id) if record.digest else (record.tx_id, 0, "")
                before = decisions.setdefault((query, number), record)
                if before is not record:
                    raise Violation(
                        f"Once: {query}:{number} is decided at {before.offset} and at {record.offset}", query
                    )
                self._look_at_decision(query, number, run, record, places, visible_at, set(shown_by(record)), log_start)
        for (name, number), batch in self.batches.items():
            if batch.decided is not None and batch.decided[0] >= log_start and (name, number) not in decisions:
                raise Violation(f"Durable: {name}:{number} was decided: {batch.decided}; the log has no decision", name)
        for message in places:
            whose = self.of_message.get(message)
            if whose is not None and whose[:2] not in decisions and not log_start:
                raise Violation(f"Validity: {message} is visible, and the log has no decision on its batch", message)

    def _look_at_decision(
        self, query: str, number: int, run: str, record: Decided, places: dict[str, Place],
        visible_at: dict[Place, int], shown: set[str], log_start: int,
    ) -> None:  # fmt: skip
        """One decision in the log, and everything that the queues hold of its batch."""
        what = f"{query}:{number}:{run}"
        batch = self.batches.get((query, number))
        if batch is None:
            raise Violation(f"Validity: {what} is decided at {record.offset}, and nobody knows it", what)
        self.counts["look decision in the log"] += 1
        first = min([ref.offset for ref in record.refs], default=record.offset)
        self.counts["look decision across segments"] += (
            first // self._segment_bytes < record.offset // self._segment_bytes
        )
        self.counts["look decision of a copy"] += any(ref.offset != ref.first_offset for ref in record.refs)
        self.counts["look decision with losers"] += bool(record.lost)
        digest = record.digest.hex()
        same = [wish for wish in batch.wishes if (wish.run, wish.digest) == (run, digest)]
        if all(self._messages(query, wish) != shown for wish in same):
            raise Violation(f"Validity: {what} at {record.offset} shows {sorted(shown)[:6]}, which nobody wanted", what)
        if batch.decided is not None and not batch.forgotten and batch.decided != (record.offset, digest):
            raise Violation(
                f"Durable: {what} was decided: {batch.decided}, and the log has it at {record.offset}", what
            )
        if record.offset < log_start:
            return
        there = {message for message in places if self.of_message.get(message, ("", -1))[:2] == (query, number)}
        if there != shown:
            raise Violation(
                f"Once: {what} at {record.offset} shows {len(shown)} messages, the queues hold {len(there)} of its batch; "
                f"too many {sorted(there - shown)[:3]}, too few {sorted(shown - there)[:3]}",
                what,
            )
        delayed = self._delayed(query, number)
        for message in there:
            at = visible_at.get(places[message], -1)
            self.counts["look delayed message of a half batch"] += message in delayed
            if (at <= record.offset) if message in delayed else (at != record.offset):
                raise Violation(f"All or none: {message} became visible at {at}, and {what} at {record.offset}", what)
        self._look_at_order(
            what, [batch.attempts[run, attempt] for attempt in {self.of_message[m][3] for m in there}], places
        )

    def _delayed(self, query: str, number: int) -> set[str]:
        """Messages with delays, of all attempts."""
        parts = [part for one in self.batches[query, number].attempts.values() for part in one.parts.values()]
        return {message for part in parts if part.delays_ms for message in part.messages}

    def _look_at_order(self, what: str, winners: Iterable[Attempt], places: dict[str, Place]) -> None:
        """Each attempt's messages are in order and side by side in their queue."""
        for one in winners:
            for topic, queue in {(part.topic, part.queue) for part in one.parts.values()}:
                offsets = [places[message][2] for message in one.in_queue(topic, queue)]
                self.counts["look order of an attempt"] += 1
                if offsets and offsets != list(range(offsets[0], offsets[0] + len(offsets))):
                    raise Violation(f"Order: an attempt of {what} is in {topic}/{queue} at {offsets}", what)


def messages_shown(disk: FaultyDisk, segment_bytes: int, record: Decided) -> list[tuple[str, int, int, StoredMessage]]:
    """(topic, queue offset, log offset of the message, message) of everything that a verdict shows, read from the log's files. Queue
    offset -1: it has a delay.
    """
    found = []
    for ref in record.refs:
        start = ref.offset - ref.offset % segment_bytes
        raw = memoryview(disk.content(LOG / segment_name(start)))[ref.offset - start :]
        payload = bytes(raw[HALF_BATCH_PAYLOAD_AT : HALF_BATCH_PAYLOAD_AT + half_batch_head(raw, 0).payload_bytes])
        for number, (at, _) in enumerate(item_places(payload, ref.messages)):
            message = decode_message(raw[at + ITEM_HEAD_BYTES :])[0]
            queue_offset = ref.queue_offset + number if ref.queue_offset >= 0 else -1
            found.append((message.topic, queue_offset, ref.offset + at, message))
    return found
