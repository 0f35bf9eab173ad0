# ruff: noqa: PT012, SIM117 - what raises is the end of a whole block
"""The failure table of ``mq.transaction(session)``: what each step's failure does to the rows and to the messages."""

import asyncio

import pytest
from sqlalchemy import event, func, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, registry
from tests.support.children import fork
from tests.support.waiting import soon
from tests.unit.sql.conftest import POSTGRES, AsyncShop, Shop, markers_of
from tests.unit.sql.memory_broker import Asked, AsyncMemoryClient, MemoryBroker, MemoryClient

from halfmq.client.outcome import Outcome
from halfmq.errors import SendTimeout, TransactionUnknown, UsageError


class Sorry(Exception):
    """The application's own exception."""


def place_order(session: Session, shop: Shop, order_id: int) -> None:
    session.execute(insert(shop.orders).values(id=order_id, note="n"))


def orders_in(shop: Shop) -> int:
    with shop.engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(shop.orders)) or 0


def markers_in(shop: Shop) -> list[tuple[str, str]]:
    with shop.engine.connect() as connection:
        return [tuple(row) for row in connection.execute(markers_of(shop.log.table))]


def topics(broker: MemoryBroker) -> list[str]:
    return [message.topic for message in broker.visible()]


def test_rows_marker_and_all_messages_appear_together(shop: Shop, client: MemoryClient, broker: MemoryBroker) -> None:
    with shop.sessions()() as session, shop.log.bind(client, session, query_id="q7") as tx:
        place_order(session, shop, 7)
        tx.send("orders", {"id": 7}, key="7")
        tx.send("stock", {"sku": "x"})
        assert broker.calls == []
    assert orders_in(shop) == 1
    assert markers_in(shop) == [("tx-1", "C")]
    assert topics(broker) == ["orders", "stock"]
    assert broker.calls == [("prepare", "tx-1"), ("commit", "tx-1")]
    assert (broker.transactions["tx-1"].name, broker.transactions["tx-1"].query_id) == ("sql.mq_tx", "q7")
    assert tx.receipt is not None
    assert tx.receipt.tx_id == tx.id == "tx-1"


def test_block_that_was_begun_in_the_parent_is_refused_in_a_child_and_goes_on_in_the_parent(
    shop: Shop, client: MemoryClient, broker: MemoryBroker
) -> None:
    def child() -> list[object]:
        try:
            block.__exit__(None, None, None)
        except UsageError as error:
            return [str(error), block.__exit__(SystemExit, SystemExit(), None), broker.calls]
        return []

    with shop.sessions()() as session:
        block = shop.log.bind(client, session)
        tx = block.__enter__()
        place_order(session, shop, 7)
        tx.send("orders", {"id": 7})
        said, left, calls = fork(child).result()
        assert "forked" in said
        assert (left, calls) == (None, [])
        block.__exit__(None, None, None)
    assert orders_in(shop) == 1
    assert topics(broker) == ["orders"]


def test_marker_is_first_and_halves_go_directly_before_commit(
    shop: Shop, client: MemoryClient, broker: MemoryBroker
) -> None:
    with shop.sessions()() as session, shop.log.bind(client, session):
        pass  # once, the identity of the table is read
    steps: list[str] = []
    event.listen(shop.engine, "before_cursor_execute", lambda _c, _cu, sql, *_: steps.append(" ".join(sql.split()[:2])))
    event.listen(shop.engine, "commit", lambda _c: steps.append("COMMIT"))
    broker.on_prepare = lambda _tx_id: steps.append("prepare")
    with shop.sessions()() as session, shop.log.bind(client, session) as tx:
        tx.send("orders", b"x")
        place_order(session, shop, 1)
    proof = ["SAVEPOINT", "RELEASE"] if shop.engine.dialect.name != "postgresql" else []
    assert [step.split(" halfmq")[0] for step in steps] == [
        "INSERT INTO", *proof[:1], "INSERT INTO", *(f"{word} SAVEPOINT" for word in proof[1:]), "UPDATE mq_tx", "prepare", "COMMIT",
    ]  # fmt: skip


def test_exception_of_the_body_rolls_back_and_costs_the_broker_nothing(
    shop: Shop, client: MemoryClient, broker: MemoryBroker
) -> None:
    for error in (Sorry(), KeyboardInterrupt()):
        with shop.sessions()() as session, pytest.raises(type(error)), shop.log.bind(client, session) as tx:
            place_order(session, shop, 1)
            tx.send("orders", b"x")
            raise error
    assert (orders_in(shop), markers_in(shop), broker.calls) == (0, [], [])


