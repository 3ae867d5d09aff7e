"""Tracing as the use cases see it. This module's own does nothing, costs nothing, and imports nothing of OpenTelemetry.

Spans carry names and numbers from `semconv` alone. No exception is recorded with its text, because a client's may
quote a prompt: a span that failed has the error's code.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from rulegen_dagster.telemetry.context import TraceContext
from rulegen_dagster.telemetry.semconv import Key, Value, Work

Attributes = Mapping[Key, Value | None]
"""What a span says; a key without a value is left out."""


class Span:
    """A span that is not recorded."""

    @property
    def context(self) -> TraceContext | None:
        """Where it stands, for whatever is to be its child; None where nothing is traced."""
        return None

    def set(self, attributes: Attributes) -> None:
        """Add attributes."""

    def link(self, other: TraceContext) -> None:
        """Point to a span that this one comes from, in whatever trace that is."""

    def fail(self, error_type: str) -> None:
        """Mark it as failed, with a code."""

    def end(self, *, at_ns: int | None = None) -> None:
        """End it, at a time (ns since 1970) before now if one is given; only the first call counts."""


class Tracing:
    """Starts no spans."""

    is_on = False

    def start(
        self,
        work: Work,
        attributes: Attributes,
        *,
        target: str | None = None,
        parent: TraceContext | None = None,
        links: Sequence[TraceContext] = (),
    ) -> Span:
        """Start a span that somebody ends; its name is the work's, with the `target` behind it.

        Without a parent, it is the child of the span that is active here, or begins a trace.
        """
        del work, attributes, target, parent, links
        return NO_SPAN

    def active(self, span: Span) -> AbstractContextManager[None]:
        """Make a span the parent of what is started in the block."""
        del span
        return nullcontext()

    def keep(self, token: str, *spans: Span) -> None:
        """Keep the spans of a claim, inner ones first, until whoever books its result takes them."""
        del token, spans

    def take(self, token: str) -> tuple[Span, ...]:
        """Return the spans that were kept for a claim, once."""
        del token
        return ()

    def flush(self) -> None:
        """Hand on what has ended; a process may end right after."""

    @contextmanager
    def span(
        self,
        work: Work,
        attributes: Attributes,
        *,
        target: str | None = None,
        parent: TraceContext | None = None,
        links: Sequence[TraceContext] = (),
    ) -> Iterator[Span]:
        """Start a span, make it active, and end it with the block; an error that leaves the block fails it."""
        span = self.start(work, attributes, target=target, parent=parent, links=links)
        try:
            with self.active(span):
                yield span
        except BaseException as error:
            span.fail(str(getattr(error, "code", type(error).__name__)))
            raise
        finally:
            span.end()


NO_SPAN = Span()
"""The span that stands for all that are not recorded."""

NO_TRACING = Tracing()
"""Tracing that is off."""
