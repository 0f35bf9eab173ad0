"""A service that sends with our client: transactions of all kinds, plain messages, and answers to checks."""

import asyncio
import random
from typing import Any, Final

from sqlalchemy import insert
from sqlalchemy.orm import Session
from sqlalchemy.util import await_only

from halfmq.client.listener import TransactionListener
from halfmq.client.message import Message
from halfmq.client.outcome import Outcome
from halfmq.client.receipts import Prepared, TransactionReceipt
from halfmq.client.transaction_block import Transaction
from halfmq.errors import ConnectError, UnsupportedCombination
from halfmq.model.properties import CHECK_IMMUNITY_SECONDS
from tests.simulation.database import Database, DatabaseError, DatabaseSession, Duplicate, orders
from tests.simulation.fence_rules import FENCED_ID
from tests.simulation.machine import ApplicationError, Expected, Machine, SimulatedClient, Surroundings
from tests.simulation.sql_driver import Markers, sessions_of
from tests.simulation.tags import draw_tag
from tests.support.virtual_loop import ProcessLoop

#: How ids begin that the service chooses itself.
OWN_ID: Final = b"order:"


class _Life:
    """One process of the service."""

    def __init__(self, machine: "Producer", process: ProcessLoop) -> None:
        self.machine = machine
        self.process = process
        self.rng = machine.rng
        self.swarm = machine.around.swarm
        self.database = machine.database
        self.serial = 0
        self.client: SimulatedClient = machine.client(process, machine.group, fetches_checks=machine.fetches)
        self.markers = Markers(machine.clock, machine.around.swarm.marker_age_ms)
        self.sessions = sessions_of(machine.database, process)
        self.client.answer_checks(self.markers, self.sessions)
        self.client.add_check("block", self.check)
        self.client.add_check("", self.check)  # for transactions of stock clients in the same group
        self.client.add_listener(OrderListener(self))

    # --- messages ----------------------------------------------------------------------------------------------------

    def message(self) -> tuple[str, bytes, dict[str, Any]]:
        rng = self.rng
        options: dict[str, Any] = {"tag": draw_tag(self.machine.tag_rng)}
        if rng.random() < 0.4:
            options["sharding_key"] = None if self.swarm.narrows else f"k{rng.randrange(3)}"
            options["keys"] = (f"o{rng.randrange(1_000)}",)
        return rng.choice(self.swarm.topics), rng.randbytes(rng.choice(self.swarm.body_bytes)), options

    def in_transaction(self) -> tuple[str, bytes, dict[str, Any]]:
        """Arguments of a message in a transaction; some are delayed beyond the commit."""
        topic, body, options = self.message()
        if self.rng.random() < self.swarm.delayed_halves:
            options["delay"] = self.rng.choice((1, 5, 0.3))
        return topic, body, options

    def immunity(self) -> dict[str, Any]:
        """The grace period of a transaction, for all its messages: the broker's, its own, or an invalid one, which means the broker's."""
        if self.rng.random() < self.swarm.own_immunity:
            self.machine.around.chronicle.counts["knob immunity of its own"] += 1
            return {"properties": {CHECK_IMMUNITY_SECONDS: self.rng.choice(("0", "1", "2", "7", "-1", "soon"))}}
        return {}

    def own_id(self) -> str:
        if self.swarm.fencers and self.rng.random() < 0.6:
            self.serial += 1
            fences, group = self.machine.around.fences, self.machine.group
            late = fences.late(group) if self.rng.random() < 0.4 else ""
            if late:
                return late
            tx_id = f"{FENCED_ID}{self.machine.name}.{self.machine.lives}_{self.serial}"
            fences.announce(tx_id, group)
            return tx_id
        if self.rng.random() < self.swarm.own_ids:
            self.serial += 1
            self.machine.around.chronicle.counts["knob id of its own"] += 1
            return f"{OWN_ID.decode()}{self.machine.name}.{self.machine.lives}_{self.serial}"
        return ""

    async def by_marker(self) -> None:
        async with self.sessions() as session, self.client.transaction(session, markers=self.markers) as tx:
            await session.run_sync(self._order, tx)

    async def by_marker_blocking(self) -> None:
        """The blocking face, in a greenlet, which waits where a thread would."""
        async with self.sessions() as session:
            await session.run_sync(self._blocking)

    def _blocking(self, session: Session) -> None:
        with self.markers.bind(BlockingCalls(self.client), session) as tx:
            self._order(session, tx)

    def _order(self, session: Session, tx: Any) -> None:
        session.execute(insert(orders).values(tx_id=tx.id).inline())
        immunity = self.immunity()
        for _ in range(self.rng.choice((1, 1, 2, 3))):
            topic, body, options = self.in_transaction()
            tx.send(topic, body, **options, **immunity)
        if self.rng.random() < 0.1:
            raise ApplicationError("in the block")

    async def by_block(self) -> None:
        rng = self.rng
        session = DatabaseSession(self.database, self.process)
        async with self.client.begin("block", tx_id=self.own_id()) as tx:
            immunity = self.immunity()
            for _ in range(rng.choice((1, 2, 2, 4))):
                topic, body, options = self.in_transaction()
                tx.send(topic, body, **options, **immunity)
            if rng.random() < 0.05:
                raise ApplicationError("before prepare")
            await tx.prepare()
            if rng.random() < 0.1:
                await tx.rollback()
                return
            await self.local(session, tx.id)
            if rng.random() < self.swarm.silent:
                raise ApplicationError("behind the local transaction")

    async def local(self, session: DatabaseSession, tx_id: str) -> None:
        """The local transaction, including the marker. Of DatabaseError only Duplicate is a certain outcome."""
        try:
            await self.database.ask(self.process, lambda: session.insert_marker(tx_id))
        except DatabaseError:
            session.rollback()  # the driver closes the connection, and the database rolls back
            raise
        await self.database.commit(self.process, session)

    async def by_listener(self) -> None:
        topic, body, options = self.in_transaction()
        options |= self.immunity()
        listener = OrderListener(self)
        await self.client.send_in_transaction(topic, body, listener=listener, tx_id=self.own_id(), **options)

    async def plain(self) -> None:
        topic, body, options = self.message()
        if self.rng.random() < 0.15:
            options = {"tag": options["tag"], "delay": self.rng.choice((1, 5, 0.3))}
        await self.client.send(topic, body, **options)

    async def batch(self) -> None:
        topic, _, _ = self.message()
        bodies = [self.rng.randbytes(self.rng.choice(self.swarm.body_bytes)) for _ in range(self.rng.randint(2, 4))]
        await self.client.send_many(topic, bodies, tag=draw_tag(self.machine.tag_rng))

    # --- checks ------------------------------------------------------------------------------------------------------

    async def check(self, asked: Transaction) -> Outcome:
        """The application's own check: it fences like that of the marker table, and sometimes fails."""
        draw = self.rng.random() if self.machine.around.working else 1.0
        if draw < 0.1:
            raise ApplicationError("in a check")
        if draw < 0.1 + 0.9 * self.swarm.unknown:
            return Outcome.UNKNOWN
        return await self.database.ask(self.process, lambda: self.database.decide(asked.id, may_fence=True))

    # --- main loop ---------------------------------------------------------------------------------------------------

    async def live(self) -> None:
        await self._connect()
        workers = [self.work() for _ in range(self.swarm.workers)]
        for work in workers:
            self.machine.spawn(self.process, work)
        if self.swarm.prunes:
            self.machine.spawn(self.process, self.prune())

    async def _connect(self) -> None:
        while True:
            try:
                await self.client.connect()
                await self.client._register_for_checks()
            except ConnectError:
                await asyncio.sleep(0.2 * (1 + self.rng.random()))
            else:
                return

    async def work(self) -> None:
        around = self.machine.around
        acts = (
            self.by_marker, self.by_marker_blocking, self.by_block, self.by_block, self.by_listener, self.plain, self.batch,
        )  # fmt: skip
        while around.working:
            await asyncio.sleep(self.swarm.think_ms / 1000 * self.rng.random() * 2)
            if not around.working:
                return
            self.machine.busy += 1
            try:
                await self.rng.choice(acts)()
            except Expected as error:
                around.chronicle.counts[f"client {type(error).__name__}"] += 1
                if isinstance(error, UnsupportedCombination):
                    raise
            self.machine.busy -= 1

    async def prune(self) -> None:
        """In place of ``MarkerTable.prune`` (see ``sql_driver``): removes old rows, except those of transactions that the broker still
        checks.
        """
        around, database = self.machine.around, self.database
        while around.working:
            await asyncio.sleep((1 + 2 * self.rng.random()) * self.swarm.pace)
            try:
                ids = await database.ask(self.process, database.old)
                keep = await self.client.undecided(ids)
                await database.ask(self.process, lambda: database.forget(ids, keep))  # noqa: B023
                around.chronicle.counts["knob markers pruned"] += len(ids) - len(keep)
                around.chronicle.counts["knob markers kept because undecided"] += len(keep)
            except Expected as error:
                around.chronicle.counts[f"client {type(error).__name__}"] += 1


