"""``@mq.consumer``: what a handler writes, and the row of its inbox, have one outcome. Deliveries without a broker, real databases."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from django.db import IntegrityError, connections, transaction

from halfmq import App, Message
from halfmq.client.direct_delivery import Delivered, Handling
from halfmq.django import consumer, consumers, send_on_commit
from halfmq.django.configuration import configuration
from halfmq.django.inbox import Inbox
from halfmq.django.markers import Markers
from halfmq.django.models import Handled, OutboxMessage
from halfmq.errors import UsageError
from tests.django.conftest import MARIADB, POSTGRES
from tests.django.shop.models import Order
from tests.support.children import fork
from tests.support.waiting import PATIENCE_S
from tests.unit.sql.memory_broker import MemoryBroker, MemoryClient


@dataclass
class Placed:
    note: str


class Received(NamedTuple):
    message_id: str


@pytest.fixture(autouse=True)
def _no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "_registered", [])


def app() -> App:
    """What the worker runs."""
    return consumers.app_of(configuration(), consumers.registered())


def deliver(note: str, **options: Any) -> Delivered:
    return asyncio.run(app().test.deliver("orders", {"note": note}, **options))


def twice(note: str) -> list[Handling]:
    async def both() -> list[Handling]:
        test = app().test
        first = await test.deliver("orders", {"note": note})
        return [first.outcome, (await test.redeliver(first)).outcome]

    return asyncio.run(both())


def notes() -> list[str]:
    return sorted(Order.objects.values_list("note", flat=True))


def test_a_second_delivery_does_nothing(using: str) -> None:
    @consumer("orders", group="billing")
    def bill(order: Placed) -> None:
        Order.objects.create(note=order.note)

    assert twice("a") == [Handling.HANDLED, Handling.DUPLICATE]
    assert notes() == ["a"]
    assert Handled.objects.get().consumer_group == "billing"


def test_a_handler_that_raises_has_written_nothing_and_may_run_again(using: str) -> None:
    fails = [True]

    @consumer("orders", group="billing")
    def bill(order: Placed) -> None:
        Order.objects.create(note=order.note)
        send_on_commit("billed", order.note)
        if fails:
            raise RuntimeError(fails.pop())

    async def both() -> list[Handling]:
        test = app().test
        first = await test.deliver("orders", {"note": "a"})
        assert await asyncio.to_thread(seen) == ([], 0, 0)
        return [first.outcome, (await test.redeliver(first)).outcome]

    def seen() -> tuple[list[str], int, int]:
        try:
            return notes(), Handled.objects.count(), OutboxMessage.objects.count()
        finally:
            connections[using].close()

    assert asyncio.run(both()) == [Handling.RETRIED, Handling.HANDLED]
    assert seen() == (["a"], 1, 1)


@pytest.mark.parametrize("shape", ["message", "body", "both", "dead"])
def test_a_handler_takes_the_body_the_message_or_both(using: str, shape: str) -> None:
    taken: list[Any] = []

    def by_message(message: Message) -> None:
        taken.append(message.text())

    def by_body(order: Placed) -> None:
        taken.append(order)

    def by_both(order: Placed, message: Message) -> None:
        taken.append((order, message.text()))

    def fails(order: Placed) -> None:
        raise RuntimeError

    text = '{"note":"a"}'
    made: dict[str, tuple[Callable[..., None], Callable[..., None] | None, Any]] = {
        "message": (by_message, None, text),
        "body": (by_body, None, Placed("a")),
        "both": (by_both, None, (Placed("a"), text)),
        "dead": (fails, by_both, (Placed("a"), text)),
    }
    function, on_dead, expected = made[shape]
    assert consumer("orders", group="billing", retries=0, on_dead=on_dead)(function) is function
    assert deliver("a").outcome is (Handling.COMPENSATED if on_dead else Handling.HANDLED)
    assert taken == [expected]


def test_without_an_inbox_each_delivery_is_handled_and_there_is_no_transaction(using: str) -> None:
    @consumer("orders", group="billing", inbox=False)
    def bill(order: Placed, message: Message) -> None:
        assert not connections[using].in_atomic_block
        Order.objects.create(note=f"{order.note}{message.attempt}")

    assert twice("a") == [Handling.HANDLED, Handling.HANDLED]
    assert notes() == ["a1", "a2"]
    assert not Handled.objects.exists()


def test_the_key_says_which_messages_are_the_same(using: str) -> None:
    @consumer("orders", group="billing", key=lambda message: message.keys[0])
    def bill(order: Placed) -> None:
        Order.objects.create(note=order.note)

    assert deliver("a", key="order-1").outcome is Handling.HANDLED
    assert deliver("b", key="order-1").outcome is Handling.DUPLICATE
    assert notes() == ["a"]


@pytest.mark.parametrize("end", ["set_rollback", "caught", "COMMIT"])
def test_a_transaction_that_was_lost_is_not_taken_for_handled(using: str, end: str) -> None:
    Order.objects.create(note="there")

    @consumer("orders", group="billing")
    def bill(order: Placed) -> None:
        Order.objects.create(note=order.note)
        if end == "set_rollback":
            transaction.set_rollback(True)
        elif end == "caught":
            with pytest.raises(IntegrityError):
                Order.objects.create(note="there")
        else:
            with connections[using].cursor() as cursor:
                cursor.execute("COMMIT")

    delivered = deliver("a")
    assert delivered.outcome is Handling.RETRIED
    assert isinstance(delivered.error, UsageError)
    assert "the handler" in str(delivered.error)
    assert notes() == ["there"]
    assert not Handled.objects.exists()


def test_a_function_of_on_commit_that_raises_leaves_the_message_handled(
    using: str, caplog: pytest.LogCaptureFixture
) -> None:
    @consumer("orders", group="billing", retries=0)
    def bill(order: Placed) -> None:
        Order.objects.create(note=order.note)
        transaction.on_commit(lambda: 1 / 0)

    assert deliver("a").outcome is Handling.HANDLED
    assert "a function that its handler gave to on_commit has raised" in caplog.text


def test_of_two_at_the_same_time_one_handles_it(using: str) -> None:
    inbox, message = Inbox(using), Received("m1")
    is_in, goes_on = threading.Event(), threading.Event()
    firsts: list[bool] = []

    def handle(*, waits: bool) -> None:
        try:
            with inbox.once(None, message, group="billing") as first:
                if waits:
                    is_in.set()
                    assert goes_on.wait(PATIENCE_S)
                firsts.append(first)
        finally:
            connections[using].close()

    one = threading.Thread(target=handle, kwargs={"waits": True})
    one.start()
    assert is_in.wait(PATIENCE_S)
    other = threading.Thread(target=handle, kwargs={"waits": False})
    other.start()
    goes_on.set()
    one.join(PATIENCE_S)
    other.join(PATIENCE_S)
    assert firsts == [True, False]


def test_a_forked_child_leaves_the_transaction_to_its_parent(using: str) -> None:
    block = Inbox(using).once(None, Received("m1"), group="billing")
    assert block.__enter__()
    Order.objects.create(note="a")

    def leave() -> str:
        try:
            block.__exit__(None, None, None)
        except UsageError as error:
            return str(error)
        return ""

    assert "forked" in fork(leave).result()
    block.__exit__(None, None, None)
    assert notes() == ["a"]
    assert Handled.objects.count() == 1


def test_a_child_has_connections_of_its_own_and_closes_none_of_its_parent(using: str) -> None:
    numbers = {"postgresql": "SELECT pg_backend_pid()", "mysql": "SELECT CONNECTION_ID()"}

    def number() -> int:
        connection = connections[using]
        with connection.cursor() as cursor:
            cursor.execute(numbers.get(connection.vendor, "SELECT 0"))
            return int(cursor.fetchone()[0])

    block = consumers.fresh_connections()
    block.__enter__()
    before = number()
    connections[using].close_at = 0  # too old

    def leave() -> list[int | bool]:
        is_inherited = connections[using].connection is not None
        block.__exit__(None, None, None)
        return [is_inherited, number()]

    is_inherited, of_the_child = fork(leave).result()
    assert not is_inherited
    if connections[using].vendor in numbers:
        assert of_the_child != before
    assert number() == before
    block.__exit__(None, None, None)
    assert connections[using].connection is None


def test_a_child_that_leaves_the_transaction_of_its_parent_does_not_end_it(using: str) -> None:
    block = transaction.atomic(using)
    block.__enter__()
    Order.objects.create(note="a")

    def fails() -> None:
        block.__exit__(ValueError, ValueError(), None)

    def commits() -> str:
        with pytest.raises(UsageError) as raised:
            block.__exit__(None, None, None)
        return str(raised.value)

    fork(fails).result()
    assert "belongs to the process that this one was forked from" in fork(commits).result()
    block.__exit__(None, None, None)
    assert notes() == ["a"]


@pytest.mark.parametrize("database", [POSTGRES], indirect=True)
def test_a_child_has_a_pool_of_its_own(using: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connections[using].close()
    monkeypatch.setitem(connections[using].settings_dict["OPTIONS"], "pool", {"min_size": 1, "max_size": 1})

    def number() -> int:
        try:
            return _number(connections[using])
        finally:
            connections[using].close()  # back into the pool

    try:
        before = number()
        assert number() == before
        assert fork(number).result() != before
        assert number() == before
    finally:
        connections[using].close_pool()


@pytest.mark.parametrize("database", [POSTGRES, MARIADB], indirect=True)
def test_a_connection_that_was_lost_between_two_messages_is_made_again(
    using: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections[using].settings_dict, "CONN_MAX_AGE", None)
    monkeypatch.setitem(connections[using].settings_dict, "CONN_HEALTH_CHECKS", True)
    lost: list[int] = []

    @consumer("orders", group="billing")
    def bill(order: Placed) -> None:
        connection = connections[using]
        if lost:
            assert _number(connection) not in lost
            connection.close_at = 0  # nobody closes it after the test
        else:
            lost.append(_number(connection))
        Order.objects.create(note=order.note)

    async def both() -> list[Handling]:
        test = app().test
        first = await test.deliver("orders", {"note": "a"})
        await asyncio.to_thread(_end, using, lost[0])
        return [first.outcome, (await test.deliver("orders", {"note": "b"})).outcome]

    assert asyncio.run(both()) == [Handling.HANDLED, Handling.HANDLED]
    assert notes() == ["a", "b"]


def _number(connection: Any) -> int:
    """Of the server's process or thread behind a connection."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()" if connection.vendor == "postgresql" else "SELECT CONNECTION_ID()")
        return int(cursor.fetchone()[0])


