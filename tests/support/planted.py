"""One incorrect transaction, planted into a clean history as one more file, without changing anything else.

Each of its steps is at a moment and a log offset for which the history has space (``Mark``), so the rest of the history agrees
with it. Its messages have their own topic, which is read to the end.
"""

from collections.abc import Callable, Sequence

from halfmq.testing.history.events import (
    Answered,
    AnyEvent,
    CheckReceived,
    EndAsked,
    FileStarted,
    HalfSent,
    Local,
    Logged,
    QueueRead,
    Seen,
    Verdict,
)
from halfmq.testing.history.report import (
    CHANGED,
    DUPLICATE,
    LOST,
    NOT_DURABLE,
    PHANTOM,
    REORDERED,
    STUCK,
    TORN,
    UNREQUESTED,
)
from tests.support.histories import COMMITTED, ROLLED_BACK, Mark

GROUP = "planted"
TOPIC = "Planted"


class Plant:
    """``steps``: moments, in order; ``end_us``: when the history has settled and is read."""

    def __init__(self, steps: Sequence[Mark], end_us: int) -> None:
        self.steps = steps
        self.end_us = end_us
        self.events: list[AnyEvent] = []
        self._ops = 0
        self._places = 0

    def _asked(self, step: int) -> tuple[int, int, str]:
        """(time of request, time of response, op): the broker executes it at the step, in between."""
        self._ops += 1
        us = self.steps[step].us
        return us - 1, us + 1, f"op{self._ops}"

    def offset(self, step: int, more: int = 0) -> int:
        return self.steps[step].offset + 8 + more

    def half(self, step: int, tx: str, index: int = 0, *, logged: bool = True) -> str:
        asked, answered, op = self._asked(step)
        message = f"{tx}.{index}"
        self.events += [
            HalfSent(t_us=asked, by="planter", op=op, group=GROUP, tx=tx, index=index, message=message, topic=TOPIC, queue=0, crc=7),
            Answered(t_us=answered, by="planter", op=op, outcome="ok", offset=self.offset(step, index)),
        ]  # fmt: skip
        if logged:
            self.log(
                kind="half",
                offset=self.offset(step, index),
                tx=tx,
                index=index,
                message=message,
                topic=TOPIC,
                queue=0,
                crc=7,
            )
        return message

    def local(self, step: int, tx: str, outcome: Verdict) -> None:
        self.events.append(Local(t_us=self.steps[step].us, by="planted-database", group=GROUP, tx=tx, outcome=outcome))

    def end(self, step: int, tx: str, verdict: Verdict, outcome: str = "ok", stands: Verdict | None = None, at: int = -1, by: str = "application") -> None:  # fmt: skip
        asked, answered, op = self._asked(step)
        self.events += [
            EndAsked(t_us=asked, by="planter", op=op, group=GROUP, tx=tx, verdict=verdict, decided_by=by),  # type: ignore[arg-type]
            Answered(t_us=answered, by="planter", op=op, outcome=outcome, verdict=stands, position=at),  # type: ignore[arg-type]
        ]

    def log(self, **fields: object) -> None:
        self.events.append(Logged(t_us=self.end_us + 2, by="planted-log", group=GROUP, **fields))  # type: ignore[arg-type]

    def commit(self, step: int, tx: str, halves: Sequence[tuple[int, int]], by: str = "application") -> int:
        """Log the commit record; ``halves``: (queue offset, log offset of the half). Returns its offset."""
        offset = self.offset(step, 16)
        self.log(
            kind="commit", offset=offset, tx=tx, decided_by=by, shown=tuple((TOPIC, 0, at, half) for at, half in halves)
        )
        return offset

    def seen(self, step: int, tx: str, at: int, index: int = 0, reader: str = "reader-0") -> None:
        self._places = max(self._places, at + 1)
        us = self.steps[step].us + 2
        self.events.append(
            Seen(
                t_us=us, by="planted-" + reader, reader=reader, message=f"{tx}.{index}", topic=TOPIC, queue=0,
                queue_offset=at, tx=tx, index=index, store_time_ms=1000 + at, crc=7,
            )
        )  # fmt: skip

    def finish(self) -> list[AnyEvent]:
        self.events.append(
            QueueRead(
                t_us=self.end_us + 1,
                by="planted-reader-0",
                reader="reader-0",
                topic=TOPIC,
                queue=0,
                first=0,
                end=self._places,
            )
        )
        return [FileStarted(t_us=0, by="planter"), *sorted(self.events, key=lambda event: event.t_us)]


def clean(plant: Plant) -> None:
    plant.half(0, "T")
    plant.local(1, "T", COMMITTED)
    at = plant.commit(2, "T", [(0, plant.offset(0))])
    plant.end(2, "T", COMMITTED, stands=COMMITTED, at=at)
    plant.seen(3, "T", 0)


def lost(plant: Plant) -> None:
    """Committed, also in the log, but never received."""
    plant.half(0, "T")
    plant.local(1, "T", COMMITTED)
    at = plant.commit(2, "T", [(0, plant.offset(0))])
    plant.end(2, "T", COMMITTED, stands=COMMITTED, at=at)


