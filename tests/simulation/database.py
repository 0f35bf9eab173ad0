"""An application's database: markers with a unique key, transactions, locks, and all that goes wrong with them.

Every request travels, is done, and its answer travels back; the client may die, or the database crash, between any two of
these. COMMIT may have happened although its answer is lost. A transaction whose client died is rolled back, and its lock
freed, only when the database notices. The database is the oracle: what stands in ``rows`` is what happened.
"""

import asyncio
import random
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, TypeVar

from halfmq.client.outcome import Outcome
from tests.support.virtual_loop import ProcessLoop, Scheduler

T = TypeVar("T")
#: Of a marker that may be pruned; no local transaction here takes as long.
_PRUNE_AGE_US: Final = 1_000_000


class DatabaseError(Exception):
    """The database refused, or the connection to it was lost."""


class Duplicate(DatabaseError):
    """The unique key: somebody else wrote the marker first."""


class LockTimeout(DatabaseError):
    """Another transaction holds the row."""


class Lost(DatabaseError):
    """The connection was lost while the answer was awaited: it may have happened."""


class Database:
    """Of one service (producer group)."""

    def __init__(self, name: str, scheduler: Scheduler, mean_us: int, seed: object) -> None:
        self.name = name
        #: Transaction id -> "C" or "R", committed. The oracle.
        self.rows: dict[str, str] = {}
        #: When each committed "C", virtual us, while it is a row; and what it was, once it is pruned.
        self._written_us: dict[str, int] = {}
        self._pruned: dict[str, str] = {}
        self.up = True
        self.crashes = 0
        self.slow = 1
        #: Share of the answers that are lost, although it was done.
        self.answers_lost = 0.02
        self._scheduler = scheduler
        self._mean_us = mean_us
        self._rng = random.Random(f"{seed}/database/{name}")
        #: Marker rows of open transactions, by transaction id.
        self._open: dict[str, DatabaseSession] = {}

    # --- what happens to it ------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """Open transactions are gone, committed ones stay."""
        self.up = False
        self.crashes += 1
        self._open.clear()

    def back(self) -> None:
        self.up = True

    def client_died(self, process: ProcessLoop) -> None:
        """It notices some time later."""
        for tx_id, session in list(self._open.items()):
            if session.process is process:
                self._scheduler.call_later(self._rng.choice((100, 100_000, 2_000_000)), self._forget, tx_id, session)

    def _forget(self, tx_id: str, session: "DatabaseSession") -> None:
        if self._open.get(tx_id) is session:
            del self._open[tx_id]

    # --- markers of long ago ------------------------------------------------------------------------------------------

    def old(self) -> list[str]:
        """What was committed so long ago that no local transaction of it can still run."""
        until_us = self._scheduler.now_us - _PRUNE_AGE_US
        return [tx_id for tx_id, written_us in self._written_us.items() if written_us < until_us]

    def forget(self, ids: Iterable[str], keep: Collection[str]) -> None:
        for tx_id in ids:
            if tx_id not in keep and self._written_us.pop(tx_id, None) is not None:
                self._pruned[tx_id] = self.rows.pop(tx_id)

    def said(self, tx_id: str) -> str | None:
        """What its row was before anything was pruned."""
        return self._pruned.get(tx_id) or self.rows.get(tx_id)

    # --- requests ----------------------------------------------------------------------------------------------------

    async def ask(self, process: ProcessLoop, work: Callable[[], T]) -> T:
        """``work`` done in the database, a while from now; its result, a while later.

        Raises:
            DatabaseError: what ``work`` raised. Lost: nobody knows.
        """
        answer: asyncio.Future[T] = process.create_future()
        self._scheduler.call_later(self._trip_us(), self._arrived, process, work, answer)
        return await answer

    def _trip_us(self) -> int:
        return int(self._mean_us * self.slow * self._rng.random() * 2)

    def _arrived(self, process: ProcessLoop, work: Callable[[], Any], answer: "asyncio.Future[Any]") -> None:
        value: Any = None
        error: DatabaseError | None = None
        if not self.up:
            error = Lost("the database is down")
        else:
            try:
                value = work()
            except DatabaseError as raised:
                error = raised
            if self._rng.random() < self.answers_lost:
                error = Lost("the connection was lost while the answer was on its way")
        self._scheduler.call_later(self._trip_us(), self._answered, process, value, error, self.crashes, answer)

    def _answered(
        self, process: ProcessLoop, value: Any, error: DatabaseError | None, crashes: int, answer: "asyncio.Future[Any]"
    ) -> None:
        if crashes != self.crashes:
            error = Lost("the database crashed")
        process.call_soon(self._deliver, answer, value, error)

    @staticmethod
    def _deliver(answer: "asyncio.Future[Any]", value: Any, error: DatabaseError | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(value)

    # --- the fence ---------------------------------------------------------------------------------------------------

    def decide(self, tx_id: str, *, may_fence: bool) -> Outcome:
        """What the check does: look, and where there is nothing, rule it out by the same key."""
        row = self.rows.get(tx_id)
        if row is not None:
            return Outcome.COMMIT if row == "C" else Outcome.ROLLBACK
        if tx_id in self._open or not may_fence:
            return Outcome.UNKNOWN
        self.rows[tx_id] = "R"
        return Outcome.ROLLBACK


class DatabaseSession:
    """One connection of the application, for one transaction at a time."""

    def __init__(self, database: Database, process: ProcessLoop) -> None:
        self.database = database
        self.process = process
        self._tx_id: str | None = None

    def insert_marker(self, tx_id: str) -> None:
        """In the database. Opens the transaction.

        Raises:
            Duplicate: the check ruled this transaction out. LockTimeout: should not be.
        """
        database = self.database
        if tx_id in database.rows:
            raise Duplicate(f"marker {tx_id} is there")
        if tx_id in database._open:
            raise LockTimeout(tx_id)
        database._open[tx_id] = self
        self._tx_id = tx_id
        if not self.process.alive:  # it died while this was on its way
            database.client_died(self.process)

    def commit(self) -> None:
        """In the database.

        Raises:
            Duplicate: rolled back for certain. Lost: the transaction was gone.
        """
        database, tx_id = self.database, self._tx_id
        self._tx_id = None
        if tx_id is None or database._open.pop(tx_id, None) is not self:
            raise Lost(
                "the transaction is gone"
            )  # the database crashed meanwhile: it says so, and a driver cannot tell
        if database._rng.random() < 0.08:
            raise Duplicate("a deferred constraint failed at COMMIT")
        database.rows[tx_id] = "C"
        database._written_us[tx_id] = database._scheduler.now_us

    def rollback(self) -> None:
        tx_id = self._tx_id
        self._tx_id = None
        if tx_id is not None and self.database._open.get(tx_id) is self:
            del self.database._open[tx_id]
