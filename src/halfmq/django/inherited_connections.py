"""A forked child leaves its parent's connections alone, and opens its own: see ``sql.alchemy.inherited_pools``, whose reasons are the same.

Django opens a connection for each thread and alias, and closes it at the end of a request only. One that a module has used while gunicorn
loaded it with ``--preload`` would be that of all workers.
"""

import os
import sys
import weakref
from typing import Any, Final

from django.db import connections
from django.db.backends.signals import connection_created

from halfmq.client import forks

#: Django's wrappers, of every thread and alias.
_wrappers: Final[weakref.WeakSet[Any]] = weakref.WeakSet(connections.all(initialized_only=True))


def _opened(*, connection: Any, **_: Any) -> None:
    _wrappers.add(connection)


connection_created.connect(_opened, dispatch_uid="halfmq.inherited_connections")


def _after_fork_in_child() -> None:
    pools = getattr(sys.modules.get("django.db.backends.postgresql.base"), "DatabaseWrapper", None)
    if (known := getattr(pools, "_connection_pools", None)) is not None:  # those of OPTIONS["pool"]
        forks.keep_for_ever(dict(known))
        known.clear()
    for wrapper in list(_wrappers):
        if wrapper.connection is None or (wrapper.vendor == "sqlite" and wrapper.is_in_memory_db()):
            continue
        forks.keep_for_ever(wrapper.connection)
        # In a block that was open at the fork it is refused to go on, and the child's way out of it sends nothing.
        wrapper.connection = forks.ParentsConnection() if wrapper.in_atomic_block else None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
