"""The loyalty programme's database, another one than the shop's: points by basket, balances by household, inbox."""

from sqlalchemy import BigInteger, Column, Integer, MetaData, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from demo.messages import LoyaltyMessage
from demo.shop_db import connect
from halfmq.sql import Inbox

metadata = MetaData()

#: One row for each message that counted. No unique key on the basket: what keeps it single is the inbox alone, and a
#: duplicated message would show.
entries = Table(
    "entries",
    metadata,
    Column("entry_id", Integer, primary_key=True),
    Column("basket_id", BigInteger, nullable=False),
    Column("household_id", Integer, nullable=False),
    Column("points", Integer, nullable=False),
    Column("total_cents", BigInteger, nullable=False),
)
balances = Table(
    "balances",
    metadata,
    Column("household_id", Integer, primary_key=True, autoincrement=False),
    Column("points", BigInteger, nullable=False),
)
inbox = Inbox(metadata, table="mq_inbox")


def create(url: str) -> None:
    engine = connect(url)
    metadata.create_all(engine)
    engine.dispose()


def credit(session: Session, earned: list[LoyaltyMessage]) -> None:
    """Entries, and the balances they add to, in the session's transaction."""
    session.execute(
        entries.insert(),
        [
            {
                "basket_id": one.basket_id,
                "household_id": one.household_id,
                "points": one.points,
                "total_cents": one.total_cents,
            }
            for one in earned
        ],
    )
    sums: dict[int, int] = {}
    for one in earned:
        sums[one.household_id] = sums.get(one.household_id, 0) + one.points
    dialect = sqlite if session.get_bind().dialect.name == "sqlite" else postgresql
    upsert = dialect.insert(balances)
    session.execute(
        upsert.on_conflict_do_update(
            index_elements=["household_id"], set_={"points": balances.c.points + upsert.excluded.points}
        ),
        [{"household_id": household, "points": points} for household, points in sorted(sums.items())],
    )
