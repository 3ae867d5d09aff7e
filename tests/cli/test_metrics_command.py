"""`rulegen metrics`: once, as JSON, and for a scraper."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Command, document
from tests.telemetry.prometheus_text import read_exposition


def test_metrics_are_printed_as_prometheus_reads_them(rulegen: Command, policy_file: Path) -> None:
    rulegen("submit", str(policy_file), "--key", "k")

    text, report = rulegen("metrics"), document(rulegen("metrics", "--json"))

    read = read_exposition(text.stdout)
    assert text.exit_code == 0
    assert read["rulegen_jobs"].samples[(("state", "extracting"),)] == 1
    assert [metric["name"] for metric in report["metrics"]] == list(read)
    jobs = next(metric for metric in report["metrics"] if metric["name"] == "rulegen_jobs")
    assert {"labels": {"state": "extracting"}, "value": 1} in jobs["samples"]
    assert "default" not in text.stdout


def test_tenants_are_a_label_where_they_are_asked_for(rulegen: Command, policy_file: Path) -> None:
    rulegen("submit", str(policy_file), "--key", "k")

    read = read_exposition(rulegen("metrics", "--by-tenant").stdout)

    assert read["rulegen_jobs"].samples == {(("state", "extracting"), ("tenant", "default")): 1}


@pytest.mark.parametrize("place", ["9464", "127.0.0.1:", "127.0.0.1:many", "127.0.0.1:70000"])
def test_a_place_to_serve_at_that_is_none_is_wrong_usage(rulegen: Command, place: str) -> None:
    assert rulegen("metrics", "--serve", place).exit_code == 2


def test_a_port_that_is_taken_is_a_clear_error(rulegen: Command) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()

        result = rulegen("metrics", "--serve", f"127.0.0.1:{taken.getsockname()[1]}", "--json")

    assert (result.exit_code, document(result)["error"]["code"]) == (1, "cannot_listen")


@pytest.mark.acceptance
def test_a_scraper_is_answered_until_the_process_is_told_to_end(home: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "rulegen_dagster", "metrics", "--serve", ":0", "--json"],
        env=os.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            served = json.loads(process.stdout.readline())["serving"]
            scraper = http.client.HTTPConnection(served.removeprefix("http://").partition("/")[0], timeout=30)
            answers = {}
            for path in ("/metrics", "/", "/metrics?x=1"):
                scraper.request("GET", path)
                answer = scraper.getresponse()
                answers[path] = (answer.status, answer.headers["Content-Type"], answer.read().decode())
            scraper.close()
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()

    status, content_type, text = answers["/metrics"]
    assert served.startswith("http://127.0.0.1:")
    assert (status, content_type) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert read_exposition(text)["rulegen_ledger_info"].kind == "gauge"
    assert [answers[path][0] for path in ("/", "/metrics?x=1")] == [404, 200]
    assert (process.returncode, errors) == (0, "")
