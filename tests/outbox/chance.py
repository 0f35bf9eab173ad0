"""One run of chance over an outbox: transactions, relays that are killed and paused, answers that are lost.

Relays are those of the product on real databases and a real broker. ``Faults`` stands between a relay and its two sides, and does at a
drawn call what a kill, a pause, or a lost connection would do there. The application and its consumer record a history, which the history
checker reads at the end.
"""

import asyncio
import contextlib
import json
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, insert, select
from sqlalchemy.orm import Session

from halfmq.client import Client
from halfmq.client.outgoing import OutgoingMessage, compose
from halfmq.client.receipts import OUTBOX, Prepared
from halfmq.errors import ConnectError, HalfmqError, SendTimeout
from halfmq.model.checksum import crc32
from halfmq.relay.publisher import Batch, Published, Publisher
from halfmq.relay.relay import Relay
from halfmq.relay.rows import DatabaseAway, Figures, Lease, OutboxRows, Work
from halfmq.sql import MarkerTable, Outbox
from halfmq.sql.rules.outbox import Delivery
from halfmq.testing.history import MemoryRecorder, Report, check_events
from halfmq.testing.history.events import Answered, EndAsked, HalfSent, Local, OutboxWritten, QueueRead, Seen, Settled
from halfmq.testing.history.report import At
from tests.support.faults import Faults, Killed

#: Of a relay in a run. Short, so that what a killed one held is soon taken over.
LEASE_S = 0.3
#: Order keys of a run.
KEYS = 3


class FaultyRows:
    """An ``OutboxRows`` whose calls may fail."""

    def __init__(self, rows: OutboxRows, faults: Faults) -> None:
        self._rows, self._faults = rows, faults
        self.lease_s = rows.lease_s
        self.name = rows.name
        self.establish = rows.establish
        self.listening = rows.listening
        self.close = rows.close

    @staticmethod
    def _lost() -> Any:
        raise DatabaseAway("the answer was lost")

    async def claim(self) -> Work | None:
        return await self._faults.at("claim", self._rows.claim, self._lost)

    async def renew(self, lease: Lease) -> None:
        return await self._faults.at("renew", lambda: self._rows.renew(lease), self._lost)

    async def finish(self, work: Work, published: Published, *, goes_on: bool) -> Work | None:
        return await self._faults.at("finish", lambda: self._rows.finish(work, published, goes_on=goes_on), self._lost)

    async def figures(self) -> Figures:
        return await self._rows.figures()


class FaultyPublisher:
    """A ``Publisher`` whose calls may fail."""

    def __init__(self, publisher: Publisher, faults: Faults) -> None:
        self._publisher, self._faults = publisher, faults
        self.name = publisher.name
        self.messages_max = publisher.messages_max
        self.open = publisher.open
        self.close = publisher.close

    @staticmethod
    def _lost() -> Published:
        return Published(frozenset(), unavailable="the answer was lost")

    async def publish(self, batch: Batch) -> Published:
        return await self._faults.at("publish", lambda: self._publisher.publish(batch), self._lost)

    async def recover(self, batch: Batch) -> Published:
        return await self._faults.at("recover", lambda: self._publisher.recover(batch), self._lost)


class FaultyCalls:
    """A ``Client`` in front of which the network fails: a prepare that does not arrive, arrives later, or whose answer is lost."""

    def __init__(self, client: Client, shop: "Shop", rng: random.Random, chance: float) -> None:
        self._client, self._shop, self._rng, self._chance = client, shop, rng, chance
        self.group = client.group
        self.new_transaction_id = client.new_transaction_id
        self.commit = client.commit
        self.rollback = client.rollback
        #: Of prepares that arrive later than the caller waits.
        self.late: list[threading.Timer] = []
        #: Transactions whose prepare failed for the caller.
        self.failed: list[str] = []

    def prepare(self, messages: Sequence[OutgoingMessage], *, tx_id: str, **named: Any) -> Prepared:
        for message in messages:
            self._shop.wrote(HalfSent, tx_id, message, op=message.message_id)

        def arrive() -> None:
            with contextlib.suppress(HalfmqError):
                self._client.prepare(messages, tx_id=tx_id, **named)

        if self._rng.random() >= self._chance:
            prepared = self._client.prepare(messages, tx_id=tx_id, **named)
            for message in messages:
                self._shop.history.record(Answered, op=message.message_id, outcome="ok")
            return prepared
        self.failed.append(tx_id)
        for message in messages:
            self._shop.wrote(OutboxWritten, tx_id, message)
        match self._rng.choice(("not sent", "lost", "late")):
            case "not sent":
                raise ConnectError("the broker does not answer")
            case "lost":
                arrive()
            case _:
                self.late.append(threading.Timer(self._rng.uniform(0, 1), arrive))
                self.late[-1].start()
        raise SendTimeout("the answer was lost")


