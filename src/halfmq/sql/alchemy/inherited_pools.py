"""A forked child leaves its parent's connections alone, and opens its own.

Two processes that share a socket read each other's answers, so rows are committed in the wrong transaction and messages are missing. It
takes no more than ``create_all`` in a module that gunicorn loads with ``--preload``. SQLAlchemy leaves it to the application to call
``Engine.dispose(close=False)`` in each child; here that is done for every connection that is opened after ``halfmq.sql`` was imported.
One that is in use at the fork, such as of a session of another thread, would send its ROLLBACK when the child frees it: see
``forks.ParentsConnection``.
"""

import os
import sqlite3
import weakref
from typing import Any, Final

from sqlalchemy import Connection, Engine, event
from sqlalchemy.pool import Pool, SingletonThreadPool, StaticPool

from halfmq.client import forks

_used: Final[weakref.WeakSet[Engine]] = weakref.WeakSet()
#: What pools know of each connection that was opened.
_records: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


@event.listens_for(Engine, "engine_connect")
def _connected(connection: Connection) -> None:
    _used.add(connection.engine)


@event.listens_for(Pool, "connect")
def _opened(driver: Any, record: Any) -> None:
    if not (isinstance(driver, sqlite3.Connection) and _is_in_memory(driver)):  # of which a child has a copy
        _records.add(record)


def _is_in_memory(driver: sqlite3.Connection) -> bool:
    return not any(file for _, name, file in driver.execute("PRAGMA database_list") if name == "main")


def _after_fork_in_child() -> None:
    for record in list(_records):
        if record.dbapi_connection is None:
            continue
        forks.keep_for_ever(record.dbapi_connection)
        user = record.fairy_ref and record.fairy_ref()
        if record.fairy_ref is None:
            record.dbapi_connection = None  # the pool opens another one
        else:
            record.dbapi_connection = forks.ParentsConnection()
        if user is not None:
            user.dbapi_connection = record.dbapi_connection
    for engine in list(_used):
        pool = engine.pool
        if not (engine.dialect.name == "sqlite" and isinstance(pool, StaticPool | SingletonThreadPool)):
            forks.keep_for_ever(pool)  # its lock may be held
            engine.dispose(close=False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
