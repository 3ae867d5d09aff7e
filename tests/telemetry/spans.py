"""Spans that a test made, as they would have been exported."""

from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from rulegen_dagster.telemetry.otel import OtelTracing
from rulegen_dagster.telemetry.semconv import Profile


class Spans(SpanExporter):
    """Every span that has ended, in the order of their ends."""

    def __init__(self) -> None:
        self.ended: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.ended += spans
        return SpanExportResult.SUCCESS

    def tracing(self, profile: Profile = Profile.OTEL_1_36) -> OtelTracing:
        """Return tracing of a process of its own, whose spans end here."""
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self))
        return OtelTracing(provider.get_tracer("test"), profile=profile, flushed=lambda: None)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.ended if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    def parent_of(self, span: ReadableSpan) -> ReadableSpan | None:
        """Return a span's parent; None where it has none, or none that was exported."""
        for other in self.ended:
            if span.parent is not None and other.get_span_context() is not None and id_of(other) == span.parent.span_id:
                return other
        return None

    def path_of(self, span: ReadableSpan) -> list[str]:
        """Return the names from the root to a span."""
        names = [span.name]
        parent = self.parent_of(span)
        while parent is not None:
            names.insert(0, parent.name)
            parent = self.parent_of(parent)
        return names


def id_of(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


def trace_of(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id


def attributes_of(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})
