"""One order in one local transaction with two messages, by a process that may kill itself at a named point.

python -m tests.crash.one_order URL DATABASE POINT
"""

import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Column, Integer, MetaData, Table, create_engine, insert
from sqlalchemy.orm import Session

from halfmq import Client, OutgoingMessage, Prepared, TransactionReceipt
from halfmq.sql import MarkerTable

metadata = MetaData()
orders = Table("orders", metadata, Column("id", Integer, primary_key=True))
log = MarkerTable(metadata, min_age_s=0)

GROUP = "shop"
TOPICS = ("crash-orders", "crash-stock")
POINTS = ("before-half", "after-half", "after-local-commit", "after-end", "never")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class MortalCalls:
    """The client's calls, with death at one point."""

    def __init__(self, client: Client, point: str) -> None:
        self._client = client
        self._point = point
        self.group = client.group

    def new_transaction_id(self) -> str:
        return self._client.new_transaction_id()

    def prepare(self, messages: Sequence[OutgoingMessage], **names: Any) -> Prepared:
        if self._point == "before-half":
            die()
        prepared = self._client.prepare(messages, **names)
        if self._point == "after-half":
            die()
        return prepared

    def commit(self, prepared: Prepared) -> TransactionReceipt:
        if self._point == "after-local-commit":
            die()
        receipt = self._client.commit(prepared)
        if self._point == "after-end":
            die()
        return receipt

    def rollback(self, prepared: Prepared) -> TransactionReceipt:
        return self._client.rollback(prepared)


def main(url: str, database: str, point: str) -> None:
    engine = create_engine(database)
    with (
        Client(url, group=GROUP) as mq,
        Session(engine) as session,
        log.bind(MortalCalls(mq, point), session) as tx,
    ):
        session.execute(insert(orders).values(id=1))
        for topic in TOPICS:
            tx.send(topic, {"id": 1})


if __name__ == "__main__":
    main(*sys.argv[1:])
