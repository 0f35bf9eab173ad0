"""The client neither makes up an outcome nor hides that it does not know one."""

import asyncio
import logging
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

import pytest

from halfmq import AsyncClient, Outcome, Transaction, TransactionRefused, compose
from halfmq.client import check_listener
from halfmq.client.log import log as client_log
from halfmq.client.receipts import Prepared
from halfmq.errors import HalfmqError, TransactionUnknown
from halfmq.store.group_flush import Job
from halfmq.store.store import Durability
from tests.peer_bugs.services import PATIENT, QUICK, dies_undecided, undecided, url, visible
from tests.support.hand_flush import HandFlush
from tests.support.in_process import serving
from tests.support.ports import free_port
from tests.support.waiting import until

Answered = TypeVar("Answered")


async def answer_of(call: Awaitable[Answered]) -> Answered | HalfmqError:
    """What the call returned, or raised."""
    try:
        return await call
    except HalfmqError as error:
        return error


async def test_prepare_that_is_slow_to_be_safe_does_not_cancel_the_local_transaction(tmp_path: Path) -> None:
    """RocketMQ #3885 (also #1390): the half message is stored, but a slave is down or the flush takes too long; the client
    makes ROLLBACK of such an answer. With one slave gone every transaction was rolled back, and no local one ever ran.

    There is no slave here. The answer to a half waits until it is as safe as configured; a disk that hangs makes it late. The
    client asks again under the same id and gets the first answer: the local transaction runs, and there is one message.
    """
    flushes: list[HandFlush] = []
    disk_hangs = False

    def make_syncer(job: Job) -> HandFlush:
        flushes.append(HandFlush(job))
        return flushes[-1]

    async def sync_thread() -> None:
        while True:
            if not disk_hangs:
                flushes[-1].run()
            await asyncio.sleep(0.002)  # real time: the pace of the disk

    async with serving(tmp_path, make_syncer=make_syncer, durability=Durability.FSYNC, settings=PATIENT) as running:
        syncing = asyncio.get_running_loop().create_task(sync_thread())
        async with AsyncClient(url(running), group="orders", attempt_timeout=0.1) as mq:
            await mq.send("T", b"before")
            disk_hangs = True

            def recovers() -> None:
                nonlocal disk_hangs
                disk_hangs = False

            asyncio.get_running_loop().call_later(0.2, recovers)
            prepared = await answer_of(mq.prepare([compose("T", b"order 1")], tx_id="order-1"))
            assert isinstance(prepared, Prepared), f"the local transaction did not run: {prepared}"
            receipt = await mq.commit(prepared)
            assert receipt.acknowledged, "COMMIT was not acknowledged"
            assert await visible(running) == [b"before", b"order 1"], f"consumers see {await visible(running)}"
        syncing.cancel()


async def test_commit_that_was_not_heard_is_not_reported_as_done(tmp_path: Path) -> None:
    """rocketmq-flink (InnerProducerImpl.endTransaction): every exception of the commit is caught, so the committer reports
    success and the checkpoint completes; the check that comes later takes milliseconds for seconds, finds the transaction
    too old and rolls it back. Data of a completed checkpoint vanished.

    Here: COMMIT without an answer raises ``TransactionUnknown``, and one that the standing verdict forbids raises
    ``TransactionRefused``: no receipt says COMMITTED. What was unknown is repeated until the broker is back.
    """
    ports = {"port": free_port(), "name_port": free_port()}
    mq = None
    try:
        async with serving(tmp_path, settings=PATIENT, **ports) as running:
            mq = AsyncClient(url(running), group="orders", timeout=0.2, attempt_timeout=0.1)
            await mq.connect()
            lost = await mq.prepare([compose("T", b"order 1")], tx_id="order-1")
            forbidden = await mq.prepare([compose("T", b"order 2")], tx_id="order-2")
            operator = {"txId": "order-2", "verdict": "ROLLBACK", "operator": "kim", "reason": "test"}
            assert (await (await running.client()).ask(29_004, operator)).code == 0, "the operator was refused"
            refused = await answer_of(mq.commit(forbidden))
            assert isinstance(refused, TransactionRefused), f"a refused COMMIT is reported as done: {refused}"
            assert refused.standing == "ROLLED_BACK", f"the standing verdict is {refused.standing}"
        unknown = await answer_of(mq.commit(lost))
        assert isinstance(unknown, TransactionUnknown), f"a COMMIT that nobody heard is reported as done: {unknown}"
        assert unknown.tx_id == "order-1", "the error does not say which transaction"
        async with serving(tmp_path, settings=PATIENT, **ports) as running:
            await until(lambda: undecided(running) == set(), "COMMIT is repeated")
            assert await visible(running) == [b"order 1"], f"consumers see {await visible(running)}"
    finally:
        if mq is not None:
            await mq.close(grace=0)


