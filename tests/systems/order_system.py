"""Shop, stock and bank as a test sees them: it places orders, and waits until the three databases agree about each."""

import contextlib
import os
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, insert, text
from sqlalchemy.orm import Session

from halfmq import AsyncClient, Client
from halfmq.cli.requests import ask
from halfmq.client.admin import queue_bounds
from halfmq.errors import TopicNotFound
from halfmq.model.address import Address, ServerUrl
from halfmq.wire.remoting.codes import RequestCode
from tests.documents.pages import ROOT
from tests.support.served import Served
from tests.support.waiting import PATIENCE_S, soon, until
from tests.systems.order_services import BANK, SERVICES, SHOP, STOCK, TOPICS, Config, Database, Order, Story
from tests.unit.sql.faces import Driver, located

#: States of shop, stock and bank that agree.
PAID = ("paid", "reserved", "paid")
NO_CARD = ("cancelled", "released", "refused")
NO_GOODS = ("cancelled", None, None)
AGREED = (PAID, NO_CARD, NO_GOODS)
#: Answers of the second service of a cancelled order.
MESSAGES = (*TOPICS, "released")


class System:
    """One system on one broker. ``config``: see there."""

    def __init__(self, config: Config, log: Path, port: int) -> None:
        self.config = config
        self.story = Story(config.story)
        self.orders: set[int] = set()
        #: The orders that were placed last; the others agree.
        self._latest: set[int] = set()
        self._log = log
        self.databases = {name: Database(name, config.urls[name], config.way) for name in SERVICES}
        for database in self.databases.values():
            database.create()
        for topic in map(config.topic, MESSAGES):
            fields = {"topic": topic, "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
            answer = ask(
                ServerUrl((Address("127.0.0.1", port),)), RequestCode.UPDATE_AND_CREATE_TOPIC, fields, PATIENCE_S
            )
            assert answer.code == 0, answer

    @contextlib.contextmanager
    def running(self, file: Path) -> Iterator["subprocess.Popen[bytes]"]:
        """The services, which are started again after each kill."""
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.systems.order_services", self.config.write(file)],
                cwd=ROOT, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, stdin=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        assert process.stdin is not None
        try:
            yield process
            assert process.poll() is None, self._end_of_log()
        finally:
            process.stdin.close()
            process.wait()
            for database in self.databases.values():
                database.engine.dispose()

    def place(self, orders: Collection[Order]) -> None:
        """Each with its message, in a transaction."""
        shop = self.databases[SHOP]
        self._latest = {order.id for order in orders}
        self.orders |= self._latest
        with Client(self.config.broker, group=f"{self.config.name}-{SHOP}") as mq:
            for order in orders:
                with Session(shop.engine) as session:
                    row, topic = insert(shop.parts).values(id=order.id, state="placed"), self.config.topic("placed")
                    if shop.markers is None:
                        assert shop.outbox is not None
                        session.execute(row)
                        shop.outbox.send(session, topic, order, sharding_key=order.id)
                        session.commit()
                        continue
                    with mq.transaction(
                        session, markers=shop.markers, outbox=shop.outbox, checked_elsewhere=True
                    ) as tx:
                        session.execute(row)
                        tx.send(topic, order, sharding_key=order.id)

    def states(self, orders: Collection[int] = ()) -> dict[int, tuple[str | None, ...]]:
        """Of each order, or of these: at shop, stock and bank."""
        orders = orders or self.orders
        of_each = [self.databases[name].states(min(orders)) for name in (SHOP, STOCK, BANK)]
        return {order: tuple(states.get(order) for states in of_each) for order in orders}

    def agreed(self) -> bool:
        return all(state in AGREED for state in self.states(self._latest).values())

    async def agree(self, process: "subprocess.Popen[bytes]", seconds: float = 4 * PATIENCE_S) -> None:
        """Wait until they do."""

        def ended() -> str:
            return f"the services ended: {self._end_of_log()}" if process.poll() is not None else ""

        try:
            await until(self.agreed, "shop, stock and bank agree", seconds, unless=ended)
        except AssertionError as error:
            wrong = {order: at for order, at in self.states(self._latest).items() if at not in AGREED}
            story = [line for line in self.story.lines() if int(line[1]) in wrong]
            raise AssertionError(f"{error}\n{wrong}\n{story}\n{self._end_of_log()}") from None

    def _end_of_log(self) -> str:
        return self._log.read_text()[-3000:]

    def errors(self) -> str:
        """What the services have logged, without the frames of tracebacks."""
        return "\n".join(line for line in self._log.read_text().splitlines() if line[:1].strip())

    async def each_message_is_there_once(self) -> None:
        """What consumers see is what the final states say."""
        states = self.states()
        of_each = {
            "placed": {*states},
            "reserved": {order for order, at in states.items() if at != NO_GOODS},
            "paid": {order for order, at in states.items() if at == PAID},
            "failed": {order for order, at in states.items() if at != PAID},
            "released": {order for order, at in states.items() if at != PAID},
        }
        await until(lambda: self._stored(sum(map(len, of_each.values()))), "all messages are visible")
        assert await self.dead_letters() == 0, "each message was handled or compensated"
        assert await self.seen() == {name: Counter(dict.fromkeys(orders, 1)) for name, orders in of_each.items()}

    async def dead_letters(self) -> int:
        """Of all services."""
        found = 0
        async with AsyncClient(self.config.broker) as client:
            for name in SERVICES:
                with contextlib.suppress(TopicNotFound):
                    bounds = await queue_bounds(client, f"%DLQ%{self.config.name}-{name}")
                    found += sum(queue.end for queue in bounds.values())
        return found

    async def _stored(self, number: int) -> bool:
        async with AsyncClient(self.config.broker) as client:
            return sum(await self._ends(client)) >= number

    async def _ends(self, client: AsyncClient) -> list[int]:
        bounds = [await queue_bounds(client, self.config.topic(name)) for name in MESSAGES]
        return [queue.end for queues in bounds for queue in queues.values()]

    async def seen(self) -> dict[str, Counter[int]]:
        """Topic -> order -> how many messages are visible."""
        topics = {self.config.topic(name): name for name in MESSAGES}
        found: dict[str, Counter[int]] = {name: Counter() for name in MESSAGES}
        async with AsyncClient(self.config.broker) as client:
            wanted = sum(await self._ends(client))
            async with client.consumer(list(topics), group=f"{self.config.name}-reads") as messages:
                for _ in range(wanted):
                    message = await soon(anext(messages))
                    message.ack()
                    found[topics[message.topic]][message.json()[0]] += 1
        return found


def system_on(
    request: pytest.FixtureRequest, driver: Driver, broker: Served, directory: Path, way: str, **options: object
) -> System:
    """``options``: further fields of ``Config``."""
    where, database = located(request, driver, directory)
    urls = {}
    if driver.database == "sqlite":
        for service in SERVICES:
            (directory / service).mkdir()
            urls[service] = driver.url.format(where=directory / service, name="")
    else:
        engine = create_engine(driver.url.format(where=where, name=database), isolation_level="AUTOCOMMIT")
        prefix = f"s{uuid.uuid4().hex[:12]}"  # a fixture's database may have the name of an earlier test's
        with engine.connect() as connection:
            for service in SERVICES:
                connection.execute(text(f"CREATE DATABASE {prefix}_{service}"))
                urls[service] = driver.url.format(where=where, name=f"{prefix}_{service}")
        engine.dispose()
    name = f"{driver.name}-{way}-{directory.name}"[-60:]
    fields = {"faults": {}, "chance": 0.0, "seed": "", "concurrency": 16, **options}
    config = Config(broker.url, name, way, urls, str(directory / "story"), **fields)  # type: ignore[arg-type]
    return System(config, directory / "services.log", broker.port)
