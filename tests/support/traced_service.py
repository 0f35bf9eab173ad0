"""A FastAPI service with traces, whose spans go to a file as JSON: ``uvicorn tests.support.traced_service:fastapi``.

HALFMQ_URL: the broker. HALFMQ_DATABASE: the path of a SQLite file. SPANS: the path of the file. DIES: if set, the process kills itself
when its local transaction has committed, before the verdict is sent.
"""

import os
import signal
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request, Response
from opentelemetry import trace
from opentelemetry.propagate import extract
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from halfmq import App, AsyncClient, Message
from halfmq.client.receipts import Prepared
from halfmq.sql import MarkerTable


def line(span: Any) -> str:
    return str(span.to_json(indent=None)) + "\n"


provider = TracerProvider()
provider.add_span_processor(
    SimpleSpanProcessor(ConsoleSpanExporter(out=open(os.environ["SPANS"], "a"), formatter=line))  # noqa: SIM115
)
trace.set_tracer_provider(provider)


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


engine = create_async_engine(f"sqlite+aiosqlite:///{os.environ['HALFMQ_DATABASE']}")
sessions = async_sessionmaker(engine, expire_on_commit=False)
markers = MarkerTable(Base.metadata)
app = App.from_env(group="shop", sessions=sessions, telemetry=True)
app.answer_checks(markers)
fastapi = FastAPI(lifespan=app.lifespan)

if "DIES" in os.environ:

    async def die(client: AsyncClient, prepared: Prepared) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    AsyncClient.commit = die  # type: ignore[method-assign, assignment]


@app.consumer("traced-orders", group="billing")
async def bill(message: Message) -> None:
    await app.client().send("traced-invoices", message.body)


@fastapi.middleware("http")
async def traced(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    """As opentelemetry-instrumentation-fastapi does it."""
    with trace.get_tracer("web").start_as_current_span(
        f"{request.method} {request.url.path}", extract(request.headers), trace.SpanKind.SERVER
    ):
        return await call_next(request)


@fastapi.get("/ready")
async def ready(response: Response) -> dict[str, bool]:
    response.status_code = 200 if app.is_ready else 503
    return {"ready": app.is_ready}


@fastapi.post("/orders")
async def order(mq: Annotated[AsyncClient, Depends(app.client)]) -> dict[str, Any]:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with sessions() as session, mq.transaction(session, markers=markers, timeout=5.0) as tx:
        session.add(made := Order())
        await session.flush()
        tx.send("traced-orders", {"id": made.id}, key=made.id)
    return {"id": made.id}
