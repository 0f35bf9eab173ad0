"""What SQLAlchemy says of an exception: for the rules about errors, and for people."""

from typing import Final

from sqlalchemy import URL, Connection, Engine
from sqlalchemy.exc import DBAPIError, IntegrityError, ProgrammingError

from halfmq.errors import MissingTable
from halfmq.sql.rules import lock_wait
from halfmq.sql.rules.driver_errors import (
    SQLITE_ERROR,
    CommitFailure,
    classify_commit_failure,
    driver_error,
    sqlite_error_code,
)

#: Execution option of an engine whose tables are created by something else than `halfmq db init`: what creates them.
CREATED_BY: Final = "halfmq_created_by"


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


def reason(error: BaseException) -> str:
    """For people, in one line: what the driver says. SQLAlchemy's own text adds the statement, and its parameters, such as bodies."""
    return " ".join(str(driver_error(error)).split())


def is_of_the_tables(error: BaseException) -> bool:
    """Whether the database answered, and lacks a table or a column that the statement names."""
    return isinstance(error, ProgrammingError) or sqlite_error_code(error) == SQLITE_ERROR


def place(url: URL) -> str:
    """The database for people, without user, password, driver and options."""
    host = f"{url.host or ''}{f':{url.port}' if url.port else ''}"
    return f"{url.get_backend_name()}://{host}/{url.database or ''}"


def no_table(name: str, bind: Connection | Engine) -> MissingTable:
    """That a table of halfmq is not in the database, with what creates it."""
    created_by = bind.get_execution_options().get(CREATED_BY)
    return MissingTable(
        f"there is no table {name} in {place(bind.engine.url)}",
        hint=created_by or "`halfmq db init MODULE:APP` creates it, or your migration",
    )
