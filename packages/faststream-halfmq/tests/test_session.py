# ruff: noqa: PT012 - what raises is the end of a whole block
"""``publish(..., session=session)``: the message is visible if and only if the transaction of the session commits, whoever dies when."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, event, insert, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session

from faststream_halfmq import HalfmqBroker, TestHalfmqBroker
from faststream_halfmq.annotations import HalfmqMessage as TheMessage
from halfmq import ConnectError, UsageError
from halfmq.sql import Inbox, MarkerTable
from halfmq.testing import Broker, Sent

#: Of a test that has failed.
WITHIN_S = 60.0


class Shop(NamedTuple):
    """A service with a database, whose handler notes what it gets."""

    broker: HalfmqBroker
    sessions: async_sessionmaker[AsyncSession]
    orders: Table
    inbox: Inbox
    markers: MarkerTable
    arrived: "asyncio.Queue[dict[str, int]]"

    async def place(self, session: AsyncSession, number: int, **options: Any) -> None:
        """An order, and its message."""
        await session.execute(insert(self.orders).values(id=number))
        assert await self.broker.publish({"id": number}, "orders", session=session, **options) is None

    async def ids(self) -> list[int]:
        async with self.sessions() as session:
            return sorted(await session.scalars(select(self.orders.c.id)))

    async def next(self) -> dict[str, int]:
        async with asyncio.timeout(WITHIN_S):
            return await self.arrived.get()


async def opened(url: str, directory: Path) -> Shop:
    metadata = MetaData()
    orders = Table("orders", metadata, Column("id", Integer, primary_key=True))
    markers, inbox = MarkerTable(metadata, min_age_s=0), Inbox(metadata)
    engine = create_async_engine(f"sqlite+aiosqlite:///{directory}/shop.db")
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    sessions = async_sessionmaker(engine)
    broker = HalfmqBroker(url, group="shop", logger=None)
    broker.answer_checks(markers, sessions)
    shop = Shop(broker, sessions, orders, inbox, markers, asyncio.Queue())

    @broker.subscriber("orders", group="billing")
    async def bill(order: dict[str, int]) -> None:
        shop.arrived.put_nowait(order)

    return shop


@pytest.fixture
async def shop(halfmq_url: str, tmp_path: Path) -> AsyncIterator[Shop]:
    """At a real broker."""
    shop = await opened(halfmq_url, tmp_path)
    await shop.broker.start()
    yield shop
    await shop.broker.stop()
    await shop.sessions.kw["bind"].dispose()


@pytest.fixture(params=["real", "in memory"])
async def either(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Shop]:
    """At a real broker, or with ``TestHalfmqBroker``: the same tests."""
    is_real = request.param == "real"
    shop = await opened(request.getfixturevalue("halfmq_url") if is_real else "rocketmq://127.0.0.1:1", tmp_path)
    async with TestHalfmqBroker(shop.broker, with_real=is_real):
        yield shop
    await shop.sessions.kw["bind"].dispose()


async def test_a_message_arrives_after_the_commit_and_not_before(either: Shop) -> None:
    async with either.sessions() as session:
        await either.place(session, 1)
        await either.place(session, 2)
        assert either.arrived.empty()
        await session.commit()
    arrived = [await either.next(), await either.next()]
    assert sorted(one["id"] for one in arrived) == [1, 2]
    assert await either.ids() == [1, 2]


async def test_a_message_of_a_transaction_that_is_rolled_back_never_arrives(either: Shop) -> None:
    with pytest.raises(ZeroDivisionError):
        async with either.sessions() as session, session.begin():
            await either.place(session, 1)
            1 / 0  # noqa: B018
    async with either.sessions() as session, session.begin():
        await either.place(session, 2)
        savepoint = await session.begin_nested()
        await either.place(session, 3)
        await savepoint.rollback()
    assert await either.next() == {"id": 2}
    assert await either.ids() == [2]
    assert either.arrived.empty()


async def test_messages_may_be_published_at_once(either: Shop) -> None:
    async with either.sessions() as session, session.begin():
        await session.execute(insert(either.orders).values([{"id": 1}, {"id": 2}]))
        await asyncio.gather(*(either.broker.publish({"id": number}, "orders", session=session) for number in (1, 2)))
    arrived = [await either.next(), await either.next()]
    assert sorted(one["id"] for one in arrived) == [1, 2]


@pytest.mark.parametrize("of_class", [False, True])
@pytest.mark.parametrize("name", ["after_commit", "after_transaction_end"])
async def test_a_message_arrives_though_a_listener_of_the_application_raises(
    either: Shop, name: str, of_class: bool
) -> None:
    class Sessions(Session):
        pass

    def fail(*_: object) -> None:
        raise RuntimeError("mine")

    async with either.sessions(sync_session_class=Sessions) as session:
        event.listen(Sessions if of_class else session.sync_session, name, fail)
        await either.place(session, 1)
        with pytest.raises(RuntimeError, match="mine"):
            await session.commit()
    assert await either.next() == {"id": 1}
    assert await either.ids() == [1]


async def test_nothing_else_becomes_visible_at_the_broker(shop: Shop, halfmq_sent: Sent, halfmq_broker: Broker) -> None:
    async with shop.sessions() as session:
        await shop.place(session, 1)
        await session.rollback()
        await shop.place(session, 2)
        halfmq_sent.nothing()
        await session.commit()
    assert [message.json() for message in halfmq_sent("orders")] == [{"id": 2}]
    assert halfmq_broker.undecided() == []


async def test_what_a_message_has_beside_its_body_is_published_too(shop: Shop, halfmq_sent: Sent) -> None:
    publisher = shop.broker.publisher("invoices", tag="paper", headers={"h": "v"})
    async with shop.sessions() as session:
        await publisher.publish({"of": 1}, key=1, sharding_key="k", session=session, timeout=WITHIN_S)
        await session.commit()
    (message,) = halfmq_sent("invoices")
    assert (message.json(), message.tag, message.key, message.sharding_key) == ({"of": 1}, "paper", "1", "k")
    assert message.properties["h"] == "v"
    assert message.properties["content-type"] == "application/json"
    assert message.transaction_id is not None


async def test_a_handler_handles_once_and_publishes_in_one_transaction(shop: Shop, halfmq_sent: Sent) -> None:
    done = asyncio.Event()
    calls = 0

    @shop.broker.subscriber("payments", group="shipping")
    async def ship(number: int, message: TheMessage) -> None:
        nonlocal calls
        calls += 1
        async with shop.sessions() as session, session.begin():
            if await session.run_sync(lambda sync: shop.inbox.claim(sync, message.raw_message, group="shipping")):
                await session.execute(insert(shop.orders).values(id=number))
                await shop.broker.publish({"of": number}, "parcels", session=session)
        if calls == 1:
            await message.nack(delay=0)  # it comes again, though it was handled
        else:
            done.set()

    (subscriber,) = [one for one in shop.broker.subscribers if one.topic == "payments"]  # type: ignore[attr-defined]
    await subscriber.start()
    await shop.broker.publish(7, "payments")
    async with asyncio.timeout(WITHIN_S):
        await done.wait()
    assert [message.json() for message in halfmq_sent("parcels")] == [{"of": 7}]
    assert (await shop.ids(), calls) == ([7], 2)


async def test_without_a_broker_nothing_is_committed(shop: Shop, halfmq_broker: Broker) -> None:
    async with shop.sessions() as session:
        await shop.place(session, 1, timeout=0.2)
        await asyncio.to_thread(halfmq_broker.stop)
        with pytest.raises(ConnectError):
            await session.commit()
        await session.rollback()
    assert await shop.ids() == []
    await asyncio.to_thread(halfmq_broker.start)


@pytest.mark.parametrize(("step", "is_committed"), [("half", False), ("commit", False), ("verdict", True)])
@pytest.mark.slow
async def test_a_service_killed_in_its_commit_loses_nothing(
    step: str, is_committed: bool, tmp_path: Path, halfmq_url: str, halfmq_broker: Broker, halfmq_sent: Sent
) -> None:
    shop = await opened(halfmq_url, tmp_path)
    program = Path(__file__).with_name("killed_service.py")
    killed = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, str(program), halfmq_url, f"{tmp_path}/shop.db", step],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        timeout=WITHIN_S,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert len(halfmq_broker.undecided()) == (step != "half")
    assert halfmq_sent("orders") == []
    await shop.broker.start()  # another process of the service
    await asyncio.to_thread(halfmq_broker.settle)
    assert [message.json() for message in halfmq_sent("orders")] == ([{"id": 1}] if is_committed else [])
    assert await shop.ids() == ([1] if is_committed else [])
    if is_committed:
        assert await shop.next() == {"id": 1}
    await shop.broker.stop()
    await shop.sessions.kw["bind"].dispose()


def _no_table(shop: Shop) -> None:
    shop.broker.config.broker_config.markers.clear()


def _two_tables(shop: Shop) -> None:
    shop.broker.answer_checks(MarkerTable(MetaData(), table="mq_other"), shop.sessions)


@pytest.mark.parametrize(("change", "count"), [(_no_table, 0), (_two_tables, 2)])
async def test_which_marker_table_must_be_clear(either: Shop, change: Callable[[Shop], None], count: int) -> None:
    change(either)
    async with either.sessions() as session:
        with pytest.raises(UsageError, match=f"from {count} marker tables"):
            await either.place(session, 1)
        await session.rollback()
        await either.place(session, 2, markers=either.markers)
        await session.commit()
    assert await either.next() == {"id": 2}


async def test_a_plain_session_is_refused(either: Shop) -> None:
    with Session(create_engine("sqlite://")) as session, pytest.raises(UsageError, match="not of a Session"):
        await either.broker.publish(1, "orders", session=session)  # type: ignore[arg-type]
