"""Orders and their messages in one database; a relay publishes the messages to Apache RocketMQ, and billing reads them.

Install with `pip install 'halfmq[sql]'`, then run `python examples/to_rocketmq.py`.
"""

import os
import sys
from contextlib import suppress

from sqlalchemy import Column, Integer, MetaData, Table, create_engine, insert, select
from sqlalchemy.orm import Session

from halfmq import Client
from halfmq.relay.rocketmq import RocketMqPublisher
from halfmq.sql import Inbox, Outbox

SERVERS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = os.environ.get("TOPIC", "orders")
shop = create_engine(os.environ.get("DATABASE_URL", "sqlite:///to-rocketmq-shop.db"))
billing = create_engine(os.environ.get("BILLING_DATABASE_URL", "sqlite:///to-rocketmq-billing.db"))

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
target = RocketMqPublisher(SERVERS)
with Client(SERVERS) as mq, mq.relay(outbox, shop, to=target), mq.consumer(TOPIC, group="billing") as messages:
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
