"""What a relay does in the database: on each database and driver."""

import asyncio
import logging
import time
from functools import partial

import pytest
from sqlalchemy import MetaData, create_engine, delete, select, text, update
from sqlalchemy.orm import Session

from halfmq.errors import InvalidName, UsageError
from halfmq.relay.halfmq import HalfmqPublisher
from halfmq.relay.publisher import Published
from halfmq.relay.rows import LeaseLost, Work
from halfmq.sql import Outbox
from halfmq.sql.alchemy.dialects import now_ms
from halfmq.sql.alchemy.outbox_relay import EngineRows
from halfmq.sql.alchemy.outbox_rows import MESSAGES_MAX
from halfmq.sql.rules.outbox import encode_seqs
from tests.outbox.conftest import Shelf, all_of, bodies, other_key_in_the_lane_of
from tests.support.waiting import soon
from tests.unit.sql.faces import DRIVERS, on

pytestmark = pytest.mark.usefixtures("only_passed_time")


async def drain(shelf: Shelf, **options: object) -> list[list[str]]:
    """Publish everything that is due. Returns the batches."""
    rows = await shelf.rows(**options)  # type: ignore[arg-type]
    found = []
    while (work := await rows.claim()) is not None:
        while work is not None:
            found.append(bodies(work))
            work = await rows.finish(work, all_of(work), goes_on=True)
    return found


async def test_a_batch_is_recorded_and_its_rows_go_with_the_confirmation(shelf: Shelf) -> None:
    shelf.send("k", "k", "k")
    rows = await shelf.rows(messages_max=2)
    work = await rows.claim()
    assert work is not None
    assert not work.is_unfinished
    assert bodies(work) == ["1", "2"]
    assert await rows.claim() is None, "the lane is held"
    following = await rows.finish(work, all_of(work), goes_on=True)
    assert following is not None
    assert bodies(following) == ["3"]
    assert following.batch.id != work.batch.id
    assert shelf.states() == {"3": "W"}
    assert await rows.finish(following, all_of(following), goes_on=True) is None
    assert shelf.states() == {}
    assert await rows.claim() is None


async def test_rows_of_a_transaction_that_rolled_back_do_not_exist(shelf: Shelf) -> None:
    with Session(shelf.engine) as session:
        shelf.outbox.send(session, "t", "gone")
        session.flush()
        session.rollback()
    with Session(shelf.engine) as session, session.begin():
        nested = session.begin_nested()
        shelf.outbox.send(session, "t", "gone with its savepoint")
        nested.rollback()
        shelf.outbox.send(session, "t", "stays")
    assert await drain(shelf) == [["stays"]]


@pytest.mark.parametrize("shelf", [on(driver) for driver in DRIVERS if not driver.is_async], indirect=True)
def test_a_connection_that_commits_each_statement_is_refused(shelf: Shelf) -> None:
    """The message would be there whatever becomes of the order."""
    engine = create_engine(shelf.url, isolation_level="AUTOCOMMIT")
    with Session(engine) as session:
        shelf.outbox.send(session, "t", "x")
        with pytest.raises(UsageError, match="autocommit"):
            session.flush()
    with engine.connect() as connection, pytest.raises(UsageError, match="autocommit"):
        shelf.outbox.send(connection, "t", "x")
    engine.dispose()
    assert shelf.states() == {}


async def test_a_lane_whose_lease_has_ended_is_taken_over_with_its_batch(shelf: Shelf) -> None:
    shelf.send("k", "k")
    first, second = await shelf.rows(messages_max=1), await shelf.rows()
    work = await first.claim()
    assert work is not None
    await first.renew(work.lease)
    shelf.end_leases()
    shelf.send("k")
    taken = await second.claim()
    assert taken is not None
    assert taken.is_unfinished
    assert taken.batch == work.batch, "exactly what the first relay may have published"
    with pytest.raises(LeaseLost):
        await first.finish(work, all_of(work), goes_on=True)
    with pytest.raises(LeaseLost):
        await first.renew(work.lease)
    assert shelf.states() == {"1": "W", "2": "W", "3": "W"}, "the first relay has changed nothing"
    # Nothing of it was published: it goes on with a batch of its own.
    following = await second.finish(taken, Published(frozenset()), goes_on=True)
    assert following is not None
    assert bodies(following) == ["1", "2", "3"]
    assert following.batch.id not in (work.batch.id, taken.batch.id)


