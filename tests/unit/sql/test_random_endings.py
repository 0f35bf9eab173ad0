"""Blocks and handlers whose transactions end by chance, on every database and face: message and row agree in all of them.

Each run draws what the application does: orders with their messages, statements that fail, savepoints of every kind ended in every way,
commits and rollbacks behind SQLAlchemy's back, deadlocks, locks, killed connections, a COMMIT whose answer is lost; and for each step
whether its error is caught. Afterwards the rows and the visible messages must be the same. If the block said that the outcome is unknown,
the check settles it first.
"""

import contextlib
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, insert, select, text, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, async_session
from sqlalchemy.orm import Session
from tests.support.amount import amount, seed_of_commit
from tests.support.cut_line import CutLine
from tests.support.waiting import PATIENCE_S
from tests.unit.sql.faces import ASYNC, WALK, App, Message, app, wait
from tests.unit.sql.memory_broker import AsyncMemoryClient, MemoryBroker

from halfmq.errors import TransactionUnknown
from halfmq.sql.alchemy.transaction_guard import roll_back

__all__ = ["app"]

RUNS = ("HALFMQ_TEST_ENDINGS", amount(gate=40, everything=2_000, variable="HALFMQ_TEST_ENDINGS"))
#: A row that is there before, and pairs of rows for locks; no messages belong to them.
TAKEN = 900_000_000
PAIRS = [(TAKEN + 1 + 2 * number, TAKEN + 2 + 2 * number) for number in range(32)]
#: Order numbers of one run.
IDS_OF_A_RUN = 1_000


class Sorry(Exception):
    """The application's own exception."""


