"""What a message carries of a trace stays with it at a real broker, wherever the broker copies it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from sqlalchemy import MetaData, create_engine
from sqlalchemy.orm import Session, sessionmaker
from tests.support.in_process import Running, serving
from tests.support.recorded_telemetry import Recorded, attributes, linked, traceparent
from tests.support.waiting import PATIENCE_S, until

from halfmq import App, AsyncClient, Client, Message
from halfmq.client.consumer import Consumer
from halfmq.model import properties as names
from halfmq.model.settings import BrokerSettings
from halfmq.sql import Inbox, MarkerTable

SETTINGS = BrokerSettings(default_topic_queues=1)
CALLER = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "shop=7"}


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with serving(tmp_path / "broker", settings=SETTINGS) as made:
        yield made


async def following(messages: Consumer) -> Message:
    message = await messages.get(PATIENCE_S)
    assert message is not None
    return message


def context_of(message: Message) -> dict[str, str | None]:
    return {name: message.properties.get(name) for name in CALLER}


@pytest.mark.parametrize("count", [1, 20], ids=["single halves", "half batches"])
async def test_it_stays_through_half_redelivery_and_dead_letter(running: Running, count: int) -> None:
    recorded = Recorded()
    async with AsyncClient(
        f"rocketmq://127.0.0.1:{running.ports.names}", group="shop", telemetry=recorded.telemetry
    ) as mq:
        context = TraceContextTextMapPropagator().extract(CALLER)
        with recorded.tracers.get_tracer("web").start_as_current_span("request", context):
            async with mq.begin() as tx:
                for number in range(count):
                    tx.send("orders", f"{number}")
        (sent,) = recorded.named("send orders")
        expected = {"traceparent": traceparent(sent), "tracestate": CALLER["tracestate"]}
        async with mq.consumer("orders", group="billing", retries=1) as messages:
            first = await following(messages)
            assert context_of(first) == expected
            await first.retry(1)
            for _ in range(count - 1):
                other = await following(messages)
                assert context_of(other) == expected
                other.ack()
            again = await following(messages)
            assert (again.message_id, again.attempt, context_of(again)) == (first.message_id, 2, expected)
            async with again.processing():
                raise ValueError  # its last attempt
        async with mq.consumer("%DLQ%billing", group="support") as letters:
            letter = await following(letters)
            assert (letter.message_id, context_of(letter)) == (first.message_id, expected)
    span = recorded.one("process orders")
    assert linked(span) == [traceparent(sent)]
    assert attributes(span)["halfmq.delivery.attempt"] == 2


async def test_a_delayed_message_keeps_it(running: Running) -> None:
    recorded = Recorded()
    async with AsyncClient(f"rocketmq://127.0.0.1:{running.ports.names}", telemetry=recorded.telemetry) as mq:
        await asyncio.gather(mq.send("later", b"x", delay=1), mq.send("later", b"y", delay=0.3))
        async with mq.consumer("later", group="g") as messages:
            found = {context_of(await following(messages))["traceparent"] for _ in range(2)}
    assert found == {traceparent(span) for span in recorded.named("send later")}


def database(directory: Path) -> tuple[Any, MarkerTable, Inbox]:
    metadata = MetaData()
    markers, inbox = MarkerTable(metadata), Inbox(metadata)
    engine = create_engine(f"sqlite:///{directory / 'shop.db'}", connect_args={"timeout": 20})
    metadata.create_all(engine)
    return sessionmaker(engine), markers, inbox


async def test_a_block_of_a_blocking_session_is_in_the_span_of_its_thread(running: Running, tmp_path: Path) -> None:
    recorded = Recorded()
    sessions, markers, _ = database(tmp_path)

    def work() -> None:
        with Client(f"rocketmq://127.0.0.1:{running.ports.names}", group="shop", telemetry=recorded.telemetry) as mq:
            mq.answer_checks(markers, sessions)
            with recorded.span("request"), sessions() as session, mq.transaction(session, markers=markers) as tx:
                tx.send("orders", b"x")

    await asyncio.to_thread(work)
    request = recorded.one("request").context
    assert request is not None
    for name in ("send orders", "commit orders"):
        parent = recorded.one(name).parent
        assert parent is not None
        assert parent.span_id == request.span_id


async def test_what_a_plain_handler_sends_with_its_rows_is_in_the_span_of_the_handler(
    running: Running, tmp_path: Path
) -> None:
    recorded = Recorded()
    sessions, markers, inbox = database(tmp_path)
    app = App(
        f"rocketmq://127.0.0.1:{running.ports.names}", group="shop", sessions=sessions, telemetry=recorded.telemetry
    )

    @app.consumer("orders", group="billing", inbox=inbox, markers=markers)
    def bill(message: Message, session: Session, tx: Any) -> None:
        tx.send("invoices", message.body)

    async with app.run() as mq:
        await mq.send("orders", b"x")
        await until(lambda: bool(recorded.named("process orders")), "the message")
    process = recorded.one("process orders").context
    assert process is not None
    for name in ("send invoices", "commit invoices"):
        parent = recorded.one(name).parent
        assert parent is not None
        assert parent.span_id == process.span_id


def test_the_properties_are_the_users_and_go_with_every_copy() -> None:
    """Jobs that write messages again, as those of dead letters, leave out what is the broker's."""
    assert {names.TRACEPARENT, names.TRACESTATE}.isdisjoint(names.SYSTEM)
    assert not any(names.is_reserved(name) for name in (names.TRACEPARENT, names.TRACESTATE))