def phantom(plant: Plant) -> None:
    """Rolled back by the database and by the broker, but received."""
    plant.half(0, "T")
    plant.local(1, "T", ROLLED_BACK)
    plant.log(kind="rollback", offset=plant.offset(2, 16), tx="T", decided_by="application")
    plant.end(2, "T", ROLLED_BACK, stands=ROLLED_BACK, at=plant.offset(2, 16))
    plant.seen(3, "T", 0)


def duplicate(plant: Plant) -> None:
    clean(plant)
    plant.seen(3, "T", 1, reader="reader-1")


def torn(plant: Plant) -> None:
    """Three messages, one of which is missing."""
    for index in range(3):
        plant.half(0, "T", index)
    plant.local(1, "T", COMMITTED)
    at = plant.commit(2, "T", [(index, plant.offset(0, index)) for index in range(3)])
    plant.end(2, "T", COMMITTED, stands=COMMITTED, at=at)
    plant.seen(3, "T", 0, 0)
    plant.seen(3, "T", 2, 2)


def reordered(plant: Plant) -> None:
    """T was committed before the commit of U was requested, but U is before T."""
    for tx, step, place in (("T", 1, 1), ("U", 2, 0)):
        plant.half(0 if tx == "T" else 1, tx)
        half = plant.offset(0 if tx == "T" else 1)
        at = plant.commit(step, tx, [(place, half)])
        plant.end(step, tx, COMMITTED, stands=COMMITTED, at=at)
        plant.local(step, tx, COMMITTED)
        plant.seen(3, tx, place)


def unrequested_verdict(plant: Plant) -> None:
    """The application requests COMMITTED, and the broker reports ROLLED_BACK, which nobody requested."""
    plant.half(0, "T")
    plant.local(1, "T", COMMITTED)
    plant.log(kind="rollback", offset=plant.offset(2, 16), tx="T", decided_by="check")
    plant.end(3, "T", COMMITTED, "settled", ROLLED_BACK, plant.offset(2, 16))


def verdict_changed(plant: Plant) -> None:
    """Both verdicts were requested, and both acknowledged."""
    plant.half(0, "T")
    at = plant.commit(1, "T", [(0, plant.offset(0))])
    plant.end(1, "T", COMMITTED, stands=COMMITTED, at=at)
    plant.seen(2, "T", 0)
    plant.end(3, "T", ROLLED_BACK, stands=ROLLED_BACK, by="check")


def not_durable(plant: Plant) -> None:
    """The half was acknowledged; its record is not in the log, and the broker does not know it."""
    plant.half(0, "T", logged=False)
    plant.end(2, "T", ROLLED_BACK, "refused")


def stuck(plant: Plant) -> None:
    """Checked again and again, and its producer knows the outcome, but there is no verdict."""
    plant.half(0, "T")
    plant.local(1, "T", COMMITTED)
    for step in (2, 3):
        us = plant.steps[step].us
        plant.events.append(CheckReceived(t_us=us, by="planter", group=GROUP, tx="T", times=step))
        plant.end(step, "T", COMMITTED, "refused", by="check")


KINDS: dict[str, Callable[[Plant], None]] = {
    LOST: lost,
    PHANTOM: phantom,
    DUPLICATE: duplicate,
    TORN: torn,
    REORDERED: reordered,
    UNREQUESTED: unrequested_verdict,
    CHANGED: verdict_changed,
    NOT_DURABLE: not_durable,
    STUCK: stuck,
}


def planted(make: Callable[[Plant], None], steps: Sequence[Mark], end_us: int) -> list[AnyEvent]:
    plant = Plant(steps, end_us)
    make(plant)
    return plant.finish()


def steps_inside(marks: Sequence[Mark], restarts: Sequence[tuple[int, int]], share: float) -> list[Mark]:
    """Four moments near ``share`` of the history, without a restart between them, at least 100 us apart."""
    at = int(share * (len(marks) - 1))
    order = marks[at:] + marks[:at][::-1] if share < 0.5 else marks[: at + 1][::-1] + marks[at:]
    found: list[Mark] = []
    for mark in order:
        if found and abs(mark.us - found[-1].us) < 100:
            continue
        if found and any(min(found[0].us, mark.us) <= up <= max(found[0].us, mark.us) for _, up in restarts):
            found = []
        found.append(mark)
        if len(found) == 4:
            return sorted(found)
    raise AssertionError("the history has no room")


def steps_across(marks: Sequence[Mark], restart: tuple[int, int]) -> list[Mark]:
    """Two moments before a broker was killed, two after its restart."""
    down, up = restart
    before: list[Mark] = []
    for mark in reversed([mark for mark in marks if mark.us < down]):
        if not before or before[-1].us - mark.us >= 100:
            before.append(mark)
        if len(before) == 2:
            break
    after: list[Mark] = []
    for mark in marks:
        if mark.us > up and (not after or mark.us - after[-1].us >= 100):
            after.append(mark)
        if len(after) == 2:
            break
    return [*reversed(before), *after]
