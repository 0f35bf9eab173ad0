"""The recorded history of one seed, its trace hash, and its story.

The events are those of ``halfmq.testing.history``. The hash covers every line of the trace: each event, and all bytes that a
client received, with their time. Two runs with the same hash did the same.
"""

import hashlib
from array import array
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from halfmq.testing.history.events import AnyEvent, Event
from tests.support.virtual_loop import Scheduler


class Chronicle:
    """``note`` records an event, then calls ``listeners`` with it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.events: list[AnyEvent] = []
        self.listeners: list[Callable[[AnyEvent], None]] = []
        #: Counts of events by kind, faults, and checks of promises.
        self.counts: Counter[str] = Counter()
        self._scheduler = scheduler
        self._pieces = array("q")

    @property
    def now_us(self) -> int:
        return self._scheduler.now_us

    def note(self, event: AnyEvent) -> None:
        self.events.append(event)
        for listener in self.listeners:
            listener(event)

    def piece(self, connection: int, length: int) -> None:
        """A client received ``length`` bytes."""
        self._pieces.append(self._scheduler.now_us)
        self._pieces.append(connection << 32 | length)

    def trace_hash(self) -> str:
        found = hashlib.sha256(msgspec.json.encode(self.events))
        found.update(self._pieces.tobytes())
        return found.hexdigest()

    def about(self, tx: str, last: int = 60) -> list[str]:
        """The last events of one transaction, and the faults among them, as lines."""
        found = [event for event in self.events if tx and (getattr(event, "tx", None) == tx or tx in _text(event))]
        first_us = found[0].t_us if found else 0
        told = {id(event) for event in found}
        lines = [
            line(event)
            for event in self.events
            if id(event) in told or (event.t_us >= first_us and type(event).__struct_config__.tag in _ALWAYS)
        ]
        return lines[-last:]


_ALWAYS = frozenset({"fault", "started", "settled"})


def _text(event: Event) -> str:
    return str(getattr(event, "message", "")) + str(getattr(event, "detail", ""))


def line(event: Any) -> str:
    fields = {
        name: getattr(event, name)
        for name in event.__struct_fields__
        if name not in ("t_us", "by") and getattr(event, name) not in ("", -1, (), None)
    }
    text = " ".join(f"{name}={value}" for name, value in fields.items())
    return f"{event.t_us / 1e6:10.6f} {event.by:<12} {event.__struct_config__.tag:<10} {text}"
