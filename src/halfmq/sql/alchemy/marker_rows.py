"""The rows of a marker table in the database. ``rules.marker`` says what they mean, ``rules.check`` what a check does with them."""

import time
from collections.abc import Callable, Collection
from typing import assert_never

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ColumnElement,
    Connection,
    Delete,
    Engine,
    MetaData,
    String,
    Table,
    Update,
    and_,
    bindparam,
    delete,
    false,
    insert,
    inspect,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.schema import AddConstraint, DropConstraint

from halfmq import limits
from halfmq.client.user_code import plain_result
from halfmq.errors import UsageError
from halfmq.sql.alchemy.connection_events import SETS_UP
from halfmq.sql.alchemy.declared import schema_on
from halfmq.sql.alchemy.dialects import exact_text, short_transaction
from halfmq.sql.alchemy.errors import is_lock_wait
from halfmq.sql.alchemy.identity_rows import TableIdentity
from halfmq.sql.rules.check import FENCE_LOCK_WAIT_MS, READ_COMMITTED, CheckResult, Reply, Step, answer_check, run
from halfmq.sql.rules.driver_errors import is_check_violation
from halfmq.sql.rules.marker import (
    COMMITTED,
    FENCED,
    PREPARED,
    PRUNE_ROWS_MAX,
    OldRow,
    Seen,
    WhichUndecided,
    keys_to_read,
    prunable_before_ms,
    pruned,
    seen,
)
from halfmq.sql.rules.table_identity import RESERVED


def wall_ms() -> int:
    """The wall clock, ms since 1970."""
    return time.time_ns() // 1_000_000


