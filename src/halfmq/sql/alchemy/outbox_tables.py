"""The two tables of an outbox: its rows, and its lanes, which relays hold one at a time."""

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    literal_column,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import FunctionElement

from halfmq import limits
from halfmq.sql.alchemy.dialects import exact_text
from halfmq.sql.rules.outbox import ORDER_KEY_CHARS_MAX, REASON_CHARS_MAX, TOPIC_CHARS_MAX

#: Characters of the number of a message, as the client makes them.
MESSAGE_ID_CHARS: Final = 64
#: Characters of a holder's name that are kept.
HOLDER_CHARS_MAX: Final = 255

#: Storage parameters on PostgreSQL. Every row dies soon, so dead rows, not rows, decide how long a scan of a lane takes. By default a table
#: is vacuumed when more than 50 rows and 20% of what was there at the last look are dead: after a backlog, or with an archive, of ten
#: million rows, that is two million dead ones. 1%, and at least 1,000, keeps it close to what one minute makes (``autovacuum_naptime``,
#: which a table cannot have). The limit of costs is five times the default, since a vacuum that is slower than the relay never ends; a
#: worker with a limit of its own takes nothing from the others ("are not considered in the balancing algorithm"). PostgreSQL, "Automatic
#: Vacuuming".
ROWS_STORAGE: Final = {
    "autovacuum_vacuum_scale_factor": "0.01",
    "autovacuum_vacuum_threshold": "1000",
    "autovacuum_vacuum_cost_limit": "1000",
}
#: Each lane is updated with every batch, and no indexed column of it. Free space on its page keeps these updates there, without index
#: entries ("heap-only tuples"), and lets the next access remove the dead versions. PostgreSQL, CREATE TABLE, ``fillfactor``.
LANES_STORAGE: Final = {"fillfactor": "20"}


#: MySQL and MariaDB make MEDIUMBLOB of BLOB(4194304); named so, Alembic sees no difference.
_BODY: Final = LargeBinary(limits.BODY_BYTES_MAX).with_variant(mysql.MEDIUMBLOB(), "mysql", "mariadb")


class none_yet(FunctionElement[int]):  # noqa: N801 - used like a function
    """0, the number of attempts of a new row; on PostgreSQL it also wakes the relays that listen, when the transaction commits.

    So an insert remains one statement, and the table needs no trigger. A function, because ``pg_notify`` returns nothing.
    """

    type = Integer()
    inherit_cache = True

    def __init__(self, channel: str) -> None:
        # Not a parameter: SQLAlchemy uses the compiled text again for a statement that differs in values of parameters only.
        quoted = channel.replace("'", "''")
        super().__init__(literal_column(f"'{quoted}'"))


@compiles(none_yet)
def _nothing(element: none_yet, compiler: Any, **options: Any) -> str:
    return "0"


@compiles(none_yet, "postgresql")
def _notify(element: none_yet, compiler: Any, **options: Any) -> str:
    (channel,) = element.clauses
    return f"(SELECT 0 FROM pg_notify({compiler.process(channel)}, ''))"  # nosec B608 # noqa: S608 - a literal


class OutboxTables:
    """Declared in the application's ``MetaData``: ``create_all`` creates them, and Alembic detects them."""

    def __init__(self, metadata: MetaData, table: str, *, notifies: bool = True) -> None:
        self.notifies = notifies
        #: The channel of NOTIFY, and what the lanes are named after.
        self.name = table
        self.rows = Table(
            table,
            metadata,
            Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
            Column("lane", SmallInteger, nullable=False),
            Column("delivery", String(1), nullable=False),
            Column("outcome", String(1), nullable=False),
            Column("order_key", exact_text(ORDER_KEY_CHARS_MAX), nullable=False),
            Column("message_id", exact_text(MESSAGE_ID_CHARS), nullable=False),
            Column("tx_id", exact_text(limits.TRANSACTION_ID_CHARS_MAX), nullable=False),
            Column("topic", exact_text(TOPIC_CHARS_MAX), nullable=False),
            Column("properties", LargeBinary(limits.PROPERTIES_BYTES_MAX), nullable=False),
            Column("body", _BODY, nullable=False),
            Column("written_at_ms", BigInteger, nullable=False),
            Column("attempts", Integer, nullable=False, default=none_yet(table) if notifies else 0),
            Column("due_at_ms", BigInteger, nullable=False),
            Column("published_at_ms", BigInteger, nullable=False),
            Column("reason", exact_text(REASON_CHARS_MAX), nullable=False),
            # The rows of a lane in their order, those that are due, and those that stop their key: each is a range of this index.
            Index(f"ix_{table}_next", "delivery", "lane", "due_at_ms", "seq"),
            Index(f"ix_{table}_message_id", "message_id"),
            sqlite_autoincrement=True,  # a number is never used again
        )
        self.lanes = Table(
            f"{table}_lane",
            metadata,
            Column("lane", SmallInteger, primary_key=True, autoincrement=False),
            Column("token", exact_text(32), nullable=False),
            Column("holder", exact_text(HOLDER_CHARS_MAX), nullable=False),
            Column("lease_until_ms", BigInteger, nullable=False),
            Column("batch_id", exact_text(limits.TRANSACTION_ID_CHARS_MAX), nullable=False),
            Column("batch_seqs", Text, nullable=False),
            Column("one_by_one_to_seq", BigInteger, nullable=False),
        )
