# ruff: noqa: PT012 - what raises is the end of a whole block
import time

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError
from tests.unit.sql.conftest import EACH_DATABASE, Place, Shop

from halfmq.sql.alchemy.dialects import short_transaction
from halfmq.sql.alchemy.errors import is_lock_wait

pytestmark = EACH_DATABASE

READ = {
    "sqlite": "PRAGMA busy_timeout", "postgres": "SHOW lock_timeout", "mariadb": "SELECT @@SESSION.innodb_lock_wait_timeout",
}  # fmt: skip


def test_wait_ends_soon_and_is_recognised(shop: Shop) -> None:
    with shop.engine.connect() as holder:
        holder.execute(text("INSERT INTO orders (id) VALUES (1)"))
        started = time.monotonic()
        with pytest.raises(DBAPIError) as caught, shop.engine.connect() as waiter, short_transaction(waiter, 150):
            waiter.execute(text("INSERT INTO orders (id) VALUES (1)"))
        assert 0.1 < time.monotonic() - started < 3
        assert is_lock_wait(caught.value)
        holder.rollback()


def test_connection_goes_back_to_the_pool_as_it_was(place: Place, shop: Shop) -> None:
    engine: Engine = create_engine(place.url(), pool_size=1, max_overflow=0)
    with engine.connect() as connection:
        before = connection.scalar(text(READ[place.kind]))
    with engine.connect() as connection, short_transaction(connection, 77):
        inside = connection.scalar(text(READ[place.kind]))
    with pytest.raises(ZeroDivisionError), engine.connect() as connection, short_transaction(connection, 77):
        raise ZeroDivisionError
    with engine.connect() as connection:
        assert connection.scalar(text(READ[place.kind])) == before
    assert str(inside).startswith("1" if place.kind == "mariadb" else "77")  # whole seconds
    engine.dispose()


def test_block_commits_at_its_end_and_rolls_back_on_error(shop: Shop) -> None:
    with shop.engine.connect() as connection:
        with short_transaction(connection, 100):
            connection.execute(text("INSERT INTO orders (id) VALUES (1)"))
        with pytest.raises(ZeroDivisionError), short_transaction(connection, 100):
            connection.execute(text("INSERT INTO orders (id) VALUES (2)"))
            raise ZeroDivisionError
    with shop.engine.connect() as connection:
        assert connection.scalars(text("SELECT id FROM orders")).all() == [1]


def test_other_errors_are_not_lock_waits(shop: Shop) -> None:
    with pytest.raises(DBAPIError) as caught, shop.engine.connect() as connection:
        connection.execute(text("SELECT * FROM nowhere"))
    assert not is_lock_wait(caught.value)
