from sqlalchemy import MetaData, create_engine, insert, select
from sqlalchemy.orm import scoped_session, sessionmaker
from tests.unit.sql.conftest import AsyncShop, Shop
from tests.unit.sql.memory_broker import MemoryBroker, MemoryClient

from halfmq.client.transaction_log import TransactionLog as TransactionLogPort
from halfmq.sql import TransactionLog


def test_it_is_what_the_client_asks_for() -> None:
    log: TransactionLogPort = TransactionLog(MetaData())
    assert log.name == "sql.mq_tx"


def test_two_logs_have_two_names() -> None:
    metadata = MetaData()
    names = [TransactionLog(metadata, table="a").name, TransactionLog(metadata, table="b", name="mine").name]
    assert names == ["sql.a", "mine"]


def test_scoped_session_is_taken_for_its_session(shop: Shop, client: MemoryClient, broker: MemoryBroker) -> None:
    sessions = scoped_session(sessionmaker(shop.engine))
    with shop.log.bind(client, sessions) as tx:
        sessions.execute(insert(shop.orders).values(id=1))
        tx.send("orders", b"x")
    sessions.remove()
    assert len(broker.visible()) == 1


def test_prune_runs_in_the_sessions_transaction(shop: Shop) -> None:
    with shop.engine.begin() as connection:
        connection.execute(insert(shop.log.table).values(tx_id="old", outcome="C", written_at_ms=1))
    with shop.sessions()() as session:
        assert shop.log.prune(session, older_than_s=86_400, undecided=()) == 1
        session.rollback()
        assert session.execute(select(shop.log.table)).all() != []
        assert shop.log.prune(session, older_than_s=86_400, undecided=()) == 1
        session.commit()
        assert session.execute(select(shop.log.table)).all() == []


async def test_prune_with_an_async_session_asks_and_keeps_what_is_undecided(async_shop: AsyncShop) -> None:
    log = async_shop.shop.log
    async with async_shop.engine.begin() as connection:
        for tx_id in ("settled", "undecided"):
            await connection.execute(insert(log.table).values(tx_id=tx_id, outcome="C", written_at_ms=1))
    asked: list[list[str]] = []

    async def which(ids: list[str]) -> set[str]:
        asked.append(ids)
        return {"undecided"}

    async with async_shop.sessions() as session:
        assert await log.prune_async(session, older_than_s=86_400, undecided=which) == 1
        await session.commit()
        assert await log.prune_async(session, older_than_s=86_400, undecided=which) == 0
        assert [row.tx_id for row in await session.execute(select(log.table))] == ["undecided"]
    assert asked == [["settled", "undecided"], ["undecided"]]


def test_create_all_makes_the_table(tmp_path) -> None:  # type: ignore[no-untyped-def]
    metadata = MetaData()
    log = TransactionLog(metadata)
    engine = create_engine(f"sqlite:///{tmp_path / 'x.db'}")
    metadata.create_all(engine)
    with engine.connect() as connection:
        assert connection.execute(select(log.table)).all() == []
    engine.dispose()
