"""Mistakes of users that a type checker can find before the program runs. Each function has one, in the line that ends with ``# wrong``;
what else it does is right. Nothing here is ever run: ``test_mistakes.py`` gives it to mypy and pyright.
"""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Engine, MetaData
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from halfmq import App, AsyncClient, Branch, Client, Message, Outcome, Retry, Transaction, TransactionListener
from halfmq import django as mq
from halfmq.relay.rabbitmq import RabbitMqPublisher
from halfmq.sql import Barrier, Inbox, MarkerTable, Outbox
from halfmq.testing import Broker, crash

URL = "rocketmq://127.0.0.1:9876"
app = App(URL, group="orders")


# --- clients ----------------------------------------------------------------------------------------------------------


def option_of_client() -> None:
    Client(URL, group="orders", timeout=3)
    Client(URL, group="orders", timout=3)  # wrong


def type_of_client_option() -> None:
    Client(URL, checks=4)
    Client(URL, checks="4")  # wrong


def option_of_async_client() -> None:
    AsyncClient(URL, attempt_timeout=1.5)
    AsyncClient(URL, attemptTimeout=1.5)  # wrong


def option_of_app() -> None:
    App(URL, group="orders", telemetry=True)
    App(URL, group="orders", telemetri=True)  # wrong


def option_from_environment() -> None:
    Client.from_env(secret="s")
    Client.from_env(secrets="s")  # wrong


# --- sends ------------------------------------------------------------------------------------------------------------


def keys_as_number(mq: Client) -> None:
    mq.send("orders", {"id": 7}, keys=[7, "C-1"])
    mq.send("orders", {"id": 7}, keys=7)  # wrong


def delay_as_text(mq: Client) -> None:
    mq.send("orders", {"id": 7}, delay=5)
    mq.send("orders", {"id": 7}, delay="5s")  # wrong


def tag_as_list(mq: Client) -> None:
    mq.send("orders", {"id": 7}, tag="web")
    mq.send("orders", {"id": 7}, tag=["web", "app"])  # wrong


def property_as_number(mq: Client) -> None:
    mq.send("orders", {"id": 7}, properties={"tenant": "1"})
    mq.send("orders", {"id": 7}, properties={"tenant": 1})  # wrong


def topic_forgotten(mq: Client) -> None:
    mq.send("orders", {"id": 7})
    mq.send({"id": 7})  # wrong


async def await_forgotten(mq: AsyncClient) -> None:
    await mq.send("orders", {"id": 7})
    mq.send("orders", {"id": 7})  # wrong


async def await_of_blocking_client(mq: Client) -> None:
    mq.send("orders", {"id": 7})
    await mq.send("orders", {"id": 7})  # wrong


def field_of_receipt(mq: Client) -> str:
    receipt = mq.send("orders", {"id": 7})
    print(receipt.message_id)
    return receipt.messageId  # wrong


# --- transactions -----------------------------------------------------------------------------------------------------


async def async_with_forgotten(mq: AsyncClient) -> None:
    async with mq.begin() as tx:
        tx.send("orders", {"id": 7})
    with mq.begin() as tx:  # wrong
        pass


def topic_of_block_as_number(mq: Client) -> None:
    with mq.begin(topic="orders") as tx:
        tx.send({"id": 7}, key=7)
        tx.send(7, {"id": 7})  # wrong


def option_of_begin(mq: Client) -> None:
    mq.begin("order.create", query_id="7", comment="ask the warehouse")
    mq.begin("order.create", querry_id="7")  # wrong


def advice_as_text(mq: Client) -> None:
    mq.begin(advice=Outcome.COMMIT)
    mq.begin(advice="COMMIT")  # wrong


def receipt_that_may_be_missing(mq: Client) -> str:
    with mq.begin() as tx:
        tx.send("orders", {"id": 7})
    if tx.receipt is not None:
        print(tx.receipt.verdict)
    return tx.receipt.verdict  # wrong


def verdict_misspelt(mq: Client) -> bool:
    with mq.begin() as tx:
        tx.send("orders", {"id": 7})
    assert tx.receipt is not None
    return tx.receipt.verdict == "COMMITED"  # wrong


def check_returns_bool(mq: Client) -> None:
    def is_committed(tx: Transaction) -> Outcome:
        return Outcome.COMMIT if tx.key else Outcome.UNKNOWN

    def is_there(tx: Transaction) -> bool:
        return bool(tx.key)

    mq.add_check("order.create", is_committed)
    mq.add_check("order.create", is_there)  # wrong


