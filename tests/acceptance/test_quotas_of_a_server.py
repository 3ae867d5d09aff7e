"""Four `rulegen run` on one account of a server that enforces its limits: nothing is refused, nothing is overspent.

Each process works on a policy of its own, as people who share a key do: none of them is there only to help another,
and nothing but the account's quota in the ledger keeps one from calling while the others do.
"""

import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from llmock.ratelimit import requested_tokens

from rulegen_dagster.domain.identity import DEFAULT_TENANT
from rulegen_dagster.domain.quota_scope import QuotaScope
from rulegen_dagster.domain.retry import RetryPolicy
from rulegen_dagster.domain.states import AttemptOutcome, JobState
from rulegen_dagster.ledger.attempts import AttemptRecord
from rulegen_dagster.ledger.quota_schema import quota_reservation
from rulegen_dagster.ledger.store import Ledger, open_ledger
from tests.acceptance.processes import Ended, Rulegen, wait_until

# In full: 120 requests and 9,000 tokens a minute take 30 clauses in 17 minutes (QUOTA_OF_A_SERVER="120 9000 30 0").
RPM, TPM, CLAUSES, USED_PERCENT = map(int, os.environ.get("QUOTA_OF_A_SERVER", "1200 1200000 12 98").split())
PROCESSES = 4
MODEL, KEY, MAX_TOKENS = "small-model", "a-key", 150
SCOPE = QuotaScope.of_provider("openai-compatible", MODEL)
TENANT = QuotaScope.of_tenant(DEFAULT_TENANT)
NO_RULE = {"rules": [], "no_rule": {"reason": "no_obligation", "detail": "It informs."}, "proposed_facts": []}
CALL_TOKENS = 8_000
"""More than a call may need; what a tenant may use in a minute while it is held back."""
GIVE_UP_S = 120 + 60 * CLAUSES * CALL_TOKENS // TPM + 60 * CLAUSES // RPM

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(GIVE_UP_S + 60)]


@dataclass(frozen=True, kw_only=True)
class Left:
    """What the server had left of a minute, when the ledger was told of it (ms on its clock)."""

    requests: int
    tokens: int
    told_at: int


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The URL of a server that counts by itself, and refuses with 429 what is too much; no clause gives a rule."""
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
        url = f"http://127.0.0.1:{port}"
        _post(f"{url}/_llmock/scenario", behaviors=[{"type": "reply", "text": json.dumps(NO_RULE), "times": None}])
        yield url
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def real_ledger(ledger_url: str) -> Iterator[Ledger]:
    """The ledger on the database's own clock, which the processes share."""
    opened = open_ledger(ledger_url, RetryPolicy())
    yield opened
    opened.close()


def test_runs_that_share_an_account_keep_within_what_its_server_enforces(
    server: str, real_ledger: Ledger, ledger_url: str, tmp_path: Path
) -> None:
    rulegen = Rulegen(
        home=tmp_path / "home",
        variables={
            "RULEGEN_DATABASE_URL": ledger_url,
            "RULEGEN_PROVIDER": "openai-compatible",
            "RULEGEN_MODEL": MODEL,
            "RULEGEN_BASE_URL": f"{server}/v1",
            "RULEGEN_API_KEY": KEY,
            "RULEGEN_MAX_TOKENS": str(MAX_TOKENS),
            # The runs end where their calls do.
            "RULEGEN_VALIDATION_LIMIT": "0",
        },
    )
    left, ended = _run_all(rulegen, real_ledger, server)

    assert [one.exit_code for one in ended] == [1] * PROCESSES, ended
    assert [one.document["state"] for one in ended] == [JobState.VALIDATING] * PROCESSES
    journal = [one for one in _get(f"{server}/_llmock/requests")["requests"] if one["body"]["max_tokens"] == MAX_TOKENS]
    counted = [requested_tokens(one["body"], len(_as_sent(one["body"]))) for one in journal]
    made = _calls(real_ledger)
    took_s = (max(call.ended_at or 0 for call in made) - left.told_at) / 1000
    ideal_s = max((sum(counted) - left.tokens) * 60 / TPM, (len(journal) - left.requests) * 60 / RPM, 0)
    used = _used(real_ledger)
    print(
        f"\n{ledger_url.partition(':')[0]}: {len(journal)} requests of {sum(counted)} tokens by the server's count,"
        f" {used[-1][1]} by the ledger's, in {took_s:.1f} s; the limits make that {ideal_s:.1f} s"
    )
    assert Counter(one["status"] for one in journal) == {200: CLAUSES}
    assert Counter(call.outcome for call in made) == {AttemptOutcome.ACCEPTED: CLAUSES}
    assert len({call.worker for call in made}) == PROCESSES
    # It was no chance: each call had reserved more than the server counts.
    assert max(counted) < _least_reserved(real_ledger)
    assert all(tokens <= left.tokens + TPM * (at - left.told_at) / 60_000 for at, tokens in used)


