"""A message is sent if and only if the row is committed, in whichever way the database transaction or a savepoint in it ends.

Issue 28, 1.1 and 1.2. In each case the order with number N and the message to topic ``tN`` are written together.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import delete, event, insert, select, text
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session
from tests.unit.sql.faces import DRIVERS, WALK, App, Message, Sorry, agree, app, on, place

from halfmq.errors import UsageError

__all__ = ["app"]

Case = Callable[[App, Session, Any], None]


# --- savepoints ------------------------------------------------------------------------------------------------------
# Order 1 is there before. Each of these sends a message in a savepoint that is rolled back, however that is noticed.


def flush_fails(app: App, session: Session, tx: Any) -> None:
    with contextlib.suppress(IntegrityError), session.begin_nested():
        tx.send("lost", b"x")
        session.add(app.order_type(1))
        session.flush()


def autoflush_fails(app: App, session: Session, tx: Any) -> None:
    with contextlib.suppress(IntegrityError), session.begin_nested():
        tx.send("lost", b"x")
        session.add(app.order_type(1))
        session.execute(select(app.order_type)).all()


def flush_at_the_end_of_the_savepoint_fails(app: App, session: Session, tx: Any) -> None:
    with contextlib.suppress(IntegrityError), session.begin_nested():
        session.add(app.order_type(1))
        tx.send("lost", b"x")


def bulk_save_fails(app: App, session: Session, tx: Any) -> None:
    with contextlib.suppress(IntegrityError), session.begin_nested():
        tx.send("lost", b"x")
        session.bulk_save_objects([app.order_type(8), app.order_type(1)])


def insert_or_skip(app: App, session: Session, tx: Any) -> None:
    for order_id in (1, 3, 1, 4):
        with contextlib.suppress(IntegrityError), session.begin_nested():
            place(app, session, tx, order_id)
            session.flush()


def inner_one_fails_in_an_outer_one_that_succeeds(app: App, session: Session, tx: Any) -> None:
    with session.begin_nested():
        place(app, session, tx, 3)
        with contextlib.suppress(IntegrityError), session.begin_nested():
            tx.send("lost", b"x")
            session.add(app.order_type(1))
            session.flush()
        place(app, session, tx, 4)


def outer_one_fails_after_an_inner_one_succeeded(app: App, session: Session, tx: Any) -> None:
    with contextlib.suppress(IntegrityError), session.begin_nested():
        with session.begin_nested():
            place(app, session, tx, 8)
        session.add(app.order_type(1))
        session.flush()


def exception_before_any_statement(app: App, session: Session, tx: Any) -> None:
    with contextlib.suppress(Sorry), session.begin_nested():
        tx.send("lost", b"x")
        raise Sorry


def rolled_back_by_a_call(app: App, session: Session, tx: Any) -> None:
    savepoint = session.begin_nested()
    place(app, session, tx, 8)
    savepoint.rollback()


def rolled_back_after_a_failed_flush(app: App, session: Session, tx: Any) -> None:
    savepoint = session.begin_nested()
    place(app, session, tx, 8)
    session.add(app.order_type(1))
    with contextlib.suppress(IntegrityError):
        session.flush()
    savepoint.rollback()


def session_is_rolled_back_to_the_savepoint(app: App, session: Session, tx: Any) -> None:
    session.begin_nested()
    place(app, session, tx, 8)
    nested = session.get_nested_transaction()
    assert nested is not None
    nested.rollback()


def savepoint_of_the_connection(app: App, session: Session, tx: Any) -> None:
    connection = session.connection()
    with contextlib.suppress(IntegrityError), connection.begin_nested():
        tx.send("lost", b"x")
        connection.execute(insert(app.orders).values(id=1))


def savepoint_in_text(app: App, session: Session, tx: Any) -> None:
    session.execute(text("SAVEPOINT mine"))
    session.execute(insert(app.orders).values(id=8))
    tx.send("lost", b"x")
    session.execute(text("-- back\n ROLLBACK TO SAVEPOINT mine"))
    session.execute(insert(app.orders).values(id=3))
    tx.send("t3", b"x")
    session.execute(text("RELEASE SAVEPOINT mine"))


def savepoints_of_one_name(app: App, session: Session, tx: Any) -> None:
    session.execute(text("SAVEPOINT mine"))
    session.execute(insert(app.orders).values(id=3))
    tx.send("t3", b"x")
    session.execute(text("SAVEPOINT mine"))
    session.execute(insert(app.orders).values(id=8))
    tx.send("lost", b"x")
    session.execute(text("ROLLBACK TO SAVEPOINT mine"))


def savepoints_with_like_names(app: App, session: Session, tx: Any) -> None:
    """Quoted, so that nothing less than the whole name tells them apart."""
    quote = "`" if app.driver.database == "mariadb" else '"'
    session.execute(text(f"SAVEPOINT {quote}sp-1{quote}"))
    session.execute(insert(app.orders).values(id=8))
    tx.send("lost", b"x")
    session.execute(text(f"SAVEPOINT {quote}sp-2{quote}"))
    session.execute(text(f"ROLLBACK TO SAVEPOINT {quote}sp-1{quote}"))


def savepoint_with_a_comment(app: App, session: Session, tx: Any) -> None:
    session.execute(text("SAVEPOINT /* step 1 */ mine"))
    session.execute(insert(app.orders).values(id=8))
    tx.send("lost", b"x")
    session.execute(text("ROLLBACK /* step 1 */ TO mine"))


def left_open(app: App, session: Session, tx: Any) -> None:
    session.begin_nested()
    place(app, session, tx, 3)


SAVEPOINTS: list[Case] = [
    flush_fails, autoflush_fails, flush_at_the_end_of_the_savepoint_fails, bulk_save_fails, insert_or_skip,
    inner_one_fails_in_an_outer_one_that_succeeds, outer_one_fails_after_an_inner_one_succeeded, exception_before_any_statement,
    rolled_back_by_a_call, rolled_back_after_a_failed_flush, session_is_rolled_back_to_the_savepoint, savepoint_of_the_connection,
    savepoint_in_text, savepoints_of_one_name, savepoints_with_like_names, savepoint_with_a_comment, left_open,
]  # fmt: skip


@pytest.mark.parametrize("case", SAVEPOINTS, ids=lambda case: case.__name__)
async def test_what_a_savepoint_takes_back_is_not_sent(app: App, case: Case) -> None:
    def body(session: Session, tx: Any) -> None:
        place(app, session, tx, 1)
        session.flush()
        case(app, session, tx)
        place(app, session, tx, 2)

    await app.run(body)
    assert set(agree(app)) >= {1, 2}
    assert 8 not in agree(app)
    assert app.markers() == {"tx-1": "C"}


# --- endings of the whole transaction that the session does not notice ---------------------------------------------------


def error_is_swallowed(app: App, session: Session, tx: Any) -> None:
    with contextlib.suppress(Exception):
        session.execute(text("SELECT 1 FROM no_such_table"))


def statement_commits(app: App, session: Session, tx: Any) -> None:
    session.execute(text("  /* done */ commit"))


def statement_rolls_back(app: App, session: Session, tx: Any) -> None:
    session.execute(text("rollback"))


def statement_commits_unseen(app: App, session: Session, tx: Any) -> None:
    """The text does not show it, as of a procedure: sent past SQLAlchemy's events."""
    session.connection().connection.dbapi_connection.commit()  # type: ignore[union-attr]


