"""A block of Try/Confirm/Cancel and its participant, on both faces of the client: what is sent, in which order, and what is refused."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, MetaData, String, Table, create_engine, insert, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from tests.support.in_process import Running, serving
from tests.support.topics import make_topics
from tests.support.waiting import until

from halfmq import App, AsyncClient, Branch, Client, Message, UnsupportedCombination, compose
from halfmq.client import participant, tcc
from halfmq.client.receipts import Prepared
from halfmq.errors import BranchRefused, OutcomeMixed, RequestFailed, TransactionRefused, UsageError
from halfmq.model.settings import BrokerSettings
from halfmq.sql import Barrier, Inbox, MarkerTable

QUICK = BrokerSettings(check_immunity_ms=40, check_interval_ms=40, check_interval_max_ms=80, default_topic_queues=1)
TOPICS = {"confirm": "stock-confirm", "cancel": "stock-cancel"}
TRIES = "stock-try"


class World:
    """A shop, and stock that holds for it."""

    def __init__(self, running: Running, directory: Path, face: str) -> None:
        self.running, self.face = running, face
        self.url = f"rocketmq://127.0.0.1:{running.ports.names}"
        tables = MetaData()
        self.orders = Table("orders", tables, Column("gid", String(64), primary_key=True))
        self.markers = MarkerTable(tables, min_age_s=0, lock_wait_ms=100)
        self.path = directory / "shop.db"
        self.engine = create_engine(f"sqlite:///{self.path}")
        tables.create_all(self.engine)
        self.tables = MetaData()
        self.barrier = Barrier(self.tables)
        self.stock = create_engine(f"sqlite:///{directory}/stock.db")
        self.tables.create_all(self.stock)
        self.sessions = sessionmaker(self.stock)
        self.app = App(self.url, group="stock", sessions=self.sessions)
        #: Calls that had an effect, by op; and those that the participant refused.
        self.done: list[tuple[str, str]] = []
        #: Called with each message before its effect.
        self.before: Callable[[Message], None] = lambda _: None
        self.app.consumer([TRIES, *TOPICS.values()], group="stock", barrier=self.barrier, retries=1)(self.handle)
        #: What the shop calls: a function, or a topic.
        self.tries: Any = lambda branch, body: self.try_(branch, body)

    def handle(self, message: Message, session: Session) -> None:
        self.before(message)
        branch = Branch.of(message)
        assert message.json() == {"article": 7}
        self.done.append((branch.gid, branch.op))
        if branch.op == "try" and message.is_request:
            message.reply("3 are left")

    def try_(self, branch: Branch, body: Any) -> str:
        branch = Branch.from_headers({name.title(): value for name, value in branch.headers().items()})
        with self.sessions() as session, self.barrier.once(session, branch) as first:
            if first:
                self.done.append((branch.gid, branch.op))
        return "held"

    async def order(self, body: Callable[[Any, Callable[[], Any]], Any], **options: Any) -> str:
        """A block with ``body(session, call)``, which calls the try with ``call()``. Returns the id; raises what the block raises."""
        gids: list[str] = []
        if self.face == "blocking":

            def block() -> None:
                with Client(self.url, group="shop") as mq:
                    mq.answer_checks(self.markers, sessionmaker(self.engine))
                    with Session(self.engine) as session, mq.tcc(session, markers=self.markers, **options) as t:
                        gids.append(t.id)
                        session.execute(insert(self.orders).values(gid=t.id))
                        body(session, lambda: t.call(self.tries, {"article": 7}, **TOPICS))

            await asyncio.to_thread(block)
            return gids[0]
        engine = create_async_engine(f"sqlite+aiosqlite:///{self.path}")
        try:
            async with AsyncClient(self.url, group="shop") as mq:
                mq.answer_checks(self.markers, async_sessionmaker(engine))
                async with AsyncSession(engine) as session, mq.tcc(session, markers=self.markers, **options) as t:
                    gids.append(t.id)
                    await session.execute(insert(self.orders).values(gid=t.id))
                    loop = asyncio.get_running_loop()

                    def call() -> Any:
                        work = t.call(self.tries, {"article": 7}, **TOPICS)
                        return asyncio.run_coroutine_threadsafe(work, loop).result()

                    await asyncio.to_thread(body, session, call)
        finally:
            await engine.dispose()
        return gids[0]

    def gids(self) -> list[str]:
        with self.engine.connect() as connection:
            return list(connection.scalars(select(self.orders.c.gid)))

    def ops(self) -> list[str]:
        return [op for _, op in self.done]

    def rows(self) -> list[tuple[str, str]]:
        with self.stock.connect() as connection:
            rows = self.barrier.table.c
            return [tuple(row) for row in connection.execute(select(rows.op, rows.reason).order_by(rows.op))]


@pytest.fixture(params=["async", "blocking"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with serving(tmp_path / "broker", settings=QUICK) as running:
        made = World(running, tmp_path, request.param)
        yield made
        made.engine.dispose()
        made.stock.dispose()


async def test_a_block_that_commits_confirms_and_drops_the_cancel_that_comes_later(world: World) -> None:
    results: list[str] = []
    async with world.app.run():
        gid = await world.order(lambda _, call: results.append(call()), timeout=3)
        await until(lambda: world.ops() == ["try", "confirm"])
        fenced = await world.app.client().fence(
            gid, group="shop", broker=world.running.state.settings.broker_name, since=0
        )
        assert fenced == "COMMITTED"
        # The cancel of a block that fails is sent at once, after that of the first is due.
        await until(lambda: not world.running.state.delayed, "the delayed cancel")
        with pytest.raises(ZeroDivisionError):
            await world.order(lambda _, call: (call(), 1 / 0))
        await until(lambda: world.ops()[2:] == ["try", "cancel"])
    assert results == ["held"]
    assert (world.gids(), world.rows()) == (
        [gid],
        [("cancel", "cancel"), ("confirm", "confirm"), ("try", "try"), ("try", "try")],
    )


async def test_the_cancel_is_on_its_way_before_the_try_is_called(world: World) -> None:
    """An initiator that dies in the try: nothing but the cancel is there, and it is delayed."""
    seen: list[int] = []
    world.try_ = lambda branch, body: seen.append(len(world.running.state.delayed))  # type: ignore[method-assign, assignment]
    await world.order(lambda _, call: call())
    assert seen == [1]


async def test_confirm_and_cancel_have_the_body_as_it_was_before_the_try(world: World) -> None:
    """The participant asserts it."""

    def uses_up(branch: Branch, body: Any) -> None:
        World.try_(world, branch, body)
        body.clear()

    world.try_ = uses_up  # type: ignore[method-assign, assignment]
    async with world.app.run():
        await world.order(lambda _, call: call())
        with pytest.raises(ZeroDivisionError):
            await world.order(lambda _, call: (call(), 1 / 0))
        await until(lambda: sorted(world.ops()) == ["cancel", "confirm", "try", "try"])


async def test_a_failed_try_that_the_application_catches_fails_the_block_nevertheless(world: World) -> None:
    """It may have held something, and a commit would drop its cancel."""

    def answer_is_lost(branch: Branch, body: Any) -> None:
        World.try_(world, branch, body)
        raise ConnectionError

    world.try_ = answer_is_lost  # type: ignore[method-assign, assignment]

    def body(_: Any, call: Callable[[], Any]) -> None:
        with pytest.raises(ConnectionError):
            call()

    async with world.app.run():
        with pytest.raises(UsageError, match="cannot commit"):
            await world.order(body)
        await until(lambda: world.ops() == ["try", "cancel"])
    assert world.gids() == []


async def test_a_block_that_takes_longer_than_its_time_is_rolled_back(world: World) -> None:
    def body(_: Any, call: Callable[[], Any]) -> None:
        call()
        asyncio.run(until(lambda: world.ops() == ["try", "cancel"], "the cancel of the time"))

    async with world.app.run():
        with pytest.raises(TransactionRefused, match="before it was prepared"):
            # Long enough to begin the branch on a busy machine; the time is over once the cancel has come.
            await world.order(body, timeout=3)
        with pytest.raises(TransactionRefused, match="takes longer than its"):
            await world.order(lambda _, call: call(), timeout=0.000_001)
    assert world.gids() == []


async def test_a_committed_block_that_was_overruled_says_what_is_left_to_do(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its branches are cancelled: a confirm that is sent now is a BranchConflict."""
    prepare = AsyncClient.prepare

    async def overruled(self: AsyncClient, messages: Any, **named: Any) -> Prepared:
        prepared = await prepare(self, messages, **named)
        # Before the local COMMIT: after it a check could be first.
        await self.rollback(prepared)
        return prepared

    monkeypatch.setattr(AsyncClient, "prepare", overruled)
    async with world.app.run():
        with pytest.raises(OutcomeMixed, match="branches are cancelled") as raised:
            await world.order(lambda _, call: call())
        await until(lambda: world.ops() == ["try", "cancel"], "the cancel")
    assert world.gids() == [raised.value.tx_id]
    assert raised.value.standing == "ROLLED_BACK"
    assert raised.value.hint.startswith("undo its rows")
    assert "new transaction" not in str(raised.value)


