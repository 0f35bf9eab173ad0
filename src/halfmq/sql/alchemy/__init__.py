"""``halfmq.sql`` on SQLAlchemy, sync and async: executes what ``halfmq.sql.rules`` decides.

Raises:
    MissingDependency: on import, without SQLAlchemy.
"""

from halfmq.errors import MissingDependency

try:
    from halfmq.sql.alchemy import inherited_pools as inherited_pools
    from halfmq.sql.alchemy.barrier import Barrier
    from halfmq.sql.alchemy.declared import create_tables, tables_of, upgrade_tables
    from halfmq.sql.alchemy.inbox import Inbox
    from halfmq.sql.alchemy.marker_table import MarkerTable
    from halfmq.sql.alchemy.outbox import Outbox
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] not in ("sqlalchemy", "greenlet"):
        raise
    raise MissingDependency(f"{error.name} is not installed", hint="pip install 'halfmq[sql]'") from error

__all__ = ["Barrier", "Inbox", "MarkerTable", "Outbox", "create_tables", "tables_of", "upgrade_tables"]