class BlockingCalls:
    """The calls that a blocking block makes, of a client whose loop is that of the simulation."""

    def __init__(self, client: SimulatedClient) -> None:
        self._client = client
        self.group = client.group

    def new_transaction_id(self) -> str:
        return self._client.new_transaction_id()

    def prepare(self, messages: Any, **names: str) -> Prepared:
        return await_only(self._client.prepare(messages, **names))

    def commit(self, prepared: Prepared) -> TransactionReceipt:
        return await_only(self._client.commit(prepared))

    def rollback(self, prepared: Prepared) -> TransactionReceipt:
        return await_only(self._client.rollback(prepared))


class OrderListener(TransactionListener):
    """Transactions with RocketMQ's listener API."""

    def __init__(self, life: _Life) -> None:
        self._life = life

    async def execute(self, message: Message, arg: Any) -> Outcome:
        life = self._life
        session = DatabaseSession(life.database, life.process)
        tx_id = message.transaction_id
        assert tx_id is not None
        if life.rng.random() < 0.1:
            return Outcome.ROLLBACK if life.rng.random() < 0.5 else Outcome.UNKNOWN
        try:
            await life.local(session, tx_id)
        except Duplicate:
            return Outcome.ROLLBACK
        except DatabaseError:
            return Outcome.UNKNOWN
        return Outcome.UNKNOWN if life.rng.random() < life.swarm.silent else Outcome.COMMIT

    async def check(self, message: Message) -> Outcome:
        life = self._life
        tx_id = message.transaction_id
        assert tx_id is not None
        if life.rng.random() < life.swarm.unknown and life.machine.around.working:
            return Outcome.UNKNOWN
        return await life.database.ask(life.process, lambda: life.database.decide(tx_id, may_fence=True))


