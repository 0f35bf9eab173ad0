"""Database integration for SQLAlchemy, sync and async: one outcome for a database transaction and its messages.

``TransactionLog`` is the marker table behind ``mq.transaction(session, log=...)`` and ``mq.answer_checks(...)``;
``Inbox`` makes a consumer's effect exactly once in its own database. Needs the extra ``halfmq[sql]``.
"""

from halfmq.sql.inbox import Inbox
from halfmq.sql.transaction import SqlTransaction
from halfmq.sql.transaction_log import TransactionLog

__all__ = ["Inbox", "SqlTransaction", "TransactionLog"]
