"""Classifies an exception of COMMIT: certainly rolled back, or unknown.

It is certain in two cases only. COMMIT was not sent: then the transaction ends with the connection at the latest. Or the server
answered COMMIT with an error that, by its documentation, means that the transaction was aborted. Everything else (lost
connection, timeout, cancelled task, I/O error, exception of a hook after COMMIT) is unknown: the half messages are left alone,
and the check decides.

A wrong "unknown" costs seconds. A wrong "rolled back" loses messages of a committed order.
"""

from enum import Enum
from typing import Final, NamedTuple

from halfmq.sql.rules.driver_errors import mysql_error_number, sqlite_error_code, sqlstate

#: PostgreSQL aborts the transaction with any ERROR during COMMIT. Left out, so unknown: connection exceptions (08),
#: resources (53), operator intervention (57: also sent while the commit record may be written), system and internal
#: errors (58, F0, XX), and 40003, statement completion unknown.
_ABORTED_CLASSES: Final = frozenset({"21", "22", "23", "25", "27", "40", "42", "44", "55", "P0"})
_COMPLETION_UNKNOWN: Final = "40003"

#: SQLite's primary codes after which nothing of the transaction is in the file: BUSY, LOCKED, CONSTRAINT.
#: Left out on purpose: IOERR and FULL (the commit frame may already stand in the WAL).
_SQLITE_ABORTED: Final = frozenset({5, 6, 19})

#: MySQL and MariaDB: deadlock, certification failure of a Galera cluster.
_MYSQL_ABORTED: Final = frozenset({1213, 3101})


class CommitFailure(Enum):
    """What a failed COMMIT did to the local transaction."""

    ROLLED_BACK = "rolled back"
    UNKNOWN = "unknown"


class FailedCommit(NamedTuple):
    """An exception of COMMIT, and what it means for the transaction."""

    meaning: CommitFailure
    error: BaseException


def classify_commit_failure(
    error: BaseException,
    *,
    commit_sent: bool,
    is_of_database: bool,
    is_connection_lost: bool,
    is_integrity_error: bool,
) -> CommitFailure:
    """Whether the local transaction whose commit raised ``error`` is certainly rolled back.

    ``commit_sent``: the COMMIT statement was handed to the driver (before that, flushes and hooks run). The others are what the
    database library says of ``error``. ``is_of_database``: it raised it for the driver's; an exception of anything else says nothing
    about COMMIT, whatever numbers it has. ``is_integrity_error``: a constraint was violated; asked where the driver gives no code.
    """
    if not commit_sent:
        return CommitFailure.ROLLED_BACK
    if is_of_database and not is_connection_lost and _server_aborted(error, is_integrity_error):
        return CommitFailure.ROLLED_BACK
    return CommitFailure.UNKNOWN


def _server_aborted(error: BaseException, is_integrity_error: bool) -> bool:
    if (code := sqlite_error_code(error)) is not None:
        return code & 0xFF in _SQLITE_ABORTED
    if (state := sqlstate(error)) is not None:
        return state != _COMPLETION_UNKNOWN and state[:2] in _ABORTED_CLASSES
    if mysql_error_number(error) in _MYSQL_ABORTED:
        return True
    return is_integrity_error