def unseen_savepoint_is_rolled_back(app: App, session: Session, tx: Any) -> None:
    """Which of the messages were sent since is unknown."""
    cursor = session.connection().connection.dbapi_connection.cursor()  # type: ignore[union-attr]
    cursor.execute("SAVEPOINT unseen")
    session.execute(insert(app.orders).values(id=7))
    if tx is not None:
        tx.send("lost", b"x")
    session.execute(text("ROLLBACK TO SAVEPOINT unseen"))


def driver_rolls_back(app: App, session: Session, tx: Any) -> None:
    session.connection().connection.dbapi_connection.rollback()  # type: ignore[union-attr]


def driver_rolls_back_and_goes_on(app: App, session: Session, tx: Any) -> None:
    driver_rolls_back(app, session, tx)
    place(app, session, tx, 7)
    session.flush()


def driver_commits_and_goes_on(app: App, session: Session, tx: Any) -> None:
    """The next transaction looks like the first one: it is open, and sees the marker."""
    statement_commits_unseen(app, session, tx)
    session.connection().connection.dbapi_connection.cursor().execute("BEGIN")  # type: ignore[union-attr]
    session.execute(insert(app.orders).values(id=7))


def session_commits(app: App, session: Session, tx: Any) -> None:
    session.commit()


def session_rolls_back(app: App, session: Session, tx: Any) -> None:
    session.rollback()


