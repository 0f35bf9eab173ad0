"""Spans and metrics of a client in memory, by the providers of OpenTelemetry's SDK."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Span, get_current_span

from halfmq.client.telemetry import Telemetry


class Recorded:
    """``telemetry`` is the argument of a client; it tells what that client did."""

    def __init__(self, *processors: SpanProcessor) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        for processor in processors:
            self.tracers.add_span_processor(processor)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        self.telemetry = Telemetry(
            tracer_provider=self.tracers, meter_provider=MeterProvider(metric_readers=[self._reader])
        )

    @property
    def spans(self) -> list[ReadableSpan]:
        """Those that ended, in that order."""
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        """Those that ended with this name."""
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        """The only span of this name."""
        (span,) = self.named(name)
        return span

    def span(self, name: str) -> AbstractContextManager[Span]:
        """A span of the application."""
        return self.tracers.get_tracer("application").start_as_current_span(name)

    def points(self, metric: str) -> list[Any]:
        """The points of one metric, of all attributes."""
        data = self._reader.get_metrics_data()
        return [
            point
            for resource in ([] if data is None else data.resource_metrics)
            for scope in resource.scope_metrics
            for one in scope.metrics
            if one.name == metric
            for point in one.data.data_points
        ]

    def counted(self, metric: str, *names: str) -> dict[tuple[Any, ...], int]:
        """Values of these attributes -> the value of a counter, or the count of a histogram."""
        return {
            tuple(point.attributes.get(name) for name in names): getattr(point, "value", None) or point.count
            for point in self.points(metric)
        }


def traceparent(span: ReadableSpan) -> str:
    """As a message carries it."""
    context = span.context
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def linked(span: ReadableSpan) -> list[str]:
    """The traceparents of what it is linked to."""
    found = [link.context for link in span.links]
    return [f"00-{one.trace_id:032x}-{one.span_id:016x}-{one.trace_flags:02x}" for one in found]


def attributes(span: ReadableSpan, *without: str) -> dict[str, Any]:
    """All but some that differ in each run."""
    given: Mapping[str, Any] = span.attributes or {}
    return {name: value for name, value in given.items() if name not in {"messaging.client.id", *without}}


def is_in_no_span() -> bool:
    """Whether no span is current here."""
    return not get_current_span().get_span_context().is_valid
