"""Spans and metrics of a client: what each says, what it is linked to, what a message carries, and that a failure of them harms nothing."""

import asyncio
import logging
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, StatusCode, get_current_span
from tests.support.recorded_telemetry import Recorded, attributes, is_in_no_span, linked, traceparent
from tests.support.scripted_broker import URL, Dice, Peer, ScriptedBroker, client_of, in_place
from tests.support.virtual_time import LoopClock, in_virtual_time

from halfmq import limits
from halfmq.client import telemetry as module
from halfmq.client.app import App
from halfmq.client.async_client import AsyncClient
from halfmq.client.message import Message
from halfmq.client.outcome import Outcome
from halfmq.client.outgoing import compose
from halfmq.client.producer import Producer
from halfmq.client.sync import Client
from halfmq.client.transaction_block import Transaction
from halfmq.errors import MissingDependency, RequestFailed, TransactionRefused, TransactionUnknown, UsageError
from halfmq.model import properties
from halfmq.wire.remoting.codes import RequestCode
from halfmq.wire.remoting.header import Request, encode_response
from halfmq.wire.remoting.message_codec import split_batch

SEND = RequestCode.SEND_MESSAGE_V2
END = RequestCode.END_TRANSACTION
THEIRS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
DURATION = "messaging.client.operation.duration"


def client(broker: ScriptedBroker, recorded: Recorded, **options: Any) -> AsyncClient:
    return client_of(broker.network(), telemetry=recorded.telemetry, **options)


def app_of(broker: ScriptedBroker, recorded: Recorded, **options: Any) -> App:
    return App(
        URL, group="orders", connector=broker.network(), clock=LoopClock(), entropy=Dice(), run_blocking=in_place,
        telemetry=recorded.telemetry, **options,
    )  # fmt: skip


def carried(broker: ScriptedBroker, name: str = "traceparent") -> list[str | None]:
    return [properties.to_dict(request.ext.properties).get(name) for request in broker.requests(SEND)]


def refused(code: int) -> Callable[[Peer, Request[Any]], bytes]:
    return lambda _, request: encode_response(request, code, "no")


# --- sends ------------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_send_is_a_producer_span_in_the_current_trace_and_the_message_carries_it() -> None:
    broker, recorded = ScriptedBroker(), Recorded()
    async with client(broker, recorded) as mq:
        with recorded.span("request") as current:
            receipt = await mq.send("shop%orders", {"card": "SECRET"}, key="SECRET", tag="SECRET")
            assert get_current_span() is current, "the span of the send is current in it alone"
    span = recorded.one("send shop%orders")
    assert span.kind is SpanKind.PRODUCER
    assert span.parent is not None
    assert span.parent.span_id == current.get_span_context().span_id
    assert attributes(span) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "shop%orders",
        "messaging.message.id": receipt.message_id,
        "messaging.rocketmq.message.type": "normal",
        "messaging.rocketmq.namespace": "shop",
        "server.address": "127.0.0.1",
        "server.port": 10911,
    }
    assert span.attributes is not None
    assert span.attributes["messaging.client.id"] == mq._context.membership.client_id
    assert carried(broker) == [traceparent(span)]


@pytest.mark.parametrize(
    ("options", "kind"), [({"delay": 5}, "delay"), ({"sharding_key": "c"}, "fifo"), ({}, "normal")]
)
@in_virtual_time
async def test_a_send_says_which_type_of_message_it_is(options: dict[str, Any], kind: str) -> None:
    broker, recorded = ScriptedBroker(), Recorded()
    async with client(broker, recorded) as mq:
        await mq.send("t", b"x", **options)
    assert attributes(recorded.one("send t"))["messaging.rocketmq.message.type"] == kind


