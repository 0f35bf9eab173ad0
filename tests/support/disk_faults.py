"""Which operation of a faulty disk fails, and how: as ordered, or at random. Every fault is counted.

Names in the counter, as coverage tables use them:

    write EIO, sync ENOSPC, create EMFILE, ...    an operation raised that error
    short write                                   a write raised after some of its bytes were written
    misdirected write                             a write went to another place of its file
    disk full, space again                        the limit of ``fill`` was reached; ``heal`` or ``fill`` gave more space later
    failed sync lost, failed sync kept            what happened to data that a failed sync should have written
    cache dropped                                 after such a loss, a reader saw the disk's content again
    power loss, kill                              ``crash`` with and without the page cache
    torn write, cut operation                     the power failed, or the process died, during an operation
    lost sectors, lost names                      a power loss lost some of what was not synced
    bit flip
"""

import errno
import random
from collections import Counter
from pathlib import Path
from typing import NamedTuple

#: ``fail("write", MISDIRECTED)``: no error is raised, and the bytes go to another place.
MISDIRECTED = -1


class Fails(NamedTuple):
    """How one operation fails. ``short``: the write first writes some of its bytes."""

    code: int
    short: bool = False


class _Chance(NamedTuple):
    operation: str
    path_ends: str
    fails: Fails
    share: float


class FaultOrders:
    """Consulted before each operation. It has its own rng, so that enabling faults changes no other random choice."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"{seed}/disk faults")
        self.counts: Counter[str] = Counter()
        #: Whether any fault is possible; read on each operation.
        self.any = False
        self._next: list[tuple[str, str, Fails]] = []
        self._chances: list[_Chance] = []

    def order(self, operation: str, path_ends: str, fails: Fails, times: int) -> None:
        self._next += [(operation, path_ends, fails)] * times
        self.any = True

    def order_by_chance(self, operation: str, path_ends: str, fails: Fails, share: float) -> None:
        self._chances.append(_Chance(operation, path_ends, fails, share))
        self.any = True

    def clear_next(self) -> None:
        """A crash: orders for the process that ended do not affect the next one. Probabilities remain."""
        self._next.clear()
        self.any = bool(self._chances)

    def clear(self) -> None:
        self._next.clear()
        self._chances.clear()
        self.any = False

    def take(self, operation: str, path: Path) -> Fails | None:
        """How this operation fails; None: it does not."""
        text = str(path)
        for place, (wanted, path_ends, fails) in enumerate(self._next):
            if wanted == operation and text.endswith(path_ends):
                del self._next[place]
                return fails
        for chance in self._chances:
            if chance.operation == operation and text.endswith(chance.path_ends) and self.rng.random() < chance.share:
                return chance.fails
        return None

    def count_error(self, operation: str, code: int) -> None:
        self.counts[f"{operation} {errno.errorcode.get(code, code)}"] += 1
