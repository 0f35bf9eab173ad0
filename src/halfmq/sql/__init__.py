"""Database integration for SQLAlchemy, sync and async: one outcome for a database transaction and its messages.

``TransactionLog`` is the marker table behind ``mq.transaction(session, log=...)`` and ``mq.answer_checks(...)``;
``Inbox`` makes a consumer's effect exactly once in its own database. Needs the extra ``halfmq[sql]``.

Raises:
    MissingDependency: on import, without SQLAlchemy.
"""

from halfmq.errors import MissingDependency

try:
    from halfmq.sql.inbox import Inbox
    from halfmq.sql.transaction import SqlTransaction
    from halfmq.sql.transaction_log import TransactionLog
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] not in ("sqlalchemy", "greenlet"):
        raise
    raise MissingDependency(f"{error.name} is not installed", hint="pip install 'halfmq[sql]'") from error

__all__ = ["Inbox", "SqlTransaction", "TransactionLog"]
