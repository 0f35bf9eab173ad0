"""Requests and their replies, on both faces of the client: who gets which reply, when it is sent, and what a requester gets without one."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Engine, MetaData, String, Table, create_engine, insert, select
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker
from tests.support.in_process import Running, serving
from tests.support.waiting import until

from halfmq import App, AsyncClient, Client, Message, NoReply, RequestFailed, UsageError
from halfmq.client import request_reply
from halfmq.model.settings import BrokerSettings
from halfmq.sql import Inbox, MarkerTable, Outbox

SETTINGS = BrokerSettings(default_topic_queues=1)
FACES = pytest.mark.parametrize("face", ["async", "blocking"])


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with serving(tmp_path / "broker", settings=SETTINGS) as made:
        yield made


def url(running: Running) -> str:
    return f"rocketmq://127.0.0.1:{running.ports.names}"


async def request(running: Running, face: str, body: object, **options: Any) -> Message:
    """One request of a client of its own."""
    if face == "async":
        async with AsyncClient(url(running)) as mq:
            return await mq.request("prices", body, **options)

    def ask() -> Message:
        with Client(url(running)) as mq:
            return mq.request("prices", body, **options)

    return await asyncio.to_thread(ask)


async def answering(running: Running, face: str, answer: Callable[[Any], Any], count: int) -> None:
    """A consumer whose loop gives ``count`` messages to ``answer``."""
    if face == "async":
        async with AsyncClient(url(running)) as mq, mq.consumer("prices", group="pricing") as messages:
            for _ in range(count):
                message = await anext(messages)
                done = answer(message)
                await done if isinstance(done, Awaitable) else done
                message.ack()
        return

    def loop() -> None:
        with Client(url(running)) as mq, mq.consumer("prices", group="pricing") as messages:
            for _ in range(count):
                message = next(messages)
                answer(message)
                message.ack()

    await asyncio.to_thread(loop)


@FACES
async def test_each_request_gets_its_own_reply(running: Running, face: str) -> None:
    replier = asyncio.ensure_future(
        answering(running, face, lambda message: message.reply({"re": message.json(), "key": message.key}), 3)
    )
    replies = await asyncio.gather(
        *(
            request(running, face, number, key=f"k{number}", properties={"TTL": "mine"}, timeout=20)
            for number in range(3)
        )
    )
    await replier
    assert [reply.json() for reply in replies] == [{"re": number, "key": f"k{number}"} for number in range(3)]
    assert {reply.properties["MSG_TYPE"] for reply in replies} == {"reply"}
    # Nothing but the requests is stored.
    assert {topic for topic in running.state.topics_by_name if "REPLY" in topic} == set()


@FACES
async def test_request_without_a_reply_says_that_it_may_have_been_handled(running: Running, face: str) -> None:
    seen: list[Any] = []
    with pytest.raises(NoReply, match="no reply came in time") as raised:
        await request(running, face, "price?", timeout=0.2)
    assert (raised.value.outcome_known, raised.value.retriable) == (False, False)
    assert "look there before" in raised.value.hint

    def late(message: Message) -> Any:
        seen.append(message)
        if face == "async":
            return _refused(message.reply("late"))
        with pytest.raises(RequestFailed, match="push reply message fail, channel of"):
            message.reply("late")
        return None

    await answering(running, face, late, 1)
    (message,) = seen
    assert message.is_request
    with pytest.raises(UsageError, match="nobody waits for a reply"):
        Message(message._stored._replace(properties=b""), 0, b"x").reply("x")


async def _refused(reply: Awaitable[None]) -> None:
    with pytest.raises(RequestFailed, match="push reply message fail, channel of"):
        await reply


async def test_late_reply_is_dropped_and_the_client_goes_on(running: Running) -> None:
    async with AsyncClient(url(running)) as mq:
        with pytest.raises(NoReply):
            await mq.request("prices", "1", timeout=0.1)
        messages = await mq.consumer("prices", group="pricing").__aenter__()
        first = await anext(messages)
        await first.reply("late")
        first.ack()
        asking = asyncio.ensure_future(mq.request("prices", "2", timeout=20))
        second = await anext(messages)
        await first.reply("late, and again")
        await second.reply("in time")
        second.ack()
        await second.reply("and again")
        assert (await asking).text() == "in time"
        assert len(mq._requests._waiting) == 0


async def test_reply_finds_a_requester_that_has_connected_again(running: Running) -> None:
    async with AsyncClient(url(running)) as mq, AsyncClient(url(running)) as other:
        asking = asyncio.ensure_future(mq.request("prices", "x", timeout=20))
        await until(lambda: "prices" in running.state.topics_by_name, "the request")
        messages = await other.consumer("prices", group="pricing").__aenter__()
        message = await anext(messages)
        (lost,) = mq._context.brokers.established()
        lost.abort("a test")
        await until(lambda: [one for one in mq._context.brokers.established() if one is not lost], "another one")
        await message.reply("here")
        assert (await asking).text() == "here"


@FACES
async def test_closing_the_client_ends_what_waits(running: Running, face: str) -> None:
    if face == "async":
        mq = AsyncClient(url(running))
        await mq.connect()
        asking = asyncio.ensure_future(mq.request("prices", "x", timeout=60))
    else:
        blocking = Client(url(running))
        await asyncio.to_thread(blocking.connect)
        mq = blocking._client
        asking = asyncio.ensure_future(asyncio.to_thread(blocking.request, "prices", "x", timeout=60))
    await until(lambda: "prices" in running.state.topics_by_name, "the request")
    await (mq.close() if face == "async" else asyncio.to_thread(blocking.close))
    with pytest.raises(NoReply, match="the client was closed"):
        await asking


async def test_number_of_waiting_requests_is_bounded(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_reply, "REQUESTS_MAX", 2)
    async with AsyncClient(url(running)) as mq:
        waiting = [asyncio.ensure_future(mq.request("prices", "x", timeout=60)) for _ in range(2)]
        await until(lambda: len(mq._requests._waiting) == 2)
        with pytest.raises(UsageError, match="wait for a reply"):
            await mq.request("prices", "x")
        waiting[0].cancel()  # a caller that gives up leaves its place
        await until(lambda: len(mq._requests._waiting) == 1)
        with pytest.raises(NoReply):
            await mq.request("prices", "x", timeout=0.1)
        waiting[1].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


class Unit:
    """An app whose handler writes a row, replies, and fails at its COMMIT if the body says so."""

    def __init__(self, running: Running, directory: Path, face: str, sends: str) -> None:
        tables = MetaData()
        self.rows = Table("prices", tables, Column("name", String(20), primary_key=True))
        inbox, markers, outbox = Inbox(tables), MarkerTable(tables, min_age_s=0), Outbox(tables)
        self.engine: Engine = create_engine(f"sqlite:///{directory}/prices.db")
        tables.create_all(self.engine)
        more = {"markers": {"markers": markers}, "outbox": {"outbox": outbox}, "": {}}[sends]
        self.app = App(url(running), group="pricing")
        self.handled = ""
        if face == "async":
            self.asynchronous = create_async_engine(f"sqlite+aiosqlite:///{directory}/prices.db")
            self.refuse_commits(self.asynchronous.sync_engine)
            sessions: Any = async_sessionmaker(self.asynchronous)

            async def handle(message: Message, session: Any, *_: Any) -> None:
                self.handled = message.text()
                await session.execute(insert(self.rows).values(name=message.text()))
                await message.reply("held")

        else:
            sessions = sessionmaker(self.engine)
            self.refuse_commits(self.engine)

            def handle(message: Message, session: Any, *_: Any) -> None:  # type: ignore[misc]
                self.handled = message.text()
                session.execute(insert(self.rows).values(name=message.text()))
                message.reply("held")
                with pytest.raises(UsageError, match="has been replied to"):
                    message.reply("twice")

        # One at a time: SQLite has one writer.
        options = {"inbox": inbox, "sessions": sessions, "retries": 0, "concurrency": 1, **more}
        self.app.consumer("prices", group="pricing", **options)(handle)

    def refuse_commits(self, engine: Engine) -> None:
        commit = engine.dialect.do_commit

        def do_commit(connection: Any) -> None:
            if self.handled == "bad":
                raise ConnectionError("the database refuses the COMMIT")
            commit(connection)

        engine.dialect.do_commit = do_commit  # type: ignore[method-assign]

    def names(self) -> list[str]:
        with self.engine.connect() as connection:
            return list(connection.scalars(select(self.rows.c.name)))


@FACES
@pytest.mark.parametrize("sends", ["", "markers", "outbox"])
async def test_handler_of_a_unit_replies_only_after_its_commit(
    running: Running, tmp_path: Path, face: str, sends: str
) -> None:
    unit = Unit(running, tmp_path, face, sends)
    async with AsyncClient(url(running)) as mq:  # so that there is the topic
        refused = asyncio.ensure_future(mq.request("prices", "bad", timeout=20))
        asked = asyncio.ensure_future(mq.request("prices", "good", timeout=20))
        await until(lambda: "prices" in running.state.topics_by_name, "the requests")
        async with unit.app.run():
            reply = await asked
        assert reply.text() == "held"
        with unit.engine.connect() as other:  # what the requester may rely on now
            assert other.scalar(select(unit.rows.c.name).where(unit.rows.c.name == "good")) == "good"
        # It was handled before the other one, or at the same time.
        await mq.close()
        with pytest.raises(NoReply):
            await refused
    assert unit.names() == ["good"]
    if face == "async":
        await unit.asynchronous.dispose()
    unit.engine.dispose()
