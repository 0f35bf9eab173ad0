"""What a start of the broker must find, checked before any client connects; for seeds of the profile "power_loss".

The disk has just lost any part of what was not synced. Everything that was acknowledged to a client, or received by one,
must be there, at the same position: the queues are read as by a pull, and compared with what ``Promises`` recorded.

    recovery       before the start: snapshot and redo give the same state as the log alone
    durable        committed transactions, acknowledged messages and everything that was ever received exist
    validity       nothing is visible for which nobody requested COMMIT, or that was rolled back
    all or none    every message of a transaction is visible, or none
    once           no message is in two places
    order          of two commits, the second requested after the first was acknowledged, the first has the smaller offset
    time           store times never decrease within a queue
    retention      an acknowledged half message without a verdict is undecided, under its first offset

Then settled transactions are requested again with both verdicts, and some recent requests are repeated; the responses are
checked by ``Promises`` like all others.
"""

import itertools
import random
from typing import TYPE_CHECKING, Any, Final

from halfmq.broker.services.pulls import Status
from halfmq.broker.services.tag_filter import TagFilter
from halfmq.model.queue_reads import PullRequest
from halfmq.model.stored_message import body_crc_of
from halfmq.model.stored_message import decode as decode_message
from halfmq.testing.history.events import Seen
from tests.simulation import final_checks
from tests.simulation.promises import Promises, Tx, Violation
from tests.simulation.raw_connection import LineLost
from tests.support import invariants
from tests.support.durable_digest import durable_digest
from tests.support.virtual_loop import ProcessLoop

if TYPE_CHECKING:
    from tests.simulation.run import Run

#: Fraction of the starts before which both ways of recovery are compared.
_COMPARED: Final = 0.4
#: Number of settled transactions, and of recent requests, that are sent again after a start.
_AGAIN: Final = 4
_READER: Final = "start"
Place = tuple[str, int, int]


