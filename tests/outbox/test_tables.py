"""The tables of halfmq in a MetaData: created, upgraded, printed, pruned, and seen by Alembic; on each database."""

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import CheckConstraint, Column, Engine, Integer, MetaData, Table, create_engine, inspect, select, text
from sqlalchemy.orm import Session, declarative_base, sessionmaker

from halfmq import App
from halfmq.errors import UnsupportedCombination, UsageError
from halfmq.sql import Inbox, MarkerTable, Outbox, create_tables, tables_of, upgrade_tables
from halfmq.sql.alchemy.declared import ddl_of, declared_in, metadata_of
from halfmq.sql.rules.outbox import LANES
from tests.unit.sql.faces import DRIVERS, Driver, located, on
from tests.unit.sql.test_marker import earlier_table

BLOCKING = [on(driver) for driver in DRIVERS if not driver.is_async]
NAMES = ["mq_tx", "mq_inbox", "mq_outbox", "mq_outbox_lane"]


@pytest.fixture(params=BLOCKING)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    driver: Driver = request.param
    where, name = located(request, driver, tmp_path)
    made = create_engine(driver.url.format(where=where, name=name))
    yield made
    made.dispose()


def shop() -> MetaData:
    """The application's own table, and all of ours."""
    metadata = MetaData()
    Table("orders", metadata, Column("id", Integer, primary_key=True))
    MarkerTable(metadata)
    Inbox(metadata)
    Outbox(metadata)
    return metadata


def options_of(engine: Engine) -> dict[str, list[str]]:
    """Storage parameters on PostgreSQL by table."""
    with engine.connect() as connection:
        found = connection.execute(text("SELECT relname, reloptions FROM pg_class WHERE reloptions IS NOT NULL"))
        return {name: options for name, options in found if name.startswith("mq_")}


WANTED_OPTIONS = {
    "mq_outbox": [
        "autovacuum_vacuum_scale_factor=0.01", "autovacuum_vacuum_threshold=1000", "autovacuum_vacuum_cost_limit=1000",
    ],
    "mq_outbox_lane": ["fillfactor=20"],
}  # fmt: skip


def test_the_tables_are_found_in_the_metadata() -> None:
    metadata = shop()
    assert [table.name for table in tables_of(metadata)] == NAMES
    assert [one.kind for one in declared_in(metadata)] == ["markers", "inbox", "outbox"]
    assert tables_of(MetaData()) == []
    assert all(table.info == {} for table in tables_of(metadata)), "Alembic would write it into migrations"


def test_metadata_of_what_was_loaded() -> None:
    base = declarative_base()
    outbox = Outbox(base.metadata)
    assert metadata_of(base) == metadata_of(base.metadata) == [base.metadata]
    app = App("rocketmq://127.0.0.1:1", group="shop", sessions=sessionmaker(create_engine("sqlite://")))
    other = MetaData()
    app.relay(outbox)
    app.answer_checks(MarkerTable(other))
    assert metadata_of(app.declared()) == [other, base.metadata]
    for wrong in (MetaData(), object(), []):
        with pytest.raises(UsageError, match="no tables of halfmq"):
            metadata_of(wrong)


def test_what_is_missing_is_created_once(engine: Engine) -> None:
    metadata = shop()
    with engine.begin() as connection:
        assert create_tables(connection, metadata) == [f"created {name}" for name in NAMES]
    with engine.begin() as connection:
        assert create_tables(connection, metadata) == []
        lanes = metadata.tables["mq_outbox_lane"]
        assert sorted(connection.scalars(select(lanes.c.lane))) == list(range(LANES))
    assert not inspect(engine).has_table("orders"), "only ours"
    with engine.begin() as connection:
        connection.execute(lanes.delete().where(lanes.c.lane == 7))
        metadata.tables["mq_inbox"].drop(connection)
    with engine.begin() as connection:
        assert create_tables(connection, metadata) == ["created mq_inbox"]
        assert len(connection.scalars(select(lanes.c.lane)).all()) == LANES
    if engine.dialect.name == "postgresql":
        assert options_of(engine) == WANTED_OPTIONS


@pytest.mark.parametrize("engine", [one for one in BLOCKING if one.id == "psycopg"], indirect=True)
def test_storage_parameters_that_somebody_has_set_stay(engine: Engine) -> None:
    metadata = shop()
    metadata.create_all(engine)
    assert options_of(engine) == WANTED_OPTIONS, "create_all sets them as well"
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE mq_outbox RESET (autovacuum_vacuum_threshold)"))
        connection.execute(text("ALTER TABLE mq_outbox SET (autovacuum_vacuum_scale_factor = 0.5)"))
        connection.execute(text("ALTER TABLE mq_outbox_lane RESET (fillfactor)"))
    with engine.begin() as connection:
        assert create_tables(connection, metadata) == [
            "set autovacuum_vacuum_threshold = 1000 of mq_outbox", "set fillfactor = 20 of mq_outbox_lane",
        ]  # fmt: skip
    assert sorted(options_of(engine)["mq_outbox"]) == [
        "autovacuum_vacuum_cost_limit=1000", "autovacuum_vacuum_scale_factor=0.5", "autovacuum_vacuum_threshold=1000",
    ]  # fmt: skip


@pytest.mark.parametrize("engine", [one for one in BLOCKING if one.id == "psycopg"], indirect=True)
def test_tables_in_a_schema(engine: Engine) -> None:
    metadata = MetaData(schema="Shop")
    outbox = Outbox(metadata)
    with engine.begin() as connection:
        connection.execute(text('CREATE SCHEMA "Shop"'))
        assert create_tables(connection, metadata) == ["created Shop.mq_outbox", "created Shop.mq_outbox_lane"]
    with engine.begin() as connection:
        assert create_tables(connection, metadata) == []
        outbox.send(connection, "t", "x")
        named = Outbox.named("Shop.mq_outbox")
        assert named.operations.status(connection).figures.rows == {"W": 1}


