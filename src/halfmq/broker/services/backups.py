"""Backups in progress: what each keeps of the log, so that retention does not remove what is still to be read.

A backup belongs to a connection and ends with it, by a request, or ``IDLE_S`` after its last read. It keeps the log from the segment of the
last offset that it read, so one that progresses releases segments. Whoever may begin one could otherwise fill the disk: where the disk is
nearly full retention does not ask (``broker.maintenance``), and the next read is refused.
"""

from collections.abc import Callable
from typing import Final

from halfmq.core.decision import Refused, Why

#: Backups at a time: each keeps segments and occupies the maintenance thread with reads.
BACKUPS_MAX: Final = 4
#: Reads at a time of one backup.
READS_MAX: Final = 8
#: How long after its last read a backup keeps segments, s. A client writes and syncs a segment in less.
IDLE_S: Final = 60.0

_NONE: Final = Refused(
    Why.NOT_NOW,
    f"this connection has no backup: it was not begun, or nothing was read for {IDLE_S:.0f} s; run the command again",
)


class Lease:
    """One backup."""

    __slots__ = ("end", "first", "last_read_s", "reads")

    def __init__(self, first: int, end: int, now_s: float) -> None:
        #: Nothing before this log offset is read any more.
        self.first = first
        #: Log offset after the last byte that may be read.
        self.end = end
        self.last_read_s = now_s
        #: In progress.
        self.reads = 0


class Backups:
    """All backups, by number of their connection."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock``: monotonic seconds."""
        self._clock = clock
        self._leases: dict[int, Lease] = {}

    def begin(self, number: int, first: int, end: int) -> Refused | None:
        """Let the connection read the log from ``first`` to ``end``, in place of an earlier backup of it. NOT_NOW: there are too many."""
        self._forget_idle()
        if number not in self._leases and len(self._leases) >= BACKUPS_MAX:
            return Refused(
                Why.NOT_NOW, f"{BACKUPS_MAX} backups are in progress, as many as may be: try again when one has ended"
            )
        self._leases[number] = Lease(first, end, self._clock())
        return None

    def read(self, number: int, offset: int) -> Lease | Refused:
        """The backup of the connection, which reads at ``offset``; the caller calls ``done`` after the read."""
        self._forget_idle()
        lease = self._leases.get(number)
        if lease is None:
            return _NONE
        if lease.reads >= READS_MAX:
            return Refused(Why.NOT_NOW, f"{READS_MAX} reads of this backup are in progress, as many as may be")
        if not lease.first <= offset < lease.end:
            text = f"offset {offset} is not in what this backup may read, {lease.first} to {lease.end}"
            return Refused(Why.INVALID_PARAMETER, text)
        lease.first = offset
        lease.last_read_s = self._clock()
        lease.reads += 1
        return lease

    def done(self, lease: Lease) -> None:
        """A read has ended."""
        lease.reads -= 1
        lease.last_read_s = self._clock()

    def end(self, number: int) -> None:
        """The backup of the connection, if it has one, is over."""
        self._leases.pop(number, None)

    def kept_from(self) -> int | None:
        """The log offset from which a backup still needs the log; None: there is no backup."""
        self._forget_idle()
        return min([lease.first for lease in self._leases.values()], default=None)

    def _forget_idle(self) -> None:
        idle_since_s = self._clock() - IDLE_S
        for number in [
            number for number, one in self._leases.items() if not one.reads and one.last_read_s < idle_since_s
        ]:
            del self._leases[number]
