"""Our client with our broker, as processes and real sockets: receipts, checks, kills, forks."""

import asyncio
import contextlib
import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.children import fork
from tests.support.served import Served
from tests.support.waiting import until

from halfmq import (
    AsyncClient,
    Client,
    ConnectError,
    Message,
    Outcome,
    OutcomeUnknown,
    Transaction,
    TransactionRefused,
    compose,
)
from halfmq.client.admin import release_retention
from halfmq.client.transaction_block import BlockingTransaction

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    broker = Served(tmp_path / "data", tmp_path / "broker.log")
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


def url(served: Served) -> str:
    return f"rocketmq://127.0.0.1:{served.name_port}"


async def read(served: Served, topic: str, group: str, count: int, linger_s: float = 1.0) -> list[Message]:
    got: list[Message] = []
    async with AsyncClient(url(served)) as mq, mq.consumer(topic, group=group) as messages:
        while (message := await messages.get(linger_s if len(got) >= count else 30.0)) is not None:
            message.ack()
            got.append(message)
    return got


async def test_broker_that_creates_no_topics_is_found_and_its_checks_are_answered(served: Served) -> None:
    async with AsyncClient(url(served), group="orders") as mq:
        await mq.prepare([compose("orders", b"x")], tx_id="T-1", name="order")
    served.stop()
    served.options += ("--no-auto-create-topics",)
    served.start()
    checked = asyncio.Event()

    def check(_: Transaction) -> Outcome:
        checked.set()
        return Outcome.COMMIT

    mq = AsyncClient(url(served), group="orders")
    mq.add_check("order", check)
    async with mq:
        assert mq.is_ready
        assert await mq.healthy()
        await asyncio.wait_for(checked.wait(), 30)


