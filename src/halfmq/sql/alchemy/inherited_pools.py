"""A forked child leaves its parent's connections alone: its engines begin with an empty pool.

Two processes that share a socket read each other's answers, so rows are committed in the wrong transaction and messages are missing. It
takes no more than ``create_all`` in a module that gunicorn loads with ``--preload``. SQLAlchemy leaves it to the application to call
``Engine.dispose(close=False)`` in each child; here it is called for every engine that has had a connection since ``halfmq.sql`` was
imported.
"""

import os
import weakref
from typing import Any, Final

from sqlalchemy import Connection, Engine, event
from sqlalchemy.pool import SingletonThreadPool, StaticPool

_used: Final[weakref.WeakSet[Engine]] = weakref.WeakSet()
#: Pools of the parent. Kept, since freeing the connection of a driver may say goodbye to the server, on the parent's socket.
_parents: Final[list[Any]] = []


@event.listens_for(Engine, "engine_connect")
def _connected(connection: Connection) -> None:
    _used.add(connection.engine)


def _after_fork_in_child() -> None:
    for engine in list(_used):
        pool = engine.pool
        if engine.dialect.name == "sqlite" and isinstance(
            pool, StaticPool | SingletonThreadPool
        ):  # in memory: a child has a copy
            continue
        _parents.append(pool)
        engine.dispose(close=False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
