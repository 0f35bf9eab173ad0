"""``app.test.deliver``: a consumer handles a message without a broker, and the test sees what became of it."""

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, insert, select
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import NullPool

from halfmq import App, Message, UsageError
from halfmq.client.direct_delivery import Handling
from halfmq.sql import Inbox, MarkerTable
from halfmq.testing import Broker

URL = "rocketmq://127.0.0.1:1"


@dataclasses.dataclass
class Order:
    id: int


def an_app() -> tuple[App, list[Any]]:
    app, seen = App(URL, group="g"), []  # type: tuple[App, list[Any]]

    @app.consumer("orders", group="billing", retries=2)
    async def bill(order: Order) -> None:
        seen.append(order)
        if order.id < 0:
            raise ValueError("no such order")

    return app, seen


async def test_the_body_is_decoded_and_the_message_acknowledged() -> None:
    app, seen = an_app()
    done = await app.test.deliver("orders", Order(7), key="k", tag="web", properties={"p": "v"})
    assert (done.outcome, done.error, seen) == (Handling.HANDLED, None, [Order(7)])
    assert (done.message.keys, done.message.tag, done.message.properties["p"]) == (("k",), "web", "v")
    assert len(done.message.message_id) == 32


@pytest.mark.parametrize("attempt", [1, 2])
async def test_a_failure_hands_it_back(attempt: int) -> None:
    app, seen = an_app()
    done = await app.test.deliver("orders", Order(-1), attempt=attempt)
    assert (done.outcome, repr(done.error), done.delay_s) == (Handling.RETRIED, "ValueError('no such order')", None)
    assert done.message.attempt == attempt
    assert (await app.test.redeliver(done)).message.attempt == attempt + 1
    assert len(seen) == 2


def hands_back(message: Message) -> Any:
    return message.retry(delay=60)


def raises(message: Message) -> Any:
    raise ValueError


@pytest.mark.parametrize("sharding_key", [None, "k"])
@pytest.mark.parametrize("fails", [raises, hands_back])
@pytest.mark.parametrize("on_dead", [False, True])
@pytest.mark.parametrize("times", [0, 2])
async def test_the_last_attempt_is_the_one_that_the_message_says_is_the_last(
    sharding_key: str | None, fails: Any, on_dead: bool, times: int
) -> None:
    app, last = App(URL, group="g"), []  # type: tuple[App, list[bool]]

    async def handle(message: Message) -> None:
        last.append(message.is_last_attempt)
        done = fails(message)
        if done is not None:
            await done

    async def compensate(message: Message) -> None: ...

    app.consumer("orders", group="billing", retries=times, on_dead=compensate if on_dead else None)(handle)
    # What a handler hands back itself, the broker gives up: there is nobody to compensate.
    end = Handling.COMPENSATED if on_dead and fails is raises else Handling.DEAD
    done = await app.test.deliver("orders", b"x", sharding_key=sharding_key)
    outcomes = [done.outcome]
    while done.outcome is Handling.RETRIED and len(outcomes) <= times:
        assert done.delay_s is not None or (fails is raises and sharding_key is None)
        done = await app.test.redeliver(done)
        outcomes.append(done.outcome)
    assert outcomes == [Handling.RETRIED] * times + [end]
    assert last == [False] * times + [True]
    assert done.delay_s is None
    assert (await app.test.deliver("orders", b"x", sharding_key=sharding_key, attempt=times + 1)).outcome is end


async def test_a_body_that_cannot_be_decoded_is_a_dead_letter_at_once() -> None:
    app, seen = an_app()
    done = await app.test.deliver("orders", {"id": "seven"})
    assert (done.outcome, seen) == (Handling.DEAD, [])
    assert done.error is not None
    assert isinstance(done.error.__cause__, msgspec.ValidationError)


async def test_a_plain_handler_runs_and_sees_the_message() -> None:
    app, seen = App(URL, group="g"), []  # type: tuple[App, list[Message]]

    @app.consumer("orders", group="billing")
    def bill(message: Message) -> None:
        seen.append(message)
        message.reply("yes")

    done = await app.test.deliver("orders", "x", is_request=True)
    assert (done.outcome, done.replies) == (Handling.HANDLED, (b"yes",))
    assert seen == [done.message]