@pytest.mark.parametrize("world", ["blocking"], indirect=True)
async def test_a_try_cannot_be_in_a_savepoint(world: World) -> None:
    def body(session: Any, call: Callable[[], Any]) -> None:
        with session.begin_nested():
            call()

    with pytest.raises(UsageError, match="savepoint"):
        await world.order(body)
    assert (world.gids(), world.ops()) == ([], [])


async def test_nothing_is_tried_after_the_block(world: World) -> None:
    """It would be held for ever: the block has committed, so that its cancel is dropped, and it has no confirm."""
    blocks: list[Any] = []

    def blocking() -> None:
        with Client(world.url, group="shop") as mq, Session(world.engine) as session:
            with mq.tcc(session, markers=world.markers, checked_elsewhere=True) as t:
                t.call(world.try_, {"article": 7}, **TOPICS)
            with pytest.raises(UsageError, match="has ended"):
                t.call(world.try_, {"article": 7}, **TOPICS)
            blocks.append(t)

    if world.face == "blocking":
        await asyncio.to_thread(blocking)
    else:
        engine = create_async_engine(f"sqlite+aiosqlite:///{world.path}")
        async with AsyncClient(world.url, group="shop") as mq, AsyncSession(engine) as session:
            async with mq.tcc(session, markers=world.markers, checked_elsewhere=True) as t:
                await t.call(world.try_, {"article": 7}, **TOPICS)
            with pytest.raises(UsageError, match="has ended"):
                await t.call(world.try_, {"article": 7}, **TOPICS)
            blocks.append(t)
        await engine.dispose()
    assert (world.ops(), blocks[0].receipt.verdict) == (["try"], "COMMITTED")