class Run:
    """One application run: its steps, drawn by ``rng``."""

    def __init__(self, app: App, rng: random.Random, first_id: int, faults: "Faults") -> None:
        self.app = app
        self.rng = rng
        self.first_id = first_id
        self.faults = faults
        self.story: list[str] = []
        #: Something was committed behind the block's back: what was written until then stays.
        self.is_late = False
        #: The first message comes later.
        self.is_before = False
        self._next = first_id

    # --- steps

    def body(self, session: Session, tx: Any) -> None:
        self.session, self.tx = session, tx
        self.place()
        session.flush()
        self.steps(0)
        if self.rng.random() < 0.1:
            self.story.append("sorry")
            raise Sorry

    def before_the_message(self, session: Session) -> None:
        """Rows, and what may end their transaction; no message yet."""
        self.session, self.tx, self.is_before = session, None, True
        self.place()
        session.flush()
        self.steps(0)
        session.flush()

    def steps(self, depth: int) -> None:
        for _ in range(self.rng.choice((0, 1, 2, 3))):
            step = self.rng.choice(self.drawn(depth))
            is_caught = self.rng.random() < 0.7
            self.story.append(f"{'  ' * depth}{step.__name__}{' (caught)' if is_caught else ''}")
            with contextlib.suppress(*((Exception,) if is_caught else ())):
                step(depth)

    def drawn(self, depth: int) -> list[Callable[[int], None]]:
        often = [self.place, self.place, self.statement_fails, self.query]
        nested = (
            [self.nested, self.nested, self.nested_by_hand, self.of_the_connection, self.in_text] if depth < 3 else []
        )
        rare = [self.driver_commits, self.driver_rolls_back, self.text_ends]
        if not self.is_before:  # there the application begins another transaction, and knows it
            rare.append(self.session_ends)
        servers = [] if self.app.driver.database == "sqlite" else [self.deadlock, self.locked, self.killed]
        lost = [self.lost_commit] if depth == 0 else []
        return often * 4 + nested * 3 + rare + servers + lost

    def place(self, depth: int = 0) -> None:
        order_id = self._next
        self._next += 1
        if self.tx is not None:
            self.tx.send(f"t{order_id}", b"x")
        self.session.add(self.app.order_type(order_id))
        if self.rng.random() < 0.5:
            self.session.flush()

    def query(self, depth: int) -> None:
        self.session.execute(select(self.app.order_type).where(self.app.orders.c.id == self.first_id)).all()

    def statement_fails(self, depth: int) -> None:
        match self.rng.randrange(4):
            case 0:
                self.session.execute(insert(self.app.orders).values(id=TAKEN))
            case 1:
                self.session.add(self.app.order_type(TAKEN))
                self.session.flush()
            case 2:
                self.session.execute(text("SELECT * FROM no_such_table"))
            case _:
                self.session.bulk_save_objects([self.app.order_type(TAKEN)])

    def nested(self, depth: int) -> None:
        with self.session.begin_nested():
            self.steps(depth + 1)
            if self.rng.random() < 0.3:
                raise Sorry

    def nested_by_hand(self, depth: int) -> None:
        savepoint = self.session.begin_nested()
        try:
            self.steps(depth + 1)
        finally:
            match self.rng.randrange(3):
                case 0:
                    savepoint.rollback()
                case 1:
                    savepoint.commit()

    def of_the_connection(self, depth: int) -> None:
        self.session.flush()
        connection = self.session.connection()
        with connection.begin_nested():
            self.place()
            self.session.flush()
            if self.rng.random() < 0.5:
                raise Sorry

    def in_text(self, depth: int) -> None:
        self.session.flush()
        self.session.execute(text("SAVEPOINT mine"))
        self.place()
        self.session.flush()
        self.session.execute(text(self.rng.choice(("ROLLBACK TO SAVEPOINT mine", "RELEASE SAVEPOINT mine"))))

    def driver_commits(self, depth: int) -> None:
        self.is_late = True
        self.session.connection().connection.dbapi_connection.commit()  # type: ignore[union-attr]

    def driver_rolls_back(self, depth: int) -> None:
        self.session.connection().connection.dbapi_connection.rollback()  # type: ignore[union-attr]

    def text_ends(self, depth: int) -> None:
        statement = self.rng.choice(("COMMIT", "ROLLBACK"))
        self.is_late |= self.is_before and statement == "COMMIT"  # else it is refused
        self.session.execute(text(statement))

    def session_ends(self, depth: int) -> None:
        self.rng.choice((self.session.commit, self.session.rollback))()

    def deadlock(self, depth: int) -> None:
        if self.app.driver.database == "postgresql":
            self.session.execute(text("SET LOCAL deadlock_timeout = 10"))
        left, right = self.faults.next_pair()
        self.session.execute(update(self.app.orders).where(self.app.orders.c.id == left).values(note="mine"))
        with self.faults.other_wants(right, then=left):
            self.session.execute(update(self.app.orders).where(self.app.orders.c.id == right).values(note="mine"))

    def locked(self, depth: int) -> None:
        _, right = self.faults.next_pair()
        with self.faults.other_wants(right):
            self.session.execute(text(f"SELECT id FROM orders WHERE id = {right} FOR UPDATE NOWAIT"))

    def killed(self, depth: int) -> None:
        self.faults.kill(self.session.connection())

    def lost_commit(self, depth: int) -> None:
        self.faults.lose_commit(self.rng.choice(("before", "after")))


class Faults:
    """What happens to the application's database from outside."""

    def __init__(self, app: App, line: CutLine | None, engine: Engine | AsyncEngine) -> None:
        self.app = app
        self.line = line
        self.engine = engine
        self._dialect = (engine.sync_engine if isinstance(engine, AsyncEngine) else engine).dialect
        self._real_commit = self._dialect.do_commit
        self._others: list[threading.Thread] = []
        self._pairs = list(PAIRS)

    def next_pair(self) -> tuple[int, int]:
        """Rows that this run has not locked yet."""
        self._pairs.append(self._pairs.pop(0))
        return self._pairs[0]

    @contextlib.contextmanager
    def other_wants(self, first: int, then: int | None = None) -> Iterator[None]:
        """Another transaction holds the row ``first`` and, if ``then`` is given, wants that row too; else until the end of the block."""
        orders = self.app.orders
        holds, leaves = threading.Event(), threading.Event()

        def other() -> None:
            with contextlib.suppress(SQLAlchemyError), self.app.engine.connect() as connection:
                connection.execute(update(orders).where(orders.c.id == first).values(note="other"))
                holds.set()
                if then is None:
                    leaves.wait(PATIENCE_S)
                else:
                    connection.execute(update(orders).where(orders.c.id == then).values(note="other"))

        thread = threading.Thread(target=other)
        self._others.append(thread)
        thread.start()
        try:
            assert holds.wait(PATIENCE_S)
            yield
        finally:
            leaves.set()

    def kill(self, connection: Connection) -> None:
        """The server ends the application's session."""
        is_postgres = self.app.driver.database == "postgresql"
        number = connection.scalar(text("SELECT pg_backend_pid()" if is_postgres else "SELECT CONNECTION_ID()"))
        with self.app.engine.connect() as other:
            other.execute(text(f"SELECT pg_terminate_backend({number})" if is_postgres else f"KILL {number}"))

    def lose_commit(self, when: Any) -> None:
        """The next COMMIT is lost on its way, or its answer is."""
        if self.line is not None:
            self.line.cut = when
            return

        def commit(connection: Any) -> None:
            self._dialect.do_commit = self._real_commit  # type: ignore[method-assign]
            if when == "after":
                self._real_commit(connection)
            raise OSError("input/output error")

        self._dialect.do_commit = commit  # type: ignore[method-assign]

    def heal(self) -> None:
        """The block has ended, and with it what others wait for."""
        for thread in self._others:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        self._others.clear()
        self._dialect.do_commit = self._real_commit  # type: ignore[method-assign]
        if self.line is not None:
            self.line.cut = None


