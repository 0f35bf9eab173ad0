"""An order holds goods and money at two services, and confirms both if and only if it commits: Try/Confirm/Cancel.

Run `halfmq serve --data ./data` in another terminal, then `python examples/tcc.py`: three services in one process.
"""

import asyncio
import os

from sqlalchemy import Column, Engine, MetaData, String, Table, create_engine, delete, insert, select, update
from sqlalchemy.orm import Session, sessionmaker

from halfmq import App, Branch, Client, Message
from halfmq.sql import Barrier, MarkerTable

app = App(os.environ.get("HALFMQ_URL", "rocketmq://127.0.0.1:9876"), group="tcc-shop")


class Service:
    def __init__(self, name: str, variable: str, most: int) -> None:
        self.most, tables = most, MetaData()  # an order may ask for so much
        self.engine = create_engine(os.environ.get(variable, f"sqlite:///tcc-{name}.db"))
        self.parts = Table(name, tables, Column("gid", String(64), primary_key=True), Column("state", String(9)))
        self.barrier = Barrier(tables, f"{name}_barrier")
        tables.create_all(self.engine)
        self.topics = {end: f"{os.environ.get('TOPIC', 'tcc')}-{name}-{end}" for end in ("confirm", "cancel")}
        app.consumer(
            [*self.topics.values()], group=f"tcc-{name}", barrier=self.barrier, sessions=sessionmaker(self.engine)
        )(self.end)

    def try_(self, branch: Branch, amount: int) -> None:
        with Session(self.engine) as db, self.barrier.once(db, branch) as first:
            if amount > self.most:
                raise ValueError(f"no {amount} at {self.parts.name}")
            if first:
                db.execute(insert(self.parts).values(gid=branch.gid, state="held"))

    def end(self, message: Message, db: Session) -> None:
        branch = Branch.of(message)
        change = delete(self.parts) if branch.op == "cancel" else update(self.parts).values(state="done")
        db.execute(change.where(self.parts.c.gid == branch.gid))


tables = MetaData()
orders = Table("orders", tables, Column("gid", String(64), primary_key=True), Column("state", String(9)))
markers, shop = MarkerTable(tables), create_engine(os.environ.get("DATABASE_URL", "sqlite:///tcc-shop.db"))
tables.create_all(shop)
services = Service("stock", "STOCK_URL", 4), Service("bank", "BANK_URL", 3)
Shops = sessionmaker(shop)
app.answer_checks(markers, Shops)


def place(amount: int) -> None:
    with Client(app.client().url, group="tcc-shop") as mq, Shops() as db:
        mq.answer_checks(markers, Shops)
        with mq.tcc(db, markers=markers, timeout=5) as t:  # seconds
            db.execute(insert(orders).values(gid=t.id, state="done"))
            for service in services:
                t.call(service.try_, amount, **service.topics)


def rows(engine: Engine, table: Table) -> list[tuple]:
    with engine.connect() as db:
        return sorted(map(tuple, db.execute(select(table))))


async def main() -> None:
    async with app.run():
        # There is no money for an order of 4, so that its goods are given back, and there are no goods for 5.
        for amount in range(1, 6):
            await asyncio.gather(asyncio.to_thread(place, amount), return_exceptions=True)
        while any(rows(one.engine, one.parts) != rows(shop, orders) for one in services):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    print("orders, goods and money agree")


asyncio.run(main())