@pytest.mark.parametrize("world", ["async"], indirect=True)
async def test_a_call_that_is_beginning_at_the_end_of_the_block_tries_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that asks for the broker when the block ends: nothing says yet that it is a branch."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{world.path}")
    async with AsyncClient(world.url, group="shop") as mq:
        asked, go_on, place = asyncio.Event(), asyncio.Event(), mq._place_of_tcc

        async def slow(topic: str) -> tuple[str, int]:
            asked.set()
            await go_on.wait()
            return await place(topic)

        monkeypatch.setattr(mq, "_place_of_tcc", slow)
        async with AsyncSession(engine) as session, mq.tcc(session, markers=world.markers, checked_elsewhere=True) as t:
            task = asyncio.create_task(t.call(world.try_, {"article": 7}, **TOPICS))
            await asked.wait()
        go_on.set()
        with pytest.raises(UsageError, match="has ended"):
            await task
    await engine.dispose()
    assert world.ops() == []


@pytest.mark.parametrize("world", ["async"], indirect=True)
async def test_calls_at_the_same_time_are_at_one_broker(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancel that asks another broker than the one that has the transaction would be told that nobody prepared it."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{world.path}")
    seen: list[Branch] = []
    async with AsyncClient(world.url, group="shop") as mq:
        name, places = world.running.state.settings.broker_name, iter(range(9))

        async def place(topic: str) -> tuple[str, int]:
            since = next(places)
            await asyncio.sleep(0)
            return name, since

        monkeypatch.setattr(mq, "_place_of_tcc", place)
        async with AsyncSession(engine) as session, mq.tcc(session, markers=world.markers, checked_elsewhere=True) as t:
            await asyncio.gather(*[t.call(lambda branch, _: seen.append(branch), 1, **TOPICS) for _ in range(3)])
    await engine.dispose()
    assert [(one.branch, one.since) for one in sorted(seen)] == [("1", 0), ("2", 0), ("3", 0)]


