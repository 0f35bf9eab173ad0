"""A transaction that has ended before its first row of halfmq: that row is refused, whichever it is: no message is without its rows.

``test_random_endings`` draws what ends it; here is each way once, and each table.
"""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, delete, event, insert, select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import async_session
from sqlalchemy.orm import Session
from tests.support.waiting import PATIENCE_S
from tests.unit.sql import test_endings as endings
from tests.unit.sql.faces import DRIVERS, App, Message, app, on, wait
from tests.unit.sql.memory_broker import AsyncMemoryClient

from halfmq.client.branch import Branch
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


def in_procedure(app: App, session: Session, body: str, call: str = "CALL p()") -> None:
    with app.engine.begin() as connection:  # not in that of the session, which it would commit
        connection.execute(text(f"CREATE OR REPLACE PROCEDURE p() {body}"))
    session.execute(text(call))


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


def procedure_after_a_comment(app: App, session: Session, tx: Any) -> None:
    in_procedure(app, session, "ROLLBACK", "/* shop */ CALL p()")


def procedure_with_settings(app: App, session: Session, tx: Any) -> None:
    in_procedure(app, session, "ROLLBACK", "SET STATEMENT max_statement_time=5 FOR CALL p()")


def branch_in_text(app: App, session: Session, tx: Any) -> None:
    session.execute(text("IF 1 THEN ROLLBACK; END IF"))


