"""A real PostgreSQL for tests, one server per session. In CI it must exist; elsewhere the test is skipped and says how to get it."""

import uuid
from collections.abc import Iterator

import psycopg
import pytest
from demo.postgres_server import PostgresMissing, PostgresServer

from tests.support.servers import running


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    yield from running(PostgresServer(settings={"max_prepared_transactions": "64"}), PostgresMissing)


@pytest.fixture
def postgres_database(postgres_server: PostgresServer) -> Iterator[str]:
    """The name of a fresh database."""
    name = f"t{uuid.uuid4().hex[:12]}"
    where = {"host": str(postgres_server.directory), "user": "postgres", "dbname": "postgres"}
    with psycopg.connect(**where, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield name
    with psycopg.connect(**where, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
