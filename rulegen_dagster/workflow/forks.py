"""Successors: how a job that ended without a result is gone on with, and how a deadline is moved before that."""

from dataclasses import dataclass

from rulegen_dagster.domain.errors import StateError, SubmissionConflictError
from rulegen_dagster.domain.identity import check_submission_key, successor_keys
from rulegen_dagster.domain.states import JobState
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.workflow.intake import Intake
from rulegen_dagster.workflow.runtime import Runtime
from rulegen_dagster.workflow.traces import submission_told, successor_traced


@dataclass(frozen=True, kw_only=True)
class Extension:
    """What an extension came to: the job with its new deadline, or the successor of one that had expired."""

    job: JobRecord
    is_successor: bool


def fork_job(runtime: Runtime, job: JobRecord, key: str, *, deadline_ms: int | None, actor: str) -> Intake:
    """Open the successor of an ended job under a key, or return the one that is there.

    It takes over every accepted output, and has `deadline_ms` (None: as the settings say) from now. Raises
    `IdentityError` for a key that is not well formed, `StateError` and `SubmissionConflictError` as the ledger does.
    """
    check_submission_key(key)
    with successor_traced(runtime, job) as span:
        accepted = runtime.ledger.forks.fork(
            job.job_id,
            key,
            deadline_ms=deadline_ms or runtime.settings.deadline_ms,
            actor=actor,
            traceparent=span.context.traceparent if span.context else None,
        )
        successor = runtime.ledger.reads.job_by_id(accepted.job_id)
        submission_told(runtime, span, successor, existing=accepted.existing)
    return Intake(job=successor, existing=accepted.existing)


def extend_job(runtime: Runtime, job: JobRecord, *, by_ms: int | None, actor: str, reason: str) -> Extension:
    """Give a job more time: `by_ms`, or as much as the settings give a new one.

    An expired job never changes; its successor gets that time instead. Raises `StateError` for a job that ended in
    another way.
    """
    by_ms = by_ms or runtime.settings.deadline_ms
    try:
        runtime.ledger.deadlines.extend(job.job_id, by_ms=by_ms, actor=actor, reason=reason)
    except StateError:
        # It may have expired at this very moment.
        if runtime.ledger.reads.job_by_id(job.job_id).state is not JobState.EXPIRED:
            raise
        return Extension(job=_successor(runtime, job, by_ms, actor, reason), is_successor=True)
    return Extension(job=runtime.ledger.reads.job_by_id(job.job_id), is_successor=False)


def _successor(runtime: Runtime, job: JobRecord, deadline_ms: int, actor: str, reason: str) -> JobRecord:
    """Open the successor under the first key that is free, or that was taken for the same purpose."""
    with successor_traced(runtime, job) as span:
        for key in successor_keys(job.name.submission_key):
            try:
                accepted = runtime.ledger.forks.fork(
                    job.job_id,
                    key,
                    deadline_ms=deadline_ms,
                    actor=actor,
                    reason=f"extended: {reason}",
                    traceparent=span.context.traceparent if span.context else None,
                )
            except SubmissionConflictError:
                continue
            successor = runtime.ledger.reads.job_by_id(accepted.job_id)
            submission_told(runtime, span, successor, existing=accepted.existing)
            return successor
    raise StateError("no key for a successor is left; open it with 'rulegen fork' under a key of your own")
