"""Who is asked, and what is said of it."""

from inspect import iscoroutinefunction
from typing import Any

import pytest
from sqlalchemy import MetaData, create_engine, make_url
from sqlalchemy.orm import Session, sessionmaker
from tests.unit.sql.conftest import Shop
from tests.unit.sql.faces import App, app
from tests.unit.sql.memory_broker import Asked

from halfmq.client.outcome import Outcome
from halfmq.errors import UsageError
from halfmq.sql import MarkerTable
from halfmq.sql.alchemy.checks import MarkerChecks
from halfmq.sql.alchemy.errors import place

__all__ = ["app"]


def test_young_transaction_is_not_fenced(shop: Shop) -> None:
    metadata = MetaData()
    patient = MarkerTable(metadata, table="patient", min_age_s=3_600)
    metadata.create_all(shop.engine)
    check: Any = patient.checker(shop.sessions())
    assert check(Asked("t1", prepared_at_ms=None)) is Outcome.UNKNOWN
    with shop.engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO patient VALUES ('t1', 'C', 1)")
    assert check(Asked("t1", prepared_at_ms=None)) is Outcome.COMMIT


async def test_sessionmaker_gives_a_function_and_an_async_one_a_coroutine_function(app: App) -> None:
    assert iscoroutinefunction(app.log.checker(app.sessions())) == app.driver.is_async
    asked = Asked("t1")
    assert await app.ask(asked) is Outcome.ROLLBACK
    assert asked.decided_by == "marker"


def test_database_that_is_not_meant_is_logged_once_a_minute_and_without_its_password(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    checks = MarkerChecks(shop.log._markers, shop.sessions(), min_age_ms=0)
    now_ms = [0]
    checks._warnings._clock = lambda: now_ms[0] / 1_000
    check: Any = checks.check_function()
    asked = [Asked(f"t{number}", marker="77.1") for number in range(3)]
    assert [check(one) for one in asked] == [Outcome.UNKNOWN] * 3
    assert all("another database" in one.remark for one in asked)
    assert check(Asked("other", marker="78.1")) is Outcome.UNKNOWN
    now_ms[0] += 60_000
    assert check(Asked("t3", marker="77.1")) is Outcome.UNKNOWN
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split()[1] for line in lines] == ["t0", "other", "t3"]
    assert str(shop.engine.url.database) in lines[0]
    with_password = "postgresql://ada:secret@db.example:5433/shop?sslpassword=secret"
    assert place(make_url(with_password)) == "postgresql://db.example:5433/shop"


def test_what_is_no_sessionmaker_is_refused(shop: Shop) -> None:
    given: list[Any] = [lambda: object(), shop.engine, None, Session(shop.engine), sessionmaker()]
    for sessions in given:
        with pytest.raises(UsageError, match="sessionmaker"):
            shop.log.checker(sessions)


def test_sessions_on_one_connection_are_refused(shop: Shop) -> None:
    with shop.engine.connect() as connection, pytest.raises(UsageError, match="connection of its own"):
        shop.log.checker(lambda: Session(connection))


def test_check_uses_the_engine_of_the_marker_table(shop: Shop, tmp_path) -> None:  # type: ignore[no-untyped-def]
    elsewhere = create_engine(f"sqlite:///{tmp_path / 'elsewhere.db'}")
    check: Any = shop.log.checker(sessionmaker(elsewhere, binds={shop.log.table: shop.engine}))
    assert check(Asked("t1")) is Outcome.ROLLBACK
    elsewhere.dispose()
