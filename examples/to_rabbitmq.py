"""Orders and their messages in one database; a relay publishes the messages to RabbitMQ, and billing reads them.

Install with `pip install 'halfmq[rabbitmq,sql]' aio-pika`, then run `python examples/to_rabbitmq.py`.
"""

import asyncio
import json
import os
from contextlib import suppress

import aio_pika
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, insert, select
from sqlalchemy.orm import Session

from halfmq.relay.rabbitmq import RabbitMqPublisher
from halfmq.sql import Inbox, Outbox

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/")
TOPIC = os.environ.get("TOPIC", "orders")
shop = create_engine(os.environ.get("DATABASE_URL", "sqlite:///to-rabbitmq-shop.db"))
billing = create_engine(os.environ.get("BILLING_DATABASE_URL", "sqlite:///to-rabbitmq-billing.db"))

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


async def relay_and_bill() -> None:
    connection = await aio_pika.connect(URL)
    queue = await (await connection.channel()).declare_queue(TOPIC, durable=True)
    # In production the relay is a process of its own: `halfmq relay MODULE:APP`.
    relay = outbox.relay(shop, RabbitMqPublisher(URL)).running()
    async with connection, relay, queue.iterator(timeout=30) as messages:
        async for message in messages:
            order_id = json.loads(message.body)["id"]
            with Session(billing) as session, inbox.once(session, message, group="billing") as first:
                if first:
                    session.execute(insert(invoices).values(order_id=order_id))
                    print("invoice for order", order_id)
            await message.ack()  # after the commit; if this process is killed in between, the message comes again
            if agree():
                break


shop_tables.create_all(shop)
billing_tables.create_all(billing)
for _ in range(5):
    place()  # no broker is asked
with suppress(ValueError):
    place(in_stock=False)

asyncio.run(relay_and_bill())
print("orders and invoices agree")
