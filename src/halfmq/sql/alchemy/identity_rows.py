"""The reserved rows of a marker table in the database, and what a process remembers of them; ``rules.table_identity`` has their meaning."""

import secrets
import time
import weakref
from typing import Any

from sqlalchemy import Connection, Engine, RootTransaction, Table, delete, event, insert, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from halfmq.errors import UsageError
from halfmq.sql.alchemy.connection_events import SETS_UP
from halfmq.sql.alchemy.declared import schema_on
from halfmq.sql.alchemy.dialects import one_that_may_fail, short_transaction
from halfmq.sql.alchemy.errors import is_lock_wait
from halfmq.sql.rules.marker import COMMITTED
from halfmq.sql.rules.table_identity import (
    HORIZON,
    IDENTITY_BITS,
    LOOK_AGAIN_S,
    RESERVED,
    Bounds,
    Origin,
    bounds_of,
    first_horizon_ms,
    horizon_value,
    reserved_rows,
)


class TableIdentity:
    """The reserved rows of one table, in whichever databases it is used."""

    def __init__(self, table: Table) -> None:
        self._table = table
        #: Identity by connection pool, which is one database, and schema in it; read once.
        self._known: weakref.WeakKeyDictionary[Any, dict[str | None, int]] = weakref.WeakKeyDictionary()
        #: Transactions that made the rows; while one is open they may still be undone.
        self._made_in: weakref.WeakSet[RootTransaction] = weakref.WeakSet()
        #: By pool: when the table is next read within somebody's transaction, on the monotonic clock.
        self._not_before_s: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()
        event.listen(table, "after_create", self._on_create)

    def _on_create(self, _table: Table, connection: object, **_: object) -> None:
        if isinstance(connection, Connection):  # not where statements are only printed
            self._insert(connection, 0)

    def read(self, connection: Connection) -> Bounds | None:
        """Read the reserved rows. None: the table has no identity yet."""
        columns = self._table.c
        rows = connection.execute(select(columns.tx_id, columns.written_at_ms).where(columns.tx_id.in_(RESERVED)))
        return bounds_of({row[0]: int(row[1]) for row in rows})

    def origin(self, connection: Connection, written_at_ms: int) -> str:
        """HMQ_TX_MARKER for a marker written now; empty while the table has no identity.

        An uncommitted identity is never used: after its rollback no table could answer for those halves.
        """
        identity = self._known_on(connection)
        if identity is None:
            pool = connection.engine.pool
            if time.monotonic() < self._not_before_s.get(pool, 0.0):
                return ""
            bounds = self.read(connection)
            if bounds is None or connection.get_transaction() in self._made_in:
                self._not_before_s[pool] = time.monotonic() + LOOK_AGAIN_S
                return ""
            identity = bounds.identity
            self._keep(connection, identity)
        return Origin(identity, written_at_ms).text()

    def forget(self) -> None:
        """Drop the cached identity; it is read again before the next marker is written."""
        self._known.clear()

    def is_known(self, engine: Engine) -> bool:
        """Whether the identity of the table behind ``engine`` is cached."""
        return self._known_on(engine) is not None

    def establish(self, engine: Engine, now_ms: int, lock_wait_ms: int) -> None:
        """Create the rows if they are missing, on a connection from ``engine``. Does nothing if the identity is cached.

        Raises:
            DBAPIError: as ``establish_on``.
        """
        if not self.is_known(engine):
            with engine.connect() as connection:
                self.establish_on(connection, now_ms, lock_wait_ms)

    def establish_on(self, connection: Connection, now_ms: int, lock_wait_ms: int) -> None:
        """Create the rows if they are missing, in short transactions; ``connection`` must have none open.

        If another transaction holds a lock, it returns, and the next caller retries. ``now_ms``: wall clock.

        Raises:
            DBAPIError: any other error, such as a missing table.
        """
        try:
            bounds = self._read_alone(connection, lock_wait_ms)
            if bounds is None:
                try:
                    with short_transaction(connection, lock_wait_ms):
                        self._insert(connection, first_horizon_ms(now_ms))
                except IntegrityError:
                    pass  # another process made them, and committed
                bounds = self._read_alone(connection, lock_wait_ms)
        except DBAPIError as error:
            if is_lock_wait(error):
                return
            raise
        if bounds is not None:
            self._keep(connection, bounds.identity)

    def _known_on(self, bind: Connection | Engine) -> int | None:
        return self._known.get(bind.engine.pool, {}).get(schema_on(bind, self._table))

    def _keep(self, connection: Connection, identity: int) -> None:
        self._known.setdefault(connection.engine.pool, {})[schema_on(connection, self._table)] = identity

    def _read_alone(self, connection: Connection, lock_wait_ms: int) -> Bounds | None:
        with short_transaction(connection, lock_wait_ms):
            return self.read(connection)

    def move_horizon(self, connection: Connection, horizon_ms: int, now_ms: int) -> None:
        """Advance the horizon to ``horizon_ms`` in ``connection``'s open transaction; never back. ``now_ms``: wall clock.

        Raises:
            UsageError: it could not be advanced, so nothing may be deleted. Roll back and retry.
        """
        if self.read(connection) is None:
            try:
                with one_that_may_fail(connection):
                    self._insert(connection, first_horizon_ms(now_ms))
            except IntegrityError:
                pass  # as in ``establish``
        columns = self._table.c
        connection.execute(
            update(self._table)
            .where(columns.tx_id == HORIZON, columns.written_at_ms < horizon_value(horizon_ms))
            .values(written_at_ms=horizon_value(horizon_ms))
        )
        bounds = self.read(connection)
        if bounds is None or bounds.horizon_ms < horizon_ms:
            raise UsageError(
                f"another process changed {HORIZON} of {self._table.name} behind this transaction's snapshot",
                hint="roll back and prune again; READ COMMITTED is enough for pruning",
            )

    def renew(self, connection: Connection, horizon_ms: int) -> None:
        """Set a new identity and horizon in ``connection``'s open transaction: see ``MarkerTable.restored``."""
        connection.execute(delete(self._table).where(self._table.c.tx_id.in_(RESERVED)), execution_options=SETS_UP)
        self._insert(connection, horizon_ms)
        self.forget()

    def _insert(self, connection: Connection, horizon_ms: int) -> None:
        for key, value in reserved_rows(secrets.randbits(IDENTITY_BITS), horizon_ms).items():
            row = insert(self._table).values(tx_id=key, outcome=COMMITTED, written_at_ms=value).inline()
            connection.execute(row, execution_options=SETS_UP)
        transaction = connection.get_transaction()
        assert transaction is not None, "it has written"
        self._made_in.add(transaction)
