"""Statements and commits of one connection, told to one watcher.

SQLAlchemy can register listeners on a connection, but registering and removing three of them takes longer than a short transaction.
So they are registered once for each engine, and look up who watches the connection; for all others that is one look into a dictionary.
"""

import threading
import weakref
from typing import Final, Protocol

from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import Session


class Watcher(Protocol):
    """Who is told. Each of the first three may raise, and what was to happen does not."""

    def before_statement(self, connection: Connection, statement: str) -> None:
        """A statement is about to be executed."""
        ...

    def after_statement(self, connection: Connection, statement: str) -> None:
        """A statement was executed without an error."""
        ...

    def before_commit(self) -> None:
        """COMMIT is about to be sent."""
        ...

    def begun(self, session: Session, connection: Connection) -> None:
        """The session that it watches has begun a transaction or a savepoint on ``connection``."""
        ...

    def committed(self) -> None:
        """The session that it watches has committed a transaction, or released a savepoint; other hooks follow."""
        ...


_WATCHERS: Final[weakref.WeakKeyDictionary[Connection, Watcher]] = weakref.WeakKeyDictionary()
_ENGINES: Final[weakref.WeakSet[Engine]] = weakref.WeakSet()
_LOCK: Final = threading.Lock()
#: Key in ``Session.info``.
_KEY: Final = "halfmq.watcher"


def watch(connection: Connection, watcher: Watcher) -> Watcher | None:
    """Tell ``watcher`` from now on. Returns whom it replaces.

    A connection that was opened before the first one of its engine was watched may be deaf: see ``wake``.
    """
    with _LOCK:
        engine = connection.engine
        if engine not in _ENGINES:
            event.listen(engine, "before_cursor_execute", _before)
            event.listen(engine, "after_cursor_execute", _after)
            event.listen(engine, "commit", _commit)
            _ENGINES.add(engine)
    before = _WATCHERS.get(connection)
    _WATCHERS[connection] = watcher
    return before


def wake(connection: Connection) -> None:
    """Make a connection report events that was opened when its engine had no listeners. Takes long, and is needed once for each."""
    event.listen(connection, "commit", _nothing)


def unwatch(connection: Connection, watcher: Watcher, before: Watcher | None = None) -> None:
    """Tell ``watcher`` no longer, but ``before``. Does nothing if another one has replaced it."""
    if _WATCHERS.get(connection) is watcher:
        if before is None:
            del _WATCHERS[connection]
        else:
            _WATCHERS[connection] = before


def watch_session(session: Session, watcher: Watcher) -> Watcher | None:
    """Call its ``begun``. Returns whom it replaces."""
    before: Watcher | None = session.info.get(_KEY)
    session.info[_KEY] = watcher
    return before


def unwatch_session(session: Session, watcher: Watcher, before: Watcher | None = None) -> None:
    """As ``unwatch``."""
    if session.info.get(_KEY) is watcher:
        if before is None:
            del session.info[_KEY]
        else:
            session.info[_KEY] = before


def _before(connection: Connection, _cursor: object, statement: str, *_: object) -> None:
    watcher = _WATCHERS.get(connection)
    if watcher is not None:
        watcher.before_statement(connection, statement)


def _after(connection: Connection, _cursor: object, statement: str, *_: object) -> None:
    watcher = _WATCHERS.get(connection)
    if watcher is not None:
        watcher.after_statement(connection, statement)


def _commit(connection: Connection) -> None:
    watcher = _WATCHERS.get(connection)
    if watcher is not None:
        watcher.before_commit()


@event.listens_for(Session, "after_begin")
def _begun(session: Session, _transaction: object, connection: Connection) -> None:
    watcher: Watcher | None = session.info.get(_KEY)
    if watcher is not None:
        watcher.begun(session, connection)


@event.listens_for(Session, "after_commit", insert=True)  # before the application's, which may raise
def _committed(session: Session) -> None:
    watcher: Watcher | None = session.info.get(_KEY)
    if watcher is not None:
        watcher.committed()


def _nothing(*_: object) -> None:
    return