@pytest.fixture
async def faults(app: App, request: pytest.FixtureRequest) -> AsyncIterator[Faults]:
    line = None
    if app.driver.database == "postgresql":
        directory: Path = request.getfixturevalue("postgres_server").directory
        line = CutLine(directory)
        app.url = app.url.replace(str(directory), str(line.directory))
    elif app.driver.database == "mariadb":
        socket: Path = request.getfixturevalue("mariadb_server").socket
        line = CutLine(socket.parent, socket.name)
        app.url = app.url.replace(str(socket), str(line.directory / socket.name))
    with app.engine.begin() as connection:
        connection.execute(
            insert(app.orders), [{"id": row} for row in (TAKEN, *(row for pair in PAIRS for row in pair))]
        )
    yield Faults(app, line, app.application)
    await app.close()
    if line is not None:
        line.close()


async def one_block(app: App, seed: int, first_id: int, faults: Faults) -> str:
    """Returns how it ended."""
    run = Run(app, random.Random(seed), first_id, faults)
    app.broker = MemoryBroker(_next=first_id)
    ending = "fine"
    try:
        await app.run(run.body)
    except TransactionUnknown:
        ending = "unknown"
    except Exception as error:
        ending = type(error).__name__
    faults.heal()
    for _ in range(3):  # UNKNOWN while a killed session still holds its lock
        if app.broker.undecided():
            await app.check()
    told = f"seed {seed}, {ending}:\n" + "\n".join(run.story)
    assert app.broker.undecided() == [], told
    rows = {f"t{order_id}" for order_id in app.order_ids() if first_id <= order_id < first_id + IDS_OF_A_RUN}
    messages = app.messages()
    assert len(messages) == len(set(messages)), told
    if run.is_late and ending != "fine":
        assert set(messages) <= rows, told
    else:
        assert set(messages) == rows, told
    if ending == "fine":
        assert f"t{first_id}" in rows, told
    return ending


async def one_handler(app: App, seed: int, first_id: int, faults: Faults) -> str:
    run = Run(app, random.Random(seed), first_id, faults)
    message = Message(f"m{first_id}")
    ending = "fine"
    try:
        await app.handle(message, lambda session: run.body(session, None))
    except Exception as error:
        ending = type(error).__name__
    faults.heal()
    told = f"seed {seed}, {ending}:\n" + "\n".join(run.story)
    with app.engine.connect() as connection:
        rows = connection.scalars(select(app.orders.c.id).where(app.orders.c.id == first_id)).all()
        table = app.inbox.table
        handled = connection.scalars(select(table.c.message_key).where(table.c.message_key == message.message_id)).all()
    assert len(rows) == len(handled), told
    if ending == "fine":
        assert len(rows) == 1, told
    return ending