@in_virtual_time
async def test_a_batch_is_one_span_and_each_message_carries_it() -> None:
    broker, recorded = ScriptedBroker(), Recorded()
    async with client(broker, recorded) as mq:
        await mq.send_many("t", [b"a", b"b", b"c"])
        assert await mq.send_many("t", []) == []
    span = recorded.one("send t")
    assert attributes(span)["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in attributes(span)
    (request,) = broker.requests(RequestCode.SEND_BATCH_MESSAGE)
    texts = [properties.to_dict(text) for _, _, text in split_batch(request.body)]
    assert [text["traceparent"] for text in texts] == [traceparent(span)] * 3
    assert recorded.counted("messaging.client.sent.messages", "messaging.destination.name") == {("t",): 3}


@in_virtual_time
async def test_a_context_that_the_message_has_is_kept_and_linked() -> None:
    broker, recorded = ScriptedBroker(), Recorded()
    async with client(broker, recorded) as mq:
        await mq.send("t", b"x", properties={"traceparent": THEIRS, "tracestate": "a=b"})
    assert (carried(broker), carried(broker, "tracestate")) == ([THEIRS], ["a=b"])
    span = recorded.one("send t")
    assert linked(span) == [THEIRS]


@in_virtual_time
async def test_a_failed_send_says_what_kind_of_error_and_nothing_of_its_text() -> None:
    broker, recorded = ScriptedBroker(), Recorded()
    broker.on[SEND] = refused(13)
    async with client(broker, recorded) as mq:
        with pytest.raises(RequestFailed):
            await mq.send("t", b"x")
        assert is_in_no_span()
    span = recorded.one("send t")
    assert (span.status.status_code, span.status.description, span.events) == (StatusCode.ERROR, None, ())
    assert attributes(span)["error.type"] == "halfmq.errors.RequestFailed"
    assert (
        attributes(span)["messaging.message.id"]
        == properties.to_dict(broker.requests(SEND)[0].ext.properties)["UNIQ_KEY"]
    )
    for metric in (DURATION, "messaging.client.sent.messages"):
        assert recorded.counted(metric, "error.type") == {("halfmq.errors.RequestFailed",): 1}


@in_virtual_time
async def test_a_message_without_space_for_a_context_is_sent_without() -> None:
    broker, recorded = ScriptedBroker(), Recorded()
    most = limits.PROPERTIES_BYTES_MAX - 1_536
    async with client(broker, recorded) as mq:
        await mq.send("t", b"x", properties={"p": "x" * (most - 3)})
        await mq.send("t", b"x", properties={"p": "x" * (most - 3 - 68)})
    assert carried(broker) == [None, traceparent(recorded.named("send t")[1])]


# --- transactions -----------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_half_and_commit_are_two_spans_of_the_block_that_sends_them() -> None:
    broker, recorded = ScriptedBroker(), Recorded()
    async with client(broker, recorded) as mq:
        with recorded.span("request") as current:
            async with mq.begin() as tx:
                tx.send("orders", b"SECRET", key="SECRET")
    half, commit = recorded.one("send orders"), recorded.one("commit orders")
    assert {span.parent.span_id for span in (half, commit) if span.parent} == {current.get_span_context().span_id}
    assert (half.kind, commit.kind) == (SpanKind.PRODUCER, SpanKind.CLIENT)
    common = {
        "messaging.system": "rocketmq",
        "messaging.destination.name": "orders",
        "messaging.message.id": tx.receipt.message_ids[0] if tx.receipt else "",
        "halfmq.transaction.id": tx.id,
        "server.address": "127.0.0.1",
        "server.port": 10911,
    }
    assert attributes(half) == common | {
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.rocketmq.message.type": "transaction",
    }
    assert attributes(commit) == common | {"messaging.operation.name": "commit", "messaging.operation.type": "settle"}
    assert carried(broker) == [traceparent(half)]
    assert recorded.counted(DURATION, "messaging.operation.name") == {("send",): 1, ("commit",): 1}
    assert recorded.counted("messaging.client.sent.messages", "messaging.operation.name") == {("send",): 1}


@in_virtual_time
async def test_halves_of_several_topics_are_one_send_without_a_destination() -> None:
    broker, recorded = ScriptedBroker(), Recorded()
    async with client(broker, recorded) as mq:
        prepared = await mq.prepare([compose("a", b"x"), compose("b", b"x")], tx_id="T-1")
        await mq.rollback(prepared)
    half, rollback = recorded.one("send"), recorded.one("rollback")
    for span in (half, rollback):
        assert attributes(span)["messaging.batch.message_count"] == 2
        assert "messaging.destination.name" not in attributes(span)
    assert carried(broker) == [traceparent(half)] * 2


@in_virtual_time
async def test_a_refused_verdict_and_a_lost_one_are_errors_of_their_spans() -> None:
    broker, recorded = ScriptedBroker(), Recorded()
    async with client(broker, recorded, timeout=2.0) as mq:
        for number, verdict in ((1, 12), (2, None)):
            prepared = await mq.prepare([compose("t", b"x")], tx_id=f"T-{number}")
            if verdict is None:
                broker.on[END] = lambda *_: None
                with pytest.raises(TransactionUnknown):
                    await mq.commit(prepared)
            else:
                broker.verdicts["T-1"] = verdict
                with pytest.raises(TransactionRefused):
                    await mq.commit(prepared)
        broker.on.clear()
    assert [attributes(span)["error.type"] for span in recorded.named("commit t")] == [
        "halfmq.errors.TransactionRefused",
        "halfmq.errors.TransactionUnknown",
    ]


@in_virtual_time
async def test_wrong_arguments_are_refused_as_without_telemetry() -> None:
    broker, recorded = ScriptedBroker(), Recorded()
    async with client(broker, recorded) as mq:
        with pytest.raises(UsageError, match="is not a message"):
            await mq.prepare(["x"], tx_id="T-1")  # type: ignore[list-item]
        with pytest.raises(UsageError, match="without messages"):
            await mq.prepare([], tx_id="T-1")


# --- checks -----------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_check_in_another_process_is_a_trace_of_its_own_that_is_linked_to_the_half() -> None:
    broker, before, after = ScriptedBroker(), Recorded(), Recorded()
    async with client(broker, before) as mq:
        await mq.prepare([compose("orders", b"SECRET", key="SECRET")], tx_id="T-1", name="order")
    seen: list[bool] = []

    async def check(tx: Transaction) -> Outcome:
        seen.append(is_in_no_span())
        return Outcome.COMMIT

    with after.span("start of the service"):  # its connections are opened in it
        async with client(broker, after, seed=8) as mq:
            mq.add_check("order", check)
            await mq._register_for_checks()
            broker.check(0, "orders", checks=3)
            await asyncio.sleep(0.1)
    assert broker.visible("orders") == [b"SECRET"]
    assert seen == [False]
    span = after.one("check orders")
    assert (span.kind, span.parent) == (SpanKind.CONSUMER, None)
    assert linked(span) == [traceparent(before.one("send orders"))]
    assert attributes(span) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "check",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.message.id": properties.to_dict(broker.halves[0].properties)["UNIQ_KEY"],
        "halfmq.transaction.id": "T-1",
        "halfmq.transaction.name": "order",
        "halfmq.check.count": 3,
        "halfmq.check.outcome": "COMMIT",
    }
    assert after.counted("messaging.process.duration", "messaging.operation.name") == {("check",): 1}


