"""Shop, stock and bank, each with a database of its own, and faults at each of their steps: ``python -m tests.systems.order_services
FILE``.

A process forks the three services, since to import what they need takes longer than to start, and starts one that was killed again. A
service kills itself with SIGKILL, so that nothing of it is tidied up. What happened is in a file of lines, ``Story``: a fault that
was drawn once is not drawn again after the restart.

Steps that a fault can be at are those of a handler that sends, in this order (``STEPS``). ``UNITS``: whose step it is.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, event, insert, select, update
from sqlalchemy.orm import Session, sessionmaker

import halfmq.client.delivery
from halfmq import App, Message, Retry
from halfmq.client.handler import Handler, _FromThread
from halfmq.errors import SendTimeout, TransactionUnknown
from halfmq.sql import Inbox, MarkerTable, Outbox
from tests.support.faults import FAULTS, Faults, Killed
from tests.unit.sql.conftest import with_foreign_keys

SHOP, STOCK, BANK = SERVICES = ("shop", "stock", "bank")
MARKERS, OUTBOX, BOTH = WAYS = ("markers", "outbox", "both")
HANDLER, ON_DEAD, COMPENSATING = UNITS = ("a handler that sends", "`on_dead`", "the compensating consumer")
DELIVERED: Final = "message delivered"
INBOX: Final = "inbox row"
ROWS: Final = "business rows"
OUTBOX_ROWS: Final = "outbox rows"
MARKER: Final = "marker confirmed"
HALVES: Final = "half messages prepared"
COMMIT: Final = "COMMIT"
VERDICT: Final = "verdict"
ACK: Final = "acknowledgement"
STEPS: Final = (DELIVERED, INBOX, ROWS, OUTBOX_ROWS, MARKER, HALVES, COMMIT, VERDICT, ACK)
#: Besides ``FAULTS``: a connection is cut where the step begins.
CUT_BROKER, CUT_DATABASE = CUTS = ("cut the broker", "cut the database")
#: Of the messages from one service to the next.
TOPICS: Final = ("placed", "reserved", "paid", "failed")
LEASE_S: Final = 0.3
#: Of a client: an answer that is lost costs no more.
TIMEOUT_S: Final = 2.0
#: Of a handler and of ``on_dead``: with pauses as short as here a broker that is away would use up the usual number.
ATTEMPTS_MAX: Final = 1_000


class Order(NamedTuple):
    """What a message says. ``goods``: they are there; ``card``: it is accepted."""

    id: int
    goods: bool = True
    card: bool = True


class Config(NamedTuple):
    """Of one system. ``faults``: order -> (unit, step, fault), which happens once; ``chance``: of a fault at any step."""

    broker: str
    name: str
    way: str
    urls: dict[str, str]
    story: str
    faults: dict[str, tuple[str, str, str]]
    chance: float
    seed: str
    concurrency: int

    def topic(self, what: str) -> str:
        return f"{self.name}-{what}"

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps(self._asdict()))
        return path


class Story:
    """A file to which the services append lines: what was called and which faults happened, each before it does."""

    def __init__(self, path: str | Path) -> None:
        self._path = path

    def add(self, *words: object) -> None:
        with Path(self._path).open("a") as file:  # one write, which those of other processes follow
            file.write("\t".join(map(str, words)) + "\n")

    def lines(self) -> list[tuple[str, ...]]:
        with contextlib.suppress(FileNotFoundError):
            return [tuple(line.split("\t")) for line in Path(self._path).read_text().splitlines()]
        return []


class Database:
    """The database of one service."""

    def __init__(self, name: str, url: str, way: str) -> None:
        metadata = MetaData()
        self.url = url
        self.engine = create_engine(url)
        if url.startswith("sqlite"):
            with_foreign_keys(self.engine)
        self.parts = Table(name, metadata, Column("id", Integer, primary_key=True), Column("state", String(12)))
        self.inbox = Inbox(metadata, f"{name}_inbox")
        self.markers = MarkerTable(metadata, f"{name}_marker", min_age_s=0, lock_wait_ms=100) if way != OUTBOX else None
        self.outbox = Outbox(metadata, f"{name}_outbox") if way != MARKERS else None
        self.create = lambda: metadata.create_all(self.engine)

    def states(self, first: int) -> dict[int, str]:
        """Of its parts of the orders from ``first`` on."""
        id_, state = self.parts.c.id, self.parts.c.state
        with self.engine.connect() as connection:
            return dict(connection.execute(select(id_, state).where(id_ >= first)).all())  # type: ignore[arg-type]


class _Ends(Faults):
    """``Faults`` of a real process."""

    async def do(self, fault: str, name: str, call: Callable[[], Awaitable[Any]], lost: Callable[[], Any]) -> Any:
        try:
            return await super().do(fault, name, call, lost)
        except Killed:
            os.kill(os.getpid(), signal.SIGKILL)


class _Handling(threading.local):
    """What a thread is doing. ``where``: order, and unit; None: nothing of a handler."""

    where: tuple[int, str] | None = None
    #: The driver's connection that it uses, and whether it is cut.
    connection: Any = None
    cut = False


class Steps:
    """Does what was said, or drawn, at each step of the messages that a service handles."""

    def __init__(self, config: Config, service: str, app: App, database: Database) -> None:
        self._config, self._service, self._app = config, service, app
        self._loop = asyncio.get_running_loop()
        self._story = Story(config.story)
        self._rng = random.Random(f"{config.seed}-{service}-{os.getpid()}")
        self._faults = _Ends(self._rng, 0.0, LEASE_S)
        self._done = {line[1:] for line in self._story.lines() if line[0] == "fault"}
        self._here = _Handling()
        self._lock = threading.Lock()
        #: Message -> where it was handled, until it is acknowledged.
        self._handled: dict[str, tuple[int, str]] = {}
        #: Of functions, by which one it is.
        self.unit_of: Callable[[Any, Message], str] = lambda _function, _message: ""
        self._at_engine(database)
        self._at_handlers()
        if database.markers is not None:
            self._around(database.markers._markers, "confirm", MARKER, _answer_lost)
        self._around(database.inbox, "claim", INBOX, _answer_lost)
        self._around(_FromThread, "prepare", HALVES, _no_answer)
        self._around(_FromThread, "commit", VERDICT, _unknown)

    def at(self, step: str, call: Callable[[], Any], lost: Callable[[], Any]) -> Any:
        """Take a step, in the thread of a handler. ``lost``: raises what a lost answer raises."""
        fault = self._drawn(self._here.where, step)
        if fault == CUT_BROKER:
            asyncio.run_coroutine_threadsafe(self._cut_broker(), self._loop).result()
        elif fault == CUT_DATABASE:
            self._cut_database()
        elif fault:

            async def as_coroutine() -> Any:
                return call()

            return asyncio.run(self._faults.do(fault, step, as_coroutine, lost))
        return call()

    def _drawn(self, where: tuple[int, str] | None, step: str) -> str:
        """The fault of this step; empty: none."""
        if where is None:
            return ""
        order, unit = where
        with self._lock:
            if said := self._config.faults.get(str(order)):
                fault = said[2] if (unit, step) == tuple(said[:2]) else ""
            else:
                fault = self._rng.choice((*FAULTS, *CUTS)) if self._rng.random() < self._config.chance else ""
            line = (str(order), unit, step, fault)
            if not fault or line in self._done:
                return ""
            self._done.add(line)
            self._story.add("fault", *line)
        return fault

    def _around(self, owner: Any, name: str, step: str, lost: Callable[[], Any]) -> None:
        real = getattr(owner, name)
        setattr(owner, name, lambda *given, **named: self.at(step, lambda: real(*given, **named), lost))

    async def _cut_broker(self) -> None:
        for connection in self._app.client()._context.brokers.established():
            connection.abort("it is cut")

    def _cut_database(self) -> None:
        connection = self._here.connection
        if self._config.urls[self._service].startswith("sqlite"):
            self._here.cut = True  # there is none that could be cut
        else:
            number = connection.fileno() if hasattr(connection, "fileno") else connection._sock.fileno()
            with socket.socket(fileno=os.dup(number)) as line:
                line.shutdown(socket.SHUT_RDWR)

    def _at_engine(self, database: Database) -> None:
        here, dialect = self._here, database.engine.dialect
        real = dialect.do_commit

        @event.listens_for(database.engine, "checkout")
        def _opened(connection: Any, *_: object) -> None:
            here.connection = connection

        @event.listens_for(database.engine, "before_cursor_execute")
        def _executes(*_: object) -> None:
            if here.cut:
                here.cut = False
                _answer_lost()

        def commit(connection: Any) -> None:
            def do() -> None:
                if here.cut:
                    here.cut = False
                    dialect.do_rollback(connection)
                    _answer_lost()
                real(connection)

            self.at(COMMIT, do, _answer_lost)

        dialect.do_commit = commit  # type: ignore[method-assign]

    def _at_handlers(self) -> None:
        unit_of_work, ack = Handler._unit, Message.ack

        def handle(handler: Handler, once: Any, sessions: Any, message: Message, loop: Any) -> None:
            unit = self.unit_of(handler.function, message)
            where = self._here.where = message.json()[0], unit
            self._here.cut = False
            self._handled[message.message_id] = where
            try:
                self.at(DELIVERED, lambda: None, _answer_lost)
                unit_of_work(handler, once, sessions, message, loop)
            finally:
                self._here.where = None

        def acknowledge(message: Message) -> Any:
            where = self._handled.pop(message.message_id, None)
            fault = self._drawn(where, ACK)
            if fault == CUT_BROKER:
                for connection in self._app.client()._context.brokers.established():
                    connection.abort("it is cut")
            elif fault == "kill before":
                os.kill(os.getpid(), signal.SIGKILL)
            done = ack(message)
            if fault.startswith("kill"):
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        Handler._unit = handle  # type: ignore[method-assign]
        Message.ack = acknowledge  # type: ignore[method-assign]

    def called(self, order: int) -> None:
        """A function of the service was called for this order."""
        where = self._here.where
        assert where is not None
        self._story.add("called", order, where[1])


def _answer_lost() -> Any:
    raise OSError("input/output error")


def _no_answer() -> Any:
    raise SendTimeout("no answer")


def _unknown() -> Any:
    raise TransactionUnknown("no answer", tx_id="")


def build(config: Config, service: str) -> App:
    """The service, with its steps."""
    database = Database(service, config.urls[service], config.way)
    app = App(
        config.broker, group=f"{config.name}-{service}", timeout=TIMEOUT_S, attempt_timeout=TIMEOUT_S / 2,
        sessions=sessionmaker(database.engine),
    )  # fmt: skip
    steps = Steps(config, service, app, database)
    parts = database.parts
    placed, reserved, paid, failed = map(config.topic, TOPICS)
    options: dict[str, Any] = {
        "group": f"{config.name}-{service}", "inbox": database.inbox, "markers": database.markers,
        "outbox": database.outbox, "concurrency": config.concurrency, "retries": ATTEMPTS_MAX,
    }  # fmt: skip
    if database.outbox is not None:
        app.relay(database.outbox, poll=0.05, lease=LEASE_S)

    def wrote(session: Session, statement: Any) -> None:
        steps.at(ROWS, lambda: session.execute(statement), _answer_lost)

    def sends(send: Callable[[], object]) -> None:
        steps.at(OUTBOX_ROWS, send, _answer_lost) if config.way == OUTBOX else send()

    if service == STOCK:

        @app.consumer([placed, failed], **options)
        def reserve_or_release(message: Message, session: Session, tx: Any) -> None:
            order = Order(*message.json())
            steps.called(order.id)
            if message.topic == failed:
                wrote(session, update(parts).where(parts.c.id == order.id).values(state="released"))
                sends(lambda: tx.send(config.topic("released"), order, sharding_key=order.id))
            elif order.goods:
                wrote(session, insert(parts).values(id=order.id, state="reserved"))
                sends(lambda: tx.send(reserved, order, sharding_key=order.id))
            else:
                message.compensate(failed, order)

        steps.unit_of = lambda _function, message: COMPENSATING if message.topic == failed else HANDLER
    elif service == BANK:

        def refused(message: Message, session: Session, _tx: Any) -> None:
            order = Order(*message.json())
            steps.called(order.id)
            wrote(session, insert(parts).values(id=order.id, state="refused"))
            sends(lambda: message.compensate(failed, order))

        # A pooled connection that a fault has cut refuses no card.
        only_cards = Retry(times=ATTEMPTS_MAX, dead_on=(ValueError,))

        @app.consumer(reserved, **{**options, "retries": None, "retry": only_cards, "on_dead": refused})
        def pay(message: Message, session: Session, tx: Any) -> None:
            order = Order(*message.json())
            steps.called(order.id)
            wrote(session, insert(parts).values(id=order.id, state="paid"))
            sends(lambda: tx.send(paid, order, sharding_key=order.id))
            if not order.card:
                raise ValueError("the card is refused")

        steps.unit_of = lambda function, _message: ON_DEAD if function is refused else "pays"
    else:

        @app.consumer([paid, failed], **options)
        def finish(message: Message, session: Session, _tx: Any) -> None:
            order = Order(*message.json())
            steps.called(order.id)
            state = "paid" if message.topic == paid else "cancelled"
            wrote(session, update(parts).where(parts.c.id == order.id).values(state=state))

        steps.unit_of = lambda _function, _message: "finishes"
    return app


async def serve(config: Config, service: str) -> None:
    halfmq.client.delivery.pause_s = lambda failures: min(0.02 * failures, 0.5)  # type: ignore[assignment] - a failed message comes again
    halfmq.client.delivery.DEAD_CALLS = ATTEMPTS_MAX  # type: ignore[misc]
    async with build(config, service).run(wait=False, relay=True):
        await asyncio.Event().wait()


def start(config: Config, service: str) -> int:
    child = os.fork()
    if child:
        return child
    try:
        asyncio.run(serve(config, service))
    finally:
        os._exit(1)


def main(path: str) -> int:
    """Until stdin ends. 1: a service ended by itself."""
    config = Config(**json.loads(Path(path).read_text()))
    running = {start(config, service): service for service in SERVICES}

    def stop() -> None:
        for child in running:
            os.kill(child, signal.SIGKILL)

    threading.Thread(target=lambda: (sys.stdin.read(), stop(), os._exit(0)), daemon=True).start()
    while True:
        child, status = os.wait()
        service = running.pop(child)
        if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
            print(f"{service} ended: {status}", file=sys.stderr)
            stop()
            return 1
        running[start(config, service)] = service


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
