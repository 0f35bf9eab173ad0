"""What SQLAlchemy says of an exception, for the rules about errors."""

from sqlalchemy.exc import DBAPIError, IntegrityError

from halfmq.sql.rules import lock_wait
from halfmq.sql.rules.commit_failure import CommitFailure, classify_commit_failure


def is_lock_wait(error: DBAPIError) -> bool:
    """Whether the statement failed only because of another transaction's lock (timeout, deadlock, serialization)."""
    return lock_wait.is_lock_wait(error, is_connection_lost=error.connection_invalidated)


def commit_failure(error: BaseException, *, commit_sent: bool) -> CommitFailure:
    """What ``error``, raised by a session's commit, means; ``commit_sent``: COMMIT was handed to the driver."""
    return classify_commit_failure(
        error,
        commit_sent=commit_sent,
        is_of_database=isinstance(error, DBAPIError),
        is_connection_lost=isinstance(error, DBAPIError) and error.connection_invalidated,
        is_integrity_error=isinstance(error, IntegrityError),
    )
