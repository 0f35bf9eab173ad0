# ruff: noqa: PT012 - what raises is the end of a whole block
"""The failure table of ``mq.transaction(session)``: what each step's failure does to the rows and to the messages."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, ForeignKey, Integer, MetaData, Table, create_engine, event, insert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from tests.support.children import fork
from tests.support.waiting import soon, until
from tests.unit.sql.conftest import SQLITE, Shop, with_foreign_keys
from tests.unit.sql.faces import ASYNC, DEFERRED, App, Sorry, agree, app, place, wait
from tests.unit.sql.memory_broker import Asked, AsyncMemoryClient, MemoryBroker, MemoryClient

from halfmq.client.outcome import Outcome
from halfmq.errors import OutcomeMixed, SendTimeout, TransactionUnknown, UsageError

__all__ = ["app"]

Cause = Callable[[Session, Any], None]


async def assert_rolled_back(app: App, expected: type[BaseException], *causes: Cause) -> Any:
    """A block with order 1 and ``causes`` raises ``expected``, and leaves nothing that the session could still commit."""

    def scene(session: Session) -> Any:
        with pytest.raises(expected), app.block(session) as tx:
            place(app, session, tx, 1)
            for cause in causes:
                cause(session, tx)
        session.commit()
        return tx

    tx = await app.play(scene)
    assert (app.order_ids(), app.markers(), app.messages()) == ([], {}, [])
    return tx


def raising(error: BaseException) -> Callable[..., None]:
    def cause(*_: object) -> None:
        raise error

    return cause


def fail_in(hook: str) -> Cause:
    """The session's event ``hook`` raises, once."""
    return lambda session, tx: event.listen(session, hook, raising(Sorry()), once=True)


async def test_rows_marker_and_all_messages_appear_together(app: App) -> None:
    def scene(session: Session) -> Any:
        with app.block(session, query_id="q7", advice=Outcome.COMMIT, comment="ask") as tx:
            session.execute(insert(app.orders).values(id=7))
            tx.send("orders", {"id": 7}, key="7")
            tx.send("stock", {"sku": "x"})
            assert app.broker.calls == []
        return tx

    tx = await app.play(scene)
    assert (app.order_ids(), app.markers(), app.messages()) == ([7], {"tx-1": "C"}, ["orders", "stock"])
    assert app.broker.calls == [("prepare", "tx-1"), ("commit", "tx-1")]
    held = app.broker.transactions["tx-1"]
    assert (held.name, held.query_id) == ("sql.mq_tx", "q7")
    assert held.notes == {"advice": Outcome.COMMIT, "comment": "ask"}
    assert tx.receipt is not None
    assert tx.receipt.tx_id == tx.id == "tx-1"
    with pytest.raises(UsageError, match="has ended"):
        tx.send("orders", b"y")


async def test_marker_is_first_and_halves_go_directly_before_commit(app: App) -> None:
    await app.run(lambda session, tx: None)  # once, the identity of the table is read
    steps: list[str] = []
    event.listen(
        app.sync_engine, "before_cursor_execute", lambda _c, _cu, sql, *_: steps.append(" ".join(sql.split()[:3]))
    )
    event.listen(app.sync_engine, "commit", lambda _c: steps.append("COMMIT"))
    app.broker.on_prepare = lambda _tx_id: steps.append("prepare")
    await app.run(lambda session, tx: place(app, session, tx, 1))
    expected = [
        "INSERT INTO mq_tx", "SAVEPOINT", "INSERT INTO orders", "RELEASE SAVEPOINT", "UPDATE mq_tx SET", "prepare", "COMMIT",
    ]  # fmt: skip
    if app.driver.database == "postgresql":
        expected = [step for step in expected if "SAVEPOINT" not in step]
    assert [step.split(" halfmq")[0] for step in steps] == expected


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (Sorry, raising(Sorry())),
        (KeyboardInterrupt, raising(KeyboardInterrupt())),
        (UsageError, lambda session, tx: tx.send("not a topic", b"x")),
        (Sorry, fail_in("before_flush")),
    ],
    ids=["exception", "interrupt", "bad message", "failed flush"],
)
async def test_exception_before_the_halves_rolls_back_and_costs_the_broker_nothing(
    app: App, error: type[BaseException], cause: Cause
) -> None:
    await assert_rolled_back(app, error, cause)
    assert app.broker.calls == []


async def test_lost_acknowledgement_of_a_half_rolls_back_and_the_check_agrees(app: App) -> None:
    app.broker.on_prepare = raising(SendTimeout("no answer"))
    await assert_rolled_back(app, SendTimeout)
    assert await app.check() == {"tx-1": Outcome.ROLLBACK}
    assert app.messages() == []