class Producer(Machine):
    """One machine of a service. Several may share a group, and so its database."""

    def __init__(
        self, name: str, around: Surroundings, group: str, database: Database, *, fetches: bool = False
    ) -> None:
        super().__init__(name, around)
        self.group = group
        self.database = database
        self.tag_rng = random.Random(f"{around.swarm.seed}/{name}/tags")
        #: Whether it fetches its checks instead of receiving them.
        self.fetches = fetches

    async def main(self, process: ProcessLoop) -> None:
        await _Life(self, process).live()

    def died(self, process: ProcessLoop) -> None:
        self.database.client_died(process)


class Fetcher(Machine):
    """A program that fetches the checks of a group and answers them itself; it sends nothing."""

    def __init__(self, name: str, around: Surroundings, group: str, database: Database) -> None:
        super().__init__(name, around)
        self.group = group
        self.database = database

    async def main(self, process: ProcessLoop) -> None:
        client = self.client(process, self.group, fetches_checks=True)
        while True:
            try:
                if not client.is_open:
                    await client.connect()
                await self._round(process, client)
            except Expected as error:
                self.around.chronicle.counts[f"fetcher {type(error).__name__}"] += 1
                await asyncio.sleep(0.3 + self.rng.random())

    async def _round(self, process: ProcessLoop, client: SimulatedClient) -> None:
        """
        Raises:
            HalfmqError, DatabaseError: fetched and unanswered checks are handed out again.
        """
        working = self.around.working
        wait_s = self.rng.choice((0.0, 0.5, 3.0, 20.0)) if working else 20.0
        fetched = await client.fetch_checks(count=self.rng.choice((1, 4, 32)), wait=wait_s)
        for check in fetched:
            draw = self.rng.random() if self.around.working else 1.0
            if draw < 0.1:
                self.around.chronicle.counts["fetcher forgets one"] += 1
                continue
            tx_id = check.transaction.id
            outcome = Outcome.UNKNOWN
            if draw > 0.2:
                outcome = await self.database.ask(process, lambda: self.database.decide(tx_id, may_fence=True))  # noqa: B023
            await client.answer_check(check, outcome)
        if not fetched:
            await asyncio.sleep(0.1)
