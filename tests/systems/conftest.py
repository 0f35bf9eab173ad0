"""A broker that checks soon, as a process, and the databases."""

from collections.abc import Iterator

import pytest

from tests.support.mariadb import mariadb_database, mariadb_server
from tests.support.postgres import postgres_database, postgres_server
from tests.support.served import Served

__all__ = ["mariadb_database", "mariadb_server", "postgres_database", "postgres_server"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    work = tmp_path_factory.mktemp("broker")
    soon = [
        "--check-immunity-ms", "300", "--check-interval-ms", "200", "--check-interval-max-ms", "500", "--check-answer-ms", "300",
    ]  # fmt: skip
    made = Served(work / "data", work / "log", "--durability", "memory", *soon)
    made.start()
    yield made
    made.stop()
