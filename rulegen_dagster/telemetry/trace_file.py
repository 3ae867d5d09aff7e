"""The trace file: each span that has ended on a line of its own, as the SDK's JSON. Needs the extra `otel`."""

import os
from collections.abc import Sequence
from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from rulegen_dagster.domain.errors import InputError


class TraceFile(SpanExporter):
    """Appends to one file; several processes may do so at once, because each line is one write."""

    def __init__(self, path: Path) -> None:
        """Open the file, or make it for its owner alone. Raises `InputError`."""
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InputError(
                f"the trace file {path} cannot be written: {error.strerror}; name another in RULEGEN_TRACE_FILE",
                code="trace_file",
            ) from error

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write the spans; where that fails (a full disk), they are lost and the work goes on."""
        try:
            for span in spans:
                os.write(self._file, (span.to_json(indent=None) + "\n").encode())
        except OSError:
            return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS
