"""Outboxes and relays by chance: the application's and the consumer's database agree after each run, and the history is clean."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, create_engine, insert, select
from sqlalchemy.orm import Session, sessionmaker

from halfmq.client import AsyncClient, Client, Message
from halfmq.client.admin import queue_bounds
from halfmq.relay.halfmq import HalfmqPublisher
from halfmq.relay.publisher import Publisher
from halfmq.relay.relay import Relay
from halfmq.relay.rows import OutboxRows
from halfmq.sql import Inbox
from halfmq.sql.alchemy.outbox_relay import EngineRows
from halfmq.testing.history.events import PlainSent
from tests.outbox.chance import LEASE_S, FaultyCalls, Shop, run
from tests.support.amount import amount, seed_of_commit
from tests.support.served import Served
from tests.support.waiting import until, wait_until
from tests.unit.sql.conftest import with_foreign_keys
from tests.unit.sql.faces import DRIVERS, Driver, located, on

pytestmark = [pytest.mark.slow]

RUNS = amount(gate=8, everything=200, variable="HALFMQ_TEST_OUTBOX_RUNS")
#: Ids of orders of one run.
IDS_OF_A_RUN = 100
BLOCKING = [on(driver, walk=True) for driver in DRIVERS if not driver.is_async]


class Billing:
    """The consumer: one invoice for each message, in a database of its own."""

    def __init__(self, engine: Engine, shop: Shop) -> None:
        metadata = MetaData()
        self.engine = engine
        self.shop = shop
        self.inbox = Inbox(metadata)
        self.invoices = Table(
            "invoices", metadata, Column("order_id", Integer, primary_key=True), Column("key", String(40))
        )
        metadata.create_all(engine)
        #: Queue -> the offset up to which it has everything.
        self.ends: Counter[int] = Counter()

    def handle(self, message: Message) -> None:
        order = message.json()
        self.shop.saw(
            message.message_id, message.queue, message.offset, message.body, message.sharding_key or "",
            message.transaction_id or "",
        )  # fmt: skip
        self.ends[message.queue] = max(self.ends[message.queue], message.offset + 1)
        with Session(self.engine) as session, self.inbox.once(session, message, group="billing") as first:
            if first:
                session.execute(insert(self.invoices).values(order_id=order["id"], key=order["key"]))


@contextlib.asynccontextmanager
async def consuming(billing: Billing, url: str, topic: str) -> AsyncIterator[None]:
    async def consume() -> None:
        async with AsyncClient(url) as client, client.consumer(topic, group=f"billing-{topic}") as messages:
            opened.set()
            async for message in messages:
                billing.handle(message)
                message.ack()

    opened = asyncio.Event()
    task = asyncio.create_task(consume())
    await asyncio.wait_for(opened.wait(), 30)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def engine_on(driver: Driver, url: str) -> Engine:
    engine = create_engine(url)
    return with_foreign_keys(engine) if driver.database == "sqlite" else engine


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("driver", BLOCKING)
async def test_rows_messages_and_effects_agree(
    driver: Driver, served: Served, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    where, name = located(request, driver, tmp_path)
    engine = engine_on(driver, driver.url.format(where=where, name=name))
    shop = Shop(f"orders-{driver.name}")
    billing = Billing(create_engine(f"sqlite:///{tmp_path / 'billing.db'}"), shop)
    shop.metadata.create_all(engine)
    seed = seed_of_commit()

    def make_relay(rows: Callable[[OutboxRows], OutboxRows], publisher: Callable[[Publisher], Publisher]) -> Relay:
        real = EngineRows(shop.outbox._tables, engine, lease_s=LEASE_S, messages_max=rng.choice((1, 3, 50)))
        return Relay(rows(real), publisher(HalfmqPublisher(served.url, group="shop-relay")), workers=2, poll_s=0.02)

    def play(client: Client, number: int) -> FaultyCalls:
        return FaultyCalls(
            client, shop, random.Random(f"{seed}-{driver.name}-{number}-calls"), rng.choice((0.0, 0.3, 1.0))
        )

    async with AsyncClient(served.url) as producer:
        receipt = await producer.send(shop.topic, {"id": 0, "key": ""})  # so that the consumer has a topic
        shop.history.record(PlainSent, op="", message=receipt.message_id, topic=shop.topic)
    with Client(served.url, group=f"shop-{driver.name}") as client:
        client.answer_checks(shop.markers, sessionmaker(engine))
        abandoned: list[FaultyCalls] = []
        async with consuming(billing, served.url, shop.topic):
            for number in range(RUNS):
                rng = random.Random(f"{seed}-{driver.name}-{number}")
                start = 1 + number * IDS_OF_A_RUN
                calls = play(client, number)
                abandoned.append(calls)
                story = await run(shop, engine, rng, start, make_relay, calls)
                print(f"run {number} of seed {seed}:", *story, sep="\n  ")
                await settle(shop, engine, make_relay)
                await agree(shop, engine, billing, start)
            await asyncio.to_thread(all_rolled_back, client, abandoned)
            async with AsyncClient(served.url) as reader:
                bounds = await queue_bounds(reader, shop.topic)
            ends = {queue.queue: bound.end for queue, bound in bounds.items()}
            await until(lambda: all(billing.ends[queue] >= end for queue, end in ends.items()), "the end of each queue")
        report = shop.checked((shop.topic, queue, end) for queue, end in ends.items())
        print(*(f"{one.looked} {one.what}" for one in report.looked if one.looked), sep="\n")
    engine.dispose()
    billing.engine.dispose()


def all_rolled_back(client: Client, abandoned: list[FaultyCalls]) -> None:
    """What arrived of transactions that went to the outbox is decided."""
    for timer in [timer for calls in abandoned for timer in calls.late]:
        timer.join()
    failed = [tx_id for calls in abandoned for tx_id in calls.failed]
    wait_until(lambda: not client.undecided(failed), "the checks of all abandoned half messages")


async def settle(shop: Shop, engine: Engine, make_relay: Callable[..., Relay]) -> None:
    relay = make_relay(lambda rows: rows, lambda publisher: publisher)
    async with relay.running():
        await until(lambda: shop.left(engine) == shop.kept, "only withdrawn and undecided messages are left")


async def agree(shop: Shop, engine: Engine, billing: Billing, start: int) -> None:
    """Orders and invoices of the run are the same."""
    ids = range(start, start + IDS_OF_A_RUN)

    def rows(engine: Engine, column: Column[int]) -> list[int]:
        with engine.connect() as connection:
            return sorted(connection.scalars(select(column).where(column.in_(ids))))

    orders = rows(engine, shop.orders.c.id)
    await until(lambda: len(rows(billing.engine, billing.invoices.c.order_id)) >= len(orders), "all invoices")
    assert rows(billing.engine, billing.invoices.c.order_id) == orders
