"""The marker row and its fence, on SQLite and on PostgreSQL."""

import threading
import time
from collections.abc import Callable

import pytest
from sqlalchemy import (
    CheckConstraint,
    Column,
    Engine,
    MetaData,
    String,
    Table,
    create_engine,
    insert,
    inspect,
    text,
    true,
)
from sqlalchemy.exc import DBAPIError, IntegrityError
from tests.support.waiting import PATIENCE_S
from tests.unit.sql.conftest import EACH_DATABASE, Place, claiming, markers_of, write_marker

from halfmq.client.outcome import Outcome
from halfmq.errors import ConnectError, UsageError
from halfmq.sql.alchemy.marker_rows import MarkerRows, wall_ms
from halfmq.sql.rules.driver_errors import is_check_violation
from halfmq.sql.rules.marker import PRUNE_ROWS_MAX
from halfmq.sql.rules.table_identity import PRUNE_AGE_MIN_S

HOUR_MS = 3_600_000
DAY_S = 86_400.0


@pytest.fixture
def markers(engine: Engine) -> MarkerRows:
    metadata = MetaData()
    table = MarkerRows(metadata, "mq_tx")
    metadata.create_all(engine)
    return table


def decide(engine: Engine, markers: MarkerRows, tx_id: str, *, may_fence: bool = True, wait_ms: int = 100) -> Outcome:
    with engine.connect() as connection:
        return markers.decide(connection, tx_id, may_fence=may_fence, lock_wait_ms=wait_ms).outcome


def test_committed_marker_answers_commit_again_and_again(engine: Engine, markers: MarkerRows) -> None:
    with engine.begin() as connection:
        write_marker(markers, connection, "t1")
    assert [decide(engine, markers, "t1") for _ in range(3)] == [Outcome.COMMIT] * 3


def test_transaction_that_never_began_is_fenced_for_good(engine: Engine, markers: MarkerRows) -> None:
    """A count of rows would say -1 here with psycopg, and turn a fresh tombstone into "already there"."""
    assert decide(engine, markers, "t1") is Outcome.ROLLBACK
    assert decide(engine, markers, "t1") is Outcome.ROLLBACK
    with pytest.raises(IntegrityError), engine.begin() as connection:
        write_marker(markers, connection, "t1")
    assert decide(engine, markers, "t1") is Outcome.ROLLBACK


def test_transaction_that_rolled_back_is_fenced(engine: Engine, markers: MarkerRows) -> None:
    with engine.connect() as connection:
        write_marker(markers, connection, "t1")
        connection.rollback()
    assert decide(engine, markers, "t1") is Outcome.ROLLBACK


@EACH_DATABASE
def test_running_transaction_is_unknown_and_can_still_commit(engine: Engine, markers: MarkerRows) -> None:
    with engine.connect() as connection:
        write_marker(markers, connection, "t1")
        started = time.monotonic()
        assert decide(engine, markers, "t1") is Outcome.UNKNOWN
        assert time.monotonic() - started < 3  # not the driver's own five seconds
        connection.commit()
    assert decide(engine, markers, "t1") is Outcome.COMMIT


def test_another_writer_is_unknown_on_sqlite_and_no_matter_on_postgres(
    engine: Engine, markers: MarkerRows, place: Place
) -> None:
    with engine.connect() as connection:
        write_marker(markers, connection, "t1")
        expected = Outcome.UNKNOWN if place.kind == "sqlite" else Outcome.ROLLBACK
        assert decide(engine, markers, "t2") is expected


@pytest.mark.parametrize(("end", "expected"), [("commit", Outcome.COMMIT), ("rollback", Outcome.ROLLBACK)])
def test_check_that_waits_for_the_local_transaction_sees_its_end(
    engine: Engine, markers: MarkerRows, end: str, expected: Outcome
) -> None:
    with engine.connect() as connection:
        write_marker(markers, connection, "t1")
        answers: list[Outcome] = []
        checker = threading.Thread(target=lambda: answers.append(decide(engine, markers, "t1", wait_ms=20_000)))
        with claiming(engine):
            checker.start()
        assert answers == []
        getattr(connection, end)()
    checker.join(PATIENCE_S)
    assert answers == [expected]


def test_look_alone_writes_nothing(engine: Engine, markers: MarkerRows) -> None:
    assert decide(engine, markers, "t1", may_fence=False) is Outcome.UNKNOWN
    with engine.begin() as connection:
        write_marker(markers, connection, "t1")
    assert decide(engine, markers, "t1", may_fence=False) is Outcome.COMMIT


@pytest.mark.parametrize("isolation", ["SERIALIZABLE", "REPEATABLE READ"])
def test_strict_isolation_of_the_application_does_not_disturb_the_check(
    place: Place, markers: MarkerRows, isolation: str
) -> None:
    if place.kind == "sqlite":
        isolation = "SERIALIZABLE"
    strict = create_engine(place.url(), isolation_level=isolation)
    with strict.begin() as connection:
        write_marker(markers, connection, "t1")
    assert decide(strict, markers, "t1") is Outcome.COMMIT
    assert decide(strict, markers, "t2") is Outcome.ROLLBACK
    strict.dispose()


