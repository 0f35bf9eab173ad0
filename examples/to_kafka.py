"""Orders and their messages in one database; a relay publishes the messages to Apache Kafka, and billing reads them.

Install with `pip install 'halfmq[kafka,sql]'`, then run `python examples/to_kafka.py`.
"""

import asyncio
import json
import os
from contextlib import suppress
from types import SimpleNamespace

from confluent_kafka import Consumer
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, insert, select
from sqlalchemy.orm import Session

from halfmq.relay.kafka import KafkaPublisher
from halfmq.sql import Inbox, Outbox

SERVERS = os.environ.get("KAFKA_SERVERS", "127.0.0.1:9092")
TOPIC = os.environ.get("TOPIC", "orders")
shop = create_engine(os.environ.get("DATABASE_URL", "sqlite:///to-kafka-shop.db"))
billing = create_engine(os.environ.get("BILLING_DATABASE_URL", "sqlite:///to-kafka-billing.db"))

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


def bill() -> None:
    # Of a consumer that was killed the partitions are free after the session's time-out, by default 45 s.
    group = {"group.id": "billing", "session.timeout.ms": 6_000, "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": SERVERS, "enable.auto.commit": False, **group})
    consumer.subscribe([TOPIC])
    while not agree():
        if (record := consumer.poll(timeout=30)) is None:
            raise SystemExit("no message for 30 seconds, and some orders have no invoice")
        if record.error():
            continue  # there is no such topic yet
        received = SimpleNamespace(message_id=dict(record.headers())["message-id"].decode())
        order_id = json.loads(record.value())["id"]
        with Session(billing) as session, inbox.once(session, received, group="billing") as first:
            if first:
                session.execute(insert(invoices).values(order_id=order_id))
                print("invoice for order", order_id)
        consumer.commit(record)  # after the commit of the database
    consumer.close()


async def relay_and_bill() -> None:
    # In production the relay is a process of its own: `halfmq relay MODULE:APP`.
    async with outbox.relay(shop, KafkaPublisher(SERVERS)).running():
        await asyncio.to_thread(bill)


shop_tables.create_all(shop)
billing_tables.create_all(billing)
for _ in range(5):
    place()  # no broker is asked
with suppress(ValueError):
    place(in_stock=False)

asyncio.run(relay_and_bill())
print("orders and invoices agree")