class Held(NamedTuple):
    """A message that waits for a decision. Its order is written with the confirmation."""

    order_id: int
    key: str
    message_id: str


class Shop:
    """The application: orders, and an outbox and markers in the same database. ``began``: of its history."""

    def __init__(self, topic: str, **began: Any) -> None:
        self.topic = topic
        self.history = MemoryRecorder("shop", **began)
        #: Order -> id of its message.
        self.messages: dict[int, str] = {}
        self.metadata = MetaData()
        self.orders = Table("orders", self.metadata, Column("id", Integer, primary_key=True), Column("key", String(40)))
        self.outbox = Outbox(self.metadata)
        self.markers = MarkerTable(self.metadata, min_age_s=0)
        self.held: list[Held] = []
        #: Rows that are never published: message id -> state. Those of the other rows go.
        self.kept: dict[str, str] = {}

    def left(self, engine: Engine) -> dict[str, str]:
        """The rows of the outbox: message id -> state."""
        with engine.connect() as connection:
            rows = self.outbox.table.c
            return dict(connection.execute(select(rows.message_id, rows.delivery)).all())  # type: ignore[arg-type]

    def transaction(self, engine: Engine, rng: random.Random, first_id: int, key: str) -> int:
        """One transaction with up to three orders, each with its message, that commits or not. Returns the number of ids it used."""
        with Session(engine) as session:

            def send(order_id: int) -> None:
                self._send(session, f"tx-{first_id}", order_id, key)

            number = self._orders(session, rng, first_id, key, send)
            if rng.random() < 0.8:
                session.commit()
            else:
                session.rollback()
        self._ended(engine, f"tx-{first_id}", range(first_id, first_id + number))
        return number

    def hold(self, engine: Engine, rng: random.Random, order_id: int, key: str) -> None:
        """A transaction with a held message, that commits or not."""
        with Session(engine) as session:
            message_id = self._send(session, f"tx-{order_id}", order_id, key, hold=True)
            commits = rng.random() >= 0.2
            if commits:
                session.commit()
        self.history.record(
            Local, group="shop", tx=f"tx-{order_id}", outcome="COMMITTED" if message_id in self.left(engine) else "ROLLED_BACK"
        )  # fmt: skip
        if not commits:
            return
        self.held.append(Held(order_id, key, message_id))
        self.kept[message_id] = Delivery.HELD

    def decide(self, engine: Engine, rng: random.Random) -> None:
        """Another transaction confirms or withdraws one of the held messages, and commits or not; then nobody can decide otherwise."""
        held = rng.choice(self.held)
        confirms = rng.random() < 0.6
        outcomes = self.outbox.confirm, self.outbox.withdraw
        op = f"decide {len(self.history.events)}"
        self.history.record(
            EndAsked, op=op, group="shop", tx="", message=held.message_id, verdict="COMMITTED" if confirms else "ROLLED_BACK"
        )  # fmt: skip
        (ends,) = rng.choices(("commit", "rollback", "rollback to the savepoint"), (8, 1, 1))
        with Session(engine) as session:
            savepoint = session.begin_nested()
            if confirms:
                session.execute(insert(self.orders).values(id=held.order_id, key=held.key))
            assert outcomes[not confirms](session, held.message_id)
            if ends == "rollback to the savepoint":
                savepoint.rollback()
            if ends == "rollback":
                session.rollback()
            else:
                session.commit()
        self.history.record(Answered, op=op, outcome="ok" if ends == "commit" else "refused")
        if ends != "commit":
            return
        self.held.remove(held)
        if confirms:
            del self.kept[held.message_id]
        else:
            self.kept[held.message_id] = Delivery.SKIPPED
        with Session(engine) as session, session.begin():
            assert not any(outcome(session, held.message_id) for outcome in outcomes), "it is decided"

    def block(self, engine: Engine, rng: random.Random, first_id: int, calls: FaultyCalls) -> int:
        """The same as a block that falls back to the outbox. Its messages have no key: the two ways are in no order."""
        number = 0
        with contextlib.suppress(_Sorry), Session(engine) as session:
            with self.markers.bind(calls, session, outbox=self.outbox) as tx:  # type: ignore[arg-type]

                def send(order_id: int) -> None:
                    tx.send(self.topic, {"id": order_id, "key": ""})

                number = self._orders(session, rng, first_id, "", send)
                if rng.random() < 0.2:
                    raise _Sorry
            assert tx.receipt is not None
            assert (tx.receipt.path == OUTBOX) == (tx.id in calls.failed)
        self._ended(engine, tx.id, range(first_id, first_id + number))
        return number

    def _send(self, session: Session, tx: str, order_id: int, key: str, *, hold: bool = False) -> str:
        body = {"id": order_id, "key": key}
        message_id = self.outbox.send(session, self.topic, body, sharding_key=key or None, hold=hold)
        message = compose(self.topic, body, sharding_key=key or None)._replace(message_id=message_id)
        self.wrote(OutboxWritten, tx, message, hold=hold)
        return message_id

    def wrote(self, event: type[HalfSent | OutboxWritten], tx: str, message: OutgoingMessage, **fields: Any) -> None:
        self.messages[json.loads(message.body)["id"]] = message.message_id
        self.history.record(
            event, group="shop", tx=tx, message=message.message_id, topic=message.topic, crc=crc32(message.body),
            key=message.sharding_key, **fields,
        )  # fmt: skip

    def _ended(self, engine: Engine, tx: str, ids: range) -> None:
        """What the database has of a transaction is its outcome."""
        with engine.connect() as connection:
            kept = connection.scalars(select(self.orders.c.id).where(self.orders.c.id.in_(ids))).all()
        self.history.record(
            Local, group="shop", tx=tx, outcome="COMMITTED" if kept else "ROLLED_BACK",
            messages=tuple(self.messages[order_id] for order_id in kept),
        )  # fmt: skip

    def saw(self, message_id: str, queue: int, offset: int, body: bytes, key: str, tx: str = "") -> None:
        self.history.record(
            Seen, reader="billing", message=message_id, topic=self.topic, queue=queue, queue_offset=offset, tx=tx,
            crc=crc32(body), key=key,
        )  # fmt: skip

    def checked(self, ends: Iterable[tuple[str, int, int]]) -> Report:
        """After everything was published. ``ends``: topic, queue, and the end up to which the consumer has received it."""
        self.history.record(Settled)
        for topic, queue, end in ends:
            self.history.record(QueueRead, reader="billing", topic=topic, queue=queue, first=0, end=end)
        report = check_events(self.history.events)
        assert report.clean, "\n\n".join(violation.text() for violation in report.violations)
        for check in (At.OUTBOX_PHANTOM, At.OUTBOX_MISSED, At.OUTBOX_ORDER):
            assert report.looked[check].looked, report.looked[check].what
        return report

    def _orders(
        self, session: Session, rng: random.Random, first_id: int, key: str, send: Callable[[int], object]
    ) -> int:
        number = rng.choice((1, 1, 2, 3))
        for order_id in range(first_id, first_id + number):
            nested = session.begin_nested() if order_id > first_id and rng.random() < 0.2 else contextlib.nullcontext()
            with contextlib.suppress(_Sorry), nested:
                session.execute(insert(self.orders).values(id=order_id, key=key))
                send(order_id)
                if session.in_nested_transaction() and rng.random() < 0.5:
                    raise _Sorry
        return number


