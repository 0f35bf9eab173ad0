"""The identity and prune horizon of a marker table: they say when a missing marker means rolled back.

A check that finds no marker inserts a rollback marker and answers ROLLBACK. That is right only if the marker of a committed
transaction would be in this table, and not pruned. So the table has two rows under reserved keys, which need no schema change (``docs/decisions/0032-absent-marker.md``):

    #identity   written_at_ms: a random number, made once
    #horizon    written_at_ms: every marker with a smaller written_at_ms may have been pruned

and each half carries ``identity.written_at_ms`` of its marker (HMQ_TX_MARKER). No clocks are compared: the horizon is compared
with the ``written_at_ms`` of the row itself.

Both values are larger than any real time, so that older releases, which do not know these rows, do not prune them.
"""

import secrets
import time
import weakref
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Engine, RootTransaction, Table, delete, event, insert, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from halfmq.errors import UsageError
from halfmq.sql.lock_wait import is_lock_wait, short_transaction

#: Reserved keys. Transaction ids contain no ``#``.
IDENTITY: Final = "#identity"
HORIZON: Final = "#horizon"
RESERVED: Final = (IDENTITY, HORIZON)

#: Added to a horizon, and the smallest identity. As a time it would be 146 million years from now.
_FAR: Final = 1 << 62

#: How often an application's transaction reads a table without identity again, seconds: under SERIALIZABLE the read
#: conflicts with every marker written concurrently.
_LOOK_AGAIN_S: Final = 60.0

#: Longest HMQ_TX_MARKER: two numbers of 64 bits.
_ORIGIN_CHARS_MAX: Final = 41

#: A half that carries no origin was prepared at most this long after its marker was written: duration of the local
#: transaction and difference of the clocks together, ms. Half of the least age of what is pruned, so that what was
#: prepared shortly before a prune is still answered.
PREPARED_AFTER_MARKER_MAX_MS: Final = 1_800_000


#: Marker rows younger than this are never pruned, seconds: longer than any local transaction runs, or a message is in flight.
PRUNE_AGE_MIN_S: Final = 3_600.0


class Bounds(NamedTuple):
    """The values of the reserved rows."""

    identity: int
    #: Markers with a smaller ``written_at_ms`` may have been pruned.
    horizon_ms: int


class Origin(NamedTuple):
    """HMQ_TX_MARKER of a half: the identity of the marker's table, and the ``written_at_ms`` of the row."""

    identity: int
    written_at_ms: int

    def text(self) -> str:
        """The property value; ``read_origin`` parses it."""
        return f"{self.identity}.{self.written_at_ms}"


def read_origin(text: str) -> Origin | None:
    """Parse HMQ_TX_MARKER. None: an unknown format, written by a newer release."""
    identity, _, written = text.partition(".")
    if len(text) > _ORIGIN_CHARS_MAX or not (text.isascii() and identity.isdigit() and written.isdigit()):
        return None
    return Origin(int(identity), int(written))


def _may_be_pruned_before_ms(now_ms: int) -> int:
    """The initial horizon of a table without one: an earlier release may have pruned it without recording a horizon.

    No release prunes rows younger than ``PRUNE_AGE_MIN_S``. The oldest row proves nothing, since rows of undecided
    transactions are kept.
    """
    return max(0, now_ms - round(PRUNE_AGE_MIN_S * 1000))


def bounds_of(reserved: dict[str, int]) -> Bounds | None:
    """The bounds from ``reserved``, the ``written_at_ms`` by reserved key. None: the table has no identity."""
    if IDENTITY not in reserved or HORIZON not in reserved:
        return None
    return Bounds(reserved[IDENTITY], reserved[HORIZON] - _FAR)


def why_absence_is_no_answer(table: str, here: Bounds | None, origin: str, prepared_at_ms: int | None) -> str:
    """Why a transaction without a marker in ``table`` may have committed nevertheless; empty if it cannot have.

    ``origin``: HMQ_TX_MARKER of its half. If empty (an older client, or a table that had no identity yet), the time at which
    the broker stored the half, less a margin, is compared with the horizon. Without that time too, absence is an answer.
    """
    if not origin:
        if here is None or prepared_at_ms is None:
            return ""
        written_at_ms = max(0, prepared_at_ms - PREPARED_AFTER_MARKER_MAX_MS)
    else:
        began = read_origin(origin)
        if began is None:
            return f"its {origin[:_ORIGIN_CHARS_MAX]!r} cannot be read: a newer release of halfmq wrote it"
        if here is None or began.identity != here.identity:
            found = "none" if here is None else here.identity
            return (
                f"it began in another database, or before a restore: "
                f"{table} has identity {found}, its marker {began.identity}"
            )
        written_at_ms = began.written_at_ms
    if here.horizon_ms <= written_at_ms:
        return ""
    until = datetime.fromtimestamp(here.horizon_ms / 1000, UTC).isoformat(" ", "seconds")
    return (
        f"no marker in {table}, where those up to {until} may be pruned: "
        "look for its rows in the database, then use `halfmq tx commit` or `halfmq tx rollback`"
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
                self._not_before_s[pool] = time.monotonic() + _LOOK_AGAIN_S
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
                        self._insert(connection, _may_be_pruned_before_ms(now_ms))
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
        return self._known.get(bind.engine.pool, {}).get(self._schema_on(bind))

    def _keep(self, connection: Connection, identity: int) -> None:
        self._known.setdefault(connection.engine.pool, {})[self._schema_on(connection)] = identity

    def _schema_on(self, bind: Connection | Engine) -> str | None:
        """The table's schema on ``bind``; with ``schema_translate_map`` one pool may serve several schemas."""
        schemas = bind.get_execution_options().get("schema_translate_map") or {}
        schema: str | None = schemas.get(self._table.schema, self._table.schema)
        return schema

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
                with connection.begin_nested():
                    self._insert(connection, _may_be_pruned_before_ms(now_ms))
            except IntegrityError:
                pass  # as in ``establish``
        columns = self._table.c
        connection.execute(
            update(self._table)
            .where(columns.tx_id == HORIZON, columns.written_at_ms < _FAR + horizon_ms)
            .values(written_at_ms=_FAR + horizon_ms)
        )
        bounds = self.read(connection)
        if bounds is None or bounds.horizon_ms < horizon_ms:
            raise UsageError(
                f"another process changed {HORIZON} of {self._table.name} behind this transaction's snapshot",
                hint="roll back and prune again; READ COMMITTED is enough for pruning",
            )

    def renew(self, connection: Connection, horizon_ms: int) -> None:
        """Set a new identity and horizon in ``connection``'s open transaction: see ``MarkerTable.restored``."""
        connection.execute(delete(self._table).where(self._table.c.tx_id.in_(RESERVED)))
        self._insert(connection, horizon_ms)
        self.forget()

    def _insert(self, connection: Connection, horizon_ms: int) -> None:
        rows = ((IDENTITY, _FAR + secrets.randbits(62)), (HORIZON, _FAR + horizon_ms))
        for key, value in rows:
            connection.execute(insert(self._table).values(tx_id=key, outcome="C", written_at_ms=value).inline())
        transaction = connection.get_transaction()
        assert transaction is not None, "it has written"
        self._made_in.add(transaction)
