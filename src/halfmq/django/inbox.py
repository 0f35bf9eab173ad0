"""The inbox of a database of Django: the effect of a message happens exactly once, since its row is committed with what the handler wrote.

The row ``(group, message key)`` is inserted first. A second delivery finds it and does nothing. Two at the same time: the second waits for
the transaction of the first one, and is the duplicate if that commits, or the first if it rolls back.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from django.db import IntegrityError, transaction

from halfmq.client import forks
from halfmq.client.log import logger
from halfmq.django.database import connection_to
from halfmq.django.guard import Guard
from halfmq.django.marker_rows import wall_ms
from halfmq.django.tables import INBOX_TABLE
from halfmq.sql.rules.inbox_key import HasMessageId, KeyOf, key_of

_log = logger(__name__)

_INSERT: Final = f"INSERT INTO {INBOX_TABLE} (consumer_group, message_key, handled_at_ms) VALUES (%s, %s, %s)"  # nosec B608 # noqa: S608 - names of ours
_FOUND: Final = f"SELECT COUNT(*) FROM {INBOX_TABLE} WHERE consumer_group = %s AND message_key = %s AND "  # nosec B608 # noqa: S608 - names of ours


class Inbox:
    """``halfmq.client.handler.InboxPort`` of one alias. ``key``: makes the key of a message's row; without it that is the message id."""

    def __init__(self, using: str, key: KeyOf | None = None) -> None:
        self.using = using
        self._key = key

    def once(self, _session: object, message: HasMessageId, *, group: str) -> AbstractContextManager[bool]:
        """``transaction.atomic(durable=True)`` that yields True the first time, and False for a duplicate. An exception rolls back the row
        and what the handler wrote. Acknowledge the message after the block.

        Raises:
            UsageError: it can only be rolled back, though the handler returned; or it is left in a forked child: the connection is the
                parent's, and is not touched. django.db.Error: the database's own.
        """
        return self._once(message, group)

    @contextmanager
    def _once(self, message: HasMessageId, group: str) -> Iterator[bool]:
        row = [group, key_of(message, self._key)]
        begun_in = forks.generation
        connection = connection_to(self.using)
        is_outermost = not connection.in_atomic_block
        committed = False

        def on_commit() -> None:
            nonlocal committed
            committed = True

        atomic = transaction.atomic(using=self.using, durable=True)
        atomic.__enter__()
        guard = Guard(connection, is_outermost=is_outermost, block="the handler")
        try:
            # Before those of the handler: one that raises stops those behind it.
            transaction.on_commit(on_commit, using=self.using, robust=True)
            is_first = self._claim(connection, row)
            if is_first:
                guard.start()
            yield is_first
            forks.refuse_in_child(
                begun_in, "the transaction of a handler", "a child that a handler forks ends by os._exit"
            )
            if is_first:
                guard.prove(lambda: self._found(connection, row, guard.written_by_this))
        except BaseException as error:
            if begun_in == forks.generation:
                guard.stop()
                atomic.__exit__(type(error), error, error.__traceback__)
            raise
        try:
            atomic.__exit__(None, None, None)
        except Exception:
            if not committed:
                raise
            _log.exception("%r is handled, and a function that its handler gave to on_commit has raised", message)

    def _claim(self, connection: Any, row: list[str]) -> bool:
        values = [*row, wall_ms()]
        if connection.vendor != "mysql":
            with connection.cursor() as cursor:
                cursor.execute(f"{_INSERT} ON CONFLICT DO NOTHING", values)
                return bool(cursor.rowcount == 1)
        try:  # INSERT IGNORE would hide other errors as well
            with transaction.atomic(using=self.using), connection.cursor() as cursor:
                cursor.execute(_INSERT, values)
        except IntegrityError:
            return False
        return True

    @staticmethod
    def _found(connection: Any, row: list[str], condition: str) -> int:
        with connection.cursor() as cursor:
            cursor.execute(_FOUND + condition, row)
            return int(cursor.fetchone()[0])
