"""The interface of a relay that the client opens for an outbox. ``halfmq.relay`` implements it; the client knows no database."""

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol


class RelayFigures(Protocol):
    """The state of an outbox."""

    @property
    def rows(self) -> Mapping[str, int]:
        """Rows by state."""
        ...

    @property
    def wanted(self) -> int:
        """Rows that a relay is to publish now, or after the pause of a refused one; 0: it has nothing to do."""
        ...

    @property
    def waiting(self) -> int:
        """The lag: these, and those behind a refused or set aside row with the same order key."""
        ...

    @property
    def oldest_s(self) -> float | None:
        """Age of the oldest row that is to be published by now, seconds; None: there is none."""
        ...


class RunningRelay(Protocol):
    """A relay at work."""

    @property
    def name(self) -> str:
        """Outbox and target, for messages and logs."""
        ...

    @property
    def confirmed(self) -> int:
        """Messages that the target has confirmed since the start."""
        ...

    @property
    def refused(self) -> int:
        """Refusals since the start."""
        ...

    async def figures(self) -> RelayFigures:
        """The state of the whole outbox.

        Raises:
            DatabaseAway: the database does not answer.
        """
        ...


class BoundRelay(RunningRelay, Protocol):
    """A relay to be run once."""

    def running(self) -> AbstractAsyncContextManager[RunningRelay]:
        """Work while the block is open."""
        ...

    async def opened(self) -> None:
        """Return when target and database have answered for the first time."""
        ...

    async def run(self, stop: asyncio.Event) -> None:
        """Work until ``stop`` is set; then finish the batches in flight.

        Raises:
            UsageError, NotAuthorized: target or tables are not as they must be.
        """
        ...
