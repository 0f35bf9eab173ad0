"""A forked child leaves its parent's connections alone, and opens its own: see ``sql.alchemy.inherited_pools``, whose reasons are the same.

Django opens a connection for each thread and alias, and closes it at the end of a request only. One that a module has used while gunicorn
loaded it with ``--preload`` would be that of all workers.
"""

import os
import sys
from typing import Any, Final

from django.db import connections

#: Connections of the parent's drivers. Kept, since freeing one may say goodbye to the server, on the parent's socket.
_parents: Final[list[Any]] = []


def _after_fork_in_child() -> None:
    pools = getattr(sys.modules.get("django.db.backends.postgresql.base"), "DatabaseWrapper", None)
    if (known := getattr(pools, "_connection_pools", None)) is not None:  # those of OPTIONS["pool"]
        _parents.append(dict(known))
        known.clear()
    for connection in connections.all(initialized_only=True):
        # Of a block that was open at the fork it is refused to go on: see ``client.forks``.
        is_kept = connection.in_atomic_block or (connection.vendor == "sqlite" and connection.is_in_memory_db())
        if connection.connection is not None and not is_kept:
            _parents.append(connection.connection)
            connection.connection = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