@pytest.mark.parametrize("is_acknowledged", [True, False], ids=["acknowledged", "broker away"])
@pytest.mark.parametrize("app", DEFERRED, indirect=True)
async def test_clean_failure_of_commit_sends_rollback_and_raises_the_database_error(
    app: App, is_acknowledged: bool
) -> None:
    app.broker.end_error = None if is_acknowledged else SendTimeout("no answer")
    tx = await assert_rolled_back(
        app, IntegrityError, lambda session, tx: session.add(app.line_type(1, 404))
    )  # checked at COMMIT
    assert tx.receipt is None
    assert app.broker.calls == [("prepare", "tx-1"), ("rollback", "tx-1")]
    assert app.broker.undecided() == ([] if is_acknowledged else ["tx-1"])


async def test_exception_of_a_before_commit_hook_is_a_rollback(app: App) -> None:
    await assert_rolled_back(app, Sorry, fail_in("before_commit"))
    assert app.broker.calls == [("prepare", "tx-1"), ("rollback", "tx-1")]


async def test_session_is_usable_after_a_failed_commit(app: App) -> None:
    def scene(session: Session) -> None:
        for order_id, hook, error in ((1, "before_commit", Sorry), (2, "after_commit", TransactionUnknown)):
            with pytest.raises(error), app.block(session) as tx:
                place(app, session, tx, order_id)
                fail_in(hook)(session, tx)
        with app.block(session) as tx:
            place(app, session, tx, 3)

    await app.play(scene)
    assert (app.order_ids(), app.messages()) == ([2, 3], ["t3"])
    assert await app.check() == {"tx-2": Outcome.COMMIT}, "an exception of an after_commit hook is not a rollback"
    assert agree(app) == [2, 3]


@pytest.mark.parametrize("fails_in", ["INSERT", "COMMIT"])
async def test_hook_after_commit_that_another_database_refuses(app: App, tmp_path: Path, fails_in: str) -> None:
    """Its error is one with which a database rolls back; it is not that of the block's database."""
    metadata = MetaData()
    audit = Table("audit", metadata, Column("id", Integer, primary_key=True))
    later = {"deferrable": True, "initially": "DEFERRED"}
    Table("lines", metadata, Column("id", Integer, primary_key=True), Column("of", ForeignKey("audit.id", **later)))
    engine = with_foreign_keys(create_engine(f"sqlite:///{tmp_path / 'audit.db'}"))
    metadata.create_all(engine)

    def write(_session: Session) -> None:
        with engine.begin() as connection:
            if fails_in == "INSERT":
                connection.execute(insert(audit), [{"id": 1}, {"id": 1}])
            else:
                connection.execute(insert(metadata.tables["lines"]).values(id=1, of=404))

    def body(session: Session, tx: Any) -> None:
        place(app, session, tx, 1)
        event.listen(session, "after_commit", write)

    with pytest.raises(TransactionUnknown):
        await app.run(body)
    assert app.order_ids() == [1]
    await app.check()
    assert agree(app) == [1]
    engine.dispose()


async def test_unconfirmed_commit_does_not_affect_the_caller(app: App) -> None:
    app.broker.end_error = TransactionUnknown("no answer", tx_id="tx-1")
    tx = await app.run(lambda session, tx: place(app, session, tx, 1))
    assert tx.receipt is None
    assert (app.order_ids(), app.messages()) == ([1], [])
    assert await app.check() == {"tx-1": Outcome.COMMIT}
    assert agree(app) == [1]


@pytest.mark.parametrize("with_outbox", [False, True], ids=["markers", "both"])
async def test_block_whose_messages_somebody_else_rolled_back_says_that_it_committed(
    app: App, with_outbox: bool
) -> None:
    """Seen: an operator's ROLLBACK between prepare and COMMIT ended the block normally, with a line in the log."""
    app.broker.on_prepare = lambda tx_id: app.broker.settle(tx_id, "ROLLED_BACK") and None
    options = {"outbox": app.outbox} if with_outbox else {}
    with pytest.raises(
        OutcomeMixed, match=r"tx-1 is committed, and its messages never appear: tx-1 is ROLLED_BACK"
    ) as caught:
        await app.run(lambda session, tx: place(app, session, tx, 1), **options)
    assert (caught.value.tx_id, caught.value.standing) == ("tx-1", "ROLLED_BACK")
    assert "do not repeat it" in caught.value.hint
    assert "halfmq tx damaged" in caught.value.hint
    assert (app.order_ids(), app.messages(), app.markers(), app.in_outbox()) == ([1], [], {"tx-1": "C"}, [])
    app.broker.on_prepare = lambda _tx_id: None  # the connection is as before
    await app.run(lambda session, tx: place(app, session, tx, 2))
    assert app.messages() == ["t2"]


