"""Bills orders, each exactly once, whoever is killed and however often a message comes."""

import os
from dataclasses import dataclass

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from halfmq import App, Retry
from halfmq.sql import Inbox

BROKER = os.environ.get("HALFMQ_URL", "rocketmq://127.0.0.1:9876")
DATABASE = os.environ.get("DATABASE_URL", "sqlite:///billing.db")
CENTS = {"tea": 350, "milk": 120}


class Base(DeclarativeBase): ...


class Invoice(Base):
    __tablename__ = "invoices"
    order_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    cents: Mapped[int]


@dataclass
class Order:
    id: int
    item: str


class NoPrice(Exception):
    """Another attempt would not help."""


inbox = Inbox(Base.metadata)


def make_app(broker: str = BROKER, database: str = DATABASE) -> App:
    engine = create_engine(database)
    Base.metadata.create_all(engine)
    app = App(broker, sessions=sessionmaker(engine), shutdown_grace=20)

    @app.consumer("orders", group="billing", inbox=inbox, retry=Retry(times=5, delays=(1, 10, 60), dead_on=(NoPrice,)))
    def bill(order: Order, session: Session) -> None:
        if order.item not in CENTS:
            raise NoPrice(order.item)
        session.add(Invoice(order_id=order.id, cents=CENTS[order.item]))

    return app
