"""The offset that may be committed for one queue: that of the first unacknowledged message.

Messages are acknowledged in any order; committing past an unacknowledged one would lose it in a restart.
"""


class OffsetTracker:
    """Unacknowledged offsets of one queue, in delivery order."""

    def __init__(self, start: int) -> None:
        #: The offset of the next pull.
        self.next_offset = start
        #: Ascending; every key is below ``next_offset`` once its pull response is processed.
        self._open: dict[int, None] = {}

    def __len__(self) -> int:
        """The number of unacknowledged messages, buffered ones included."""
        return len(self._open)

    def delivered(self, offset: int) -> None:
        """The message at ``offset`` was pulled. Call in ascending order."""
        self._open[offset] = None

    def pulled_up_to(self, next_offset: int) -> None:
        """The pull response ended here; messages removed by the tag filter count as done."""
        self.next_offset = next_offset

    def done(self, offset: int) -> bool:
        """Acknowledge ``offset``. False: it was not open (acknowledged twice, or ``restart`` was called)."""
        return self._open.pop(offset, 0) is None

    @property
    def committable(self) -> int:
        """The offset to commit: the first unacknowledged one, else ``next_offset``."""
        return next(iter(self._open), self.next_offset)

    def restart(self, offset: int) -> None:
        """The broker moved the offset (PULL_OFFSET_MOVED): forget all open offsets and continue at ``offset``."""
        self._open.clear()
        self.next_offset = offset
