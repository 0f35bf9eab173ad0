"""Transfers between two banks with a message beside, all three or none, by two-phase commit; the broker keeps the decisions.

DATABASE_URL, BANK_URL and BILLING_DATABASE_URL: PostgreSQL (max_prepared_transactions > 0) or MariaDB. See docs/coordinator.md."""

import os
from contextlib import suppress
from time import monotonic
from uuid import uuid4

from sqlalchemy import Column, Connection, Integer, MetaData, Table, create_engine, exc, insert, orm, select

from halfmq import Client, Outcome, compose
from halfmq.sql import Inbox

URL, TOPIC = os.environ.get("HALFMQ_URL", "rocketmq://127.0.0.1:9876"), os.environ.get("TOPIC", "transfers")
tables, notice_tables, until = MetaData(), MetaData(), monotonic() + 100  # what still fails then, fails
debits, credited = (Table(name, tables, Column("id", Integer, primary_key=True)) for name in ("debits", "credits"))
notices, inbox = Table("notices", notice_tables, Column("id", Integer, primary_key=True)), Inbox(notice_tables)
urls = {debits: "DATABASE_URL", credited: "BANK_URL", notices: "BILLING_DATABASE_URL"}
engines = {table: create_engine(os.environ[url]) for table, url in urls.items()}


def transfer(*, account_is_open: bool = True) -> None:
    tx_id, number = f"{TOPIC}.{uuid4().hex[:24]}", uuid4().int >> 97
    coordinator.prepare([compose(TOPIC, {"id": number})], tx_id=tx_id, branch=tx_id.encode())  # before the banks
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
        with engines[table].connect().execution_options(isolation_level="AUTOCOMMIT") as bank:
            for name in branches(bank, table):
                if (decided := coordinator.outcome(name.rpartition(".")[0])) == "UNKNOWN":
                    raise SystemExit(f"end {name} by hand: the decision is past the broker's retention")
                end = bank.commit_prepared if decided == "COMMITTED" else bank.rollback_prepared
                while decided != "UNDECIDED" and name in branches(bank, table):
                    # Another process ended it, or is ending it; or MariaDB does not know yet that its connection is closed.
                    with suppress(*(exc.DBAPIError, bank.dialect.loaded_dbapi.Error) if monotonic() < until else ()):
                        end(name, recover=True)


def branches(connection: Connection, table: Table) -> list[str]:
    names = [one if isinstance(one, str) else one.decode() for one in connection.recover_twophase()]
    return [name for name in names if name.startswith(f"{TOPIC}.") and name.endswith(f".{table.name}")]


def ids(table: Table) -> list[int]:
    with orm.Session(engines[table]) as session:
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
            if monotonic() > until:
                raise SystemExit("some transfers have no notice")
            if message := messages.get(timeout=1):  # None: another process may be writing the last notice
                with orm.Session(engines[notices]) as session, inbox.once(session, message, group="notices") as first:
                    if first:
                        session.execute(insert(notices).values(message.json()))
                message.ack()
print("banks and notices agree")
