"""Which table this is, and up to when its markers may be gone."""

import threading

import pytest
from sqlalchemy import Connection, Engine, MetaData, create_engine, delete, event, insert, select, update
from sqlalchemy.orm import Session
from tests.support.waiting import wait_until
from tests.unit.sql.conftest import Place, Shop, lose_marker, markers_of, write_marker
from tests.unit.sql.faces import App, app
from tests.unit.sql.memory_broker import Asked, MemoryBroker, MemoryClient

from halfmq.client.outcome import Outcome
from halfmq.errors import UsageError
from halfmq.model.properties import HMQ_TX_MARKER, to_dict
from halfmq.sql import MarkerTable
from halfmq.sql.alchemy.marker_rows import MarkerRows, wall_ms
from halfmq.sql.rules.table_identity import HORIZON, IDENTITY, RESERVED, Bounds, Origin

__all__ = ["app"]

HOUR_MS = 3_600_000
DAY_S = 86_400.0
#: An identity looks like this.
ONE = (1 << 62) + 7
NOON_MS = 1_790_000_000_000


# --- the rows ----------------------------------------------------------------------------------------------------


class LastRelease:
    """A table as an earlier release made it: no reserved rows."""

    def __init__(self, shop: Shop | App) -> None:
        with shop.engine.begin() as connection:
            connection.execute(delete(shop.log.table))


def bounds(engine: Engine, markers: MarkerRows) -> Bounds | None:
    with engine.connect() as connection:
        return markers.identity.read(connection)


def carried(broker: MemoryBroker, tx_id: str) -> str:
    return broker.asked(tx_id).marker


def order(shop: Shop, client: MemoryClient, session: Session) -> str:
    with shop.log.bind(client, session) as tx:
        tx.send("orders", b"x", tag="t")
        tx.send("stock", b"x")
    return tx.id


def statements(engine: Engine) -> list[str]:
    """Grows with each statement on the marker table."""
    seen: list[str] = []

    def note(_c: object, _cu: object, sql: str, *_: object) -> None:
        if "mq_tx" in sql:
            seen.append(sql.split()[0])

    event.listen(engine, "before_cursor_execute", note)
    return seen


def test_created_table_has_an_identity_of_its_own(shop: Shop, tmp_path) -> None:  # type: ignore[no-untyped-def]
    here = bounds(shop.engine, shop.log._markers)
    elsewhere = create_engine(f"sqlite:///{tmp_path / 'elsewhere.db'}")
    shop.metadata.create_all(elsewhere)
    there = bounds(elsewhere, shop.log._markers)
    elsewhere.dispose()
    assert here is not None
    assert there is not None
    assert here.horizon_ms == there.horizon_ms == 0
    assert here.identity != there.identity


def test_halves_carry_the_number_that_stands_in_the_marker_row(
    shop: Shop, client: MemoryClient, broker: MemoryBroker
) -> None:
    with shop.sessions()() as session:
        tx_id = order(shop, client, session)
    table = bounds(shop.engine, shop.log._markers)
    with shop.engine.connect() as connection:
        columns = shop.log.table.c
        written = connection.scalar(select(columns.written_at_ms).where(columns.tx_id == tx_id))
    assert table is not None
    assert carried(broker, tx_id) == f"{table.identity}.{written}"
    texts = [to_dict(message.properties) for message in broker.transactions[tx_id].messages]
    assert [text.get("TAGS") for text in texts] == ["t", None]
    assert all(HMQ_TX_MARKER in text for text in texts)


def test_identity_is_read_once(shop: Shop, client: MemoryClient) -> None:
    seen = statements(shop.engine)
    for _ in range(3):
        with shop.sessions()() as session:
            order(shop, client, session)
    assert seen == ["SELECT", *["INSERT", "UPDATE"] * 3]


