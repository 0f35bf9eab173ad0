"""A system of Try/Confirm/Cancel whose services fail at any of their calls: a shop that orders, and stock and bank that hold for it.

The clients, blocks, barriers and consumers are those of the product, on a real broker and real databases. A process that is killed loses
its connections, and what it had not committed; a new one takes its place.
"""

import asyncio
import contextlib
import gc
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final

from sqlalchemy import Column, MetaData, String, Table, insert, select, update
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine

from halfmq import App, AsyncClient, Branch, Message
from halfmq.errors import BranchRefused, SendTimeout
from halfmq.sql import Barrier, MarkerTable
from tests.support.broker_kills import connected
from tests.support.faults import Faults, Killed
from tests.support.topics import make_topics
from tests.unit.sql.conftest import with_foreign_keys

#: Time of a block, seconds.
TIMEOUT_S: Final = 1.0
#: Of a call to the broker; an attempt has half of it.
CALL_S: Final = 4.0
HELD, CONFIRMED, CANCELLED = "held", "confirmed", "cancelled"


class Lost(ConnectionError):
    """The answer did not arrive, or the request."""


def lost() -> Any:
    raise Lost("cut")


#: Which COMMIT the current task is about to do; "": one that nothing happens to.
COMMITTING: ContextVar[str] = ContextVar("COMMITTING", default="")
#: What happens at a COMMIT of this name: "killed before", "killed after", "cut", "lost", or nothing ("").
Draw = Callable[[str], str]


def fail_at_commits(engine: AsyncEngine, draw: Draw, on_kill: Callable[[], None]) -> None:
    """Let COMMITs of this engine fail."""
    dialect = engine.sync_engine.dialect
    real = dialect.do_commit

    def commit(connection: Any) -> None:
        name = COMMITTING.get()
        fault = draw(name) if name else ""
        if fault == "killed before":
            on_kill()
            raise Killed
        if fault == "cut":
            raise Lost("COMMIT was not sent")
        real(connection)
        if fault == "killed after":
            on_kill()
            raise Killed
        if fault == "lost":
            raise Lost("the answer to COMMIT")

    dialect.do_commit = commit  # type: ignore[method-assign]


def made_engine(url: str, draw: Draw, on_kill: Callable[[], None] = lambda: None) -> AsyncEngine:
    options: dict[str, Any] = {"connect_args": {"timeout": 30}} if "sqlite" in url else {}
    engine = create_async_engine(url, **options)
    if "sqlite" in url:
        with_foreign_keys(engine.sync_engine)
    fail_at_commits(engine, draw, on_kill)
    return engine


def sever(client: AsyncClient) -> None:
    """The connections of a killed process end."""
    client._context.brokers.close()
    client._names.close()


