"""Traces and metrics of one client, by OpenTelemetry's API and its conventions for messaging.

``traced.py`` has the calls that get a span; here is what a span and a metric say. Only a client with ``telemetry`` loads this module.

- send, and the half messages of a transaction: PRODUCER, "send TOPIC". Its context goes with each message, as the properties
  ``traceparent`` and ``tracestate`` (W3C Trace Context; baggage is not sent).
- commit and rollback: CLIENT, "commit TOPIC" or "rollback TOPIC".
- a call of a check function, and the handling of a message: CONSUMER, "check TOPIC" and "process TOPIC", linked to the context that the
  message carries. A link, not a parent: it may be a day old.

Attributes never contain bodies, keys, tags or texts of exceptions, which may quote a body. Names of the conventions begin with
``messaging.``, ours with ``halfmq.``.

Nothing here raises: what fails in OpenTelemetry, or in a processor, sampler or exporter of the application, is logged, and the client
goes on without.
"""

from collections.abc import Callable, Mapping, Sequence
from contextvars import Context as Variables
from contextvars import Token, copy_context
from types import TracebackType
from typing import Any, Final, Protocol, Self

from halfmq import __version__, limits
from halfmq.client.log import log
from halfmq.client.outgoing import OWN_PROPERTIES_BYTES, OutgoingMessage
from halfmq.errors import MissingDependency
from halfmq.model import properties as names
from halfmq.model.address import Address
from halfmq.runtime.log_throttle import LogThrottle

try:
    from opentelemetry import context as contexts
    from opentelemetry import metrics, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise MissingDependency("opentelemetry-api is not installed", hint="pip install 'halfmq[otel]'") from error

#: Of a property that is read; version 00 has 55. The propagator logs each longer one.
_TRACEPARENT_CHARS_MAX: Final = 512
#: Of durations, seconds; the conventions advise them.
_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_SCOPE: Final = "halfmq"
_SCHEMA: Final = "https://opentelemetry.io/schemas/1.37.0"

SYSTEM: Final = "messaging.system"
OPERATION: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
MESSAGE_ID: Final = "messaging.message.id"
MESSAGES: Final = "messaging.batch.message_count"
GROUP: Final = "messaging.consumer.group.name"
CLIENT_ID: Final = "messaging.client.id"
MESSAGE_TYPE: Final = "messaging.rocketmq.message.type"
NAMESPACE: Final = "messaging.rocketmq.namespace"
ERROR: Final = "error.type"
SERVER: Final = "server.address"
PORT: Final = "server.port"
TRANSACTION_ID: Final = "halfmq.transaction.id"
TRANSACTION_NAME: Final = "halfmq.transaction.name"
ATTEMPT: Final = "halfmq.delivery.attempt"
CHECKS: Final = "halfmq.check.count"
OUTCOME: Final = "halfmq.check.outcome"

#: Of a metric; what else a span says would make a series for each message.
_OF_METRICS: Final = (SYSTEM, OPERATION, DESTINATION, GROUP, NAMESPACE)

Attributes = dict[str, str | int]
_w3c: Final = TraceContextTextMapPropagator()


class Received(Protocol):
    """What is read of a message that was delivered."""

    @property
    def message_id(self) -> str: ...

    @property
    def topic(self) -> str: ...

    @property
    def attempt(self) -> int: ...

    @property
    def properties(self) -> Mapping[str, str]: ...


class Telemetry:
    """Where spans and metrics of a client go: ``AsyncClient(..., telemetry=Telemetry(tracer_provider=...))``.

    By default the providers that the application sets with ``opentelemetry.trace.set_tracer_provider`` and
    ``opentelemetry.metrics.set_meter_provider``, also after the client was made; ``telemetry=True`` means that. May be shared by clients.
    """

    def __init__(
        self,
        *,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        self._tracer = trace.get_tracer(_SCOPE, __version__, tracer_provider, schema_url=_SCHEMA)
        meter = metrics.get_meter(_SCOPE, __version__, meter_provider, schema_url=_SCHEMA)
        self._operation_s = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of messaging operation initiated by a producer or consumer client.",
            explicit_bucket_boundaries_advisory=_BUCKETS_S,
        )
        self._process_s = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of processing operation.",
            explicit_bucket_boundaries_advisory=_BUCKETS_S,
        )
        self._sent = meter.create_counter(
            "messaging.client.sent.messages",
            "{message}",
            "Number of messages producer attempted to send to the broker.",
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages",
            "{message}",
            "Number of messages that were delivered to the application.",
        )

    def of_client(self, client_id: str, clock_s: Callable[[], float]) -> "ClientTelemetry":
        """For one client. ``clock_s``: seconds, for durations."""
        return ClientTelemetry(self, client_id, clock_s)


