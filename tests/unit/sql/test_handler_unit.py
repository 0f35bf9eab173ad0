"""A handler's inbox row, rows and messages are one unit: in virtual time, with an outbox on SQLite. On each driver:
``test_handler_that_sends``.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine, insert, select
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import StaticPool
from tests.support.scripted_broker import ScriptedBroker
from tests.support.virtual_time import in_virtual_time
from tests.unit.client.test_app import app_of, with_keys

from halfmq import Message
from halfmq.model import properties
from halfmq.sql import Inbox, Outbox


class Bank:
    """Pays for each message, and says so."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        metadata = MetaData()
        self.paid = Table("paid", metadata, Column("id", Integer, primary_key=True), Column("order_id", Integer))
        self.inbox, self.outbox = Inbox(metadata), Outbox(metadata)
        metadata.create_all(engine)
        #: Ids of the messages of each call: of the handler, of ``on_dead``.
        self.calls: list[str] = []
        self.dead: list[str] = []
        #: How many of the next calls of the handler raise after they have sent.
        self.fail = 0

    async def run(self, broker: ScriptedBroker, **options: Any) -> None:
        app = app_of(broker.network(), sessions=sessionmaker(self.engine))

        def on_dead(message: Message, _session: Session, _tx: Any) -> None:
            self.dead.append(message.message_id)
            message.compensate("failed", message.body)

        @app.consumer("t", group="bank", inbox=self.inbox, outbox=self.outbox, on_dead=on_dead, **options)
        def pay(message: Message, session: Session, tx: Any) -> None:
            self.calls.append(message.message_id)
            session.execute(insert(self.paid).values(order_id=int(message.text()[1:])))
            tx.send("paid", message.body)
            if self.fail:
                self.fail -= 1
                raise RuntimeError("after it has sent")

        async with app.run():
            await asyncio.sleep(60)

    def found(self) -> tuple[list[int], list[tuple[str, str]]]:
        """Rows, and messages: topic, and the id of the message that it compensates."""
        rows = self.outbox.table.c
        with self.engine.connect() as connection:
            sent = [
                (topic, (properties.find(text, properties.HMQ_COMPENSATES) or b"").decode())
                for topic, text in connection.execute(select(rows.topic, rows.properties).order_by(rows.seq))
            ]
            return list(connection.scalars(select(self.paid.c.order_id))), sent


@pytest.fixture
def bank() -> Iterator[Bank]:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    yield Bank(engine)
    engine.dispose()


@in_virtual_time
async def test_a_message_that_comes_again_is_acknowledged_and_not_handled(bank: Bank) -> None:
    broker = with_keys("a1")
    broker.append("t", 0, b"a1", broker.logs["t", 0][0].properties)
    await bank.run(broker)
    assert bank.found() == ([1], [("paid", "")])
    assert broker.offsets["bank", "t", 0] == 2


@in_virtual_time
async def test_nothing_of_a_handler_that_failed_is_left(bank: Bank) -> None:
    bank.fail = 2
    await bank.run(with_keys("a1"), retries=2)
    assert (bank.calls, bank.dead) == (["a1"] * 3, [])
    assert bank.found() == ([1], [("paid", "")])


@in_virtual_time
async def test_a_compensation_names_its_message_and_nothing_of_the_handler_is_left(bank: Bank) -> None:
    bank.fail = 2
    await bank.run(with_keys("a1"), retries=1)
    assert bank.found() == ([], [("failed", "a1")])


@in_virtual_time
async def test_a_handler_whose_commit_was_not_answered_is_not_compensated(bank: Bank) -> None:
    """The last call of the handler has committed, and nobody knows: ``on_dead`` finds the inbox row."""
    dialect = bank.engine.dialect
    real = dialect.do_commit

    def commit(connection: Any) -> None:
        real(connection)
        if bank.calls and not commits:
            commits.append(connection)
            raise OSError("the answer was lost")

    commits: list[object] = []
    dialect.do_commit = commit  # type: ignore[method-assign]
    await bank.run(with_keys("a1"), retries=0)
    assert commits
    assert bank.dead == []
    assert bank.found() == ([1], [("paid", "")])
