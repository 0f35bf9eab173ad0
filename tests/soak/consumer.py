"""A consumer with an inbox: every message is credited once in its own database, however often it is delivered.

``python -m tests.soak.consumer DIRECTORY NAME LIFE GROUP SUBSCRIPTION``. SIGTERM: acknowledge processed messages, leave the
group.
"""

import logging
import signal
import sys
import time
from collections.abc import Sequence

from sqlalchemy import insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, sessionmaker

from halfmq.client.message import Message
from halfmq.model import properties as names
from halfmq.model.stored_message import body_crc_of
from halfmq.testing.history.events import Seen
from tests.soak import tables
from tests.soak.notes import Counter, Notes, now_us
from tests.soak.order_service import connected
from tests.soak.plan import TOPICS, load_plan

log = logging.getLogger("soak.consumer")


def seen(notes: Notes, reader: str, message: Message) -> Seen:
    text = message.properties
    return Seen(
        t_us=now_us(), by=notes.by, reader=reader, message=message.message_id, topic=message.topic,
        queue=message.queue, queue_offset=message.offset, tx=message.transaction_id or "",
        index=int(text.get(names.HMQ_TX_INDEX, "0")), offset=message.log_offset,
        store_time_ms=message._stored.store_time_ms, crc=body_crc_of(message.body), key=message.sharding_key or "",
    )  # fmt: skip


def credit(message: Message, group: str) -> dict[str, object]:
    return {
        "consumer_group": group,
        "message_id": message.message_id,
        "tx_id": message.transaction_id or "",
        "number": int(message.properties.get(names.HMQ_TX_INDEX, "0")),
        "topic": message.topic,
        "crc": body_crc_of(message.body),
        "tag": message.tag or "",
    }


def settle(sessions: "sessionmaker[Session]", batch: Sequence[Message], group: str) -> None:
    """Credit each message of ``batch`` that was not credited before, all in one transaction.

    Another consumer may have some of the same messages (after a rebalance). Claiming them in a fixed order makes deadlocks
    rare; if the database aborts a transaction nevertheless, the batch is retried.
    """
    ordered = sorted(batch, key=lambda message: message.message_id)
    while True:
        try:
            with sessions() as session:
                first = [one for one in ordered if tables.inbox.claim(session, one, group=group)]
                if first:
                    session.execute(insert(tables.credited), [credit(message, group) for message in first])
                session.commit()
        except DBAPIError as error:
            log.warning("again: %s", error)
            time.sleep(0.05)
        else:
            return


def main(directory: str, name: str, life: str, group: str, subscription: str) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    plan = load_plan(directory)
    notes = Notes(plan, f"{name}.{life}")
    counter = Counter(plan.counter_file(name))
    sessions = sessionmaker(tables.connect(plan.postgres_url))
    mq = connected(plan, group)
    with mq.consumer(TOPICS, group=group, tags=subscription) as messages:
        signal.signal(signal.SIGTERM, lambda *_: messages.stop())
        for batch in messages.batches(max=100, wait=0.5):
            if not batch:
                continue
            notes.write(*(seen(notes, group, message) for message in batch))
            settle(sessions, batch, group)
            batch.ack()
            counter.add()
    mq.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
