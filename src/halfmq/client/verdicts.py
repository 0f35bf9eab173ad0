"""What this process knows of its own transactions, so that a check of one of them needs no listener."""

from typing import Final

from halfmq.client.outcome import Outcome

#: Verdicts that checks are answered from. Apache RocketMQ may ask long after it was told.
_VERDICTS_KEPT: Final = 10_000


class Verdicts:
    """What this process knows of its own transactions: decided, or still open in a block here.

    A check that finds its transaction here is answered without asking a listener.
    """

    def __init__(self) -> None:
        self._known: dict[str, Outcome] = {}

    def get(self, tx_id: str) -> Outcome | None:
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
        self._known[tx_id] = outcome
        if len(self._known) > _VERDICTS_KEPT:
            oldest = next(iter(self._known))
            if self._known[oldest] is not Outcome.UNKNOWN:
                del self._known[oldest]

    def settled(self, tx_id: str) -> None:
        """The broker has said that the verdict is safe: nobody will ask."""
        self._known.pop(tx_id, None)
