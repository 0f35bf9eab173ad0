"""A transaction that has ended before its first row of halfmq: that row is refused, whichever it is: no message is without its rows.

``test_random_endings`` draws what ends it; here is each way once, and each table.
"""

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import MetaData, Table, delete, insert, select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import async_session
from sqlalchemy.orm import Session
from tests.support.waiting import PATIENCE_S
from tests.unit.sql import test_endings as endings
from tests.unit.sql.faces import DRIVERS, App, Message, app, on, wait
from tests.unit.sql.memory_broker import AsyncMemoryClient

from halfmq.errors import UsageError
from halfmq.sql import Barrier, MarkerTable, Outbox, create_tables, tables_of, upgrade_tables

__all__ = ["app"]

Case = Callable[[App, Session, Any], None]


def deadlock(app: App, session: Session, tx: Any) -> None:
    """The other transaction has changed more rows, so this one is rolled back."""
    orders = app.orders
    left, right, *more = range(100, 200)
    with app.engine.begin() as connection:
        connection.execute(delete(orders).where(orders.c.id >= left))
        connection.execute(insert(orders), [{"id": row} for row in (left, right, *more)])
    session.execute(update(orders).where(orders.c.id == left).values(note="mine"))
    holds = threading.Event()

    def other() -> None:
        with app.engine.connect() as connection:
            connection.execute(update(orders).where(orders.c.id >= right).values(note="other"))
            holds.set()
            connection.execute(update(orders).where(orders.c.id == left).values(note="other"))

    thread = threading.Thread(target=other)
    thread.start()
    assert holds.wait(PATIENCE_S)
    with pytest.raises(DBAPIError, match="1213"):
        session.execute(update(orders).where(orders.c.id == right).values(note="mine"))
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def deadlock_and_goes_on(app: App, session: Session, tx: Any) -> None:
    deadlock(app, session, tx)
    session.execute(insert(app.orders).values(id=7))


def driver_rolls_back_and_goes_on(app: App, session: Session, tx: Any) -> None:
    endings.driver_rolls_back(app, session, tx)
    session.execute(insert(app.orders).values(id=7))


def insert_or_rollback_and_goes_on(app: App, session: Session, tx: Any) -> None:
    with pytest.raises(IntegrityError):
        session.execute(text("INSERT OR ROLLBACK INTO orders (id) VALUES (NULL), (5), (5)"))
    session.execute(insert(app.orders).values(id=7))


def first_savepoint_is_released(app: App, session: Session, tx: Any) -> None:
    """sqlite3 begins no transaction with a savepoint, so its RELEASE commits."""
    session.rollback()
    with session.begin_nested():
        session.execute(insert(app.orders).values(id=8))


def procedure_rolls_back(app: App, session: Session, tx: Any) -> None:
    with pytest.raises(DBAPIError):
        session.execute(text("BEGIN NOT ATOMIC ROLLBACK; SIGNAL SQLSTATE '45000'; END"))


def in_procedure(app: App, session: Session, body: str) -> None:
    with app.engine.begin() as connection:  # not in that of the session, which it would commit
        connection.execute(text(f"CREATE OR REPLACE PROCEDURE p() {body}"))
    session.execute(text("CALL p()"))


def procedure_rolls_back_and_succeeds(app: App, session: Session, tx: Any) -> None:
    in_procedure(app, session, "ROLLBACK")


def procedure_rolls_back_and_a_query_follows(app: App, session: Session, tx: Any) -> None:
    in_procedure(app, session, "ROLLBACK")
    session.execute(text("SELECT 1"))


def procedure_has_a_handler_that_rolls_back(app: App, session: Session, tx: Any) -> None:
    handler = "DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END"
    with pytest.raises(DBAPIError):
        in_procedure(app, session, f"BEGIN {handler}; INSERT INTO orders (id) VALUES (1); END")
    session.execute(insert(app.orders).values(id=7))


def text_in_text(app: App, session: Session, tx: Any) -> None:
    session.execute(text("EXECUTE IMMEDIATE 'ROLLBACK'"))


def comment_that_is_executed(app: App, session: Session, tx: Any) -> None:
    session.execute(text("/*! ROLLBACK */"))


def after_a_comment(app: App, session: Session, tx: Any) -> None:
    session.execute(text("# x\nROLLBACK"))


EVERYWHERE: list[Case] = [
    endings.statement_commits, endings.statement_rolls_back, endings.statement_commits_unseen, endings.driver_rolls_back,
    driver_rolls_back_and_goes_on,
]  # fmt: skip
ONLY: dict[Case, str] = {
    insert_or_rollback_and_goes_on: "sqlite", endings.trigger_rolls_back: "sqlite", first_savepoint_is_released: "sqlite",
    endings.script_commits: "sqlite", endings.table_is_created: "mariadb", deadlock: "mariadb",
    deadlock_and_goes_on: "mariadb", procedure_rolls_back: "mariadb",
    procedure_rolls_back_and_succeeds: "mariadb", procedure_rolls_back_and_a_query_follows: "mariadb", after_a_comment: "mariadb",
    procedure_has_a_handler_that_rolls_back: "mariadb", text_in_text: "mariadb", comment_that_is_executed: "mariadb", endings.error_is_swallowed: "postgresql",
}  # fmt: skip
CASES = [
    on(driver, case, name=case.__name__)
    for case in (*EVERYWHERE, *ONLY)
    for driver in DRIVERS
    if ONLY.get(case, driver.database) == driver.database
]


def by_outbox(app: App, session: Session) -> None:
    app.outbox.send(session, "t", b"x")
    session.commit()


