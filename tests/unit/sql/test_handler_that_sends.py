"""A handler whose inbox row, rows and messages commit together: on each driver, with half messages, an outbox, and both."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, insert, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker
from tests.support.in_process import serving
from tests.support.raw_client import RawClient
from tests.support.waiting import PATIENCE_S
from tests.unit.sql.conftest import with_foreign_keys
from tests.unit.sql.faces import ALL, Driver, located

from halfmq import App, AsyncClient, Message
from halfmq.sql import Inbox, MarkerTable, Outbox
from halfmq.wire.remoting.codes import HMQ_RESOLVE

#: In the gate every way on SQLite, and the one that uses all tables on one driver of each other kind.
_IN_THE_GATE = {("sqlite3", "markers"), ("sqlite3", "outbox")} | {
    (name, "both") for name in ("sqlite3", "aiosqlite", "psycopg", "pymysql")
}
CASES = [
    pytest.param(*case.values, way, id=f"{case.id}-{way}", marks=(*case.marks, pytest.mark.slow, *rare))
    for case in ALL
    for way in ("markers", "outbox", "both")
    for rare in [() if (case.values[0].name, way) in _IN_THE_GATE else (pytest.mark.thorough,)]
]
#: A handler: the message, what writes a row, what sends.
Handle = Callable[[Message, Callable[[int], None], Any], None]


class Stock:
    """A service that reserves goods for orders, and answers each with a message."""

    def __init__(self, driver: Driver, database: str, directory: str, url: str, way: str) -> None:
        self.driver, self.url = driver, url
        self.engine = create_engine(driver.blocking.url.format(where=directory, name=database))
        address = driver.url.format(where=directory, name=database)
        self.own: Any = create_async_engine(address) if driver.is_async else create_engine(address)
        if driver.database == "sqlite":
            with_foreign_keys(self.engine)
            with_foreign_keys(self.own.sync_engine if driver.is_async else self.own)
        metadata = MetaData()
        self.reserved = Table("reserved", metadata, Column("order_id", Integer, primary_key=True))
        self.inbox = Inbox(metadata)
        self.markers = None if way == "outbox" else MarkerTable(metadata, min_age_s=0)
        self.outbox = None if way == "markers" else Outbox(metadata)
        metadata.create_all(self.engine)
        sessions: Any = async_sessionmaker(self.own) if driver.is_async else sessionmaker(self.own)
        self.app = App(url, group="stock", sessions=sessions)
        if self.outbox is not None:
            self.app.relay(self.outbox, poll=0.02)

    def on_orders(self, handle: Handle, **options: Any) -> None:
        def plain(message: Message, session: Any, tx: Any) -> None:
            handle(message, lambda order_id: session.execute(insert(self.reserved).values(order_id=order_id)), tx)

        async def coroutine(message: Message, session: AsyncSession, tx: Any) -> None:
            await session.run_sync(lambda sync: plain(message, sync, tx))

        if "on_dead" in options:
            dead = options["on_dead"]

            async def dead_coroutine(message: Message, session: AsyncSession, tx: Any) -> None:
                dead(message)

            options["on_dead"] = (
                dead_coroutine if self.driver.is_async else lambda message, _session, _tx: dead(message)
            )
        decorate = self.app.consumer(
            "orders", group="stock", inbox=self.inbox, markers=self.markers, outbox=self.outbox, **options
        )
        decorate(coroutine if self.driver.is_async else plain)

    def rows(self) -> list[int]:
        with self.engine.connect() as connection:
            return sorted(connection.scalars(select(self.reserved.c.order_id)))

    async def close(self) -> None:
        self.engine.dispose()
        if self.driver.is_async:
            await self.own.dispose()
        else:
            self.own.dispose()


@pytest.fixture
async def stock(driver: Driver, way: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stock]:
    where, database = located(request, driver, tmp_path)
    async with serving(tmp_path / "broker") as running:
        made = Stock(driver, database, where, f"rocketmq://127.0.0.1:{running.ports.names}", way)
        yield made
        await made.close()


async def replies(stock: Stock, orders: list[Any], expected: int) -> list[Message]:
    """Send ``orders``, let the app handle them, and return its messages, after a last one that shows that no other comes."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(AsyncClient(stock.url))
        for number, order in enumerate(orders):
            await client.send("orders", order, key=f"o{number}", sharding_key=number)
        await stack.enter_async_context(stock.app.run(relay=True))
        found: list[Message] = []
        messages = await stack.enter_async_context(client.consumer("replies", group="looks"))

        async def read_until(enough: Callable[[], bool]) -> None:
            while not enough():
                message = await messages.get(PATIENCE_S)
                assert message is not None, found
                found.append(message)

        await read_until(lambda: len(found) == expected)
        await client.send("orders", {"id": 99}, key="last", sharding_key="last")
        await read_until(lambda: found[-1].key == "last")
    return found[:-1]


