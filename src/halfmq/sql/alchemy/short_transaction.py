"""A short transaction with a limited lock wait; ``rules.lock_wait`` says how each database limits it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, text

from halfmq.sql.rules.lock_wait import CONNECTION_SETTINGS, transaction_setting


@contextmanager
def short_transaction(connection: Connection, wait_ms: int) -> Iterator[None]:
    """One transaction on ``connection``, committed at the end of the block, that waits for a lock at most ``wait_ms``.

    ``connection`` must have no transaction open. MySQL rounds to whole seconds, at least one. On other
    databases the default lock wait applies.
    """
    setting = CONNECTION_SETTINGS.get(connection.dialect.name)
    if setting is None:
        with connection.begin():
            if (statement := transaction_setting(connection.dialect.name, wait_ms)) is not None:
                connection.execute(text(statement))
            yield
        return
    # On the driver's cursor: executed by SQLAlchemy it would begin a transaction.
    before = _on_cursor(connection, setting.read)
    _on_cursor(connection, setting.write.format(setting.from_ms(wait_ms)))
    try:
        with connection.begin():
            yield
    finally:
        if not connection.invalidated:
            _on_cursor(connection, setting.write.format(int(before)))


def _on_cursor(connection: Connection, statement: str) -> Any:
    """Execute on the driver's cursor; the first column of the first row, if there are rows."""
    cursor = connection.connection.cursor()
    try:
        cursor.execute(statement)
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None
    finally:
        cursor.close()
