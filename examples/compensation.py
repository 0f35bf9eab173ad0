"""An order needs goods and money. A service that cannot do its part sends a message, because of which the others undo theirs.

Run `halfmq serve --data ./data` in another terminal, then `python examples/compensation.py`: three services in one process.
"""

import asyncio
import os
from typing import Any

from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, insert, select, update
from sqlalchemy.orm import Session, sessionmaker

from halfmq import App, Client, Message
from halfmq.sql import Inbox, MarkerTable

URL = os.environ.get("HALFMQ_URL", "rocketmq://127.0.0.1:9876")
app = App(URL, group="compensation-shop")
_topics = (os.environ.get("TOPIC", "order") + end for end in ("-placed", "-reserved", "-paid", "-failed"))
PLACED, RESERVED, PAID, FAILED = _topics


class Service:
    def __init__(self, name: str, variable: str) -> None:
        tables = MetaData()
        self.engine = create_engine(os.environ.get(variable, f"sqlite:///compensation-{name}.db"))
        self.parts = Table(name, tables, Column("id", Integer, primary_key=True), Column("state", String(9)))
        self.markers, inbox = MarkerTable(tables, f"{name}_marker"), Inbox(tables, f"{name}_inbox")
        self.options: dict[str, Any] = {"inbox": inbox, "markers": self.markers, "sessions": sessionmaker(self.engine)}
        tables.create_all(self.engine)

    def ids(self, state: str) -> list[int]:
        with self.engine.connect() as connection:
            return sorted(connection.scalars(select(self.parts.c.id).where(self.parts.c.state == state)))


shop, stock, bank = Service("shop", "DATABASE_URL"), Service("stock", "STOCK_URL"), Service("bank", "BANK_URL")


@app.consumer([PLACED, FAILED], group="stock", **stock.options)
def reserve_or_release(message: Message, session: Session, tx) -> None:
    if message.topic == FAILED:
        session.execute(update(stock.parts).where(stock.parts.c.id == message.json()).values(state="released"))
    elif message.json() % 5 == 0:
        message.compensate(FAILED, message.json())  # out of stock
    else:
        session.execute(insert(stock.parts).values(id=message.json(), state="reserved"))
        tx.send(RESERVED, message.json())  # visible if and only if the goods are reserved


@app.consumer(RESERVED, group="bank", retries=0, on_dead=lambda m, *_: m.compensate(FAILED, m.json()), **bank.options)
def pay(order_id: int, session: Session, tx) -> None:
    session.execute(insert(bank.parts).values(id=order_id, state="paid"))
    tx.send(PAID, order_id)
    if order_id % 3 == 0:
        raise ValueError("the card is refused")  # nothing is paid or sent, and `on_dead` is called


@app.consumer([PAID, FAILED], group="shop", **shop.options)
def finish(message: Message, session: Session, _tx) -> None:
    state = "paid" if message.topic == PAID else "cancelled"
    session.execute(update(shop.parts).where(shop.parts.c.id == message.json()).values(state=state))


def place() -> None:
    block: dict[str, Any] = {"markers": shop.markers, "checked_elsewhere": True}  # by the app
    with Client(URL, group="compensation-shop") as mq, Session(shop.engine) as db, mq.transaction(db, **block) as tx:
        tx.send(PLACED, db.execute(insert(shop.parts).values(state="placed")).inserted_primary_key.id)


async def main() -> None:
    async with app.run():
        for _ in range(5):
            await asyncio.to_thread(place)
        while shop.ids("placed") or not shop.ids("paid") == stock.ids("reserved") == bank.ids("paid"):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    print("orders, goods and payments agree")


asyncio.run(main())