def by_outbox_on_the_connection(app: App, session: Session) -> None:
    app.outbox.send(session.connection(), "t", b"x")


def by_block(app: App, session: Session) -> None:
    with app.block(session) as tx:
        tx.send("t", b"x")


def by_joining(app: App, session: Session) -> None:
    if not app.driver.is_async:
        raise UsageError("only AsyncSession")
    wait(app.log.join_async(AsyncMemoryClient(app.broker), async_session(session))).send("t", b"x")  # type: ignore[arg-type]
    session.commit()


def by_claim(app: App, session: Session) -> None:
    app.inbox.claim(session, Message("m"), group="g")
    session.commit()


def by_once(app: App, session: Session) -> None:
    with app.once(session, Message("m")):
        pass


WRITERS = (by_outbox, by_outbox_on_the_connection, by_block, by_joining, by_claim, by_once)


@pytest.fixture(params=WRITERS, ids=lambda writer: writer.__name__)
def writer(request: pytest.FixtureRequest) -> Callable[[App, Session], None]:
    return request.param  # type: ignore[no-any-return]


@pytest.mark.parametrize(("app", "case"), CASES, indirect=["app"])
async def test_row_of_halfmq_is_refused_where_the_transaction_has_ended_before_it(
    app: App, case: Case, writer: Callable[[App, Session], None]
) -> None:
    def scene(session: Session) -> None:
        session.add(app.order_type(1))
        session.flush()
        case(app, session, None)
        with pytest.raises((UsageError, SQLAlchemyError)):
            writer(app, session)
        session.rollback()
        app.outbox.send(session, "afterwards", b"x")  # the next transaction is as any other
        session.commit()

    await app.play(scene)
    assert app.broker.calls == []
    assert [row[0] for row in app.in_outbox()] == ["afterwards"]
    assert (app.handled(), app.markers()) == (0, {})


@pytest.mark.parametrize(("app", "case"), CASES, indirect=["app"])
async def test_what_follows_a_row_of_halfmq_is_not_committed_without_it(app: App, case: Case) -> None:
    def scene(session: Session) -> None:
        app.outbox.send(session, "t", b"x")
        session.add(app.order_type(1))
        session.flush()
        case(app, session, None)
        if case is first_savepoint_is_released:  # the application itself begins another transaction in it
            return
        session.add(app.order_type(99))
        session.commit()

    with contextlib.suppress(UsageError, SQLAlchemyError):
        await app.play(scene)
    assert 99 not in app.order_ids()
    assert (1 in app.order_ids()) == bool(app.in_outbox())


@pytest.mark.parametrize("app", [on(DRIVERS[0])], indirect=True)
@pytest.mark.parametrize("kind", ["insert", "update", "delete"])
async def test_each_table_of_halfmq_is_refused(app: App, kind: str) -> None:
    Barrier(app.metadata)
    app.metadata.create_all(app.engine)
    made: dict[str, Callable[[Table], Any]] = {
        "insert": lambda table: insert(table).from_select(list(table.columns), select(table)),
        "update": lambda table: update(table).values({table.columns[0]: table.columns[0]}),
        "delete": delete,
    }

    def scene(session: Session) -> None:
        session.add(app.order_type(1))
        session.flush()
        with contextlib.suppress(IntegrityError):
            session.execute(text("INSERT OR ROLLBACK INTO orders (id) VALUES (1)"))
        for table in (tables := tables_of(app.metadata)):
            with pytest.raises(UsageError, match=r"INSERT OR ROLLBACK INTO.*which failed, has ended the"):
                session.execute(made[kind](table))
        assert {table.name for table in tables} >= {"mq_tx", "mq_inbox", "mq_outbox", "mq_outbox_lane", "mq_barrier"}
        session.execute(insert(app.orders).values(id=2))  # tables of the application are its own affair

    await app.play(scene)


@pytest.mark.parametrize("app", [on(driver) for driver in DRIVERS], indirect=True)
async def test_tables_are_created_after_rows_of_others(app: App) -> None:
    """On MariaDB each CREATE TABLE ends a transaction that has rows of the table before."""
    metadata = MetaData()
    for number in range(3):
        Outbox(metadata, f"outbox_{number}")
        MarkerTable(metadata, f"markers_{number}")

    def scene(session: Session) -> None:
        session.add(app.order_type(1))
        session.flush()
        assert len(create_tables(session.connection(), metadata)) >= 9
        assert upgrade_tables(session.connection(), metadata) == []
        session.commit()

    await app.play(scene)
    metadata.drop_all(app.engine)
    metadata.create_all(app.engine)


@pytest.mark.parametrize("app", [on(driver) for driver in DRIVERS], indirect=True)
async def test_errors_that_end_nothing_are_the_application_s_affair(app: App) -> None:
    """A duplicate that is caught, in a savepoint where the database needs one, and a savepoint that is rolled back."""

    def scene(session: Session) -> None:
        session.add(app.order_type(1))
        session.flush()
        for _ in range(2):
            with contextlib.suppress(IntegrityError), session.begin_nested():
                session.execute(insert(app.orders).values(id=2))
        if app.driver.database != "postgresql":
            with contextlib.suppress(IntegrityError):
                session.execute(insert(app.orders).values(id=2))
        app.outbox.send(session, "t", b"x")
        assert app.inbox.claim(session, Message("m"), group="g")
        session.commit()

    await app.play(scene)
    assert (app.order_ids(), len(app.in_outbox()), app.handled()) == ([1, 2], 1, 1)