class ClientTelemetry:
    """Spans and metrics of one client. Used in any thread."""

    def __init__(self, telemetry: Telemetry, client_id: str, clock_s: Callable[[], float]) -> None:
        self.instruments = telemetry
        self.clock_s = clock_s
        self._client_id = client_id
        self._failures = LogThrottle(clock_s)

    # --- operations -----------------------------------------------------------------------------------------------

    def sending(self, messages: Sequence[OutgoingMessage], tx_id: str = "") -> "Operation":
        """A send of ``messages``, or of the half messages of ``tx_id``. Send ``Operation.outgoing`` in the block."""
        more: Attributes = {}
        kinds = {"transaction" if tx_id else _type_of(message) for message in messages}
        if len(kinds) == 1:
            more[MESSAGE_TYPE] = kinds.pop()
        links = {names.find(message.properties, names.TRACEPARENT): None for message in messages}
        return Operation(
            self,
            self._described("send", "send", [message.topic for message in messages], tx_id, more),
            SpanKind.PRODUCER,
            [text.decode(errors="replace") for text in links if text],
            [message.message_id for message in messages],
            outgoing=messages,
        )

    def settling(self, operation: str, topics: Sequence[str], message_ids: Sequence[str], tx_id: str) -> "Operation":
        """``operation``: "commit" or "rollback", of half messages."""
        return Operation(self, self._described(operation, "settle", topics, tx_id), SpanKind.CLIENT, [], message_ids)

    def checking(self, half: Received, tx_id: str, name: str, checks: int) -> "Operation":
        """A call of a check function. Its trace begins here, whatever has led to the call in this process."""
        more: Attributes = {CHECKS: checks}
        if name:
            more[TRANSACTION_NAME] = name
        attributes = self._described("check", "process", [half.topic], tx_id, more)
        return Operation(self, attributes, SpanKind.CONSUMER, [_carried(half)], [half.message_id], base=Context())

    def processing(self, message: Received, group: str, server: Address | None) -> "Operation":
        """The handling of a message by the application, in the trace that is current there, if there is one."""
        more: Attributes = {GROUP: group, ATTEMPT: message.attempt}
        attributes = self._described("process", "process", [message.topic], "", more)
        operation = Operation(self, attributes, SpanKind.CONSUMER, [_carried(message)], [message.message_id])
        operation.answered(server)
        return operation

    def received(self, topic: str, group: str) -> None:
        """Count a message that is delivered to the application."""
        counted = self._of_topics({SYSTEM: "rocketmq", OPERATION: "receive", GROUP: group}, [topic])
        self.guarded(self.instruments._consumed.add, 1, counted)

    def without_span(self) -> Variables:
        """The current context variables, without a current span: for tasks that outlive whoever starts them."""
        variables = copy_context()
        self.guarded(variables.run, contexts.attach, Context())
        return variables

    # --- parts ----------------------------------------------------------------------------------------------------

    def guarded(self, call: Callable[..., Any], *given: Any) -> Any:
        """The result of ``call``; None if it fails, which is logged once in ten minutes."""
        try:
            return call(*given)
        except Exception as error:  # noqa: BLE001 - code of the application's processors and exporters
            if self._failures.is_due(_type_name(type(error))):
                log.warning("telemetry failed, and the client goes on without: %r", error, exc_info=error)
            return None

    def _described(
        self, operation: str, kind: str, topics: Sequence[str], tx_id: str, more: Attributes | None = None
    ) -> Attributes:
        attributes: Attributes = {SYSTEM: "rocketmq", OPERATION: operation, OPERATION_TYPE: kind}
        attributes[CLIENT_ID] = self._client_id
        if tx_id:
            attributes[TRANSACTION_ID] = tx_id
        attributes.update(more or {})
        return self._of_topics(attributes, topics)

    @staticmethod
    def _of_topics(attributes: Attributes, topics: Sequence[str]) -> Attributes:
        """With the destination, which is only said if all messages have the same."""
        if len(set(topics)) == 1:
            attributes[DESTINATION] = topics[0]
            namespace, found, _ = topics[0].partition("%")
            if found and namespace:  # topics of the protocol begin with %
                attributes[NAMESPACE] = namespace
        return attributes