async def test_check_that_finds_no_room_is_asked_again_and_answered_once(tmp_path: Path) -> None:
    """RocketMQ #1519 (also PR #1544): the producer's pool for checks is full, the check is rejected with an exception and
    nobody hears of it; verdicts were lost in the same way, and what had been committed was checked and published again.

    Here: a client that may hold three checks is asked about twelve transactions at once. What it drops costs nothing but
    time: the broker asks again, each is answered, and each message is there once.
    """
    tx_ids = [f"order-{number:02d}" for number in range(12)]
    async with serving(tmp_path, settings=QUICK) as running:
        await dies_undecided(running, tx_ids, name="order.create")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(check_listener, "_WAITING_MAX", 3)
            mq = AsyncClient(url(running), group="orders", checks=1)
            mq.add_check("order.create", lambda _: Outcome.COMMIT)
            async with mq:
                await until(lambda: undecided(running) == set(), "a check that found no room is asked again")
                assert mq._check_listener.counts["dropped"] > 0, "there was room for every check"
        assert sorted(await visible(running)) == [tx_id.encode() for tx_id in tx_ids], "each message once"


async def test_application_that_knows_the_transaction_is_asked(tmp_path: Path) -> None:
    """RocketMQ #9791 (PR #10564): two applications share a producer group. The check goes to any connection of the group, and
    whoever gets it answers: an application that looks for the order among its stock movements does not find it, and says
    ROLLBACK for an order that is committed.

    Here: a transaction carries the name of its check. A member that does not have it says UNKNOWN, asks none of its own
    functions, and the next member is asked.
    """
    tx_ids = [f"order-{number}" for number in range(6)]
    asked_wrongly: list[str] = []

    def looks_for_a_movement(tx: Transaction) -> Outcome:
        asked_wrongly.append(tx.id)
        return Outcome.ROLLBACK

    async with serving(tmp_path, settings=QUICK) as running:
        await dies_undecided(running, tx_ids, name="order.create", group="shop")
        stock, orders = AsyncClient(url(running), group="shop"), AsyncClient(url(running), group="shop")
        stock.add_check("stock.move", looks_for_a_movement)
        orders.add_check("order.create", lambda _: Outcome.COMMIT)
        async with stock, orders:
            await until(lambda: undecided(running, "shop") == set(), "whoever knows is asked")
        assert asked_wrongly == [], f"the wrong application answered for {asked_wrongly}"
        assert sorted(await visible(running)) == [tx_id.encode() for tx_id in tx_ids], (
            "a committed order was rolled back"
        )


async def test_check_function_that_raises_or_returns_nothing_is_reported_and_asked_again(tmp_path: Path) -> None:
    """rocketmq-clients, Python (producer.py): the check runs in a future that nobody looks at. An exception in the
    application's checker vanishes, and so does a missing return; its author sees a service that works, and messages that
    are discarded after fifteen rounds.

    Here: either is written to the log with what went wrong, is UNKNOWN for the broker, and never a verdict; the check comes
    again until there is an answer.
    """
    answers: list[Outcome | RuntimeError | None] = [RuntimeError("the database is away"), None, Outcome.COMMIT]
    reports: list[str] = []

    class Reports(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            reports.append(record.getMessage() + str(record.exc_info and record.exc_info[1]))

    def checker(_tx: Transaction) -> Outcome | None:
        # Which check it is does not matter: the first one may have gone to the service that died.
        answer = answers.pop(0)
        if isinstance(answer, RuntimeError):
            raise answer
        return answer

    handler = Reports(logging.WARNING)
    client_log.addHandler(handler)
    try:
        async with serving(tmp_path, settings=QUICK) as running:
            await dies_undecided(running, ["order-1"], name="order.create")
            mq = AsyncClient(url(running), group="orders")
            mq.add_check("order.create", checker)  # type: ignore[arg-type]  # a forgotten return, as in real code
            async with mq:
                await until(lambda: undecided(running) == set(), "it is asked again")
            assert await visible(running) == [b"order-1"], "a checker without an answer decided against the message"
    finally:
        client_log.removeHandler(handler)
    for what in ("the database is away", "returned None"):
        assert any("order-1" in report and what in report for report in reports), f"nobody was told: {what}: {reports}"