async def test_the_inbox_lets_a_message_have_its_effect_once(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/db")
    metadata = MetaData()
    rows, inbox = Table("rows", metadata, Column("id", Integer, primary_key=True)), Inbox(metadata)
    metadata.create_all(engine)
    app = App(URL, group="g", sessions=sessionmaker(engine))
    fails = [True]

    @app.consumer("orders", group="billing", inbox=inbox)
    def bill(order: Order, session: Any) -> None:
        session.execute(insert(rows).values(id=order.id))
        if fails:
            fails.pop()
            raise RuntimeError

    first = await app.test.deliver("orders", Order(7))
    again = await app.test.redeliver(first)
    third = await app.test.redeliver(again)
    assert [first.outcome, again.outcome, third.outcome] == [Handling.RETRIED, Handling.HANDLED, Handling.DUPLICATE]
    other = await app.test.deliver("orders", Order(8))
    assert other.outcome is Handling.HANDLED
    with engine.connect() as connection:
        assert list(connection.scalars(select(rows.c.id))) == [7, 8]


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_handler_that_sends_in_transactions_needs_a_running_app(tmp_path: Path, is_async: bool) -> None:
    metadata = MetaData()
    inbox, markers = Inbox(metadata), MarkerTable(metadata)
    plain = create_engine(f"sqlite:///{tmp_path}/db")
    metadata.create_all(plain)
    sessions: Any = sessionmaker(plain)
    if is_async:
        sessions = async_sessionmaker(create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/db", poolclass=NullPool))

    def app_at(url: str) -> App:
        app = App(url, group="g", sessions=sessions)
        app.answer_checks(markers)

        async def bill_async(order: Order, session: Any, tx: Any) -> None:
            tx.send("bills", order)

        def bill(order: Order, session: Any, tx: Any) -> None:
            tx.send("bills", order)

        app.consumer("orders", group="billing", inbox=inbox, markers=markers)(bill_async if is_async else bill)  # type: ignore[call-overload]
        return app

    with pytest.raises(UsageError, match=r"the handler of topic orders sends in transactions .*app\.run"):
        await app_at(URL).test.deliver("orders", Order(7))
    with Broker() as broker:
        app, sent = app_at(broker.url), broker.sent()
        async with app.run():
            done = await app.test.deliver("orders", Order(7))
        assert (done.outcome, done.error) == (Handling.HANDLED, None)
        assert [message.json() for message in sent("bills")] == [{"id": 7}]


async def test_what_follows_the_last_failure() -> None:
    app, dead = App(URL, group="g"), []  # type: tuple[App, list[str]]

    async def fail(message: Message) -> None:
        raise ValueError

    async def make_amends(message: Message) -> None:
        dead.append(message.text())
        if message.text() == "worse":
            raise KeyError

    app.consumer("compensated", group="a", retries=2, on_dead=make_amends)(fail)
    app.consumer("ordered", group="b", retries=2)(fail)
    for topic, attempt, body, outcome, delay_s in (
        ("compensated", 2, "x", Handling.RETRIED, None),
        ("compensated", 3, "x", Handling.COMPENSATED, None),
        ("compensated", 3, "worse", Handling.RETRIED, 1.0),
        ("ordered", 2, "x", Handling.RETRIED, 2.0),
        ("ordered", 3, "x", Handling.DEAD, None),
    ):
        key = "s" if topic == "ordered" else None
        done = await app.test.deliver(topic, body, attempt=attempt, sharding_key=key)
        assert (done.outcome, done.delay_s) == (outcome, delay_s), (topic, attempt, body)
    assert dead == ["x", "worse"]


async def test_a_message_is_redelivered_to_the_group_that_had_it() -> None:
    app, seen = App(URL, group="g"), []  # type: tuple[App, list[tuple[str, int]]]

    @app.consumer("orders", group="billing")
    async def bill(message: Message) -> None:
        seen.append(("billing", message.attempt))

    @app.consumer("orders", group="stock")
    async def reserve(message: Message) -> None:
        seen.append(("stock", message.attempt))

    done = await app.test.deliver("orders", b"x", group="stock")
    assert done.group == "stock"
    again = await app.test.redeliver(done)
    await app.test.redeliver(again)
    await app.test.redeliver(again, group="billing")
    assert seen == [("stock", 1), ("stock", 2), ("stock", 3), ("billing", 3)]


@pytest.mark.parametrize("attempt", [0, -1, 1.5, None])
async def test_attempts_are_counted_from_one(attempt: Any) -> None:
    app, seen = an_app()
    with pytest.raises(UsageError, match="attempt="):
        await app.test.deliver("orders", Order(7), attempt=attempt)
    assert seen == []


async def test_the_handler_may_say_itself_what_becomes_of_the_message() -> None:
    app = App(URL, group="g")

    @app.consumer("t", group="a")
    async def handle(message: Message) -> None:
        await (message.reject() if message.text() == "bad" else message.retry(30))

    assert (await app.test.deliver("t", "bad")).outcome is Handling.DEAD
    later = await app.test.deliver("t", "good")
    assert (later.outcome, later.delay_s) == (Handling.RETRIED, 30)


async def test_one_consumer_must_be_meant() -> None:
    app, _ = an_app()

    @app.consumer("orders", group="stock", tags="web || app")
    async def reserve(order: Order) -> None: ...

    assert (await app.test.deliver("orders", Order(1), tag="shop")).outcome is Handling.HANDLED
    with pytest.raises(UsageError, match="several consumers take topic 'orders', tag 'web': billing, stock"):
        await app.test.deliver("orders", Order(1), tag="web")
    assert (await app.test.deliver("orders", Order(1), tag="web", group="stock")).outcome is Handling.HANDLED
    with pytest.raises(UsageError, match="no consumer takes topic 'unknown'"):
        await app.test.deliver("unknown", "x")
    with pytest.raises(UsageError, match="no consumer of group stock takes topic 'orders'"):
        await app.test.deliver("orders", Order(1), group="stock")