class Operation:
    """One span, current in its block, and what is measured of it. An exception of the block is noted and raised."""

    def __init__(
        self,
        telemetry: ClientTelemetry,
        attributes: Attributes,
        kind: SpanKind,
        links: Sequence[str],
        message_ids: Sequence[str],
        *,
        outgoing: Sequence[OutgoingMessage] = (),
        base: Context | None = None,
    ) -> None:
        """``links``: each a traceparent. ``base``: what the span is in; None: what is current."""
        if len(message_ids) > 1:
            attributes[MESSAGES] = len(message_ids)
        elif message_ids and message_ids[0]:
            attributes[MESSAGE_ID] = message_ids[0]
        self._telemetry = telemetry
        self._attributes = attributes
        self._kind = kind
        self._links = links
        self._base = base
        self._sent = len(outgoing)
        self._span: Span | None = None
        self._token: Token[Context] | None = None
        self._started_s = 0.0
        #: The messages to send; in the block each carries the context of the span, if it carried none.
        self.outgoing = outgoing

    def answered(self, server: Address | None) -> None:
        """Note which server it was."""
        if server is not None:
            self.note(SERVER, server.host)
            self.note(PORT, server.port)

    def note(self, name: str, value: str | int) -> None:
        """Add an attribute."""
        self._attributes[name] = value
        if self._span is not None:
            self._telemetry.guarded(self._span.set_attribute, name, value)

    def __enter__(self) -> Self:
        self._started_s = self._telemetry.clock_s()
        self._telemetry.guarded(self._start)
        return self

    def _start(self) -> None:
        attributes = self._attributes
        links = [link for text in self._links if (link := _link(text)) is not None]
        span = self._telemetry.instruments._tracer.start_span(
            " ".join(str(attributes[part]) for part in (OPERATION, DESTINATION) if part in attributes),
            context=self._base,
            kind=self._kind,
            attributes=attributes,
            links=links,
        )
        self._span = span
        inside = trace.set_span_in_context(span, self._base)
        self._token = contexts.attach(inside)
        if self.outgoing:
            carried: dict[str, str] = {}
            _w3c.inject(carried, inside)
            self.outgoing = [_with_context(message, carried) for message in self.outgoing]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        guarded = self._telemetry.guarded
        if error is not None:
            self.note(ERROR, _type_name(type(error)))
            if self._span is not None:
                guarded(self._span.set_status, Status(StatusCode.ERROR))
        if self._token is not None:
            guarded(contexts.detach, self._token)
        guarded(self._measure, self._telemetry.clock_s() - self._started_s)
        if self._span is not None:
            guarded(self._span.end)

    def _measure(self, took_s: float) -> None:
        instruments = self._telemetry.instruments
        measured: Attributes = {
            name: self._attributes[name] for name in (*_OF_METRICS, ERROR) if name in self._attributes
        }
        inside = None if self._span is None else trace.set_span_in_context(self._span, self._base)  # for exemplars
        if self._attributes[OPERATION_TYPE] == "process":
            instruments._process_s.record(took_s, measured, inside)
            return
        instruments._operation_s.record(took_s, measured, inside)
        if self._sent:
            instruments._sent.add(self._sent, measured, inside)


def _type_of(message: OutgoingMessage) -> str:
    if message.delay_ms:
        return "delay"
    return "fifo" if message.sharding_key else "normal"


def _carried(message: Received) -> str:
    return message.properties.get(names.TRACEPARENT, "")


def _link(text: str) -> Link | None:
    """``text``: a traceparent, as whoever sent the message wrote it, so it may be anything. The tracestate is not read: it adds nothing
    to a link, and the propagator logs each one that it cannot read.
    """
    if not text or len(text) > _TRACEPARENT_CHARS_MAX:
        return None
    linked = trace.get_current_span(_w3c.extract({names.TRACEPARENT: text}, Context())).get_span_context()
    return Link(linked) if linked.is_valid else None


def _with_context(message: OutgoingMessage, carried: Mapping[str, str]) -> OutgoingMessage:
    """A message that has a context keeps it: somebody has created it elsewhere, and the span is linked to that."""
    if not carried or names.find(message.properties, names.TRACEPARENT) is not None:
        return message
    left = limits.PROPERTIES_BYTES_MAX - OWN_PROPERTIES_BYTES - len(message.properties)
    for kept in ((names.TRACEPARENT, names.TRACESTATE), (names.TRACEPARENT,)):
        text = names.encode([(name, carried[name]) for name in kept if name in carried])
        if len(text) <= left:
            return message._replace(properties=names.append(message.properties, text))
    return message


def _type_name(kind: type[BaseException]) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