def test_failed_flush_sends_nothing(shop: Shop, client: MemoryClient, broker: MemoryBroker) -> None:
    with shop.sessions()() as session, pytest.raises(Sorry), shop.log.bind(client, session) as tx:
        place_order(session, shop, 1)
        tx.send("orders", b"x")

        @event.listens_for(session, "before_flush")
        def _fail(*_: object) -> None:
            raise Sorry

        session.add(_mapped(shop)(id=2))
    assert (orders_in(shop), markers_in(shop), broker.calls) == (0, [], [])


def _mapped(shop: Shop) -> type:
    class Order:
        def __init__(self, id: int) -> None:  # noqa: A002
            self.id = id

    registry().map_imperatively(Order, shop.orders)
    return Order


async def test_lost_acknowledgement_of_a_half_rolls_back_and_the_check_agrees(
    shop: Shop, client: MemoryClient, broker: MemoryBroker
) -> None:
    def lose_answer(_tx_id: str) -> None:
        raise SendTimeout("no answer")

    broker.on_prepare = lose_answer
    with shop.sessions()() as session, pytest.raises(SendTimeout), shop.log.bind(client, session) as tx:
        place_order(session, shop, 1)
        tx.send("orders", b"x")
    assert (orders_in(shop), markers_in(shop)) == (0, [])
    assert await broker.check(shop.log.checker(shop.sessions())) == {"tx-1": Outcome.ROLLBACK}
    assert topics(broker) == []


@pytest.mark.parametrize("place", ["sqlite", POSTGRES], indirect=True)  # MariaDB defers no constraint
def test_clean_failure_of_commit_sends_rollback_and_raises_the_database_error(
    shop: Shop, client: MemoryClient, broker: MemoryBroker
) -> None:
    with shop.sessions()() as session, pytest.raises(IntegrityError), shop.log.bind(client, session) as tx:
        session.execute(insert(shop.lines).values(id=1, order_id=404))  # checked at COMMIT
        tx.send("orders", b"x")
    assert tx.receipt is None
    assert broker.calls == [("prepare", "tx-1"), ("rollback", "tx-1")]
    assert (markers_in(shop), topics(broker)) == ([], [])


def test_session_is_usable_after_a_failed_commit(shop: Shop, client: MemoryClient) -> None:
    with shop.sessions()() as session:
        with pytest.raises(IntegrityError), shop.log.bind(client, session) as tx:
            session.execute(insert(shop.lines).values(id=1, order_id=404))
            tx.send("orders", b"x")
        with shop.log.bind(client, session) as tx:
            place_order(session, shop, 1)
            tx.send("orders", b"x")
    assert orders_in(shop) == 1


@pytest.mark.parametrize("place", ["sqlite", POSTGRES], indirect=True)  # MariaDB defers no constraint
def test_lost_rollback_message_still_raises_the_database_error(
    shop: Shop, client: MemoryClient, broker: MemoryBroker
) -> None:
    broker.end_error = SendTimeout("no answer")
    with shop.sessions()() as session, pytest.raises(IntegrityError), shop.log.bind(client, session) as tx:
        session.execute(insert(shop.lines).values(id=1, order_id=404))
        tx.send("orders", b"x")
    assert broker.undecided() == ["tx-1"]


async def test_unconfirmed_commit_is_not_the_callers_problem(
    shop: Shop, client: MemoryClient, broker: MemoryBroker
) -> None:
    broker.end_error = TransactionUnknown("no answer", tx_id="tx-1")
    with shop.sessions()() as session, shop.log.bind(client, session) as tx:
        place_order(session, shop, 1)
        tx.send("orders", b"x")
    assert tx.receipt is None
    assert (orders_in(shop), topics(broker)) == (1, [])
    assert await broker.check(shop.log.checker(shop.sessions())) == {"tx-1": Outcome.COMMIT}
    assert topics(broker) == ["orders"]


@pytest.mark.parametrize("took_effect", [True, False])
async def test_error_of_commit_that_says_nothing_leaves_the_halves_alone(
    shop: Shop, client: MemoryClient, broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, took_effect: bool
) -> None:
    """The driver raises an I/O error out of COMMIT, once after it took effect, once before."""
    dialect = shop.engine.dialect
    real_commit = dialect.do_commit

    def failing_commit(connection: object) -> None:
        if took_effect:
            real_commit(connection)
        raise OSError("input/output error")

    with shop.sessions()() as session, pytest.raises(TransactionUnknown) as caught:
        with shop.log.bind(client, session) as tx:
            place_order(session, shop, 1)
            tx.send("orders", b"x")
            monkeypatch.setattr(dialect, "do_commit", failing_commit)
    monkeypatch.setattr(dialect, "do_commit", real_commit)
    assert caught.value.tx_id == "tx-1"
    assert broker.calls == [("prepare", "tx-1")]
    assert orders_in(shop) == int(took_effect)
    expected = Outcome.COMMIT if took_effect else Outcome.ROLLBACK
    assert await broker.check(shop.log.checker(shop.sessions())) == {"tx-1": expected}
    assert topics(broker) == (["orders"] if took_effect else [])


