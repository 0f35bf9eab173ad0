"""Somebody else's coordinator: a program outside of halfmq that decides transactions, and uses a producer group as one participant of
several.

At most one process acts for a coordinator at a time. Each one takes an *epoch*, a number that is higher than all before it, and states it
with what it prepares and settles; the broker refuses a lower one. So a process that was paused for an hour cannot overrule the one that
took over.
"""

import re
from typing import Final

import msgspec

from halfmq import limits

_NAME: Final = re.compile(rf"[A-Za-z0-9._:-]{{1,{limits.COORDINATOR_NAME_CHARS_MAX}}}")
#: More digits than the broker gives.
_EPOCH_DIGITS_MAX: Final = 18


class Coordinator(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A coordinator at one of its epochs. Stored with an undecided transaction: the epoch in which it was prepared."""

    name: str
    epoch: int

    @property
    def text(self) -> str:
        """As it is in a property and in a request; ``parse_coordinator`` reads it."""
        return f"{self.epoch} {self.name}"


def is_coordinator_name(text: str) -> bool:
    """1 to 64 of letters, digits and ``._:-``."""
    return _NAME.fullmatch(text) is not None


def parse_coordinator(text: str) -> Coordinator | None:
    """Inverse of ``Coordinator.text``; None if ``text`` is no such text."""
    epoch, _, name = text.partition(" ")
    if not (epoch.isascii() and epoch.isdigit() and len(epoch) <= _EPOCH_DIGITS_MAX and is_coordinator_name(name)):
        return None
    return Coordinator(name, int(epoch))
