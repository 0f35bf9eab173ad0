"""The barrier: each call of a branch of Try/Confirm/Cancel has its effect once, and in an order that makes sense.

What the rows mean is decided in ``sql.rules.barrier``. One statement writes or finds a row, and holds it until the transaction ends.
"""

import time
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import overload

from sqlalchemy import BigInteger, Column, ColumnElement, Connection, Integer, MetaData, Table, and_, select
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from halfmq import limits
from halfmq.client.branch import BRANCH_CHARS_MAX, TRY, Branch, checked_branch
from halfmq.errors import UnsupportedCombination
from halfmq.sql.alchemy.database import connection_of
from halfmq.sql.alchemy.declared import declare
from halfmq.sql.alchemy.dialects import exact_text
from halfmq.sql.alchemy.once_block import Claimed, Claims, HandledRows, once_block
from halfmq.sql.alchemy.transaction_guard import refuse_autocommit
from halfmq.sql.rules.barrier import OPPOSITE, Step, after_own_row, after_try_row

_OP_CHARS = 8


class Barrier(HandledRows):
    """The barrier table of a participant. Declare it with the tables that its tries, confirms and cancels change.

    >>> with barrier.once(session, branch) as first:
    ...     if first:
    ...         reserve(session, ...)
    """

    kind = "barrier"
    at_column = "written_at_ms"

    def __init__(self, metadata: MetaData, table: str = "mq_barrier") -> None:
        self.table = Table(
            table,
            metadata,
            Column("gid", exact_text(limits.TRANSACTION_ID_CHARS_MAX), primary_key=True),
            Column("branch", exact_text(BRANCH_CHARS_MAX), primary_key=True),
            Column("op", exact_text(_OP_CHARS), primary_key=True),
            #: The op of the call that inserted it: the row of a try may be of a cancel.
            Column("reason", exact_text(_OP_CHARS), nullable=False),
            #: Calls that found it, the first one included.
            Column("calls", Integer, nullable=False),
            Column("written_at_ms", BigInteger, nullable=False, index=True),
            sqlite_with_rowid=False,
        )
        declare(metadata, self)

    @overload
    def once(self, session: Session, branch: Branch) -> AbstractContextManager[bool]: ...

    @overload
    def once(self, session: AsyncSession, branch: Branch) -> AbstractAsyncContextManager[bool]: ...

    def once(
        self, session: Session | AsyncSession, branch: Branch
    ) -> AbstractContextManager[bool] | AbstractAsyncContextManager[bool]:
        """A block that yields whether the effect of this call is to be written, and commits ``session`` at its end.

        False: the call was repeated, or it cancels what was never tried. Answer, or acknowledge the message, **after** the block. An
        exception rolls back the row and the effect.

        A cancel may only be passed if the global transaction has the verdict ROLLED_BACK: see ``AsyncClient.fence``. ``@app.consumer(...,
        barrier=barrier)`` does both.

        Raises:
            LateTry: the branch was cancelled before this try. BranchConflict: it has the opposite, or a confirm finds no try. Nothing was
                written.
            UsageError: the session is inside a savepoint or an ``mq.transaction`` block, or ``branch`` is none.
        """
        checked_branch(branch)
        what = f"{branch.op} of branch {branch.branch} of {branch.gid}"
        claims = Claims(self.table, lambda sync: self._claim(sync, branch), "Barrier.once", "Barrier.claim", what)
        return once_block(session, claims)

    def claim(self, session: Session, branch: Branch) -> bool:
        """``once`` in a transaction that the caller commits, also where it returns False. With an ``AsyncSession``: ``await
        session.run_sync(lambda s: barrier.claim(s, branch))``.

        Raises: as ``once``; then the caller must roll back.
        """
        checked_branch(branch)
        return self._claim(session, branch).is_first

    def _claim(self, session: Session, branch: Branch) -> Claimed:
        connection = connection_of(session, self.table, "barrier.claim")
        refuse_autocommit(connection, "barrier.claim")
        is_new, reason = self._note(connection, branch, TRY)
        match after_try_row(branch, is_new=is_new, reason=reason):
            case Step.RUN:
                return Claimed(True, self._row(branch, TRY))
            case Step.SKIP:
                return Claimed(False, None)
            case Step.KEEP_ROW:
                return Claimed(False, self._row(branch, TRY))
        is_new, _ = self._note(connection, branch, branch.op)
        other = self._reason(connection, branch, OPPOSITE[branch.op])
        is_first = after_own_row(branch, is_new=is_new, opposite_there=other is not None)
        return Claimed(is_first, self._row(branch, branch.op) if is_first else None)

    def _row(self, branch: Branch, op: str) -> ColumnElement[bool]:
        columns = self.table.c
        return and_(columns.gid == branch.gid, columns.branch == branch.branch, columns.op == op)

    def _note(self, connection: Connection, branch: Branch, op: str) -> tuple[bool, str]:
        """Insert the row of ``op``, or count this call in it. (whether it is new, whose call inserted it). It is locked from here on.

        One statement, and not an insert that fails: that would leave MariaDB with a shared lock, and two calls that both want more.
        """
        rows = self.table.c
        row = {
            "gid": branch.gid, "branch": branch.branch, "op": op, "reason": branch.op, "calls": 1,
            "written_at_ms": time.time_ns() // 1_000_000,
        }  # fmt: skip
        key = (rows.gid, rows.branch, rows.op)
        match connection.dialect.name:
            case "postgresql":
                noted = postgresql.insert(self.table).values(row)
                noted = noted.on_conflict_do_update(index_elements=key, set_={"calls": rows.calls + 1})
                calls, reason = connection.execute(noted.returning(rows.calls, rows.reason)).one()
                return calls == 1, reason
            case "sqlite":
                noted = sqlite.insert(self.table).values(row)  # type: ignore[assignment]
                noted = noted.on_conflict_do_update(index_elements=key, set_={"calls": rows.calls + 1})
                calls, reason = connection.execute(noted.returning(rows.calls, rows.reason)).one()
                return calls == 1, reason
            case "mysql" | "mariadb":
                counted = mysql.insert(self.table).values(row).on_duplicate_key_update(calls=rows.calls + 1)
                # 1 for a new row, 2 for a changed one.
                is_new = connection.execute(counted).rowcount == 1
                return is_new, branch.op if is_new else self._reason(connection, branch, op) or ""
            case other:
                raise UnsupportedCombination(
                    f"a barrier needs PostgreSQL, MySQL, MariaDB or SQLite, and this is {other}"
                )

    def _reason(self, connection: Connection, branch: Branch, op: str) -> str | None:
        """Of the row of ``op``, as it was committed last; None: there is none."""
        found = select(self.table.c.reason).where(self._row(branch, op))
        if connection.dialect.name in ("mysql", "mariadb"):  # else it is read as at the transaction's first read
            found = found.with_for_update()
        reason: str | None = connection.scalar(found)
        return reason
