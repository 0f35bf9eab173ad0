"""The table of docs/users.md: what each program needs. A user with the rights of its row can run it; one without one of them cannot,
and is told which.

The rows of Spark are in tests/spark/test_users.py, and so are the jobs of `halfmq pipeline`.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import MetaData, create_engine, insert
from sqlalchemy.orm import sessionmaker
from tests.scenarios.test_users import Site, site
from tests.support.shop_module import shop_module
from tests.support.user_rights import programs, rights_of
from tests.support.waiting import turns, until
from typer.testing import CliRunner

from halfmq import App, AsyncClient, Client, HalfmqError, Message, Outcome, compose
from halfmq.cli import backup, client, config, consume, coordinator, db, dead, group, peek, query, send, topic, tx, user
from halfmq.cli import outbox as outbox_command
from halfmq.client.blocking import Connection
from halfmq.client.branch import Branch
from halfmq.model.address import Address, parse_url
from halfmq.model.query_batch import QueryBatch
from halfmq.model.settings import BrokerSettings
from halfmq.model.shown_settings import ShownSetting
from halfmq.sql import Barrier, MarkerTable, Outbox
from halfmq.wire.remoting.codes import HMQ_COMPARED, HMQ_DECIDE
from halfmq.wire.remoting.half_batches import decide_ext

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

NAMED: Final = ("--operator", "ada", "--reason", "why")
QUICK: Final = BrokerSettings(check_immunity_ms=40, check_interval_ms=100, default_topic_queues=1)


class Refused(Exception):
    """A command failed; with what it said."""


class Attempt:
    """One program as a user of its own, with names of its own."""

    def __init__(
        self, here: Site, number: int, caplog: pytest.LogCaptureFixture, patch: pytest.MonkeyPatch | None = None
    ) -> None:
        self.here = here
        self.number = number
        self.caplog = caplog
        self._patch = patch
        self.url = ""
        self.user = f"user-{number}"

    def name(self, word: str) -> str:
        """For a word in capitals of the page."""
        return f"{word.lower()}-{self.number}"

    @property
    def topic(self) -> str:
        return self.name("TOPIC")

    @property
    def group(self) -> str:
        return self.name("GROUP")

    @property
    def alice(self) -> str:
        return self.here.url("alice")

    async def command(self, app: Any, *arguments: object, statuses: tuple[int, ...] = (0,)) -> str:
        done = await self.here.run(*arguments, app=app, url=self.url)
        if done.exit_code not in statuses:
            raise Refused(" ".join(done.output.split()))
        return done.output

    def was_refused(self) -> bool:
        """Of programs that log it, and go on."""
        return f"user '{self.user}' has no right" in self.caplog.text

    def ask(self, code: int, fields: dict[str, str], body: bytes = b"") -> None:
        """As the administrator."""
        security = parse_url(self.alice).security
        with closing(Connection.open(Address("127.0.0.1", self.here.running.ports.broker), security)) as connection:
            answer = connection.receive(connection.send(code, fields, body))
        assert answer.code == 0, answer

    def shop(self) -> Any:
        """The module of an application, whose tables exist."""
        assert self._patch is not None
        directory = self.here.directory / self.user
        directory.mkdir()
        return shop_module(self._patch, directory, self.url)

    async def send(self, body: str = "x", topic: str = "") -> None:
        """As the administrator."""
        async with AsyncClient(self.alice, group="anybody") as mq:
            await mq.send(topic or self.topic, body)

    async def read_group(self) -> None:
        """The group has an offset before the only message of the topic."""
        await self.send()
        for code, fields, body in (
            (200, {}, b'{"groupName":"%b"}' % self.group.encode()),
            (15, {"consumerGroup": self.group, "topic": self.topic, "queueId": "0", "commitOffset": "0"}, b""),
        ):
            await asyncio.to_thread(self.ask, code, fields, body)

    async def undecided(self, name: str = "undecided") -> str:
        """A transaction of the group that nobody has decided; its id."""
        tx_id = f"{name}-{self.number}"
        async with AsyncClient(self.alice, group=self.group) as mq:
            await mq.prepare([compose(self.topic, b"x")], tx_id=tx_id)
        return tx_id


async def producer(one: Attempt) -> None:
    app = App(one.url, group=one.group)

    @app.transaction("order.create", topic=one.topic)
    async def create(tx: Any) -> None:
        tx.send(b"committed")

    @create.check
    async def was_created(tx: Any) -> Outcome:
        return Outcome.COMMIT

    async with app.run():
        await create()
        await app.client().send(one.topic, b"plain")
        await app.client().prepare([compose(one.topic, b"checked")], tx_id=f"T-{one.number}", name="order.create")
    async with AsyncClient(one.url, group=one.group) as mq:
        prepared = await mq.prepare([compose(one.topic, b"rolled back")], tx_id=f"R-{one.number}")
        await mq.rollback(prepared)


async def consumer(one: Attempt) -> None:
    await one.send("first")
    one.caplog.clear()
    async with (
        AsyncClient(one.url, timeout=10) as mq,
        mq.consumer(one.topic, group=one.group, start="earliest") as messages,
    ):
        message = await messages.get(2)
        if message is None:
            raise Refused(one.caplog.text)
        await message.retry(0.1)
        again = await messages.get(30)
        assert again is not None
        again.ack()


async def requester(one: Attempt) -> None:
    await one.send("no request")
    async with (
        AsyncClient(one.alice) as other,
        other.consumer(one.topic, group=f"repliers-{one.number}") as messages,
    ):

        async def reply() -> None:
            while (message := await messages.get()) is not None:
                if message.is_request:
                    await message.reply("yes")
                message.ack()

        replying = asyncio.create_task(reply())
        try:
            async with AsyncClient(one.url, group=one.group) as mq:
                assert (await mq.request(one.topic, "?", timeout=20)).text() == "yes"
        finally:
            replying.cancel()


async def replier(one: Attempt) -> None:
    await one.send("no request")
    one.caplog.clear()
    async with (
        AsyncClient(one.alice, group="requesters") as other,
        AsyncClient(one.url) as mq,
        mq.consumer(one.topic, group=one.group, start="earliest") as messages,
    ):
        asking = asyncio.create_task(other.request(one.topic, "?", timeout=20))
        try:
            while True:
                message = await messages.get(2)
                if message is None:
                    raise Refused(one.caplog.text)
                if message.is_request:
                    await message.reply("yes")
                    break
            assert (await asking).text() == "yes"
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)


async def other_coordinator(one: Attempt) -> None:
    async with AsyncClient(one.url, group=one.group) as mq:
        made = mq.coordinator("transfers")
        await made.recover()
        prepared = await made.prepare([compose(one.topic, b"x")])
        assert (await made.settle(prepared, Outcome.COMMIT)).verdict == "COMMITTED"
        assert await made.outcome(prepared.tx_id) == "COMMITTED"


class Shop:
    """Who calls, and whom: Try/Confirm/Cancel of one branch."""

    def __init__(self, one: Attempt, caller: str, participant: str) -> None:
        self.one = one
        tables, theirs = MetaData(), MetaData()
        self.markers = MarkerTable(tables)
        self.engine = create_engine(f"sqlite:///{one.here.directory}/caller-{one.number}.db")
        tables.create_all(self.engine)
        barrier = Barrier(theirs)
        stock = create_engine(f"sqlite:///{one.here.directory}/participant-{one.number}.db")
        theirs.create_all(stock)
        self.barrier, self.stock = barrier, sessionmaker(stock)
        self.ends: list[str] = []
        self.caller = caller
        self.app = App(participant, sessions=self.stock)
        topics = [one.name("CONFIRM"), one.name("CANCEL")]
        self.app.consumer(topics, group=one.group, barrier=barrier, start="earliest")(self.end)

    def try_(self, branch: Branch, body: object) -> None:
        with self.stock() as session, self.barrier.once(session, branch):
            pass

    def end(self, message: Message, session: Any) -> None:
        self.ends.append(Branch.of(message).op)

    def call(self, group_: str) -> None:
        """One block that commits, and one that does not."""
        session = sessionmaker(self.engine)
        topics = {"confirm": self.one.name("CONFIRM"), "cancel": self.one.name("CANCEL")}
        with Client(self.caller, group=group_, timeout=10) as mq:
            mq.answer_checks(self.markers, session)
            with session() as db_, mq.tcc(db_, markers=self.markers, timeout=5) as t:
                t.call(self.try_, 7, **topics)
            with suppress(ZeroDivisionError), session() as db_, mq.tcc(db_, markers=self.markers, timeout=5) as t:
                t.call(self.try_, 7, **topics)
                raise ZeroDivisionError


async def tcc_caller(one: Attempt) -> None:
    shop = Shop(one, one.url, one.alice)
    await asyncio.to_thread(shop.call, one.group)


async def tcc_participant(one: Attempt) -> None:
    shop = Shop(one, one.alice, one.url)
    await asyncio.to_thread(shop.call, one.name("CALLERS"))
    one.caplog.clear()
    async with shop.app.run():
        await until(lambda: sorted(set(shop.ends)) == ["cancel", "confirm"] or one.was_refused(), "both ends")
    if one.was_refused():
        raise Refused(one.caplog.text)


async def relayed(one: Attempt) -> None:
    tables = MetaData()
    outbox = Outbox(tables)
    engine = create_engine(f"sqlite:///{one.here.directory}/outbox-{one.number}.db")
    tables.create_all(engine)
    sessions = sessionmaker(engine)
    with sessions() as session, session.begin():
        outbox.send(session, one.topic, "x")
    one.caplog.clear()
    async with AsyncClient(one.url, group=one.group) as mq, mq.relay(outbox, sessions) as running:
        await until(lambda: running.confirmed or one.was_refused(), "the row is published")
    if not running.confirmed:
        raise Refused(one.caplog.text)


async def tx_of_group(one: Attempt) -> None:
    tx_id = await one.undecided()
    assert tx_id in await one.command(tx.app, "list", "--group", one.group)
    assert one.user not in await one.command(tx.app, "show", tx_id, "--group", one.group)
    await one.command(tx.app, "stats", "--group", one.group)


async def tx_of_all(one: Attempt) -> None:
    tx_id = await one.undecided()
    assert tx_id in await one.command(tx.app, "list")
    await one.command(tx.app, "show", tx_id)
    assert one.group in await one.command(tx.app, "stats")


async def tx_settled(one: Attempt) -> None:
    for verdict in ("commit", "rollback"):
        tx_id = await one.undecided(verdict)
        async with AsyncClient(one.alice, group=one.group) as mq:
            mq.add_check("", lambda check: Outcome.UNKNOWN)
            check = ("check", tx_id, "--group", one.group, "--wait", 5)
            while "grace period" in (await one.here.run(*check, app=tx.app, url=one.alice)).output:
                await turns()
            await one.command(tx.app, *check, statuses=(0, 6))
        await one.command(tx.app, verdict, tx_id, "--group", one.group, *NAMED, "--yes")


async def tx_limits(one: Attempt) -> None:
    await one.command(tx.app, "limits", one.group)
    await one.command(tx.app, "limits", one.group, "--undecided-max", 7, *NAMED)


async def damage(one: Attempt) -> str:
    """A transaction that an operator has rolled back and whose application says that it committed."""
    tx_id = await one.undecided()
    as_alice = Attempt(one.here, one.number, one.caplog)
    as_alice.url = one.alice
    await as_alice.command(tx.app, "rollback", tx_id, "--group", one.group, *NAMED, "--yes")
    report = {"group": one.group, "txId": tx_id, "outcome": "COMMIT", "source": "bank A"}
    await asyncio.to_thread(one.ask, HMQ_COMPARED, report)
    return tx_id


async def tx_damaged(one: Attempt) -> None:
    tx_id = await damage(one)
    assert tx_id in await one.command(tx.app, "damaged", statuses=(7,))


async def tx_forgotten(one: Attempt) -> None:
    tx_id = await damage(one)
    await one.command(tx.app, "forget", tx_id, "--group", one.group, *NAMED, "--yes")


async def markers_pruned(one: Attempt) -> None:
    shop = one.shop()
    with shop.sessions() as session, session.begin():
        rows = {"tx_id": f"old-{one.number}", "outcome": "C", "written_at_ms": 1}
        session.connection().execute(insert(shop.markers.table).values(rows))
    invoke: Any = CliRunner().invoke
    done = await asyncio.to_thread(invoke, db.app, ["prune", "shop:app", "--markers", "1d", "--broker", one.url])
    if done.exit_code:
        raise Refused(" ".join(done.output.split()))
    assert "1 rows of mq_tx deleted" in done.output


async def database_only(one: Attempt) -> None:
    one.shop()
    invoke: Any = CliRunner().invoke
    for app, arguments in (
        (db.app, ("init", "shop:app")), (db.app, ("upgrade", "shop:app")), (db.app, ("prune", "shop:app", "--outbox", "7d")),
        (outbox_command.app, ("status", "shop:app")),
    ):  # fmt: skip
        done = await asyncio.to_thread(invoke, app, list(arguments))
        assert done.exit_code == 0, done.output


async def query_of(one: Attempt) -> str:
    name = f"query-{one.number}"
    batch = QueryBatch(name, 7, "r1", one.topic)
    fields = {key: str(value) for key, value in decide_ext(one.group, batch, b"d" * 16).items()}
    await asyncio.to_thread(one.ask, HMQ_DECIDE, fields, b"[]")
    return name


async def query_listed(one: Attempt) -> None:
    assert await query_of(one) in await one.command(query.app, "list")


async def query_forgotten(one: Attempt) -> None:
    await one.command(query.app, "forget", await query_of(one), *NAMED, "--yes")


async def coordinator_known(one: Attempt) -> str:
    name = f"transfers-{one.number}"
    async with AsyncClient(one.alice, group=one.group) as mq:
        await mq.coordinator(name).recover()
    return name


async def coordinator_listed(one: Attempt) -> None:
    assert await coordinator_known(one) in await one.command(coordinator.app, "list")


async def coordinator_forgotten(one: Attempt) -> None:
    name = await coordinator_known(one)
    await one.command(coordinator.app, "forget", name, "--group", one.group, *NAMED, "--yes")


async def topics_listed(one: Attempt) -> None:
    await one.send()
    assert one.topic in await one.command(topic.app, "list")


async def topic_shown(one: Attempt) -> None:
    await one.send()
    assert "no consumer group" in await one.command(topic.app, "show", one.topic)


async def topic_changed(one: Attempt) -> None:
    await one.command(topic.app, "create", one.topic)
    await one.command(topic.app, "set", one.topic, "--ordered")
    await one.command(topic.app, "delete", one.topic, "--yes")


async def groups_listed(one: Attempt) -> None:
    await one.read_group()
    assert one.group in await one.command(group.app, "list")


async def group_lag(one: Attempt) -> None:
    await one.read_group()
    assert "1 messages to read" in await one.command(group.app, "lag", one.group)


async def group_reset(one: Attempt) -> None:
    await one.read_group()
    done = await one.command(group.app, "reset", one.group, "--topic", one.topic, "--to", "latest", "--yes")
    assert "1 skipped" in done


async def group_deleted(one: Attempt) -> None:
    await one.read_group()
    await one.command(group.app, "delete", one.group, "--yes")


async def sent(one: Attempt) -> None:
    await one.command(send.app, one.topic, "plain")
    await one.command(send.app, one.topic, "committed", "--tx")


async def looked_at(one: Attempt) -> None:
    await one.send("seen")
    for app, *selected in ((consume.app,), (peek.app, "--last", "1")):
        assert "seen" in await one.command(app, one.topic, *selected)


async def consumed(one: Attempt) -> None:
    await one.send("seen")
    assert "seen" in await one.command(consume.app, one.topic, "--group", one.group, "--max", "1")


async def dead_redriven(one: Attempt) -> None:
    await one.send("dead")
    async with (
        AsyncClient(one.alice) as mq,
        mq.consumer(one.topic, group=one.group, start="earliest") as messages,
    ):
        message = await messages.get(20)
        assert message is not None
        await message.reject()
    assert one.topic in await one.command(dead.app, "list", "--group", one.group)
    await one.command(dead.app, "redrive", "--group", one.group, "--yes")


async def clients_listed(one: Attempt) -> None:
    assert one.user in await one.command(client.app, "list")


async def client_kicked(one: Attempt) -> None:
    async with AsyncClient(one.alice, group=one.group) as mq:
        await mq.prepare([compose(one.topic, b"x")], tx_id=f"kicked-{one.number}")
        number = next(
            number for number, groups in one.here.running.state.session.produces.items() if one.group in groups
        )
        assert "is closed" in await one.command(client.app, "kick", number, *NAMED, "--yes")


async def held(one: Attempt) -> None:
    await one.send()
    await one.command(group.app, "hold", one.group, one.topic)
    await one.command(group.app, "release", one.group)


async def holds(one: Attempt) -> None:
    await one.command(group.app, "holds")


async def settings(one: Attempt) -> None:
    await one.command(config.app, "get")


async def setting_changed(one: Attempt) -> None:
    await one.command(config.app, "set", "queries_max", "50", "--yes")
    await one.command(config.app, "unset", "queries_max", "--yes")


async def backup_(one: Attempt) -> None:
    await one.command(backup.app, str(one.here.directory / f"backup-{one.number}"))


async def users(one: Attempt) -> None:
    await one.command(user.app, "list")
    await one.command(user.app, "add", f"new-{one.number}", "--allow", "send:*")
    await one.command(user.app, "remove", f"new-{one.number}", "--reason", "r", "--yes")


#: By the beginning of the row's first cell.
PROGRAMS: Final[dict[str, Callable[[Attempt], Awaitable[None]]]] = {
    "producer, `App`": producer,
    "consumer": consumer,
    "who requests": requester,
    "who replies": replier,
    "coordinator of another system": other_coordinator,
    "caller of Try/Confirm/Cancel": tcc_caller,
    "participant of Try/Confirm/Cancel": tcc_participant,
    "relay of group": relayed,
    "`halfmq tx list`, `show` or `stats` with": tx_of_group,
    "`halfmq tx list`, `show` or `stats` of all": tx_of_all,
    "`halfmq tx check`, `commit` or `rollback`": tx_settled,
    "`halfmq tx limits": tx_limits,
    "`halfmq tx damaged`": tx_damaged,
    "`halfmq tx forget": tx_forgotten,
    "`halfmq db prune --markers`": markers_pruned,
    "other commands of `halfmq db`": database_only,
    "`halfmq query list`": query_listed,
    "`halfmq query forget`": query_forgotten,
    "`halfmq coordinator list`": coordinator_listed,
    "`halfmq coordinator forget": coordinator_forgotten,
    "`halfmq topic list`": topics_listed,
    "`halfmq topic show": topic_shown,
    "`halfmq topic create`": topic_changed,
    "`halfmq group list`": groups_listed,
    "`halfmq group lag": group_lag,
    "`halfmq group reset": group_reset,
    "`halfmq group delete": group_deleted,
    "`halfmq send": sent,
    "`halfmq consume TOPIC`": looked_at,
    "`halfmq consume TOPIC --group": consumed,
    "`halfmq dead list`": dead_redriven,
    "`halfmq client list`": clients_listed,
    "`halfmq client kick`": client_kicked,
    "`halfmq group hold`": held,
    "`halfmq group holds`": holds,
    "`halfmq backup`": backup_,
    "`halfmq config get`": settings,
    "`halfmq config set`": setting_changed,
    "`halfmq user`": users,
}
#: Rows that need Spark.
OF_SPARK: Final = ("Spark, ", "the same with `subscribePattern`", "`halfmq pipeline ")


def test_every_row_has_its_program() -> None:
    for title in programs():
        found = [start for start in PROGRAMS if title.startswith(start)]
        assert len(found) == (0 if title.startswith(OF_SPARK) else 1), title


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Site]:
    given = {"queries_max": ShownSetting(1, "default")}  # which the broker shows
    async with site(tmp_path, settings=QUICK, given=given) as made:
        yield made


@pytest.mark.parametrize("title", PROGRAMS)
async def test_the_rights_of_the_row_are_enough_and_each_is_needed(
    title: str, here: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = PROGRAMS[title]
    count = len(rights_of(title))
    for number in range(count + 1):
        one = Attempt(here, number, caplog, monkeypatch)
        rights = rights_of(title, **{word: one.name(word) for word in WORDS}, REPLIERS=one.group)
        assert all(not any(word in right for word in WORDS) for right in rights), rights
        lacks = rights[number - 1] if number else ""
        one.url = await here.add(one.user, *(right for right in rights if right != lacks))
        if not lacks:
            await asyncio.wait_for(program(one), 60)
            continue
        with pytest.raises((HalfmqError, Refused)) as raised:
            await asyncio.wait_for(program(one), 60)
        right, scope, *name = lacks.split(":")
        on = f"{scope} '{name[0]}'" if name else "the broker"
        assert re.search(rf"user '{one.user}' has no right to ({right}|describe) on {re.escape(on)}", str(raised.value)), (
            lacks, raised.value,
        )  # fmt: skip


#: What the page has in capitals.
WORDS: Final = ("TOPIC", "GROUP", "CONFIRM", "CANCEL", "CALLERS")
