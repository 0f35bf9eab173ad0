"""The tables of Django's migration are those of ``halfmq.sql``: both may be used on one database."""

from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections
from sqlalchemy import MetaData, create_engine, inspect, make_url

from halfmq.django.tables import statements
from halfmq.sql import Inbox, MarkerTable, Outbox
from halfmq.sql.alchemy.declared import ddl_of
from halfmq.sql.rules.table_identity import RESERVED


def declared() -> MetaData:
    metadata = MetaData()
    MarkerTable(metadata)
    Inbox(metadata)
    Outbox(metadata)
    return metadata


def words(statement: str) -> str:
    """A statement without what may be written differently."""
    text = " ".join(statement.replace("`", "").split()).replace("( ", "(").replace(" )", ")")
    # A key of one column may stand behind it.
    for seq in ("BIGSERIAL NOT NULL", "BIGINT NOT NULL AUTO_INCREMENT"):
        if f"seq {seq} PRIMARY KEY," in text:
            text = text.replace(f"seq {seq} PRIMARY KEY,", f"seq {seq},").removesuffix(")") + ", PRIMARY KEY (seq))"
    return text


@pytest.mark.parametrize("dialect", ["postgresql", "sqlite", "mysql", "mariadb"])
def test_the_statements_are_those_of_sqlalchemy(dialect: str) -> None:
    vendor = "mysql" if dialect == "mariadb" else dialect
    assert sorted(map(words, statements(vendor))) == sorted(map(words, ddl_of(declared(), dialect)))


def test_a_service_with_sqlalchemy_finds_its_tables(using: str, database: dict[str, Any]) -> None:
    url = {
        "sqlite": f"sqlite:///{database['NAME']}",
        "postgresql": f"postgresql+psycopg://postgres@/{database['NAME']}?host={database.get('HOST')}",
        "mysql": f"mariadb+pymysql://root@/{database['NAME']}?unix_socket={database.get('HOST')}",
    }[connections[using].vendor]
    engine = create_engine(make_url(url))
    try:
        found = inspect(engine)
        for table in declared().tables.values():
            assert [column["name"] for column in found.get_columns(table.name)] == [*table.c.keys()]
            assert found.get_pk_constraint(table.name)["constrained_columns"] == [*table.primary_key.c.keys()]
    finally:
        engine.dispose()


def test_the_models_are_what_the_migrations_make() -> None:
    call_command("makemigrations", "halfmq", check=True, dry_run=True, verbosity=0)


def test_migrate_creates_the_tables_and_their_identity_and_goes_back(tmp_path: Any) -> None:
    alias = "migrated"
    connections.databases[alias] = connections.configure_settings(
        {"default": {}, alias: {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "db")}}
    )[alias]
    try:
        call_command("migrate", "halfmq", database=alias, verbosity=0)
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT tx_id FROM mq_tx ORDER BY tx_id")
            assert {key for (key,) in cursor.fetchall()} == set(RESERVED)
        call_command("migrate", "halfmq", "zero", database=alias, verbosity=0)
        assert "mq_tx" not in connections[alias].introspection.table_names()
    finally:
        connections[alias].close()
        del connections.databases[alias]