@pytest.mark.parametrize("app", DEFERRED, indirect=True)
async def test_block_whose_messages_somebody_else_committed_raises_what_its_commit_failed_with(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    app.broker.on_prepare = lambda tx_id: app.broker.settle(tx_id, "COMMITTED") and None

    def body(session: Session, tx: Any) -> None:
        place(app, session, tx, 1)
        session.add(app.line_type(1, 404))

    with pytest.raises(IntegrityError):
        await app.run(body)
    assert (app.order_ids(), app.messages()) == ([], ["t1"])
    (line,) = [one for one in caplog.messages if one.startswith("DAMAGE")]
    assert line.startswith("DAMAGE: the messages of tx-1 are visible, and its local COMMIT failed")


@pytest.mark.parametrize("took_effect", [True, False], ids=["took effect", "lost"])
async def test_error_of_commit_that_says_nothing_leaves_the_halves_alone(
    app: App, monkeypatch: pytest.MonkeyPatch, took_effect: bool
) -> None:
    """The driver raises an I/O error out of COMMIT, once after it took effect, once before."""
    dialect = app.sync_engine.dialect
    real_commit = dialect.do_commit

    def failing_commit(connection: Any) -> None:
        if took_effect:
            real_commit(connection)
        raise OSError("input/output error")

    def body(session: Session, tx: Any) -> None:
        place(app, session, tx, 1)
        monkeypatch.setattr(dialect, "do_commit", failing_commit)

    with pytest.raises(TransactionUnknown) as caught:
        await app.run(body)
    monkeypatch.undo()
    assert caught.value.tx_id == "tx-1"
    assert app.broker.calls == [("prepare", "tx-1")]
    assert app.order_ids() == [1] * took_effect
    assert await app.check() == {"tx-1": Outcome.COMMIT if took_effect else Outcome.ROLLBACK}
    assert agree(app) == [1] * took_effect


async def test_local_transaction_that_was_fenced_fails_with_its_business_rows(app: App) -> None:
    """The check was faster: its rollback marker has the primary key that the block needs."""
    assert await app.ask(Asked("tx-1")) is Outcome.ROLLBACK

    def scene(session: Session) -> None:
        session.execute(insert(app.orders).values(id=1))  # even what was written before the marker goes
        with pytest.raises(IntegrityError), app.block(session) as tx:
            tx.send("orders", b"x")
        session.commit()

    await app.play(scene)
    assert (app.order_ids(), app.markers(), app.broker.calls) == ([], {"tx-1": "R"}, [])


async def test_check_during_commit_answers_unknown_and_then_commit(app: App) -> None:
    """Between the halves and COMMIT the marker is locked, or on SQLite the file."""
    during: list[Outcome] = []
    check = app.log.checker(app.sessions())
    app.broker.on_prepare = lambda tx_id: during.append(wait(check(Asked(tx_id))))
    await app.run(lambda session, tx: place(app, session, tx, 1))
    assert during == [Outcome.UNKNOWN]
    assert await app.ask(Asked("tx-1")) is Outcome.COMMIT


async def test_block_without_messages_leaves_no_marker_and_asks_no_broker(app: App) -> None:
    await app.run(lambda session, tx: session.add(app.order_type(1)))
    assert (app.order_ids(), app.markers(), app.broker.calls) == ([1], {}, [])


# --- what one face has alone -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("app", ASYNC, indirect=True)
async def test_task_cancelled_while_halves_are_sent_rolls_back_and_the_check_agrees(app: App) -> None:
    sending = asyncio.Event()

    def pause(_tx_id: str) -> None:
        sending.set()
        wait(asyncio.sleep(30))

    app.broker.on_prepare = pause
    task = asyncio.create_task(assert_rolled_back(app, asyncio.CancelledError))
    await soon(sending.wait())
    task.cancel()
    await soon(task)
    assert await app.check() == {"tx-1": Outcome.ROLLBACK}


@pytest.mark.parametrize("app", ASYNC, indirect=True)
async def test_task_cancelled_in_commit_tells_nothing_and_the_check_finds_the_truth(app: App) -> None:
    """Cancelled with COMMIT on its way: whether it took effect, only the database knows."""

    def body(session: Session, tx: Any) -> None:
        place(app, session, tx, 1)
        task = asyncio.current_task()
        assert task is not None
        event.listen(session.connection(), "commit", lambda _connection: task.cancel())

    async def settled() -> bool:
        await app.check()  # UNKNOWN while the server is still at it
        return app.broker.undecided() == []

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(app.run(body))
    assert app.broker.calls == [("prepare", "tx-1")]
    await until(settled, "an answer")
    assert app.markers() == {"tx-1": "C" if agree(app) else "R"}


@SQLITE
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
        session.execute(insert(shop.orders).values(id=7))
        tx.send("orders", {"id": 7})
        said, left, calls = fork(child).result()
        assert "forked" in said
        assert (left, calls) == (None, [])
        block.__exit__(None, None, None)
    assert shop.order_ids() == [7]
    assert [message.topic for message in broker.visible()] == ["orders"]


@SQLITE
def test_wrong_kind_of_session_is_refused(shop: Shop, client: MemoryClient, broker: MemoryBroker) -> None:
    with pytest.raises(UsageError, match="AsyncClient"):
        shop.log.bind(client, AsyncSession())
    with pytest.raises(UsageError, match="goes with Client"):
        shop.log.bind_async(AsyncMemoryClient(broker), Session())
