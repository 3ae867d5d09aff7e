"""Whether anything is traced, and where to, as the environment says."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SpanExportResult

from rulegen_dagster.domain.errors import InputError
from rulegen_dagster.telemetry.collector import Collector
from rulegen_dagster.telemetry.opening import destination_of, open_tracing
from rulegen_dagster.telemetry.semconv import Key, Profile, Work
from rulegen_dagster.telemetry.tracing import NO_TRACING

VARIABLES = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_SDK_DISABLED",
    "OTEL_TRACES_EXPORTER",
    "OTEL_SERVICE_NAME",
)


@pytest.fixture(autouse=True)
def _without_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_a_process_that_traces_nothing_imports_nothing_of_it(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from rulegen_dagster.settings import Settings;"
        " from rulegen_dagster.workflow.runtime import open_runtime; import rulegen_dagster.workflow.drive;"
        f" opened = open_runtime(Settings(home=Path({str(tmp_path)!r}))); opened.close();"
        " print([name for name in sys.modules if name.split('.')[0] == 'opentelemetry'], opened.tracing.is_on)"
    )

    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert answer.stdout.strip() == "[] False"


def test_spans_go_to_the_named_file_line_by_line(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"

    tracing = open_tracing(file, Profile.OTEL_1_36)
    with tracing.span(Work.INTAKE, {Key.UPLOAD_BYTES: 7}) as span:
        context = span.context
    (line,) = file.read_text(encoding="utf-8").splitlines()

    written = json.loads(line)
    assert context is not None
    assert (written["name"], written["attributes"]) == ("rulegen.intake", {"rulegen.upload.bytes": 7})
    assert written["context"]["trace_id"] == f"0x{context.trace_id}"
    assert written["resource"]["attributes"]["service.name"] == "rulegen"
    assert file.stat().st_mode & 0o077 == 0


def test_one_process_opens_tracing_once(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"

    assert open_tracing(file, Profile.OTEL_1_36) is open_tracing(file, Profile.OTEL_1_36)


def test_an_error_is_told_by_its_code_and_never_by_its_text(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    tracing = open_tracing(file, Profile.OTEL_1_36)

    def refused() -> None:
        with tracing.span(Work.INTAKE, {}):
            raise InputError("the file holds Zugzwang", code="refused_so")

    def broken() -> None:
        with tracing.span(Work.PUBLISH, {}):
            raise ValueError("Zugzwang")

    for call, error in ((refused, InputError), (broken, ValueError)):
        with pytest.raises(error):
            call()

    text = file.read_text(encoding="utf-8")
    first, second = map(json.loads, text.splitlines())
    assert "Zugzwang" not in text
    assert (first["attributes"]["error.type"], second["attributes"]["error.type"]) == ("refused_so", "ValueError")
    assert first["status"] == second["status"] == {"status_code": "ERROR"}
    assert first["events"] == []


def test_a_file_that_cannot_be_written_is_refused_with_the_variable_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="RULEGEN_TRACE_FILE") as refusal:
        open_tracing(tmp_path / "absent" / "trace.jsonl", Profile.OTEL_1_36)

    assert refusal.value.code == "trace_file"


def test_a_disabled_sdk_traces_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")

    assert open_tracing(tmp_path / "trace.jsonl", Profile.OTEL_1_36) is NO_TRACING


@pytest.fixture
def collector() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """A collector on this host; what it was sent, as path and body."""
    received: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", received
    server.shutdown()
    thread.join()
    server.server_close()


def test_spans_go_to_the_collector_by_the_end_of_the_process(
    collector: tuple[str, list[tuple[str, bytes]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, received = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)

    tracing = open_tracing(None, Profile.GENAI_REPO)
    with tracing.span(Work.CHAT, {Key.PROMPT_VERSION: "3"}, target="small"):
        pass
    tracing.flush()

    ((path, body),) = received
    sent = ExportTraceServiceRequest.FromString(body).resource_spans[0].scope_spans[0].spans[0]
    assert path == "/v1/traces"
    assert (sent.name, sent.kind) == ("chat small", sent.SPAN_KIND_CLIENT)
    assert {pair.key: pair.value.string_value for pair in sent.attributes} == {"gen_ai.prompt.version": "3"}


def test_a_collector_that_is_not_there_is_told_of_once_and_without_its_address(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9/zugzwang")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.1")
    collector = Collector()

    results = {collector.export([]) for _ in range(2)}

    assert results == {SpanExportResult.FAILURE}
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in caplog.text
    assert "zugzwang" not in caplog.text


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({}, "off: set RULEGEN_TRACE_FILE or OTEL_EXPORTER_OTLP_ENDPOINT"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://zugzwang"}, "to the collector of OTEL_EXPORTER_OTLP_ENDPOINT"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://zugzwang", "OTEL_TRACES_EXPORTER": "none"}, "off: set"),
        ({"OTEL_SDK_DISABLED": "TRUE"}, "off: OTEL_SDK_DISABLED is set"),
    ],
)
def test_the_doctor_can_say_where_spans_go(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], told: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert destination_of(None).startswith(told)
