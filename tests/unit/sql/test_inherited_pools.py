"""A forked child does not use its parent's connections to a database."""

import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, insert, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool
from tests.support.children import fork
from tests.support.waiting import PATIENCE_S
from tests.unit.sql.faces import DRIVERS, App, app, on

from halfmq.errors import UsageError

__all__ = ["app"]

#: The number of a connection, which the server gives it.
NUMBER = {"postgresql": "SELECT pg_backend_pid()", "mariadb": "SELECT CONNECTION_ID()"}
SERVERS = [on(driver) for driver in DRIVERS if not driver.is_async and driver.database in NUMBER]
SYNC = [on(driver) for driver in DRIVERS if not driver.is_async]


@pytest.mark.parametrize("app", SERVERS, indirect=True)
def test_a_child_has_connections_of_its_own(app: App) -> None:
    def number() -> Any:
        with app.engine.connect() as connection:
            return connection.scalar(text(NUMBER[app.driver.database]))

    before = number()
    child = fork(number).result()
    assert child != before
    assert number() == before, "the child has closed the connection of its parent"


def test_a_database_in_memory_is_copied() -> None:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER)"))
    assert fork(lambda: _count(engine)).result() == 0


def _count(engine: Engine) -> Any:
    with engine.connect() as connection:
        return connection.scalar(text("SELECT count(*) FROM orders"))


@pytest.mark.parametrize("app", [on(DRIVERS[0])], indirect=True)
def test_a_child_writes_no_row_in_a_transaction_of_its_parent(app: App, tmp_path: Path) -> None:
    with app.sessions()() as session:
        session.execute(insert(app.orders).values(id=1))

        def leave() -> str:
            with pytest.raises(UsageError) as raised:
                app.outbox.send(session.connection(), "t", b"x")
            return str(raised.value)

        assert "belongs to the process that this one was forked from" in fork(leave).result()
        session.commit()
    assert (app.order_ids(), app.in_outbox()) == ([1], [])


@pytest.mark.parametrize("app", SERVERS, indirect=True)
def test_a_child_has_connections_of_its_own_also_without_those_of_sqlalchemy(app: App) -> None:
    engine = create_engine(app.engine.url)

    def number() -> Any:
        connection = engine.raw_connection()
        try:
            cursor = connection.cursor()
            cursor.execute(NUMBER[app.driver.database])
            return cursor.fetchone()[0]  # type: ignore[index]
        finally:
            connection.close()

    before = number()
    assert fork(number).result() != before
    assert number() == before
    engine.dispose()


@pytest.mark.parametrize("app", SYNC, indirect=True)
@pytest.mark.parametrize("leave", [Session.close, Session.rollback])
def test_a_child_that_leaves_the_transaction_of_its_parent_does_not_end_it(
    app: App, leave: Callable[[Session], None]
) -> None:
    with app.sessions()() as session:
        session.execute(insert(app.orders).values(id=1))
        fork(lambda: leave(session)).result()
        app.outbox.send(session, "t", b"x")
        session.commit()
    assert (app.order_ids(), len(app.in_outbox())) == ([1], 1)


@pytest.mark.parametrize("app", SYNC, indirect=True)
def test_a_child_does_not_commit_the_transaction_of_its_parent(app: App) -> None:
    with app.sessions()() as session:
        session.execute(insert(app.orders).values(id=1))

        def leave() -> str:
            with pytest.raises(UsageError) as raised:
                session.commit()
            session.close()
            return str(raised.value)

        assert "belongs to the process that this one was forked from" in fork(leave).result()
        session.rollback()
    assert app.order_ids() == []


@pytest.mark.parametrize("app", SYNC, indirect=True)
def test_a_child_that_frees_the_session_of_another_thread_does_not_end_its_transaction(app: App) -> None:
    of_thread, is_open, goes_on = threading.local(), threading.Event(), threading.Event()

    def request() -> None:
        of_thread.session = app.sessions()()
        of_thread.session.execute(insert(app.orders).values(id=1))
        is_open.set()
        assert goes_on.wait(PATIENCE_S)
        app.outbox.send(of_thread.session, "t", b"x")
        of_thread.session.commit()
        of_thread.session.close()

    thread = threading.Thread(target=request)
    thread.start()
    assert is_open.wait(PATIENCE_S)
    fork(gc.collect).result()
    goes_on.set()
    thread.join(PATIENCE_S)
    assert (app.order_ids(), len(app.in_outbox())) == ([1], 1)


ENDS_NORMALLY = """
import os
import sys
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from halfmq.sql import Outbox

engine = create_engine(f"sqlite:///{sys.argv[1]}")
with engine.begin() as connection:
    connection.execute(text("CREATE TABLE orders (id INTEGER)"))
with Session(engine) as session:
    session.execute(text("INSERT INTO orders VALUES (1)"))
    if (child := os.fork()) == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    session.commit()
with engine.connect() as connection:
    print(connection.scalar(text("SELECT count(*) FROM orders")))
"""


def test_a_child_ends_as_any_program(tmp_path: Path) -> None:
    """What the interpreter frees at its end does not roll back the parent's file."""
    done = subprocess.run(
        [sys.executable, "-c", ENDS_NORMALLY, tmp_path / "shop.db"], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("1\n", "")