@in_virtual_time
async def test_a_check_that_fails_says_so_and_is_unknown() -> None:
    broker, recorded = ScriptedBroker(), Recorded()

    def check(tx: Transaction) -> Outcome:
        raise LookupError("SECRET")

    async with client(broker, recorded) as mq:
        mq.add_check("order", check)
        await mq.prepare([compose("t", b"x")], tx_id="T-1", name="order")
        broker.check(0, "orders")
        await asyncio.sleep(0.1)
    span = recorded.one("check t")
    assert (span.status.status_code, span.status.description, span.events) == (StatusCode.ERROR, None, ())
    assert attributes(span)["error.type"] == "LookupError"
    assert "halfmq.check.outcome" not in attributes(span)
    assert [end.ext.commit_or_rollback for end in broker.requests(END)] == [0]


# --- consuming --------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_handler_runs_in_a_trace_of_its_own_that_is_linked_to_the_send() -> None:
    broker, recorded = ScriptedBroker(queues=1), Recorded()
    app = app_of(broker, recorded)

    @app.consumer("orders", group="billing")
    async def bill(message: Message) -> None:
        await app.client().send("invoices", b"x")

    with recorded.span("start of the service"):
        async with app.run() as mq:
            receipt = await mq.send("orders", b"SECRET", key="SECRET")
            await asyncio.sleep(20)
    sent, span, invoice = recorded.one("send orders"), recorded.one("process orders"), recorded.one("send invoices")
    assert (span.kind, span.parent) == (SpanKind.CONSUMER, None)
    assert linked(span) == [traceparent(sent)]
    assert attributes(span) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.message.id": receipt.message_id,
        "messaging.consumer.group.name": "billing",
        "halfmq.delivery.attempt": 1,
        "server.address": "127.0.0.1",
        "server.port": 10911,
    }
    assert invoice.parent is not None
    assert span.context is not None
    assert invoice.parent.span_id == span.context.span_id
    labels = ("messaging.destination.name", "messaging.consumer.group.name", "messaging.operation.name")
    assert recorded.counted("messaging.client.consumed.messages", *labels) == {("orders", "billing", "receive"): 1}
    assert recorded.counted("messaging.process.duration", *labels) == {("orders", "billing", "process"): 1}


