"""Orders over HTTP. Each is announced by a message, which is visible if and only if its order is in the database."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Response
from pydantic import BaseModel
from sqlalchemy import select
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from halfmq import App
from halfmq.sql import MarkerTable

BROKER = os.environ.get("HALFMQ_URL", "rocketmq://127.0.0.1:9876")
DATABASE = os.environ.get("DATABASE_URL", "sqlite+aiosqlite:///service.db")


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


class NewOrder(BaseModel):
    item: str


markers = MarkerTable(Base.metadata)


def make_api(broker: str = BROKER, database: str = DATABASE) -> FastAPI:
    engine = create_async_engine(database)
    sessions = async_sessionmaker(engine, expire_on_commit=False)
    app = App(broker, group="tea-shop", sessions=sessions)
    app.answer_checks(markers)  # of transactions whose process was killed

    @asynccontextmanager
    async def lifespan(api: FastAPI) -> AsyncIterator[None]:
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        async with app.lifespan(api):
            yield
        await engine.dispose()

    api = FastAPI(lifespan=lifespan)

    @api.post("/orders", status_code=201)
    async def place(new: NewOrder) -> int:
        async with sessions() as session, app.client().transaction(session, markers=markers) as tx:
            session.add(order := Order(item=new.item))
            await session.flush()
            tx.send("orders", {"id": order.id, "item": order.item}, key=order.id)
        return order.id

    @api.get("/orders")
    async def placed() -> list[int]:
        async with sessions() as session:
            return [*await session.scalars(select(Order.id).order_by(Order.id))]

    @api.get("/ready")
    async def ready(response: Response) -> bool:
        response.status_code = 200 if app.is_ready else 503
        return app.is_ready

    return api
