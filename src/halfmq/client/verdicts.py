"""What this process knows of its own transactions, so that a check of one of them needs no listener.

Apache RocketMQ checks a *copy* of the half, which stays undecided although the half itself was settled meanwhile; from
5.1 on it also keeps the mark of a settled half in memory for up to 3 s. Whoever answers such a check with COMMIT makes a
second message. So what a broker has acknowledged is remembered with its connection, and a check of it that comes on the
same connection is an echo: ROLLBACK throws the copy away. After a reconnect the broker may have lost what it
acknowledged, and the answer is COMMIT again: at least once.
"""

from collections.abc import Hashable
from typing import Final

from halfmq.client.outcome import Outcome

#: Verdicts, and acknowledged messages, that are remembered. Apache RocketMQ may ask long after it was told.
_KEPT: Final = 10_000


class Verdicts:
    """Decided, or still open in a block here. A check that finds its transaction here asks no listener."""

    def __init__(self) -> None:
        self._known: dict[str, Outcome] = {}
        #: The connection on which a broker acknowledged COMMIT, by message id.
        self._committed: dict[str, Hashable] = {}

    def get(self, tx_id: str) -> Outcome | None:
        """What to answer; None: ask the listener."""
        return self._known.get(tx_id)

    def opened(self, tx_id: str) -> None:
        """A block of this process is deciding it just now, or its verdict is on its way: checks get UNKNOWN."""
        self._known[tx_id] = Outcome.UNKNOWN

    def left_open(self, tx_id: str) -> None:
        """The block ended without a verdict: from now on the listener is asked."""
        if self._known.get(tx_id) is Outcome.UNKNOWN:
            del self._known[tx_id]

    def decided(self, tx_id: str, outcome: Outcome) -> None:
        """This is the verdict, whether the broker heard it or not."""
        self._known.pop(tx_id, None)
        self._known[tx_id] = outcome
        if len(self._known) > _KEPT:
            oldest = next(iter(self._known))
            forgotten = self._known.pop(oldest)
            if forgotten is Outcome.UNKNOWN:
                self._known[oldest] = forgotten  # its block is still open; to the end of the line

    def settled(self, tx_id: str) -> None:
        """A halfmq broker has said that the verdict is safe: nobody will ask."""
        self._known.pop(tx_id, None)

    def committed(self, message_id: str, connection: Hashable) -> None:
        """An Apache RocketMQ broker acknowledged COMMIT of this message on ``connection``."""
        self._committed.pop(message_id, None)
        self._committed[message_id] = connection
        if len(self._committed) > _KEPT:
            del self._committed[next(iter(self._committed))]

    def is_echo(self, message_id: str, connection: Hashable) -> bool:
        """A check on ``connection`` for this message is about a copy of what was committed already."""
        return self._committed.get(message_id) is connection
