"""`metrics`: what the ledger counts, once or for a scraper."""

import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Annotated, Any

import typer

from rulegen_dagster.cli.output import JsonFlag, err, out, plain, print_json, print_json_line, reports_errors, runtime
from rulegen_dagster.domain.errors import InputError, LedgerError
from rulegen_dagster.telemetry.exposition import CONTENT_TYPE, Metric
from rulegen_dagster.workflow.metrics import LedgerMetrics

_PATH = "/metrics"
_PATIENCE_S = 10


@reports_errors
def metrics(
    serve: Annotated[
        str | None,
        typer.Option("--serve", metavar="HOST:PORT", help="Answer GET /metrics until Ctrl-C; ':9464' is on 127.0.0.1."),
    ] = None,
    by_tenant: Annotated[
        bool, typer.Option("--by-tenant", help="Make tenants a label; whoever scrapes then sees who they are.")
    ] = False,
    json_output: JsonFlag = False,
) -> None:
    """Print jobs, items, attempts, tokens, cost, waits and quotas as Prometheus reads them.

    Everything is counted in the ledger, over all processes that ever worked on it. With --serve, one long-lived
    process answers scrapes; it asks for no password, so leave it on this host or behind something that does.

    \b
    Examples:
      rulegen metrics
      rulegen metrics --by-tenant --json
      rulegen metrics --serve 127.0.0.1:9464
    """
    with runtime() as opened:
        counted = LedgerMetrics(opened, by_tenant=by_tenant)
        if serve is not None:
            _serve(counted, serve, json_output=json_output)
        elif json_output:
            print_json({"metrics": [_report(metric) for metric in counted.metrics()]})
        else:
            typer.echo(counted.text(), nl=False)


def _report(metric: Metric) -> dict[str, Any]:
    return {
        "name": metric.name,
        "type": metric.kind.value,
        "help": metric.help,
        "samples": [
            {"labels": dict(zip(metric.labels, values, strict=True)), "value": number}
            for values, number in sorted(metric.samples.items())
        ],
    }


def _serve(counted: LedgerMetrics, place: str, *, json_output: bool) -> None:
    host, port = _address(place)
    try:
        server = ThreadingHTTPServer((host, port), _handler(counted))
    except OSError as error:
        raise InputError(
            f"{host}:{port} cannot be listened on: {error.strerror}; give another --serve HOST:PORT",
            code="cannot_listen",
        ) from error
    url = f"http://{host}:{server.server_port}{_PATH}"
    # A container is stopped by a signal that Python would die of in the middle of an answer.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: threading.Thread(target=server.shutdown, daemon=True).start())
    if json_output:
        print_json_line({"serving": url})
    else:
        out().print(plain(f"serving {url}; Ctrl-C ends it"))
    with server:
        server.serve_forever(poll_interval=0.2)


def _address(place: str) -> tuple[str, int]:
    host, colon, port = place.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise typer.BadParameter("--serve takes HOST:PORT, as in 127.0.0.1:9464")
    return host or "127.0.0.1", int(port)


def _handler(counted: LedgerMetrics) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers one path; whatever else is asked for is not here."""

        server_version = "rulegen"
        sys_version = ""
        # A connection that says nothing does not hold its thread for ever.
        timeout = _PATIENCE_S

        def do_GET(self) -> None:
            """Answer a scrape."""
            if self.path.partition("?")[0] != _PATH:
                self._answer(404, f"only {_PATH} is here\n", "text/plain; charset=utf-8")
                return
            try:
                text = counted.text()
            except LedgerError as error:
                err().print(plain(f"the ledger cannot be counted: {error.message}"))
                self._answer(503, "the ledger is out of reach\n", "text/plain; charset=utf-8")
                return
            self._answer(200, text, CONTENT_TYPE)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
            """Say nothing of requests that went well."""

        def _answer(self, status: int, text: str, content_type: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler
