"""A worker whose calls go to a real server that counts requests and tokens; run as `python … URL JOB`.

It drains the job's rule items like `rulegen run` does, and says when it is ready and what the server answered, one
word on each line.
"""

import asyncio
import http.client
import json
import sys
import time
from urllib.parse import urlsplit

from rulegen_dagster.domain.quota import Remaining
from rulegen_dagster.domain.states import AttemptOutcome, Stage, WorkState
from rulegen_dagster.domain.work import Claim, FailedAttempt, Offer, Usage
from rulegen_dagster.settings import Settings
from rulegen_dagster.workflow.bench_job import rule_scope
from rulegen_dagster.workflow.engine import Engine
from rulegen_dagster.workflow.quotas import quota_hold
from rulegen_dagster.workflow.runtime import open_runtime

MAX_TOKENS = 150
PROMPT = "Draft rules for this clause: meals are limited to 50 dollars per day. " * 2
READY = "ready"
_POLL_S = 0.2


def body() -> bytes:
    """Return what each call sends."""
    messages = [{"role": "user", "content": PROMPT}]
    return json.dumps({"model": "m", "messages": messages, "max_tokens": MAX_TOKENS}).encode()


def post(url: str) -> tuple[int, dict[str, str], dict[str, object]]:
    """Make one call; return status, headers and body."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=30)
    try:
        headers = {"Content-Type": "application/json", "Authorization": "Bearer k"}
        connection.request("POST", "/v1/chat/completions", body(), headers)
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, found, json.loads(answer.read())
    finally:
        connection.close()


def work(url: str, job_id: int) -> None:
    """Drain the job until nothing of it is left to do."""
    runtime = open_runtime(Settings())

    async def attempt(claim: Claim) -> Offer | FailedAttempt:
        status, headers, answer = await asyncio.to_thread(post, url)
        print(status, flush=True)
        told = Remaining(
            requests=int(headers["x-ratelimit-remaining-requests"]), tokens=int(headers["x-ratelimit-remaining-tokens"])
        )
        if status == 200:
            counted = answer["usage"]
            assert isinstance(counted, dict)
            usage = Usage(tokens_in=counted["prompt_tokens"], tokens_out=counted["completion_tokens"], remaining=told)
            return Offer(claim=claim, output="{}", provider="p", provider_called=True, usage=usage)
        return FailedAttempt(
            claim=claim,
            outcome=AttemptOutcome.RATE_LIMITED,
            error_code="provider_rate_limited",
            message="too many requests",
            provider_called=True,
            usage=Usage(remaining=told),
            retry_after_ms=int(1_000 * float(headers.get("retry-after", "1"))),
        )

    print(READY, flush=True)
    while True:
        engine = Engine(runtime, attempt, slots=runtime.settings.slots, observe=lambda _outcome: None)
        asyncio.run(engine.drain(rule_scope(job_id)))
        counts = runtime.ledger.reads.stage_counts(job_id)[Stage.GENERATE_RULES]
        if not any(counts.get(state) for state in (WorkState.PENDING, WorkState.RUNNING, WorkState.WAITING)):
            runtime.close()
            return
        hold = quota_hold(runtime, job_id, Stage.GENERATE_RULES)
        wait_ms = hold.refusal.wait_ms if hold else None
        time.sleep(min(_POLL_S, (wait_ms or 0) / 1000 + 0.01))


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]))
