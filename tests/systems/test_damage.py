"""A verdict is forced while the local transaction does something else: each cell of the table of docs/transactions.md is a test.

Afterwards exactly one of these is so: verdict and database agree and nothing is listed, or a finding names the transaction, both outcomes
and who forced it; or, where no marker can be read, it is still to be compared, and says so.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine

from halfmq import AsyncClient, Client, Outcome, TransactionUndecided, compose
from halfmq.client import comparisons as client_comparisons
from halfmq.client.receipts import Prepared, TransactionReceipt
from halfmq.errors import ConnectError, RequestFailed
from halfmq.model.settings import BrokerSettings
from halfmq.sql import MarkerTable
from halfmq.sql.alchemy.marker_rows import wall_ms
from tests.documents.pages import table
from tests.support.in_process import Running, serving
from tests.support.raw_client import RawClient
from tests.support.waiting import until
from tests.unit.sql.conftest import with_foreign_keys
from tests.unit.sql.faces import DRIVERS, MARKS, located

GROUP = "orders"
RESOLVE, STORY, PRODUCER, COMPARISONS, DAMAGED, FORGET = 29_004, 29_003, 29_007, 29_022, 29_024, 29_025
#: No check disturbs, except where a policy counts them.
SLOW = BrokerSettings(check_immunity_ms=60_000, default_topic_queues=1)
QUICK = BrokerSettings(
    check_immunity_ms=20, check_interval_ms=20, check_interval_max_ms=20, check_answer_ms=20, default_topic_queues=1
)
COLUMNS = ("operator: commit", "operator: roll back", "policy: roll back")
#: Row -> column -> what comes of it, as the page says.
PAGE = {row.pop("the local transaction"): row for row in table("docs/transactions.md", "Damage")}
AGREES, FINDING, WAITS = "agrees", "finding", "to be compared"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verdicts are compared at once, and often."""
    monkeypatch.setattr(client_comparisons, "FIRST_S", 0.02)
    monkeypatch.setattr(client_comparisons, "INTERVAL_S", 0.05)


class Dies(ConnectError):
    """The process ends here, as far as broker and database can see."""


class Process(AsyncClient):
    """A process of the service. ``at_prepared`` is called when its half messages are stored and its local transaction is open."""

    at_prepared: Callable[[], Awaitable[None]] | None = None

    async def prepare(self, *given: Any, **named: Any) -> Prepared:
        prepared = await super().prepare(*given, **named)
        if self.at_prepared is not None:
            await self.at_prepared()
        return prepared

    async def commit(self, prepared: Prepared) -> TransactionReceipt:
        raise Dies("it dies before it sends COMMIT")


