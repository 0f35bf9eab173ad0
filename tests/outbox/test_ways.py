"""The four ways of docs/choosing.md while something is away: each cell of its table is a test.

A service places order 1 with its message in one of the ways. ``settled`` says what is in the database, and what consumers see, when
everything is back: the relay has published what waits, and the checks have decided what was undecided.
"""

import asyncio
import contextlib
import re
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, insert, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine

from halfmq import AsyncClient
from halfmq.client.receipts import OUTBOX
from halfmq.errors import ConnectError, RequestFailed, SendTimeout, TransactionUnknown
from halfmq.model.settings import BrokerSettings
from halfmq.relay.halfmq import HalfmqPublisher
from halfmq.relay.relay import Relay
from halfmq.sql import MarkerTable, Outbox
from tests.documents.pages import ROOT, table
from tests.outbox.chance import LEASE_S, FaultyPublisher
from tests.outbox.test_relay import read, url_of
from tests.support.cut_line import CutLine
from tests.support.faults import Killed, Once
from tests.support.in_process import Running, serving
from tests.support.waiting import soon, until
from tests.unit.sql.conftest import with_foreign_keys
from tests.unit.sql.faces import DRIVERS, MARKS, Driver, located

HALVES, ROWS, BOTH, PLAIN = WAYS = ("half messages", "outbox", "both", "send on commit")
#: Of COMMIT, at which something ends.
POINTS = ("before", "after")
#: Row of the page -> ways that a test of this module takes.
SHOWN: dict[str, set[str]] = defaultdict(set)
#: Checks come at once.
QUICK = BrokerSettings(
    check_immunity_ms=40, check_interval_ms=40, check_interval_max_ms=80, check_answer_ms=100, default_topic_queues=1
)
TIMEOUT_S = 0.3


def shows(row: str, *ways: str) -> None:
    """A test of this module shows these cells of the row."""
    SHOWN[row].update(ways)


def cells(row: str, *ways: str) -> pytest.MarkDecorator:
    """The test shows these cells of the row: it takes each of the ways."""
    shows(row, *ways)
    return pytest.mark.parametrize("way", ways)


class Service:
    """The application. ``way``: how it sends."""

    def __init__(self, way: str, url: str, topic: str, broker: str, *, answers_checks: bool = True) -> None:
        self.way = way
        self.topic = topic
        self.metadata = MetaData()
        self.orders = Table("orders", self.metadata, Column("id", Integer, primary_key=True))
        self.markers = MarkerTable(self.metadata, min_age_s=0, lock_wait_ms=100)
        self.outbox = Outbox(self.metadata)
        self.engine = create_async_engine(url)
        if url.startswith("sqlite"):
            with_foreign_keys(self.engine.sync_engine)
        # The topic's name is that of a group as well, since services that share a broker answer checks about their own database only.
        self.mq = AsyncClient(broker, group=topic, timeout=TIMEOUT_S, attempt_timeout=TIMEOUT_S / 2)
        if answers_checks:
            self.mq.answer_checks(self.markers, async_sessionmaker(self.engine))
        self._answers_checks = answers_checks
        #: Called when everything is in the session.
        self.before_commit: Callable[[], object] = lambda: None

    async def open(self) -> None:
        async with self.engine.begin() as connection:
            await connection.run_sync(self.metadata.create_all)
        await self.mq.connect()

    async def close(self) -> None:
        await self.mq.close(grace=0)
        await self.engine.dispose()

    async def place(self, order: int = 1) -> Any:
        """The order and its message. Returns the block, if there was one."""
        async with AsyncSession(self.engine) as session:
            if self.way in (HALVES, BOTH):
                outbox = self.outbox if self.way == BOTH else None
                elsewhere = not self._answers_checks
                async with self.mq.transaction(
                    session, markers=self.markers, outbox=outbox, checked_elsewhere=elsewhere
                ) as tx:
                    await session.execute(insert(self.orders).values(id=order))
                    tx.send(self.topic, str(order))
                    self.before_commit()
                return tx
            await session.execute(insert(self.orders).values(id=order))
            if self.way == ROWS:
                self.outbox.send(session, self.topic, str(order))
            self.before_commit()
            await session.commit()
            if self.way == PLAIN:
                await self.mq.send(self.topic, str(order))
        return None

    def prepares(self, before: Callable[[], Any], after: Callable[[], Any] = lambda: None) -> list[Any]:
        """Call these around each prepare. Returns what waits to be executed where ``before`` raises: a prepare that arrives late."""
        real, late = self.mq.prepare, []

        async def prepare(*arguments: Any, **named: Any) -> Any:
            late.append(lambda: real(*arguments, **named))
            before()
            prepared = await real(*arguments, **named)
            after()
            return prepared

        self.mq.prepare = prepare  # type: ignore[method-assign]
        return late

    def relay(self, broker: Running) -> Relay:
        publisher = HalfmqPublisher(url_of(broker), group=f"{self.mq.group}-relay")
        return self.outbox.relay(self.engine, publisher, lease=LEASE_S, poll=0.02, attempts=1)

    async def settled(self, broker: Running) -> tuple[list[int], list[str]]:
        async with self.relay(broker).running() as relay:

            async def is_settled() -> bool:
                group = broker.state.producer_groups.get(self.mq.group)
                return not (await relay.figures()).wanted and not (group and group.undecided)

            await until(is_settled, "nothing waits, and nothing is undecided")
        return await self.found(broker)

    async def found(self, broker: Running) -> tuple[list[int], list[str]]:
        async with AsyncSession(self.engine) as session:
            return sorted(await session.scalars(select(self.orders.c.id))), await read(broker, self.topic)


