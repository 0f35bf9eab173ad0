"""What the relay needs from the database of an outbox: lanes to hold, and the rows in them. ``halfmq.sql`` implements it."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

from halfmq.errors import HalfmqError
from halfmq.relay.publisher import Batch, Published


class LeaseLost(HalfmqError):
    """Another relay has taken the lane over. Nothing was changed: go on with another lane."""

    code = "lease-lost"


class DatabaseAway(HalfmqError):
    """The database did not execute it, or its answer was lost: nothing is known. The lease ends by itself."""

    code = "database-away"
    retriable = True


class Lease(NamedTuple):
    """A lane that a relay holds, and the token that proves it."""

    lane: int
    token: str


class Work(NamedTuple):
    """A recorded batch. ``is_unfinished``: an earlier holder recorded it, and may have published some of it."""

    lease: Lease
    batch: Batch
    is_unfinished: bool


class Figures(NamedTuple):
    """The state of an outbox."""

    #: Rows by the value of ``Delivery``.
    rows: dict[str, int]
    #: Age of the oldest row that is to be published by now, seconds; None: there is none.
    oldest_s: float | None
    #: Rows that a relay is to publish now, or after the pause of a refused one; 0: it has nothing to do.
    wanted: int
    #: The lag: these, and those behind a refused or set aside row with the same order key.
    waiting: int


class OutboxRows(Protocol):
    """The rows of one outbox for one relay. Each call is one transaction. All raise ``DatabaseAway``."""

    #: How long a lane is held without ``renew``, seconds.
    lease_s: float

    @property
    def name(self) -> str:
        """The outbox for messages and logs, without credentials."""
        ...

    async def establish(self) -> None:
        """Make the table of lanes complete. Before all others.

        Raises:
            UsageError: the tables do not exist, or are from an earlier release.
        """
        ...

    async def claim(self) -> Work | None:
        """Hold a lane that has something to do, and record its next batch. None: there is nothing to do."""
        ...

    async def renew(self, lease: Lease) -> None:
        """Hold it for ``lease_s`` more from now on.

        Raises:
            LeaseLost: somebody else holds it.
        """
        ...

    async def finish(self, work: Work, published: Published, *, goes_on: bool) -> Work | None:
        """Write down what is known of a batch, and record the next one of its lane; with ``goes_on`` False, or if there is none, release
        the lane and return None.

        While the target is unavailable the batch stays recorded, and the lane is released.

        Raises:
            LeaseLost: somebody else holds it. Nothing was changed.
        """
        ...

    async def figures(self) -> Figures:
        """The state of the whole outbox."""
        ...

    def listening(self, wake: Callable[[], None]) -> AbstractAsyncContextManager[bool]:
        """Call ``wake`` whenever a transaction with new rows commits, while the block is open. Yields False if this database can not."""
        ...

    async def close(self) -> None:
        """Give up connections and threads of its own."""
        ...