def test_many_checkers_at_once_agree(engine: Engine, markers: MarkerRows) -> None:
    """Local transactions and checks race for the same ids; each id ends one way, and all that was said agrees."""
    said: dict[str, set[Outcome]] = {f"t{n}": set() for n in range(20)}
    committed: set[str] = set()

    def run(work: Callable[[str], None]) -> None:
        for tx_id in said:
            work(tx_id)

    def local(tx_id: str) -> None:
        try:
            with engine.begin() as connection:
                write_marker(markers, connection, tx_id)
            committed.add(tx_id)
        except IntegrityError:
            pass

    def check(tx_id: str) -> None:
        said[tx_id].add(decide(engine, markers, tx_id, wait_ms=1_000))

    threads = [threading.Thread(target=run, args=(work,)) for work in (local, check, check)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for tx_id, answers in said.items():
        assert answers - {Outcome.UNKNOWN} <= {Outcome.COMMIT if tx_id in committed else Outcome.ROLLBACK}
    assert any(answers - {Outcome.UNKNOWN} for answers in said.values())


def test_ids_that_differ_in_case_are_two_transactions(engine: Engine, markers: MarkerRows) -> None:
    with engine.begin() as connection:
        write_marker(markers, connection, "T-1")
    assert decide(engine, markers, "t-1") is Outcome.ROLLBACK
    assert decide(engine, markers, "T-1") is Outcome.COMMIT


def test_table_that_folds_case_is_noticed(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Somebody made the table by hand: the wrong row must not answer."""
    engine = create_engine(f"sqlite:///{tmp_path / 'folded.db'}")
    markers = MarkerRows(MetaData(), "mq_tx")
    with engine.begin() as connection:
        connection.execute(
            text("CREATE TABLE mq_tx (tx_id TEXT COLLATE NOCASE PRIMARY KEY, outcome TEXT, written_at_ms INTEGER)")
        )
        write_marker(markers, connection, "T-1")
    with pytest.raises(UsageError, match="binary collation"):
        decide(engine, markers, "t-1")
    engine.dispose()


def test_lost_table_is_an_error_and_not_an_answer(engine: Engine) -> None:
    markers = MarkerRows(MetaData(), "not_there")
    with pytest.raises(Exception, match="not_there"):
        decide(engine, markers, "t1")


# --- prune -------------------------------------------------------------------------------------------------------


def aged(engine: Engine, age_ms: int, ids: list[str]) -> MarkerRows:
    """A table whose rows for ``ids`` were written ``age_ms`` ago."""
    clock = [time.time_ns() // 1_000_000 - age_ms]
    metadata = MetaData()
    markers = MarkerRows(metadata, "mq_tx", now_ms=lambda: clock[0])
    metadata.create_all(engine)
    with engine.begin() as connection:
        for tx_id in ids:
            write_marker(markers, connection, tx_id)
    clock[0] += age_ms
    return markers


def remaining(engine: Engine, markers: MarkerRows) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(markers_of(markers.table)))


def test_prune_takes_old_rows_and_leaves_young_and_undecided_ones(engine: Engine) -> None:
    markers = aged(engine, 25 * HOUR_MS, ["old-1", "old-2", "old-undecided"])
    with engine.begin() as connection:
        write_marker(markers, connection, "young")
        assert markers.prune(connection, older_than_s=DAY_S, undecided=["old-undecided", "other"]) == 2
    assert remaining(engine, markers) == ["old-undecided", "young"]
    assert decide(engine, markers, "old-undecided") is Outcome.COMMIT


def test_prune_counts_in_seconds(engine: Engine) -> None:
    markers = aged(engine, 23 * HOUR_MS, ["younger than a day"])
    with engine.begin() as connection:
        assert markers.prune(connection, older_than_s=DAY_S, undecided=()) == 0
        assert markers.prune(connection, older_than_s=DAY_S - 2 * HOUR_MS / 1_000, undecided=()) == 1


def test_prune_goes_in_portions(engine: Engine) -> None:
    markers = aged(engine, 25 * HOUR_MS, [f"t{n:05}" for n in range(PRUNE_ROWS_MAX + 5)])
    with engine.begin() as connection:
        assert markers.prune(connection, older_than_s=DAY_S, undecided={"t00000"}) == PRUNE_ROWS_MAX - 1
        assert markers.prune(connection, older_than_s=DAY_S, undecided={"t00000"}) == 5
        assert markers.prune(connection, older_than_s=DAY_S, undecided={"t00000"}) == 0
    assert remaining(engine, markers) == ["t00000"]


def test_prune_asks_about_what_it_would_delete_and_goes_past_what_stays(engine: Engine) -> None:
    """Goal: many old undecided transactions do not hide what can go. Method: two whole portions of them come first."""
    stay = [f"a{n:05}" for n in range(2 * PRUNE_ROWS_MAX)]
    markers = aged(engine, 25 * HOUR_MS, [*stay, "gone-1", "gone-2"])
    asked: list[str] = []

    def which(ids: list[str]) -> set[str]:
        assert len(ids) <= PRUNE_ROWS_MAX
        asked.extend(ids)
        return set(ids) & set(stay)

    with engine.begin() as connection:
        write_marker(markers, connection, "young")
        assert markers.prune(connection, older_than_s=DAY_S, undecided=which) == 2
        assert asked == [*stay, "gone-1", "gone-2"], "each once, nothing young"
        assert markers.prune(connection, older_than_s=DAY_S, undecided=which) == 0
    assert remaining(engine, markers) == [*stay, "young"]


def test_prune_deletes_nothing_when_the_broker_cannot_be_asked(engine: Engine) -> None:
    markers = aged(engine, 25 * HOUR_MS, ["old"])

    def away(ids: list[str]) -> set[str]:
        raise ConnectError("nobody there")

    with engine.begin() as connection, pytest.raises(ConnectError):
        markers.prune(connection, older_than_s=DAY_S, undecided=away)
    assert remaining(engine, markers) == ["old"]


def test_prune_refuses_ages_that_a_local_transaction_may_have(engine: Engine, markers: MarkerRows) -> None:
    with engine.begin() as connection, pytest.raises(UsageError):
        markers.prune(connection, older_than_s=PRUNE_AGE_MIN_S - 1, undecided=())


def test_marker_table_is_an_ordinary_table_beside_others() -> None:
    metadata = MetaData()
    Table("orders", metadata, Column("id", String, primary_key=True))
    MarkerRows(metadata, "mine")
    assert set(metadata.tables) == {"orders", "mine"}
    assert insert(metadata.tables["mine"]).is_insert


# --- a marker that is no verdict -------------------------------------------------------------------------------------


def test_prepared_marker_that_was_committed_is_fenced_and_cannot_be_confirmed_any_more(
    engine: Engine, markers: MarkerRows
) -> None:
    with engine.begin() as connection:
        markers.write(connection, "t1")
    assert decide(engine, markers, "t1", may_fence=False) is Outcome.UNKNOWN
    assert [decide(engine, markers, "t1") for _ in range(2)] == [Outcome.ROLLBACK] * 2
    with engine.begin() as connection:
        assert markers.confirm(connection, "t1", true()) == 0
        assert markers.delete(connection, "t1", true()) == 0
    assert decide(engine, markers, "t1") is Outcome.ROLLBACK


def test_check_of_a_prepared_marker_that_is_just_being_confirmed_is_unknown(
    engine: Engine, markers: MarkerRows
) -> None:
    with engine.begin() as connection:
        markers.write(connection, "t1")
    with engine.begin() as connection:
        assert markers.confirm(connection, "t1", true()) == 1
        assert decide(engine, markers, "t1") is Outcome.UNKNOWN
    assert decide(engine, markers, "t1") is Outcome.COMMIT


def earlier_table(engine: Engine) -> None:
    """The marker table as the earlier release made it."""
    old = MetaData()
    markers = MarkerRows(old, "mq_tx")
    (constraint,) = (one for one in markers.table.constraints if isinstance(one, CheckConstraint))
    constraint.sqltext = text("outcome IN ('C', 'R')")
    old.create_all(engine)


def test_table_of_an_earlier_release_is_refused_by_name_and_upgraded_with_its_rows(engine: Engine) -> None:
    """Its constraint knows 'C' and 'R' only."""
    earlier_table(engine)
    present = MarkerRows(MetaData(), "mq_tx")
    with engine.begin() as connection:
        now_ms = wall_ms()
        connection.execute(insert(present.table).values(tx_id="before", outcome="C", written_at_ms=now_ms))
        bounds = present.identity.read(connection)
    with pytest.raises(UsageError, match="earlier release"), engine.begin() as connection:
        present.write(connection, "t1")
    for _ in range(2):
        with engine.begin() as connection:
            present.upgrade(connection)
    with engine.begin() as connection:
        write_marker(present, connection, "t1")
        assert present.identity.read(connection) == bounds
    with pytest.raises(DBAPIError) as caught, engine.begin() as connection:
        connection.execute(insert(present.table).values(tx_id="t2", outcome="X", written_at_ms=1))
    assert is_check_violation(caught.value)
    assert [decide(engine, present, tx_id) for tx_id in ("before", "t1")] == [Outcome.COMMIT] * 2
    assert "ix_mq_tx_written_at_ms" in {index["name"] for index in inspect(engine).get_indexes("mq_tx")}