def _end(using: str, number: int) -> None:
    connection = connections[using]
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(%s)" if connection.vendor == "postgresql" else "KILL %s", [number]
            )
    finally:
        connection.close()


@pytest.mark.parametrize("fails", [False, True])
def test_half_messages_of_a_handler_become_visible_when_its_transaction_commits(using: str, fails: bool) -> None:
    broker = MemoryBroker()

    @consumer("orders", group="billing")
    def bill(order: Placed) -> None:
        with Markers(using).bind(MemoryClient(broker), False) as tx:  # as mq.atomic(durable=False)
            Order.objects.create(note=order.note)
            tx.send("billed", order.note)
        assert broker.visible() == []
        if fails:
            raise RuntimeError

    assert deliver("a").outcome is (Handling.RETRIED if fails else Handling.HANDLED)
    assert [message.body for message in broker.visible()] == ([] if fails else [b"a"])
    assert notes() == ([] if fails else ["a"])


async def _asynchronous(message: Message) -> None: ...


def _of_a_model(order: Order) -> None: ...


@pytest.mark.parametrize("function", [_asynchronous, _of_a_model, lambda: None, lambda message, session: None])
def test_another_shape_is_refused_when_it_is_decorated(
    function: Callable[..., None] | Callable[..., Coroutine[Any, Any, None]],
) -> None:
    with pytest.raises(UsageError):
        consumer("orders", group="billing")(function)
    assert consumers.registered() == []


def test_the_worker_may_have_some_groups_only() -> None:
    for group in ("a", "b"):
        consumer("orders", group=group)(lambda message: os.getpid())
    assert [one.group for one in consumers.registered(["b"])] == ["b"]
    assert len(consumers.registered()) == 2