EVERYWHERE: list[Case] = [
    endings.statement_commits, endings.statement_rolls_back, endings.statement_commits_unseen, endings.driver_rolls_back,
    driver_rolls_back_and_goes_on,
]  # fmt: skip
ONLY: dict[Case, str] = {
    insert_or_rollback_and_goes_on: "sqlite", endings.trigger_rolls_back: "sqlite", first_savepoint_is_released: "sqlite",
    endings.script_commits: "sqlite", endings.table_is_created: "mariadb", deadlock: "mariadb",
    deadlock_and_goes_on: "mariadb", procedure_rolls_back: "mariadb",
    procedure_rolls_back_and_succeeds: "mariadb", procedure_rolls_back_and_a_query_follows: "mariadb", after_a_comment: "mariadb",
    procedure_after_a_comment: "mariadb", procedure_with_settings: "mariadb", branch_in_text: "mariadb",
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


@pytest.mark.parametrize("app", [on(DRIVERS[0])], indirect=True)
async def test_the_first_statement_of_each_writer_changes_a_row(
    app: App, writer: Callable[[App, Session], None]
) -> None:
    """On SQLite a transaction that has read before it writes fails at once where another one is committing, instead of waiting for it."""
    app.log._markers.identity.forget()  # as in a process that has just begun
    said: list[str] = []

    def scene(session: Session) -> None:
        event.listen(session.connection(), "before_cursor_execute", lambda _c, _cu, text, *_: said.append(text))
        with contextlib.suppress(UsageError):  # only for AsyncSession
            writer(app, session)

    await app.play(scene)
    assert writer is by_joining or said
    assert all(text.startswith("INSERT") for text in said[:1]), said


#: What rolls back all of a transaction, and is caught.
ROLLS_BACK = [
    on(driver, case, name=case.__name__)
    for case, database in (
        (endings.statement_rolls_back, ""), (endings.insert_or_rollback, "sqlite"), (deadlock, "mariadb"),
        (endings.error_is_swallowed, "postgresql"),
    )
    for driver in DRIVERS
    if driver.database in (database or driver.database)
]  # fmt: skip


@pytest.mark.parametrize(("app", "case"), ROLLS_BACK, indirect=["app"])
async def test_a_commit_says_that_a_row_of_halfmq_was_rolled_back(app: App, case: Case) -> None:
    def scene(session: Session) -> None:
        session.add(app.order_type(1))
        assert app.inbox.claim(session, Message("m"), group="g")
        session.flush()
        case(app, session, None)
        with pytest.raises((UsageError, SQLAlchemyError), match=r"rolled back|rolls back"):
            session.commit()
        session.rollback()
        session.add(app.order_type(2))
        session.commit()

    await app.play(scene)
    assert (1 in app.order_ids(), 2 in app.order_ids(), app.handled()) == (False, True, 0)


PARTS = {
    "sqlite": ("INSERT OR FAIL INTO orders (id) VALUES (:id)", "INSERT OR ROLLBACK INTO orders (id) VALUES (2)"),
    "mariadb": ("UPDATE orders SET id = 1 WHERE id = :id", "ROLLBACK"),
}


@pytest.mark.parametrize("app", [on(driver) for driver in DRIVERS if driver.database in PARTS], indirect=True)
async def test_rows_of_a_first_statement_that_failed_may_be_lost(app: App) -> None:
    fails, ends = PARTS[app.driver.database]
    if app.driver.database == "mariadb":
        with app.engine.begin() as connection:
            connection.execute(insert(app.orders), [{"id": 2}, {"id": 3}])

    def scene(session: Session) -> None:
        with pytest.raises(IntegrityError):
            session.execute(text(fails), [{"id": 2}, {"id": 3}, {"id": 3}])
        with contextlib.suppress(IntegrityError):
            session.execute(text(ends))
        with pytest.raises(UsageError, match="has ended the database transaction"):
            app.outbox.send(session.connection(), "t", b"x")

    await app.play(scene)


MARIADB = [on(driver) for driver in DRIVERS if driver.database == "mariadb"]


@pytest.mark.parametrize("app", MARIADB, indirect=True)
async def test_what_only_looks_like_an_end_is_the_application_s_affair(app: App) -> None:
    statements = (
        "ANALYZE SELECT 1", "BEGIN NOT ATOMIC SELECT 1; END", "PREPARE p FROM 'SELECT 1'", "DROP PREPARE p",
        "SET @autocommit = 1", "UNLOCK TABLES", "(SELECT 1)", "DO 1",
    )  # fmt: skip

    def scene(session: Session, tx: Any) -> None:
        session.add(app.order_type(1 if tx is None else 2))
        session.flush()
        for statement in statements:
            if tx is None or statement != "UNLOCK TABLES":  # which a block refuses, since it may end its transaction
                session.execute(text(statement))
        (app.outbox.send(session, "t", b"x") if tx is None else tx.send("t", b"x"))

    await app.run(scene)

    def without(session: Session) -> None:
        scene(session, None)
        session.commit()

    await app.play(without)
    assert (app.order_ids(), len(app.in_outbox()), len(app.markers())) == ([1, 2], 1, 1)


@pytest.mark.parametrize("app", MARIADB, indirect=True)
async def test_the_number_of_rows_of_a_procedure_is_still_to_be_had(app: App) -> None:
    def scene(session: Session) -> None:
        session.execute(insert(app.orders), [{"id": 1}, {"id": 2}])
        in_procedure(app, session, "UPDATE orders SET id = id + 10")
        assert session.scalar(text("SELECT ROW_COUNT()")) == 2

    await app.play(scene)


@pytest.mark.parametrize("app", [on(driver) for driver in DRIVERS], indirect=True)
async def test_tables_are_created_in_the_transaction_of_the_first_order(app: App) -> None:
    metadata = MetaData()
    for number in range(3):
        Table(f"shelves_{number}", metadata, Column("id", Integer, primary_key=True))

    def scene(session: Session) -> None:
        metadata.create_all(session.connection())
        session.add(app.order_type(1))
        app.outbox.send(session, "t", b"x")
        session.commit()

    await app.play(scene)
    metadata.drop_all(app.engine)
    assert (app.order_ids(), len(app.in_outbox())) == ([1], 1)


@pytest.mark.parametrize("app", [on(driver) for driver in DRIVERS], indirect=True)
async def test_what_is_written_by_hand_is_refused_where_nothing_can_be_rolled_back(app: App) -> None:
    barrier = Barrier(app.metadata)
    app.metadata.create_all(app.engine)
    writers: dict[str, Callable[[Session], object]] = {
        "outbox.send": lambda session: app.outbox.send(session.connection(), "t", b"x"),
        "outbox.confirm": lambda session: app.outbox.confirm(session, "m"),
        "outbox.withdraw": lambda session: app.outbox.withdraw(session, "m"),
        "inbox.claim": lambda session: app.inbox.claim(session, Message("m"), group="g"),
        "barrier.claim": lambda session: barrier.claim(session, Branch("gid", "shop", "stock", "try", "", 0)),
    }

    def scene(session: Session) -> None:
        connection = session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
        for name, write in writers.items():
            with pytest.raises(UsageError, match=f"autocommit.*{name}"):
                write(session)
        assert connection.in_transaction()

    await app.play(scene)
    assert (app.in_outbox(), app.handled()) == ([], 0)


def test_a_first_row_begins_the_transaction_of_an_application_that_executes_begin(tmp_path: Path) -> None:
    """The recipe of SQLAlchemy's documentation for sqlite3."""
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    event.listen(engine, "connect", lambda driver, _: setattr(driver, "isolation_level", None))
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    metadata = MetaData()
    outbox = Outbox(metadata)
    metadata.create_all(engine)
    with engine.connect() as connection:
        for _ in range(2):
            outbox.send(connection, "t", b"x")
            connection.commit()
        outbox.send(connection, "t", b"x")
        connection.rollback()
        assert len(connection.execute(select(outbox.table)).all()) == 2
    plain = create_engine(f"sqlite:///{tmp_path / 'shop.db'}", isolation_level="AUTOCOMMIT")
    with plain.connect() as connection:
        with pytest.raises(UsageError, match="autocommit"):
            outbox.send(connection, "t", b"x")
        assert not connection.in_transaction()


BEGINS_BEFORE_US = """
import sys
from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine, event, insert

@event.listens_for(Engine, "begin")
def begin(connection):
    connection.exec_driver_sql("BEGIN")

from halfmq.sql import Outbox

engine = create_engine(f"sqlite:///{sys.argv[1]}")
event.listen(engine, "connect", lambda driver, _: setattr(driver, "isolation_level", None))
metadata = MetaData()
orders = Table("orders", metadata, Column("id", Integer, primary_key=True))
outbox = Outbox(metadata)
metadata.create_all(engine)
with engine.connect() as connection:
    for _ in range(2):
        connection.execute(insert(orders))
        outbox.send(connection, "t", b"x")
        connection.commit()
"""


def test_a_statement_that_begins_the_transaction_belongs_to_it(tmp_path: Path) -> None:
    """Also that of a listener which was registered before ours."""
    subprocess.run([sys.executable, "-c", BEGINS_BEFORE_US, tmp_path / "shop.db"], check=True)
