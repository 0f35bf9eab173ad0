"""What SQLAlchemy says of an exception reaches the rules."""

import pytest
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from halfmq.sql.alchemy.errors import commit_failure, is_lock_wait
from halfmq.sql.rules.driver_errors import CommitFailure


class Driver(Exception):
    """An exception of psycopg: serialization failure, which is also a lock that was waited for in vain."""

    sqlstate = "40001"


def serialization(*, lost: bool = False) -> DBAPIError:
    return OperationalError("COMMIT", None, Driver(), connection_invalidated=lost)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (serialization(), CommitFailure.ROLLED_BACK),
        (serialization(lost=True), CommitFailure.UNKNOWN),
        (IntegrityError("COMMIT", None, Exception("x")), CommitFailure.ROLLED_BACK),
        (IntegrityError("COMMIT", None, Exception("x"), connection_invalidated=True), CommitFailure.UNKNOWN),
        (OperationalError("COMMIT", None, Exception("x")), CommitFailure.UNKNOWN),
        (Driver(), CommitFailure.UNKNOWN),
        (RuntimeError("hook"), CommitFailure.UNKNOWN),
    ],
)
def test_meaning_of_a_failed_commit(error: Exception, expected: CommitFailure) -> None:
    """Of the driver's own exception too: SQLAlchemy wraps those of its connection, so it is of another one."""
    assert commit_failure(error, commit_sent=True) is expected
    assert commit_failure(error, commit_sent=False) is CommitFailure.ROLLED_BACK


def test_lost_connection_is_no_lock_wait() -> None:
    assert is_lock_wait(serialization())
    assert not is_lock_wait(serialization(lost=True))