def _run_all(rulegen: Rulegen, ledger: Ledger, server: str) -> tuple[Left, list[Ended]]:
    """Run each process on a policy of its own; return with what they began, and how they ended."""
    _hold_back(ledger)
    with ExitStack() as stack:
        processes = []
        for number in range(PROCESSES):
            name = f"policy-{number}.md"
            limits = (f"Meals of group {clause} are limited to $75 per day.\n" for clause in range(CLAUSES))
            (rulegen.home.parent / name).write_text("\n".join(list(limits)[number::PROCESSES]), encoding="utf-8")
            processes.append(stack.enter_context(rulegen.start("run", name, "--json")))
            stack.callback(processes[-1].kill)
        # One that has ended fails the test below, with what it said.
        wait_until(
            lambda: _stand_ready(ledger) or any(process.poll() is not None for process in processes),
            "the runs to stand ready",
        )
        left = _share_with_another_client(server, ledger)
        ledger.quotas.set(TENANT, {"tokens_per_minute": None})
        told = [process.communicate(timeout=GIVE_UP_S) for process in processes]
        ended = [
            Ended(exit_code=process.returncode, stdout=stdout, stderr=stderr)
            for process, (stdout, stderr) in zip(processes, told, strict=True)
        ]
    return left, ended


def _hold_back(ledger: Ledger) -> None:
    """Let the tenant's calls wait for most of a minute: a limit begins full, and a changed one keeps its level."""
    for tokens in (1, CALL_TOKENS):
        ledger.quotas.set(TENANT, {"tokens_per_minute": tokens})


def _stand_ready(ledger: Ledger) -> bool:
    jobs = ledger.reads.jobs()
    return len(jobs) == PROCESSES and {job.state for job in jobs} == {JobState.GENERATING_RULES}


def _share_with_another_client(server: str, ledger: Ledger) -> Left:
    """Let another client of the account use a part of the minute, and tell the ledger what that left of the limits."""
    requests, tokens = RPM, TPM
    if USED_PERCENT:
        chat = {"model": MODEL, "messages": [], "max_tokens": TPM * USED_PERCENT // 100}
        headers = _post(f"{server}/v1/chat/completions", **chat)
        requests, tokens = (int(headers[f"x-ratelimit-remaining-{kind}"]) for kind in ("requests", "tokens"))
    ledger.quotas.set(SCOPE, {"requests_per_minute": requests, "tokens_per_minute": tokens})
    state = ledger.quotas.set(SCOPE, {"requests_per_minute": RPM, "tokens_per_minute": TPM})
    return Left(requests=requests, tokens=tokens, told_at=state.now)


def _calls(ledger: Ledger) -> list[AttemptRecord]:
    made = (attempt for job in ledger.reads.jobs() for attempt in ledger.reads.attempts(job.job_id))
    return [attempt for attempt in made if attempt.provider_called]


def _least_reserved(ledger: Ledger) -> int:
    """Return the fewest tokens that a call has reserved."""
    with ledger.database.read() as connection:
        return int(connection.execute(sa.select(sa.func.min(quota_reservation.c.tokens))).scalar_one())


def _used(ledger: Ledger) -> list[tuple[int, int]]:
    """Return when each call was claimed (ms), and the tokens that it and all before it have used."""
    columns = quota_reservation.c.created_at, quota_reservation.c.used_tokens
    with ledger.database.read() as connection:
        rows = connection.execute(sa.select(*columns).order_by(columns[0])).all()
    return list(zip((row.created_at for row in rows), accumulate(row.used_tokens for row in rows), strict=True))


def _as_sent(body: Any) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def _post(url: str, **body: object) -> dict[str, str]:
    """Send a request; return the headers of its answer."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    with urllib.request.urlopen(urllib.request.Request(url, _as_sent(body), headers)) as answer:
        return {name.lower(): value for name, value in answer.getheaders()}


def _get(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url) as answer:
        read: dict[str, Any] = json.load(answer)
        return read


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
