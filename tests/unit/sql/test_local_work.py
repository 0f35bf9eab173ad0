# ruff: noqa: PT012, SIM117 - what raises is the end of a whole block
"""Savepoints, several engines, and sessions that cannot carry a message transaction."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, event, func, insert, select
from sqlalchemy.orm import Session, sessionmaker
from tests.unit.sql.conftest import Shop, markers_of
from tests.unit.sql.memory_broker import MemoryBroker, MemoryClient

from halfmq.errors import UnsupportedCombination, UsageError


def topics(broker: MemoryBroker) -> list[str]:
    return [message.topic for message in broker.visible()]


def orders_in(shop: Shop) -> int:
    with shop.engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(shop.orders)) or 0


@pytest.fixture
def other_engine(tmp_path: Path, shop: Shop) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    shop.metadata.create_all(engine)
    yield engine
    engine.dispose()


# --- savepoints --------------------------------------------------------------------------------------------------


def test_savepoint_neither_sends_nor_ends_anything(shop: Shop, client: MemoryClient, broker: MemoryBroker) -> None:
    """``before_commit`` and ``after_commit`` fire for every savepoint; nothing here may hang on them."""
    fired: list[str] = []
    with shop.sessions()() as session, shop.log.bind(client, session) as tx:
        event.listen(session, "before_commit", lambda _s: fired.append("before_commit"))
        tx.send("outside", b"x")
        for order_id in (1, 2):
            with session.begin_nested():
                session.execute(insert(shop.orders).values(id=order_id))
                tx.send("inside", b"x")
            assert broker.calls == []
        assert fired  # the trap is there
    assert topics(broker) == ["outside", "inside", "inside"]
    assert broker.calls == [("prepare", "tx-1"), ("commit", "tx-1")]


def test_messages_of_a_savepoint_that_is_rolled_back_are_not_sent(
    shop: Shop, client: MemoryClient, broker: MemoryBroker
) -> None:
    with shop.sessions()() as session, shop.log.bind(client, session) as tx:
        tx.send("before", b"x")
        savepoint = session.begin_nested()
        session.execute(insert(shop.orders).values(id=1))
        tx.send("undone", b"x")
        with session.begin_nested():
            tx.send("undone-within", b"x")
        savepoint.rollback()
        tx.send("after", b"x")
    assert topics(broker) == ["before", "after"]
    assert orders_in(shop) == 0


def test_inner_savepoint_that_is_rolled_back_leaves_the_outer_ones_messages(
    shop: Shop, client: MemoryClient, broker: MemoryBroker
) -> None:
    with shop.sessions()() as session, shop.log.bind(client, session) as tx, session.begin_nested():
        tx.send("outer", b"x")
        inner = session.begin_nested()
        tx.send("inner", b"x")
        inner.rollback()
    assert topics(broker) == ["outer"]


def test_block_inside_a_savepoint_is_refused(shop: Shop, client: MemoryClient) -> None:
    with shop.sessions()() as session, session.begin_nested(), pytest.raises(UsageError, match="savepoint"):
        shop.log.bind(client, session).__enter__()


# --- who ends the transaction ------------------------------------------------------------------------------------


def test_block_takes_over_a_transaction_that_reading_began(
    shop: Shop, client: MemoryClient, broker: MemoryBroker
) -> None:
    with shop.sessions()() as session:
        assert session.execute(select(shop.orders)).all() == []
        with shop.log.bind(client, session) as tx:
            tx.send("orders", b"x")
    assert topics(broker) == ["orders"]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_session_that_is_ended_inside_the_block_is_refused(
    shop: Shop, client: MemoryClient, broker: MemoryBroker, end: str
) -> None:
    with shop.sessions()() as session, pytest.raises(UsageError, match="inside the block"):
        with shop.log.bind(client, session) as tx:
            tx.send("orders", b"x")
            getattr(session, end)()
    assert broker.calls == []


def test_send_after_the_session_was_ended_is_refused_at_the_call(shop: Shop, client: MemoryClient) -> None:
    with shop.sessions()() as session, pytest.raises(UsageError, match="inside the block"):
        with shop.log.bind(client, session) as tx:
            session.commit()
            tx.send("orders", b"x")


# --- several engines ---------------------------------------------------------------------------------------------


def test_marker_in_another_database_than_the_rows_is_refused(
    shop: Shop, other_engine: Engine, client: MemoryClient, broker: MemoryBroker
) -> None:
    sessions = sessionmaker(binds={shop.log.table: other_engine, shop.orders: shop.engine})
    with sessions() as session, pytest.raises(UsageError, match="marker mq_tx is in"):
        with shop.log.bind(client, session) as tx:
            session.execute(insert(shop.orders).values(id=1), bind_arguments={"clause": shop.orders})
            tx.send("orders", b"x")
    assert (orders_in(shop), broker.calls) == (0, [])


def test_transaction_that_already_uses_another_database_is_refused_at_the_start(
    shop: Shop, other_engine: Engine, client: MemoryClient
) -> None:
    sessions = sessionmaker(binds={shop.log.table: other_engine, shop.orders: shop.engine})
    with sessions() as session:
        session.execute(insert(shop.orders).values(id=1), bind_arguments={"clause": shop.orders})
        with pytest.raises(UsageError, match="marker mq_tx is in"):
            shop.log.bind(client, session).__enter__()
    assert orders_in(shop) == 0


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
    assert topics(broker) == ["orders"]


# --- sessions without a transaction of their own -----------------------------------------------------------------


def test_no_password_of_a_database_is_shown(shop: Shop, other_engine: Engine, client: MemoryClient) -> None:
    for engine in (shop.engine, other_engine):
        engine.url = engine.url.set(username="app", password="hunter2", host="db", query={"sslpassword": "hunter2"})
    sessions = sessionmaker(binds={shop.log.table: other_engine, shop.orders: shop.engine})
    with sessions() as session:
        with pytest.raises(UsageError, match=r"app:\*\*\*@db.*app:\*\*\*@db") as caught, shop.log.bind(client, session):
            session.execute(insert(shop.orders).values(id=1))
    assert "hunter2" not in str(caught.value)


def test_autocommit_engine_is_refused(shop: Shop, client: MemoryClient) -> None:
    with Session(shop.engine.execution_options(isolation_level="AUTOCOMMIT")) as session:
        with pytest.raises(UsageError, match="AUTOCOMMIT"):
            shop.log.bind(client, session).__enter__()
    autocommit = create_engine(shop.engine.url, isolation_level="AUTOCOMMIT")
    with Session(autocommit) as session, pytest.raises(UsageError, match="AUTOCOMMIT"):
        shop.log.bind(client, session).__enter__()
    autocommit.dispose()


def test_session_on_a_connection_is_refused(shop: Shop, client: MemoryClient) -> None:
    with shop.engine.connect() as connection, Session(connection) as session:
        with pytest.raises(UsageError, match="bound to a connection"):
            shop.log.bind(client, session).__enter__()


def test_two_phase_session_is_refused(shop: Shop, client: MemoryClient) -> None:
    with Session(shop.engine, twophase=True) as session, pytest.raises(UnsupportedCombination):
        shop.log.bind(client, session).__enter__()