def of_its_own(way: str, point: str, directory: Path) -> tuple[str, str]:
    """Database and topic of a service that shares the broker with others."""
    name = f"{way.replace(' ', '-')}-{point}"
    return f"sqlite+aiosqlite:///{directory / name}.db", f"t-{name}"


def raising(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Running]:
    async with serving(tmp_path / "broker", settings=QUICK) as running:
        yield running


@contextlib.asynccontextmanager
async def again(broker: Running) -> AsyncIterator[Running]:
    """The broker is back, at the same address."""
    ports = broker.ports
    async with serving(broker.directory, port=ports.broker, name_port=ports.names, settings=QUICK) as running:
        yield running


@pytest.fixture
def driver() -> Driver:
    """Where a test does not say otherwise."""
    return next(driver for driver in DRIVERS if driver.name == "aiosqlite")


#: The cells in which it is the database that fails.
EACH_DATABASE = pytest.mark.parametrize(
    "driver",
    [
        pytest.param(driver, id=driver.name, marks=() if driver.database == "sqlite" else (*MARKS[driver.database], pytest.mark.thorough))
        for driver in DRIVERS
        if driver.is_async and driver.name != "psycopg_async"
    ],
)  # fmt: skip


@pytest.fixture
def url(driver: Driver, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    where, name = located(request, driver, tmp_path)
    return driver.url.format(where=where, name=name)


@pytest.fixture
async def service(way: str, url: str, broker: Running) -> AsyncIterator[Service]:
    made = Service(way, url, "t", url_of(broker))
    await made.open()
    yield made
    await made.close()


# --- the database ----------------------------------------------------------------------------------------------------


@EACH_DATABASE
@cells("the database does not answer", *WAYS)
async def test_a_database_that_does_not_answer(service: Service, broker: Running, url: str, tmp_path: Path) -> None:
    there = service.engine
    # Nobody listens there, and no file can be opened.
    service.engine = create_async_engine(re.sub(r"(:///|host=|socket=)/.*", rf"\1{tmp_path}/nowhere/x", url))
    with pytest.raises((DBAPIError, OSError)):
        await service.place()
    await service.engine.dispose()
    service.engine = there
    assert await service.settled(broker) == ([], [])


class Commit(NamedTuple):
    """``lose("before")``: the next COMMIT on ``engine`` does not arrive at the database; ``lose("after")``: only its answer is lost."""

    engine: AsyncEngine
    lose: Callable[[Any], None]


@pytest.fixture
async def commit(
    service: Service, driver: Driver, url: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Commit]:
    if driver.database == "sqlite":  # there is no connection that could be lost
        dialect = service.engine.sync_engine.dialect
        yield Commit(service.engine, lambda when: monkeypatch.setattr(dialect, "do_commit", failing(dialect, when)))
        return
    if driver.database == "postgresql":
        directory: Path = request.getfixturevalue("postgres_server").directory
        line = CutLine(directory)
    else:
        socket: Path = request.getfixturevalue("mariadb_server").socket
        directory, line = socket.parent, CutLine(socket.parent, socket.name)
    engine = create_async_engine(url.replace(str(directory), str(line.directory)))
    yield Commit(engine, lambda when: setattr(line, "cut", when))
    await engine.dispose()
    line.close()


def failing(dialect: Any, when: str) -> Callable[[Any], None]:
    """For ``do_commit``, once."""
    real = dialect.do_commit

    def commit(connection: Any) -> None:
        dialect.do_commit = real
        (real if when == "after" else dialect.do_rollback)(connection)  # as a database does whose client is gone
        raise OSError("input/output error")

    return commit


@EACH_DATABASE
@pytest.mark.parametrize("cut", POINTS)
@cells("COMMIT was lost on the way, or its answer", *WAYS)
async def test_a_commit_that_is_lost(service: Service, broker: Running, commit: Commit, cut: str) -> None:
    there = service.engine
    service.engine, service.before_commit = commit.engine, lambda: commit.lose(cut)
    with pytest.raises(TransactionUnknown if service.way in (HALVES, BOTH) else (DBAPIError, OSError)):
        await service.place()
    service.engine = there
    orders = [1] if cut == "after" else []
    assert await service.settled(broker) == (orders, [] if service.way == PLAIN else [str(one) for one in orders])


@EACH_DATABASE
@pytest.mark.parametrize("cut", POINTS)
@cells("COMMIT was lost on the way, or its answer", BOTH)
async def test_a_commit_that_is_lost_after_the_fallback(
    service: Service, broker: Running, commit: Commit, cut: str
) -> None:
    there = service.engine
    service.prepares(raising(SendTimeout("no answer")))
    service.engine, service.before_commit = commit.engine, lambda: commit.lose(cut)
    with pytest.raises(TransactionUnknown):
        await service.place()
    service.engine = there
    assert await service.settled(broker) == (([1], ["1"]) if cut == "after" else ([], []))


# --- the broker ------------------------------------------------------------------------------------------------------


@cells("the broker does not answer", *WAYS)
async def test_a_broker_that_does_not_answer(service: Service, broker: Running) -> None:
    broker.broker.close()
    if service.way in (HALVES, PLAIN):
        with pytest.raises((ConnectError, SendTimeout)):
            await service.place()
    else:
        tx = await service.place()
        assert service.way == ROWS or tx.receipt.path == OUTBOX
    if service.way == HALVES:
        with pytest.raises(ConnectError, match="at once"):  # nothing is tried
            await service.place()
    async with again(broker) as back:
        there = {HALVES: ([], []), ROWS: ([1], ["1"]), BOTH: ([1], ["1"]), PLAIN: ([1], [])}
        assert await service.settled(back) == there[service.way]


@cells("the broker is killed with the half messages", HALVES, BOTH)
async def test_a_broker_that_is_killed_with_the_half_messages(service: Service, broker: Running) -> None:
    """With an outbox before it has answered; without one after that, since the block goes on then."""

    def kill() -> None:
        assert broker.state.producer_groups[service.mq.group].undecided
        broker.broker.close()
        if service.way == BOTH:
            raise SendTimeout("no answer")

    service.prepares(lambda: None, kill)
    tx = await service.place()
    assert tx.receipt is None if service.way == HALVES else tx.receipt.path == OUTBOX
    async with again(broker) as back:
        assert await service.settled(back) == ([1], ["1"])


@cells("the half messages arrive late", HALVES, BOTH)
async def test_half_messages_that_arrive_late(service: Service, broker: Running) -> None:
    late = service.prepares(raising(SendTimeout("no answer")))
    with pytest.raises(SendTimeout) if service.way == HALVES else contextlib.nullcontext():
        await service.place()
    there = ([], []) if service.way == HALVES else ([1], ["1"])
    assert await service.settled(broker) == there
    await late[0]()
    assert broker.state.producer_groups[service.mq.group].undecided
    assert await service.settled(broker) == there


# --- processes -------------------------------------------------------------------------------------------------------


shows("the service is killed before COMMIT", *WAYS)
shows("the service is killed after COMMIT", *WAYS)


@pytest.mark.slow
async def test_services_that_are_killed(broker: Running, tmp_path: Path) -> None:
    """A process forks a service for each of these cells, which kills itself at its COMMIT."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.outbox.killed_services", str(tmp_path), url_of(broker), cwd=ROOT
    )
    assert await soon(process.wait()) == 0
    found = {}
    for way, point in product(WAYS, POINTS):
        service = Service(way, *of_its_own(way, point, tmp_path), url_of(broker))
        await service.open()
        found[way, point] = await service.settled(broker)
        await service.close()
    assert found == {
        **dict.fromkeys(product(WAYS, ["before"]), ([], [])),
        **dict.fromkeys(product(WAYS, ["after"]), ([1], ["1"])),
        (PLAIN, "after"): ([1], []),
    }


@cells("no process answers checks", HALVES, BOTH)
async def test_no_process_answers_checks(way: str, url: str, broker: Running) -> None:
    async def lost(_prepared: object) -> None:
        raise TransactionUnknown("no answer", tx_id="")

    service = Service(way, url, "t", url_of(broker), answers_checks=False)
    await service.open()
    service.mq.commit = lost  # type: ignore[assignment, method-assign]
    tx = await service.place()
    assert tx.receipt is None
    await until(lambda: broker.state.producer_groups[service.mq.group].session.last_unknown, "it was checked in vain")
    assert await service.mq.undecided([tx.id]) == {tx.id}
    assert await service.found(broker) == ([1], [])
    await service.close()
    answering = Service(way, url, "t", url_of(broker))
    await answering.open()
    assert await answering.settled(broker) == ([1], ["1"])
    await answering.close()


@cells("the relay is killed", ROWS, BOTH)
async def test_a_relay_that_is_killed(service: Service, broker: Running) -> None:
    """At each of its steps: ``test_relay``."""
    service.prepares(raising(SendTimeout("no answer")))
    await service.place()
    relay = service.relay(broker)
    assert (await relay.figures()).wanted == 1
    relay._publisher = FaultyPublisher(relay._publisher, Once("publish", "kill after", LEASE_S))
    with pytest.raises(Killed):
        await soon(relay.run(asyncio.Event()))
    assert await service.settled(broker) == ([1], ["1"])


# --- target and consumer ---------------------------------------------------------------------------------------------


@cells("the target refuses a message", *WAYS)
async def test_a_target_that_refuses_a_message(service: Service, broker: Running) -> None:
    service.topic = "SCHEDULE_TOPIC_XXXX"  # nobody may write there
    with contextlib.nullcontext() if service.way == ROWS else pytest.raises(RequestFailed):
        await service.place()
    service.topic = "t"
    await service.place(2)
    there = [2] if service.way in (HALVES, BOTH) else [1, 2]
    assert await service.settled(broker) == (there, ["2"])
    async with service.engine.connect() as connection:
        states = list(await connection.scalars(select(service.outbox.table.c.delivery)))
    assert states == (["A"] if service.way == ROWS else [])


@cells("the consumer is away", *WAYS)
async def test_a_consumer_that_is_away(service: Service, broker: Running) -> None:
    async def consume() -> str:
        async with service.mq.consumer("t", group="billing") as messages:
            message = await soon(anext(messages))
            message.ack()
            return message.text()

    for order in (1, 2):
        await service.place(order)
        await service.settled(broker)
        assert await consume() == str(order)


def test_each_cell_of_the_page_is_shown() -> None:
    rows = table("docs/choosing.md", "What happens when something is away")
    assert tuple(rows[0])[1:] == WAYS
    assert {row[""]: {way for way in WAYS if row[way] != "-"} for row in rows} == SHOWN
