"""A service that dies by SIGKILL in the middle of a transaction: ``python killed_service.py URL DATABASE STEP``.

It writes order 1 and publishes it. STEP says when it dies: ``half`` before the broker has the message, ``commit`` before the local COMMIT,
``verdict`` after it.
"""

import asyncio
import os
import signal
import sys
from typing import Any

from sqlalchemy import Column, Integer, MetaData, Table, event, insert
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from faststream_halfmq import HalfmqBroker
from halfmq.sql import MarkerTable

metadata = MetaData()
orders = Table("orders", metadata, Column("id", Integer, primary_key=True))
markers = MarkerTable(metadata, min_age_s=0)


def die(*_: object, **__: object) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


async def main(url: str, database: str, step: str) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{database}")
    sessions = async_sessionmaker(engine)
    broker = HalfmqBroker(url, group="shop", logger=None)
    broker.answer_checks(markers, sessions)
    await broker.start()
    async with sessions() as session:
        await session.execute(insert(orders).values(id=1))
        await broker.publish({"id": 1}, "orders", session=session)
        match step:
            case "half":
                broker.client.prepare = die  # type: ignore[method-assign]
            case "commit":
                event.listen(engine.sync_engine, "commit", die)
            case "verdict":
                broker.client.commit = die  # type: ignore[method-assign]
        await session.commit()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
