"""Resources of the HTTP front door, translated to and from ``broker.services``."""

import asyncio
from typing import Final

from halfmq.broker.http.connection import Answer
from halfmq.broker.http.door import HttpFrontDoor
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.comparisons import Comparisons
from halfmq.broker.services.health import Health
from halfmq.broker.services.pages import requested_page
from halfmq.broker.services.transactions import Listing, Transactions
from halfmq.core.decision import Done, Refused
from halfmq.model.steps import Steps

_DONE: Final = Done()


class Resources:
    """The resources of the HTTP port: health, and undecided transactions."""

    def __init__(
        self,
        door: HttpFrontDoor,
        sequencer: Sequencer,
        transactions: Transactions,
        comparisons: Comparisons,
        health: Health,
    ) -> None:
        self._comparisons = comparisons
        self._sequencer = sequencer
        self._transactions = transactions
        self._health = health
        door.resources |= {
            "/health": (frozenset(), self.health),
            "/transactions/undecided": (frozenset({"group", "max", "from"}), self.undecided),
            "/transactions/damaged": (frozenset({"max", "from"}), self.damaged),
        }

    def health(self, parameters: dict[str, str], answer: Answer) -> None:
        """``GET /health``: 200 while the broker serves, 503 otherwise, with the reason."""
        reason = self._health.why_not()
        answer(503, {"serving": False, "reason": reason}) if reason else answer(
            200, {"serving": True, "damaged": self._comparisons.findings}
        )

    def undecided(self, parameters: dict[str, str], answer: Answer) -> None:
        """Responds when a crash can no longer revert anything on the page (promise 5)."""
        asked = requested_page(parameters.get("max"), parameters.get("from"))
        if isinstance(asked, Refused):
            answer(400, {"error": asked.text})
            return
        self._list(self._transactions.undecided(parameters.get("group", ""), *asked), answer)

    def damaged(self, parameters: dict[str, str], answer: Answer) -> None:
        """Findings: verdicts that contradict what an application's database did."""
        asked = requested_page(parameters.get("max"), parameters.get("from"))
        if isinstance(asked, Refused):
            answer(400, {"error": asked.text})
            return
        found, waiting = self._comparisons.damaged(*asked)
        page = {"total": found.total, "waiting": waiting, "next": found.following, "transactions": found.rows}
        self._sequencer.after_durable(lambda _, __: answer(200, page), None, _DONE)

    def _list(self, steps: Steps[Listing], answer: Answer) -> None:
        """Read the page in turns with other requests; a connection has one request at a time, which bounds their number."""
        try:
            next(steps)
        except StopIteration as end:
            self._tell(end.value, answer)
        else:
            asyncio.get_running_loop().call_soon(self._list, steps, answer)

    def _tell(self, listed: Listing, answer: Answer) -> None:
        page = {"total": listed.total, "at_ms": listed.at_ms, "next": listed.following, "transactions": listed.rows}
        self._sequencer.after_durable(lambda _, __: answer(200, page), None, _DONE)
