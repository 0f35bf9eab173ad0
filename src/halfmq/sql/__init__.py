"""Database integration for SQLAlchemy, sync and async: one outcome for a database transaction and its messages.

``MarkerTable`` is the marker table behind ``mq.transaction(session, markers=...)`` and ``mq.answer_checks(...)``;
``Inbox`` makes a consumer's effect exactly once in its own database. Needs the extra ``halfmq[sql]``.

Raises:
    MissingDependency: on import, without SQLAlchemy.
"""

from halfmq.errors import MissingDependency

try:
    from halfmq.sql.inbox import Inbox
    from halfmq.sql.marker_table import MarkerTable
    from halfmq.sql.transaction import SqlTransaction
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] not in ("sqlalchemy", "greenlet"):
        raise
    raise MissingDependency(f"{error.name} is not installed", hint="pip install 'halfmq[sql]'") from error

__all__ = ["Inbox", "MarkerTable", "SqlTransaction"]
