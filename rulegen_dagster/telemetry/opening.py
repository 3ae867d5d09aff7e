"""Opening tracing: as the environment configures it, once for a process, and not at all where nothing is configured."""

import os
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from rulegen_dagster.domain.errors import InputError
from rulegen_dagster.telemetry.semconv import Profile
from rulegen_dagster.telemetry.tracing import NO_TRACING, Tracing

FLUSH_S: Final = 3.0
"""How long the end of a process or step waits for a collector; what is not sent by then is lost."""

_SDK: Final = "opentelemetry.sdk.trace"
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_NAME: Final = "rulegen-dagster"

_opened: dict[tuple[Path | None, bool, Profile], Tracing] = {}
_lock = threading.Lock()


def open_tracing(file: Path | None, profile: Profile) -> Tracing:
    """Return tracing into a file of JSON lines, to the collector that OpenTelemetry's variables name, or to both.

    Where neither is configured, spans go to whatever provider this process has set up by itself, and to nowhere where
    there is none: then nothing of OpenTelemetry is imported. A collector needs the extra `otel`; without it the
    variables, which may be meant for other programs, are passed over. Raises `InputError` where the file is named and
    the extra is missing, or the file cannot be written.
    """
    to_collector = _wants_collector()
    if _is_disabled():
        return NO_TRACING
    if file is None and not to_collector:
        return _of_this_process(profile)
    with _lock:
        key = (file, to_collector, profile)
        if key not in _opened:
            _opened[key] = _open(file, to_collector, profile)
        return _opened[key]


def destination_of(file: Path | None) -> str:
    """Return in words where spans go; the collector's address stays out of it, for it may hold a key."""
    if _is_disabled():
        return "off: OTEL_SDK_DISABLED is set"
    wanted = [str(file)] if file is not None else []
    if _wants_collector():
        is_there = find_spec("opentelemetry.exporter") is not None
        wanted.append("the collector of OTEL_EXPORTER_OTLP_ENDPOINT" if is_there else "no collector: install [otel]")
    return f"to {' and '.join(wanted)}" if wanted else "off: set RULEGEN_TRACE_FILE or OTEL_EXPORTER_OTLP_ENDPOINT"


def _is_disabled() -> bool:
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def _wants_collector() -> bool:
    exporters = os.environ.get("OTEL_TRACES_EXPORTER", "otlp").split(",")
    return "otlp" in [name.strip() for name in exporters] and any(os.environ.get(name) for name in _ENDPOINTS)


def _of_this_process(profile: Profile) -> Tracing:
    # Whoever set a provider up has imported the SDK for it.
    sdk: Any = sys.modules.get(_SDK)
    if sdk is None:
        return NO_TRACING
    from opentelemetry import trace  # noqa: PLC0415 (imported by then)

    provider = trace.get_tracer_provider()
    if not isinstance(provider, sdk.TracerProvider):
        return NO_TRACING
    return _traced(provider, profile)


def _open(file: Path | None, to_collector: bool, profile: Profile) -> Tracing:
    try:
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource  # noqa: PLC0415 (slow, and an extra)
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor  # noqa: PLC0415
    except ImportError as error:
        if file is None:
            return NO_TRACING
        raise InputError(
            "RULEGEN_TRACE_FILE is set, but OpenTelemetry's SDK is not installed; pip install -e '.[otel]', or"
            " unset the variable",
            code="no_tracing_sdk",
        ) from error
    named = {} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: "rulegen"}
    # At its end a process flushes within a limit; the SDK's own exit handler would wait for a dead collector for long.
    provider = TracerProvider(resource=Resource.create(named), shutdown_on_exit=False)
    if file is not None:
        from rulegen_dagster.telemetry.trace_file import TraceFile  # noqa: PLC0415 (needs the SDK)

        # Span by span: a process that is killed has then written what had ended.
        provider.add_span_processor(SimpleSpanProcessor(TraceFile(file)))
    if to_collector and (exporter := _collector()) is not None:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    return _traced(provider, profile)


def _collector() -> Any:
    try:
        from rulegen_dagster.telemetry.collector import Collector  # noqa: PLC0415 (an extra)
    except ImportError:
        return None
    return Collector()


def _traced(provider: Any, profile: Profile) -> Tracing:
    from rulegen_dagster.telemetry.otel import OtelTracing  # noqa: PLC0415 (imports the API)

    flushing = threading.Thread()

    def flush() -> None:
        nonlocal flushing
        # The SDK's flush takes no notice of its own timeout. One that still waits for a collector is waited for once.
        if flushing.is_alive():
            return
        flushing = threading.Thread(target=provider.force_flush, name="flush-traces", daemon=True)
        flushing.start()
        flushing.join(FLUSH_S)

    return OtelTracing(provider.get_tracer(_NAME), profile=profile, flushed=flush)
