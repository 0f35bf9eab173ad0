"""A table of halfmq that nobody has created: every use of it says what creates it, and a worker asks before it takes a message."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, MetaData, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from tests.unit.sql.conftest import EACH_DATABASE, Shop
from tests.unit.sql.faces import App as FaceApp
from tests.unit.sql.faces import Message, app
from tests.unit.sql.memory_broker import MemoryBroker, MemoryClient

from halfmq import App
from halfmq.client.branch import Branch
from halfmq.errors import ConnectError, MissingTable
from halfmq.processes.worker import Worker
from halfmq.sql import Barrier, Inbox, MarkerTable, Outbox

__all__ = ["app"]

TABLES = MetaData()
MARKERS = MarkerTable(TABLES, "absent_tx")
INBOX = Inbox(TABLES, "absent_inbox")
BARRIER = Barrier(TABLES, "absent_barrier")
OUTBOX = Outbox(TABLES, "absent_outbox")


def transaction(session: Session) -> None:
    with MARKERS.bind(MemoryClient(MemoryBroker()), session) as tx:
        tx.send("orders", 1)


def once(session: Session) -> None:
    with INBOX.once(session, Message("m1"), group="billing"):
        raise AssertionError("it is not handled")


def confirm(session: Session) -> None:
    branch = Branch("tcc.1", "shop", "1", "confirm", "broker-a", 0)
    with BARRIER.once(session, branch):
        raise AssertionError("it is not handled")


def send(session: Session) -> None:
    OUTBOX.send(session, "orders", 1)
    session.commit()


def send_at_once(session: Session) -> None:
    OUTBOX.send(session.connection(), "orders", 1)


def pruned(session: Session) -> None:
    INBOX.prune(session, older_than_s=86_400)


#: What needs a table, and which.
USES: dict[str, tuple[Callable[[Session], None], str]] = {
    "mq.transaction": (transaction, "absent_tx"),
    "inbox": (once, "absent_inbox"),
    "barrier": (confirm, "absent_barrier"),
    "outbox": (send, "absent_outbox"),
    "outbox of a Connection": (send_at_once, "absent_outbox"),
    "prune": (pruned, "absent_inbox"),
}


@EACH_DATABASE
@pytest.mark.parametrize(("use", "table"), USES.values(), ids=USES)
def test_it_is_an_error_of_halfmq_that_says_what_creates_it(
    use: Callable[[Session], None], table: str, shop: Shop
) -> None:
    said = rf"^there is no table {table} in \w+://.* \(`halfmq db init MODULE:APP` creates it, or your migration\)$"
    with shop.sessions()() as session, pytest.raises(MissingTable, match=said) as raised:
        use(session)
    assert table in str(raised.value.__cause__), "what the driver says stays to be read"


async def test_it_is_seen_in_the_exceptions_of_each_driver(app: FaceApp) -> None:
    with app.engine.begin() as connection:
        app.inbox.table.drop(connection)
        app.log.table.drop(connection)
    with pytest.raises(MissingTable, match=r"^there is no table mq_inbox in "):
        await app.handle(Message("m1"), lambda _session: None)
    with pytest.raises(MissingTable, match=r"^there is no table mq_tx in "):
        await app.run(lambda _session, tx: tx.send("orders", b"1"))


@EACH_DATABASE
@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM absent_orders, orders",
        "SELECT * FROM absent_tx_of_mine",
        "DROP TABLE absent_tx",
        "SELECT absent_tx FROM orders",
    ],
)
def test_what_else_fails_is_the_databases_own_error(statement: str, shop: Shop) -> None:
    with pytest.raises(DBAPIError), shop.engine.begin() as connection:
        connection.execute(text(statement))


# --- at the start of a worker -----------------------------------------------------------------------------------------

NOBODY = "rocketmq://127.0.0.1:1"


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    yield made
    made.dispose()


def app_with(sessions: Any, metadata: MetaData, kind: str) -> App:
    app = App(NOBODY, group="shop", timeout=0.2, sessions=sessions)
    if kind == "inbox":
        handle = _handle_async if isinstance(sessions, async_sessionmaker) else _handle
        app.consumer("t", group="g", inbox=Inbox(metadata))(handle)
    elif kind == "barrier":
        app.consumer("t", group="g", barrier=Barrier(metadata))(_handle)
    elif kind == "outbox":
        app.consumer("t", group="g", inbox=Inbox(metadata), outbox=Outbox(metadata))(_handle_and_send)
    else:
        app.answer_checks(MarkerTable(metadata))
    return app


def _handle(_message: Any, _session: Any) -> None: ...


async def _handle_async(_message: Any, _session: Any) -> None: ...


def _handle_and_send(_message: Any, _session: Any, _tx: Any) -> None: ...


async def run(app: App) -> None:
    async with asyncio.timeout(60):
        await Worker(app, lambda: None).run(False, None, "127.0.0.1", None)


@pytest.mark.parametrize(
    ("kind", "table"), [("inbox", "mq_inbox"), ("barrier", "mq_barrier"), ("outbox", "mq_outbox"), ("markers", "mq_tx")]
)
async def test_a_worker_does_not_start_without_its_tables(kind: str, table: str, empty: Engine) -> None:
    metadata = MetaData()
    app = app_with(sessionmaker(empty), metadata, kind)
    if kind == "outbox":
        metadata.tables["mq_inbox"].create(empty)
    with pytest.raises(MissingTable, match=rf"there is no table {table} in sqlite:///.*`halfmq db init MODULE:APP`"):
        await run(app)
    metadata.create_all(empty)
    with pytest.raises(ConnectError):  # it has gone on to the broker
        await run(app)


async def test_a_worker_with_asynchronous_sessions_does_not_either(tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}")
    with pytest.raises(MissingTable, match="there is no table mq_inbox"):
        await run(app_with(async_sessionmaker(engine), MetaData(), "inbox"))
    await engine.dispose()


async def test_a_database_that_is_away_does_not_keep_a_worker_from_starting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'no-directory' / 'shop.db'}")
    with pytest.raises(ConnectError):
        await run(app_with(sessionmaker(engine), MetaData(), "inbox"))
    assert "cannot be asked for the tables of halfmq: unable to open database file" in caplog.text


async def test_what_opens_sessions_of_its_own_is_not_asked() -> None:
    with pytest.raises(ConnectError):
        await run(app_with(ExitStack, MetaData(), "inbox"))