async def test_consumer_whose_group_does_not_exist_says_so_until_it_does(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    served.stop()
    served.options += ("--no-auto-create-groups",)
    served.start()
    async with AsyncClient(url(served)) as mq:
        await mq.send("orders", b"x")
        async with mq.consumer("orders", group="billing") as messages:
            await until(lambda: not mq.is_ready, "the missing group")
            (said,) = [one.getMessage() for one in caplog.records if "get no messages" in one.getMessage()]
            assert "billing" in said
            assert "--no-auto-create-groups" in said
            await release_retention(mq, "billing")  # creates it
            await until(lambda: mq.is_ready, "the group")
            assert await messages.get(30) is not None


async def test_several_messages_have_one_verdict_at_one_position(served: Served) -> None:
    async with AsyncClient(url(served), group="orders") as mq:
        async with mq.begin() as tx:
            for number in range(5):
                tx.send("orders" if number % 2 else "stock", str(number))
        assert tx.receipt is not None
        assert (tx.receipt.acknowledged, tx.receipt.atomic, tx.receipt.durability) == (True, True, "fsync")
        assert tx.receipt.position is not None
        with pytest.raises(KeyError):  # noqa: PT012 - what is tested is a block that raises
            async with mq.begin() as failed:
                failed.send("orders", "never")
                await failed.prepare()
                raise KeyError
        got = await read(served, "orders", "a", 2) + await read(served, "stock", "b", 3)
    assert sorted(message.text() for message in got) == ["0", "1", "2", "3", "4"]
    assert {message.transaction_id for message in got} == {tx.id}


async def test_transaction_of_thousands_of_messages_is_one_and_each_queue_keeps_its_order(served: Served) -> None:
    async with AsyncClient(url(served), group="orders") as mq:
        messages = [
            compose("orders", f"{number}".zfill(200), key=f"k{number % 7}", sharding_key=f"k{number % 7}", tag="t")
            for number in range(3_000)
        ]
        prepared = await mq.prepare(messages, tx_id="large-1", name="order.create", query_id="42")
        assert len({half.half_index for half in prepared.halves}) < 30, "it was sent in half batches"
        assert await read(served, "orders", "early", 0, linger_s=0.3) == []
        served.kill()
        served.start()
        receipt = await mq.commit(prepared)
        assert (receipt.acknowledged, receipt.atomic, len(receipt.message_ids)) == (True, True, 3_000)
        got = await read(served, "orders", "a", 3_000)
    assert sorted(int(message.text()) for message in got) == list(range(3_000))
    assert {message.transaction_id for message in got} == {"large-1"}
    assert {message.message_id for message in got} == set(receipt.message_ids)
    for key in range(7):
        of_key = [int(message.text()) for message in got if message.key == f"k{key}"]
        assert of_key == sorted(of_key)


async def test_check_of_a_large_transaction_names_it_like_any_other(served: Served) -> None:
    dead = AsyncClient(url(served), group="orders")
    await dead.connect()
    await dead.prepare([compose("t", b"a") for _ in range(100)], tx_id="crash-9", name="order.create", query_id="42")
    await dead.close()
    asked: list[tuple[str, str]] = []

    def created(tx: Transaction) -> Outcome:
        asked.append((tx.id, tx.query_id))
        return Outcome.COMMIT

    async with AsyncClient(url(served), group="orders") as mq:
        mq.add_check("order.create", created)
        assert len(await read(served, "t", "g", 100, linger_s=3.0)) == 100
    assert asked == [("crash-9", "42")]


async def test_first_verdict_stands_also_after_a_restart(served: Served) -> None:
    async with AsyncClient(url(served), group="orders") as mq:
        prepared = await mq.prepare([compose("t", b"x")], tx_id="T-1")
        first = await mq.commit(prepared)
        assert (await mq.commit(prepared)).repeated
        with pytest.raises(TransactionRefused) as caught:
            await mq.rollback(prepared)
        assert caught.value.standing == "COMMITTED"
        served.kill()
        served.start()
        again = await mq.commit(prepared)
        assert (again.repeated, again.position) == (True, first.position)
        with pytest.raises(TransactionRefused):
            await mq.rollback(prepared)
    assert [message.body for message in await read(served, "t", "g", 1)] == [b"x"]


async def test_check_settles_what_a_dead_client_left(served: Served) -> None:
    dead = AsyncClient(url(served), group="orders")
    await dead.connect()
    two = [compose("t", b"a", key="k"), compose("t", b"b")]
    await dead.prepare(
        two, tx_id="crash-1", name="order.create", query_id="42", advice=Outcome.COMMIT, comment="ask the warehouse"
    )
    await dead.prepare([compose("t", b"c")], tx_id="crash-2", name="order.cancel")
    await dead.close()
    asked: list[tuple[str, str, str | None]] = []
    notes: list[tuple[Outcome | None, str]] = []

    def created(tx: Transaction) -> Outcome:
        asked.append((tx.id, tx.query_id, tx.key))
        notes.append((tx.advice, tx.comment))
        return Outcome.COMMIT

    async with AsyncClient(url(served), group="orders") as mq:
        mq.add_check("order.create", created)
        mq.add_check("order.cancel", lambda _: Outcome.ROLLBACK)
        got = await read(served, "t", "g", 2, linger_s=3.0)
    assert sorted(message.body for message in got) == [b"a", b"b"]
    assert notes == [(Outcome.COMMIT, "ask the warehouse")]
    assert asked == [("crash-1", "42", "k")]


async def test_producers_and_consumers_survive_kills_and_nothing_is_lost_or_doubled(served: Served) -> None:
    committed: list[str] = []
    seen: Counter[str] = Counter()
    stop, all_sent = asyncio.Event(), asyncio.Event()

    async def produce(mq: AsyncClient, worker: int) -> None:
        number = 0
        while not stop.is_set():
            body = f"{worker}/{number}"
            number += 1
            # A start that takes longer than a send may leave a transaction without an answer. Then nothing is known of it.
            with contextlib.suppress(OutcomeUnknown, ConnectError):
                async with mq.begin() as tx:
                    tx.send("load", body)
                    tx.send("load", body + "b")
                committed.append(body)

    def sent() -> set[str]:
        return {*committed, *(body + "b" for body in committed)}

    async def commits_more() -> None:
        wanted = len(committed) + 40
        await until(lambda: len(committed) >= wanted, "transactions commit")

    async def consume() -> None:
        async with AsyncClient(url(served)) as mq, mq.consumer("load", group="g") as messages:
            # Bodies, not deliveries: after a kill some messages are delivered again.
            while not all_sent.is_set() or not bodies >= sent():
                message = await messages.get(1.0)
                if message is not None:
                    seen[message.message_id] += 1
                    bodies.add(message.text())
                    message.ack()

    bodies: set[str] = set()
    async with AsyncClient(url(served), group="orders") as mq, asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        mq.add_check("", lambda _: Outcome.UNKNOWN)
        producers = [tasks.create_task(produce(mq, worker)) for worker in range(8)]
        tasks.create_task(consume())
        for _ in range(2):
            await commits_more()
            await asyncio.to_thread(served.kill)
            await asyncio.to_thread(served.start)
        await commits_more()
        stop.set()
        await asyncio.gather(*producers)
        all_sent.set()
    assert bodies >= sent()
    assert len(seen) == len(bodies)  # no message has a second copy under another id


def test_forked_child_of_a_blocking_client_sends_on_connections_of_its_own(served: Served) -> None:
    with Client(url(served), group="orders") as mq:
        mq.send("t", b"parent")
        child = os.fork()
        if child == 0:
            try:
                with mq.begin() as tx:
                    tx.send("t", b"child")
                os._exit(0 if tx.receipt is not None and tx.receipt.acknowledged else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        mq.send("t", b"parent again")
        with mq.consumer("t", group="g") as messages:
            got = [message.text() for message in (messages.get(10), messages.get(10), messages.get(10)) if message]
    assert sorted(got) == ["child", "parent", "parent again"]


async def test_orderly_stop_of_the_broker_is_survived(served: Served) -> None:
    async with AsyncClient(url(served), group="orders") as mq:
        await mq.send("t", b"before")
        assert await asyncio.to_thread(served.stop) == 0
        starting = asyncio.create_task(asyncio.to_thread(served.start))
        await mq.send("t", b"after")
        await starting
    assert len(await read(served, "t", "g", 2)) == 2


def test_nothing_listens(tmp_path: Path) -> None:
    served = Served(tmp_path / "data", tmp_path / "broker.log")
    with pytest.raises(ConnectError), Client(url(served)):
        raise AssertionError("not reached")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL  # a library installs no handlers


def test_forked_child_whose_first_call_meets_no_broker_goes_on_when_it_is_back(served: Served) -> None:
    """gunicorn with preload, started while the broker restarts: several threads of the child call at once."""
    with Client(url(served), group="orders", timeout=1.0) as mq:
        mq.add_check("order.create", lambda _: Outcome.COMMIT)
        mq.send("t", b"parent")
        served.kill()

        def child() -> list[str]:
            with pytest.raises(ConnectError):
                mq.send("t", b"too early")
            refused.set()
            blocks = [mq.begin("order.create") for _ in range(3)]
            go_on.wait(20)
            sent: list[str] = []

            def commit(block: BlockingTransaction) -> None:
                with block as tx:
                    tx.send("t", f"child {len(sent)}")
                sent.append(tx.id)

            threads = [threading.Thread(target=commit, args=(block,)) for block in blocks]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return sent

        refused, go_on = (multiprocessing.get_context("fork").Event() for _ in range(2))
        forked = fork(child)
        assert refused.wait(20)
        served.start()
        go_on.set()
        ids = forked.result()
        assert len(set(ids)) == 3
        with mq.consumer("t", group="g") as messages:
            got = [message.transaction_id for message in (messages.get(10) for _ in range(4)) if message]
    assert sorted(one for one in got if one) == sorted(ids)
