# ruff: noqa: PT012, SIM117 - what raises is the end of a whole block
"""Savepoints that end well, several engines, and sessions that cannot carry a message transaction.

What a session refuses before any statement does not depend on the database: that is tested on SQLite.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, insert, select
from sqlalchemy.orm import Session, sessionmaker
from tests.unit.sql.conftest import SQLITE, Shop, markers_of
from tests.unit.sql.faces import App, agree, app, place
from tests.unit.sql.memory_broker import MemoryBroker, MemoryClient

from halfmq.errors import UnsupportedCombination, UsageError

__all__ = ["app"]


@pytest.fixture
def other_engine(tmp_path: Path, shop: Shop) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    shop.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def divided(shop: Shop, other_engine: Engine) -> sessionmaker[Session]:
    """Sessions whose marker is in another database than the orders."""
    return sessionmaker(binds={shop.log.table: other_engine, shop.orders: shop.engine})


def order_in(session: Session, shop: Shop) -> None:
    session.execute(insert(shop.orders).values(id=1), bind_arguments={"clause": shop.orders})


async def test_savepoint_neither_sends_nor_ends_anything(app: App) -> None:
    """``before_commit`` and ``after_commit`` fire for every savepoint; nothing here may hang on them."""
    fired: list[str] = []

    def body(session: Session, tx: Any) -> None:
        event.listen(session, "before_commit", lambda _s: fired.append("before_commit"))
        place(app, session, tx, 1)
        for order_id in (2, 3):
            with session.begin_nested():
                place(app, session, tx, order_id)
            assert app.broker.calls == []
        assert fired  # the trap is there

    await app.run(body)
    assert agree(app) == [1, 2, 3]
    assert app.messages() == ["t1", "t2", "t3"]
    assert app.broker.calls == [("prepare", "tx-1"), ("commit", "tx-1")]


async def test_block_takes_over_a_transaction_that_reading_began(app: App) -> None:
    def scene(session: Session) -> None:
        assert session.execute(select(app.orders)).all() == []
        with app.block(session) as tx:
            place(app, session, tx, 1)

    await app.play(scene)
    assert agree(app) == [1]


# --- what is refused -------------------------------------------------------------------------------------------------


@SQLITE
def test_end_of_the_session_inside_the_block_is_refused_at_the_call_and_so_is_a_send_after_it(
    shop: Shop, client: MemoryClient, broker: MemoryBroker
) -> None:
    with shop.sessions()() as session, pytest.raises(UsageError, match="rolled back inside the block"):
        with shop.log.bind(client, session) as tx:
            tx.send("orders", b"x")
            with pytest.raises(UsageError, match="is committed inside the block"):
                session.commit()
            session.rollback()
            with pytest.raises(UsageError, match="rolled back inside the block"):
                tx.send("orders", b"x")
    assert broker.calls == []


@SQLITE
def test_session_in_a_savepoint_or_on_a_connection_or_with_two_phases_is_refused(
    shop: Shop, client: MemoryClient
) -> None:
    with shop.sessions()() as session, session.begin_nested(), pytest.raises(UsageError, match="savepoint"):
        shop.log.bind(client, session).__enter__()
    with shop.engine.connect() as connection, Session(connection) as session:
        with pytest.raises(UsageError, match="bound to a connection"):
            shop.log.bind(client, session).__enter__()
    with Session(shop.engine, twophase=True) as session, pytest.raises(UnsupportedCombination):
        shop.log.bind(client, session).__enter__()


# --- several engines -------------------------------------------------------------------------------------------------


@SQLITE
def test_marker_in_another_database_than_the_rows_is_refused(
    shop: Shop, divided: sessionmaker[Session], client: MemoryClient, broker: MemoryBroker
) -> None:
    with divided() as session, pytest.raises(UsageError, match="marker mq_tx is in"):
        with shop.log.bind(client, session) as tx:
            order_in(session, shop)
            tx.send("orders", b"x")
    assert (shop.order_ids(), broker.calls) == ([], [])


@SQLITE
def test_transaction_that_already_uses_another_database_is_refused_at_the_start(
    shop: Shop, divided: sessionmaker[Session], client: MemoryClient
) -> None:
    with divided() as session:
        order_in(session, shop)
        with pytest.raises(UsageError, match="marker mq_tx is in"):
            shop.log.bind(client, session).__enter__()
    assert shop.order_ids() == []


@SQLITE
def test_no_password_of_a_database_is_shown(
    shop: Shop, other_engine: Engine, divided: sessionmaker[Session], client: MemoryClient
) -> None:
    for engine in (shop.engine, other_engine):
        engine.url = engine.url.set(username="app", password="hunter2", host="db", query={"sslpassword": "hunter2"})
    with divided() as session:
        with pytest.raises(UsageError, match=r"app:\*\*\*@db.*app:\*\*\*@db") as caught, shop.log.bind(client, session):
            order_in(session, shop)
    assert "hunter2" not in str(caught.value)


@SQLITE
def test_routing_session_gets_the_marker_where_the_table_is(
    shop: Shop, other_engine: Engine, client: MemoryClient, broker: MemoryBroker
) -> None:
    """The well-known recipe that sends everything but flushes to a replica."""

    class Routing(Session):
        def get_bind(self, mapper=None, *, clause=None, **_):  # type: ignore[no-untyped-def]
            return shop.engine if clause is shop.log.table or self._flushing else other_engine

    with Routing() as session, shop.log.bind(client, session) as tx:
        session.connection(bind_arguments={"clause": shop.log.table}).execute(insert(shop.orders).values(id=1))
        tx.send("orders", b"x")
    with shop.engine.connect() as connection:
        assert len(connection.execute(markers_of(shop.log.table)).all()) == 1
    assert [message.topic for message in broker.visible()] == ["orders"]
