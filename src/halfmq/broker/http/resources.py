"""Resources of the HTTP front door: the broker's health, and what is translated to and from ``broker.services``."""

import asyncio
from typing import Final

from halfmq.broker.http.connection import Answer
from halfmq.broker.http.door import HttpFrontDoor, Route
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.access import Access, InField, OnBroker
from halfmq.broker.services.comparisons import Comparisons
from halfmq.broker.services.transactions import Listing, Transactions
from halfmq.core.decision import Done
from halfmq.model.steps import Steps
from halfmq.model.text_fields import Fields, PageFields
from halfmq.model.users import Right, Scope

_DONE: Final = Done()


class Health:
    """Whether the broker serves, and why not."""

    def __init__(self, sequencer: Sequencer) -> None:
        self._sequencer = sequencer
        #: Set when the broker begins to stop.
        self.draining = False

    def why_not(self) -> str:
        """Why requests are refused or not answered; empty if they are served. It contains nothing that a crash could revert."""
        return next(iter(self.reasons()), "")

    def failure(self) -> str:
        """Why the broker has to stop; empty if it does not."""
        return f"failed: {self._sequencer.failed}" if self._sequencer.failed is not None else ""

    def reasons(self) -> list[str]:
        """All reasons of ``why_not``, the most important one first."""
        waits = self._sequencer.waits_for_space
        is_full = self._sequencer.view.session.disk_full
        return [
            *([self.failure()] if self.failure() else ()),
            *(["draining: this broker is stopping"] if self.draining else ()),
            *(["disk full: replies are withheld"] if waits else ()),
            *(["disk full: new messages are refused, verdicts are not"] if is_full and not waits else ()),
        ]


class _GroupPageFields(PageFields, gc=False):
    group: str = ""


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
            # A probe has no user.
            "/health": Route(Access(), Fields, self.health),
            "/healthz": Route(Access(), Fields, self.healthz),
            "/readyz": Route(Access(), Fields, self.readyz),
            "/transactions/undecided": Route(
                Access((InField(Right.DESCRIBE, Scope.GROUP, "group"),)), _GroupPageFields, self.undecided
            ),
            "/transactions/damaged": Route(Access((OnBroker(Right.DESCRIBE),)), PageFields, self.damaged),
        }

    def health(self, parameters: Fields, answer: Answer) -> None:
        """``GET /health``: 200 while the broker serves, 503 otherwise, with the reason."""
        reason = self._health.why_not()
        answer(503, {"serving": False, "reason": reason}) if reason else answer(
            200, {"serving": True, "damaged": self._comparisons.findings}
        )

    def healthz(self, parameters: Fields, answer: Answer) -> None:
        """``GET /healthz``: 503 if only a restart helps. A full disk or a drain is none of that: restarting would make it worse."""
        reason = self._health.failure()
        answer(503, {"alive": False, "reason": reason}) if reason else answer(200, {"alive": True})

    def readyz(self, parameters: Fields, answer: Answer) -> None:
        """``GET /readyz``: 503 while new messages should not be sent here, with every reason. The store is open when the port is."""
        reasons = self._health.reasons()
        answer(503 if reasons else 200, {"ready": not reasons, "reasons": reasons})

    def undecided(self, parameters: _GroupPageFields, answer: Answer) -> None:
        """Responds when a crash can no longer revert anything on the page (promise 5)."""
        self._list(self._transactions.undecided(parameters.group, parameters.rows, parameters.start), answer)

    def damaged(self, parameters: PageFields, answer: Answer) -> None:
        """Findings: verdicts that contradict what an application's database did."""
        found, waiting = self._comparisons.damaged(parameters.rows, parameters.start)
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