async def test_exception_of_an_after_commit_hook_is_not_a_rollback(
    shop: Shop, client: MemoryClient, broker: MemoryBroker
) -> None:
    with shop.sessions()() as session, pytest.raises(TransactionUnknown), shop.log.bind(client, session) as tx:
        place_order(session, shop, 1)
        tx.send("orders", b"x")

        @event.listens_for(session, "after_commit")
        def _fail(_session: Session) -> None:
            raise Sorry

    event.remove(session, "after_commit", _fail)
    with shop.log.bind(client, session) as tx:  # the session is usable
        place_order(session, shop, 2)
    assert orders_in(shop) == 2
    assert await broker.check(shop.log.checker(shop.sessions())) == {"tx-1": Outcome.COMMIT}


def test_exception_of_a_before_commit_hook_is_a_rollback(
    shop: Shop, client: MemoryClient, broker: MemoryBroker
) -> None:
    with shop.sessions()() as session, pytest.raises(Sorry), shop.log.bind(client, session) as tx:
        place_order(session, shop, 1)
        tx.send("orders", b"x")

        @event.listens_for(session, "before_commit")
        def _fail(_session: Session) -> None:
            raise Sorry

    assert (orders_in(shop), markers_in(shop)) == (0, [])
    assert broker.calls == [("prepare", "tx-1"), ("rollback", "tx-1")]


async def test_local_transaction_that_was_fenced_fails_with_its_business_rows(
    shop: Shop, client: MemoryClient, broker: MemoryBroker
) -> None:
    """The check was faster: a tombstone stands where the marker wants to be."""
    assert shop.log.checker(shop.sessions())(Asked("tx-1")) is Outcome.ROLLBACK
    with shop.sessions()() as session, pytest.raises(IntegrityError):
        place_order(session, shop, 1)  # even what was written before the marker goes
        with shop.log.bind(client, session) as tx:
            tx.send("orders", b"x")
    assert (orders_in(shop), markers_in(shop), broker.calls) == (0, [("tx-1", "R")], [])


async def test_check_during_commit_answers_unknown_and_then_commit(
    shop: Shop, client: MemoryClient, broker: MemoryBroker
) -> None:
    """Between the halves and COMMIT the marker is locked (PostgreSQL) or the file is (SQLite)."""
    check = shop.log.checker(shop.sessions())
    during: list[object] = []
    broker.on_prepare = lambda tx_id: during.append(check(Asked(tx_id)))
    with shop.sessions()() as session, shop.log.bind(client, session) as tx:
        place_order(session, shop, 1)
        tx.send("orders", b"x")
    assert during == [Outcome.UNKNOWN]
    assert check(Asked("tx-1")) is Outcome.COMMIT


def test_block_without_messages_leaves_no_marker_and_asks_no_broker(
    shop: Shop, client: MemoryClient, broker: MemoryBroker
) -> None:
    with shop.sessions()() as session, shop.log.bind(client, session):
        place_order(session, shop, 1)
    assert (orders_in(shop), markers_in(shop), broker.calls) == (1, [], [])


def test_send_after_the_block_is_refused(shop: Shop, client: MemoryClient) -> None:
    with shop.sessions()() as session, shop.log.bind(client, session) as tx:
        tx.send("orders", b"x")
    with pytest.raises(UsageError, match="has ended"):
        tx.send("orders", b"y")


def test_bad_message_is_refused_at_the_call(shop: Shop, client: MemoryClient, broker: MemoryBroker) -> None:
    with shop.sessions()() as session, pytest.raises(UsageError), shop.log.bind(client, session) as tx:
        place_order(session, shop, 1)
        tx.send("not a topic", b"x")
    assert (orders_in(shop), broker.calls) == (0, [])


def test_wrong_kind_of_session_is_refused(shop: Shop, client: MemoryClient, async_client: AsyncMemoryClient) -> None:
    with pytest.raises(UsageError, match="AsyncClient"):
        shop.log.bind(client, AsyncSession())
    with pytest.raises(UsageError, match="goes with Client"):
        shop.log.bind_async(async_client, Session())


# --- async -------------------------------------------------------------------------------------------------------


async def count(shop: AsyncShop) -> tuple[int, int]:
    async with shop.engine.connect() as connection:
        orders = await connection.scalar(select(func.count()).select_from(shop.shop.orders))
        markers = await connection.execute(markers_of(shop.shop.log.table))
    return orders, len(markers.all())


