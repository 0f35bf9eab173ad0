"""Who is told of what happens on a connection of SQLAlchemy: of each the detector of its transaction, and of some a guard.

The listeners are registered once, for all engines: registering some on a connection takes longer than a short transaction, and an engine
that is known only when its first message is written has had transactions before.
"""

import weakref
from collections.abc import Iterable
from functools import partial
from typing import Any, Final, Protocol

from sqlalchemy import Connection, Engine, Table, event
from sqlalchemy.engine import ExceptionContext

from halfmq.client import forks
from halfmq.errors import MissingTable
from halfmq.sql.alchemy.dialects import on_cursor
from halfmq.sql.alchemy.errors import no_table
from halfmq.sql.rules.driver_errors import missing_table
from halfmq.sql.rules.transaction_end import EndDetector, asked_status, refuse_ended, status_after_error
from halfmq.sql.rules.transaction_proof import Status, driver_status


class Watcher(Protocol):
    """Where one of these raises, what it is told of does not happen."""

    def before_statement(self, connection: Connection, statement: str) -> None: ...

    def after_statement(self, connection: Connection, statement: str) -> None: ...

    def before_commit(self) -> None: ...


class _Seen:
    """Of one connection."""

    __slots__ = ("begun_in", "detector", "watcher")

    def __init__(self) -> None:
        self.detector = EndDetector()
        self.begun_in = forks.generation
        self.watcher: Watcher | None = None


#: Execution option of rows that a table has from the beginning, so that they belong to no message: on MySQL CREATE TABLE commits.
SETS_UP: Final = {"halfmq_sets_up": True}
#: The tables of halfmq.
_TABLES: Final[weakref.WeakSet[Table]] = weakref.WeakSet()
_SEEN: Final[weakref.WeakKeyDictionary[Connection, _Seen]] = weakref.WeakKeyDictionary()


def status(connection: Connection) -> Status:
    """What its driver says about it."""
    return driver_status(connection.dialect.name, connection.connection.driver_connection)


def refuse_rows_of(tables: Iterable[Table]) -> None:
    """From now on a change of their rows is refused in a transaction that has ended before."""
    _TABLES.update(tables)


def _of(connection: Connection) -> _Seen:
    seen = _SEEN.get(connection)
    if seen is None:
        seen = _SEEN[connection] = _Seen()
    return seen


def watch(connection: Connection, watcher: Watcher) -> Watcher | None:
    """Tell ``watcher`` from now on. Returns whom it replaces.

    A connection that was opened before this module was imported may be deaf: see ``wake``.
    """
    seen = _of(connection)
    before, seen.watcher = seen.watcher, watcher
    return before


def unwatch(connection: Connection, watcher: Watcher, before: Watcher | None = None) -> None:
    """Tell ``watcher`` no longer, but ``before``. Does nothing if another one has replaced it."""
    seen = _SEEN.get(connection)
    if seen is not None and seen.watcher is watcher:
        seen.watcher = before


def wake(connection: Connection) -> None:
    """Make a connection report events that was opened when nobody listened. Takes long, and is needed once for each."""
    event.listen(connection, "commit", _nothing)


@event.listens_for(Engine, "begin")
@event.listens_for(Engine, "begin_twophase")
def _begun(connection: Connection, *_: object) -> None:
    seen = _of(connection)
    seen.detector, seen.begun_in = EndDetector(), forks.generation


@event.listens_for(Engine, "before_cursor_execute")
def _before(
    connection: Connection, _cursor: object, statement: str, _parameters: object, context: Any, *_: object
) -> None:
    seen = _SEEN.get(connection)
    if seen is None:
        return
    if seen.watcher is not None:
        seen.watcher.before_statement(connection, statement)
    if connection.get_transaction() is None:  # a listener executes it to begin the transaction
        return
    detector, product = seen.detector, connection.dialect.name
    detector.before(statement, product, status(connection), lambda: _asked(connection))
    if detector.ended_by or seen.begun_in != forks.generation:
        is_of_halfmq = _writes_to_halfmq(context)
        if is_of_halfmq:
            forks.refuse_in_child(seen.begun_in, "the database transaction", "fork outside of it")
        refuse_ended(detector, statement, product, is_of_halfmq=is_of_halfmq, savepoint="session.begin_nested()")


@event.listens_for(Engine, "after_cursor_execute")
def _after(
    connection: Connection, _cursor: object, statement: str, _parameters: object, context: Any, *_: object
) -> None:
    seen = _SEEN.get(connection)
    if seen is None:
        return
    if connection.get_transaction() is not None:
        detector = seen.detector
        detector.after(statement, connection.dialect.name, status(connection))
        if not detector.has_rows:
            detector.has_rows = _writes_to_halfmq(context)
    if seen.watcher is not None:
        seen.watcher.after_statement(connection, statement)


@event.listens_for(Engine, "handle_error")
def _failed(context: ExceptionContext) -> MissingTable | None:
    """What is raised in place of the database's own exception, with that as its cause; None: nothing."""
    connection, statement, error = context.connection, context.statement or "", context.original_exception
    is_of_database = context.sqlalchemy_exception is not None
    if connection is None or not is_of_database or context.is_disconnect:  # lost, and the transaction with it
        return None
    if connection.closed or connection.invalidated:  # rows are read that it has sent before
        return None
    seen, product = _SEEN.get(connection), connection.dialect.name
    if seen is not None:
        driver = connection.connection.driver_connection
        seen.detector.failed(
            statement, product, lambda: status_after_error(product, driver, error, partial(on_cursor, connection))
        )
    missing = missing_table(error, statement, {table.name for table in _TABLES})
    return None if missing is None else no_table(missing, connection)


def _asked(connection: Connection) -> Status:
    return asked_status(
        connection.dialect.name, connection.connection.driver_connection, partial(on_cursor, connection)
    )


@event.listens_for(Engine, "commit")
def _commit(connection: Connection) -> None:
    seen = _SEEN.get(connection)
    if seen is None:
        return
    if seen.watcher is not None:
        seen.watcher.before_commit()
    if seen.detector.has_rows:
        seen.detector.before_commit(connection.dialect.name, status(connection), lambda: _asked(connection))


def _writes_to_halfmq(context: Any) -> bool:
    """Whether the statement changes a table of halfmq, whichever."""
    if not (context.isinsert or context.isupdate or context.isdelete):
        return False
    table = getattr(getattr(context, "invoked_statement", None), "table", None)
    return isinstance(table, Table) and table in _TABLES and not SETS_UP.items() <= context.execution_options.items()


def _nothing(*_: object) -> None:
    return
