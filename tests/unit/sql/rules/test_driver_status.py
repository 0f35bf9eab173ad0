"""What drivers say of their connections. Real ones: ``test_endings``."""

import sqlite3
from types import SimpleNamespace as Says
from typing import Any

import pytest

from halfmq.sql.rules.transaction_proof import Status, commits_by_itself, driver_status


@pytest.mark.parametrize(
    ("product", "driver", "expected"),
    [
        ("sqlite", Says(in_transaction=True), Status.OPEN),
        ("sqlite", Says(in_transaction=False), Status.NONE),
        ("postgresql", Says(info=Says(transaction_status=0)), Status.NONE),
        ("postgresql", Says(info=Says(transaction_status=2)), Status.OPEN),
        ("postgresql", Says(info=Says(transaction_status=3)), Status.FAILED),
        ("postgresql", Says(info=Says(transaction_status=4)), Status.UNKNOWN),
        ("postgresql", Says(is_in_transaction=lambda: True), Status.OPEN),
        ("postgresql", Says(is_in_transaction=lambda: False), Status.NONE),
        ("mysql", Says(server_status=2), Status.NONE),
        ("mariadb", Says(server_status=3), Status.OPEN),
        ("mariadb", Says(server_status=None), Status.UNKNOWN),
        *[(product, Says(), Status.UNKNOWN) for product in ("sqlite", "postgresql", "mysql", "mariadb", "oracle")],
    ],
)
def test_status(product: str, driver: Any, expected: Status) -> None:
    assert driver_status(product, driver) is expected


@pytest.mark.parametrize(
    ("product", "driver", "expected"),
    [
        ("sqlite", Says(in_transaction=False, isolation_level=None), True),
        ("sqlite", Says(in_transaction=False, isolation_level=""), False),
        ("sqlite", Says(in_transaction=False, autocommit=True, isolation_level=""), True),
        ("sqlite", Says(in_transaction=False, autocommit=False, isolation_level=None), False),
        ("sqlite", Says(in_transaction=True, isolation_level=None), False),  # the application has executed BEGIN
        ("postgresql", Says(info=Says(transaction_status=0), autocommit=True), True),
        ("postgresql", Says(info=Says(transaction_status=0), autocommit=False), False),
        ("postgresql", Says(info=Says(transaction_status=2), autocommit=True), False),
        ("mariadb", Says(server_status=2), True),
        ("mariadb", Says(server_status=0), False),
        ("oracle", Says(autocommit=True), False),
    ],
)
def test_driver_that_commits_each_statement(product: str, driver: Any, expected: bool) -> None:
    assert commits_by_itself(product, driver) is expected


def test_a_real_connection() -> None:
    connection = sqlite3.connect(":memory:")
    assert (driver_status("sqlite", connection), commits_by_itself("sqlite", connection)) == (Status.NONE, False)
    connection.execute("CREATE TABLE t (i INT)")
    connection.execute("INSERT INTO t VALUES (1)")
    assert driver_status("sqlite", connection) is Status.OPEN
    connection.close()
    connection = sqlite3.connect(":memory:", isolation_level=None)
    assert commits_by_itself("sqlite", connection)
    connection.close()