async def test_table_of_an_earlier_release_gets_its_identity_with_the_first_block(app: App) -> None:
    LastRelease(app)
    for _ in range(2):
        tx = await app.run(lambda session, tx: tx.send("orders", b"x"))
        table = bounds(app.engine, app.log._markers)
        assert table is not None
        identity, _, written = carried(app.broker, tx.id).partition(".")
        assert identity == str(table.identity)
    assert await app.ask(Asked("t1", marker=f"{identity}.{written}")) is Outcome.ROLLBACK
    asked = Asked("t2", marker=f"{ONE}.{written}")
    assert await app.ask(asked) is Outcome.UNKNOWN
    assert "another database" in asked.remark


def test_session_with_a_transaction_gets_an_identity_for_the_next_block_and_none_of_its_own(
    shop: Shop, client: MemoryClient, broker: MemoryBroker
) -> None:
    """An identity made in the application's transaction would be undone with it, and its half would carry it."""
    LastRelease(shop)
    with shop.sessions()() as session:
        session.execute(insert(shop.orders).values(id=1))
        first = order(shop, client, session)
        assert carried(broker, first) == ""
        assert bounds(shop.engine, shop.log._markers) is not None, "made when it had committed"
        session.execute(select(shop.orders)).all()
        second = order(shop, client, session)
        session.execute(select(shop.orders)).all()
        third = order(shop, client, session)
    assert carried(broker, second) != ""
    assert carried(broker, third).partition(".")[0] == carried(broker, second).partition(".")[0]


@pytest.mark.parametrize("way", ["restored", "prune"])
def test_identity_that_may_be_undone_with_its_transaction_is_not_carried(
    shop: Shop, client: MemoryClient, broker: MemoryBroker, way: str
) -> None:
    LastRelease(shop)
    with shop.sessions()() as session:
        if way == "restored":
            shop.log.restored(session)
        else:
            session.execute(insert(shop.log.table).values(tx_id="old", outcome="C", written_at_ms=1))
            assert shop.log.prune(session, older_than_s=DAY_S, undecided=()) == 1
        first = order(shop, client, session)
        second = order(shop, client, session)
    assert carried(broker, first) == ""
    assert carried(broker, second) != ""


def test_writer_in_the_way_costs_the_identity_and_not_the_transaction(
    shop: Shop, client: MemoryClient, broker: MemoryBroker, place: Place
) -> None:
    LastRelease(shop)
    with shop.engine.connect() as other:
        shop.log._markers.identity._insert(other, 0)  # not committed
        if place.kind == "sqlite":
            shop.log._markers.identity.establish(shop.engine, NOON_MS, 50)
            other.rollback()
            assert bounds(shop.engine, shop.log._markers) is None
        else:
            with shop.sessions()() as session:
                assert carried(broker, order(shop, client, session)) == ""
            other.rollback()
    with shop.sessions()() as session:
        assert carried(broker, order(shop, client, session)) != ""


def test_what_an_earlier_release_may_have_pruned_is_no_answer(shop: Shop) -> None:
    """It kept no horizon: what is older than an hour may have been pruned by it. Its oldest row proves nothing, since it kept
    those of undecided transactions."""
    day_ms = round(DAY_S * 1000)
    now_ms = wall_ms()
    check = shop.log.checker(shop.sessions())
    LastRelease(shop)
    assert check(Asked("empty, in the last hour", prepared_at_ms=now_ms - 1_000_000)) is Outcome.ROLLBACK
    assert check(Asked("empty, before", prepared_at_ms=now_ms - day_ms)) is Outcome.UNKNOWN
    LastRelease(shop)
    with shop.engine.begin() as connection:
        connection.execute(insert(shop.log.table).values(tx_id="old", outcome="C", written_at_ms=now_ms - 2 * day_ms))
    assert check(Asked("behind the oldest", prepared_at_ms=now_ms - day_ms)) is Outcome.UNKNOWN
    assert check(Asked("before the oldest", prepared_at_ms=now_ms - 3 * day_ms)) is Outcome.UNKNOWN
    assert check(Asked("in the last hour", prepared_at_ms=now_ms - 1_000_000)) is Outcome.ROLLBACK


