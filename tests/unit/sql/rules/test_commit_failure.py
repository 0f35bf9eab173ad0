"""Rolled back only if it is certain."""

import asyncio
from typing import NamedTuple

import pytest

from halfmq.sql.rules.driver_errors import CommitFailure, classify_commit_failure


class Driver(Exception):
    def __init__(self, *args: object, **fields: object) -> None:
        super().__init__(*args)
        for name, value in fields.items():
            setattr(self, name, value)


class Case(NamedTuple):
    name: str
    error: BaseException
    is_of_database: bool = True
    is_connection_lost: bool = False
    is_integrity_error: bool = False

    def meaning(self, *, commit_sent: bool) -> CommitFailure:
        _, error, *facts = self
        return classify_commit_failure(
            error, commit_sent=commit_sent, **dict(zip(self._fields[2:], facts, strict=True))
        )  # type: ignore[arg-type]


CERTAIN = [
    Case("serialization failure", Driver(sqlstate="40001")),
    Case("deadlock", Driver(pgcode="40P01")),
    Case("deferred constraint", Driver(sqlstate="23503")),
    Case("raised by a constraint trigger", Driver(sqlstate="P0001")),
    Case("SQLite: another connection writes", Driver(sqlite_errorcode=5)),
    Case("SQLite: deferred foreign key", Driver(sqlite_errorcode=787)),
    Case("MySQL: deadlock", Driver(1213, "Deadlock found")),
    Case("a driver that only says integrity", Driver("x"), is_integrity_error=True),
]

UNCERTAIN = [
    Case("the connection is gone", Driver(sqlstate="40001"), is_connection_lost=True),
    Case(
        "the connection is gone with a violated constraint",
        Driver("x"),
        is_connection_lost=True,
        is_integrity_error=True,
    ),
    Case("statement completion unknown", Driver(sqlstate="40003")),
    Case("connection failure", Driver(sqlstate="08006")),
    Case("the server is told to stop", Driver(sqlstate="57P01")),
    Case("disk full", Driver(sqlstate="53100")),
    Case("internal error", Driver(sqlstate="XX000")),
    Case("a code counts more than the class of the error", Driver(sqlstate="40003"), is_integrity_error=True),
    Case("SQLite: I/O error", Driver(sqlite_errorcode=10)),
    Case("SQLite: I/O error in fsync", Driver(sqlite_errorcode=1034)),
    Case("SQLite: disk full", Driver(sqlite_errorcode=13)),
    Case("MySQL: server has gone away", Driver(2006, "gone away")),
    Case("an error that says nothing", Driver("?")),
    Case("not the database's error", RuntimeError("hook"), is_of_database=False),
    Case("another database's error, raised by a hook", Driver(sqlstate="40001"), is_of_database=False),
    Case("time ran out", TimeoutError(), is_of_database=False),
    Case("cancelled", asyncio.CancelledError(), is_of_database=False),
]


@pytest.mark.parametrize("case", CERTAIN, ids=lambda case: case.name)
def test_servers_own_refusal_is_certain(case: Case) -> None:
    assert case.meaning(commit_sent=True) is CommitFailure.ROLLED_BACK


@pytest.mark.parametrize("case", UNCERTAIN, ids=lambda case: case.name)
def test_anything_else_is_unknown(case: Case) -> None:
    assert case.meaning(commit_sent=True) is CommitFailure.UNKNOWN


@pytest.mark.parametrize("case", UNCERTAIN, ids=lambda case: case.name)
def test_before_commit_was_sent_everything_is_certain(case: Case) -> None:
    assert case.meaning(commit_sent=False) is CommitFailure.ROLLED_BACK
