"""A service that sends transactions of two messages, one to each of two topics, every fourth rolled back, while its broker is killed.

Which ones must appear, the service's local database says, and nothing that the broker answered or did not: halves first, then the local
commit, then COMMIT; checks are answered from the database. So a row that is missing is a lost message.
"""

import threading

from halfmq.client.outcome import Outcome
from halfmq.client.sync import Client
from halfmq.client.transaction_block import Transaction
from halfmq.errors import ConnectError, HalfmqError
from tests.support.waiting import PATIENCE_S


class RolledBackByRule(Exception):
    """The service's own reason."""


class Service(threading.Thread):
    """Sends until it is told to stop. ``committed`` is its local database: numbers whose local transaction committed.

    It is a set in memory, since nobody kills this process. Numbers begin with ``first``.
    """

    def __init__(self, url: str, first: int = 0) -> None:
        super().__init__(daemon=True)
        self.url = url
        self.first = first
        self.stopping = threading.Event()
        #: After ``stopping``: ``committed`` does not change any more.
        self.stopped = threading.Event()
        self.ended = threading.Event()
        self.committed: set[int] = set()
        #: What became of single transactions, for the message of a failure: number -> how its block ended.
        self.odd: dict[int, str] = {}

    def run(self) -> None:
        with Client(self.url, group="service") as mq:
            mq.add_check("pair", self._check)
            number = self.first
            while not self.stopping.is_set():
                self._one(mq, number)
                number += 1
            self.stopped.set()
            # The client stays open: what is undecided is settled by checks that it answers.
            self.ended.wait()

    def stop(self) -> None:
        """Send no more; returns when ``committed`` does not change any more."""
        self.stopping.set()
        assert self.stopped.wait(PATIENCE_S)

    def close(self) -> None:
        self.stopping.set()
        self.ended.set()

    def _check(self, transaction: Transaction) -> Outcome:
        return Outcome.COMMIT if int(transaction.query_id) in self.committed else Outcome.ROLLBACK

    def _one(self, mq: Client, number: int) -> None:
        prepared = False
        try:
            with mq.begin("pair", query_id=str(number)) as transaction:
                transaction.send("orders", str(number), key=number)
                transaction.send("loyalty", str(number), key=number)
                transaction.prepare()
                prepared = True
                if number % 4 == 0:
                    raise RolledBackByRule
                self.committed.add(number)  # the local commit: from here on the messages must appear
        except RolledBackByRule:
            pass
        except HalfmqError as error:
            self.odd[number] = f"{type(error).__name__} in {'COMMIT' if prepared else 'prepare'}"
            if isinstance(error, ConnectError):
                self.stopping.wait(0.1)  # real time: the pace at which a service calls a broker that is away
