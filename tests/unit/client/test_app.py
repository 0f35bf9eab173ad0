"""Decorated transactions, checks and consumers."""

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import pytest
from tests.support.scripted_broker import URL, Dice, Network, ScriptedBroker, in_place
from tests.support.virtual_time import LoopClock, run

from halfmq.client.app import App
from halfmq.client.listener import TransactionListener
from halfmq.client.message import Message
from halfmq.client.outcome import Outcome
from halfmq.client.transaction_block import AsyncTransaction, Transaction
from halfmq.errors import UsageError


@dataclass
class Order:
    id: int


def app_of(network: Network, **options: Any) -> App:
    return App(
        URL, group="orders", connector=network, clock=LoopClock(), entropy=Dice(), run_blocking=in_place, **options
    )


def test_decorated_transaction_commits_on_return_and_rolls_back_on_exception() -> None:
    async def test() -> None:
        broker = ScriptedBroker()
        app = app_of(broker.network())

        @app.transaction("order.create", topic="order-created")
        async def create_order(tx: AsyncTransaction, order: Order) -> int:
            tx.send(order, keys=[order.id])
            if order.id < 0:
                raise ValueError("no such order")
            return order.id

        @create_order.check
        async def was_created(tx: Transaction) -> Outcome:
            return Outcome.COMMIT

        async with app.run():
            assert await create_order(Order(7)) == 7
            with pytest.raises(ValueError, match="no such order"):
                await create_order(Order(-1))
        assert broker.visible("order-created") == [b'{"id":7}']

    run(test())


def test_each_transaction_has_its_own_check() -> None:
    async def test() -> None:
        broker = ScriptedBroker()
        app = app_of(broker.network())
        asked: list[str] = []

        @app.transaction("a", topic="t")
        def first(tx: AsyncTransaction) -> None:
            raise AssertionError("not called here")

        @first.check
        def first_check(tx: Transaction) -> Outcome:
            asked.append(f"a {tx.key}")
            return Outcome.COMMIT

        @app.transaction("b", topic="t")
        async def second(tx: AsyncTransaction) -> None:
            tx.send(b"b", key="kb")
            await tx.prepare()
            raise asyncio.CancelledError  # as a crash before the verdict

        @second.check
        async def second_check(tx: Transaction) -> Outcome:
            asked.append(f"b {tx.key}")
            return Outcome.ROLLBACK

        async with app.run():
            with pytest.raises(asyncio.CancelledError):
                await second()
            broker.check(0, "orders")
            await asyncio.sleep(0.1)
        assert asked == ["b kb"]
        assert list(broker.verdicts.values()) == [12]

    run(test())


def test_transaction_without_check_is_warned_of_and_a_name_is_taken_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        app = app_of(ScriptedBroker().network())

        @app.transaction("unchecked")
        async def one(tx: AsyncTransaction) -> None: ...

        with pytest.raises(UsageError, match="taken"):

            @app.transaction("unchecked")
            async def two(tx: AsyncTransaction) -> None: ...

        async with app.run():
            pass

    with caplog.at_level(logging.WARNING):
        run(test())
    assert "unchecked" in caplog.text


def test_listener_class_for_those_who_come_from_java() -> None:
    async def test() -> None:
        broker = ScriptedBroker()
        app = app_of(broker.network())

        @app.transaction_listener("order.create")
        class OrderListener(TransactionListener):
            def execute(self, message: Message, arg: Any) -> Outcome:
                return Outcome.UNKNOWN

            def check(self, message: Message) -> Outcome:
                return Outcome.COMMIT

        async with app.run() as mq:
            receipt = await mq.send_in_transaction("t", b"x", listener=app.listener("order.create"))
            assert receipt.verdict == "UNDECIDED"
            broker.check(0, "orders")
            await asyncio.sleep(0.1)
        assert broker.visible("t") == [b"x"]
        with pytest.raises(UsageError, match="nobody"):
            app.listener("nobody")

    run(test())


def test_consumer_functions_get_decoded_bodies_and_failures_come_again() -> None:
    async def test() -> None:
        broker = ScriptedBroker(queues=1)
        broker.topics.add("t")
        app = app_of(broker.network())
        got: list[Any] = []

        @app.consumer("t", group="billing", concurrency=2)
        async def bill(order: Order) -> None:
            got.append(order)
            if len(got) == 1:
                raise RuntimeError("try again")

        broker.append("t", 0, b'{"id":7}')
        async with app.run():
            await asyncio.sleep(5)
            broker.append("t", 0, b'{"id":8}')
            await asyncio.sleep(5)
        assert got == [Order(7), Order(8)]
        assert len(broker.requests(36)) == 1
        assert broker.offsets["billing", "t", 0] == 2

    run(test())


def test_end_of_run_waits_for_handlers() -> None:
    async def test() -> None:
        broker = ScriptedBroker(queues=1)
        broker.topics.add("t")
        app = app_of(broker.network())
        done: list[str] = []

        @app.consumer("t", group="g")
        async def slow(message: Message) -> None:
            await asyncio.sleep(5)
            done.append(message.text())

        broker.append("t", 0, b"x")
        async with app.run():
            await asyncio.sleep(2)
        assert done == ["x"]
        assert broker.offsets["g", "t", 0] == 1

    run(test())


def test_end_of_run_starts_no_handler_more_under_a_backlog() -> None:
    async def test() -> None:
        broker = ScriptedBroker(queues=1)
        broker.topics.add("t")
        app = app_of(broker.network())
        begun = 0

        @app.consumer("t", group="g")
        async def handle(message: Message) -> None:
            nonlocal begun
            begun += 1
            await asyncio.sleep(0.05)

        for _ in range(10_000):
            broker.append("t", 0, b"x")
        async with app.run():
            await asyncio.sleep(2)
            before, end = begun, asyncio.get_running_loop().time()
        assert begun == before > 0
        assert asyncio.get_running_loop().time() - end < 1
        assert broker.offsets["g", "t", 0] == begun

    run(test())


def test_handler_that_does_not_end_is_cancelled_and_its_message_stays() -> None:
    async def test() -> None:
        broker = ScriptedBroker(queues=1)
        broker.topics.add("t")
        app = app_of(broker.network())

        @app.consumer("t", group="g")
        async def endless(message: Message) -> None:
            await asyncio.sleep(3_600)

        broker.append("t", 0, b"x")
        start = asyncio.get_running_loop().time()
        async with app.run():
            await asyncio.sleep(2)
        assert asyncio.get_running_loop().time() - start < 40
        assert broker.offsets["g", "t", 0] == 0

    run(test())


def test_health_and_lifespan() -> None:
    async def test() -> None:
        app = app_of(ScriptedBroker().network())
        assert not await app.healthy()
        async with app.lifespan(object()) as client:
            assert client is app.client()
            assert await app.healthy()

    run(test())
