"""A Django project, and real databases."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import django
import pytest

from tests.django.shop import mysql_driver
from tests.support.mariadb import mariadb_database, mariadb_server
from tests.support.postgres import postgres_database, postgres_server
from tests.support.served import Served
from tests.unit.sql.memory_broker import MemoryBroker, MemoryClient

__all__ = ["mariadb_database", "mariadb_server", "postgres_database", "postgres_server"]

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.django.shop.settings")
_MYSQL_DRIVER = mysql_driver.install()
django.setup()

POSTGRES = pytest.param("postgres", marks=[pytest.mark.slow, pytest.mark.postgres])
MARIADB = pytest.param("mariadb", marks=[pytest.mark.slow, pytest.mark.mariadb])


def pytest_report_header() -> str:
    """What test_other_environments.py looks for."""
    return f"Django {django.get_version()}, MariaDB by {_MYSQL_DRIVER}"


@pytest.fixture(params=["sqlite", POSTGRES, MARIADB])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """What ``DATABASES`` says of an empty database."""
    return place_of(request.param, request, tmp_path)


def place_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    if kind == "sqlite":
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "shop.db"), "OPTIONS": {"timeout": 20}}
    if kind == "mariadb":
        socket = str(request.getfixturevalue("mariadb_server").socket)
        name = request.getfixturevalue("mariadb_database")
        return {"ENGINE": "django.db.backends.mysql", "NAME": name, "USER": "root", "HOST": socket}
    directory = str(request.getfixturevalue("postgres_server").directory)
    name = request.getfixturevalue("postgres_database")
    return {"ENGINE": "django.db.backends.postgresql", "NAME": name, "USER": "postgres", "HOST": directory}


@pytest.fixture
def using(database: dict[str, Any]) -> Iterator[str]:
    """The alias of a database with all tables."""
    from django.db import connections

    from halfmq.django.markers import markers_of
    from halfmq.django.tables import statements
    from tests.django.shop.models import Order

    alias = "default"
    before = connections.databases[alias]
    if hasattr(connections._connections, alias):
        connections[alias].close()
        del connections[alias]
    markers_of.cache_clear()
    connections.databases[alias] = connections.configure_settings({alias: database})[alias]
    # As the migrations do, of which each test would take seconds.
    connection = connections[alias]
    with connection.schema_editor() as editor:
        for statement in statements(connection.vendor):
            editor.execute(statement, params=None)
        editor.create_model(Order)
    markers_of(alias).rows.establish_again()
    yield alias
    connections[alias].close()
    del connections[alias]
    connections.databases[alias] = before
    markers_of.cache_clear()


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
def client(broker: MemoryBroker) -> MemoryClient:
    return MemoryClient(broker)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    soon = [
        "--check-immunity-ms", "300", "--check-interval-ms", "200", "--check-interval-max-ms", "500", "--check-answer-ms", "1000",
    ]  # fmt: skip
    made = Served(tmp_path / "data", tmp_path / "log", "--durability", "memory", *soon)
    made.start()
    yield made
    made.stop()
