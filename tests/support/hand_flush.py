"""Syncs that a test or a simulation runs itself, and so decides when the disk is slow."""

from halfmq.store.group_flush import Job


class HandFlush:
    """A ``Syncer`` that syncs when it is told to, on the caller's thread."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.asked: int | None = None

    def request(self, position: int) -> None:
        self.asked = position

    def run(self) -> bool:
        """Execute the pending request; False if there is none."""
        position, self.asked = self.asked, None
        if position is None:
            return False
        self._job(position)
        return True

    def close(self) -> None:
        self.run()
