"""``GET /metrics``: the text that Prometheus reads. A scrape is read in turns with requests; those that come meanwhile get the same answer,
so that any number of them costs the memory and the time of one.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from halfmq.broker.http.connection import Answer, Text
from halfmq.broker.http.door import HttpFrontDoor, Route
from halfmq.broker.metrics.exposition import CONTENT_TYPE
from halfmq.broker.metrics.scrape import Scrape
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.access import Access, OnBroker
from halfmq.core.decision import Done
from halfmq.model.steps import Steps
from halfmq.model.text_fields import Fields
from halfmq.model.users import Right

log = logging.getLogger("halfmq.http")

#: Time that a scrape uses in one round of the loop, s.
TURN_S: Final = 0.002
#: How long series of stored state are withheld until they are durable, s; then the others are sent without them. Prometheus waits ten.
DURABLE_S: Final = 2.0
_DONE: Final = Done()

#: Each keeps an HTTP connection meanwhile, and probes need some.
_WAITING_MAX: Final = 8


class MetricsResource:
    """Answers scrapes."""

    def __init__(self, door: HttpFrontDoor, scrape: Scrape, sequencer: Sequencer, clock: Callable[[], float]) -> None:
        """``clock``: as ``Clock.elapsed_s``."""
        self._scrape = scrape
        self._sequencer = sequencer
        self._clock = clock
        #: Those who wait for the scrape that is being made.
        self._waiting: list[Answer] = []
        door.resources["/metrics"] = Route(Access((OnBroker(Right.DESCRIBE),)), Fields, self.get)

    def get(self, parameters: Fields, answer: Answer) -> None:
        """Answer with the series of now."""
        if len(self._waiting) >= _WAITING_MAX:
            answer(503, {"error": f"{_WAITING_MAX} scrapes wait for their series already"})
            return
        self._waiting.append(answer)
        if len(self._waiting) > 1:
            return
        if self._sequencer.failed is None:
            self._run(self._scrape.of_state(), self._withhold)
        else:  # nothing becomes durable any more
            self._without_state()

    def _run(self, steps: Steps[bytes], done: Callable[[bytes], None]) -> None:
        """Do a part of the work in this round of the loop."""
        until_s = self._clock() + TURN_S
        try:
            while self._clock() < until_s:
                next(steps)
        except StopIteration as end:
            done(end.value)
        except Exception:
            log.exception("a scrape failed")
            self._tell(500, {"error": "internal error"})
        else:
            asyncio.get_running_loop().call_soon(self._run, steps, done)

    def _withhold(self, of_state: bytes) -> None:
        """Until what it shows is durable, but not for long: a disk that stalls must not hide that it does."""
        is_over = False

        def over(state_shown: bool) -> None:
            nonlocal is_over
            if is_over:
                return
            is_over = True
            timer.cancel()
            if state_shown:
                self._run(self._scrape.of_broker(state_shown=True), lambda text: self._send(of_state + text))
            else:
                self._without_state()

        timer = asyncio.get_running_loop().call_later(DURABLE_S, over, False)
        self._sequencer.after_durable(lambda _, __: over(True), None, _DONE)

    def _without_state(self) -> None:
        self._run(self._scrape.of_broker(state_shown=False), self._send)

    def _send(self, text: bytes) -> None:
        self._tell(200, Text(CONTENT_TYPE, text))

    def _tell(self, status: int, told: object) -> None:
        waiting, self._waiting = self._waiting, []
        for answer in waiting:
            answer(status, told)
