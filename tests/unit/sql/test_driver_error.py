# ruff: noqa: PT012 - what raises is the end of a whole block
"""What real drivers put into their exceptions."""

from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from tests.unit.sql.conftest import Place, Shop

from halfmq.sql.driver_error import mysql_error_number, sqlite_error_code, sqlstate


def duplicate(shop: Shop) -> DBAPIError:
    with pytest.raises(DBAPIError) as caught, shop.engine.begin() as connection:
        connection.execute(text("INSERT INTO orders (id) VALUES (1)"))
        connection.execute(text("INSERT INTO orders (id) VALUES (1)"))
    return caught.value


def test_unique_violation_of_the_sync_driver(shop: Shop, place: Place) -> None:
    error = duplicate(shop)
    if place.kind == "sqlite":
        assert (sqlite_error_code(error) or 0) & 0xFF == 19
        assert (sqlstate(error), mysql_error_number(error)) == (None, None)
    elif place.kind == "mariadb":
        assert (sqlstate(error), sqlite_error_code(error), mysql_error_number(error)) == (None, None, 1062)
    else:
        assert sqlstate(error) == "23505"
        assert (sqlite_error_code(error), mysql_error_number(error)) == (None, None)


async def test_unique_violation_of_the_async_drivers(shop: Shop, place: Place, engine: Engine) -> None:
    for driver in place.async_drivers():
        async_engine = create_async_engine(place.url(driver))
        with pytest.raises(DBAPIError) as caught:
            async with async_engine.begin() as connection:
                await connection.execute(text("INSERT INTO orders (id) VALUES (2)"))
                await connection.execute(text("INSERT INTO orders (id) VALUES (2)"))
        if place.kind == "sqlite":
            assert (sqlite_error_code(caught.value) or 0) & 0xFF == 19
        elif place.kind == "mariadb":
            assert mysql_error_number(caught.value) == 1062
        else:
            assert sqlstate(caught.value) == "23505"
        await async_engine.dispose()


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
