"""Database integration for SQLAlchemy, sync and async: one outcome for a database transaction and its messages.

``MarkerTable`` is the marker table behind ``mq.transaction(session, markers=...)`` and ``mq.answer_checks(...)``; ``Inbox`` makes a
consumer's effect exactly once in its own database, ``Barrier`` those of a participant of Try/Confirm/Cancel; ``Outbox`` writes messages as
rows, which a relay publishes. ``create_tables``, ``upgrade_tables`` and ``tables_of`` find what is declared in a ``MetaData``; ``halfmq
db`` does so from the command line. Needs the extra ``halfmq[sql]``.

Names are imported lazily, so that ``halfmq.sql.rules`` can be used without SQLAlchemy.

Raises:
    MissingDependency: without SQLAlchemy, when a name is imported from this package.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halfmq.sql.alchemy import Barrier, Inbox, MarkerTable, Outbox, create_tables, tables_of, upgrade_tables
    from halfmq.sql.rules.block import SqlTransaction

__all__ = [
    "Barrier",
    "Inbox",
    "MarkerTable",
    "Outbox",
    "SqlTransaction",
    "create_tables",
    "tables_of",
    "upgrade_tables",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from halfmq.sql import alchemy
    from halfmq.sql.rules import block

    value = getattr(alchemy if hasattr(alchemy, name) else block, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
