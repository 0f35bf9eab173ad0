"""Transfers between two banks with a message beside, all three or none, by two-phase commit; the broker keeps the decisions.

DATABASE_URL, BANK_URL and BILLING_DATABASE_URL: PostgreSQL (max_prepared_transactions > 0) or MariaDB. See docs/coordinator.md."""

import os
from contextlib import suppress
from uuid import uuid4

from sqlalchemy import Column, Connection, Integer, MetaData, Table, create_engine, insert, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from halfmq import Client, Outcome, compose
from halfmq.sql import Inbox

URL, TOPIC = os.environ.get("HALFMQ_URL", "rocketmq://127.0.0.1:9876"), os.environ.get("TOPIC", "transfers")
tables, notice_tables = MetaData(), MetaData()
debits, credited = (Table(name, tables, Column("id", Integer, primary_key=True)) for name in ("debits", "credits"))
notices, inbox = Table("notices", notice_tables, Column("id", Integer, primary_key=True)), Inbox(notice_tables)
urls = {debits: "DATABASE_URL", credited: "BANK_URL", notices: "BILLING_DATABASE_URL"}
engines = {table: create_engine(os.environ[url]) for table, url in urls.items()}


def transfer(*, account_is_open: bool = True) -> None:
    tx_id, number = f"{TOPIC}.{uuid4().hex[:24]}", uuid4().int >> 97
    # The message first: so the broker has a transaction for each branch in a bank, and knows what was decided.
    coordinator.prepare([compose(TOPIC, {"id": number})], tx_id=tx_id, branch=tx_id.encode())
    for table in (debits, credited) if account_is_open else (debits,):
        with engines[table].connect() as connection:
            branch = connection.begin_twophase(f"{tx_id}.{table.name}")
            connection.execute(insert(table).values(id=number))
            branch.prepare()  # if anything fails up to here, the next process rolls all of it back
            connection.invalidate()  # the branch outlives its connection
    try:  # the decision, whoever is killed now
        coordinator.settle(tx_id, Outcome.COMMIT if account_is_open else Outcome.ROLLBACK)
    finally:  # also if another process took over meanwhile: it may have looked for branches before these were prepared
        end_branches()


def end_branches() -> None:
    """Phase two, after each decision and at each start: every prepared branch ends as the broker says."""
    for table in (debits, credited):
        with engines[table].connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            for name in branches(connection, table):
                if (decided := coordinator.outcome(name.rpartition(".")[0])) == "UNKNOWN":
                    raise SystemExit(f"end {name} by hand: the decision is past the broker's retention")
                end = connection.commit_prepared if decided == "COMMITTED" else connection.rollback_prepared
                while decided != "UNDECIDED" and name in branches(connection, table):
                    with suppress(DBAPIError):  # MariaDB may not know yet that the branch's connection is closed
                        end(name, recover=True)


def branches(connection: Connection, table: Table) -> list[str]:
    names = [one if isinstance(one, str) else one.decode() for one in connection.recover_twophase()]
    return [name for name in names if name.startswith(f"{TOPIC}.") and name.endswith(f".{table.name}")]


def ids(table: Table) -> list[int]:
    with Session(engines[table]) as session:
        return sorted(session.scalars(select(table.c.id)))


for one in engines:
    one.metadata.create_all(engines[one])
with Client(URL, group="bank") as mq:
    coordinator = mq.coordinator("transfers")
    for left in coordinator.recover():  # it takes over from a process that was killed, or is paused
        coordinator.settle(left.tx_id, Outcome.ROLLBACK)
    end_branches()
    for account_is_open in (*[True] * 5, False):  # of the last one there is neither a debit nor a message
        transfer(account_is_open=account_is_open)
    with mq.consumer(TOPIC, group="notices") as messages:
        while not ids(debits) == ids(credited) == ids(notices):
            if (message := messages.get(timeout=30)) is None:
                raise SystemExit("no message for 30 seconds, and some transfers have no notice")
            with Session(engines[notices]) as session, inbox.once(session, message, group="notices") as first:
                if first:
                    session.execute(insert(notices).values(message.json()))
            message.ack()
print("banks and notices agree")
