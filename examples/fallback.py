"""Half messages while the broker answers, and the outbox while it does not: orders are placed either way.

Run `halfmq serve --data ./data` in another terminal, then `python examples/fallback.py`.
"""

import os
import sys
from contextlib import suppress

from sqlalchemy import Column, Integer, MetaData, Table, create_engine, insert, select
from sqlalchemy.orm import Session, sessionmaker

from halfmq import Client
from halfmq.sql import Inbox, MarkerTable, Outbox

URL = os.environ.get("HALFMQ_URL", "rocketmq://127.0.0.1:9876")
TOPIC = os.environ.get("TOPIC", "orders-fallback")
shop = create_engine(os.environ.get("DATABASE_URL", "sqlite:///fallback-shop.db"))
billing = create_engine(os.environ.get("BILLING_DATABASE_URL", "sqlite:///fallback-billing.db"))

shop_tables, billing_tables = MetaData(), MetaData()
orders = Table("orders", shop_tables, Column("id", Integer, primary_key=True))
markers, outbox = MarkerTable(shop_tables), Outbox(shop_tables)
invoices = Table("invoices", billing_tables, Column("id", Integer, primary_key=True), Column("order_id", Integer))
inbox = Inbox(billing_tables)


def place(mq: Client, *, in_stock: bool = True) -> None:
    with Session(shop) as session, mq.transaction(session, markers=markers, outbox=outbox, timeout=2.0) as tx:
        order_id = session.execute(insert(orders)).inserted_primary_key.id
        tx.send(TOPIC, {"id": order_id}, key=order_id)
        if not in_stock:
            raise ValueError("out of stock")  # there is no order, and nobody sees its message
    print("order", order_id, "by way of", tx.receipt.path if tx.receipt else "half messages")


def agree() -> bool:
    """Whether each order has exactly one invoice."""
    with shop.connect() as in_shop, billing.connect() as in_billing:
        return sorted(in_shop.scalars(select(orders.c.id))) == sorted(in_billing.scalars(select(invoices.c.order_id)))


shop_tables.create_all(shop)
billing_tables.create_all(billing)

# As while the broker is away: nobody listens at this address.
away = Client("rocketmq://127.0.0.1:1", group="shop")
away.answer_checks(markers, sessionmaker(shop))
away.connect(wait=False)
for _ in range(2):
    place(away)
away.close()

# In production the relay is a process of its own: `halfmq relay MODULE:APP`.
with Client(URL, group="shop") as mq, mq.relay(outbox, shop), mq.consumer(TOPIC, group="billing") as messages:
    mq.answer_checks(markers, sessionmaker(shop))  # also about transactions of a process that was killed
    for _ in range(3):
        place(mq)
    with suppress(ValueError):
        place(mq, in_stock=False)
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
