"""Tries over HTTP: a participant behind a real server, and the blocking client. Whatever happens to an answer, holds and orders agree."""

import asyncio
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, MetaData, String, Table, create_engine, delete, insert, select, update
from sqlalchemy.orm import Session, sessionmaker

from halfmq import App, Branch, BranchRefused, Client, Message
from halfmq.model.settings import BrokerSettings
from halfmq.sql import Barrier, MarkerTable
from tests.support.in_process import serving
from tests.support.topics import make_topics
from tests.support.waiting import until

TOPICS = {"confirm": "stock-confirm", "cancel": "stock-cancel"}


class Stock:
    """Tries at POST /try, confirms and cancels as messages. One process, as far as HTTP is concerned: ``kill`` ends it."""

    def __init__(self, directory: Path) -> None:
        tables = MetaData()
        self.holds = Table("holds", tables, Column("gid", String(64), primary_key=True), Column("state", String(9)))
        self.barrier = Barrier(tables)
        self.engine = create_engine(f"sqlite:///{directory}/stock.db", connect_args={"timeout": 20})
        tables.create_all(self.engine)
        self.sessions = sessionmaker(self.engine)
        #: "killed": after the COMMIT, before the answer.
        self.fault = ""
        self.answered: list[int] = []
        self.server = self.start()

    def start(self, port: int = 0) -> ThreadingHTTPServer:
        stock = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = stock.try_(Branch.from_headers(dict(self.headers)), body)
                if stock.fault == "killed":
                    stock.fault = ""
                    self.close_connection = True  # the process is gone: no answer, and nobody listens
                    threading.Thread(target=stock.kill).start()
                    return
                stock.answered.append(status)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        made = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return made

    def kill(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def try_(self, branch: Branch, body: bytes) -> int:
        try:
            with self.sessions() as session, self.barrier.once(session, branch) as first:
                if body == b"9":
                    raise BranchRefused("there are no nine")
                if first:
                    session.execute(insert(self.holds).values(gid=branch.gid, state="held"))
        except BranchRefused:
            return 409
        return 200

    def end(self, message: Message, session: Session) -> None:
        branch = Branch.of(message)
        change = update(self.holds).values(state="done") if branch.op == "confirm" else delete(self.holds)
        session.execute(change.where(self.holds.c.gid == branch.gid))

    def post(self, branch: Branch, body: str) -> int:
        """What the shop calls."""
        url = f"http://127.0.0.1:{self.server.server_port}/try"
        request = urllib.request.Request(url, body.encode(), branch.headers(), method="POST")
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:  # a status of 400 or more
            error.close()
            raise

    def states(self) -> list[tuple[str, str]]:
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(select(self.holds.c.gid, self.holds.c.state))]


class Shop:
    """``order`` returns the id, and what its block raised."""

    def __init__(self, url: str, directory: Path, stock: Stock) -> None:
        tables = MetaData()
        self.orders = Table("orders", tables, Column("gid", String(64), primary_key=True))
        self.markers = MarkerTable(tables, min_age_s=0)
        self.engine = create_engine(f"sqlite:///{directory}/shop.db")
        tables.create_all(self.engine)
        self.url, self.stock = url, stock
        self.seen: list[Branch] = []

    def order(self, amount: str) -> tuple[str, BaseException | None]:
        def post(branch: Branch, body: str) -> int:
            self.seen.append(branch)
            return self.stock.post(branch, body)

        gid = ""
        try:
            with Client(self.url, group="shop") as mq, Session(self.engine) as session:
                mq.answer_checks(self.markers, sessionmaker(self.engine))
                with mq.tcc(session, markers=self.markers, timeout=5) as t:
                    gid = t.id
                    session.execute(insert(self.orders).values(gid=gid))
                    assert t.call(post, amount, **TOPICS) == 200
        except Exception as error:
            return gid, error
        return gid, None

    def gids(self) -> list[str]:
        with self.engine.connect() as connection:
            return list(connection.scalars(select(self.orders.c.gid)))


@pytest.fixture
async def services(tmp_path: Path) -> AsyncIterator[tuple[Shop, Stock]]:
    settings = BrokerSettings(check_immunity_ms=40, check_interval_ms=40, default_topic_queues=1)
    async with serving(tmp_path / "broker", settings=settings) as running:
        url = f"rocketmq://127.0.0.1:{running.ports.names}"
        stock = Stock(tmp_path)
        shop = Shop(url, tmp_path, stock)
        await make_topics(url, *TOPICS.values())
        app = App(url, group="stock", sessions=stock.sessions)
        app.consumer([*TOPICS.values()], group="stock", barrier=stock.barrier)(stock.end)
        async with app.run():
            yield shop, stock
        stock.kill()
        shop.engine.dispose()
        stock.engine.dispose()


async def test_try_over_http_is_confirmed_or_refused_or_cancelled(services: tuple[Shop, Stock]) -> None:
    shop, stock = services
    done, raised = await asyncio.to_thread(shop.order, "2")
    assert raised is None
    await until(lambda: stock.states() == [(done, "done")], "the confirm")
    _, raised = await asyncio.to_thread(shop.order, "9")
    assert isinstance(raised, urllib.error.HTTPError), raised
    assert (raised.code, stock.answered) == (409, [200, 409])
    # Killed after its COMMIT and before its answer: it holds what nobody knows of, and the cancel finds it.
    stock.fault = "killed"
    lost, raised = await asyncio.to_thread(shop.order, "3")
    assert isinstance(raised, ConnectionError), raised
    with stock.engine.connect() as connection:
        rows = stock.barrier.table.c
        assert connection.scalar(select(rows.reason).where(rows.gid == lost, rows.op == "try")) == "try"
    await until(lambda: stock.states() == [(done, "done")], "the cancel")
    assert shop.gids() == [done]
    # A request that could not be delivered, and arrives after all: its branch was cancelled in between.
    late, raised = await asyncio.to_thread(shop.order, "4")
    assert isinstance(raised, urllib.error.URLError), raised

    def reasons() -> list[str]:
        with stock.engine.connect() as connection:
            return list(connection.scalars(select(rows.reason).where(rows.gid == late, rows.op == "try")))

    await until(lambda: reasons() == ["cancel"], "the empty cancel")
    stock.server = stock.start()
    with pytest.raises(urllib.error.HTTPError, match="409"):
        await asyncio.to_thread(stock.post, shop.seen[-1], "4")
    assert await asyncio.to_thread(stock.post, shop.seen[-2], "3") == 200  # a repeated try writes nothing
    assert (stock.states(), shop.gids()) == ([(done, "done")], [done])
