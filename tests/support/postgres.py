"""A real PostgreSQL for tests, one server per session. In CI it must exist; elsewhere the test is skipped and says how to get it."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psycopg
import pytest
from demo.postgres_server import PostgresMissing, PostgresServer

from tests.support.servers import running

#: Directory of a server -> names of databases that tests have left there.
_EMPTIED: Final[dict[Path, list[str]]] = {}
#: Ends who is still connected, and takes every schema away. A transaction that is left prepared keeps its locks, and this fails.
_EMPTY: Final = """
SET lock_timeout = '30s';
DO $$
DECLARE name text;
BEGIN
    PERFORM pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid();
    FOR name IN SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' LOOP
        EXECUTE format('DROP SCHEMA %I CASCADE', name);
    END LOOP;
    CREATE SCHEMA public;
END $$
"""


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    yield from running(PostgresServer(settings={"max_prepared_transactions": "64"}), PostgresMissing)


@pytest.fixture
def postgres_database(postgres_server: PostgresServer) -> Iterator[str]:
    """The name of a database that is like a fresh one. It is emptied and taken again: to create one costs PostgreSQL 200 ms of CPU."""
    where = {"host": str(postgres_server.directory), "user": "postgres"}
    empty = _EMPTIED.setdefault(postgres_server.directory, [])
    if empty:
        name = empty.pop()
    else:
        name = f"t{uuid.uuid4().hex[:12]}"
        with psycopg.connect(**where, dbname="postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
    yield name
    with psycopg.connect(**where, dbname=name, autocommit=True) as connection:
        connection.execute(_EMPTY)
    empty.append(name)