class FaultyClient(AsyncClient):
    """A client whose calls may fail."""

    faults: Faults | None = None

    async def _at(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        return await (call() if self.faults is None else self.faults.at(name, call, lost_call))

    async def send(self, *arguments: Any, **named: Any) -> Any:
        return await self._at("cancel sent", lambda: super(FaultyClient, self).send(*arguments, **named))

    async def prepare(self, *arguments: Any, **named: Any) -> Any:
        return await self._at("prepare", lambda: super(FaultyClient, self).prepare(*arguments, **named))

    async def request(self, *arguments: Any, **named: Any) -> Any:
        return await self._at("try called", lambda: super(FaultyClient, self).request(*arguments, **named))

    async def commit(self, *arguments: Any, **named: Any) -> Any:
        return await self._at("verdict", lambda: super(FaultyClient, self).commit(*arguments, **named))


def lost_call() -> Any:
    raise SendTimeout("the answer was lost, or the request")


async def bury(client: AsyncClient) -> None:
    """End the tasks of a killed process."""
    sever(client)
    for task in [*client._tasks]:
        task.cancel()
    with contextlib.suppress(BaseException):
        await client.close(grace=0)


class FaultyDelivery:
    """Of one try: its reply may not be sent, or be sent and not be acknowledged, or its process is killed before it."""

    def __init__(self, delivery: Any, participant: "Participant") -> None:
        self._delivery = delivery
        self._participant = participant

    def __getattr__(self, name: str) -> Any:
        return getattr(self._delivery, name)

    async def reply(self, message: Message, reply: Any) -> None:
        faults = self._participant.faults
        try:
            await (
                self._delivery.reply(message, reply)
                if faults is None
                else faults.at("reply", lambda: self._delivery.reply(message, reply), lost_call)
            )
        except Killed:
            self._participant._died.set()
            raise


class Participant:
    """Stock or bank: holds for an order, then confirms or cancels. ``faults``: at its calls; ``commit``: at its COMMITs."""

    def __init__(self, name: str, broker_url: str, database_url: str) -> None:
        self.name = name
        self.broker_url = broker_url
        self.metadata = MetaData()
        self.holds = Table(
            f"{name}_holds", self.metadata,
            Column("gid", String(64), primary_key=True), Column("state", String(16), nullable=False),
        )  # fmt: skip
        self.barrier = Barrier(self.metadata, table=f"{name}_barrier")
        #: Tries are calls of ``try_``, or messages of this topic.
        self.tries, self.confirm, self.cancel = f"{name}-try", f"{name}-confirm", f"{name}-cancel"
        self.faults: Faults | None = None
        #: What happens at the next COMMIT of a try, or of the handler.
        self.draw: Draw = lambda _: ""
        self._died = asyncio.Event()
        self.engine = made_engine(database_url, lambda name: self.draw(name), self._died.set)
        self.sessions = async_sessionmaker(self.engine)
        self.deaths = 0
        #: Calls that arrived, as (gid, op), whatever became of them.
        self.arrived: list[tuple[str, str]] = []

    async def create(self) -> None:
        async with self.engine.begin() as connection:
            await connection.run_sync(self.metadata.drop_all)
            await connection.run_sync(self.metadata.create_all)
        await make_topics(self.broker_url, self.tries)

    # --- its calls

    async def try_(self, branch: Branch, body: object) -> str:
        """The try, called by the shop. It fails if this process is killed meanwhile."""
        self.arrived.append((branch.gid, "try"))
        try:
            async with self.sessions() as session:
                COMMITTING.set("try done")
                async with self.barrier.once(session, branch) as first:
                    if first:
                        await session.execute(insert(self.holds).values(gid=branch.gid, state=HELD))
        except Killed:
            raise Lost("the participant was killed") from None
        finally:
            COMMITTING.set("")
        return "held"

    async def _handle(self, message: Message, session: AsyncSession) -> None:
        branch = Branch.of(message)
        if branch.op == "try":
            self.arrived.append((branch.gid, "try"))
            message._delivery = FaultyDelivery(message._delivery, self)
            if message.json()["refuse"]:
                raise BranchRefused("nothing is left")
            await session.execute(insert(self.holds).values(gid=branch.gid, state=HELD))
            COMMITTING.set("try handled")
            return
        state = CONFIRMED if branch.op == "confirm" else CANCELLED

        async def write() -> None:
            found = await session.execute(
                update(self.holds).where(self.holds.c.gid == branch.gid, self.holds.c.state == HELD).values(state=state)
            )
            assert found.rowcount == 1, f"{branch} finds nothing held"

        if branch.op == "confirm":
            self.arrived.append((branch.gid, "confirm"))
            await (write() if self.faults is None else self.faults.at("confirm delivered", write, lost))
        else:
            await write()
        COMMITTING.set(f"{branch.op} handled")

    # --- its process

    def _app(self) -> App:
        app = App(self.broker_url, group=self.name, sessions=self.sessions, timeout=CALL_S, attempt_timeout=CALL_S / 4)

        async def handle(message: Message, session: AsyncSession) -> None:
            try:
                await self._handle(message, session)
            except Killed:
                self._died.set()
                raise

        app.consumer([self.tries, self.confirm, self.cancel], group=self.name, barrier=self.barrier)(handle)
        client = app.client()
        fence = client.fence

        async def fenced(tx_id: str, **named: Any) -> Any:
            self.arrived.append((tx_id, "cancel"))
            COMMITTING.set("cancel handled")
            try:
                return await (
                    fence(tx_id, **named)
                    if self.faults is None
                    else self.faults.at("cancel delivered", lambda: fence(tx_id, **named), lost)
                )
            except Killed:
                self._died.set()
                raise

        client.fence = fenced  # type: ignore[method-assign]
        return app

    async def run(self) -> None:
        """One process after the other, until it is cancelled."""
        while True:
            self._died.clear()
            app = self._app()

            async def process(app: App = app) -> None:
                async with app.run(wait=False):
                    await asyncio.Event().wait()

            running = asyncio.ensure_future(process())
            died = asyncio.ensure_future(self._died.wait())
            try:
                await asyncio.wait({running, died}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                died.cancel()
                if app.client().is_open:
                    sever(app.client())
                running.cancel()
                with contextlib.suppress(BaseException):
                    await running
            self.deaths += 1

    async def states(self) -> dict[str, str]:
        """gid -> state of what was held."""
        async with self.engine.connect() as connection:
            return dict((await connection.execute(select(self.holds.c.gid, self.holds.c.state))).all())  # type: ignore[arg-type]

    async def written(self) -> list[tuple[str, str, str]]:
        """(gid, branch, call) of each effect, by the rows of the barrier."""
        rows = self.barrier.table.c
        async with self.engine.connect() as connection:
            found = (await connection.execute(select(rows.gid, rows.branch, rows.op, rows.reason))).all()
        return [
            (gid, branch, "empty" if (op, reason) == ("try", "cancel") else op) for gid, branch, op, reason in found
        ]


class Shop:
    """The initiator. Its orders are named by the global transaction."""

    def __init__(self, name: str, broker_url: str, database_url: str) -> None:
        self.name = name
        self.broker_url = broker_url
        self.metadata = MetaData()
        self.orders = Table(f"{name}_orders", self.metadata, Column("gid", String(64), primary_key=True))
        self.markers = MarkerTable(self.metadata, table=f"{name}_tx", min_age_s=0, lock_wait_ms=100)
        self.draw: Draw = lambda _: ""
        self.engine = made_engine(database_url, lambda name: self.draw(name))
        self.sessions = async_sessionmaker(self.engine)
        self.client: FaultyClient | None = None

    async def create(self) -> None:
        async with self.engine.begin() as connection:
            await connection.run_sync(self.metadata.drop_all)
            await connection.run_sync(self.metadata.create_all)

    async def start(self) -> FaultyClient:
        """A process, which answers the checks of those before it."""
        if self.client is None:
            client = FaultyClient(self.broker_url, group=self.name, timeout=CALL_S, attempt_timeout=CALL_S / 4)
            client.answer_checks(self.markers, self.sessions)
            self.client = client
            await connected(client)
        return self.client

    async def stop(self) -> None:
        client, self.client = self.client, None
        if client is not None:
            await bury(client)

    async def order(
        self,
        participants: list[Participant],
        faults: Faults | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        fails: bool = False,
        late_s: float = 0,
        over_messages: bool = False,
        refused_by: Participant | None = None,
        before_end: Callable[[], Awaitable[Any]] | None = None,
    ) -> tuple[str, BaseException | None]:
        """One order. Returns its global id, and what its block raised. ``fails``: the application raises at its end. ``late_s``: the first
        try arrives so much later than the shop waits. ``over_messages``: tries are messages; ``refused_by`` is who says no to one."""
        client = await self.start()
        client.faults = faults
        gid = ""
        try:
            async with self.sessions() as session, client.tcc(session, markers=self.markers, timeout=timeout_s) as t:
                gid = t.id
                await session.execute(insert(self.orders).values(gid=t.id))
                for participant in participants:
                    await t.call(
                        participant.tries if over_messages else _faulty_try(participant, faults, late_s),
                        {"order": t.id, "refuse": participant is refused_by},
                        confirm=participant.confirm,
                        cancel=participant.cancel,
                    )
                if before_end is not None:
                    await before_end()
                if fails:
                    raise _Sorry
                COMMITTING.set("COMMIT")
        except Killed as killed:
            await self.stop()
            await self.start()
            return gid, killed
        except Exception as error:
            return gid, error
        finally:
            COMMITTING.set("")
        return gid, None

    async def gids(self) -> set[str]:
        async with self.engine.connect() as connection:
            return set(await connection.run_sync(lambda sync: sync.scalars(select(self.orders.c.gid)).all()))


def quiet_about_kills() -> None:
    """Say nothing of tasks that ended as they were killed. The collector may come to one inside of ``ast.parse``, as pytest calls it; to
    log its traceback calls that again, which CPython 3.11 answers with SystemError (recursion depth mismatch).
    """
    loop = asyncio.get_running_loop()

    def say(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), Killed | Lost):
            loop.default_exception_handler(context)

    loop.set_exception_handler(say)


async def closed(shops: list[Shop], participants: list[Participant], running: "list[asyncio.Task[None]]") -> None:
    """End everything of a test. ``running``: the participants' processes."""
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    for shop in shops:
        await shop.stop()
    for one in (*shops, *participants):
        await one.engine.dispose()
    gc.collect()


class _Sorry(Exception):
    pass


#: Tries that arrive later than their caller waits.
LATE: set["asyncio.Task[str]"] = set()


def _faulty_try(
    participant: Participant, faults: Faults | None, late_s: float
) -> Callable[[Branch, object], Awaitable[str]]:
    """What the shop calls: the participant over a network that may fail."""

    async def called(branch: Branch, body: object) -> str:
        # Of another process, so that it is not cancelled with its caller.
        def call() -> Awaitable[str]:
            return asyncio.ensure_future(asyncio.shield(participant.try_(branch, body)))

        async def arrive() -> str:
            await asyncio.sleep(late_s)  # real time: a request that is on its way
            return await participant.try_(branch, body)

        if late_s:
            LATE.add(task := asyncio.ensure_future(arrive()))
            task.add_done_callback(LATE.discard)
            lost()
        return await (call() if faults is None else faults.at("try called", call, lost))

    return called