@pytest.mark.parametrize("sharding_key", [None, "c"])
@in_virtual_time
async def test_each_failed_attempt_is_a_span_with_its_error(sharding_key: str | None) -> None:
    broker, recorded = ScriptedBroker(queues=1), Recorded()
    app = app_of(broker, recorded)
    attempts: list[int] = []

    @app.consumer("orders", group="billing")
    async def bill(message: Message) -> None:
        attempts.append(message.attempt)
        if len(attempts) == 1:
            raise ValueError("SECRET")

    async with app.run() as mq:
        await mq.send("orders", b"x", sharding_key=sharding_key)
        await asyncio.sleep(120)
    first, second = recorded.named("process orders")
    assert [attributes(span)["halfmq.delivery.attempt"] for span in (first, second)] == attempts
    assert (first.status.status_code, first.status.description, first.events) == (StatusCode.ERROR, None, ())
    assert attributes(first)["error.type"] == "ValueError"
    assert "error.type" not in attributes(second)


@in_virtual_time
async def test_the_last_call_for_a_dead_message_is_a_span_too() -> None:
    broker, recorded = ScriptedBroker(queues=1), Recorded()
    app = app_of(broker, recorded)
    given_up: list[bool] = []

    async def give_up(message: Message) -> None:
        given_up.append(is_in_no_span())

    @app.consumer("orders", group="billing", retries=0, on_dead=give_up)
    async def bill(message: Message) -> None:
        raise ValueError

    async with app.run() as mq:
        await mq.send("orders", b"x")
        await asyncio.sleep(20)
    assert given_up == [False]
    assert [attributes(span).get("error.type") for span in recorded.named("process orders")] == ["ValueError", None]


