"""What may be committed for one queue: everything before the first message that is not acknowledged.

Messages are acknowledged in any order; an offset that passed an open one would lose it at a restart.
"""


class OffsetTracker:
    """Open offsets of one queue, in the order of delivery."""

    def __init__(self, start: int) -> None:
        #: Where the next pull starts.
        self.next_offset = start
        #: In ascending order; every key is below ``next_offset`` once its pull answer is taken in.
        self._open: dict[int, None] = {}

    def __len__(self) -> int:
        """Messages that were handed out or wait in the buffer, and are not acknowledged."""
        return len(self._open)

    def delivered(self, offset: int) -> None:
        self._open[offset] = None

    def pulled_up_to(self, next_offset: int) -> None:
        """The pull answer ended here; what the filter left out is passed with it."""
        self.next_offset = next_offset

    def done(self, offset: int) -> bool:
        """Acknowledge. False when it was not open (acknowledged twice, or the queue was started anew)."""
        return self._open.pop(offset, 0) is None

    @property
    def committable(self) -> int:
        """The offset to commit: the first open one, else where the next pull starts."""
        return next(iter(self._open), self.next_offset)

    def restart(self, offset: int) -> None:
        """The broker moved us (PULL_OFFSET_MOVED): forget what is open, go on at ``offset``."""
        self._open.clear()
        self.next_offset = offset
