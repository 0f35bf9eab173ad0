"""Rolled back only if it is certain."""

import asyncio

import pytest
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from halfmq.sql.commit_failure import CommitFailure, classify_commit_failure


class Driver(Exception):
    def __init__(self, *args: object, **fields: object) -> None:
        super().__init__(*args)
        for name, value in fields.items():
            setattr(self, name, value)


def operational(*args: object, lost: bool = False, **fields: object) -> DBAPIError:
    return OperationalError("COMMIT", None, Driver(*args, **fields), connection_invalidated=lost)


CERTAIN = [
    ("serialization failure", operational(sqlstate="40001")),
    ("deadlock", operational(pgcode="40P01")),
    ("deferred constraint", operational(sqlstate="23503")),
    ("raised by a constraint trigger", operational(sqlstate="P0001")),
    ("SQLite: another connection writes", operational(sqlite_errorcode=5)),
    ("SQLite: deferred foreign key", operational(sqlite_errorcode=787)),
    ("MySQL: deadlock", operational(1213, "Deadlock found")),
    ("a driver that only says integrity", IntegrityError("COMMIT", None, Driver("x"))),
]

UNCERTAIN = [
    ("the connection is gone", operational(sqlstate="40001", lost=True)),
    ("statement completion unknown", operational(sqlstate="40003")),
    ("connection failure", operational(sqlstate="08006")),
    ("the server is told to stop", operational(sqlstate="57P01")),
    ("disk full", operational(sqlstate="53100")),
    ("internal error", operational(sqlstate="XX000")),
    ("SQLite: I/O error", operational(sqlite_errorcode=10)),
    ("SQLite: I/O error in fsync", operational(sqlite_errorcode=1034)),
    ("SQLite: disk full", operational(sqlite_errorcode=13)),
    ("MySQL: server has gone away", operational(2006, "gone away")),
    ("an error that says nothing", operational("?")),
    ("not the database's error", RuntimeError("hook")),
    ("time ran out", TimeoutError()),
    ("cancelled", asyncio.CancelledError()),
]


@pytest.mark.parametrize("error", [error for _, error in CERTAIN], ids=[name for name, _ in CERTAIN])
def test_servers_own_refusal_is_certain(error: BaseException) -> None:
    assert classify_commit_failure(error, commit_sent=True) is CommitFailure.ROLLED_BACK


@pytest.mark.parametrize("error", [error for _, error in UNCERTAIN], ids=[name for name, _ in UNCERTAIN])
def test_anything_else_is_unknown(error: BaseException) -> None:
    assert classify_commit_failure(error, commit_sent=True) is CommitFailure.UNKNOWN


@pytest.mark.parametrize("error", [error for _, error in UNCERTAIN], ids=[name for name, _ in UNCERTAIN])
def test_before_commit_was_sent_everything_is_certain(error: BaseException) -> None:
    assert classify_commit_failure(error, commit_sent=False) is CommitFailure.ROLLED_BACK
