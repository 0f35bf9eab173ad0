"""What Django says of a connection and of an exception, for the rules; and a short transaction with a limited lock wait.

Products are named as in ``sql.rules``; Django's ``vendor`` is ``mysql`` for MariaDB too, and the rules take both for the same.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import DatabaseError, IntegrityError, connections, transaction
from django.db import Error as AnyError

from halfmq.client.log import logger
from halfmq.django.tables import TABLES
from halfmq.errors import MissingTable
from halfmq.sql.rules import lock_wait
from halfmq.sql.rules.check import READ_COMMITTED
from halfmq.sql.rules.driver_errors import CommitFailure, classify_commit_failure
from halfmq.sql.rules.lock_wait import CONNECTION_SETTINGS, transaction_setting
from halfmq.sql.rules.transaction_proof import Status, driver_status

_log = logger(__name__)


def connection_to(using: str) -> Any:
    """This thread's connection to the database of that alias, in its present state."""
    return connections[using]


def status(connection: Any) -> Status:
    """What the driver says about its connection."""
    return driver_status(connection.vendor, connection.connection)


def text_of(sql: Any, connection: Any) -> str:
    """A statement as text: Django passes on whatever its driver takes."""
    if isinstance(sql, str):
        return sql
    if isinstance(sql, bytes):
        return sql.decode(errors="replace")
    if hasattr(sql, "as_string"):  # of psycopg.sql
        return str(sql.as_string(connection.connection))
    return str(sql)


def _is_lost(connection: Any) -> bool:
    driver = connection.connection
    return driver is None or bool(getattr(driver, "closed", False))


def is_lock_wait(error: BaseException, connection: Any) -> bool:
    """Whether the statement failed only because of another transaction's lock (timeout, deadlock, serialization)."""
    return lock_wait.is_lock_wait(error, is_connection_lost=_is_lost(connection))


def commit_failure(error: BaseException, *, commit_sent: bool, is_connection_lost: bool) -> CommitFailure:
    """What ``error``, raised at the end of the outermost ``atomic``, means."""
    return classify_commit_failure(
        error,
        commit_sent=commit_sent,
        is_of_database=isinstance(error, AnyError),
        is_connection_lost=is_connection_lost,
        is_integrity_error=isinstance(error, IntegrityError),
    )


def place(connection: Any) -> str:
    """The database for people, without user and password."""
    values = connection.settings_dict
    host = f"{values.get('HOST') or ''}{':' + str(values['PORT']) if values.get('PORT') else ''}"
    return f"{connection.vendor}://{host}/{values.get('NAME') or ''}"


def table_exists(using: str, table: str) -> bool:
    """Whether the database has it."""
    connection = connections[using]
    with connection.cursor() as cursor:
        return table in connection.introspection.table_names(cursor)


def created_by(using: str) -> str:
    """What creates the tables of halfmq there."""
    return f"manage.py migrate halfmq --database {using}"


def missing_tables(using: str) -> list[str]:
    """The tables of halfmq that the database does not have."""
    connection = connections[using]
    with connection.cursor() as cursor:
        there = set(connection.introspection.table_names(cursor))
    return [table for table in TABLES if table not in there]


def no_table(tables: Sequence[str], using: str) -> MissingTable:
    """That tables of halfmq are not in the database, with what creates them."""
    return MissingTable(f"there is no table {', '.join(tables)} in {place(connections[using])}", hint=created_by(using))


def require_tables(databases: Iterable[str]) -> None:
    """For a process that begins to use them: all tables of halfmq are in these databases, as far as these can be asked now.

    Raises:
        MissingTable: one is not.
    """
    for using in dict.fromkeys(databases):
        connection = connections[using]
        try:
            missing = missing_tables(using)
        except AnyError as error:
            _log.warning("%s cannot be asked for the tables of halfmq: %s", place(connection), error)
            continue
        connection.close_if_unusable_or_obsolete()  # as after a request
        if missing:
            raise no_table(missing, using)


@contextmanager
def short_transaction(connection: Any, wait_ms: int) -> Iterator[Any]:
    """One transaction, committed at the end of the block, that waits for a lock at most ``wait_ms``. Yields a cursor.

    ``connection`` has no transaction open. MySQL rounds to whole seconds, at least one.
    """
    product = connection.vendor
    setting = CONNECTION_SETTINGS.get(product)
    before = None
    if setting is not None:
        with connection.cursor() as cursor:
            cursor.execute(setting.read)
            (before,) = cursor.fetchone()
            cursor.execute(setting.write.format(setting.from_ms(wait_ms)))
    # PostgreSQL has the level of the transaction that is open, MySQL that of the next one.
    read_committed = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED" if product in READ_COMMITTED else None
    try:
        if read_committed is not None and product != "postgresql":
            with connection.cursor() as cursor:
                cursor.execute(read_committed)
        with transaction.atomic(using=connection.alias, durable=True), connection.cursor() as cursor:
            if read_committed is not None and product == "postgresql":
                cursor.execute(read_committed)
            if (limit := transaction_setting(product, wait_ms)) is not None:
                cursor.execute(limit)
            yield cursor
    finally:
        if setting is not None and before is not None and not _is_lost(connection):
            try:
                with connection.cursor() as cursor:
                    cursor.execute(setting.write.format(int(before)))
            except DatabaseError:
                connection.close()  # never leave the short limit to the application
