"""An order service: local transactions with one to four messages, through ``mq.transaction(session, markers=...)``.

``python -m tests.soak.order_service DIRECTORY NAME LIFE GROUP RATE [POINT:COUNT]``. With a point it kills itself there
with SIGKILL, at the COUNT-th time. Otherwise it ends only on SIGTERM.
"""

import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, sessionmaker

from halfmq import Client, OutgoingMessage, Prepared, TransactionReceipt
from halfmq.errors import ConnectError, HalfmqError
from halfmq.model.stored_message import body_crc_of
from halfmq.testing.history.events import Fault
from tests.soak import tables
from tests.soak.notes import Counter, Notes, now_us
from tests.soak.plan import SQLITE_GROUP, TOPICS, Plan, load_plan, tag_of
from tests.soak.wire_tap import TappedConnector

log = logging.getLogger("soak.order_service")

#: Where a service may kill itself. The first points are in the application's code, the others between two frames.
POINTS = (
    "in-body", "before-halves", "after-halves", "after-local-commit", "after-end",
    "half-sent", "half-answered", "end-sent", "end-answered", "check-heard", "check-answered",
)  # fmt: skip
WORKERS = 3
#: Fraction of the committed transactions whose sender reports the verdict again, as one that did not see the response would.
REPEATED = 0.02


class ChangedItsMind(Exception):
    """The business rule: this order is not placed."""


class Death:
    """Kills this process at ``point``, at the ``count``-th time."""

    def __init__(self, notes: Notes, point: str, count: int) -> None:
        self._notes = notes
        self._point = point
        self._left = count
        self._lock = threading.Lock()

    def at(self, point: str) -> None:
        if point != self._point:
            return
        with self._lock:
            self._left -= 1
            if self._left == 0:
                self._notes.write(Fault(t_us=now_us(), by=self._notes.by, what="kill", whom="self", detail=point))
                os.kill(os.getpid(), signal.SIGKILL)


class MortalCalls:
    """The client's calls, with possible deaths between them."""

    def __init__(self, client: Client, death: Death, untold: float) -> None:
        """``untold``: fraction of the committed transactions whose verdict is not sent, so that the broker must check."""
        self._client = client
        self._death = death
        self._untold = untold
        self.group = client.group

    def new_transaction_id(self) -> str:
        return self._client.new_transaction_id()

    def prepare(self, messages: Sequence[OutgoingMessage], **names: Any) -> Prepared:
        self._death.at("before-halves")
        prepared = self._client.prepare(messages, **names)
        self._death.at("after-halves")
        return prepared

    def commit(self, prepared: Prepared) -> TransactionReceipt:
        self._death.at("after-local-commit")
        if random.random() < self._untold:
            raise ConnectError("nobody tells the broker")
        receipt = self._client.commit(prepared)
        self._death.at("after-end")
        if random.random() < REPEATED:
            receipt = self._client.commit(prepared)
        return receipt

    def rollback(self, prepared: Prepared) -> TransactionReceipt:
        return self._client.rollback(prepared)


class OrderService:
    def __init__(self, plan: Plan, name: str, group: str, rate: float, death: Death) -> None:
        self._plan = plan
        self._name = name
        self._group = group
        self._pause_s = WORKERS / rate
        self._death = death
        url = plan.sqlite_url if group == SQLITE_GROUP else plan.postgres_url
        self.sessions = sessionmaker(tables.connect(url, tables.SERVICES))
        self._counter = Counter(plan.counter_file(name))
        self.stopping = threading.Event()

    def work(self, mq: Client, rng: random.Random, worker: int) -> None:
        calls = MortalCalls(mq, self._death, self._plan.profile.untold)
        while not self.stopping.is_set():
            if self._plan.quiet_file.exists():
                self.stopping.wait(0.1)
                continue
            started = time.monotonic()
            try:
                self._place(calls, rng, worker)
            except ChangedItsMind:
                self._counter.add()
            except (HalfmqError, DBAPIError) as error:
                # Continue with another order: whether this one is committed does not matter here.
                log.info("%s", error)
                self.stopping.wait(0.05)
            else:
                self._counter.add()
            wait_s = self._pause_s - (time.monotonic() - started)
            if wait_s > 0:
                self.stopping.wait(wait_s * rng.uniform(0.6, 1.4))

    def _place(self, calls: MortalCalls, rng: random.Random, worker: int) -> None:
        count = rng.randint(1, 4)
        fate = rng.random()
        session: Session
        with self.sessions() as session, tables.markers.bind(calls, session) as tx:
            customer = tables.NO_CUSTOMER if fate < 0.08 else tables.CUSTOMER
            order = {"tx_id": tx.id, "producer_group": self._group, "customer": customer, "messages": count}
            session.execute(insert(tables.orders).values(order))
            for number in range(count):
                body = rng.randbytes(rng.randint(40, 900))
                topic = rng.choice(TOPICS)
                crc = body_crc_of(body)
                line = {"tx_id": tx.id, "number": number, "topic": topic, "crc": crc, "tag": tag_of(crc)}
                session.execute(insert(tables.lines).values(line))
                shard = f"{self._name}-{worker}" if rng.random() < 0.3 else None
                tx.send(topic, body, tag=tag_of(crc) or None, key=tx.id, sharding_key=shard)
            self._death.at("in-body")
            if fate > 0.95:
                raise ChangedItsMind


def connected(plan: Plan, group: str, connector: TappedConnector | None = None) -> Client:
    """Connect as soon as the broker responds."""
    while True:
        mq = Client(plan.url, group=group, connector=connector)
        try:
            mq.connect()
        except HalfmqError as error:
            log.info("%s", error)
            time.sleep(0.1)
        else:
            return mq


def main(directory: str, name: str, life: str, group: str, rate: str, mortality: str = "") -> None:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    plan = load_plan(directory)
    notes = Notes(plan, f"{name}.{life}")
    point, _, count = mortality.partition(":")
    death = Death(notes, point, int(count or 0))
    service = OrderService(plan, name, group, float(rate), death)
    signal.signal(signal.SIGTERM, lambda *_: service.stopping.set())
    mq = connected(plan, group, TappedConnector(notes, death.at))
    mq.answer_checks(tables.markers, service.sessions)
    threads = [
        threading.Thread(target=service.work, args=(mq, random.Random(f"{plan.seed}/{name}/{life}/{n}"), n))
        for n in range(WORKERS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    mq.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
