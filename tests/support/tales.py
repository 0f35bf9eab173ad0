"""Short histories for tests, event by event: each call is 10 microseconds after the previous one."""

from typing import Any

from halfmq.testing.history import Report, check_events
from halfmq.testing.history.events import (
    Answered,
    AnyEvent,
    BranchWritten,
    CheckReceived,
    Damage,
    DamageForgotten,
    DamageListed,
    EndAsked,
    EpochTaken,
    Fault,
    FileStarted,
    HalfSent,
    Local,
    Logged,
    OutboxWritten,
    OutcomeReported,
    PlainSent,
    QueueRead,
    Seen,
    Settled,
    Started,
    Verdict,
)

C: Verdict = "COMMITTED"
R: Verdict = "ROLLED_BACK"
TOPIC = "t"


class Tale:
    """Unless named, the transaction is ``T`` and everything is in queue 0 of topic ``t``."""

    def __init__(self, **began: Any) -> None:
        self.now = 100
        self.ops = 0
        self.events: list[AnyEvent] = [FileStarted(t_us=0, by="p", **began)]

    def add(self, event: type[AnyEvent], /, **fields: Any) -> None:
        self.now += 10
        self.events.append(event(**{"t_us": self.now, "by": "p", **fields}))

    def _answer(self, outcome: str | None, **fields: Any) -> None:
        if "stands" in fields:
            fields["verdict"] = fields.pop("stands")
        if outcome is not None:
            self.add(Answered, op=str(self.ops), outcome=outcome, **fields)

    def half(self, tx: str = "T", message: str = "", index: int = 0, outcome: str | None = "ok", **fields: Any) -> None:
        self.ops += 1
        asked = {
            name: fields.pop(name)
            for name in ("queue", "crc", "key", "delay_ms", "group", "coordinator", "epoch")
            if name in fields
        }
        asked.setdefault("group", "g")
        self.add(HalfSent, op=str(self.ops), tx=tx, message=message or tx, index=index, topic=TOPIC, **asked)
        self._answer(outcome, **fields)

    def plain(self, message: str = "P", outcome: str | None = "ok", to: int = -1, **fields: Any) -> None:
        """``to``: the requested queue; ``queue``: the queue in the response."""
        self.ops += 1
        asked = {name: fields.pop(name) for name in ("crc", "key", "delay_ms") if name in fields}
        self.add(PlainSent, op=str(self.ops), message=message, topic=TOPIC, queue=to, **asked)
        self._answer(outcome, **fields)

    def end(self, tx: str = "T", verdict: Verdict = C, outcome: str | None = "ok", by: str = "application", group: str = "g", **fields: Any) -> None:  # fmt: skip
        self.ops += 1
        asked = {name: fields.pop(name) for name in ("coordinator", "epoch") if name in fields}
        self.add(EndAsked, op=str(self.ops), group=group, tx=tx, verdict=verdict, decided_by=by, **asked)
        self._answer(outcome, **fields)

    def epoch(self, epoch: int, by: str = "p", **fields: Any) -> None:
        """``by`` got it of coordinator ``c``."""
        self.add(EpochTaken, by=by, **{"group": "g", "coordinator": "c", "epoch": epoch, **fields})

    def local(self, tx: str = "T", outcome: Verdict = C, group: str = "g", **fields: Any) -> None:
        self.add(Local, group=group, tx=tx, outcome=outcome, **fields)

    def written(self, message: str = "M", tx: str = "T", group: str = "g", **fields: Any) -> None:
        self.add(OutboxWritten, group=group, tx=tx, message=message, topic=TOPIC, **fields)

    def branch(self, branch: str, call: Any, tx: str = "T", group: str = "g") -> None:
        self.add(BranchWritten, group=group, tx=tx, branch=branch, call=call)

    def reported(self, said: Verdict, verdict: Verdict | None, outcome: str | None = "ok", tx: str = "T", **asked: Any) -> None:  # fmt: skip
        """``verdict``: that of the broker, in its response."""
        self.ops += 1
        self.add(OutcomeReported, op=str(self.ops), group="g", tx=tx, outcome=said, **asked)
        self._answer(outcome, **({} if verdict is None else {"verdict": verdict}))

    def listed(self, *findings: tuple[Verdict, Verdict], by: str = "", tx: str = "T") -> None:
        """``findings``: (verdict, what the database did)."""
        rows = tuple(Damage(group="g", tx=tx, verdict=of[0], local=of[1], decided_by=by) for of in findings)
        self.add(DamageListed, findings=rows)

    def forgotten(self, outcome: str | None = "ok", tx: str = "T") -> None:
        self.ops += 1
        self.add(DamageForgotten, op=str(self.ops), group="g", tx=tx)
        self._answer(outcome)

    def decided(self, message: str = "M", verdict: Verdict = C, outcome: str | None = "ok", by: str = "application") -> None:  # fmt: skip
        """A message of an outbox is confirmed, withdrawn or skipped."""
        self.ops += 1
        self.add(EndAsked, op=str(self.ops), group="g", tx="", message=message, verdict=verdict, decided_by=by)
        self._answer(outcome)

    def check(self, tx: str = "T") -> None:
        self.add(CheckReceived, group="g", tx=tx)

    def seen(self, message: str = "T", at: int = 0, queue: int = 0, reader: str = "r", topic: str = TOPIC, **fields: Any) -> None:  # fmt: skip
        self.add(Seen, reader=reader, message=message, topic=topic, queue=queue, queue_offset=at, **fields)

    def read(self, end: int, first: int = 0, queue: int = 0, reader: str = "r", **fields: Any) -> None:
        self.add(QueueRead, reader=reader, topic=TOPIC, queue=queue, first=first, end=end, **fields)

    def log(self, kind: str, offset: int, **fields: Any) -> None:
        self.add(Logged, kind=kind, offset=offset, **{"group": "g", "topic": TOPIC, "queue": 0, **fields})

    def commit(self, offset: int, *shown: tuple[int, int], tx: str = "T", by: str = "application") -> None:
        """``shown``: (queue offset, log offset of the half)."""
        self.log("commit", offset, tx=tx, decided_by=by, shown=tuple((TOPIC, 0, at, half) for at, half in shown))

    def restart(self) -> None:
        self.add(Fault, what="kill", whom="broker")
        self.add(Started, whom="broker", epoch=2)

    def settled(self, *unresolved: str, **fields: Any) -> None:
        self.add(Settled, unresolved_groups=unresolved, **fields)

    def report(self) -> Report:
        return check_events(self.events)

    def found(self) -> dict[str, int]:
        """Violations by kind, and no others."""
        return {kind: count for kind, count in self.report().counts.items() if count}

    def sentence(self) -> str:
        """The sentence of the only violation."""
        (violation,) = self.report().violations
        return violation.sentence
