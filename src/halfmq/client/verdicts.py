"""Outcomes that this process knows for its own transactions, so that their checks need no check function.

Apache RocketMQ checks a *copy* of the half, which stays undecided even if the half itself was settled meanwhile; from 5.1 on
it also buffers the mark of a settled half in memory for up to 3 s. Answering such a check with COMMIT would make a second
message. So acknowledged commits are remembered together with their connection. A later check of the message on the same
connection is an echo, and ROLLBACK discards the copy. After a reconnect the broker may have lost what it acknowledged, so the
answer is COMMIT again: at least once.
"""

from collections.abc import Hashable
from typing import Final

from halfmq.client.outcome import Outcome

#: Remembered outcomes and acknowledged messages. Apache RocketMQ may check long after it received the verdict.
_KEPT: Final = 10_000


class Verdicts:
    """Outcomes by transaction id, of transactions that are decided or still open in a block of this process."""

    def __init__(self) -> None:
        self._known: dict[str, Outcome] = {}
        #: The connection on which a broker acknowledged COMMIT, by message id.
        self._committed: dict[str, Hashable] = {}

    def get(self, tx_id: str) -> Outcome | None:
        """The answer to a check; None: call the check function."""
        return self._known.get(tx_id)

    def opened(self, tx_id: str) -> None:
        """A block is open, or its verdict is in flight: answer checks with UNKNOWN."""
        self._known[tx_id] = Outcome.UNKNOWN

    def left_open(self, tx_id: str) -> None:
        """The block ended without a verdict: from now on checks call the check function."""
        if self._known.get(tx_id) is Outcome.UNKNOWN:
            del self._known[tx_id]

    def decided(self, tx_id: str, outcome: Outcome) -> None:
        """The outcome is final, whether the broker received it or not."""
        self._known.pop(tx_id, None)
        self._known[tx_id] = outcome
        if len(self._known) > _KEPT:
            oldest = next(iter(self._known))
            forgotten = self._known.pop(oldest)
            if forgotten is Outcome.UNKNOWN:
                self._known[oldest] = forgotten  # its block is still open: keep it

    def settled(self, tx_id: str) -> None:
        """A halfmq broker acknowledged the verdict as durable: there will be no more checks."""
        self._known.pop(tx_id, None)

    def committed(self, message_id: str, connection: Hashable) -> None:
        """An Apache RocketMQ broker acknowledged COMMIT of this message on ``connection``."""
        self._committed.pop(message_id, None)
        self._committed[message_id] = connection
        if len(self._committed) > _KEPT:
            del self._committed[next(iter(self._committed))]

    def is_echo(self, message_id: str, connection: Hashable) -> bool:
        """Whether a check on ``connection`` for this message concerns a copy of an already committed half."""
        return self._committed.get(message_id) is connection