def refused_commit_is_swallowed(app: App, session: Session, tx: Any) -> None:
    with contextlib.suppress(UsageError):
        session.commit()


def insert_or_rollback(app: App, session: Session, tx: Any) -> None:
    with contextlib.suppress(IntegrityError):
        session.execute(text("INSERT OR ROLLBACK INTO orders (id) VALUES (1)"))


def trigger_rolls_back(app: App, session: Session, tx: Any) -> None:
    session.execute(text("CREATE TRIGGER no BEFORE INSERT ON lines BEGIN SELECT RAISE(ROLLBACK, 'no'); END"))
    with contextlib.suppress(IntegrityError):
        session.execute(insert(app.lines).values(id=1, order_id=1))


def script_commits(app: App, session: Session, tx: Any) -> None:
    connection = session.connection().connection
    if app.driver.is_async:
        connection.dbapi_connection.commit()  # type: ignore[union-attr]
    else:
        connection.dbapi_connection.executescript("SELECT 1;")  # type: ignore[union-attr]


def table_is_created(app: App, session: Session, tx: Any) -> None:
    session.execute(text("CREATE TABLE other (id INTEGER)"))


def autocommit_is_set(app: App, session: Session, tx: Any) -> None:
    session.execute(text("SET autocommit = 1"))


EVERYWHERE: list[Case] = [
    error_is_swallowed, statement_commits, statement_rolls_back, statement_commits_unseen, driver_rolls_back,
    driver_rolls_back_and_goes_on, driver_commits_and_goes_on, session_commits, session_rolls_back, refused_commit_is_swallowed,
    unseen_savepoint_is_rolled_back,
]  # fmt: skip
ONLY: dict[Case, str] = {
    insert_or_rollback: "sqlite", trigger_rolls_back: "sqlite", script_commits: "sqlite", table_is_created: "mariadb",
    autocommit_is_set: "mariadb",
}  # fmt: skip
#: The text, or what the driver does, is not seen before it has happened: what was written until then stays.
LATE: list[Case] = [statement_commits_unseen, driver_commits_and_goes_on, script_commits]
#: SQLAlchemy itself refuses a session whose commit has failed.
REFUSALS = (UsageError, SQLAlchemyError)


#: Each case on each driver that knows it.
CASES = [
    on(driver, case, name=case.__name__, is_rare=case is driver_commits_and_goes_on)
    for case in (*EVERYWHERE, *ONLY)
    for driver in DRIVERS
    if ONLY.get(case, driver.database) == driver.database
]


@pytest.mark.parametrize("sends", [True, False], ids=["sends", "silent"])
@pytest.mark.parametrize(("app", "case"), CASES, indirect=["app"])
async def test_block_whose_transaction_has_ended_raises_and_sends_nothing(app: App, case: Case, sends: bool) -> None:
    def body(session: Session, tx: Any) -> None:
        session.add(app.order_type(1))
        session.flush()
        if sends:
            tx.send("t1", b"x")
        case(app, session, tx)

    # Only PostgreSQL aborts a transaction by a failed statement.
    if case is error_is_swallowed and app.driver.database != "postgresql":
        await app.run(body)
        assert (app.order_ids(), app.messages()) == ([1], ["t1"] if sends else [])
        return
    with pytest.raises(REFUSALS):
        await app.run(body)
    assert app.broker.calls == []
    assert app.order_ids() == ([1] if case in LATE else [])


