"""What this process knows of its own transactions, so that a check of one of them needs no listener."""

from typing import Final

from halfmq.client.outcome import Outcome

#: How long after a one-way END a check of the same transaction is answered UNKNOWN, seconds. Apache RocketMQ 5.1 and
#: later keep the mark of a settled half in memory for up to 3 s and may check it meanwhile; a second COMMIT would make
#: a second message. If the END was really lost, the next check is answered.
END_SINKS_IN_S: Final = 10.0
#: Verdicts that checks are answered from. Apache RocketMQ may ask long after it was told.
_VERDICTS_KEPT: Final = 10_000


class Verdicts:
    """What this process knows of its own transactions: decided, or still open in a block here.

    A check that finds its transaction here is answered without asking a listener.
    """

    def __init__(self) -> None:
        self._known: dict[str, Outcome] = {}
        #: By id: until when (loop's clock) a one-way END may still be sinking in. Keys are also in ``_known``.
        self._told: dict[str, float] = {}

    def get(self, tx_id: str, now: float) -> Outcome | None:
        """What to answer; None: ask the listener. ``now`` on the loop's clock."""
        if self._told.get(tx_id, now) > now:
            return Outcome.UNKNOWN
        return self._known.get(tx_id)

    def opened(self, tx_id: str) -> None:
        """A block of this process is deciding it just now: checks get UNKNOWN."""
        self._known[tx_id] = Outcome.UNKNOWN

    def left_open(self, tx_id: str) -> None:
        """The block ended without a verdict: from now on the listener is asked."""
        if self._known.get(tx_id) is Outcome.UNKNOWN:
            del self._known[tx_id]

    def decided(self, tx_id: str, outcome: Outcome) -> None:
        self._known.pop(tx_id, None)
        self._told.pop(tx_id, None)
        self._known[tx_id] = outcome
        if len(self._known) > _VERDICTS_KEPT:
            oldest = next(iter(self._known))
            forgotten = self._known.pop(oldest)
            self._told.pop(oldest, None)
            if forgotten is Outcome.UNKNOWN:
                self._known[oldest] = forgotten  # its block is still open; to the end of the line

    def told(self, tx_id: str, now: float) -> None:
        """The verdict went out one-way: do not repeat it while it may be on its way."""
        self._told[tx_id] = now + END_SINKS_IN_S

    def settled(self, tx_id: str) -> None:
        """The broker has said that the verdict is safe: nobody will ask."""
        self._known.pop(tx_id, None)
        self._told.pop(tx_id, None)
