"""Half batches and decisions of one query, for the scripts of the matrix: requests, responses, and what must hold after a crash."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from zlib import crc32

from halfmq.model.half_batch import HalfMessage, build_payload, item_places
from halfmq.model.query_batch import QueryBatch
from halfmq.model.text_fields import write_fields
from halfmq.wire.remoting.codes import HMQ_DECIDE, HMQ_PREPARE_BATCH
from halfmq.wire.remoting.half_batches import (
    PrepareFields,
    WinnerRow,
    decide_ext,
    encode_winners,
)
from tests.support.raw_client import Answer, property_string

if TYPE_CHECKING:
    from tests.crash_matrix.house import House

QUERY, WRITERS, RUN, TOPIC = "query", "writers", "r1", "D"
_HOST = b"\x7f\x00\x00\x01\x00\x00\x10\x00"


class Violation(AssertionError):
    """A promise about half batches does not hold."""


@dataclass
class Part:
    """A half batch: its queue, and ids and bodies of its messages."""

    queue: int
    messages: tuple[tuple[str, bytes], ...]
    #: Acknowledged log offset; -1: none.
    acked: int = -1
    checksum: int = 0
    asked: bool = False
    #: Of each message, from the decision; empty: they have none.
    delays_ms: tuple[int, ...] = ()
    #: Bytes from the start of the record to each message.
    items: tuple[int, ...] = ()

    @property
    def ids(self) -> list[str]:
        return [unique for unique, _ in self.messages]


@dataclass
class Batch:
    """One batch of the query in its only run."""

    number: int
    #: Attempt -> its half batches.
    attempts: dict[str, list[Part]] = field(default_factory=dict)
    #: Attempts that win; None: nobody decides it.
    winners: tuple[str, ...] | None = None
    #: A decision was sent, so there may be one without a response.
    asked: bool = False
    #: When it was sent first.
    asked_at_ms: int = 0
    #: Its acknowledged position; -1: none.
    decided: int = -1

    @property
    def tx_id(self) -> str:
        return f"{QUERY}:{self.number}:{RUN}"

    @property
    def digest(self) -> bytes:
        return self.number.to_bytes(16, "big")

    def parts(self, *, winning: bool) -> list[Part]:
        won = self.winners or ()
        return [part for name, parts in self.attempts.items() if (name in won) == winning for part in parts]


def forget_answers(batches: dict[int, Batch]) -> None:
    """Responses prove nothing any more."""
    for batch in batches.values():
        batch.decided = -1
        for parts in batch.attempts.values():
            for part in parts:
                part.acked = -1


# --- requests ----------------------------------------------------------------------------------------------------


def new_batch(
    house: "House",
    number: int,
    attempts: dict[str, int],
    winners: tuple[str, ...] | None,
    *,
    size: int = 300,
    delays_ms: dict[int, tuple[int, int, int]] | None = None,
) -> Batch:
    """A batch whose attempts have so many half batches of three messages with bodies of ``size`` bytes. ``delays_ms``: by index, of those
    whose messages have delays.
    """
    batch = house.book.batches[number] = Batch(number, winners=winners)
    for attempt, count in attempts.items():
        batch.attempts[attempt] = [
            Part(
                index % 2,
                tuple((f"{batch.tx_id}/{attempt}.{index}.{at}", bytes([65 + at]) * size) for at in range(3)),
                delays_ms=(delays_ms or {}).get(index, ()),
            )
            for index in range(count)
        ]
    return batch


def prepare(house: "House", batch: Batch, attempt: str, index: int) -> None:
    """Send one half batch, or send it again."""
    part = batch.attempts[attempt][index]
    delays = [{"TIMER_DELAY_MS": str(delay)} for delay in part.delays_ms] or [{}] * len(part.messages)
    halves = [
        HalfMessage(0, 0, body, property_string(UNIQ_KEY=unique, KEYS=f"k{unique}", **delay).encode())
        for (unique, body), delay in zip(part.messages, delays, strict=True)
    ]
    payload, count = build_payload(
        halves, topic=TOPIC, queue_id=part.queue, born_time_ms=1, born_host=_HOST, store_host=house.settings.store_host,
        delayed=bool(part.delays_ms),
    )  # fmt: skip
    part.checksum, part.asked = crc32(payload), True
    part.items = tuple(at for at, _ in item_places(payload, count))
    fields = PrepareFields(
        WRITERS, TOPIC, part.queue, count, part.checksum, index, 0, "", QUERY, batch.number, RUN, attempt, -1, 2,
        int(bool(part.delays_ms)) or None,
    )  # fmt: skip
    ext = {name: str(value) for name, value in write_fields(fields).items()}
    house.ask("half batch", (batch.number, attempt, index), HMQ_PREPARE_BATCH, ext, payload)


def prepare_all(house: "House", batch: Batch) -> None:
    for attempt, parts in batch.attempts.items():
        for index in range(len(parts)):
            prepare(house, batch, attempt, index)
            house.settle()


def decide(house: "House", batch: Batch, digest: bytes = b"") -> None:
    """Send the decision; with another ``digest``: one that contradicts it."""
    rows = []
    for name in batch.winners or ():
        parts = batch.attempts[name]
        messages, checksum = sum(len(part.messages) for part in parts), sum(part.checksum for part in parts)
        rows.append(WinnerRow(name, len(parts), messages, checksum & 0xFFFFFFFF))
    fields = decide_ext(WRITERS, QueryBatch(QUERY, batch.number, RUN), digest or batch.digest)
    ext = {name: str(value) for name, value in fields.items()}
    if not digest and not batch.asked:
        batch.asked, batch.asked_at_ms = True, house.clock.now_ms
    house.ask("contradiction" if digest else "decision", batch.number, HMQ_DECIDE, ext, encode_winners(rows))


# --- responses ---------------------------------------------------------------------------------------------------


def heard_half_batch(house: "House", answer: Answer, subject: tuple[int, str, int]) -> None:
    number, attempt, index = subject
    batch = house.book.batches[number]
    part = batch.attempts[attempt][index]
    if answer.code == 604 and answer.ext.get("HMQ_VERDICT") == "COMMITTED":
        if not batch.asked or batch.decided not in (-1, int(answer.ext["HMQ_POSITION"])):
            raise Violation(f"Agreement: {batch.tx_id} was decided at {batch.decided}; {subject} was told {answer}")
    elif answer.code != 0:
        raise Violation(f"half batch {subject} was refused: {answer}")
    elif batch.decided >= 0:
        raise Violation(f"Agreement: half batch {subject} was taken, though its batch is decided at {batch.decided}")
    elif part.acked not in (-1, int(answer.ext["offset"])):
        raise Violation(f"Once: half batch {subject} was at {part.acked}, now {answer}")
    else:
        part.acked = int(answer.ext["offset"])


def heard_decision(house: "House", answer: Answer, number: int) -> None:
    batch = house.book.batches[number]
    if answer.code != 0:
        raise Violation(f"Agreement: {batch.tx_id} was decided at {batch.decided}, now {answer}")
    position = int(answer.ext["position"])
    if batch.decided not in (-1, position):
        raise Violation(f"Durable: {batch.tx_id} was decided at {batch.decided}, now at {position}")
    batch.decided = position


def heard_contradiction(house: "House", answer: Answer, number: int) -> None:
    batch = house.book.batches[number]
    said = (answer.code, answer.ext.get("HMQ_VERDICT"), int(answer.ext.get("HMQ_POSITION", "-1")))
    if said != (604, "COMMITTED", batch.decided):
        raise Violation(f"Agreement: {batch.tx_id} is decided at {batch.decided}; another digest was told {answer}")


# --- promises ----------------------------------------------------------------------------------------------------


def check_visible(house: "House", places: dict[str, tuple[str, int, int]]) -> None:
    """Of each batch nothing is visible, or all messages of its winners. Those with delays wait until their time, and are not lost."""
    for batch in house.book.batches.values():
        winners = batch.parts(winning=True)
        winning = [unique for part in winners if not part.delays_ms for unique in part.ids]
        shown = [unique in places for unique in winning]
        lost = [unique for part in batch.parts(winning=False) for unique in part.ids if unique in places]
        delayed = [unique for part in winners if part.delays_ms for unique in part.ids if unique in places]
        if lost or ((any(shown) or delayed) and not batch.asked):
            raise Violation(f"Validity: of {batch.tx_id} {lost or 'everything'} is visible, and nobody decided so")
        if winning and any(shown) != all(shown):
            raise Violation(f"All or none: {batch.tx_id} shows {shown}")
        if batch.decided >= house.life.state.log_start and not any(shown) and winning:
            raise Violation(f"Durable: {batch.tx_id} was decided at {batch.decided} and is not visible")
        if delayed and winning and not any(shown) and batch.decided >= house.life.state.log_start:
            raise Violation(f"All or none: {batch.tx_id} shows only its delayed messages {delayed}")
        _check_delayed(house, batch, places, stands=batch.decided >= 0 or any(shown) or bool(delayed))


def _check_delayed(house: "House", batch: Batch, places: dict[str, tuple[str, int, int]], *, stands: bool) -> None:
    """``stands``: the decision is known to be in the log."""
    for part in batch.parts(winning=True):
        for unique, delay_ms, item in zip(part.ids, part.delays_ms, part.items, strict=False):
            if unique in places and house.clock.now_ms < batch.asked_at_ms + delay_ms:
                raise Violation(f"Delay: {unique} is visible before its time")
            waits = part.acked >= 0 and part.acked + item in house.life.state.delayed
            if unique in places and waits:
                raise Violation(f"Once: {unique} is visible at {places[unique]} and is delayed")
            # What was released before the start of the log may be trimmed.
            if stands and part.acked >= 0 and not waits and unique not in places and not house.life.state.log_start:
                raise Violation(f"Durable: {batch.tx_id} was decided, and its delayed message {unique} is gone")


def longest_delay_ms(house: "House") -> int:
    parts = [part for batch in house.book.batches.values() for part in batch.parts(winning=True)]
    return max((delay for part in parts for delay in part.delays_ms), default=0)


def check_released(house: "House", seen: set[str]) -> None:
    """Every delay is over: each message of a decided batch was released."""
    for batch in house.book.batches.values():
        missing = [
            unique for part in batch.parts(winning=True) if part.delays_ms for unique in part.ids if unique not in seen
        ]
        if missing and batch.decided >= 0 and not house.life.state.log_start:
            raise Violation(f"{missing} were delayed and are not visible after their time")


def check_answered(house: "House") -> None:
    """What was acknowledged is there, and a repetition gets the same response. The caller settles."""
    group = house.life.state.producer_groups.get(WRITERS)
    undecided = group.undecided if group is not None else {}
    for batch in house.book.batches.values():
        if batch.decided >= 0:
            decide(house, batch)
            decide(house, batch, digest=b"another digest..")
        known = undecided.get(batch.tx_id)
        there = {(half.attempt, half.index): half.first_offset for half in known.halves} if known is not None else {}
        for attempt, parts in batch.attempts.items():
            for index, part in enumerate(parts):
                if part.acked >= 0 and not batch.asked and there.get((attempt, index)) != part.acked:
                    raise Violation(
                        f"Retention: {batch.tx_id}/{attempt}.{index} was at {part.acked}; there are {there}"
                    )
                if part.acked >= 0:
                    prepare(house, batch, attempt, index)


def ask_for_the_rest(house: "House") -> None:
    """Clients repeat what was not answered, in order; then they decide."""
    for batch in house.book.batches.values():
        if batch.decided >= 0:
            continue
        if batch.asked:
            house.settle()
            _repeat(house, batch)
        for attempt, parts in batch.attempts.items():
            for index, part in enumerate(parts):
                if part.acked < 0 and batch.decided < 0:
                    prepare(house, batch, attempt, index)
                    house.settle()
        if batch.winners is not None and batch.decided < 0:
            decide(house, batch)
            house.settle()


def _repeat(house: "House", batch: Batch) -> None:
    """A decision without a response is sent again if its batch is still complete: as always unless the power was lost."""
    if all(part.acked >= 0 for part in batch.parts(winning=True)):
        decide(house, batch)
        house.settle()


def check_settled(house: "House") -> None:
    """Nothing is left but what nobody decides."""
    group = house.life.state.producer_groups.get(WRITERS)
    left = set(group.undecided) if group is not None else set()
    batches = house.book.batches.values()
    for batch in batches:
        if batch.winners is not None and batch.decided < 0:
            raise Violation(f"Progress: {batch.tx_id} is not decided though it was asked for")
    expected = {batch.tx_id for batch in batches if batch.winners is None}
    if left != expected:
        raise Violation(f"undecided batches in the end are {sorted(left)}, not {sorted(expected)}")
