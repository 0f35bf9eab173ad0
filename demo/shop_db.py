"""The shop's database: catalogue, orders, lines, rejections, and the marker table of its transactions."""

from pathlib import Path

from sqlalchemy import (
    BigInteger,
    Column,
    Engine,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    func,
    insert,
    select,
)
from sqlalchemy.orm import Session

from demo.data import Basket, read_catalogue
from demo.run import CHECK_IMMUNITY_MS
from halfmq.sql import MarkerTable

metadata = MetaData()

products = Table(
    "products",
    metadata,
    Column("product_id", BigInteger, primary_key=True, autoincrement=False),
    Column("department", String(40), nullable=False),
)
orders = Table(
    "orders",
    metadata,
    # The business key: a basket cannot become two orders, whatever is repeated.
    Column("basket_id", BigInteger, primary_key=True, autoincrement=False),
    Column("household_id", Integer, nullable=False),
    Column("store_id", Integer, nullable=False),
    Column("sold_at", String(19), nullable=False),
    Column("total_cents", BigInteger, nullable=False),
)
lines = Table(
    "lines",
    metadata,
    Column("basket_id", ForeignKey("orders.basket_id"), primary_key=True),
    # Deferred, so that it is the COMMIT that fails.
    Column(
        "product_id",
        ForeignKey("products.product_id", deferrable=True, initially="DEFERRED"),
        primary_key=True,
    ),
    Column("quantity", Integer, nullable=False),
    Column("sales_cents", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
rejections = Table(
    "rejections",
    metadata,
    Column("basket_id", BigInteger, primary_key=True, autoincrement=False),
    Column("reason", String(20), nullable=False),
)

#: The marker of each transaction, in the same database as the orders.
markers = MarkerTable(metadata, table="mq_tx", min_age_s=CHECK_IMMUNITY_MS / 1000)


def connect(url: str) -> Engine:
    """An engine for either database."""
    if url.startswith("sqlite"):
        # One writer at a time is SQLite's nature; the wait is for the other services' transactions.
        engine = create_engine(url, connect_args={"timeout": 60})
        event.listen(engine, "connect", _set_up_sqlite)
        return engine
    return create_engine(url, pool_size=20, max_overflow=10, pool_pre_ping=True)


def _set_up_sqlite(connection, _record) -> None:  # type: ignore[no-untyped-def]
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def create(url: str) -> None:
    """Tables and catalogue."""
    engine = connect(url)
    metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(products), read_catalogue().to_pylist())
    engine.dispose()


def add_order(session: Session, basket: Basket) -> None:
    """The rows of one order, in the session's transaction."""
    session.execute(insert(orders), order_row(basket))
    session.execute(insert(lines), line_rows(basket))


def order_row(basket: Basket) -> dict[str, object]:
    return {
        "basket_id": basket.basket_id,
        "household_id": basket.household_id,
        "store_id": basket.store_id,
        "sold_at": basket.sold_at,
        "total_cents": basket.total_cents,
    }


def line_rows(basket: Basket) -> list[dict[str, object]]:
    return [
        {
            "basket_id": basket.basket_id,
            "product_id": line.product_id,
            "quantity": line.quantity,
            "sales_cents": line.sales_cents,
        }
        for line in basket.lines
    ]


def done_baskets(engine: Engine) -> tuple[set[int], dict[int, str]]:
    """What a service that starts again finds: baskets that are orders, and those that were rejected and why."""
    with engine.connect() as connection:
        placed = set(connection.scalars(select(orders.c.basket_id)))
        rejected = {row.basket_id: row.reason for row in connection.execute(select(rejections))}
    return placed, rejected


def note_rejection(engine: Engine, basket_id: int, reason: str) -> None:
    """For the report only; a rejection that is not noted is found again, with the same result."""
    with engine.begin() as connection:
        if connection.scalar(select(rejections.c.basket_id).where(rejections.c.basket_id == basket_id)) is None:
            connection.execute(insert(rejections).values(basket_id=basket_id, reason=reason))


def sqlite_url(path: Path) -> str:
    return f"sqlite:///{path}"


def is_placed(engine: Engine, basket_id: int) -> bool:
    with engine.connect() as connection:
        return connection.scalar(select(orders.c.basket_id).where(orders.c.basket_id == basket_id)) is not None


def has_unknown_product(engine: Engine, basket: Basket) -> bool:
    wanted = {line.product_id for line in basket.lines}
    with engine.connect() as connection:
        known = connection.scalars(select(products.c.product_id).where(products.c.product_id.in_(wanted)))
        return wanted != set(known)


def count_markers(engine: Engine) -> dict[str, int]:
    """Outcome ('C', 'R') -> marker rows, without those about the table itself."""
    outcome = markers.table.c.outcome
    counts = select(outcome, func.count()).where(markers.table.c.tx_id.not_like("#%")).group_by(outcome)
    with engine.connect() as connection:
        return {row[0]: row[1] for row in connection.execute(counts)}


def count_orders(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(orders)) or 0
