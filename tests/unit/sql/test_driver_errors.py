"""What real drivers put into their exceptions."""

from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from tests.unit.sql.faces import App, app

from halfmq.sql.rules.driver_errors import mysql_error_number, sqlite_error_code, sqlstate

__all__ = ["app"]


async def test_unique_violation_of_each_driver(app: App) -> None:
    def twice(session: Session) -> None:
        for _ in range(2):
            session.execute(text("INSERT INTO orders (id) VALUES (1)"))

    with pytest.raises(DBAPIError) as caught:
        await app.play(twice)
    error = caught.value
    found = ((sqlite_error_code(error) or 0) & 0xFF, sqlstate(error), mysql_error_number(error))
    expected = {"sqlite": (19, None, None), "postgresql": (0, "23505", None), "mariadb": (0, None, 1062)}
    assert found == expected[app.driver.database]


def test_mysql_number_is_the_first_argument() -> None:
    class MySQLError(Exception):
        pass

    error: Any = DBAPIError("COMMIT", None, MySQLError(1213, "Deadlock found"))
    assert mysql_error_number(error) == 1213


def test_syntax_error_is_no_number(tmp_path) -> None:  # type: ignore[no-untyped-def]
    engine = create_engine(f"sqlite:///{tmp_path / 'x.db'}")
    with pytest.raises(DBAPIError) as caught, engine.connect() as connection:
        connection.execute(text("NONSENSE"))
    assert mysql_error_number(caught.value) is None
    engine.dispose()
