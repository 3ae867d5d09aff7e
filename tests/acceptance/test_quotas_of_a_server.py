"""Several processes against a server that enforces its limits: nothing is refused, and nothing is overspent."""

import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path

import pytest
import sqlalchemy as sa

from rulegen_dagster.domain.identity import DEFAULT_TENANT
from rulegen_dagster.domain.quota import UNIT, CallCost, Estimate, estimate_call
from rulegen_dagster.domain.quota_scope import QuotaScope
from rulegen_dagster.domain.retry import RetryPolicy
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.ledger.quota_schema import quota, quota_reservation
from rulegen_dagster.ledger.store import Ledger, open_ledger
from rulegen_dagster.workflow.bench_job import open_bench_runtime, open_rule_stage
from tests.acceptance import quota_worker
from tests.acceptance.processes import wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]

# In full: 120 requests, 9,000 tokens and 90 items take a minute (QUOTA_OF_A_SERVER="120 9000 90 0").
RPM, TPM, ITEMS, USED_PERCENT = map(int, os.environ.get("QUOTA_OF_A_SERVER", "1200 24000 20 95").split())
PROCESSES, SLOTS = 4, 4
GIVE_UP_S = 200


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The URL of a server that counts by itself, and refuses with 429 what is too much."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "llmock.cli", "serve", "--host", "127.0.0.1", "--port", str(port)]
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--rpm", str(RPM), "--tpm", str(TPM), "--latency-ms", "50", "--log-level", "warning"],
            stdout=log,
            stderr=log,
        )
    try:
        wait_until(lambda: _answers(port), "the server to answer")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def real_ledger(ledger_url: str) -> Iterator[Ledger]:
    """The ledger on the database's own clock, which the processes share."""
    opened = open_ledger(ledger_url, RetryPolicy())
    yield opened
    opened.close()


def test_processes_that_share_an_account_keep_within_what_its_server_enforces(
    server: str, real_ledger: Ledger, ledger_url: str, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    runtime = open_bench_runtime(ledger_url, home)
    job_id = open_rule_stage(runtime, ITEMS, "limited")
    provider = runtime.ledger.reads.job_by_id(job_id).behaviour
    runtime.close()
    # The prompt's bytes by three, and more than the rest of the request: the server counts all its bytes by four.
    need = estimate_call(len(quota_worker.PROMPT), CallCost(overhead_tokens=30, max_tokens=quota_worker.MAX_TOKENS))
    assert need.tokens > len(quota_worker.body()) // 4 + quota_worker.MAX_TOKENS
    scope = QuotaScope.of_provider(provider["provider"], provider["model_id"])
    real_ledger.quotas.estimate(job_id, {Stage.GENERATE_RULES: Estimate(tokens=need.tokens, cost_micros=0)})
    real_ledger.quotas.set(scope, {"requests_per_minute": RPM, "tokens_per_minute": TPM})
    real_ledger.tenants.set(DEFAULT_TENANT, limit=0)
    answers = _work(server, real_ledger, scope, job_id, url=ledger_url, home=home)

    statuses = Counter(answers)
    journal = _get(f"{server}/_llmock/requests")
    refused = [one for one in journal["requests"] if one["status"] == 429]
    print(f"{ITEMS} items, {PROCESSES} processes, {ledger_url.partition(':')[0]}: {dict(statuses)}")
    assert statuses == {"200": ITEMS}
    assert refused == []
    assert _most_over(real_ledger) <= 0


def _work(server: str, ledger: Ledger, scope: QuotaScope, job_id: int, *, url: str, home: Path) -> list[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RULEGEN_")}
    environment = {**inherited, "RULEGEN_HOME": str(home), "RULEGEN_DATABASE_URL": url, "RULEGEN_SLOTS": str(SLOTS)}
    logs = [home / f"worker-{number}.log" for number in range(PROCESSES)]
    with ExitStack() as stack:
        workers = []
        for log in logs:
            worker = subprocess.Popen(
                [sys.executable, str(Path(quota_worker.__file__)), server, str(job_id)],
                env=environment,
                stdout=stack.enter_context(log.open("wb")),
                stderr=stack.enter_context(log.with_suffix(".err").open("wb")),
            )
            stack.callback(_end, worker)
            workers.append(worker)
        # A tenant that may have nothing in flight: they begin at one time.
        wait_until(lambda: all(log.read_text() for log in logs), "the workers to stand ready")
        _use_up_some(server, ledger, scope)
        ledger.tenants.set(DEFAULT_TENANT, no_limit=True)
        ended = [worker.wait(timeout=GIVE_UP_S) for worker in workers]
        assert ended == [0] * PROCESSES, "".join(log.with_suffix(".err").read_text() for log in logs)
    return [line for log in logs for line in log.read_text().split() if line != quota_worker.READY]


def _use_up_some(server: str, ledger: Ledger, scope: QuotaScope) -> None:
    """Let another client of the account use most of a minute, which the ledger is told: a test need not take that."""
    if not USED_PERCENT:
        return
    tokens = TPM * USED_PERCENT // 100
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": tokens}).encode()
    headers = {"Content-Type": "application/json", "Authorization": "Bearer k"}
    request = urllib.request.Request(f"{server}/v1/chat/completions", body, headers)
    with urllib.request.urlopen(request) as answer:
        left = int(answer.headers["x-ratelimit-remaining-tokens"])
    level = {"token_level": left * UNIT, "refilled_at": ledger.database.now}
    with ledger.database.write() as connection:
        connection.execute(sa.update(quota).where(quota.c.scope == str(scope)).values(level))


def _most_over(ledger: Ledger) -> int:
    """Return by how much (tokens) the calls' use since the first claim exceeded a full bucket and its refill."""
    with ledger.database.read() as connection:
        rows = connection.execute(
            sa.select(quota_reservation.c.created_at, quota_reservation.c.used_tokens).order_by(
                quota_reservation.c.created_at
            )
        ).all()
    used = accumulate(row.used_tokens for row in rows)
    times = [row.created_at - rows[0].created_at for row in rows]
    return max(int(total - TPM - TPM * time // 60_000) for total, time in zip(used, times, strict=True))


def _get(url: str) -> dict[str, list[dict[str, int]]]:
    with urllib.request.urlopen(url) as answer:
        read: dict[str, list[dict[str, int]]] = json.load(answer)
        return read


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _end(worker: subprocess.Popen[bytes]) -> None:
    worker.kill()
    worker.wait()