@pytest.mark.parametrize("engine", [one for one in BLOCKING if one.id == "psycopg"], indirect=True)
def test_tables_in_a_schema_that_is_translated(engine: Engine) -> None:
    metadata = shop()
    with engine.begin() as connection:
        connection.execute(text('CREATE SCHEMA "Tenant"'))
    tenant = engine.execution_options(schema_translate_map={None: "Tenant"})
    with tenant.begin() as connection:
        assert len(create_tables(connection, metadata)) == len(NAMES)
    with tenant.begin() as connection:
        assert create_tables(connection, metadata) == []
        assert upgrade_tables(connection, metadata) == []
    assert sorted(inspect(engine).get_table_names(schema="Tenant")) == sorted(NAMES)
    assert inspect(engine).get_table_names() == []


def test_a_table_of_an_earlier_release_is_upgraded_once(engine: Engine) -> None:
    metadata = shop()
    earlier_table(engine)
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO mq_tx (tx_id, outcome, written_at_ms) VALUES ('T-1', 'C', 7)"))
    with engine.begin() as connection:
        assert upgrade_tables(connection, metadata) == ["the outcome 'P' in mq_tx"]
    with engine.begin() as connection:
        assert upgrade_tables(connection, metadata) == []
        connection.execute(text("INSERT INTO mq_tx (tx_id, outcome, written_at_ms) VALUES ('T-2', 'P', 7)"))
        assert connection.scalar(text("SELECT written_at_ms FROM mq_tx WHERE tx_id = 'T-1'")) == 7
    assert not inspect(engine).has_table("mq_outbox"), "missing tables are not created here"


@pytest.mark.parametrize("dialect", ["postgresql", "sqlite", "mysql", "mariadb"])
def test_printed_statements_create_the_tables(dialect: str) -> None:
    statements = ddl_of(shop(), dialect)
    assert [one.split()[2] for one in statements if one.startswith("CREATE TABLE")] == NAMES
    assert any("autovacuum_vacuum_scale_factor" in one for one in statements) == (dialect == "postgresql")
    if dialect == "sqlite":
        engine = create_engine("sqlite://")
        with engine.begin() as connection:
            for statement in statements:
                connection.execute(text(statement))
        with engine.begin() as connection:
            assert create_tables(connection, shop()) == []
            assert upgrade_tables(connection, shop()) == []


def test_an_unknown_dialect_is_refused() -> None:
    with pytest.raises(UsageError, match="no dialect 'oracel'"):
        ddl_of(shop(), "oracel")


def differences(engine: Engine, metadata: MetaData) -> list[Any]:
    """What autogenerate would write, with all that it can compare."""
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "compare_server_default": True, "target_metadata": metadata}
        )
        return list(compare_metadata(context, metadata))


def test_alembic_sees_the_tables_and_then_no_difference(engine: Engine) -> None:
    found = differences(engine, shop())
    assert {one[1].name for one in found if one[0] == "add_table"} == {"orders", *NAMES}
    with engine.begin() as connection:
        create_tables(connection, shop())
        shop().tables["orders"].create(connection)
    assert differences(engine, shop()) == []


ENV = """
from alembic import context
from tests.outbox.test_tables import shop
connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=shop(), render_as_batch=False)
with context.begin_transaction():
    context.run_migrations()
"""


def test_a_migration_that_alembic_writes_makes_usable_tables(engine: Engine, tmp_path: Path) -> None:
    """As an application does it: revision --autogenerate, upgrade head, then `halfmq db init` for what migrations leave out."""
    config = Config(tmp_path / "alembic.ini", stdout=io.StringIO())
    config.set_main_option("script_location", str(tmp_path / "migrations"))
    config.set_main_option("path_separator", "os")
    with contextlib.redirect_stdout(io.StringIO()):
        command.init(config, str(tmp_path / "migrations"))
    (tmp_path / "migrations" / "env.py").write_text(ENV)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.revision(config, "tables of halfmq", autogenerate=True)
        command.upgrade(config, "head")
    assert {*NAMES, "orders"} <= set(inspect(engine).get_table_names())
    metadata = shop()
    found = [
        one for one in differences(engine, metadata) if one[0] != "remove_table" or one[1].name != "alembic_version"
    ]
    assert found == []
    with engine.begin() as connection:
        done = create_tables(connection, metadata)
        assert upgrade_tables(connection, metadata) == []
    assert [line.split()[0] for line in done] == (["set", "set"] if engine.dialect.name == "postgresql" else [])
    (constraint,) = [one for one in metadata.tables["mq_tx"].constraints if isinstance(one, CheckConstraint)]
    assert constraint.name in [one["name"] for one in inspect(engine).get_check_constraints("mq_tx")]
    with Session(engine) as session, session.begin():
        declared = declared_in(metadata)
        outbox = declared[2]
        assert isinstance(outbox, Outbox)
        outbox.send(session, "t", "x", sharding_key="Key")
    with engine.connect() as connection:
        rows = outbox.table
        assert connection.scalar(select(rows.c.seq).where(rows.c.order_key == "key")) is None, "binary comparison"
        assert connection.scalar(select(rows.c.seq).where(rows.c.order_key == "Key")) == 1


def test_a_database_that_a_relay_does_not_know_is_named() -> None:
    elsewhere: Any = SimpleNamespace(dialect=SimpleNamespace(name="oracle"))
    with pytest.raises(UnsupportedCombination, match="does not know oracle"):
        Outbox(MetaData()).fill(elsewhere)