async def test_async_rows_and_messages_appear_together(
    async_shop: AsyncShop, async_client: AsyncMemoryClient, broker: MemoryBroker
) -> None:
    log = async_shop.shop.log
    async with async_shop.sessions() as session, log.bind_async(async_client, session) as tx:
        await session.execute(insert(async_shop.shop.orders).values(id=1))
        tx.send("orders", {"id": 1})
        tx.send("stock", {"id": 1})
    assert await count(async_shop) == (1, 1)
    assert topics(broker) == ["orders", "stock"]
    assert tx.receipt is not None


async def test_async_exception_of_the_body(
    async_shop: AsyncShop, async_client: AsyncMemoryClient, broker: MemoryBroker
) -> None:
    async with async_shop.sessions() as session:
        with pytest.raises(Sorry):
            async with async_shop.shop.log.bind_async(async_client, session) as tx:
                await session.execute(insert(async_shop.shop.orders).values(id=1))
                tx.send("orders", b"x")
                raise Sorry
    assert await count(async_shop) == (0, 0)
    assert broker.calls == []


async def test_async_clean_failure_of_commit(
    async_shop: AsyncShop, async_client: AsyncMemoryClient, broker: MemoryBroker
) -> None:
    async with async_shop.sessions() as session:
        with pytest.raises(IntegrityError):
            async with async_shop.shop.log.bind_async(async_client, session) as tx:
                await session.execute(insert(async_shop.shop.lines).values(id=1, order_id=404))
                tx.send("orders", b"x")
    assert broker.calls == [("prepare", "tx-1"), ("rollback", "tx-1")]
    assert await count(async_shop) == (0, 0)


async def test_task_cancelled_while_halves_are_sent_rolls_back_and_the_check_agrees(
    async_shop: AsyncShop, async_client: AsyncMemoryClient, broker: MemoryBroker
) -> None:
    sending = asyncio.Event()

    async def pause() -> None:
        sending.set()
        await asyncio.sleep(30)

    async_client.pause = pause

    async def order() -> None:
        async with async_shop.sessions() as session, async_shop.shop.log.bind_async(async_client, session) as tx:
            await session.execute(insert(async_shop.shop.orders).values(id=1))
            tx.send("orders", b"x")

    task = asyncio.create_task(order())
    await soon(sending.wait())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await count(async_shop) == (0, 0)
    answers = await broker.check(async_shop.shop.log.checker(async_shop.sessions))
    assert answers == {"tx-1": Outcome.ROLLBACK}


async def test_async_fence_wins_over_a_late_local_transaction(
    async_shop: AsyncShop, async_client: AsyncMemoryClient, broker: MemoryBroker
) -> None:
    answer = async_shop.shop.log.checker(async_shop.sessions)(Asked("tx-1"))
    assert await answer is Outcome.ROLLBACK  # type: ignore[misc]
    async with async_shop.sessions() as session:
        with pytest.raises(IntegrityError):
            async with async_shop.shop.log.bind_async(async_client, session) as tx:
                await session.execute(insert(async_shop.shop.orders).values(id=1))
                tx.send("orders", b"x")
    assert (await count(async_shop), broker.calls) == ((0, 1), [])


async def test_async_check_while_the_local_transaction_runs_is_unknown(
    async_shop: AsyncShop, async_client: AsyncMemoryClient, broker: MemoryBroker
) -> None:
    check = async_shop.shop.log.checker(async_shop.sessions)
    during: list[Outcome] = []

    async def pause() -> None:
        during.append(await check(Asked("tx-1")))  # type: ignore[misc]

    async_client.pause = pause
    async with async_shop.sessions() as session, async_shop.shop.log.bind_async(async_client, session) as tx:
        await session.execute(insert(async_shop.shop.orders).values(id=1))
        tx.send("orders", b"x")
    assert during == [Outcome.UNKNOWN]
    assert await check(Asked("tx-1")) is Outcome.COMMIT  # type: ignore[misc]


async def test_task_cancelled_in_commit_tells_nothing_and_the_check_finds_the_truth(
    async_shop: AsyncShop, async_client: AsyncMemoryClient, broker: MemoryBroker
) -> None:
    """Cancelled with COMMIT on its way: whether it took effect, only the database knows."""

    async def order() -> None:
        async with async_shop.sessions() as session, async_shop.shop.log.bind_async(async_client, session) as tx:
            await session.execute(insert(async_shop.shop.orders).values(id=1))
            tx.send("orders", b"x")
            connection = await session.connection()
            task = asyncio.current_task()
            assert task is not None
            event.listen(connection.sync_connection, "commit", lambda _connection: task.cancel())

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(order())
    assert broker.calls == [("prepare", "tx-1")]
    (answer,) = (await broker.check(async_shop.shop.log.checker(async_shop.sessions))).values()
    orders, markers = await count(async_shop)
    assert (answer, markers) == (Outcome.COMMIT if orders else Outcome.ROLLBACK, 1)