@pytest.mark.parametrize(("driver", "way"), CASES)
async def test_rows_and_messages_of_a_handler_are_there_once_however_often_it_fails(stock: Stock) -> None:
    attempts: dict[int, int] = {}

    def handle(message: Message, reserve: Callable[[int], None], tx: Any) -> None:
        order_id = message.json()["id"]
        attempts[order_id] = attempts.get(order_id, 0) + 1
        reserve(order_id)
        tx.send("replies", {"reserved": order_id}, key=message.key)
        if order_id == 1 and attempts[1] == 1:
            raise RuntimeError("after it has sent")

    stock.on_orders(handle)
    found = await replies(stock, [{"id": 1}, {"id": 2}], 2)
    assert sorted(message.json()["reserved"] for message in found) == [1, 2]
    assert stock.rows() == [1, 2, 99]
    assert attempts[1] == 2


@pytest.mark.parametrize(("driver", "way"), CASES)
async def test_what_a_handler_or_on_dead_compensates(stock: Stock) -> None:
    """Order 1: the handler itself says that it cannot be done. Order 2: it fails for good, and what it wrote is not there."""

    ids: dict[int, str] = {}

    def handle(message: Message, reserve: Callable[[int], None], tx: Any) -> None:
        order_id = message.json()["id"]
        ids[order_id] = message.message_id
        if order_id == 1:
            message.compensate("replies", {"cancelled": 1})
            return
        reserve(order_id)
        tx.send("replies", {"reserved": order_id}, key=message.key)
        if order_id == 2:
            raise RuntimeError("never")

    stock.on_orders(
        handle, retries=1, on_dead=lambda message: message.compensate("replies", {"cancelled": message.json()["id"]})
    )
    found = await replies(stock, [{"id": 1}, {"id": 2}], 2)
    assert sorted(message.json()["cancelled"] for message in found) == [1, 2]
    assert {message.json()["cancelled"]: message.compensates for message in found} == {1: ids[1], 2: ids[2]}
    assert {(message.json()["cancelled"], message.key, message.sharding_key) for message in found} == {
        (1, "o0", "0"), (2, "o1", "1"),
    }  # fmt: skip
    assert stock.rows() == [99]


@pytest.mark.parametrize(("driver", "way"), CASES)
async def test_a_handler_whose_commit_was_not_answered_is_not_compensated(
    stock: Stock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last call of the handler has committed, and nobody knows: ``on_dead`` finds the inbox row."""
    dead: list[Message] = []
    dialect = (stock.own.sync_engine if stock.driver.is_async else stock.own).dialect
    real = dialect.do_commit

    def commit(connection: Any) -> None:
        real(connection)
        monkeypatch.setattr(dialect, "do_commit", real)
        raise OSError("the answer was lost")

    def handle(message: Message, reserve: Callable[[int], None], tx: Any) -> None:
        order_id = message.json()["id"]
        reserve(order_id)
        tx.send("replies", {"reserved": order_id}, key=message.key)
        if order_id == 1:
            monkeypatch.setattr(dialect, "do_commit", commit)

    stock.on_orders(handle, retries=0, on_dead=dead.append)
    found = await replies(stock, [{"id": 1}], 1)
    assert [message.json() for message in found] == [{"reserved": 1}]
    assert (stock.rows(), dead) == ([1, 99], [])


@pytest.mark.parametrize(("driver", "way"), [case for case in CASES if case.id in ("sqlite3-both", "aiosqlite-both")])
async def test_a_message_whose_unit_has_committed_is_consumed_although_its_messages_were_rolled_back(
    stock: Stock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An operator decides between prepare and COMMIT. A redelivery would find the inbox row, and a dead letter would be a lie."""
    client = stock.app.client()
    prepare, dead, calls = client.prepare, list[Message](), list[int]()

    async def overruled(messages: Any, **named: Any) -> Any:
        prepared = await prepare(messages, **named)
        if b"1" in messages[0].body:
            raw = await RawClient.connect(int(stock.url.rpartition(":")[2]))
            fields = {"txId": prepared.tx_id, "verdict": "ROLLBACK", "operator": "ada", "reason": "test"}
            assert (await raw.ask(HMQ_RESOLVE, fields)).code == 0
            await raw.close()
        return prepared

    monkeypatch.setattr(client, "prepare", overruled)

    def handle(message: Message, reserve: Callable[[int], None], tx: Any) -> None:
        calls.append(message.json()["id"])
        reserve(message.json()["id"])
        tx.send("replies", {"reserved": message.json()["id"]}, key=message.key)

    stock.on_orders(handle, retries=0, on_dead=dead.append)
    found = await replies(stock, [{"id": 1}, {"id": 2}], 1)
    assert [message.json() for message in found] == [{"reserved": 2}]
    assert (stock.rows(), sorted(calls), dead) == ([1, 2, 99], [1, 2, 99], [])
    (line,) = [one for one in caplog.messages if "what was sent with it is lost" in one]
    assert "decided by an operator (ada)" in line
