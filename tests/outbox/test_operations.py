"""What people and the application do with the rows of an outbox: on each database and driver."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, MetaData, delete, event, update
from sqlalchemy.orm import Session

from halfmq.errors import UnsupportedCombination, UsageError
from halfmq.relay.publisher import Published
from halfmq.sql import Outbox
from halfmq.sql.alchemy.database import Database
from halfmq.sql.alchemy.outbox_operations import Changed, Which
from halfmq.sql.alchemy.outbox_relay import EngineRows
from halfmq.sql.rules.marker import PRUNE_ROWS_MAX
from halfmq.sql.rules.outbox import Delivery
from tests.outbox.conftest import Shelf, all_of, bodies
from tests.outbox.test_rows import drain
from tests.support.waiting import PATIENCE_S, soon, until
from tests.unit.sql.faces import DRIVERS, on

pytestmark = pytest.mark.usefixtures("only_passed_time")

BLOCKING = [on(driver) for driver in DRIVERS if not driver.is_async]


async def run(shelf: Shelf, function: Callable[..., Any], *arguments: Any) -> Any:
    """One transaction, as a command does it: through the driver of the relay, in a thread, since an asynchronous one gets a loop of its
    own.
    """
    database = Database(shelf.new_engine())
    return await asyncio.to_thread(database.run, lambda connection: function(connection, *arguments))


async def refuse(shelf: Shelf, rows: EngineRows, *wanted: str) -> None:
    """Publish what is due, but of the bodies in ``wanted`` the target refuses the first one that comes."""
    while (work := await rows.claim()) is not None:
        refused = {m.seq: f"no {m.body.decode()}" for m in work.batch.messages if m.body.decode() in wanted}
        first = min(refused, default=None)
        confirmed = frozenset(m.seq for m in work.batch.messages if first is None or m.seq < first or not m.order_key)
        refused = {first: refused[first]} if first is not None else {}
        await rows.finish(work, Published(confirmed - refused.keys(), refused), goes_on=False)


# --- held messages


async def test_a_held_message_is_in_no_batch_and_stops_nothing(shelf: Shelf) -> None:
    with Session(shelf.engine) as session, session.begin():
        shelf.outbox.send(session, "t", "held", sharding_key="k", hold=True)
        shelf.outbox.send(session, "t", "free", sharding_key="k")
    assert await drain(shelf) == [["free"]]
    assert shelf.states() == {"held": "H"}
    figures = await (await shelf.rows()).figures()
    assert (figures.rows, figures.wanted, figures.waiting, figures.oldest_s) == ({"H": 1}, 0, 0, None)


async def test_a_held_message_is_published_after_its_confirmation(shelf: Shelf) -> None:
    with Session(shelf.engine) as session, session.begin():
        message_id = shelf.outbox.send(session, "t", "held", sharding_key="k", hold=True)
    with Session(shelf.engine) as session:
        assert shelf.outbox.confirm(session, message_id)
        session.rollback()
    assert await drain(shelf) == [], "the transaction of the confirmation did not commit"
    with Session(shelf.engine) as session, session.begin():
        assert shelf.outbox.confirm(session, message_id)
        assert not shelf.outbox.confirm(session, message_id), "once"
        assert not shelf.outbox.withdraw(session, message_id), "too late"
    shelf.send("k")
    assert await drain(shelf) == [["held", "1"]]
    with Session(shelf.engine) as session, session.begin():
        assert not shelf.outbox.confirm(session, message_id), "it does not exist any more"


async def test_a_withdrawn_message_is_never_published(shelf: Shelf) -> None:
    with Session(shelf.engine) as session, session.begin():
        message_id = shelf.outbox.send(session, "t", "held", hold=True)
        assert shelf.outbox.withdraw(session, message_id), "also in the transaction that wrote it"
        assert not shelf.outbox.confirm(session, message_id)
    assert await drain(shelf) == []
    table = shelf.outbox.table
    with shelf.engine.connect() as connection:
        row = connection.execute(table.select()).one()
    assert (row.delivery, row.outcome, row.attempts) == ("X", "R", 0)


async def test_a_held_message_on_an_asynchronous_session_and_on_a_connection(shelf: Shelf) -> None:
    with shelf.engine.begin() as connection:
        ids = [shelf.outbox.send(connection, "t", body, hold=True) for body in ("one", "two")]
    engine = shelf.new_engine()
    if isinstance(engine, Engine):
        with engine.begin() as connection:
            assert shelf.outbox.confirm(connection, ids[0])
            assert shelf.outbox.withdraw(connection, ids[1])
    else:
        from sqlalchemy.ext.asyncio import AsyncSession

        async with AsyncSession(engine) as session, session.begin():
            assert await session.run_sync(shelf.outbox.confirm, ids[0])
            assert await session.run_sync(shelf.outbox.withdraw, ids[1])
            with pytest.raises(UsageError, match="run_sync"):
                shelf.outbox.confirm(session, ids[0])  # type: ignore[arg-type]
    assert shelf.states() == {"one": "W", "two": "X"}


async def test_a_held_message_has_no_delay(shelf: Shelf) -> None:
    with Session(shelf.engine) as session, pytest.raises(UnsupportedCombination):
        shelf.outbox.send(session, "t", "x", hold=True, delay=1)
    assert shelf.states() == {}


@pytest.mark.parametrize(
    "shelf", [on(driver) for driver in DRIVERS if driver.name in ("psycopg", "asyncpg")], indirect=True
)
async def test_a_relay_is_told_of_what_becomes_due_by_a_change(shelf: Shelf) -> None:
    with Session(shelf.engine) as session, session.begin():
        first, second = [shelf.outbox.send(session, "t", body, hold=True) for body in ("one", "two")]
    told = asyncio.Event()
    async with (await shelf.rows()).listening(told.set) as is_told:
        assert is_told
        await soon(told.wait())  # for what was there before

        async def is_told_by(change: Callable[[], Any]) -> None:
            told.clear()
            await asyncio.to_thread(change)
            await soon(told.wait())

        def confirm() -> None:
            with Session(shelf.engine) as session, session.begin():
                assert shelf.outbox.confirm(session, first)

        def retry() -> None:
            with shelf.engine.begin() as connection:
                assert shelf.outbox.operations.retry(connection, Which(second)).message_ids == [second]

        await is_told_by(confirm)
        with shelf.engine.begin() as connection:
            table = shelf.outbox.table
            connection.execute(update(table).where(table.c.message_id == second).values(delivery="A"))
        await is_told_by(retry)


@pytest.mark.parametrize("shelf", [on(driver) for driver in DRIVERS if driver.name == "psycopg"], indirect=True)
async def test_a_change_wakes_the_relays_of_its_own_outbox(shelf: Shelf) -> None:
    """Of several in one database, over one engine: SQLAlchemy keeps the text of a statement for the next one that looks the same."""
    second = Outbox(metadata := MetaData(), "second")
    metadata.create_all(shelf.engine)
    with shelf.engine.connect() as listener:
        for outbox in (shelf.outbox, second):
            listener.exec_driver_sql(f"LISTEN {outbox.table.name}")
        listener.commit()
        driver: Any = listener.connection.driver_connection
        for outbox in (shelf.outbox, second):
            with Session(shelf.engine) as session, session.begin():
                message_id = outbox.send(session, "t", "x")
                session.flush()
                session.execute(update(outbox.table).values(delivery="A"))
            assert [one.channel for one in driver.notifies(timeout=1, stop_after=1)] == [outbox.table.name]
            with shelf.engine.begin() as connection:
                outbox.operations.retry(connection, Which(message_id))
            assert [one.channel for one in driver.notifies(timeout=1, stop_after=1)] == [outbox.table.name]


# --- operators


async def test_a_message_that_is_retried_comes_before_those_that_waited_for_it(shelf: Shelf) -> None:
    shelf.send("k", "k", "k")
    await refuse(shelf, await shelf.rows(attempts_max=1), "1")
    shelf.send("k")
    assert await drain(shelf) == []
    assert shelf.states() == {"1": "A", "2": "B", "3": "B", "4": "B"} or shelf.states()["1"] == "A"
    changed: Changed = await run(shelf, shelf.outbox.operations.retry, Which(order_key="k"))
    assert len(changed.message_ids) == 1
    assert shelf.states() == {"1": "W", "2": "W", "3": "W", "4": "W"}
    assert await drain(shelf) == [["1", "2", "3", "4"]]


@pytest.mark.parametrize("shelf", [on(DRIVERS[0])], indirect=True)
async def test_a_key_whose_refused_message_somebody_has_deleted_is_freed_by_a_retry(shelf: Shelf) -> None:
    shelf.send("k", "k", "k")
    await refuse(shelf, await shelf.rows(), "1")
    assert await drain(shelf) == []
    table = shelf.outbox.table
    with shelf.engine.begin() as connection:
        connection.execute(delete(table).where(table.c.delivery == "R"))
    assert await drain(shelf) == [], "nobody noticed"
    changed = await run(shelf, shelf.outbox.operations.retry, Which(order_key="k"))
    assert len(changed.message_ids) == 2
    assert await drain(shelf) == [["2", "3"]]
    assert (await run(shelf, shelf.outbox.operations.retry, Which(order_key="k"))).message_ids == []


async def test_a_retried_message_has_all_its_attempts_again(shelf: Shelf) -> None:
    (message_id,) = shelf.send("k")
    rows = await shelf.rows(attempts_max=2)
    for _ in range(2):
        shelf.pass_time()
        await refuse(shelf, rows, "1")
    assert shelf.states() == {"1": "A"}
    await run(shelf, shelf.outbox.operations.retry, Which(message_id))
    await refuse(shelf, rows, "1")
    assert shelf.states() == {"1": "R"}


async def test_a_skipped_message_frees_its_key_and_says_who_and_why(shelf: Shelf) -> None:
    (message_id, _, _) = shelf.send("k", "k", "other")
    await refuse(shelf, await shelf.rows(attempts_max=1), "1")
    assert shelf.states() == {"1": "A", "2": "B"} or shelf.states() == {"1": "A", "2": "W"}
    assert await run(shelf, shelf.outbox.operations.count, Which(message_id)) == 1
    await run(shelf, shelf.outbox.operations.skip, Which(message_id), "ada", "paid by hand")
    assert await drain(shelf) == [["2"]]
    (row,) = await run(shelf, shelf.outbox.operations.listed, [Delivery.SKIPPED], 10)
    assert (row.message_id, row.reason) == (message_id, "skipped by ada: paid by hand: no 1")


async def test_all_that_are_set_aside(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halfmq.sql.alchemy.outbox_operations.PAGE", 2)
    keys = [f"k{number}" for number in range(5)]
    shelf.send(*keys, "waits")
    rows = await shelf.rows(attempts_max=1)
    await refuse(shelf, rows, "1", "2", "3", "4", "5")
    shelf.send("held back")
    pages, after = [], 0
    while True:
        changed = await run(shelf, shelf.outbox.operations.skip, Which(), "ada", "", after)
        pages.append(len(changed.message_ids))
        after = changed.after_seq
        if not after:
            break
    assert pages == [2, 2, 1]
    assert shelf.states() == {**{str(number): "X" for number in range(1, 6)}, "7": "W"}


async def test_what_cannot_be_changed_is_left_alone_with_a_reason(shelf: Shelf) -> None:
    (waiting,) = shelf.send("a")
    (published,) = shelf.send("b")
    rows = await shelf.rows(archives=True)
    with shelf.engine.begin() as connection:
        table = shelf.outbox.table
        connection.execute(update(table).where(table.c.message_id == published).values(delivery="P"))
    changed: Changed = await run(shelf, shelf.outbox.operations.retry, Which(waiting))
    assert (changed.message_ids, changed.refused) == ([], {waiting: "its state is waiting"})
    changed = await run(shelf, shelf.outbox.operations.skip, Which(published), "ada", "")
    assert changed.refused == {published: "its state is published"}
    assert (await run(shelf, shelf.outbox.operations.skip, Which("never"), "ada", "")) == Changed([], {}, 0)
    work = await rows.claim()
    assert bodies(work) == ["1"]
    assert work is not None
    changed = await run(shelf, shelf.outbox.operations.skip, Which(waiting), "ada", "")
    assert changed.message_ids == []
    assert "is being published by" in changed.refused[waiting]
    await rows.finish(work, Published(frozenset()), goes_on=False)
    assert (await run(shelf, shelf.outbox.operations.skip, Which(waiting), "ada", "")).message_ids == [waiting]
    assert shelf.states() == {"1": "X", "2": "P"}


@pytest.mark.parametrize("shelf", BLOCKING, indirect=True)
async def test_a_row_does_not_get_behind_one_that_is_being_skipped(shelf: Shelf) -> None:
    """The relay has seen that the key is stopped, and puts a new row behind: meanwhile the operator skips what stops it."""
    shelf.send("k")
    rows = await shelf.rows(attempts_max=1)
    await refuse(shelf, rows, "1")
    shelf.send("k")
    engine = rows._engine
    assert isinstance(engine, Engine)
    at_update, go_on = threading.Event(), threading.Event()

    def before(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("UPDATE mq_outbox SET delivery") and not at_update.is_set():
            at_update.set()
            assert go_on.wait(PATIENCE_S)

    event.listen(engine, "before_cursor_execute", before)
    claiming = asyncio.create_task(rows.claim())
    await until(at_update.is_set, "the relay puts the row behind", unless=lambda: claiming.done() and "it is done")
    locking = threading.Event()
    operator = shelf.new_engine()
    assert isinstance(operator, Engine)
    database = Database(operator)

    def skip(connection: Connection) -> Changed:
        event.listen(operator, "before_cursor_execute", lambda *_: locking.set())
        return shelf.outbox.operations.skip(connection, Which(order_key="k"), "ada", "")

    skipping = asyncio.create_task(asyncio.to_thread(database.run, skip))
    await asyncio.to_thread(locking.wait, PATIENCE_S)
    through_s = 0.3
    done, _ = await asyncio.wait({skipping}, timeout=through_s)  # real time: by then it is through, if it does not wait
    go_on.set()
    await claiming
    assert len((await skipping).message_ids) == 1
    assert not done, "it waits for the lane"
    assert await drain(shelf) == [["2"]], "and frees what has got behind meanwhile"


async def test_status_says_who_holds_which_lane(shelf: Shelf) -> None:
    shelf.send("k", "k")
    shelf.send("d", delay=3600)
    with Session(shelf.engine) as session, session.begin():
        shelf.outbox.send(session, "t", "held", hold=True)
    rows = await shelf.rows(lease_s=60.0)
    work = await rows.claim()
    assert work is not None
    status = await run(shelf, shelf.outbox.operations.status)
    assert status.figures.rows == {"W": 2, "S": 1, "H": 1}
    assert (status.figures.wanted, status.figures.waiting) == (2, 2)
    assert status.figures.oldest_s is not None
    (lane,) = status.lanes
    assert (lane.lane, lane.messages, ":" in lane.holder) == (work.lease.lane, 2, True)
    assert 0 < lane.lease_s <= 60
    shelf.end_leases()
    (lane,) = (await run(shelf, shelf.outbox.operations.status)).lanes
    assert lane.lease_s < 0, "its batch is still recorded"
    await rows.finish(work, all_of(work), goes_on=False)
    assert (await run(shelf, shelf.outbox.operations.status)).lanes == []
    shelf.pass_time()
    assert (await rows.figures()).wanted == 1, "the delayed one is due"


# --- pruning


async def test_only_old_rows_that_are_over_are_pruned(shelf: Shelf) -> None:
    shelf.send("k", "k")
    assert await drain(shelf, archives=True) == [["1", "2"]]
    with Session(shelf.engine) as session, session.begin():
        withdrawn = shelf.outbox.send(session, "t", "withdrawn", hold=True)
        assert shelf.outbox.withdraw(session, withdrawn)
        shelf.outbox.send(session, "t", "held", hold=True)
    shelf.send("waits")
    shelf.send("set aside")
    await refuse(shelf, await shelf.rows(attempts_max=1, skips=True), "4")
    assert shelf.states() == {"1": "P", "2": "P", "withdrawn": "X", "held": "H", "4": "X"}
    table = shelf.outbox.table
    with shelf.engine.begin() as connection:
        connection.execute(update(table).values(written_at_ms=1))
        connection.execute(update(table).where(table.c.body == b"1").values(due_at_ms=1))
    with Session(shelf.engine) as session, session.begin():
        assert shelf.outbox.prune(session, older_than_s=3600) == 1, "the others are over since a moment ago"
    assert sorted(shelf.states()) == ["2", "4", "held", "withdrawn"]
    with shelf.engine.begin() as connection:
        connection.execute(update(table).where(table.c.delivery != "H").values(due_at_ms=1))
    with Session(shelf.engine) as session, session.begin():
        assert shelf.outbox.prune(session, older_than_s=3600) == 3
        assert shelf.outbox.prune(session, older_than_s=0) == 0
        with pytest.raises(UsageError):
            shelf.outbox.prune(session, older_than_s=-1)
    assert shelf.states() == {"held": "H"}


@pytest.mark.parametrize("shelf", [on(DRIVERS[0])], indirect=True)
async def test_what_is_not_over_is_never_pruned(shelf: Shelf) -> None:
    shelf.send("k", "k")
    await refuse(shelf, await shelf.rows(attempts_max=1), "1")
    shelf.send("k")
    assert await drain(shelf) == []
    shelf.send("r")
    await refuse(shelf, await shelf.rows(), "4")
    shelf.send("w")
    shelf.send("d", delay=3600)
    with Session(shelf.engine) as session, session.begin():
        shelf.outbox.send(session, "t", "held", hold=True)
    there = {"1": "A", "2": "B", "3": "B", "4": "R", "5": "W", "6": "S", "held": "H"}
    assert shelf.states() == there
    table = shelf.outbox.table
    with shelf.engine.begin() as connection:
        connection.execute(update(table).values(written_at_ms=1, due_at_ms=1))
    with Session(shelf.engine) as session, session.begin():
        assert shelf.outbox.prune(session, older_than_s=0) == 0
    assert shelf.states() == there


async def test_pruning_goes_by_a_thousand(shelf: Shelf) -> None:
    shelf.send(*[""] * (PRUNE_ROWS_MAX + 5))
    table = shelf.outbox.table
    with shelf.engine.begin() as connection:
        connection.execute(update(table).values(delivery="P", due_at_ms=1))
    with Session(shelf.engine) as session:
        found = []
        while number := shelf.outbox.prune(session, older_than_s=1):
            session.commit()
            found.append(number)
    assert found == [PRUNE_ROWS_MAX, 5]
