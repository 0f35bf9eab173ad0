# ruff: noqa: PT012 - what raises is the end of a whole block
"""``MarkerTable.join_async``: messages in a transaction that the application ends itself appear if and only if it commits."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import event, insert, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, SessionTransaction
from tests.unit.sql.faces import ASYNC, App, Message, Sorry, agree, app
from tests.unit.sql.memory_broker import AsyncMemoryClient

from halfmq.errors import ConnectError, OutcomeMixed, SendTimeout, UsageError
from halfmq.sql import MarkerTable

__all__ = ["app"]

pytestmark = pytest.mark.parametrize("app", ASYNC, indirect=True)


async def join(app: App, session: AsyncSession, markers: MarkerTable | None = None) -> Any:
    return await (markers or app.log).join_async(AsyncMemoryClient(app.broker), session)


async def publish(app: App, session: AsyncSession, number: int) -> Any:
    """The message of this number."""
    tx = await join(app, session)
    tx.send(f"t{number}", b"x")
    return tx


async def order(app: App, session: AsyncSession, number: int) -> Any:
    """An order and its message."""
    session.add(app.order_type(number))
    return await publish(app, session, number)


async def test_rows_and_messages_appear_with_the_commit_and_not_before(app: App) -> None:
    async with app.sessions()() as session:
        tx = await order(app, session, 1)
        assert await order(app, session, 2) is tx
        assert (app.broker.calls, tx.receipt) == ([], None)
        await session.commit()
        assert agree(app) == [1, 2]
        assert app.broker.calls == [("prepare", tx.id), ("commit", tx.id)]
        assert tx.receipt.tx_id == tx.id
    assert app.markers() == {tx.id: "C"}


async def test_tasks_that_join_at_once_share_the_transaction(app: App) -> None:
    async with app.sessions()() as session:
        session.add_all([app.order_type(1), app.order_type(2), app.order_type(3)])
        joined = await asyncio.gather(*(publish(app, session, number) for number in (1, 2, 3)))
        assert joined[0] is joined[1] is joined[2]
        await session.commit()
    assert agree(app) == [1, 2, 3]
    assert [call for call, _ in app.broker.calls] == ["prepare", "commit"]


async def test_a_block_of_the_session_commits_too(app: App) -> None:
    async with app.sessions()() as session, session.begin():
        await order(app, session, 1)
    assert agree(app) == [1]


async def test_what_was_written_before_the_first_message_is_in_its_transaction(app: App) -> None:
    async with app.sessions()() as session:
        await session.execute(insert(app.orders).values(id=1))
        await publish(app, session, 1)
        await session.commit()
    assert agree(app) == [1]


async def _rolls_back(session: AsyncSession) -> None:
    await session.rollback()


async def _is_left(session: AsyncSession) -> None:
    await session.close()


async def _fails(session: AsyncSession) -> None:
    with pytest.raises(Sorry):
        async with session.begin_nested():
            raise Sorry
    await session.rollback()


@pytest.mark.parametrize("end", [_rolls_back, _is_left, _fails])
async def test_nothing_is_sent_without_a_commit_and_the_session_goes_on(
    app: App, end: Callable[[AsyncSession], Awaitable[None]]
) -> None:
    async with app.sessions()() as session:
        tx = await order(app, session, 1)
        await end(session)
        with pytest.raises(UsageError, match="has ended"):
            tx.send("late", b"x")
        await order(app, session, 2)
        await session.commit()
    assert agree(app) == [2]
    assert len(app.broker.calls) == 2


async def test_each_transaction_of_a_session_has_its_own_messages(app: App) -> None:
    async with app.sessions()() as session:
        for number in range(1, 5):
            await order(app, session, number)
            async with session.begin_nested():
                session.add(app.order_type(10 + number))
            async with session.begin_nested() as savepoint:
                await order(app, session, 20 + number)
                await savepoint.rollback()
            await (session.rollback() if number % 2 else session.commit())
    assert sorted(app.messages()) == ["t2", "t4"]
    assert app.order_ids() == [2, 4, 12, 14]


async def test_a_message_of_a_savepoint_that_is_rolled_back_is_not_sent(app: App) -> None:
    async with app.sessions()() as session:
        await order(app, session, 1)
        with pytest.raises(Sorry):
            async with session.begin_nested():
                await order(app, session, 2)
                raise Sorry
        async with session.begin_nested():
            await order(app, session, 3)
        await session.commit()
    assert agree(app) == [1, 3]


async def test_a_transaction_whose_messages_were_all_dropped_leaves_no_marker(app: App) -> None:
    async with app.sessions()() as session:
        await join(app, session)
        session.add(app.order_type(1))
        await session.commit()
    assert (app.order_ids(), app.markers(), app.broker.calls) == ([1], {}, [])


async def test_without_a_broker_nothing_is_committed_and_the_application_rolls_back(app: App) -> None:
    def away(_: str) -> None:
        raise ConnectError("nobody")

    app.broker.on_prepare = away
    async with app.sessions()() as session:
        await order(app, session, 1)
        with pytest.raises(ConnectError):
            await session.commit()
        with pytest.raises(UsageError, match="can only be rolled back"):
            await session.commit()
        await session.rollback()
    assert (app.order_ids(), app.markers()) == ([], {})
    await app.check()
    assert app.messages() == []


async def test_a_commit_that_the_database_refuses_is_rolled_back_by_the_check(app: App) -> None:
    async with app.sessions()() as session:
        await order(app, session, 1)
        session.add(app.line_type(1, order_id=99))
        if app.driver.database == "mariadb":  # it checks no constraint at COMMIT
            return
        with pytest.raises(IntegrityError):
            await session.commit()
        await session.rollback()
    assert len(app.broker.undecided()) == 1
    await app.check()
    assert agree(app) == []
    assert app.broker.undecided() == []


async def test_the_check_commits_what_a_process_committed_that_died_before_its_verdict(app: App) -> None:
    app.broker.end_error = SendTimeout("no answer")
    async with app.sessions()() as session:
        tx = await order(app, session, 1)
        await session.commit()
        assert tx.receipt is None
    await app.check()
    assert agree(app) == [1]


async def test_a_commit_whose_messages_somebody_rolled_back_says_so(app: App) -> None:
    def operator(tx_id: str) -> None:
        app.broker.settle(tx_id, "ROLLED_BACK")

    app.broker.on_prepare = operator
    async with app.sessions()() as session:
        await order(app, session, 1)
        with pytest.raises(OutcomeMixed):
            await session.commit()
    assert app.order_ids() == [1]


@pytest.mark.parametrize("hook", ["before_commit", "after_commit", "after_transaction_end"])
@pytest.mark.parametrize("is_first", [True, False])
async def test_a_hook_of_the_application_that_raises_tears_nothing_apart(app: App, hook: str, is_first: bool) -> None:
    def fail(_session: Session, ended: SessionTransaction | None = None) -> None:
        if ended is None or ended.parent is None:  # a flush has a transaction of its own
            raise Sorry

    async with app.sessions()() as session:
        if is_first:
            event.listen(session.sync_session, hook, fail)
        await order(app, session, 1)
        if not is_first:
            event.listen(session.sync_session, hook, fail)
        with pytest.raises(Sorry):
            await session.commit()
        event.remove(session.sync_session, hook, fail)
        if hook == "after_transaction_end":
            assert app.broker.undecided() == [], "the verdict comes before it"
        await session.invalidate()
    await app.check()
    assert agree(app) == ([] if hook == "before_commit" else [1])


async def test_a_statement_of_a_later_hook_that_fails_does_not_commit_the_message(app: App) -> None:
    def fail(session: Session) -> None:
        with pytest.raises(Exception, match="nowhere"):
            session.execute(text("SELECT 1 FROM nowhere"))

    async with app.sessions()() as session:
        await order(app, session, 1)
        event.listen(session.sync_session, "before_commit", fail)
        if app.driver.database == "postgresql":
            with pytest.raises(UsageError, match=r"a statement there has failed|only rolls back"):
                await session.commit()
            await session.rollback()
        else:  # there only the statement is undone
            await session.commit()
    await app.check()
    assert agree(app) == ([] if app.driver.database == "postgresql" else [1])


async def test_a_commit_behind_the_session_is_refused(app: App) -> None:
    async with app.sessions()() as session:
        await order(app, session, 1)
        with pytest.raises(UsageError, match="would end its transaction"):
            await session.execute(text("COMMIT"))
        connection = await session.connection()
        with pytest.raises(UsageError, match="is committed inside"):
            await connection.commit()
        await session.rollback()
    assert (app.order_ids(), app.broker.calls) == ([], [])


async def test_a_cancelled_commit_leaves_the_check_to_say_what_became_of_it(app: App) -> None:
    async with app.sessions()() as session:
        await order(app, session, 1)
        task = asyncio.current_task()
        assert task is not None
        app.broker.on_prepare = lambda _: task.cancel() and None  # type: ignore[func-returns-value]
        with pytest.raises(asyncio.CancelledError):
            await session.commit()
            await asyncio.sleep(0)
        task.uncancel()
    await app.check()
    assert app.broker.undecided() == []
    agree(app)


async def test_where_a_message_cannot_join_it_is_refused_and_nothing_changes(app: App) -> None:
    client = AsyncMemoryClient(app.broker)
    async with app.sessions()() as session:
        async with session.begin_nested():
            with pytest.raises(UsageError, match="inside a savepoint"):
                await join(app, session)
        async with app.log.bind_async(client, session):
            with pytest.raises(UsageError, match="inside a block that commits it"):
                await join(app, session)
        async with app.inbox.once(session, Message("m1"), group="g"):  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="inside a block that commits it"):
                await join(app, session)
        await order(app, session, 1)
        with pytest.raises(UsageError, match=r"inside an mq\.transaction block"):
            async with app.log.bind_async(client, session):
                raise AssertionError
        other = MarkerTable(app.metadata, table="mq_other")
        with pytest.raises(UsageError, match="cannot have one in mq_other"):
            await join(app, session, other)
        await session.commit()
    with app.engine.connect() as connection:
        session_of_it = Session(connection)
        with pytest.raises(UsageError, match="not of a Session"):
            await join(app, session_of_it)  # type: ignore[arg-type]
    assert agree(app) == [1]


async def test_a_message_and_a_claim_of_the_inbox_are_one_transaction(app: App) -> None:
    message = Message("m1")
    for _ in range(2):
        async with app.sessions()() as session, session.begin():
            if await session.run_sync(lambda sync: app.inbox.claim(sync, message, group="g")):  # type: ignore[arg-type]
                await order(app, session, 1)
    assert agree(app) == [1]
    assert app.handled() == 1