def test_a_prune_that_is_the_first_to_make_a_horizon_vouches_for_nothing_before_the_last_hour(shop: Shop) -> None:
    """Goal: what an earlier release pruned, with a shorter age than this prune's, is no answer."""
    day_ms = round(DAY_S * 1000)
    now_ms = wall_ms()
    LastRelease(shop)
    with shop.engine.begin() as connection:
        connection.execute(insert(shop.log.table).values(tx_id="old", outcome="C", written_at_ms=now_ms - 30 * day_ms))
    with shop.engine.begin() as connection:
        assert shop.log._markers.prune(connection, older_than_s=7 * DAY_S, undecided=lambda ids: []) == 1
    check = shop.log.checker(shop.sessions())
    assert check(Asked("pruned by the earlier release", prepared_at_ms=now_ms - 5 * day_ms)) is Outcome.UNKNOWN


def test_table_without_identity_is_read_once_in_the_applications_transactions(
    shop: Shop, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under SERIALIZABLE each read of it conflicts with the markers of others."""
    LastRelease(shop)
    identity = shop.log._markers.identity
    looked: list[None] = []
    read = identity.read
    monkeypatch.setattr(identity, "read", lambda connection: (looked.append(None), read(connection))[1])
    monkeypatch.setattr(shop.log._markers, "establish", lambda *_: None)  # somebody else is always in the way
    with shop.sessions()() as session:
        for _ in range(3):
            session.execute(select(shop.orders)).all()
            order(shop, client, session)
    assert len(looked) == 1


async def test_first_check_gives_an_earlier_releases_table_its_identity(shop: Shop) -> None:
    LastRelease(shop)
    check = shop.log.checker(shop.sessions())
    assert check(Asked("t1", prepared_at_ms=wall_ms() - 600_000)) is Outcome.ROLLBACK
    assert bounds(shop.engine, shop.log._markers) is not None
    LastRelease(shop)
    assert check(Asked("t2", marker=Origin(ONE, NOON_MS).text())) is Outcome.UNKNOWN
    assert bounds(shop.engine, shop.log._markers) is None, "an empty copy stays as it is"


def test_many_processes_at_once_make_one_identity(shop: Shop, place: Place) -> None:
    """Each with an engine and a log of its own, as processes have them."""
    LastRelease(shop)
    together = threading.Barrier(6)
    origins: list[str] = []
    failed: list[BaseException] = []

    def process() -> None:
        engine = create_engine(place.url())
        try:
            log = MarkerRows(MetaData(), "mq_tx")
            together.wait(20)

            def established() -> str:
                log.identity.establish(engine, NOON_MS, 100)
                with engine.connect() as connection:
                    return log.identity.origin(connection, 1)

            origins.append(wait_until(established, "an identity"))
        except BaseException as error:
            failed.append(error)
        finally:
            engine.dispose()

    threads = [threading.Thread(target=process) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    assert len(origins) == 6
    assert len(set(origins)) == 1


# --- the horizon -------------------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> list[int]:
    return [NOON_MS]


@pytest.fixture
def aged(engine: Engine, clock: list[int]) -> MarkerRows:
    metadata = MetaData()
    markers = MarkerRows(metadata, "mq_tx", now_ms=lambda: clock[0])
    metadata.create_all(engine)
    return markers


def written(engine: Engine, markers: MarkerRows, tx_id: str) -> str:
    with engine.begin() as connection:
        return write_marker(markers, connection, tx_id)


def pruned(connection: Connection, markers: MarkerRows, undecided: tuple[str, ...] = ()) -> int:
    return markers.prune(connection, older_than_s=DAY_S, undecided=undecided)


def decide(engine: Engine, markers: MarkerRows, tx_id: str, origin: str) -> tuple[Outcome, bool]:
    """What is decided, and whether there is a remark."""
    with engine.connect() as connection:
        decided = markers.decide(connection, tx_id, origin=origin, lock_wait_ms=100)
    return decided.outcome, decided.remark != ""


def test_pruned_marker_is_unknown_and_what_was_never_there_is_fenced(
    engine: Engine, aged: MarkerRows, clock: list[int]
) -> None:
    old = written(engine, aged, "old")
    clock[0] += 1
    rolled_back_later = written(engine, aged, "rolled back later")
    with engine.begin() as connection:
        lose_marker(aged, connection, "rolled back later")
    clock[0] += 25 * HOUR_MS
    with engine.begin() as connection:
        assert pruned(connection, aged) == 1
    assert decide(engine, aged, "old", old) == (Outcome.UNKNOWN, True)
    assert decide(engine, aged, "rolled back later", rolled_back_later) == (Outcome.ROLLBACK, False)
    assert decide(engine, aged, "old", old) == (Outcome.UNKNOWN, True), "nothing was written for it"


def test_marker_that_is_there_answers_below_the_horizon_and_under_any_identity(
    engine: Engine, aged: MarkerRows, clock: list[int]
) -> None:
    kept, _ = written(engine, aged, "kept"), written(engine, aged, "old")
    clock[0] += 25 * HOUR_MS
    with engine.begin() as connection:
        assert pruned(connection, aged, ("kept",)) == 1
    assert decide(engine, aged, "kept", kept) == (Outcome.COMMIT, False)
    assert decide(engine, aged, "kept", Origin(ONE, 0).text()) == (Outcome.COMMIT, False)


def test_prune_that_is_rolled_back_moves_no_horizon(engine: Engine, aged: MarkerRows, clock: list[int]) -> None:
    written(engine, aged, "old")
    clock[0] += 25 * HOUR_MS
    with engine.connect() as connection:
        assert pruned(connection, aged) == 1
        table = aged.identity.read(connection)
        assert table is not None
        assert table.horizon_ms == NOON_MS + 1
        connection.rollback()
        table = aged.identity.read(connection)
        assert table is not None
        assert table.horizon_ms == 0


def test_horizon_never_goes_back(engine: Engine, aged: MarkerRows) -> None:
    seen = []
    for horizon_ms in (50, 20, 60):
        with engine.begin() as connection:
            aged.identity.move_horizon(connection, horizon_ms, 0)
        table = bounds(engine, aged)
        assert table is not None
        seen.append(table.horizon_ms)
    assert seen == [50, 50, 60]


def test_prune_gives_an_earlier_releases_table_its_rows(engine: Engine, aged: MarkerRows, clock: list[int]) -> None:
    with engine.begin() as connection:
        connection.execute(delete(aged.table))
    assert written(engine, aged, "old") == ""
    clock[0] += 25 * HOUR_MS
    with engine.begin() as connection:
        assert pruned(connection, aged) == 1
    table = bounds(engine, aged)
    assert table is not None
    assert table.horizon_ms == NOON_MS + 24 * HOUR_MS, "the clock, less the hour that no release prunes"


def test_reserved_rows_are_never_old(engine: Engine, aged: MarkerRows, clock: list[int]) -> None:
    """Not for this release, whatever stands in them; and not for one that does not know them."""
    with engine.connect() as connection:
        stand = dict(connection.execute(select(aged.table.c.tx_id, aged.table.c.written_at_ms)).all())
        assert set(stand) == {IDENTITY, HORIZON}
        assert min(stand.values()) >= 1 << 62
        connection.execute(update(aged.table).where(aged.table.c.tx_id.in_(RESERVED)).values(written_at_ms=1))
        assert aged.old(connection, older_than_s=DAY_S) == []
        assert connection.execute(markers_of(aged.table)).all() == []


def test_nothing_is_pruned_when_the_horizon_cannot_be_moved(
    engine: Engine, aged: MarkerRows, clock: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a snapshot does not see the rows that another process has just made."""
    written(engine, aged, "old")
    clock[0] += 25 * HOUR_MS
    monkeypatch.setattr(aged.identity, "read", lambda _connection: None)
    with engine.connect() as connection, pytest.raises(UsageError, match="roll back and prune again"):
        pruned(connection, aged)
    monkeypatch.undo()
    with engine.connect() as connection:
        assert [row.tx_id for row in connection.execute(markers_of(aged.table))] == ["old"]


# --- restored ----------------------------------------------------------------------------------------------------


def test_after_restored_absence_before_it_is_no_answer_and_after_it_is(shop: Shop) -> None:
    markers = shop.log._markers
    before = written(shop.engine, markers, "before")
    with shop.engine.begin() as connection:
        lose_marker(markers, connection, "before")
    with shop.sessions()() as session:
        shop.log.restored(session)
        session.commit()
    after = written(shop.engine, markers, "after")
    with shop.engine.begin() as connection:
        lose_marker(markers, connection, "after")
    assert decide(shop.engine, markers, "before", before) == (Outcome.UNKNOWN, True)
    assert decide(shop.engine, markers, "after", after) == (Outcome.ROLLBACK, False)


def test_process_that_missed_restored_learns_it_from_a_check(shop: Shop) -> None:
    """Goal: a process that ran on does not write an identity of the past for ever."""
    running, elsewhere = shop.log._markers, MarkerRows(MetaData(), "mq_tx")
    before = written(shop.engine, running, "before")
    with shop.engine.begin() as connection:
        lose_marker(running, connection, "before")
        elsewhere.restored(connection)
    stale = written(shop.engine, running, "stale")
    assert stale.partition(".")[0] == before.partition(".")[0]
    assert decide(shop.engine, running, "before", before) == (Outcome.UNKNOWN, True)
    table = bounds(shop.engine, running)
    assert table is not None
    assert written(shop.engine, running, "fresh").startswith(f"{table.identity}.")


def test_two_logs_in_one_database_have_two_identities(shop: Shop) -> None:
    metadata = MetaData()
    log = MarkerTable(metadata, table="mq_other")
    metadata.create_all(shop.engine)
    here, there = bounds(shop.engine, shop.log._markers), bounds(shop.engine, log._markers)
    assert here is not None
    assert there is not None
    assert here.identity != there.identity


def test_schemas_of_one_pool_have_an_identity_each(tmp_path) -> None:  # type: ignore[no-untyped-def]
    engine = create_engine(f"sqlite:///{tmp_path / 'main.db'}")

    @event.listens_for(engine, "connect")
    def attach(connection, _record) -> None:  # type: ignore[no-untyped-def]
        for schema in ("a", "b"):
            connection.execute(f"ATTACH '{tmp_path / schema}.db' AS {schema}")

    metadata = MetaData()
    markers = MarkerRows(metadata, "mq_tx")
    a, b = (engine.execution_options(schema_translate_map={None: schema}) for schema in ("a", "b"))
    metadata.create_all(a)
    metadata.create_all(b)
    identities = {schema: bounds(schema, markers) for schema in (a, b)}
    for way in ("origin", "establish"):
        markers.identity.forget()
        for schema in (a, b):
            if way == "establish":
                markers.establish(schema)
            origin = written(schema, markers, f"{way}-{schema is a}")
            here = identities[schema]
            assert here is not None
            assert origin.startswith(f"{here.identity}.")
    committed_in_b = written(b, markers, "T1")
    assert decide(a, markers, "T1", committed_in_b) == (Outcome.UNKNOWN, True)
    assert decide(b, markers, "T1", committed_in_b)[0] is Outcome.COMMIT
    engine.dispose()
