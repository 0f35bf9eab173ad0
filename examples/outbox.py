"""Orders and their messages in one database; a relay publishes the messages to a halfmq broker, and billing reads them.

Run `halfmq serve --data ./data` in another terminal, then `python examples/outbox.py`.
"""

import os
import sys
from contextlib import suppress

from sqlalchemy import Column, Integer, MetaData, Table, create_engine, insert, select
from sqlalchemy.orm import Session

from halfmq import Client
from halfmq.sql import Inbox, Outbox

URL = os.environ.get("HALFMQ_URL", "rocketmq://127.0.0.1:9876")
TOPIC = os.environ.get("TOPIC", "orders-outbox")
shop = create_engine(os.environ.get("DATABASE_URL", "sqlite:///outbox-shop.db"))
billing = create_engine(os.environ.get("BILLING_DATABASE_URL", "sqlite:///outbox-billing.db"))

shop_tables, billing_tables = MetaData(), MetaData()
orders = Table("orders", shop_tables, Column("id", Integer, primary_key=True))
outbox = Outbox(shop_tables)
invoices = Table("invoices", billing_tables, Column("id", Integer, primary_key=True), Column("order_id", Integer))
inbox = Inbox(billing_tables)


def place(*, in_stock: bool = True) -> None:
    with Session(shop) as session, session.begin():
        order_id = session.execute(insert(orders)).inserted_primary_key.id
        outbox.send(session, TOPIC, {"id": order_id}, sharding_key=order_id)
        if not in_stock:
            raise ValueError("out of stock")  # there is neither an order nor a message


def agree() -> bool:
    """Whether each order has exactly one invoice."""
    with shop.connect() as in_shop, billing.connect() as in_billing:
        return sorted(in_shop.scalars(select(orders.c.id))) == sorted(in_billing.scalars(select(invoices.c.order_id)))


shop_tables.create_all(shop)
billing_tables.create_all(billing)
for _ in range(5):
    place()  # no broker is asked
with suppress(ValueError):
    place(in_stock=False)

# In production the relay is a process of its own: `halfmq relay MODULE:APP`.
with Client(URL, group="shop") as mq, mq.relay(outbox, shop), mq.consumer(TOPIC, group="billing") as messages:
    while not agree():
        if (message := messages.get(timeout=30)) is None:
            sys.exit("no message for 30 seconds, and some orders have no invoice")
        order_id = message.json()["id"]
        with Session(billing) as session, inbox.once(session, message, group="billing") as first:
            if first:
                session.execute(insert(invoices).values(order_id=order_id))
                print("invoice for order", order_id)
        message.ack()  # after the commit; if this process is killed in between, the message comes again
print("orders and invoices agree")
