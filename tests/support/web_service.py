"""A service as docs/database.md shows it, for FastAPI and Starlette: ``uvicorn tests.support.web_service:fastapi``.

HALFMQ_URL: the broker. HALFMQ_TEST_DATABASE: the path of a SQLite file.
"""

import os
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Response
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from starlette.applications import Starlette

from halfmq import App, AsyncClient, Message
from halfmq.sql import MarkerTable


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


engine = create_async_engine(f"sqlite+aiosqlite:///{os.environ['HALFMQ_TEST_DATABASE']}")
sessions = async_sessionmaker(engine, expire_on_commit=False)
markers = MarkerTable(Base.metadata)
app = App.from_env(group="shop", sessions=sessions)
app.answer_checks(markers)

handled: list[str] = []


@app.consumer("order-created", group="billing")
async def bill(message: Message) -> None:
    handled.append(message.text())
    if message.text() == '{"id":1}':
        raise ValueError("the first order cannot be billed")


fastapi = FastAPI(lifespan=app.lifespan)
starlette = Starlette(lifespan=app.lifespan)


@fastapi.get("/ready")
async def ready(response: Response) -> dict[str, bool]:
    response.status_code = 200 if app.is_ready else 503
    return {"ready": app.is_ready}


@fastapi.get("/handled")
async def seen() -> list[str]:
    return handled


@fastapi.post("/orders")
async def order(mq: Annotated[AsyncClient, Depends(app.client)]) -> dict[str, Any]:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with sessions() as session, mq.transaction(session, markers=markers, timeout=5.0) as tx:
        session.add(made := Order())
        await session.flush()
        tx.send("order-created", {"id": made.id}, key=made.id)
    return {"id": made.id}