async def played(app: App, scene: Callable[[Session], None], run: Run, seed: int) -> tuple[str, str]:
    """Returns how it ended, and its story. The checks have settled what it left."""
    ending = "fine"
    try:
        await app.play(scene)
    except Exception as error:
        ending = type(error).__name__
    run.faults.heal()
    for _ in range(3):
        if app.broker.undecided():
            await app.check()
    told = f"seed {seed}, {ending}:\n" + "\n".join(run.story)
    assert app.broker.undecided() == [], told
    return ending, told


async def one_joined(app: App, seed: int, first_id: int, faults: Faults) -> str:
    """The same in a transaction that the application ends itself, so that ``session_ends`` is no mistake, and what follows it is."""
    run = Run(app, random.Random(seed), first_id, faults)
    app.broker = MemoryBroker(_next=first_id)

    def scene(session: Session) -> None:
        tx = wait(app.log.join_async(AsyncMemoryClient(app.broker), async_session(session)))  # type: ignore[arg-type]
        try:
            run.body(session, tx)
            session.commit()
        except BaseException:
            session.rollback()
            raise

    ending, told = await played(app, scene, run, seed)
    rows = {f"t{order_id}" for order_id in app.order_ids() if first_id <= order_id < first_id + IDS_OF_A_RUN}
    messages = app.messages()
    assert len(messages) == len(set(messages)), told
    assert set(messages) <= rows, told
    if not run.is_late:
        assert set(messages) == rows, told
    return ending if rows or ending != "fine" else "fine without a row"


async def one_late(app: App, seed: int, first_id: int, faults: Faults) -> str:
    """The message of the first row is the last thing in its transaction: as a row of the outbox, or in a block that joins it."""
    rng = random.Random(seed)
    run = Run(app, rng, first_id, faults)
    app.broker = MemoryBroker(_next=first_id)
    topic = f"t{first_id}"

    def scene(session: Session) -> None:
        try:
            steps(session)
        except BaseException:
            roll_back(session, topic)
            raise

    def steps(session: Session) -> None:
        run.before_the_message(session)
        if rng.random() < 0.5:
            run.story.append("outbox")
            app.outbox.send(session, topic, b"x")
            session.commit()
        else:
            run.story.append("block")
            with app.block(session) as tx:
                tx.send(topic, b"x")

    ending, told = await played(app, scene, run, seed)
    is_there = first_id in app.order_ids()
    sent = [*app.messages(), *(row[0] for row in app.in_outbox() if row[0] == topic)]
    assert len(sent) <= is_there, told
    if ending == "fine" or not run.is_late:
        assert len(sent) == is_there, told
    return ending


async def walk(one: Callable[[App, int, int, Faults], Awaitable[str]], app: App, faults: Faults) -> None:
    variable, runs = RUNS
    seed = seed_of_commit()
    endings: dict[str, int] = {}
    for number in range(runs):
        ending = await one(app, seed + number, (number + 1) * IDS_OF_A_RUN, faults)
        endings[ending] = endings.get(ending, 0) + 1
    print(variable, runs, app.driver.name, endings)
    assert endings.get("fine", 0) > runs // 20


@pytest.mark.timeout(1_800)
@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")
@pytest.mark.parametrize("app", WALK, indirect=True)
async def test_they_agree_too_where_the_message_comes_last(app: App, faults: Faults) -> None:
    await walk(one_late, app, faults)


@pytest.mark.timeout(1_800)
@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")
@pytest.mark.parametrize("app", ASYNC, indirect=True)
async def test_they_agree_too_where_the_application_ends_the_transaction(app: App, faults: Faults) -> None:
    await walk(one_joined, app, faults)


@pytest.mark.timeout(1_800)
@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")  # flushes that are lost with a failed savepoint
@pytest.mark.parametrize("app", WALK, indirect=True)
async def test_message_and_row_agree_however_the_transaction_ends(app: App, faults: Faults) -> None:
    variable, runs = RUNS
    seed = seed_of_commit()
    endings: dict[str, int] = {}
    for number in range(runs):
        kind = one_handler if number % 4 == 3 else one_block
        ending = await kind(app, seed + number, (number + 1) * IDS_OF_A_RUN, faults)
        endings[f"{kind.__name__} {ending}"] = endings.get(f"{kind.__name__} {ending}", 0) + 1
    print(variable, runs, app.driver.name, endings)
    assert endings.get("one_block fine", 0) > runs // 20