async def test_the_clock_of_a_relay_decides_nothing(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.send("k", "k")
    right, wrong = await shelf.rows(messages_max=1), await shelf.rows(messages_max=1)

    async def claimed(rows: EngineRows, ahead_s: int) -> Work | None:
        with monkeypatch.context() as patched:
            if rows is wrong:
                wall_ns = time.time_ns
                patched.setattr(time, "time_ns", lambda: wall_ns() + ahead_s * 1_000_000_000)
                patched.setattr(time, "time", lambda: wall_ns() / 1_000_000_000 + ahead_s)
            return await rows.claim()

    for first, second, ahead_s in ((right, wrong, 3_600), (wrong, right, -3_600)):
        work = await claimed(first, ahead_s)
        assert work is not None
        assert await claimed(second, ahead_s) is None, "the lane is held"
        await first.finish(work, all_of(work), goes_on=False)


async def test_a_lane_that_is_held_cannot_be_claimed(shelf: Shelf) -> None:
    """Also by a relay that saw it free: between its look and its claim another one was faster."""
    shelf.send("k")
    first, second = await shelf.rows(), await shelf.rows()
    work = await first.claim()
    assert work is not None
    assert await second._run(partial(second._statements.claim, lane=work.lease.lane)) is None
    assert await first.finish(work, all_of(work), goes_on=True) is None


@pytest.mark.parametrize("shelf", [on(DRIVERS[0])], indirect=True)
async def test_lanes_that_somebody_has_deleted_are_there_again(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halfmq.sql.alchemy.outbox_relay._LANES_S", 0.0)
    rows = await shelf.rows()
    with shelf.engine.begin() as connection:
        for table in shelf.metadata.sorted_tables:  # as an application does between its tests
            connection.execute(delete(table))
    shelf.send("k")
    assert bodies(await rows.claim()) == ["1"]


async def test_one_relay_at_a_time_holds_a_key(shelf: Shelf) -> None:
    shelf.send(*["k"] * 5, *[f"k{number}" for number in range(40)])
    relays = [await shelf.rows(messages_max=2) for _ in range(3)]
    found = await asyncio.gather(*[relay.claim() for relay in relays for _ in range(4)])
    works = [work for work in found if work is not None]
    assert len(works) == len(found), "every one finds a lane"
    lanes = [work.lease.lane for work in works]
    assert len(set(lanes)) == len(lanes)


@pytest.mark.parametrize("shelf", [on(DRIVERS[0])], indirect=True)
async def test_the_clock_of_who_writes_decides_nothing_about_the_order(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.send("k", "k")
    with monkeypatch.context() as patched:
        patched.setattr(time, "time_ns", lambda: 1_000_000_000_000_000_000)  # years ago
        shelf.send("k")
    shelf.send("k")
    assert await drain(shelf) == [["1", "2", "3", "4"]]


async def test_a_refused_row_stops_its_key_and_no_other(shelf: Shelf) -> None:
    shelf.send("k", "k", "")
    rows = await shelf.rows(attempts_max=2)
    lane_of_k = {}
    while (work := await rows.claim()) is not None:
        by_body = {message.body.decode(): message.seq for message in work.batch.messages}
        if "1" in by_body:
            lane_of_k = by_body
            refused = Published(
                frozenset(set(by_body.values()) - {by_body["1"], by_body["2"]}), {by_body["1"]: "too large"}
            )
            await rows.finish(work, refused, goes_on=False)
        else:
            await rows.finish(work, all_of(work), goes_on=False)
    assert lane_of_k
    assert shelf.states() == {"1": "R", "2": "B"}, "the row without a key has gone, the second one waits"
    shelf.send("k")
    assert await rows.claim() is None, "it is not due, and the new row is behind it as well"
    assert shelf.states() == {"1": "R", "2": "B", "3": "B"} or shelf.states() == {"1": "R", "2": "B", "4": "B"}
    shelf.pass_time()
    work = await rows.claim()
    assert bodies(work) == ["1"], "alone: the others wait for it"
    assert work is not None
    following = await rows.finish(work, all_of(work), goes_on=True)
    assert bodies(following) == ["2", "4"]


@pytest.mark.parametrize("shelf", [on(DRIVERS[0])], indirect=True)
async def test_a_refused_row_stops_no_other_key_of_its_lane(shelf: Shelf) -> None:
    shelf.send("k", "k", other_key_in_the_lane_of("k"))
    rows = await shelf.rows()
    work = await rows.claim()
    assert work is not None
    following = await rows.finish(work, Published(frozenset(), {work.batch.messages[0].seq: "no"}), goes_on=True)
    assert bodies(following) == ["3"]
    assert shelf.states() == {"1": "R", "2": "B", "3": "W"}


@pytest.mark.parametrize(
    "shelf", [on(driver) for driver in DRIVERS if driver.name in ("sqlite3", "psycopg")], indirect=True
)
async def test_a_reason_that_no_column_takes_does_not_stop_the_lane(shelf: Shelf) -> None:
    shelf.send("bad")
    rows = await shelf.rows()
    work = await rows.claim()
    assert work is not None
    (message,) = work.batch.messages
    reason = f"a\0\ud800{'x' * 600}"
    assert await rows.finish(work, Published(frozenset(), {message.seq: reason}), goes_on=True) is None
    with shelf.engine.connect() as connection:
        kept = connection.scalar(select(shelf.outbox.table.c.reason))
    assert kept == (r"a\x00\ud800" + "x" * 600)[:500]


async def test_a_refused_row_stops_those_behind_its_batch_at_once(shelf: Shelf) -> None:
    shelf.send("k", "k")
    rows = await shelf.rows(messages_max=1)
    work = await rows.claim()
    assert work is not None
    refused = Published(frozenset(), {work.batch.messages[0].seq: "too large"})
    assert await rows.finish(work, refused, goes_on=True) is None
    assert shelf.states() == {"1": "R", "2": "B"}


async def test_a_row_is_set_aside_after_its_attempts(shelf: Shelf) -> None:
    shelf.send("k", "k")
    rows = await shelf.rows(attempts_max=3)
    for attempt in range(3):
        shelf.pass_time()
        work = await rows.claim()
        assert work is not None
        seq = work.batch.messages[0].seq
        await rows.finish(work, Published(frozenset(), {seq: f"no {attempt}"}), goes_on=False)
    shelf.pass_time()
    assert await rows.claim() is None
    assert shelf.states() == {"1": "A", "2": "B"}
    assert (await rows.figures()).rows == {"A": 1, "B": 1}


async def test_with_skip_the_key_goes_on(shelf: Shelf) -> None:
    shelf.send("k", "k")
    rows = await shelf.rows(attempts_max=1, skips=True)
    work = await rows.claim()
    assert work is not None
    following = await rows.finish(work, Published(frozenset(), {work.batch.messages[0].seq: "no"}), goes_on=True)
    assert bodies(following) == ["2"]
    assert shelf.states() == {"1": "X", "2": "W"}


async def test_a_target_that_is_away_costs_no_attempt(shelf: Shelf) -> None:
    shelf.send("k", "k")
    rows = await shelf.rows(attempts_max=1)
    work = await rows.claim()
    assert work is not None
    first = work.batch.messages[0].seq
    assert await rows.finish(work, Published(frozenset({first}), unavailable="away"), goes_on=True) is None
    assert shelf.states() == {"2": "W"}
    again = await rows.claim()
    assert again is not None, "the lane is free at once"
    assert again.is_unfinished
    assert again.batch.id == work.batch.id
    assert bodies(again) == ["2"]


async def test_a_batch_that_was_refused_as_a_whole_is_published_one_by_one(shelf: Shelf) -> None:
    shelf.send(*["k"] * 4)
    rows = await shelf.rows(messages_max=3)
    work = await rows.claim()
    assert work is not None
    found = []
    following = await rows.finish(work, Published(frozenset(), one_by_one=True), goes_on=True)
    while following is not None:
        found.append(bodies(following))
        following = await rows.finish(following, all_of(following), goes_on=True)
    assert found == [["1"], ["2"], ["3"], ["4"]]
    shelf.send(*["k"] * 3)
    assert await drain(shelf) == [["5", "6", "7"]], "later ones are together again"


async def test_a_delayed_message_waits_and_nothing_waits_for_it(shelf: Shelf) -> None:
    shelf.send("k", delay=3600)
    shelf.send("k")
    assert await drain(shelf) == [["2"]]
    shelf.pass_time()
    assert await drain(shelf) == [["1"]]


@pytest.mark.parametrize("shelf", [on(DRIVERS[0])], indirect=True)
async def test_a_long_backlog_of_a_stopped_key_is_put_behind_in_several_transactions(shelf: Shelf) -> None:
    shelf.send("k")
    rows = await shelf.rows(messages_max=5)
    work = await rows.claim()
    assert work is not None
    await rows.finish(work, Published(frozenset(), {work.batch.messages[0].seq: "no"}), goes_on=False)
    shelf.send(*["k"] * 250)
    shelf.send(other_key_in_the_lane_of("k"))
    looks = 0
    while (work := await rows.claim()) is None:
        looks += 1
    assert (looks, bodies(work)) == (2, ["252"])


@pytest.mark.parametrize("shelf", [on(DRIVERS[0])], indirect=True)
async def test_a_delayed_message_waits_for_a_refused_one_of_its_key(shelf: Shelf) -> None:
    shelf.send("k")
    shelf.send("k", delay=3600)
    rows = await shelf.rows()
    work = await rows.claim()
    assert work is not None
    assert await rows.finish(work, Published(frozenset(), {work.batch.messages[0].seq: "no"}), goes_on=True) is None
    table = shelf.outbox.table
    with shelf.engine.begin() as connection:
        connection.execute(update(table).where(table.c.delivery == "S").values(due_at_ms=1))
    assert await rows.claim() is None
    assert shelf.states() == {"1": "R", "2": "B"}
    shelf.pass_time()
    assert await drain(shelf) == [["1"], ["2"]]


@pytest.mark.parametrize("shelf", [on(driver) for driver in DRIVERS if driver.name == "pymysql"], indirect=True)
def test_the_clock_of_leases_knows_no_time_zone(shelf: Shelf) -> None:
    """A local time is there twice in the hour after summer time ends."""
    summer_time_ends_s = 1_792_890_000  # 2026-10-25T01:00Z, in Europe
    with shelf.engine.connect() as connection:
        for zone in ("SYSTEM", "+05:30", "-08:00"):
            connection.exec_driver_sql(f"SET time_zone = '{zone}'")
            for seconds in (summer_time_ends_s - 1_800, summer_time_ends_s + 1_800):
                connection.exec_driver_sql(f"SET timestamp = {seconds}.25")
                assert connection.scalar(select(now_ms())) == seconds * 1_000 + 250


@pytest.mark.parametrize("shelf", [on(driver) for driver in DRIVERS if driver.name == "pymysql"], indirect=True)
async def test_a_key_of_blanks_is_a_key(shelf: Shelf) -> None:
    """Where the database compares without trailing blanks."""
    shelf.send(" ", " ")
    rows = await shelf.rows(messages_max=1)
    work = await rows.claim()
    assert work is not None
    assert await rows.finish(work, Published(frozenset(), {work.batch.messages[0].seq: "no"}), goes_on=True) is None
    assert shelf.states() == {"1": "R", "2": "B"}


@pytest.mark.parametrize("shelf", [on(DRIVERS[0])], indirect=True)
async def test_a_delayed_message_that_is_due_has_an_age(shelf: Shelf) -> None:
    """It is counted as waiting, so it must not have the age of nothing."""
    rows = await shelf.rows()
    shelf.send("", delay=3600)
    assert (await rows.figures()).oldest_s is None
    shelf.pass_time()
    figures = await rows.figures()
    assert figures.waiting == 1
    assert figures.oldest_s is not None
    assert figures.oldest_s > 3600, "since it was due"


async def test_published_rows_are_kept_on_request(shelf: Shelf) -> None:
    shelf.send("k", "k")
    assert await drain(shelf, archives=True) == [["1", "2"]]
    assert shelf.states() == {"1": "P", "2": "P"}
    assert await drain(shelf, archives=True) == []


async def test_a_batch_has_a_limit_in_bytes(shelf: Shelf) -> None:
    with Session(shelf.engine) as session, session.begin():
        for number in range(5):
            shelf.outbox.send(session, "t", bytes([65 + number]) * (1 << 20), sharding_key="k")
    assert [[len(body) for body in batch] for batch in await drain(shelf)] == [[1 << 20] * 4, [1 << 20]]


@pytest.mark.parametrize("shelf", [on(DRIVERS[0])], indirect=True)
async def test_a_batch_has_a_limit_in_messages_whatever_the_target_takes(shelf: Shelf) -> None:
    shelf.send(*["k"] * (MESSAGES_MAX + 1))
    assert [len(batch) for batch in await drain(shelf, messages_max=100_000)] == [MESSAGES_MAX, 1]
    # The longest text that the numbers of a batch can be, and what MySQL and MariaDB take as TEXT.
    assert len(encode_seqs((1, (1 << 63) - 1) * (MESSAGES_MAX // 2))) < 1 << 16


async def test_large_and_small_bodies_of_one_batch_are_whole(shelf: Shelf) -> None:
    """Small ones are read with their rows, and larger ones afterwards."""
    wanted = [b"a", b"b" * (1 << 20), b"c", b"d" * 9_000]
    with Session(shelf.engine) as session, session.begin():
        for body in wanted:
            shelf.outbox.send(session, "t", body, sharding_key="k")
    work = await (await shelf.rows()).claim()
    assert work is not None
    assert [message.body for message in work.batch.messages] == wanted


async def test_a_message_is_whole_and_has_one_id_for_ever(shelf: Shelf) -> None:
    with Session(shelf.engine) as session, session.begin():
        message_id = shelf.outbox.send(
            session, "t", {"n": 1}, tag="web", keys=["a", "b"], sharding_key="ключ", properties={"colour": "grün"}
        )
        other_id = shelf.outbox.send(session, "t", b"\x00\xff")
    rows = await shelf.rows()
    found = {}
    while (work := await rows.claim()) is not None:
        found |= {message.message_id: message for message in work.batch.messages}
        await rows.finish(work, all_of(work), goes_on=False)
    message, other = found[message_id], found[other_id]
    assert message.body == b'{"n":1}'
    assert other.body == b"\x00\xff"
    assert message.order_key == "ключ"
    assert "grün".encode() in message.properties
    assert message.tx_id == other.tx_id, "one transaction"
    shelf.send("")
    work = await rows.claim()
    assert work is not None
    assert work.batch.messages[0].tx_id != message.tx_id


async def test_a_commit_wakes_a_relay_where_the_database_tells_of_it(shelf: Shelf) -> None:
    rows = await shelf.rows()
    woken = asyncio.Event()
    async with rows.listening(woken.set) as is_told:
        assert is_told == (shelf.driver.database == "postgresql")
        if not is_told:
            return
        await soon(woken.wait())  # it looks once when it begins to listen
        for _ in range(3):
            woken.clear()
            shelf.send("k")
            await soon(woken.wait())


@pytest.mark.parametrize("shelf", [on(driver) for driver in DRIVERS if driver.name == "psycopg"], indirect=True)
async def test_an_outbox_without_notifications(shelf: Shelf) -> None:
    quiet = Outbox(MetaData(), notify=False)
    rows = await shelf.rows()
    with Session(shelf.engine) as session, shelf.engine.connect() as listener:
        listener.exec_driver_sql("LISTEN mq_outbox")
        listener.commit()
        quiet.send(session, "t", "1")
        session.commit()
        driver = listener.connection.driver_connection
        assert driver is not None
        assert list(driver.notifies(timeout=0)) == []
    async with quiet.relay(rows._engine, HalfmqPublisher("rocketmq://127.0.0.1:1", group="g"))._rows.listening(
        lambda: None
    ) as told:
        assert not told


@pytest.mark.parametrize("shelf", [on(driver) for driver in DRIVERS if driver.database == "postgresql"], indirect=True)
async def test_a_lost_connection_is_opened_again_to_listen(
    shelf: Shelf, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("halfmq.sql.alchemy.notifications._AGAIN_S", 0.1)
    caplog.set_level(logging.INFO, "halfmq.relay")
    rows = await shelf.rows()
    woken = asyncio.Event()
    async with rows.listening(woken.set):
        await soon(woken.wait())
        woken.clear()
        with shelf.engine.begin() as connection:
            mine = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()"
            assert connection.execute(text(mine)).all()
        await soon(woken.wait())
        woken.clear()
        shelf.send("k")
        await soon(woken.wait())
        with shelf.engine.begin() as connection:
            connection.execute(text(mine))
        woken.clear()
        await soon(woken.wait())
        assert caplog.text.count("LISTEN ") == 1, "it is said once a minute"


@pytest.mark.parametrize("shelf", [on(DRIVERS[0])], indirect=True)
def test_a_sharding_key_that_keeps_no_order_is_refused(shelf: Shelf) -> None:
    with Session(shelf.engine) as session, session.begin():
        with pytest.raises(UsageError, match="sharding_key '' is empty"):
            shelf.outbox.send(session, "t", "1", sharding_key="")
        assert not session.new


@pytest.mark.parametrize("shelf", [on(DRIVERS[0])], indirect=True)
def test_topics_of_other_targets(shelf: Shelf) -> None:
    with pytest.raises(InvalidName, match="any_topic=True"):
        shelf.outbox.send(Session(), "orders.created", {})
    free = Outbox(MetaData(), any_topic=True)
    with Session(shelf.engine) as session, session.begin():
        free.send(session, "orders.created:ü", "1")
        with pytest.raises(InvalidName):
            shelf.outbox.send(session, "orders.created", "2")
        for wrong in ("", "x" * 256, "a\nb", None):
            with pytest.raises(InvalidName):
                free.send(session, wrong, "3")  # type: ignore[arg-type]
    with shelf.engine.connect() as connection:
        assert list(connection.scalars(select(free.table.c.topic))) == ["orders.created:ü"]
