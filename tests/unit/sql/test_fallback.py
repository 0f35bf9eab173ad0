"""Blocks with an outbox, on every driver and face: what the broker does not take is in the outbox, once, and never visible as well."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData, create_engine, event, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from tests.unit.sql.faces import ASYNC, DEFERRED, App, app, place

from halfmq.client.outcome import Outcome
from halfmq.client.receipts import OUTBOX
from halfmq.errors import ConnectError, RequestFailed, SendTimeout, ServerBusy, UsageError
from halfmq.sql import Outbox

__all__ = ["app"]


def raising(error: Exception) -> Callable[[str], None]:
    def on_prepare(_tx_id: str) -> None:
        raise error

    return on_prepare


@pytest.mark.parametrize("error", [ConnectError("away"), SendTimeout("no answer"), ServerBusy("disk full")])
async def test_what_the_broker_does_not_take_is_in_the_outbox(app: App, error: Exception) -> None:
    app.broker.on_prepare = raising(error)  # the halves are stored nevertheless

    def body(session: Session, tx: object) -> None:
        place(app, session, tx, 1)
        place(app, session, tx, 2)

    tx = await app.run(body, outbox=app.outbox)
    assert app.order_ids() == [1, 2]
    assert tx.receipt.path == OUTBOX
    ids = [message.message_id for message in app.broker.transactions[tx.id].messages]
    assert list(tx.receipt.message_ids) == ids
    assert app.in_outbox() == [("t1", ids[0], tx.receipt.tx_id), ("t2", ids[1], tx.receipt.tx_id)]
    assert tx.receipt.tx_id != tx.id, "the half messages have another transaction, which is rolled back"
    assert app.markers() == {tx.id: "R"}
    assert await app.check() == {tx.id: Outcome.ROLLBACK}
    assert app.messages() == []


async def test_it_is_said_once_that_messages_wait_for_a_relay(app: App, caplog: pytest.LogCaptureFixture) -> None:
    app.broker.on_prepare = raising(ConnectError("nobody answers", hint="nothing was done"))
    for order_id in (1, 2, 3):
        await app.run(lambda session, tx, order_id=order_id: place(app, session, tx, order_id), outbox=app.outbox)
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert said == [
        "the broker does not take messages, so they go to the outbox mq_outbox, and need a relay: nobody answers "
        "(transactions since this was last said: 1)"
    ]


async def test_with_a_broker_that_answers_the_outbox_stays_empty(app: App) -> None:
    tx = await app.run(lambda session, tx: place(app, session, tx, 1), outbox=app.outbox)
    assert app.in_outbox() == []
    assert tx.receipt.path == "half messages"
    assert app.messages() == ["t1"]
    assert [message.message_id for message in app.broker.visible()] != [""], "the id was known before the prepare"


@pytest.mark.parametrize("app", ASYNC[:1], indirect=True)
@pytest.mark.parametrize("key", ["k" * 256, "a\0b"])
async def test_what_the_outbox_could_not_take_is_refused_while_the_broker_answers_too(app: App, key: str) -> None:
    def body(_session: Session, tx: Any) -> None:
        tx.send("t", "x", sharding_key=key)

    with pytest.raises(UsageError, match="sharding key"):
        await app.run(body, outbox=app.outbox)
    assert app.messages() == []


async def test_after_a_rollback_to_a_savepoint(app: App) -> None:
    app.broker.on_prepare = raising(SendTimeout("no answer"))

    def body(session: Session, tx: object) -> None:
        place(app, session, tx, 1)
        savepoint = session.begin_nested()
        place(app, session, tx, 2)
        session.flush()
        savepoint.rollback()

    tx = await app.run(body, outbox=app.outbox)
    assert [topic for topic, _, _ in app.in_outbox()] == ["t1"]
    assert app.order_ids() == [1]
    assert await app.check() == {tx.id: Outcome.ROLLBACK}


async def test_a_refusal_for_good_is_raised(app: App) -> None:
    app.broker.on_prepare = raising(RequestFailed("too large", response_code=13))
    with pytest.raises(RequestFailed):
        await app.run(lambda session, tx: place(app, session, tx, 1), outbox=app.outbox)
    assert (app.order_ids(), app.in_outbox()) == ([], [])


@pytest.mark.parametrize("app", DEFERRED, indirect=True)
async def test_a_commit_that_fails_takes_the_outbox_with_it(app: App) -> None:
    app.broker.on_prepare = raising(SendTimeout("no answer"))

    def body(session: Session, tx: object) -> None:
        place(app, session, tx, 1)
        session.add(app.line_type(1, 99))  # no such order: refused at COMMIT

    with pytest.raises(IntegrityError):
        await app.run(body, outbox=app.outbox)
    assert (app.order_ids(), app.in_outbox()) == ([], [])
    assert set((await app.check()).values()) == {Outcome.ROLLBACK}


async def test_a_hook_at_commit_that_undoes_it_is_noticed(app: App) -> None:
    app.broker.on_prepare = raising(SendTimeout("no answer"))

    def scene(session: Session) -> None:
        with app.block(session, outbox=app.outbox) as tx:
            place(app, session, tx, 1)
            event.listen(session, "before_commit", lambda _: session.execute(text("DELETE FROM mq_tx")))

    with pytest.raises(UsageError):
        await app.play(scene)
    assert (app.order_ids(), app.in_outbox()) == ([], [])


@pytest.mark.parametrize("app", ASYNC, indirect=True)
async def test_cancelled_while_it_waits_for_the_broker(app: App) -> None:
    def on_prepare(_tx_id: str) -> None:
        raise asyncio.CancelledError

    app.broker.on_prepare = on_prepare
    with pytest.raises(asyncio.CancelledError):
        await app.run(lambda session, tx: place(app, session, tx, 1), outbox=app.outbox)
    assert (app.order_ids(), app.in_outbox()) == ([], [])


async def test_an_outbox_in_another_database_is_refused(app: App, tmp_path: Path) -> None:
    metadata = MetaData()
    other = Outbox(metadata)
    elsewhere = create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    metadata.create_all(elsewhere)

    def scene(session: Session) -> None:
        session.bind_table(other.table, elsewhere)
        with app.block(session, outbox=other):
            pass

    with pytest.raises(UsageError, match="not in the database of the marker"):
        await app.play(scene)
    elsewhere.dispose()
