"""Deadlines at work: what a call may take, which waits end too late, and jobs that nobody works on any more."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rulegen_dagster.domain.deadline import call_budget_ms, duration, is_enough, left_ms, remaining_ms
from rulegen_dagster.domain.retry import RetryDecision
from rulegen_dagster.domain.states import TERMINAL_JOB_STATES, AttemptOutcome, JobState, WorkState
from rulegen_dagster.domain.text import moment
from rulegen_dagster.domain.work import Claim, FailedAttempt
from rulegen_dagster.ledger.endings import BEGUN
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.workflow.runtime import Runtime

NO_TIME_LEFT = "no_time_left"
"""The error code of an attempt that was given up before its call, for want of time."""


def budget_of(runtime: Runtime, claim: Claim) -> int | None:
    """Return how long (ms) a call under this claim may take from now on; None where no useful call fits any more.

    Measured by the worker's own clock since it claimed the item, so that a call that begins late gets less.
    """
    left = _left(runtime, claim)
    if not is_enough(left, runtime.ledger.deadlines.policy):
        return None
    return call_budget_ms(left, runtime.settings.call_timeout_ms)


def given_up(claim: Claim) -> FailedAttempt:
    """Return the end of an attempt for whose call no time was left: nobody was called."""
    return FailedAttempt(
        claim=claim,
        outcome=AttemptOutcome.CANCELLED,
        error_code=NO_TIME_LEFT,
        message="the job's deadline left no time for the call",
    )


def too_long_waits(runtime: Runtime, failures: Iterable[tuple[FailedAttempt, RetryDecision]]) -> dict[int, int]:
    """Return the jobs whose items would wait for a retry until no useful call fits before the deadline.

    By number, with the longest wait (ms); as far as this process knows, for the deadline may have moved since.
    """
    waits: dict[int, int] = {}
    for failed, decision in failures:
        if decision.state is not WorkState.WAITING:
            continue
        wait_ms, job_id = decision.delay_ms or 0, failed.claim.key.job_id
        if not is_enough(_left(runtime, failed.claim), runtime.ledger.deadlines.policy, wait_ms=wait_ms):
            waits[job_id] = max(wait_ms, waits.get(job_id, 0))
    return waits


def expire_instead(runtime: Runtime, waits: Mapping[int, int]) -> None:
    """Expire jobs instead of waiting, where the ledger agrees that the wait would end too late.

    Called before the failures are booked, so that no retry is ever scheduled behind a deadline: of an item that ended
    with its job, the booking tells the attempt alone.
    """
    for job_id, wait_ms in sorted(waits.items()):
        runtime.ledger.deadlines.expire(job_id, actor=runtime.worker, wait_ms=wait_ms)


def expire_overdue(runtime: Runtime, job_ids: Iterable[int] | None = None, *, actor: str) -> Sequence[JobRecord]:
    """Expire the jobs that have too little time left, of some or of all; return those that this call expired."""
    overdue = runtime.ledger.deadlines.overdue()
    wanted = overdue if job_ids is None else sorted(set(job_ids).intersection(overdue))
    expired = [job_id for job_id in wanted if runtime.ledger.deadlines.expire(job_id, actor=actor)]
    return [runtime.ledger.reads.job_by_id(job_id) for job_id in expired]


def is_overdue(runtime: Runtime, job: JobRecord, now: int) -> bool:
    """Return whether a job that has not ended has too little time left to go on, and is not being published."""
    policy = runtime.ledger.deadlines.policy
    if job.state in TERMINAL_JOB_STATES or job.deadline_at is None:
        return False
    if is_enough(remaining_ms(job.deadline_at, now, policy.margin_ms), policy):
        return False
    return job.state is not JobState.EXECUTING or not any(
        action.state in BEGUN for action in runtime.ledger.reads.actions(job.job_id)
    )


def deadline_text(runtime: Runtime, job: JobRecord, now: int) -> str:
    """Return in one sentence that a job has expired, or is about to, and how to go on."""
    if job.state in TERMINAL_JOB_STATES:
        return (
            f"the job is {job.state}: {job.end_reason or 'no reason was given'}; 'rulegen extend {job.name} --reason …'"
            " goes on in a successor that keeps every accepted output"
        )
    policy = runtime.ledger.deadlines.policy
    return (
        f"the deadline is {moment(job.deadline_at, now)}; less its margin of {duration(policy.margin_ms)} that leaves"
        f" no time for a useful call, and the job expires; 'rulegen extend {job.name} --reason …' moves the deadline"
    )


def deadline_evidence(runtime: Runtime, job: JobRecord, at: int) -> dict[str, Any]:
    """Return the figures behind a deadline: what of it was left for calls at a time (ms on the ledger's clock)."""
    policy = runtime.ledger.deadlines.policy
    if job.deadline_at is None:
        return {}
    return {
        "deadline_ms": job.deadline_at,
        "margin": duration(policy.margin_ms),
        "least_call": duration(policy.least_call_ms),
        "left": duration(remaining_ms(job.deadline_at, at, policy.margin_ms)),
    }


def _left(runtime: Runtime, claim: Claim) -> int | None:
    return left_ms(claim.remaining_ms, runtime.monotonic() - claim.claimed_s)
