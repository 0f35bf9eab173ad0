"""Places an order, whose message is visible if and only if the order is in the database; and reads all messages that there are.

python orders.py tea milk
"""

import os
import sys

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from halfmq import Client
from halfmq.sql import MarkerTable

BROKER = os.environ.get("HALFMQ_URL", "rocketmq://127.0.0.1:9876")
DATABASE = os.environ.get("DATABASE_URL", "sqlite:///orders.db")


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


markers = MarkerTable(Base.metadata)


def connect(mq: Client, database: str = DATABASE) -> sessionmaker[Session]:
    engine = create_engine(database)
    Base.metadata.create_all(engine)
    sessions = sessionmaker(engine)
    mq.answer_checks(markers, sessions)  # also those of a run that was killed
    return sessions


def place(mq: Client, sessions: sessionmaker[Session], item: str) -> int:
    with sessions() as session, mq.transaction(session, markers=markers) as tx:
        session.add(order := Order(item=item))
        session.flush()
        tx.send("orders", {"id": order.id, "item": item}, key=order.id)
        return order.id


def read(mq: Client, seconds: float = 2) -> None:
    """Print what is new, until there was nothing for so long."""
    with mq.consumer("orders", group="reader", start="earliest") as messages:
        while message := messages.get(timeout=seconds):
            print("read:", message.json())
            message.ack()


if __name__ == "__main__":
    with Client(BROKER, group="shop") as mq:
        sessions = connect(mq)
        for item in sys.argv[1:]:
            print("placed:", place(mq, sessions, item))
        read(mq)
