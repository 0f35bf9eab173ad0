"""A forked child does not use its parent's connections to a database."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, insert, text
from sqlalchemy.pool import StaticPool
from tests.support.children import fork
from tests.unit.sql.faces import DRIVERS, App, app, on

from halfmq.errors import UsageError

__all__ = ["app"]

#: The number of a connection, which the server gives it.
NUMBER = {"postgresql": "SELECT pg_backend_pid()", "mariadb": "SELECT CONNECTION_ID()"}
SERVERS = [on(driver) for driver in DRIVERS if not driver.is_async and driver.database in NUMBER]


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
