"""Group commit: one sync covers every batch that was written before it began.

The writer asks for a position after each batch; one long-lived thread takes the newest position asked for and syncs.
While it waits for the disk, more batches are written, and the next sync covers them all. A thread of its own with a
``SimpleQueue`` costs half of what a thread pool does per hop.

``Syncer`` is the port: a simulation drives syncs by hand (``HandFlush``) and so decides when the disk is slow.
"""

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Protocol

#: Makes the log durable up to a position, and tells whoever waits. Must not raise: it reports failures itself.
Job = Callable[[int], None]


class Syncer(Protocol):
    def request(self, position: int) -> None:
        """Call the job with this position, or a later one, soon. Returns at once."""
        ...

    def close(self) -> None:
        """Finish what was asked for, then stop."""
        ...


class GroupFlush:
    """The real one. ``start`` before the first request; the job runs on its thread."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._asked: SimpleQueue[int | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="halfmq-sync", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def request(self, position: int) -> None:
        self._asked.put(position)

    def close(self) -> None:
        self._asked.put(None)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        stopping = False
        while not stopping:
            position = self._asked.get()
            if position is None:
                return
            try:
                while True:
                    newer = self._asked.get_nowait()
                    if newer is None:
                        stopping = True
                        break
                    position = newer
            except Empty:
                pass  # ``position`` is the newest that was asked for
            self._job(position)


class HandFlush:
    """Syncs when it is told to: for simulations and tests, on the caller's thread."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.asked: int | None = None

    def request(self, position: int) -> None:
        self.asked = position

    def run(self) -> bool:
        """Sync what was asked for; False when nothing was."""
        position, self.asked = self.asked, None
        if position is None:
            return False
        self._job(position)
        return True

    def close(self) -> None:
        self.run()