async def test_block_whose_marker_is_gone_in_the_same_transaction_sends_nothing(app: App) -> None:
    def body(session: Session, tx: Any) -> None:
        place(app, session, tx, 1)
        session.execute(delete(app.log.table).where(app.log.table.c.tx_id == tx.id))

    with pytest.raises(UsageError, match="ended before its end"):
        await app.run(body)
    assert (app.order_ids(), app.broker.calls) == ([], [])


@pytest.mark.parametrize("case", [error_is_swallowed, driver_rolls_back], ids=lambda case: case.__name__)
async def test_hook_that_runs_after_the_messages_have_left_cannot_end_the_transaction(app: App, case: Case) -> None:
    def body(session: Session, tx: Any) -> None:
        place(app, session, tx, 1)
        event.listen(session, "before_commit", lambda session: case(app, session, tx))

    with contextlib.suppress(UsageError):
        await app.run(body)
    assert app.broker.undecided() == []
    agree(app)


AUTOCOMMIT: dict[str, dict[str, Any]] = {
    "sqlite3": {"isolation_level": None}, "aiosqlite": {"isolation_level": None}, "psycopg": {"autocommit": True},
    "psycopg_async": {"autocommit": True}, "pymysql": {"autocommit": True}, "asyncmy": {"autocommit": True},
}  # fmt: skip


async def test_engine_or_driver_that_commits_each_statement_is_refused_at_the_start(app: App) -> None:
    engines = [
        app.new_engine(isolation_level="AUTOCOMMIT"),
        app.application.execution_options(isolation_level="AUTOCOMMIT"),
        *[app.new_engine(connect_args=AUTOCOMMIT[name]) for name in AUTOCOMMIT if name == app.driver.name],
    ]
    for engine in engines:
        with pytest.raises(UsageError, match="autocommit"):
            await app.run(lambda session, tx: place(app, session, tx, 1), engine=engine)
        with pytest.raises(UsageError, match="autocommit"):
            await app.handle(Message("m"), lambda session: session.add(app.order_type(1)), engine=engine)
    assert (app.order_ids(), app.markers(), app.broker.calls, app.handled()) == ([], {}, [], 0)


# --- the inbox -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("app", "case"), CASES, indirect=["app"])
async def test_message_whose_effect_is_gone_is_not_acknowledged(app: App, case: Case) -> None:
    def handler(session: Session) -> None:
        session.add(app.order_type(1))
        session.flush()
        case(app, session, None) if case is not driver_rolls_back_and_goes_on else driver_rolls_back(app, session, None)

    if case is error_is_swallowed and app.driver.database != "postgresql":
        assert await app.handle(Message("m"), handler)
        assert (app.order_ids(), app.handled()) == ([1], 1)
        return
    with pytest.raises(REFUSALS):
        await app.handle(Message("m"), handler)
    assert (app.order_ids(), app.handled()) == (([1], 1) if case in LATE else ([], 0))
    if case not in LATE:
        assert await app.handle(Message("m"), lambda session: session.add(app.order_type(1)))
        assert (app.order_ids(), app.handled()) == ([1], 1)


@pytest.mark.parametrize("app", WALK, indirect=True)
async def test_walk_through_each_driver(app: App) -> None:
    """One block of each kind of ending on one database: what is only in `make test-all` for some drivers."""

    def fine(session: Session, tx: Any) -> None:
        place(app, session, tx, 1)
        session.flush()
        flush_fails(app, session, tx)
        insert_or_skip(app, session, tx)

    def ended(session: Session, tx: Any) -> None:
        place(app, session, tx, 6)
        session.flush()
        driver_rolls_back(app, session, tx)

    await app.run(fine)
    assert agree(app) == [1, 3, 4]
    with pytest.raises(UsageError, match="ended before its end"):
        await app.run(ended)
    with pytest.raises(UsageError, match="would end its transaction"):
        await app.run(lambda session, tx: statement_commits(app, session, tx))
    with pytest.raises(UsageError, match="ended before its end"):
        await app.handle(Message("m"), lambda session: driver_rolls_back(app, session, None))
    assert agree(app) == [1, 3, 4]
    assert await app.handle(Message("m"), lambda session: session.add(app.order_type(7)))
    assert (app.order_ids(), app.handled(), app.markers()) == ([1, 3, 4, 7], 1, {"tx-1": "C"})
