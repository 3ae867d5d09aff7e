"""The collector: spans over OTLP, as OpenTelemetry's variables configure it. Needs the extra `otel`."""

import logging
from collections.abc import Sequence
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

_EXPORTERS_LOG: Final = "opentelemetry.exporter.otlp"
_log = logging.getLogger(__name__)


class Collector(OTLPSpanExporter):
    """Sends spans, and says in one line, once, that it cannot.

    The exporter's own lines are many, and quote the collector's address, which may hold a key.
    """

    def __init__(self) -> None:
        """Read the variables; nothing is sent yet."""
        super().__init__()
        self._is_told = False
        logging.getLogger(_EXPORTERS_LOG).setLevel(logging.CRITICAL + 1)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send the spans; those that cannot be sent are lost, and the work goes on."""
        result = super().export(spans)
        if result is not SpanExportResult.SUCCESS and not self._is_told:
            self._is_told = True
            _log.warning(
                "spans could not be sent to the collector, and are lost; look at OTEL_EXPORTER_OTLP_ENDPOINT and"
                " OTEL_EXPORTER_OTLP_HEADERS"
            )
        return result
