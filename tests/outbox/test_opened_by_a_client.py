"""``mq.relay`` on both faces, and the relays of an ``App``: to the client's own broker, on a database in a file."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, MetaData, create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from halfmq import App, AsyncClient, Client
from halfmq.errors import UsageError
from halfmq.relay.halfmq import HalfmqPublisher
from halfmq.sql import Outbox
from tests.support.in_process import serving
from tests.support.waiting import soon, until, wait_until
from tests.unit.sql.conftest import with_foreign_keys


class Shop:
    """An outbox in a file, and a broker."""

    def __init__(self, path: Path, url: str) -> None:
        self.url = url
        self.database = f"sqlite:///{path}"
        self.engine: Engine = with_foreign_keys(create_engine(self.database))
        self.metadata = MetaData()
        self.outbox = Outbox(self.metadata)
        self.metadata.create_all(self.engine)
        self.sessions = sessionmaker(self.engine)

    def send(self, body: str, **options: Any) -> str:
        with self.sessions() as session, session.begin():
            return self.outbox.send(session, "orders", body, **options)

    async def consumed(self) -> list[str]:
        """Bodies of all messages of the topic, when the outbox is empty."""
        await until(lambda: not self.left(), "the outbox is published")
        async with AsyncClient(self.url) as client, client.consumer("orders", group="looks") as messages:
            found = []
            while (message := await messages.get(0.5)) is not None:
                found.append(message.text())
                message.ack()
            return found

    def left(self) -> int:
        with Session(self.engine) as session:
            return sum(self.outbox.operations.status(session.connection()).figures.rows.values())


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    async with serving(tmp_path / "broker") as running:
        made = Shop(tmp_path / "shop.db", f"rocketmq://127.0.0.1:{running.ports.names}")
        yield made
        made.engine.dispose()


async def test_an_asynchronous_client_publishes_to_its_own_broker(shop: Shop) -> None:
    engine = create_async_engine(shop.database.replace("sqlite:", "sqlite+aiosqlite:"))
    shop.send("before")
    async with AsyncClient(shop.url, group="shop") as client:
        async with client.relay(shop.outbox, async_sessionmaker(engine), workers=2) as relay:
            shop.send("while it is open")
            await until(lambda: relay.confirmed == 2, "both are published")
            assert (await relay.figures()).waiting == 0
            assert (shop.outbox.table.name in relay.name, shop.url.removeprefix("rocketmq://") in relay.name) == (
                True,
                True,
            )
        shop.send("after it was closed")
        assert shop.left() == 1
    await engine.dispose()
    with shop.engine.begin() as connection:
        connection.execute(shop.outbox.table.delete())
    assert sorted(await shop.consumed()) == ["before", "while it is open"]


async def test_a_blocking_client_publishes_on_its_own_thread(shop: Shop) -> None:
    shop.send("one")

    def program() -> int:
        with Client(shop.url, group="shop") as client, client.relay(shop.outbox, shop.sessions) as relay:
            shop.send("two")
            wait_until(lambda: not shop.left(), "both are published")
            return relay.confirmed

    await asyncio.to_thread(program)
    assert sorted(await shop.consumed()) == ["one", "two"]


async def test_what_is_wrong_is_refused(shop: Shop) -> None:
    target = HalfmqPublisher(shop.url, group="other")
    async with AsyncClient(shop.url) as client:
        with pytest.raises(UsageError, match="needs a group"):
            client.relay(shop.outbox, shop.engine)
        with pytest.raises(UsageError, match="broker="):
            client.relay(shop.outbox, shop.engine, to=target, broker="broker-a")
        with pytest.raises(UsageError, match="not an outbox"):
            client.relay(object(), shop.engine, to=target)
        for wrong in ({"workers": 0}, {"attempts": 0}, {"lease": 0}, {"poll": 0}, {"lease": "10s"}, {"attempts": "3"}):
            with pytest.raises(UsageError, match=next(iter(wrong))):
                client.relay(shop.outbox, shop.engine, to=target, **wrong)
        with pytest.raises(UsageError, match="a target is a publisher, not str") as refused:
            client.relay(shop.outbox, shop.engine, to="amqp://guest:secret@127.0.0.1/")
        assert "secret" not in str(refused.value)
        with pytest.raises(UsageError, match="an Engine"):
            client.relay(shop.outbox, sessionmaker(), to=target)
        with pytest.raises(UsageError, match="halfmq db init"):
            async with client.relay(Outbox(MetaData(), "mq_absent"), shop.engine, to=target):
                pass
    with pytest.raises(UsageError, match="not open"):
        client.relay(shop.outbox, shop.engine, to=target)
    for wrong in ({"workers": 0}, {"lease": 0}, {"lease": float("nan")}, {"attempts": 0}, {"poll": -1}):
        (name,) = wrong
        with pytest.raises(UsageError, match=name):
            shop.outbox.relay(shop.engine, target, **wrong)
    target.messages_max = 0
    with pytest.raises(UsageError, match="messages_max"):
        shop.outbox.relay(shop.engine, target)


async def test_an_app_relays_only_on_request(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    app = App(shop.url, group="shop", sessions=shop.sessions)
    app.relay(shop.outbox)
    shop.send("one")
    with monkeypatch.context() as patched:
        patched.setattr(app, "relays", None)  # nobody asks for them
        async with app.run():
            pass
        async with app.lifespan(None):
            pass
    assert shop.left() == 1
    async with app.run(relay=True):
        await until(lambda: not shop.left(), "it is published")
    shop.send("two")
    async with app.run(wait=False, relay=True):
        await until(lambda: not shop.left(), "it is published")
    assert sorted(await shop.consumed()) == ["one", "two"]


async def test_a_relay_of_an_app_that_cannot_work_is_said(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    app = App(shop.url, group="shop")
    with pytest.raises(UsageError, match="no sessions"):
        app.relay(shop.outbox)
    with pytest.raises(UsageError, match="not an outbox"):
        app.relay(object(), sessions=shop.sessions)
    app.relay(absent := Outbox(MetaData(), "mq_absent"), sessions=shop.sessions)
    with pytest.raises(UsageError, match="has a relay already"):
        app.relay(absent, sessions=shop.sessions)
    async with app.run(relay=True):
        await until(lambda: "a relay has ended" in caplog.text, "it is said")
    with pytest.raises(TypeError, match="did you mean 'workers'"):
        app.relay(shop.outbox, sessions=shop.sessions, worker=1)  # type: ignore[call-arg]


async def test_the_relay_says_once_that_its_target_is_away_and_that_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "halfmq.relay")
    monkeypatch.setattr("halfmq.relay.relay._SAY_AGAIN_S", 0.2)
    async with serving(tmp_path / "broker") as running:
        ports = running.ports
        shop = Shop(tmp_path / "shop.db", f"rocketmq://127.0.0.1:{ports.names}")
        stop = asyncio.Event()
        relay = shop.outbox.relay(shop.engine, HalfmqPublisher(shop.url, group="r", timeout_s=0.3), poll=0.02)
        task = asyncio.create_task(relay.run(stop))
        await relay.opened()
        shop.send("one")
        await until(lambda: relay.confirmed == 1)
    for number in range(8):
        shop.send(str(number))
    gone = "the rows are gone although the broker is away"
    await until(
        lambda: "waits, and tries again: " in caplog.text, "it is said", unless=lambda: not shop.left() and gone
    )
    await until(lambda: "has been waiting for " in caplog.text, "and that it still is")
    async with serving(tmp_path / "broker", port=ports.broker, name_port=ports.names):
        await until(lambda: relay.confirmed == 9, "everything is published")
        await until(lambda: "goes on" in caplog.text, "it is said that the broker is back")
        stop.set()
        await soon(task)
    said = [record.getMessage() for record in caplog.records if record.name == "halfmq.relay"]
    assert sum("waits, " in line for line in said) == 1, "for all workers together"
    assert sum("goes on" in line for line in said) == 1
    assert not [line for line in said if "was left by" in line], "the attempts to publish a batch again"
    shop.engine.dispose()