class AfterStart:
    def __init__(self, run: "Run") -> None:
        self._run = run
        self._counts = run.counts
        self._promises: Promises = run.promises
        self._rng = random.Random(f"{run.swarm.seed}/after start")
        self._settings: Any = None

    def before(self) -> None:
        """Call it before a broker starts on the disk in its current state.

        Raises:
            Violation: the two ways of recovery differ.
        """
        if self._settings is None or self._rng.random() >= _COMPARED:
            return
        host = self._run.host
        digests = []
        for log_only in (False, True):
            state = final_checks.redo(host, final_checks.copy_of(host.disk, log_only=log_only), settings=self._settings)
            invariants.check(state)
            digests.append(durable_digest(state))
        self._counts["look recovery before a start"] += 1
        if digests[0] != digests[1]:
            raise Violation("Recovery: snapshot and redo differ from the log alone")

    def look(self, broker: Any) -> None:
        """
        Raises:
            Violation: something that was acknowledged or received is missing, or something else is there.
        """
        state = broker._sequencer.engine.state
        self._settings = state.settings
        places: dict[str, Place] = {}
        offsets: dict[str, int] = {}
        for topic in state.topics_by_id.values():
            if not topic.name.startswith("%"):
                for queue in range(topic.read_queues):
                    self._look_at_queue(broker, topic, queue, places, offsets)
        for tx in self._promises.txs.values():
            self._look_at_transaction(tx, offsets, state)
        for plain in self._promises.plains.values():
            if plain.acked is not None and plain.acked[0] >= state.log_start and not plain.due_us:
                self._counts["look durable plain after a start"] += 1
                if plain.message not in places:
                    raise Violation(
                        f"Durable: {plain.message} was acknowledged at {plain.acked} and is gone", plain.message
                    )
        self._look_at_order(places)
        self._run.query_promises.look_at_visible(places, state.log_start, state)
        self._counts["look after a start"] += 1
        self._counts["look after a start with a trimmed log"] += state.log_start > 0

    def _look_at_queue(
        self, broker: Any, topic: Any, queue: int, places: dict[str, Place], offsets: dict[str, int]
    ) -> None:
        found = {event.queue_offset: event for event in self._read(broker, topic, queue)}
        first = min(found, default=0)
        for offset, (message, crc) in self._promises.seen.get((topic.name, queue), {}).items():
            there = found.get(offset)
            if found and offset >= first and (there is None or (there.message, there.crc) != (message, crc)):
                raise Violation(f"Durable: {topic.name}/{queue}@{offset} was {message}, now {there}", message)
        for offset, event in found.items():
            place = (topic.name, queue, offset)
            if event.message in places and not final_checks.sent_twice_on_one_connection(self._promises, event.message):
                raise Violation(f"Once: {event.message} at {places[event.message]} and at {place}", event.message)
            places[event.message] = place
            offsets[event.message] = event.offset
        for before, after in itertools.pairwise(found.values()):
            if after.store_time_ms < before.store_time_ms:
                raise Violation(f"Time: store times of {topic.name}/{queue} go back at {after.queue_offset}")

    def _read(self, broker: Any, topic: Any, queue: int) -> list[Seen]:
        """Read as by a pull; a damaged body is a violation, since there is no bit rot in this profile."""
        found: list[Seen] = []
        at, _ = broker._pulls._store.bounds(topic.topic_id, queue)
        while True:
            request = PullRequest(_READER, topic.name, queue, at, 1_000, subscription="*")
            pulled = broker._pulls._look(topic, request, TagFilter(None))
            body, here = bytes(pulled.body), 0
            while here < len(body):
                message, offset, size = decode_message(body, here)
                if body_crc_of(message.body) != message.body_crc:
                    raise Violation(f"Durable: the body at {topic.name}/{queue}@{message.queue_offset} is damaged")
                found.append(final_checks.seen(message, offset, 0, _READER, _READER))
                here += size
            if pulled.status not in (Status.FOUND, Status.NO_MATCH) or pulled.next_offset <= at:
                return found
            at = pulled.next_offset

    def _look_at_transaction(self, tx: Tx, offsets: dict[str, int], state: Any) -> None:
        at_once = [offsets.get(half.message, -1) for half in tx.halves.values() if not half.delay_ms]
        shown = [half.message in offsets for half in tx.halves.values()]
        verdict = tx.verdict[0] if tx.verdict is not None else ""
        if any(shown):
            self._counts["look all or none after a start"] += 1
            if "COMMITTED" not in tx.asked or verdict == "ROLLED_BACK":
                raise Violation(f"Validity: {tx.tx} is visible, and it is {verdict or 'undecided'}", tx.tx)
            if max(at_once, default=-1) >= state.log_start and min(at_once) < 0:
                raise Violation(f"All or none: {tx.tx} shows {shown}", tx.tx)
        elif verdict == "COMMITTED" and at_once and tx.verdict is not None and tx.verdict[1] >= state.log_start:
            raise Violation(f"Durable: {tx.tx} was committed at {tx.verdict} and is not visible", tx.tx)
        if tx.acked and not tx.asked:
            self._look_at_undecided(tx, state)

    def _look_at_undecided(self, tx: Tx, state: Any) -> None:
        self._counts["look undecided after a start"] += 1
        group = state.producer_groups.get(tx.group)
        known = group.undecided.get(tx.tx) if group is not None else None
        there = {half.index: half.first_offset for half in known.halves} if known is not None else {}
        for index, offset in tx.acked.items():
            if there.get(index) != offset:
                raise Violation(
                    f"Retention: half {index} of {tx.tx} was acknowledged at {offset}; there are {there}", tx.tx
                )

    def _look_at_order(self, places: dict[str, Place]) -> None:
        in_queue: dict[tuple[str, int], list[tuple[int, Tx]]] = {}
        for tx in self._promises.txs.values():
            for half in tx.halves.values():
                place = places.get(half.message)
                if place is not None and tx.verdict is not None and not half.delay_ms:
                    in_queue.setdefault(place[:2], []).append((place[2], tx))
        for queue, entries in in_queue.items():
            entries.sort(key=lambda entry: entry[0])
            for (_, before), (_, after) in itertools.pairwise(entries):
                self._counts["look order after a start"] += 1
                if before is not after and 0 < after.verdict_us < before.asked["COMMITTED"][0]:
                    raise Violation(
                        f"Order: in {queue} {before.tx} is before {after.tx}, which was settled first", before.tx
                    )

    def ask_again(self, reader: ProcessLoop) -> None:
        """Request settled transactions with both verdicts, and repeat some of the last requests, on separate connections."""
        reader.create_task(self._ask_again(reader))
        for _ in range(_AGAIN):
            self._run.faults.repeat()

    async def _ask_again(self, reader: ProcessLoop) -> None:
        run = self._run
        try:
            await final_checks.ask_again(reader, run.network, run.tap, run.promises, _AGAIN, run.swarm.queues)
        except LineLost:
            self._counts["asked again in vain"] += 1  # the power failed meanwhile
