"""Transfers between two banks, with a message beside: the program of docs/coordinator.md, with somebody who may end it at each of its
calls.

A bank is a database of its own with prepared transactions: PostgreSQL's PREPARE TRANSACTION, MariaDB's XA. SQLite has none; there a table
of intentions plays them, and nothing else is different.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.exc import DBAPIError, OperationalError

from halfmq import AsyncClient, Outcome, OutgoingMessage, Prepared, PreparedTransaction, compose
from halfmq.client.coordinator import GRACE_S
from halfmq.client.receipts import COMMITTED, ROLLED_BACK, UNDECIDED
from halfmq.client.transaction import VERDICT_OF
from halfmq.errors import (
    ConnectError,
    CoordinatorSuperseded,
    HalfmqError,
    OutcomeUnknown,
    RequestFailed,
    SendTimeout,
    TransactionRefused,
    TransactionUnknown,
)
from halfmq.testing.history import MemoryRecorder
from halfmq.testing.history.events import Answered, EndAsked, EpochTaken, HalfSent, OutcomeReported
from halfmq.testing.history.recorder import monotonic_us
from tests.support.faults import Faults

_T = TypeVar("_T")

RECOVER, MESSAGES, BRANCH, SETTLE, END = STEPS = (
    "recover", "prepare the messages", "prepare a branch", "settle", "end a branch",
)  # fmt: skip
NAME: Final = "transfers"
#: MariaDB: "unknown XID", also while the connection that prepared it is not closed yet.
_NOTA: Final = 1397
_GONE_S: Final = 10.0


class LostAnswer(Exception):
    """Of a bank."""


class Bank:
    """One database. A branch is named by its transaction and this bank."""

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        #: Calls that prepare a branch, also of a process that is killed meanwhile.
        self.busy = 0
        #: Nobody can read its rows.
        self.is_away = False
        # MariaDB refuses a ROLLBACK on a connection that has prepared a branch.
        self.engine: Engine = create_engine(
            url, pool_reset_on_return=None, isolation_level="AUTOCOMMIT", skip_autocommit_rollback=True
        )
        self.kind = self.engine.dialect.name.replace("mysql", "mariadb")
        with self.engine.connect() as connection:
            self._do(connection, f"CREATE TABLE IF NOT EXISTS {name} (id INTEGER PRIMARY KEY)")
            if self.kind == "sqlite":
                self._do(connection, f"CREATE TABLE IF NOT EXISTS {name}_intentions (gid TEXT PRIMARY KEY, id INTEGER)")

    @staticmethod
    def _do(connection: Connection, *statements: str) -> int:
        return [connection.exec_driver_sql(one).rowcount for one in statements][-1]

    def branch(self, tx_id: str) -> str:
        return f"{tx_id}.{self.name}"

    def prepare(self, tx_id: str, number: int) -> None:
        self.busy += 1
        try:
            self._prepare(tx_id, number)
        finally:
            self.busy -= 1

    def _prepare(self, tx_id: str, number: int) -> None:
        gid, row = self.branch(tx_id), f"INSERT INTO {self.name} VALUES ({number})"
        with self.engine.connect() as connection:
            match self.kind:
                case "postgresql":
                    self._do(connection, "BEGIN", row, f"PREPARE TRANSACTION '{gid}'")
                case "mariadb":
                    self._do(connection, f"XA START '{gid}'", row, f"XA END '{gid}'", f"XA PREPARE '{gid}'")
                    connection.invalidate()  # others end the branch only once its connection is closed
                case _:
                    self._do(connection, f"INSERT INTO {self.name}_intentions VALUES ('{gid}', {number})")

    def end(self, gid: str, *, commit: bool) -> bool:
        """False: there is no such branch any more."""
        deadline = time.monotonic() + _GONE_S
        while True:
            with self.engine.connect() as connection:
                try:
                    return self._ended(connection, gid, "COMMIT" if commit else "ROLLBACK")
                except DBAPIError as error:
                    if self.kind == "mariadb" and (error.orig is None or error.orig.args[0] != _NOTA):
                        raise
            if gid not in self.listed():
                return False  # somebody else ended it
            assert time.monotonic() < deadline, f"{gid} is held"
            time.sleep(0.005)  # real time: its connection is being closed

    def _ended(self, connection: Connection, gid: str, verb: str) -> bool:
        match self.kind:
            case "postgresql":
                self._do(connection, f"{verb} PREPARED '{gid}'")
            case "mariadb":
                self._do(connection, f"XA {verb} '{gid}'")
            case _:
                intentions = f"{self.name}_intentions WHERE gid = '{gid}'"
                self._do(connection, "BEGIN IMMEDIATE")
                if verb == "COMMIT":
                    self._do(connection, f"INSERT INTO {self.name} SELECT id FROM {intentions}")
                found = self._do(connection, f"DELETE FROM {intentions}")
                self._do(connection, "COMMIT")
                return found == 1
        return True

    def listed(self) -> list[str]:
        """The branches that are prepared here."""
        with self.engine.connect() as connection:
            match self.kind:
                case "postgresql":
                    found = connection.exec_driver_sql(
                        "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
                    )
                    gids = [gid for (gid,) in found]
                case "mariadb":
                    gids = [
                        row[3] if isinstance(row[3], str) else row[3].decode()
                        for row in connection.exec_driver_sql("XA RECOVER")
                    ]
                case _:
                    gids = [gid for (gid,) in connection.exec_driver_sql(f"SELECT gid FROM {self.name}_intentions")]
        return [gid for gid in gids if gid.endswith(f".{self.name}")]

    def rows(self) -> list[int]:
        if self.is_away:
            raise OperationalError("SELECT", {}, Exception("away"))
        with self.engine.connect() as connection:
            return sorted(number for (number,) in connection.exec_driver_sql(f"SELECT id FROM {self.name}"))

    def close(self) -> None:
        self.engine.dispose()


class Teller:
    """One process of the coordinator. ``journal``: the transfers that it has begun, on a disk that survives it."""

    def __init__(
        self, name: str, mq: AsyncClient, banks: Sequence[Bank], topic: str, faults: Faults, journal: dict[str, int]
    ) -> None:
        self.name = name
        self.mq = mq
        self.coordinator = mq.coordinator(NAME)
        self._banks = banks
        self._topic = topic
        self._faults = faults
        self._journal = journal
        #: Of each transfer: until then no check of it is sent.
        self.grace_s = GRACE_S
        #: What it asked of the broker, for the history checker.
        self.history = MemoryRecorder(name)
        #: (transaction, outcome there, bank) of what somebody decided in its place.
        self.findings: list[tuple[str, str, str]] = []
        #: Called with the id of a transaction when its verdict is there, or its last branch is gone.
        self.on_ended: Callable[[str], object] = lambda tx_id: None

    # --- the program -----------------------------------------------------------------------------------------------

    async def recover(self) -> None:
        """What each process does first."""
        for left in await self._at(RECOVER, self._recovered, ConnectError):
            await self._settle(left.tx_id, Outcome.ROLLBACK)
        await self.finish()
        for tx_id in list(self._journal):
            await self._compare(tx_id)

    async def transfer(self, tx_id: str, number: int, *, branches: int = 2, refused: bool = False) -> None:
        """``refused``: it is decided, after so many branches were prepared, that there is none."""
        self._journal[tx_id] = number
        outcome = Outcome.ROLLBACK
        try:
            message = compose(self._topic, str(number))
            await self._at(MESSAGES, lambda: self._prepared(tx_id, message), SendTimeout)
            for bank in self._banks[:branches]:
                await self._at(BRANCH, lambda bank=bank: asyncio.to_thread(bank.prepare, tx_id, number), LostAnswer)
            outcome = Outcome.ROLLBACK if refused else Outcome.COMMIT
        except CoordinatorSuperseded:
            await self.finish()
            raise
        except (HalfmqError, LostAnswer, DBAPIError):
            pass  # it is not prepared everywhere
        try:
            await self._settle(tx_id, outcome)
        except HalfmqError:
            await self.finish()
            raise
        await self.finish()
        await self._compare(tx_id)

    async def _settle(self, tx_id: str, outcome: Outcome) -> None:
        """Until the verdict is known, whichever it is."""

        async def settle() -> None:
            op = self._request(EndAsked, tx_id, verdict=VERDICT_OF[outcome], decided_by="coordinator")
            receipt = await self.coordinator.settle(tx_id, outcome)
            self.history.record(Answered, op=op, outcome="ok", position=receipt.position or -1)
            if not receipt.repeated:
                self.on_ended(tx_id)

        while True:
            try:
                return await self._at(SETTLE, settle, TransactionUnknown)
            except OutcomeUnknown:
                continue
            except TransactionRefused:
                return None  # an operator was faster
            except CoordinatorSuperseded:
                raise
            except RequestFailed:
                assert outcome is Outcome.ROLLBACK, "what was prepared is known"
                return None

    async def finish(self) -> None:
        """End each branch by the verdict. What is undecided belongs to the process that took over."""
        for bank in self._banks:
            for gid in await asyncio.to_thread(bank.listed):
                tx_id = gid.removesuffix(f".{bank.name}")
                standing = await self.coordinator.outcome(tx_id)
                assert standing in (COMMITTED, ROLLED_BACK, UNDECIDED), f"{gid}: {standing}, with a branch"
                if standing != UNDECIDED:
                    await self._end(bank, tx_id, commit=standing == COMMITTED)

    async def _end(self, bank: Bank, tx_id: str, *, commit: bool) -> None:
        async def end() -> None:
            if await asyncio.to_thread(bank.end, bank.branch(tx_id), commit=commit):
                self.on_ended(tx_id)

        while True:
            try:
                return await self._at(END, end, LostAnswer)
            except LostAnswer:
                continue

    async def _compare(self, tx_id: str) -> None:
        """Report a bank whose branch somebody ended the other way, and take the transfer from the journal."""
        standing = await self.coordinator.outcome(tx_id)
        number = self._journal.get(tx_id)
        if standing == UNDECIDED or number is None:
            return
        for bank in self._banks:
            try:
                is_prepared = bank.branch(tx_id) in await asyncio.to_thread(bank.listed)
                is_there = number in await asyncio.to_thread(bank.rows)
            except DBAPIError:
                return  # its bank is away: the next process compares it
            if is_prepared:
                return  # of a process that was overtaken and ends it, or is killed: the next process compares it
            if is_there != (standing == COMMITTED):
                await self._report(tx_id, Outcome.COMMIT if is_there else Outcome.ROLLBACK, bank.name)
        self._journal.pop(tx_id, None)

    async def _report(self, tx_id: str, outcome: Outcome, source: str) -> None:
        op, said = f"{self.name}-{len(self.history.events)}", VERDICT_OF[outcome]
        self.history.record(
            OutcomeReported, op=op, group=self.mq.group, tx=tx_id, outcome=said, source=f"bank {source}"
        )
        assert not await self.mq.report_outcome(tx_id, outcome, source=f"bank {source}"), "it contradicts the verdict"
        verdict = VERDICT_OF[Outcome.ROLLBACK if outcome is Outcome.COMMIT else Outcome.COMMIT]
        self.history.record(Answered, op=op, outcome="ok", verdict=verdict)
        self.findings.append((tx_id, outcome.name, source))

    # --- its calls -------------------------------------------------------------------------------------------------

    async def _recovered(self) -> list[PreparedTransaction]:
        since_us = monotonic_us()
        left = await self.coordinator.recover()
        (epoch,) = self.coordinator.epochs.values()
        self.history.record(EpochTaken, group=self.mq.group, coordinator=NAME, epoch=epoch, since_us=since_us)
        return left

    async def _prepared(self, tx_id: str, message: OutgoingMessage) -> Prepared:
        op = self._request(HalfSent, tx_id, message=f"of {tx_id}", topic=self._topic)
        prepared = await self.coordinator.prepare([message], tx_id=tx_id, branch=tx_id.encode(), grace=self.grace_s)
        self.history.record(Answered, op=op, outcome="ok", offset=prepared.halves[0].log_offset)
        return prepared

    def _request(self, kind: type[HalfSent | EndAsked], tx_id: str, **fields: Any) -> str:
        """Record a request, which gets an answer only if the broker sends one. Returns its operation."""
        (epoch,) = self.coordinator.epochs.values()
        op = f"{self.name}-{len(self.history.events)}"
        self.history.record(kind, op=op, group=self.mq.group, tx=tx_id, coordinator=NAME, epoch=epoch, **fields)
        return op

    async def _at(self, step: str, call: Callable[[], Awaitable[_T]], error: type[Exception]) -> _T:
        def lost() -> Any:
            raise error("the answer was lost")

        return await self._faults.at(step, call, lost)


def bank_urls(kind: str, where: str, name: str, directory: Path) -> list[str]:
    """Of two banks: two files of SQLite, else one server."""
    if kind == "sqlite":
        return [f"sqlite:///{directory}/{one}.db" for one in ("a", "b")]
    url = {
        "postgresql": "postgresql+psycopg://postgres@/{}?host={}",
        "mariadb": "mariadb+pymysql://root@/{}?unix_socket={}",
    }[kind]
    return [url.format(name, where)] * 2