class Listener(TransactionListener):
    """Its ``check`` returns a bool."""

    def execute(self, message: Message, arg: Any) -> Outcome:
        return Outcome.COMMIT

    def check(self, message: Message) -> bool:  # wrong
        return message.key is not None


def option_of_atomic() -> None:
    mq.atomic(durable=False, timeout=3)
    mq.atomic(durabl=True)  # wrong


def option_of_send_on_commit() -> None:
    mq.send_on_commit("orders", {"id": 7}, key=7)
    mq.send_on_commit("orders", {"id": 7}, ky=7)  # wrong


def option_of_transaction(client: Client, session: Session, markers: MarkerTable) -> None:
    client.transaction(session, markers=markers, timeout=3)
    client.transaction(session, markers=markers, timout=3)  # wrong


# --- decorated functions ----------------------------------------------------------------------------------------------


@app.transaction("order.create", topic="orders")
async def create_order(tx: Transaction, order_id: int) -> str:
    tx.send({"id": order_id})
    return tx.id


async def argument_of_transaction() -> None:
    await create_order(7)
    await create_order("7", 8)  # wrong


async def result_of_transaction() -> int:
    tx_id: str = await create_order(7)
    print(tx_id)
    return await create_order(7)  # wrong


def check_of_transaction() -> None:
    @create_order.check
    async def order_was_created(tx: Transaction) -> Outcome:
        return Outcome.COMMIT if tx.key else Outcome.UNKNOWN

    @create_order.check  # wrong
    async def order_is_there(tx: Transaction) -> bool:
        return bool(tx.key)


def parameters_of_handler() -> None:
    @app.consumer("orders", group="billing")
    async def handle(message: Message) -> None: ...

    @app.consumer("orders", group="audit")  # wrong
    async def handle_nothing() -> None: ...


def handler_without_session(inbox: Inbox, sessions: sessionmaker[Session]) -> None:
    @app.consumer("orders", group="billing", inbox=inbox, sessions=sessions)
    def bill(message: Message, session: Session) -> None: ...

    @app.consumer("orders", group="audit", inbox=inbox, sessions=sessions)  # wrong
    def audit(message: Message) -> None: ...


def option_of_consumer() -> None:
    @app.consumer("orders", group="billing", concurrency=4)
    async def handle(message: Message) -> None: ...

    @app.consumer("orders", group="audit", concurency=4)  # wrong
    async def handle_too(message: Message) -> None: ...


# --- consumers --------------------------------------------------------------------------------------------------------


def start_misspelt(mq: Client) -> None:
    mq.consumer("orders", group="billing", start="latest")
    mq.consumer("orders", group="billing", start=datetime(2026, 1, 1, tzinfo=UTC))
    mq.consumer("orders", group="billing", start="oldest")  # wrong


def delays_as_text() -> None:
    Retry(times=3, delays=[1, 2], dead_on=ValueError)
    Retry(delays=(1, 2.5), dead_on=[ValueError, KeyError])
    Retry(delays="1")  # wrong


def exception_made() -> None:
    Retry(dead_on=(ValueError, KeyError))
    Retry(dead_on=ValueError("x"))  # wrong


def tags_as_list(mq: Client) -> None:
    mq.consumer("orders", group="billing", tags="web || app")
    mq.consumer("orders", group="billing", tags=["web", "app"])  # wrong


async def message_that_may_be_missing(mq: AsyncClient) -> None:
    async with mq.consumer("orders", group="billing") as messages:
        message = await messages.get(timeout=1)
        if message is not None:
            message.ack()
        message.ack()  # wrong


# --- databases --------------------------------------------------------------------------------------------------------


def async_session_for_blocking_client(mq: Client, markers: MarkerTable, good: Session, bad: AsyncSession) -> None:
    with mq.transaction(good, markers=markers) as tx:
        tx.send("orders", {"id": 7})
    mq.transaction(bad, markers=markers)  # wrong


async def blocking_session_for_async_client(
    mq: AsyncClient, markers: MarkerTable, good: AsyncSession, bad: Session
) -> None:
    async with mq.transaction(good, markers=markers) as tx:
        tx.send("orders", {"id": 7})
    mq.transaction(bad, markers=markers)  # wrong


def option_of_database_transaction(mq: Client, markers: MarkerTable, session: Session) -> None:
    mq.transaction(session, markers=markers, comment="ask the warehouse")
    mq.transaction(session, markers=markers, coment="ask the warehouse")  # wrong


