"""The application whose relay `python -m tests.bench.outbox_debezium` runs by `halfmq relay`."""

import os

from sqlalchemy import MetaData, create_engine
from sqlalchemy.orm import sessionmaker

from halfmq import App
from halfmq.relay.kafka import KafkaPublisher
from halfmq.sql import Outbox

app = App("rocketmq://127.0.0.1:1", group="bench", sessions=sessionmaker(create_engine(os.environ["DATABASE_URL"])))
app.relay(Outbox(MetaData()), to=KafkaPublisher(os.environ["KAFKA_SERVERS"]))
