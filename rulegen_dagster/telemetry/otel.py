"""Tracing on OpenTelemetry's API, whatever stands behind it. Import it only where something is to be traced."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from opentelemetry import context as otel_context
from opentelemetry import trace

from rulegen_dagster.telemetry.context import TraceContext
from rulegen_dagster.telemetry.semconv import Key, Profile, Value, Work, name_of
from rulegen_dagster.telemetry.tracing import Attributes, Span, Tracing

_LONGEST: Final = 200
_MOST_KEPT: Final = 1_000
_KINDS: Final = {Work.CHAT: trace.SpanKind.CLIENT}


class OtelSpan(Span):
    """A span of the API."""

    def __init__(self, span: trace.Span, work: Work, profile: Profile) -> None:
        """Name attributes as the profile calls them on a span of this work."""
        self.otel = span
        self._work = work
        self._profile = profile

    @property
    def context(self) -> TraceContext | None:
        """Where it stands."""
        found = self.otel.get_span_context()
        if not found.is_valid:
            return None
        return TraceContext(f"{found.trace_id:032x}", f"{found.span_id:016x}", f"{found.trace_flags:02x}")

    def set(self, attributes: Attributes) -> None:
        """Add attributes."""
        for key, value in attributes.items():
            if value is not None:
                self.otel.set_attribute(name_of(self._profile, key, of=self._work), _bounded(value))

    def link(self, other: TraceContext) -> None:
        """Point to another span."""
        self.otel.add_link(_span_context(other))

    def fail(self, error_type: str) -> None:
        """Mark it as failed, with a code."""
        self.set({Key.ERROR_TYPE: error_type})
        self.otel.set_status(trace.StatusCode.ERROR)

    def end(self, *, at_ns: int | None = None) -> None:
        """End it once."""
        if self.otel.is_recording():
            self.otel.end(end_time=at_ns)


class OtelTracing(Tracing):
    """Starts spans of one tracer; `flushed` hands on what has ended."""

    is_on = True

    def __init__(self, tracer: trace.Tracer, *, profile: Profile, flushed: Callable[[], object]) -> None:
        """Name spans and attributes as the profile does."""
        self._tracer = tracer
        self._profile = profile
        self._flushed = flushed
        self._kept: dict[str, tuple[Span, ...]] = {}
        self._lock = threading.Lock()

    def start(
        self,
        work: Work,
        attributes: Attributes,
        *,
        target: str | None = None,
        parent: TraceContext | None = None,
        links: Sequence[TraceContext] = (),
    ) -> Span:
        """Start a span that somebody ends."""
        name = name_of(self._profile, work)
        started = self._tracer.start_span(
            f"{name} {target[:_LONGEST]}" if target else name,
            context=None
            if parent is None
            else trace.set_span_in_context(trace.NonRecordingSpan(_span_context(parent))),
            kind=_KINDS.get(work, trace.SpanKind.INTERNAL),
            attributes={
                name_of(self._profile, key, of=work): _bounded(value)
                for key, value in attributes.items()
                if value is not None
            },
            links=[trace.Link(_span_context(link)) for link in links],
        )
        return OtelSpan(started, work, self._profile)

    def active(self, span: Span) -> AbstractContextManager[None]:
        """Make a span the parent of what is started in the block."""
        return _attached(span.otel) if isinstance(span, OtelSpan) else super().active(span)

    def keep(self, token: str, *spans: Span) -> None:
        """Keep the spans of a claim; those of claims that nobody booked are let go, oldest first."""
        with self._lock:
            self._kept[token] = spans
            while len(self._kept) > _MOST_KEPT:
                del self._kept[next(iter(self._kept))]

    def take(self, token: str) -> tuple[Span, ...]:
        """Return the spans that were kept for a claim, once."""
        with self._lock:
            return self._kept.pop(token, ())

    def flush(self) -> None:
        """Hand on what has ended."""
        self._flushed()


@contextmanager
def _attached(span: trace.Span) -> Iterator[None]:
    # Not `use_span`: it records an exception that passes with its text.
    token = otel_context.attach(trace.set_span_in_context(span))
    try:
        yield
    finally:
        otel_context.detach(token)


def _span_context(context: TraceContext) -> trace.SpanContext:
    return trace.SpanContext(
        trace_id=int(context.trace_id, 16),
        span_id=int(context.span_id, 16),
        is_remote=True,
        trace_flags=trace.TraceFlags(int(context.flags, 16)),
    )


def _bounded(value: Value) -> Value:
    # What a provider says of itself may be of any length.
    return value[:_LONGEST] if isinstance(value, str) else value
