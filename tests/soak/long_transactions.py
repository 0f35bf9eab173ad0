"""Transactions that stay undecided for a long time: so many are kept open that the log must copy them forward repeatedly.

``python -m tests.soak.long_transactions DIRECTORY NAME LIFE KEPT RATE``. It opens transactions until KEPT are open, then
decides an old one for each new one, RATE of them a second. Each open transaction is a row in a table before its first half
message is sent, so the next life of a killed process continues where this one ended. Half of the decisions are sent to the
broker; it learns the others from its checks. When producers become quiet everything is decided; SIGTERM ends the process.
"""

import logging
import random
import signal
import sys
import threading
import time
from collections.abc import Sequence

from sqlalchemy import Engine, insert, select, update

from halfmq import Client, Outcome, OutgoingMessage, Prepared
from halfmq.client.outgoing import compose
from halfmq.client.transaction_block import Transaction
from halfmq.errors import HalfmqError
from halfmq.model.stored_message import body_crc_of
from tests.soak import tables
from tests.soak.notes import Counter, Notes
from tests.soak.order_service import connected
from tests.soak.plan import TOPICS, Plan, load_plan, tag_of
from tests.soak.wire_tap import TappedConnector

log = logging.getLogger("soak.long_transactions")

GROUP = "soak-long"
CHECK = "long"
WORKERS = 4
BODY_BYTES = (40, 240)
#: Number of decisions per local transaction when everything is decided at the end.
TOGETHER = 500


def messages_of(tx_id: str, count: int) -> list[tuple[str, bytes]]:
    """Topic and body of each message: the same in every life."""
    rng = random.Random(tx_id)
    return [(rng.choice(TOPICS), rng.randbytes(rng.randint(*BODY_BYTES))) for _ in range(count)]


class LongTransactions:
    def __init__(self, plan: Plan, name: str, mq: Client, kept: int) -> None:
        self._plan = plan
        self._mq = mq
        self._kept = kept
        self._engine: Engine = tables.connect(plan.sqlite_url)
        self._counter = Counter(plan.counter_file(name))
        self._lock = threading.Lock()
        self._prepared: dict[str, Prepared] = {}
        with self._engine.connect() as connection:
            rows = connection.execute(select(tables.open_transactions)).all()
        #: Ids in order of preparation, from this life or an earlier one -> number of messages, whether they may be committed.
        self._open: dict[str, tuple[int, bool]] = {tx_id: (count, prepared) for tx_id, count, prepared in rows}
        self.stopping = threading.Event()

    def check(self, transaction: Transaction) -> Outcome:
        table = tables.java_markers
        with self._engine.connect() as connection:
            outcome = connection.scalar(select(table.c.outcome).where(table.c.tx_id == transaction.id))
        return {"C": Outcome.COMMIT, "R": Outcome.ROLLBACK, None: Outcome.UNKNOWN}[outcome]

    def work(self, rng: random.Random, rate: float) -> None:
        while not self.stopping.is_set():
            if self._plan.quiet_file.exists():
                self.stopping.wait(0.1)
                continue
            began = time.monotonic()
            try:
                if len(self._open) < self._kept:
                    self._begin(rng)
                else:
                    self._decide_one(rng)
                    self._begin(rng)
                    self.stopping.wait(max(0.0, WORKERS / rate - (time.monotonic() - began)))
            except HalfmqError as error:
                log.info("%s", error)
                self.stopping.wait(0.1)

    def _begin(self, rng: random.Random) -> None:
        tx_id = self._mq.new_transaction_id()
        count = rng.randint(1, 2)
        with self._engine.begin() as connection:
            connection.execute(insert(tables.open_transactions).values(tx_id=tx_id, messages=count, prepared=False))
        with self._lock:
            self._open[tx_id] = count, False
        halves: list[OutgoingMessage] = [
            compose(topic, body, tag=tag_of(body_crc_of(body)) or None, key=tx_id)
            for topic, body in messages_of(tx_id, count)
        ]
        prepared = self._mq.prepare(halves, tx_id=tx_id, name=CHECK)
        with self._engine.begin() as connection:
            connection.execute(
                update(tables.open_transactions).where(tables.open_transactions.c.tx_id == tx_id).values(prepared=True)
            )
        with self._lock:
            self._open[tx_id] = count, True
            self._prepared[tx_id] = prepared

    def _decide_one(self, rng: random.Random) -> None:
        with self._lock:
            tx_id = next(iter(self._open)) if rng.random() < 0.5 else rng.choice(list(self._open))
            count, prepared = self._open.pop(tx_id)
            told = self._prepared.pop(tx_id, None)
        committed = prepared and rng.random() < 0.8
        self._local_transaction([(tx_id, count, committed)])
        if told is not None and rng.random() < 0.5:
            (self._mq.commit if committed else self._mq.rollback)(told)
        self._counter.add()

    def _local_transaction(self, decided: Sequence[tuple[str, int, bool]]) -> None:
        with self._engine.begin() as connection:
            for tx_id, count, committed in decided:
                connection.execute(tables.open_transactions.delete().where(tables.open_transactions.c.tx_id == tx_id))
                connection.execute(insert(tables.java_markers).values(tx_id=tx_id, outcome="C" if committed else "R"))
                if not committed:
                    continue
                connection.execute(
                    insert(tables.orders).values(
                        tx_id=tx_id, producer_group=GROUP, customer=tables.CUSTOMER, messages=count
                    )
                )
                rows = [
                    {"tx_id": tx_id, "number": number, "topic": topic, "crc": crc, "tag": tag_of(crc)}
                    for number, (topic, body) in enumerate(messages_of(tx_id, count))
                    for crc in (body_crc_of(body),)
                ]
                connection.execute(insert(tables.lines), rows)

    def decide_all(self) -> None:
        """Decide everything that is open, in the database only: the broker learns it from its checks."""
        with self._lock:
            left, self._open = self._open, {}
            self._prepared.clear()
        rng = random.Random(len(left))
        decided = [(tx_id, count, prepared and rng.random() < 0.8) for tx_id, (count, prepared) in left.items()]
        for start in range(0, len(decided), TOGETHER):
            self._local_transaction(decided[start : start + TOGETHER])
            self._counter.add()


def main(directory: str, name: str, life: str, kept: str, rate: str) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    plan = load_plan(directory)
    mq = connected(plan, GROUP, TappedConnector(Notes(plan, f"{name}.{life}"), lambda happened: None))
    long = LongTransactions(plan, name, mq, int(kept))
    signal.signal(signal.SIGTERM, lambda *_: long.stopping.set())
    mq.add_check(CHECK, long.check)
    threads = [
        threading.Thread(target=long.work, args=(random.Random(f"{plan.seed}/{name}/{life}/{n}"), float(rate)))
        for n in range(WORKERS)
    ]
    for thread in threads:
        thread.start()
    while not long.stopping.wait(0.2):
        if plan.quiet_file.exists():
            time.sleep(2)  # every transaction in progress has ended by now
            long.decide_all()
            long.stopping.wait()
    for thread in threads:
        thread.join()
    mq.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