class Shop(NamedTuple):
    """A service's database: its orders and its marker table."""

    url: str
    engine: AsyncEngine
    sessions: async_sessionmaker[AsyncSession]
    orders: Table
    markers: MarkerTable

    @classmethod
    async def on(cls, url: str) -> "Shop":
        metadata = MetaData()
        orders = Table("orders", metadata, Column("id", Integer, primary_key=True))
        markers = MarkerTable(metadata, min_age_s=0, lock_wait_ms=50)
        engine = create_async_engine(url)
        if url.startswith("sqlite"):
            with_foreign_keys(engine.sync_engine)
        async with engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
        return cls(url, engine, async_sessionmaker(engine), orders, markers)

    def two_hours_ago(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Markers that are written from now on are old."""
        monkeypatch.setattr(self.markers._markers, "_now_ms", lambda: wall_ms() - 7_200_000)

    async def has_order(self) -> bool:
        async with self.engine.connect() as connection:
            return (await connection.execute(select(self.orders.c.id))).first() is not None


@pytest.fixture(
    params=[
        pytest.param(
            driver, marks=(*MARKS[driver.database], *(() if driver.database == "sqlite" else (pytest.mark.thorough,)))
        )
        for driver in DRIVERS
        if driver.name in ("aiosqlite", "asyncpg", "asyncmy")
    ],
    ids=lambda driver: driver.database,
)
async def shop(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Shop]:
    where, name = located(request, request.param, tmp_path)
    shop = await Shop.on(request.param.url.format(where=where, name=name))
    yield shop
    await shop.engine.dispose()


class Scene:
    """A broker, the service's database, and one transaction."""

    def __init__(self, running: Running, shop: Shop, raw: RawClient) -> None:
        self.running, self.shop, self.raw = running, shop, raw
        self.tx_id = ""

    @property
    def url(self) -> str:
        return f"rocketmq://127.0.0.1:{self.running.ports.names}"

    async def order(self, local: str, meanwhile: Callable[[], Awaitable[None]] | None = None) -> None:
        """The service places an order, and dies. ``local``: "commits" or "rolls back"; ``meanwhile``: while it is still running."""
        mq = Process(self.url, group=GROUP)

        async def at_prepared() -> None:
            if meanwhile is not None:
                await meanwhile()
            if local == "rolls back":
                raise Dies("the local transaction rolls back")

        mq.at_prepared = at_prepared
        async with mq, self.shop.sessions() as session:
            try:
                async with mq.transaction(session, markers=self.shop.markers, checked_elsewhere=True) as tx:
                    self.tx_id = tx.id
                    await session.execute(insert(self.shop.orders).values(id=1))
                    tx.send("orders", b"x" * 100)
            except Dies:
                assert local == "rolls back"
        assert await self.shop.has_order() == (local == "commits")

    async def force(self, column: str) -> None:
        if column.startswith("operator"):
            verdict = "COMMIT" if column == COLUMNS[0] else "ROLLBACK"
            ext = {"txId": self.tx_id, "verdict": verdict, "operator": "ada", "reason": "test"}
            assert (await self.raw.ask(RESOLVE, ext)).code == 0
            return
        body = b'{"check_limit":1,"past_limit":"rollback"}'
        assert (await self.raw.ask(PRODUCER, {"group": GROUP, "operator": "ada", "reason": "t"}, body)).code == 0
        await self.raw.heartbeat("nobody", producers=[GROUP])  # gets the check, and never answers
        await until(lambda: self.tx_id in self.state.producer_groups[GROUP].settled, "the policy to act")
        await self.raw.close()
        self.raw = await self.running.client()

    @property
    def state(self) -> Any:
        return self.running.state

    @asynccontextmanager
    async def service(self, shop: Shop | None = None) -> AsyncIterator[AsyncClient]:
        """A process that answers checks, and compares, from the database of ``shop``."""
        shop = shop or self.shop
        mq = AsyncClient(self.url, group=GROUP)
        mq.answer_checks(shop.markers, shop.sessions)
        async with mq:
            yield mq

    async def damaged(self) -> dict[str, Any]:
        answer = await self.raw.ask(DAMAGED, {})
        assert answer.code == 0
        return {"rows": json.loads(answer.body), **answer.ext}

    async def story(self) -> str:
        return " ".join(json.loads((await self.raw.ask(STORY, {"txId": self.tx_id, "group": GROUP})).body))

    async def result(self, column: str) -> str:
        """What is listed of the one transaction, once it is compared."""
        await until(
            lambda: not [one for one in self.state.comparisons.values() if not one.is_finding], "the comparison"
        )
        found = await self.damaged()
        assert found["waiting"] == "0"
        if not found["rows"]:
            assert "DAMAGE" not in await self.story()
            return AGREES
        (row,) = found["rows"]
        assert (row["tx_id"], row["group"], row["source"]) == (self.tx_id, GROUP, self.shop.markers.name)
        forced, did = ("COMMITTED", "ROLLED_BACK") if column == COLUMNS[0] else ("ROLLED_BACK", "COMMITTED")
        assert (row["verdict"], row["local"]) == (forced, did)
        assert (row["decided_by"], row["by"]) == (("operator", "ada") if column != COLUMNS[2] else ("policy", ""))
        assert "DAMAGE" in await self.story()
        return FINDING

    def shows(self, row: str, column: str, result: str) -> None:
        assert PAGE[row][column] == result, "the page says something else"


@asynccontextmanager
async def scene_on(tmp_path: Path, shop: Shop, column: str) -> AsyncIterator[Scene]:
    async with serving(tmp_path / "data", settings=QUICK if column == COLUMNS[2] else SLOW) as running:
        yield Scene(running, shop, await running.client())


LOCALS = {
    "it has committed": "commits",
    "it has rolled back, or died before": "rolls back",
    "it still runs, and commits later": "commits",
}


UNREADABLE = ("its marker was pruned nevertheless", "the service reads another database")
BACK, LATE = "the service comes back after the broker was killed", "it commits after that"
OLD = "its marker is old enough to be pruned"


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("row", LOCALS)
async def test_a_forced_verdict_is_compared_with_what_the_local_transaction_did(
    tmp_path: Path, shop: Shop, row: str, column: str
) -> None:
    local = LOCALS[row]
    async with scene_on(tmp_path, shop, column) as scene:
        if row == "it still runs, and commits later":

            async def meanwhile() -> None:
                async with scene.service():  # also one that compares while it runs: it finds a lock, and waits
                    await scene.force(column)

            await scene.order(local, meanwhile)
        else:
            await scene.order(local)
            await scene.force(column)
        async with scene.service():
            result = await scene.result(column)
        assert (result == AGREES) == ((local == "commits") == (column == COLUMNS[0]))
        scene.shows(row, column, result)


@pytest.mark.parametrize("column", COLUMNS)
async def test_service_and_broker_were_away(tmp_path: Path, shop: Shop, column: str) -> None:
    settings = QUICK if column == COLUMNS[2] else SLOW
    async with serving(tmp_path / "data", settings=settings) as running:
        first = Scene(running, shop, await running.client())
        await first.order("rolls back" if column == COLUMNS[0] else "commits")
        await first.force(column)
    async with serving(tmp_path / "data", settings=settings) as running:
        scene = Scene(running, shop, await running.client())
        scene.tx_id = first.tx_id
        async with scene.service():
            result = await scene.result(column)
        scene.shows(BACK, column, result)
        assert result == FINDING
    async with serving(tmp_path / "data", settings=settings) as running:  # and the finding stays
        again = Scene(running, shop, await running.client())
        again.tx_id = first.tx_id
        assert await again.result(column) == FINDING
        fields = {"txId": first.tx_id, "operator": "bob", "reason": "order repeated by hand"}
        assert (await again.raw.ask(FORGET, fields)).code == 0
        assert (await again.damaged())["rows"] == []
        assert (await again.raw.ask(FORGET, fields)).code == 1


@pytest.mark.parametrize("column", COLUMNS[1:])
async def test_after_a_rollback_the_marker_is_fenced(tmp_path: Path, shop: Shop, column: str) -> None:
    async with scene_on(tmp_path, shop, column) as scene:
        await scene.order("rolls back")
        await scene.force(column)
        async with scene.service():
            assert await scene.result(column) == AGREES

        def late(connection: Any) -> None:
            shop.markers._markers.write(connection, scene.tx_id)

        async with shop.engine.connect() as connection:
            with pytest.raises(IntegrityError):
                await connection.run_sync(late)
        scene.shows(LATE, column, AGREES)


@pytest.mark.parametrize("column", COLUMNS)
async def test_pruning_keeps_what_was_not_compared(
    tmp_path: Path, shop: Shop, column: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene_on(tmp_path, shop, column) as scene:
        shop.two_hours_ago(monkeypatch)
        await scene.order("commits")
        monkeypatch.setattr(shop.markers._markers, "_now_ms", wall_ms)
        await scene.force(column)
        async with AsyncClient(scene.url, group=GROUP) as mq, shop.sessions() as session:
            assert await mq.undecided([scene.tx_id, "other"]) == {scene.tx_id}
            assert await shop.markers.prune_async(session, older_than_s=3_600, undecided=mq.undecided) == 0
        async with scene.service() as mq:
            result = await scene.result(column)
            assert await mq.undecided([scene.tx_id]) == set()
        scene.shows(OLD, column, result)
        assert (result == AGREES) == (column == COLUMNS[0])


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("row", UNREADABLE)
async def test_without_its_marker_it_waits_and_says_so(
    tmp_path: Path, shop: Shop, row: str, column: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene_on(tmp_path, shop, column) as scene:
        shop.two_hours_ago(monkeypatch)
        await scene.order("commits")
        monkeypatch.setattr(shop.markers._markers, "_now_ms", wall_ms)
        await scene.force(column)
        other: Shop | None = None
        if row == UNREADABLE[1]:
            other = await Shop.on(f"sqlite+aiosqlite:///{tmp_path / 'other.db'}")
        else:

            async def all_of_them(ids: list[str]) -> list[str]:
                return []

            async with shop.sessions() as session:
                assert await shop.markers.prune_async(session, older_than_s=3_600, undecided=all_of_them) == 1
                await session.commit()
        asked = len(await awaited(scene))
        async with scene.service(other) as mq:
            await compared_rounds(mq, 3)
        assert asked == len(await awaited(scene)) == 1
        found = await scene.damaged()
        assert (found["rows"], found["waiting"]) == ([], "1")
        assert "will be compared with the marker table" in await scene.story()
        scene.shows(row, column, WAITS)
        if other is not None:
            await other.engine.dispose()


async def awaited(scene: Scene) -> list[Any]:
    return list(json.loads((await scene.raw.ask(COMPARISONS, {"group": GROUP})).body))


async def compared_rounds(mq: AsyncClient, rounds: int) -> None:
    """So many rounds of comparisons of the client are over."""
    counts = mq._check_listener.counts
    before = counts.get("compared", 0)
    await until(lambda: counts.get("compared", 0) >= before + rounds, "rounds of comparisons")


# --- outcomes of other databases


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "blocking"])
async def test_whoever_holds_another_outcome_reports_it(tmp_path: Path, is_async: bool) -> None:
    async with serving(tmp_path, settings=SLOW) as running:
        scene = Scene(running, None, await running.client())  # type: ignore[arg-type]

        async def report(tx_id: str, outcome: Outcome, source: str = "bank A") -> bool:
            if is_async:
                return await mq.report_outcome(tx_id, outcome, source)

            def blocking() -> bool:
                with Client(scene.url, group=GROUP) as other:
                    return other.report_outcome(tx_id, outcome, source)

            return await asyncio.to_thread(blocking)

        async with AsyncClient(scene.url, group=GROUP) as mq:
            scene.tx_id = "xid-1"
            prepared = await mq.prepare([compose("t", b"x")], tx_id="xid-1")
            with pytest.raises(TransactionUndecided):
                await report("xid-1", Outcome.ROLLBACK)
            await mq.commit(prepared)
            assert await report("xid-1", Outcome.COMMIT)
            assert (await scene.damaged())["rows"] == []
            assert not await report("xid-1", Outcome.ROLLBACK)
            assert not await report("xid-1", Outcome.ROLLBACK, "bank B")
            (row,) = (await scene.damaged())["rows"]
            assert (row["tx_id"], row["verdict"], row["local"], row["source"]) == (
                "xid-1",
                "COMMITTED",
                "ROLLED_BACK",
                "bank A",
            )
            assert row["decided_by"] == "producer"
            with pytest.raises(RequestFailed):
                await report("nobody", Outcome.ROLLBACK)


def test_the_page_has_each_row_and_no_other() -> None:
    """Each cell is compared by the test that shows it (``Scene.shows``)."""
    assert set(PAGE) == {*LOCALS, *UNREADABLE, BACK, LATE, OLD}
    assert {row for row, cells in PAGE.items() if "-" in cells.values()} == {LATE}
