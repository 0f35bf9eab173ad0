from pathlib import Path

import pytest
from sqlalchemy import MetaData, create_engine, insert
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import scoped_session, sessionmaker
from tests.support.in_process import serving
from tests.support.scripted_broker import URL, ScriptedBroker
from tests.unit.broker.remoting.test_producer_groups import ONE, QUICK, TWO, change, until_parked
from tests.unit.sql.conftest import SQLITE, Shop, markers_of
from tests.unit.sql.faces import ASYNC, App, app
from tests.unit.sql.memory_broker import MemoryBroker, MemoryClient

from halfmq import AsyncClient, Client, UsageError
from halfmq.client.marker_table import MarkerTable as MarkerTablePort
from halfmq.sql import MarkerTable

__all__ = ["app"]


def test_it_is_what_the_client_asks_for() -> None:
    log: MarkerTablePort = MarkerTable(MetaData())
    assert log.name == "sql.mq_tx"


def test_two_logs_have_two_names() -> None:
    metadata = MetaData()
    names = [MarkerTable(metadata, table="a").name, MarkerTable(metadata, table="b", name="mine").name]
    assert names == ["sql.a", "mine"]


@SQLITE
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
        assert session.execute(markers_of(shop.log.table)).all() != []
        assert shop.log.prune(session, older_than_s=86_400, undecided=()) == 1
        session.commit()
        assert session.execute(markers_of(shop.log.table)).all() == []


def old_markers(app: App, *ids: str) -> None:
    with app.engine.begin() as connection:
        connection.execute(insert(app.log.table), [{"tx_id": one, "outcome": "C", "written_at_ms": 1} for one in ids])


@pytest.mark.parametrize("app", ASYNC, indirect=True)
async def test_prune_with_an_async_session_asks_and_keeps_what_is_undecided(app: App) -> None:
    old_markers(app, "settled", "undecided")
    asked: list[list[str]] = []

    async def which(ids: list[str]) -> set[str]:
        asked.append(ids)
        return {"undecided"}

    async with app.sessions()() as session:
        assert await app.log.prune_async(session, older_than_s=86_400, undecided=which) == 1
        await session.commit()
        assert await app.log.prune_async(session, older_than_s=86_400, undecided=which) == 0
    assert app.markers() == {"undecided": "C"}
    assert asked == [["settled", "undecided"], ["undecided"]]


@pytest.mark.parametrize("app", ASYNC, indirect=True)
async def test_prune_keeps_the_marker_of_a_transaction_that_a_policy_parked(app: App, tmp_path: Path) -> None:
    """Goal: an operator who has it asked about later gets COMMIT. Method: a real broker says what is undecided."""
    old_markers(app, ONE, TWO)
    async with serving(tmp_path / "broker", settings=QUICK) as running:
        client = await running.client()
        await change(client, check_limit=1, past_limit="set-aside")
        await client.heartbeat("me", producers=["P"])
        await client.half("orders", b"one", unique=ONE)
        await client.end(await client.half("orders", b"two", unique=TWO), TWO, 8)
        await until_parked(client)
        async with AsyncClient(f"127.0.0.1:{running.ports.names}", group="P") as mq, app.sessions()() as session:
            assert await app.log.prune_async(session, older_than_s=86_400, undecided=mq.undecided) == 1
            await session.commit()
    assert app.markers() == {ONE: "C"}


def test_create_all_makes_the_table(tmp_path) -> None:  # type: ignore[no-untyped-def]
    metadata = MetaData()
    log = MarkerTable(metadata)
    engine = create_engine(f"sqlite:///{tmp_path / 'x.db'}")
    metadata.create_all(engine)
    with engine.connect() as connection:
        assert connection.execute(markers_of(log.table)).all() == []
    engine.dispose()


@pytest.mark.parametrize("answered", ["by nobody", "here", "elsewhere"])
def test_local_commit_that_nobody_could_tell_the_broker_of_does_not_begin(shop: Shop, answered: str) -> None:
    broker = ScriptedBroker()
    options = {"checked_elsewhere": True} if answered == "elsewhere" else {}
    with Client(URL, group="orders", connector=broker.network()) as mq, shop.sessions()() as session:
        if answered == "here":
            mq.answer_checks(shop.log, shop.sessions())
        if answered == "by nobody":
            with pytest.raises(UsageError, match=r"answer_checks.*at start; or checked_elsewhere"):
                mq.transaction(session, markers=shop.log)
            assert not session.in_transaction()
        else:
            with mq.transaction(session, markers=shop.log, **options) as tx:  # type: ignore[arg-type]
                session.execute(insert(shop.orders).values(id=1))
                tx.send("t", b"x")
        rows = session.execute(markers_of(shop.log.table)).all()
    assert len(rows) == len(broker.visible("t")) == (answered != "by nobody")


async def test_on_asyncio_too() -> None:
    log, sessions = MarkerTable(MetaData()), async_sessionmaker(create_async_engine("sqlite+aiosqlite://"))
    async with AsyncClient(URL, group="orders", connector=ScriptedBroker().network()) as mq, sessions() as session:
        with pytest.raises(UsageError, match=r"answer_checks.*at start; or checked_elsewhere"):
            mq.transaction(session, markers=log)
        mq.transaction(session, markers=log, checked_elsewhere=True)
        mq.answer_checks(log, sessions)
        mq.transaction(session, markers=log)
