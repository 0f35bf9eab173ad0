"""Proof that a transaction that is about to be committed is the one in which a certain row was written.

That ``commit()`` returned proves nothing: PostgreSQL answers COMMIT of an aborted transaction with ROLLBACK and no error, MariaDB
rolls a whole transaction back after a deadlock, SQLite after INSERT OR ROLLBACK, and the driver begins the next transaction
unnoticed. Nor does reading the row back: after a COMMIT in between it is still there. So an adapter proves both, in the last
statements before COMMIT:

- the row exists: the caller's statement about it affects exactly one row
- the transaction is still the one that wrote it. PostgreSQL: the row itself names its transaction (``xmin``). SQLite, MySQL, MariaDB:
  a savepoint, which ends with its transaction. Elsewhere only the first half is proven.

Until then it refuses every end of the transaction that it can see: the library's commit, and statements whose text says so.
"""

from enum import Enum
from typing import Final

from halfmq.sql.rules.driver_errors import driver_error, mysql_error_number, sqlstate
from halfmq.sql.rules.driver_status import Status
from halfmq.sql.rules.statements import Effect, read

#: Products whose transaction is recognised by a savepoint.
BY_SAVEPOINT: Final = frozenset({"sqlite", "mysql", "mariadb"})
#: PostgreSQL: the open transaction wrote the row. ``txid_current`` is the transaction's number with an epoch before its 32 bits; older servers have no other function.
WRITTEN_BY_THIS: Final = "xmin::text::bigint = (txid_current() & 4294967295)"

#: PostgreSQL: in_failed_sql_transaction.
_FAILED_TRANSACTION: Final = "25P02"
#: MySQL and MariaDB: SAVEPOINT does not exist.
_NO_SAVEPOINT: Final = 1305


class Refusal(Enum):
    """Why a statement must not be executed inside the block."""

    WOULD_END = "it would end the transaction"
    HAS_ENDED = "the transaction has ended"


def refusal(statement: str, product: str, status: Status) -> Refusal | None:
    """Whether ``statement`` must not be executed; ``status``: of its connection, before it. None: it may be."""
    found = read(statement, product)
    if found is not None and found.effect is Effect.ENDS_TRANSACTION:
        return Refusal.WOULD_END
    # Another transaction would begin here, and on SQLite a savepoint would commit it.
    return Refusal.HAS_ENDED if status is Status.NONE else None


def is_committable(status: Status) -> bool:
    """Whether COMMIT may be sent on a connection of this ``status``, after the proof. A driver that says nothing does not forbid it."""
    return status not in (Status.NONE, Status.FAILED)


def is_failed_transaction(error: BaseException) -> bool:
    """Whether ``error`` only says that an earlier statement has failed, after which the database only rolls back."""
    return sqlstate(error) == _FAILED_TRANSACTION


def is_missing_savepoint(error: BaseException) -> bool:
    """Whether RELEASE SAVEPOINT failed because there is none, so that its transaction has ended."""
    return mysql_error_number(error) == _NO_SAVEPOINT or "no such savepoint" in str(driver_error(error))