@in_virtual_time
async def test_a_message_that_is_processed_in_a_loop_is_in_the_trace_of_the_loop() -> None:
    broker, recorded = ScriptedBroker(queues=1), Recorded()
    broker.topics.add("t")
    broker.append("t", 0, b"x", properties.encode({"traceparent": THEIRS, "UNIQ_KEY": "U1"}))
    async with client(broker, recorded) as mq, mq.consumer("t", group="g") as messages:
        message = await anext(messages)
        with recorded.span("batch") as current:
            async with message.processing():
                assert get_current_span() is not current
    span = recorded.one("process t")
    assert span.parent is not None
    assert span.parent.span_id == current.get_span_context().span_id
    assert linked(span) == [THEIRS]


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "00-" + "0" * 32 + "-" + "0" * 16 + "-01",
        THEIRS + "-more",
        "ff" + THEIRS[2:],
        "00-" + "a" * 20_000,
        "é" * 55,
    ],
)
@in_virtual_time
async def test_what_a_stranger_wrote_in_place_of_a_context_is_no_link(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker, recorded = ScriptedBroker(queues=1), Recorded()
    broker.topics.add("t")
    broker.append("t", 0, b"x", properties.encode({"traceparent": text, "tracestate": "A==\x7f"}))
    with caplog.at_level(logging.WARNING):
        async with client(broker, recorded) as mq, mq.consumer("t", group="g") as messages:
            message = await anext(messages)
            async with message.processing():
                pass
    assert linked(recorded.one("process t")) == []
    assert caplog.records == [], "a stranger must not fill the log"


@in_virtual_time
async def test_request_and_reply_are_sends_and_the_reply_is_in_the_span_of_its_handler() -> None:
    broker, recorded = ScriptedBroker(queues=1), Recorded()
    app = app_of(broker, recorded)
    broker.topics.add("prices")

    @app.consumer("prices", group="pricing")
    async def price(message: Message) -> None:
        await message.reply(b"12")

    request = {"CORRELATION_ID": "7", "REPLY_TO_CLIENT": "c", "TTL": "3000", "CLUSTER": "C", "traceparent": THEIRS}
    broker.on[RequestCode.SEND_REPLY_MESSAGE_V2] = lambda _, request: encode_response(request, 0)
    async with app.run():
        broker.append("prices", 0, b"x", properties.encode(request))
        await asyncio.sleep(20)
    span, reply = recorded.one("process prices"), recorded.one("send C_REPLY_TOPIC")
    assert reply.parent is not None
    assert span.context is not None
    assert reply.parent.span_id == span.context.span_id
    (sent,) = broker.requests(RequestCode.SEND_REPLY_MESSAGE_V2)
    assert properties.to_dict(sent.ext.properties)["traceparent"] == traceparent(reply)


# --- metrics ----------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_durations_are_seconds_in_the_buckets_that_the_conventions_advise() -> None:
    broker, recorded = ScriptedBroker(), Recorded()

    def late(peer: Peer, request: Request[Any]) -> None:
        answer = broker.usual(peer, request)
        assert answer is not None
        asyncio.get_running_loop().call_later(0.5, peer.send, answer)

    broker.on[SEND] = late
    async with client(broker, recorded) as mq:
        await mq.send("t", b"x")
    (point,) = recorded.points(DURATION)
    assert point.explicit_bounds == (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
    assert 0.5 <= point.sum < 0.6
    assert dict(point.attributes) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.destination.name": "t",
    }, "nothing that differs with each message"


# --- failures of telemetry itself ---------------------------------------------------------------------------------------


class FailsAtStart(SpanProcessor):
    def on_start(self, span: object, parent_context: object = None) -> None:
        raise ValueError("no start")


class FailsAtEnd(SpanProcessor):
    def on_end(self, span: object) -> None:
        raise ValueError("no end")


class FailsToExport(SpanExporter):
    def export(self, spans: object) -> Any:
        raise ValueError("no export")


@pytest.mark.parametrize(
    "processor",
    [FailsAtStart(), FailsAtEnd(), SimpleSpanProcessor(FailsToExport())],
    ids=lambda one: type(one).__name__,
)
@in_virtual_time
async def test_a_processor_or_exporter_that_fails_breaks_nothing(
    processor: SpanProcessor, caplog: pytest.LogCaptureFixture
) -> None:
    broker, recorded = ScriptedBroker(queues=1), Recorded(processor)
    app = app_of(broker, recorded)
    handled: list[bytes] = []

    @app.consumer("orders", group="billing")
    async def bill(message: Message) -> None:
        handled.append(message.body)

    async with app.run() as mq:
        async with mq.begin() as tx:
            tx.send("orders", b"x")
        await mq.send("orders", b"y")
        await asyncio.sleep(20)
        assert is_in_no_span()
    assert handled == [b"x", b"y"]
    told = [record for record in caplog.records if record.name == "halfmq.client" and record.levelno >= logging.WARNING]
    assert len(told) <= 1, "once, not with each message"


@pytest.mark.parametrize("broken", ["inject", "extract"])
@in_virtual_time
async def test_a_propagator_that_fails_breaks_nothing(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("no context")

    monkeypatch.setattr(type(module._w3c), broken, fail)
    broker, recorded = ScriptedBroker(queues=1), Recorded()
    async with client(broker, recorded) as mq, mq.consumer("t", group="g") as messages:
        await mq.send("t", b"x", properties={"traceparent": THEIRS})
        async with (await anext(messages)).processing():
            pass
        async with mq.begin() as tx:
            tx.send("t", b"y")
    assert sorted(broker.visible("t")) == [b"x", b"y"]


@in_virtual_time
async def test_instruments_that_fail_break_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails:
        def __getattr__(self, name: str) -> Any:
            raise ValueError(name)

    broker, recorded = ScriptedBroker(queues=1), Recorded()
    for name in ("_operation_s", "_process_s", "_sent"):
        monkeypatch.setattr(recorded.telemetry, name, Fails())
    monkeypatch.setattr(recorded.telemetry, "_tracer", Fails())
    async with client(broker, recorded) as mq, mq.consumer("t", group="g") as messages:
        await mq.send("t", b"x")
        async with (await anext(messages)).processing() as message:
            assert message.body == b"x"
    assert recorded.spans == []


# --- on and off -------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_without_telemetry_nothing_is_added_and_no_class_of_it_is_used() -> None:
    broker, recorded = ScriptedBroker(), Recorded()
    async with client_of(broker.network()) as mq:
        with recorded.span("request"):
            await mq.send("t", b"x")
            async with mq.begin() as tx:
                tx.send("t", b"x")
        assert type(mq._producer) is Producer
        assert type(mq._transactions).__module__ == "halfmq.client.transaction"
        assert type(mq._check_listener).__module__ == "halfmq.client.check_listener"
    assert carried(broker) == [None, None]
    assert [span.name for span in recorded.spans] == ["request"]


def test_a_client_without_telemetry_loads_nothing_of_it_and_one_with_it_needs_no_provider() -> None:
    script = f"""
import asyncio, sys
from tests.support.scripted_broker import ScriptedBroker, client_of
async def main(**options):
    broker = ScriptedBroker()
    async with client_of(broker.network(), **options) as mq:
        await mq.send("t", b"x")
        async with mq.begin() as tx:
            tx.send("t", b"x")
        async with mq.consumer("t", group="g") as messages, (await anext(messages)).processing():
            pass
    return [b"traceparent" in request.ext.properties.encode() for request in broker.requests({int(SEND)})]
print(asyncio.run(main()), sorted(name for name in sys.modules if "telemetry" in name))
print(asyncio.run(main(telemetry=True)), "opentelemetry.sdk" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("[False, False] []\n[False, False] False\n", "")


def test_telemetry_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "halfmq.client.telemetry")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(MissingDependency, match=r"opentelemetry-api is not installed.*halfmq\[otel\]"):
        AsyncClient(URL, telemetry=True)
    AsyncClient(URL)


@pytest.mark.parametrize("value", [None, 1, "yes", object()])
def test_telemetry_is_yes_no_or_where_it_goes(value: Any) -> None:
    with pytest.raises(UsageError, match="telemetry=True"):
        AsyncClient(URL, telemetry=value)


# --- the blocking face ------------------------------------------------------------------------------------------------


def test_the_blocking_client_has_the_same_spans_in_the_trace_of_the_calling_thread() -> None:
    broker, recorded = ScriptedBroker(queues=1), Recorded()
    with Client(URL, group="orders", connector=broker.network(), telemetry=recorded.telemetry) as mq:
        with recorded.span("request") as current:
            mq.send("t", b"x")
            with mq.begin() as tx:
                tx.send("t", b"y")
            assert get_current_span() is current
        with mq.consumer("t", group="g") as messages:
            with next(messages).processing():
                assert not is_in_no_span()
            assert is_in_no_span()
            with next(messages).processing():
                raise ValueError
    sends = recorded.named("send t")
    for span in (*sends, recorded.one("commit t")):
        assert span.parent is not None
        assert span.parent.span_id == current.get_span_context().span_id
    processed = recorded.named("process t")
    assert [linked(span) for span in processed] == [[traceparent(span)] for span in sends]
    assert [attributes(span).get("error.type") for span in processed] == [None, "ValueError"]


async def test_a_plain_handler_and_a_plain_check_run_in_their_span_though_in_another_thread() -> None:
    broker, recorded = ScriptedBroker(queues=1), Recorded()
    app = App(URL, group="orders", connector=broker.network(), telemetry=recorded.telemetry)
    handled = asyncio.Event()
    loop = asyncio.get_running_loop()

    @app.consumer("t", group="g")
    def handle(message: Message) -> None:
        with recorded.span("query of the handler"):
            pass
        loop.call_soon_threadsafe(handled.set)

    def check(tx: Transaction) -> Outcome:
        with recorded.span("query of the check"):
            pass
        return Outcome.COMMIT

    app.add_check("order", check)
    async with app.run() as mq:
        await mq.prepare([compose("t", b"x")], tx_id="T-1", name="order")
        broker.check(0, "orders")
        await asyncio.wait_for(handled.wait(), 20)
    for inner, outer in (("query of the handler", "process t"), ("query of the check", "check t")):
        parent, context = recorded.one(inner).parent, recorded.one(outer).context
        assert parent is not None
        assert context is not None
        assert parent.span_id == context.span_id
