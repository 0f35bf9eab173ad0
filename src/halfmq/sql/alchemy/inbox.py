"""The inbox: the effect of a message in the consumer's own database happens exactly once.

The broker delivers at least once. One row ``(group, message key)`` is inserted in the same transaction as the effect;
a second delivery finds the row and does nothing. Two deliveries at the same time: the second waits for the first one's
transaction, and is the duplicate if that commits, or the first if it rolls back.
"""

import time
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import overload

from sqlalchemy import BigInteger, Column, ColumnElement, Connection, MetaData, Table, and_, insert
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from halfmq import limits
from halfmq.client.user_code import refuse_generator
from halfmq.sql.alchemy.database import connection_of
from halfmq.sql.alchemy.declared import declare
from halfmq.sql.alchemy.dialects import exact_text, one_that_may_fail
from halfmq.sql.alchemy.once_block import Claimed, Claims, HandledRows, once_block
from halfmq.sql.alchemy.transaction_guard import refuse_autocommit
from halfmq.sql.rules.inbox_key import KEY_CHARS_MAX, HasMessageId, KeyOf, key_of


class Inbox(HandledRows):
    """The inbox table. Declare it with your own tables, in the database where the effect is written.

    A row's key is the producer's unique message id, or the result of ``key``, such as
    ``key=lambda message: message.keys[0]`` if the producer may send one event as two messages.
    """

    kind = "inbox"
    at_column = "handled_at_ms"

    def __init__(self, metadata: MetaData, table: str = "mq_inbox", *, key: KeyOf | None = None) -> None:
        refuse_generator(key, "key= of the inbox")
        self._key = key
        self.table = Table(
            table,
            metadata,
            Column("consumer_group", exact_text(limits.GROUP_CHARS_MAX), primary_key=True),
            Column("message_key", exact_text(KEY_CHARS_MAX), primary_key=True),
            Column("handled_at_ms", BigInteger, nullable=False, index=True),
            sqlite_with_rowid=False,
        )
        declare(metadata, self)

    @overload
    def once(self, session: Session, message: HasMessageId, *, group: str) -> AbstractContextManager[bool]: ...

    @overload
    def once(
        self, session: AsyncSession, message: HasMessageId, *, group: str
    ) -> AbstractAsyncContextManager[bool]: ...

    def once(
        self, session: Session | AsyncSession, message: HasMessageId, *, group: str
    ) -> AbstractContextManager[bool] | AbstractAsyncContextManager[bool]:
        """A block that yields True the first time, False for a duplicate, and commits ``session`` at its end.

        >>> with inbox.once(session, message, group="billing") as first:
        ...     if first:
        ...         session.add(Invoice(...))

        Acknowledge the message **after** the block. An exception rolls back the row and the effect; after the
        redelivery the block yields True again.

        Raises:
            UsageError: the session is inside a savepoint or an ``mq.transaction`` block, or the key is empty or too long.
        """

        def claim(sync: Session) -> Claimed:
            is_first = self.claim(sync, message, group=group)
            return Claimed(is_first, self._row(message, group) if is_first else None)

        what = f"message {message.message_id}"
        return once_block(session, Claims(self.table, claim, "Inbox.once", "Inbox.claim", what))

    def _row(self, message: HasMessageId, group: str) -> ColumnElement[bool]:
        columns = self.table.c
        return and_(columns.consumer_group == group, columns.message_key == self.key_of(message))

    def claim(self, session: Session, message: HasMessageId, *, group: str) -> bool:
        """Insert the row in ``session``'s transaction, which the caller commits. True for the first delivery.

        For several messages in one transaction: claim each, write the effects of those that returned True, commit, and
        acknowledge all. Claim in a fixed order, such as by ``message_id``: while a queue moves to another consumer, two consumers may have
        the same messages and deadlock; then roll back and retry the batch. With an ``AsyncSession``: ``await session.run_sync(lambda s:
        inbox.claim(s, message, group=...))``.
        """
        connection = connection_of(session, self.table, "inbox.claim")
        refuse_autocommit(connection, "inbox.claim")
        key = self.key_of(message)
        row = {"consumer_group": group, "message_key": key, "handled_at_ms": time.time_ns() // 1_000_000}
        return self._insert_if_absent(connection, row)

    def key_of(self, message: HasMessageId) -> str:
        """The key of a message's row.

        Raises:
            UsageError: it is empty or too long.
        """
        return key_of(message, self._key)

    def _insert_if_absent(self, connection: Connection, row: dict[str, object]) -> bool:
        # RETURNING and not rowcount, which is -1 for ON CONFLICT with psycopg.
        match connection.dialect.name:
            case "postgresql":
                absent = postgresql.insert(self.table).values(row).on_conflict_do_nothing()
                return connection.execute(absent.returning(self.table.c.message_key)).first() is not None
            case "sqlite":
                missing = sqlite.insert(self.table).values(row).on_conflict_do_nothing()
                return connection.execute(missing.returning(self.table.c.message_key)).first() is not None
            case _:
                try:
                    with one_that_may_fail(connection):
                        connection.execute(insert(self.table).values(row).inline())
                except IntegrityError:
                    return False
                return True
