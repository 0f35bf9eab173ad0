"""A transaction of two steps: placing an order writes its message and holds it, its payment lets it go or withdraws it.

Run `halfmq serve --data ./data` in another terminal, then `python examples/state_table.py`.
"""

import os
import sys
from contextlib import suppress

from sqlalchemy import Column, Integer, MetaData, Table, Text, create_engine, insert, select, update
from sqlalchemy.orm import Session

from halfmq import Client
from halfmq.sql import Inbox, Outbox

URL = os.environ.get("HALFMQ_URL", "rocketmq://127.0.0.1:9876")
TOPIC = os.environ.get("TOPIC", "orders-state-table")
shop = create_engine(os.environ.get("DATABASE_URL", "sqlite:///state-table-shop.db"))
billing = create_engine(os.environ.get("BILLING_DATABASE_URL", "sqlite:///state-table-billing.db"))

shop_tables, billing_tables = MetaData(), MetaData()
orders = Table(
    "orders", shop_tables, Column("id", Integer, primary_key=True), Column("state", Text), Column("message_id", Text)
)
outbox = Outbox(shop_tables)
invoices = Table("invoices", billing_tables, Column("id", Integer, primary_key=True), Column("order_id", Integer))
inbox = Inbox(billing_tables)


def place(*, in_stock: bool = True) -> None:
    with Session(shop) as session, session.begin():
        order_id = session.execute(insert(orders).values(state="placed")).inserted_primary_key.id
        message_id = outbox.send(session, TOPIC, {"id": order_id}, hold=True)
        session.execute(update(orders).where(orders.c.id == order_id).values(message_id=message_id))
        if not in_stock:
            raise ValueError("out of stock")  # there is neither an order nor a message


def pay(order_id: int, message_id: str, *, accepted: bool) -> None:
    """A later transaction, perhaps of another process."""
    with Session(shop) as session, session.begin():
        if accepted:
            outbox.confirm(session, message_id)
        else:
            outbox.withdraw(session, message_id)
        state = "paid" if accepted else "declined"
        session.execute(update(orders).where(orders.c.id == order_id).values(state=state))


def agree() -> bool:
    """Whether each order that is paid has exactly one invoice, and no other has any."""
    with shop.connect() as in_shop, billing.connect() as in_billing:
        paid = in_shop.scalars(select(orders.c.id).where(orders.c.state == "paid"))
        return sorted(paid) == sorted(in_billing.scalars(select(invoices.c.order_id)))


shop_tables.create_all(shop)
billing_tables.create_all(billing)
for _ in range(5):
    place()
with suppress(ValueError):
    place(in_stock=False)
with shop.connect() as connection:
    placed = connection.execute(select(orders.c.id, orders.c.message_id).where(orders.c.state == "placed")).all()
for order_id, message_id in placed:
    pay(order_id, message_id, accepted=order_id % 5 > 0)

# In production the relay is a process of its own: `halfmq relay MODULE:APP`.
with Client(URL, group="shop") as mq, mq.relay(outbox, shop), mq.consumer(TOPIC, group="billing") as messages:
    while not agree():
        if (message := messages.get(timeout=30)) is None:
            sys.exit("no message for 30 seconds, and some paid orders have no invoice")
        order_id = message.json()["id"]
        with Session(billing) as session, inbox.once(session, message, group="billing") as first:
            if first:
                session.execute(insert(invoices).values(order_id=order_id))
                print("invoice for order", order_id)
        message.ack()  # after the commit; if this process is killed in between, the message comes again
print("paid orders and invoices agree")