class MarkerRows:
    """Writes, checks and prunes the rows of one marker table; see ``MarkerTable``. Caches only the table's identity."""

    def __init__(self, metadata: MetaData, name: str, now_ms: Callable[[], int] = wall_ms) -> None:
        self._now_ms = now_ms
        self.table = Table(
            name,
            metadata,
            Column("tx_id", exact_text(limits.TRANSACTION_ID_CHARS_MAX), primary_key=True),
            Column("outcome", String(1), nullable=False),
            Column("written_at_ms", BigInteger, nullable=False, index=True),
            CheckConstraint("outcome IN ('C', 'P', 'R')", name=f"ck_{name}_outcome"),
            sqlite_with_rowid=False,  # one tree to write instead of two
        )
        self.identity = TableIdentity(self.table)
        self._insert = insert(self.table).inline()
        self._update = update(self.table).values(outcome=COMMITTED)
        self._delete = delete(self.table)
        self._withdraw = update(self.table).values(outcome=FENCED)
        #: (statement, condition) -> the statement under that condition.
        self._conditional: dict[tuple[Update | Delete, ColumnElement[bool]], Update | Delete] = {}

    def establish(self, engine: Engine) -> None:
        """Create the table's identity rows if they are missing, on a separate connection. Does nothing if the identity is known.

        Raises:
            DBAPIError: no such table, no permission, no connection.
        """
        self.identity.establish(engine, self._now_ms(), FENCE_LOCK_WAIT_MS)

    def write(self, connection: Connection, tx_id: str) -> str:
        """Insert ``(tx_id, 'P')`` in the transaction that is open on ``connection``.

        Returns the HMQ_TX_MARKER property for the halves: the table's identity and the row's ``written_at_ms``. Empty while the
        table has no identity.

        Raises:
            IntegrityError: a check has inserted a rollback marker, or the id was used before. Roll back.
            UsageError: the table is from an earlier release and has to be upgraded. Roll back.
        """
        row = {"tx_id": tx_id, "outcome": PREPARED, "written_at_ms": (now_ms := self._now_ms())}
        try:
            connection.execute(self._insert, row)
        except DBAPIError as error:
            if is_check_violation(error):
                raise UsageError(
                    f"table {self.table.fullname} is from an earlier release: its constraint does not know the outcome 'P'",
                    hint="call markers.upgrade(session) once, and commit, before this release starts",
                ) from error
            raise
        # After the row: on SQLite a transaction that has only read fails at once where it would wait for the commit of another one.
        return self.identity.origin(connection, now_ms)

    def confirm(self, connection: Connection, tx_id: str, condition: ColumnElement[bool]) -> int:
        """Turn the marker into ``(tx_id, 'C')`` if it is still PREPARED and ``condition`` holds. Returns the number of rows: 0 or 1."""
        return self._count(connection, self._update, tx_id, condition)

    def delete(self, connection: Connection, tx_id: str, condition: ColumnElement[bool]) -> int:
        """As ``confirm``, for a transaction that sends no messages: its marker is deleted."""
        return self._count(connection, self._delete, tx_id, condition)

    def withdraw(self, connection: Connection, tx_id: str) -> int:
        """After ``confirm``, before COMMIT: turn the marker into ``(tx_id, 'R')``, so that the half messages of this transaction are rolled
        back although its rows are committed. Returns the number of rows: 0 or 1."""
        # Not "written by this transaction": PostgreSQL names the savepoint's number where one was rolled back to.
        return self._count(connection, self._withdraw, tx_id, true(), COMMITTED)

    def _count(
        self,
        connection: Connection,
        statement: Update | Delete,
        tx_id: str,
        condition: ColumnElement[bool],
        standing: str = PREPARED,
    ) -> int:
        # Building the statement takes as long as executing it.
        conditional = self._conditional.get((statement, condition))
        if conditional is None:
            columns = self.table.c
            conditional = statement.where(columns.tx_id == bindparam("of_tx"), columns.outcome == standing, condition)
            self._conditional[statement, condition] = conditional
        return connection.execute(conditional, {"of_tx": tx_id}).rowcount

    def look(self, connection: Connection, tx_id: str) -> Seen:
        """Read the marker and the identity rows in one statement, without locks.

        Raises:
            UsageError: the table matched another id: its collation is not binary.
        """
        columns = self.table.c
        rows = connection.execute(
            select(columns.tx_id, columns.outcome, columns.written_at_ms).where(columns.tx_id.in_(keys_to_read(tx_id)))
        )
        return seen(((row[0], row[1], row[2]) for row in rows), tx_id, self.table.name)

    def decide(
        self,
        connection: Connection,
        tx_id: str,
        *,
        origin: str = "",
        prepared_at_ms: int | None = None,
        may_fence: bool = True,
        lock_wait_ms: int = FENCE_LOCK_WAIT_MS,
    ) -> CheckResult:
        """Answer a check of ``tx_id``: COMMIT, ROLLBACK (final) or UNKNOWN.

        ``connection`` must have no open transaction; each step runs in a short one of its own. ``origin``: HMQ_TX_MARKER of the
        half (see ``write``); ``prepared_at_ms``: when the broker stored the half, used if ``origin`` is empty. Without
        ``may_fence`` no rollback marker is inserted. ROLLBACK is returned only after the rollback marker is committed.

        Raises:
            DBAPIError: any other error, such as a lost connection. Nothing is decided.
        """
        connection = self._reading_committed(connection)
        steps = answer_check(self.table.fullname, origin, prepared_at_ms, may_fence=may_fence)
        return run(steps, lambda step: self._execute(connection, tx_id, step, lock_wait_ms))

    def _execute(self, connection: Connection, tx_id: str, step: Step, lock_wait_ms: int) -> Seen | Reply:
        try:
            match step:
                case Step.LOOK:
                    with short_transaction(connection, lock_wait_ms):
                        return self.look(connection, tx_id)
                case Step.ESTABLISH:
                    self.identity.establish_on(connection, self._now_ms(), lock_wait_ms)
                case Step.FORGET_IDENTITY:
                    self.identity.forget()
                case Step.INSERT_FENCE:
                    return self._insert_fence(connection, tx_id, lock_wait_ms)
                case Step.FENCE_PREPARED:
                    return self._fence_prepared(connection, tx_id, lock_wait_ms)
                case _:
                    assert_never(step)
        except DBAPIError as error:
            if is_lock_wait(error):
                return Reply.LOCKED
            raise
        return Reply.DONE

    def _insert_fence(self, connection: Connection, tx_id: str, lock_wait_ms: int) -> Reply:
        try:
            with short_transaction(connection, lock_wait_ms):
                connection.execute(
                    insert(self.table).values(tx_id=tx_id, outcome=FENCED, written_at_ms=self._now_ms()).inline()
                )
        except IntegrityError:
            return Reply.CONFLICT
        return Reply.DONE

    def _fence_prepared(self, connection: Connection, tx_id: str, lock_wait_ms: int) -> Reply:
        columns = self.table.c
        with short_transaction(connection, lock_wait_ms):
            fenced = connection.execute(
                update(self.table).where(columns.tx_id == tx_id, columns.outcome == PREPARED).values(outcome=FENCED)
            ).rowcount
        return Reply.DONE if fenced == 1 else Reply.CONFLICT

    @staticmethod
    def _reading_committed(connection: Connection) -> Connection:
        if connection.dialect.name in READ_COMMITTED:
            return connection.execution_options(isolation_level="READ COMMITTED")
        return connection

    def prune(self, connection: Connection, *, older_than_s: float, undecided: Collection[str] | WhichUndecided) -> int:
        """See ``MarkerTable.prune``. Rows of ``undecided`` are kept at any age: without them nobody could tell that they committed."""
        after: OldRow | None = None
        while rows := self.old(connection, older_than_s=older_than_s, after=after):
            ids = [tx_id for _, tx_id in rows]
            keep = undecided(ids) if callable(undecided) else undecided
            plain_result(keep, "undecided=", "mq.undecided of a Client, or prune_async")
            if gone := self.forget(connection, rows, keep):
                return gone
            after = rows[-1]
        return 0

    def old(self, connection: Connection, *, older_than_s: float, after: OldRow | None = None) -> list[OldRow]:
        """The oldest rows older than ``older_than_s`` seconds that follow ``after``, at most ``PRUNE_ROWS_MAX``.

        Raises:
            UsageError: as ``prune``.
        """
        until_ms = prunable_before_ms(self._now_ms(), older_than_s)
        written, tx_id = self.table.c.written_at_ms, self.table.c.tx_id
        wanted = select(written, tx_id).where(written < until_ms, tx_id.not_in(RESERVED))
        if after is not None:
            wanted = wanted.where(or_(written > after[0], and_(written == after[0], tx_id > after[1])))
        rows = connection.execute(wanted.order_by(written, tx_id).limit(PRUNE_ROWS_MAX))
        return [(int(row[0]), str(row[1])) for row in rows]

    def forget(self, connection: Connection, rows: Collection[OldRow], undecided: Collection[str]) -> int:
        """Delete ``rows`` except those of ``undecided``. Returns the number deleted.

        Moves the prune horizon in the same transaction: a missing marker as old as these then proves nothing.

        Raises:
            UsageError: another process changed the horizon in a way that this transaction cannot see.
        """
        gone = pruned(rows, undecided)
        if gone is None:
            return 0
        self.identity.move_horizon(connection, gone.horizon_ms, self._now_ms())
        connection.execute(delete(self.table).where(self.table.c.tx_id.in_(gone.ids)))
        return len(gone.ids)

    def restored(self, connection: Connection) -> None:
        self.identity.renew(connection, self._now_ms())

    def needs_upgrade(self, connection: Connection) -> bool:
        """Whether the table in the database does not allow the outcome 'P'."""
        found = inspect(connection).get_check_constraints(self.table.name, schema=schema_on(connection, self.table))
        return not any(f"'{PREPARED}'" in constraint["sqltext"] for constraint in found)

    def upgrade(self, connection: Connection) -> None:
        (constraint,) = (one for one in self.table.constraints if isinstance(one, CheckConstraint))
        if connection.dialect.name != "sqlite":
            connection.execute(DropConstraint(constraint))
            connection.execute(AddConstraint(constraint))
            return
        # SQLite cannot change a constraint. The first statement begins the transaction: the driver begins none before DDL.
        connection.execute(delete(self.table).where(false()))
        old = self.table.to_metadata(MetaData(), name=f"{self.table.name}_old")
        preparer = connection.dialect.identifier_preparer
        connection.exec_driver_sql(
            f"ALTER TABLE {preparer.format_table(self.table)} RENAME TO {preparer.quote(old.name)}"
        )
        for index in self.table.indexes:
            index.drop(connection)
        self.table.create(connection)
        connection.execute(delete(self.table), execution_options=SETS_UP)  # the identity that a new table gets
        connection.execute(
            insert(self.table).from_select([*self.table.c.keys()], select(old)), execution_options=SETS_UP
        )
        old.drop(connection)
        self.identity.forget()
