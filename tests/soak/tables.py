"""The business tables, which are the oracle: a message must be visible if and only if its line is here.

``orders`` and ``lines`` are written in the local transaction itself: transaction id and index identify a message, and the
CRC of the body and the tag describe it. ``credits`` is the consumers' side.
"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Engine,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    event,
)

from halfmq.sql import Inbox, MarkerTable

metadata = MetaData()

customers = Table("customers", metadata, Column("id", Integer, primary_key=True))
orders = Table(
    "orders",
    metadata,
    Column("tx_id", String(64), primary_key=True),
    Column("producer_group", String(64), nullable=False),
    # Deferred, so that COMMIT fails if the customer does not exist.
    Column("customer", ForeignKey("customers.id", deferrable=True, initially="DEFERRED"), nullable=False),
    Column("messages", Integer, nullable=False),
)
lines = Table(
    "lines",
    metadata,
    Column("tx_id", String(64), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("topic", String(64), nullable=False),
    Column("crc", BigInteger, nullable=False),
    # Empty: the message has no tag.
    Column("tag", String(16), nullable=False),
)
#: The marker table of the Java services, which implement the fence themselves.
java_markers = Table(
    "java_tx",
    metadata,
    Column("tx_id", String(64), primary_key=True),
    Column("outcome", String(1), nullable=False),
)
credited = Table(
    "credits",
    metadata,
    # Deliberately without a key: an effect that happened twice must be two rows.
    Column("consumer_group", String(64), nullable=False),
    Column("message_id", String(64), nullable=False),
    Column("tx_id", String(64), nullable=False),
    Column("number", Integer, nullable=False),
    Column("topic", String(64), nullable=False),
    Column("crc", BigInteger, nullable=False),
    # As the consumer received it.
    Column("tag", String(16), nullable=False),
)
#: Transactions that ``long_transactions`` has begun and not decided. ``prepared``: every half was acknowledged, so it may commit.
open_transactions = Table(
    "open_transactions",
    metadata,
    Column("tx_id", String(64), primary_key=True),
    Column("messages", Integer, nullable=False),
    Column("prepared", Boolean, nullable=False),
)
#: Checks begin early here, so that undecided transactions do not wait long after a kill.
IMMUNITY_MS = 1_000
markers = MarkerTable(metadata, min_age_s=IMMUNITY_MS / 1000)
inbox = Inbox(metadata)

CUSTOMER, NO_CUSTOMER = 1, 2


#: Application name of the services' connections to PostgreSQL, which are sometimes terminated.
SERVICES = "soak-services"


def connect(url: str, application: str = "soak") -> Engine:
    if url.startswith("sqlite"):
        engine = create_engine(url, connect_args={"timeout": 15})
        event.listen(engine, "connect", _set_up_sqlite)
        return engine
    return create_engine(
        url, pool_size=8, max_overflow=8, pool_pre_ping=True, connect_args={"application_name": application}
    )


def make(engine: Engine) -> None:
    metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(customers.insert().values(id=CUSTOMER))


def _set_up_sqlite(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