@pytest.mark.parametrize("world", ["blocking"], indirect=True)
async def test_a_try_that_nobody_awaits_is_refused(world: World) -> None:
    """On the blocking face: its confirm would be sent, and nothing was tried."""

    async def reserve(branch: Branch, body: Any) -> str:
        return World.try_(world, branch, body)

    for try_ in (reserve, lambda branch, body: reserve(branch, body)):
        world.try_ = try_  # type: ignore[method-assign, assignment]
        with pytest.raises(UsageError, match="nobody awaits"):
            await world.order(lambda _, call: call())
    assert (world.gids(), world.ops()) == ([], [])


@pytest.mark.parametrize("world", ["async"], indirect=True)
async def test_a_block_that_failed_does_not_wait_for_a_broker_that_is_away(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its cancels come when the time is over. Seen: half a minute, with the default of 30 s."""
    monkeypatch.setattr(tcc, "_COURTESY_S", 0.05)
    caplog.set_level("INFO")

    async def away(*_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(AsyncClient, "fence", away)
    with pytest.raises(ZeroDivisionError):
        await world.order(lambda _, call: (call(), 1 / 0))
    assert "not now: no answer in time" in caplog.text


async def test_the_cancel_of_an_undecided_transaction_waits_and_is_no_attempt(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More often than a handler may fail, until the initiator is back. Method: halves without a verdict, and nobody who answers checks."""
    monkeypatch.setattr(participant, "LATER_S", 0.02)
    monkeypatch.setattr(participant, "LATER_MAX_S", 0.02)
    fences: list[str] = []
    fence = world.app.client().fence

    async def counted(tx_id: str, **named: Any) -> Any:
        fences.append(tx_id)
        return await fence(tx_id, **named)

    world.app.client().fence = counted  # type: ignore[method-assign]
    attempts: list[int] = []
    world.before = lambda message: attempts.append(message.attempt)
    name = world.running.state.settings.broker_name
    tried = Branch("tcc.1", "shop", "1", "try", name, 0)
    world.try_(tried, None)
    async with AsyncClient(world.url, group="shop") as mq, world.app.run():
        prepared = await mq.prepare([compose("stock-confirm", b"{}")], tx_id="tcc.1", broker=name)
        await mq.send(
            "stock-cancel", {"article": 7}, key="k", tag="t", properties=tried._replace(op="cancel").properties()
        )
        await until(lambda: len(fences) >= 5)
        await mq.rollback(prepared)
        await until(lambda: world.ops() == ["try", "cancel"])
        assert attempts == [1]
        async with mq.consumer("%DLQ%stock", group="looks") as dead:
            assert await dead.get(0.05) is None


async def test_a_participant_is_told_what_it_must_not_do(world: World, tmp_path: Path) -> None:
    app = App(world.url, group="g", sessions=world.sessions)
    with pytest.raises(UnsupportedCombination, match="an inbox or a barrier"):
        app.consumer("t", group="g", barrier=world.barrier, inbox=Inbox(MetaData()))
    with pytest.raises(UnsupportedCombination, match="on_dead"):
        app.consumer("t", group="g", barrier=world.barrier, on_dead=lambda message, session: None)
    with pytest.raises(UsageError, match="is no barrier"):
        app.consumer("t", group="g", barrier=object())(lambda message, session: None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="barrier and no sessions"):
        App(world.url, group="g").consumer("t", group="g", barrier=world.barrier)(lambda message, session: None)
    with pytest.raises(UsageError, match="0 marker tables"):
        app.tcc(None)
    assert world.barrier in world.app.declared()


async def test_a_try_as_a_message_that_is_late_is_dropped(world: World) -> None:
    name = world.running.state.settings.broker_name
    tried = Branch("tcc.1", "shop", "1", "try", name, 0)
    async with AsyncClient(world.url, group="shop") as mq, world.app.run():
        await mq.send("stock-cancel", {"article": 7}, properties=tried._replace(op="cancel").properties())
        await until(lambda: world.rows() == [("try", "cancel")])
        await mq.send("stock-confirm", {"article": 7}, properties=tried.properties())
        other = tried._replace(gid="tcc.2")
        await mq.send("stock-confirm", {"article": 7}, properties=other.properties())
        await until(lambda: world.done == [("tcc.2", "try")])
        assert world.rows()[0] == ("try", "cancel")


async def test_a_fence_past_retention_cancels_nothing(world: World) -> None:
    world.running.state.log_start += 1
    async with AsyncClient(world.url, group="shop") as mq:
        with pytest.raises(RequestFailed, match="past retention"):
            await mq.fence("tcc.1", group="shop", broker=world.running.state.settings.broker_name, since=0)


def test_headers_and_properties_say_which_call_it_is() -> None:
    branch = Branch("tcc.1", "shop", "2", "cancel", "broker-a", 4_096)
    assert Branch.from_headers({name.upper(): value for name, value in branch.headers().items()}) == branch
    assert all("_" not in name for name in branch.headers())
    for name in branch.headers():
        with pytest.raises(UsageError, match="no call of a branch"):
            Branch.from_headers({**branch.headers(), name: ""})
    with pytest.raises(UsageError, match="position"):
        Branch.from_headers({**branch.headers(), "hmq-tcc-since": "-1"})


async def test_try_over_messages_is_held_before_it_is_answered(world: World) -> None:
    await make_topics(world.url, TRIES)
    world.tries = TRIES
    replies: list[Message] = []

    def body(_: Any, call: Callable[[], Any]) -> None:
        replies.append(call())
        assert world.rows() == [("try", "try")]

    async with world.app.run():
        gid = await world.order(body)
        await until(lambda: world.ops() == ["try", "confirm"])
    assert [reply.text() for reply in replies] == ["3 are left"]
    assert world.gids() == [gid]


async def test_try_over_messages_that_is_refused_fails_the_block_and_is_consumed(world: World) -> None:
    await make_topics(world.url, TRIES)
    world.tries = TRIES
    handled: list[Message] = []

    def refuse(message: Message) -> None:
        handled.append(message)
        raise BranchRefused("nothing is left\x02")

    world.before = refuse
    async with world.app.run():
        with pytest.raises(BranchRefused, match="is refused by who reads stock-try: nothing is left"):
            await world.order(lambda _, call: call())
        await until(lambda: world.rows() == [("try", "cancel")], "the cancel")
    assert (world.gids(), world.ops(), len(handled)) == ([], [], 1)
    # It is neither in the retry queue nor a dead letter.
    assert not any(topic.startswith("%DLQ%") for topic in world.running.state.topics_by_name)
    assert len(world.running.state.delayed) == 1, "beside the cancel that comes when the time is over"


@pytest.mark.parametrize("world", ["blocking"], indirect=True)
async def test_try_that_comes_again_is_answered_from_the_row_of_the_barrier(world: World) -> None:
    await make_topics(world.url, TRIES)
    tried = Branch("g1", "shop", "1", "try", world.running.state.settings.broker_name, 0)
    async with world.app.run(), AsyncClient(world.url) as mq:

        async def ask(branch: Branch) -> Message:
            return await mq.request(TRIES, {"article": 7}, timeout=20, properties=branch.properties())

        assert [(await ask(tried)).text() for _ in range(3)] == ["3 are left", "held", "held"]
        assert world.ops() == ["try"]
        late = tried._replace(gid="g2")
        with world.sessions() as session, world.barrier.once(session, late._replace(op="cancel")) as first:
            assert not first
        reply = await ask(late)
        assert "was cancelled before this try arrived" in reply.properties["HMQ_TCC_REFUSED"]
        await mq.send(TRIES, {"article": 7}, properties=tried._replace(gid="g3").properties())
        await until(lambda: world.ops() == ["try", "try"], "a try that asks for no reply")
