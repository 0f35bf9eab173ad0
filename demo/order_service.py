"""The order service: a process that may be killed at any moment, and goes on where its database says it was.

Each basket of its share is one local transaction (order, lines, marker) and one message transaction with two messages.
It decides nothing twice: what is done it reads from its own database, and the order's primary key guards what was open.
"""

import argparse
import logging
import queue
import signal
import sys
import threading
import time
from pathlib import Path

from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session, sessionmaker

from demo import shop_db
from demo.data import NOTHING_TO_PAY, UNKNOWN_PRODUCT, Basket, Source
from demo.flight_recorder import Counter, FlightRecorder, Phase, Stopwatch
from demo.messages import loyalty_message, order_message
from demo.patient_client import PAUSE_S, connected
from demo.run import LOYALTY_TOPIC, ORDERS_TOPIC, PRODUCER_GROUP, Run
from demo.turns import FileTurn, NoTurn, Turn
from demo.watched_markers import WatchedMarkers
from halfmq import Client
from halfmq.errors import HalfmqError, TransactionUnknown

log = logging.getLogger("demo.order_service")


class NothingToPay(Exception):
    """The business rule: a basket that adds up to zero is no order."""


class OrderService:
    def __init__(self, run: Run, index: int) -> None:
        self._run = run
        self._index = index
        self._engine = shop_db.connect(run.shop_db)
        self._sessions = sessionmaker(self._engine)
        self.recorder = FlightRecorder(recorder_path(run.path, index), run.workers)
        self.markers = WatchedMarkers(shop_db.markers, self.recorder)
        self._source = Source(run.path)
        self._stopping = threading.Event()

    @property
    def sessions(self) -> sessionmaker[Session]:
        return self._sessions

    def stop(self, *_: object) -> None:
        self._stopping.set()

    def serve(self, mq: Client) -> None:
        """Work off the share, then answer checks until stopped."""
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in self._undone():
            waiting.put(number)
        workers = [
            threading.Thread(target=self._work, args=(mq, worker, waiting), name=f"worker-{worker}")
            for worker in range(self._run.workers)
        ]
        for thread in workers:
            thread.start()
        for thread in workers:
            thread.join()
        if not self._stopping.is_set():
            self.recorder.set(Counter.FINISHED, 1)
        self._stopping.wait()

    def _undone(self) -> list[int]:
        """Numbers of the baskets that have no fate yet, by what the database says."""
        placed, rejected = shop_db.done_baskets(self._engine)
        mine = [n for n in self._source.share(self._index, self._run.services) if n != self._run.held_out]
        ids = [int(self._source.ids[number]) for number in mine]
        reasons = [rejected[one] for one in ids if one in rejected]
        orders = sum(one in placed for one in ids)
        self.recorder.clear_workers()
        self.recorder.set(Counter.FINISHED, 0)
        self.recorder.set(Counter.ORDERS, orders)
        self.recorder.set(Counter.NOTHING_TO_PAY, reasons.count(NOTHING_TO_PAY))
        self.recorder.set(Counter.UNKNOWN_PRODUCT, reasons.count(UNKNOWN_PRODUCT))
        self.recorder.set(Counter.RESUMED, orders + len(reasons))
        return [number for number, one in zip(mine, ids, strict=True) if one not in placed and one not in rejected]

    def _work(self, mq: Client, worker: int, waiting: "queue.SimpleQueue[int]") -> None:
        turn: Turn = FileTurn(self._run.path / "shop.turn") if self._run.shop_db.startswith("sqlite") else NoTurn()
        while not self._stopping.is_set():
            try:
                number = waiting.get_nowait()
            except queue.Empty:
                return
            self._settle(mq, worker, self._source.basket(number), turn)
            self.recorder.enter(worker, Phase.IDLE)

    def _settle(self, mq: Client, worker: int, basket: Basket, turn: Turn) -> None:
        """Until this basket has a fate: an order, or a rejection."""
        while not self._stopping.is_set():
            turn.take()
            watch = Stopwatch()
            self.markers.working_on(worker, basket.basket_id, turn)
            try:
                try:
                    self._place(mq, basket)
                finally:
                    turn.give()
            except NothingToPay:
                self._reject(basket, NOTHING_TO_PAY, Counter.NOTHING_TO_PAY)
                return
            except IntegrityError:
                # Which constraint it was, the database says.
                if shop_db.is_placed(self._engine, basket.basket_id):
                    # By an attempt whose outcome this process never heard.
                    self.recorder.count(Counter.ORDERS)
                    return
                if shop_db.has_unknown_product(self._engine, basket):
                    self._reject(basket, UNKNOWN_PRODUCT, Counter.UNKNOWN_PRODUCT)
                    return
                # A check has ruled this transaction out while it was slow. The next attempt is another one.
                self.recorder.count(Counter.REPEATED)
            except TransactionUnknown as error:
                log.warning("%s", error)
                self.recorder.count(Counter.UNKNOWN)
                time.sleep(PAUSE_S)
            except (HalfmqError, DBAPIError) as error:
                log.info("basket %d again: %s", basket.basket_id, error)
                self.recorder.count(Counter.REPEATED)
                time.sleep(PAUSE_S)
            else:
                self.recorder.latency(watch.seconds())
                self.recorder.count(Counter.ORDERS)
                return

    def _place(self, mq: Client, basket: Basket) -> None:
        with (
            self._sessions() as session,
            mq.transaction(session, markers=self.markers, query_id=str(basket.basket_id)) as tx,
        ):
            shop_db.add_order(session, basket)
            tx.send(ORDERS_TOPIC, order_message(basket), key=basket.basket_id)
            tx.send(LOYALTY_TOPIC, loyalty_message(basket), key=basket.basket_id)
            if basket.total_cents <= 0:
                raise NothingToPay

    def _reject(self, basket: Basket, reason: str, counter: Counter) -> None:
        shop_db.note_rejection(self._engine, basket.basket_id, reason)
        self.recorder.count(counter)


def recorder_path(directory: Path, index: int) -> Path:
    return directory / f"order-service-{index}.flight"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("index", type=int)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s", stream=sys.stderr)
    run = Run.load(arguments.directory)
    service = OrderService(run, arguments.index)
    signal.signal(signal.SIGTERM, service.stop)
    signal.signal(signal.SIGINT, service.stop)
    with connected(run.url, PRODUCER_GROUP) as mq:
        mq.answer_checks(service.markers, service.sessions)
        service.serve(mq)
    return 0


if __name__ == "__main__":
    sys.exit(main())
