"""Group commit: one sync covers every batch that was written before it began.

The writer requests a position after each batch. One long-lived thread takes the newest request and syncs. While it waits for the disk,
more batches are written, and the next sync covers them all. A dedicated thread with a ``SimpleQueue`` costs half of what a thread pool
costs per hop.

``Syncer`` is the port: a simulation runs syncs itself, and thus decides when the disk is slow.
"""

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Protocol

#: Makes the log durable up to a position and notifies the waiters. It must not raise: it reports failures itself.
Job = Callable[[int], None]


class Syncer(Protocol):
    """Calls the job for requested positions, one at a time and on any thread; a call may cover several requests."""

    def request(self, position: int, /) -> None:
        """Call the job soon with this position or a later one. Returns at once."""
        ...

    def close(self) -> None:
        """Execute the pending request, then stop."""
        ...


class GroupFlush:
    """The real one. Call ``start`` before the first request; the job runs on its thread."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._asked: SimpleQueue[int | None] = SimpleQueue()
        self.request: Callable[[int], None] = self._asked.put
        self._thread = threading.Thread(target=self._run, name="halfmq-sync", daemon=True)

    def start(self) -> None:
        self._thread.start()

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
                pass  # ``position`` is now the newest request
            self._job(position)