def engine_for_sessions(mq: Client, markers: MarkerTable, sessions: sessionmaker[Session], engine: Engine) -> None:
    mq.answer_checks(markers, sessions)
    mq.answer_checks(markers, engine)  # wrong


def markers_for_outbox(mq: Client, markers: MarkerTable, outbox: Outbox, session: Session) -> None:
    mq.transaction(session, markers=markers, outbox=outbox)
    mq.transaction(session, markers=outbox)  # wrong


def session_of_outbox_forgotten(outbox: Outbox, session: Session) -> None:
    outbox.send(session, "orders", {"id": 7})
    outbox.send("orders", "7", {"id": 7})  # wrong


def group_of_inbox_forgotten(inbox: Inbox, session: Session, message: Message) -> None:
    with inbox.once(session, message, group="billing") as first:
        print(first)
    inbox.once(session, message)  # wrong


async def blocking_block_of_inbox(inbox: Inbox, session: AsyncSession, message: Message) -> None:
    async with inbox.once(session, message, group="billing") as first:
        print(first)
    with inbox.once(session, message, group="billing") as first:  # wrong
        pass


def option_of_table(metadata: MetaData) -> None:
    MarkerTable(metadata, min_age_s=10)
    MarkerTable(metadata, min_age_ms=10)  # wrong


# --- Try/Confirm/Cancel -----------------------------------------------------------------------------------------------


def reserve(branch: Branch, order: dict[str, int]) -> str:
    return f"{branch.gid} {order}"


def body_of_try(mq: Client, markers: MarkerTable, session: Session) -> None:
    with mq.tcc(session, markers=markers, timeout=30) as t:
        t.call(reserve, {"article": 7}, confirm="stock-confirm", cancel="stock-cancel")
        t.call(reserve, "article 7", confirm="stock-confirm", cancel="stock-cancel")  # wrong


def result_of_try(mq: Client, markers: MarkerTable, session: Session) -> int:
    with mq.tcc(session, markers=markers) as t:
        text: str = t.call(reserve, {"article": 7}, confirm="stock-confirm", cancel="stock-cancel")
        print(text)
        return t.call(reserve, {"article": 7}, confirm="stock-confirm", cancel="stock-cancel")  # wrong


def session_of_tcc(mq: Client, markers: MarkerTable, good: Session, bad: AsyncSession) -> None:
    mq.tcc(good, markers=markers)
    mq.tcc(bad, markers=markers)  # wrong


def barrier_for_inbox(barrier: Barrier, sessions: async_sessionmaker[AsyncSession]) -> None:
    @app.consumer("stock-confirm", group="stock", barrier=barrier, sessions=sessions)
    async def confirm(order: dict[str, int], session: AsyncSession) -> None: ...

    @app.consumer("stock-confirm", group="stock", inbox=barrier, sessions=sessions)  # wrong
    async def confirm_too(order: dict[str, int], session: AsyncSession) -> None: ...


# --- relays and tests -------------------------------------------------------------------------------------------------


def option_of_relay(mq: Client, outbox: Outbox, engine: Engine) -> None:
    mq.relay(outbox, engine, workers=2)
    mq.relay(outbox, engine, worker=2)  # wrong


def target_as_text(mq: Client, outbox: Outbox, engine: Engine) -> None:
    mq.relay(outbox, engine, to=RabbitMqPublisher("amqp://127.0.0.1"))
    mq.relay(outbox, engine, to="amqp://127.0.0.1")  # wrong


def relay_without_outbox(markers: MarkerTable, outbox: Outbox, engine: Engine) -> None:
    app.relay(outbox, sessions=engine)
    app.relay(markers, sessions=engine)  # wrong


def setting_of_test_broker() -> None:
    Broker(check_interval_ms=500)
    Broker(check_interval=500)  # wrong


async def option_of_delivery() -> None:
    await app.test.deliver("orders", {"id": 7}, attempt=2)
    await app.test.deliver("orders", {"id": 7}, attempts=2)  # wrong


def setting_of_test_broker_misspelt() -> None:
    Broker(check_immunity_ms=3, hosts=["127.0.0.1"], audit_log="audit.log")
    Broker(check_imunity_ms=3)  # wrong


def point_misspelt() -> None:
    with crash("after-local-commit"):
        pass
    crash("after-comit")  # wrong
