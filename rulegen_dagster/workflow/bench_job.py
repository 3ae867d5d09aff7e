"""What a measurement runs: a job of many equal rule items, and calls that take a given time and return 1 KB."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from rulegen_dagster.domain.errors import StateError
from rulegen_dagster.domain.identity import DEFAULT_TENANT
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.domain.work import Claim, Offer
from rulegen_dagster.ledger.claims import Scope
from rulegen_dagster.settings import Settings
from rulegen_dagster.workflow.runtime import Runtime, open_runtime

OUTPUT = '{"rule":"' + "x" * 1_000 + '"}'
"""What each call returns."""

_CLAUSE = "Meals are limited to ${amount} per day."


def open_bench_runtime(url: str, folder: Path) -> Runtime:
    """Open a runtime on a scratch ledger, whatever the environment says; uploads and blobs go into `folder`."""
    defaults = {name: field.default for name, field in Settings.model_fields.items()}
    return open_runtime(Settings(**{**defaults, "home": folder, "database_url": url}))


def open_rule_stage(runtime: Runtime, count: int, key: str) -> int:
    """Submit a policy of `count` clauses and take it to where its rule items are open; return the job's number."""
    # Only whoever makes jobs needs the parser; a resumed worker starts without it.
    from rulegen_dagster.workflow.documents import accept, prepare  # noqa: PLC0415
    from rulegen_dagster.workflow.intake import submit_upload  # noqa: PLC0415

    data = "\n\n".join(_CLAUSE.format(amount=number) for number in range(1, count + 1)).encode()
    job = submit_upload(runtime, data, "bench.md", tenant=DEFAULT_TENANT, key=key, actor="bench").job
    for stage in (Stage.PARSE, Stage.RETRIEVE):
        prepared = prepare(runtime, job.job_id, stage)
        if not isinstance(prepared, Offer):
            raise StateError(f"the bench's own job did not reach {stage}")
        accept(runtime, prepared)
    return job.job_id


def rule_scope(job_id: int) -> Scope:
    """Return the scope of one job's rule items."""
    return Scope(stages=(Stage.GENERATE_RULES,), job_ids=(job_id,))


def timed_calls(latency_s: float, told: Callable[[Claim], None]) -> Callable[[Claim], Awaitable[Offer]]:
    """Return an attempt that takes `latency_s`; `told` hears of each call as it begins."""

    async def attempt(claim: Claim) -> Offer:
        told(claim)
        if latency_s:
            await asyncio.sleep(latency_s)
        return Offer(claim=claim, output=OUTPUT, provider="bench", provider_called=True)

    return attempt