class _Sorry(Exception):
    """The application changed its mind."""


async def run(
    shop: Shop,
    engine: Engine,
    rng: random.Random,
    first_id: int,
    make_relay: Callable[[Callable[[OutboxRows], OutboxRows], Callable[[Publisher], Publisher]], Relay],
    calls: FaultyCalls | None,
) -> list[str]:
    """Transactions and relays at the same time, then a relay that nothing happens to, until the outbox is empty. Returns the story."""
    faults = Faults(rng, rng.choice((0.0, 0.05, 0.15, 0.3)), LEASE_S)
    stop = asyncio.Event()

    async def one_relay() -> None:
        while not stop.is_set():
            relay = make_relay(
                lambda rows: FaultyRows(rows, faults), lambda publisher: FaultyPublisher(publisher, faults)
            )
            with contextlib.suppress(Killed):
                await relay.run(stop)

    relays = [asyncio.create_task(one_relay()) for _ in range(rng.choice((1, 2, 3)))]
    keys = [f"{first_id}-{number}" for number in range(KEYS)] + [""]
    next_id = first_id
    for _ in range(rng.randint(3, 12)):
        if shop.held and rng.random() < 0.3:
            shop.decide(engine, rng)
        elif rng.random() < 0.2:
            shop.hold(engine, rng, next_id, rng.choice(keys))
            next_id += 1
        elif calls is not None and rng.random() < 0.3:
            next_id += await asyncio.to_thread(shop.block, engine, rng, next_id, calls)
        else:
            next_id += shop.transaction(engine, rng, next_id, rng.choice(keys))
        await asyncio.sleep(rng.choice((0, 0, 0.01)))  # real time: relays work meanwhile
    for _ in range(len(shop.held)):
        shop.decide(engine, rng)
    shop.held.clear()  # what is left is never decided
    await asyncio.sleep(rng.uniform(0, 0.2))  # real time: relays work meanwhile
    stop.set()
    await asyncio.wait_for(asyncio.gather(*relays), 60)
    return faults.story
