"""Driving: take one job through its stages in this process, until a person has to decide or nothing can move."""

import asyncio
import time
from collections.abc import Callable

from rulegen_dagster.domain.states import TERMINAL_JOB_STATES, JobState, Stage
from rulegen_dagster.ledger.claims import Scope
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.workflow.documents import NotReady, Reused, accept, prepare
from rulegen_dagster.workflow.engine import Engine, Outcome
from rulegen_dagster.workflow.explain import DEADLINE, Reason, reason_of
from rulegen_dagster.workflow.generate import Generation
from rulegen_dagster.workflow.outages import ride_out
from rulegen_dagster.workflow.runtime import Runtime
from rulegen_dagster.workflow.stopping import Stop

GENERATING_STAGES = (Stage.GENERATE_RULES, Stage.GENERATE_TESTS)
_DOCUMENT_STAGE_OF = {
    JobState.EXTRACTING: Stage.PARSE,
    JobState.RETRIEVING: Stage.RETRIEVE,
    JobState.VALIDATING: Stage.VALIDATE,
}
_POLL_S = 0.5
_SHORTEST_POLL_S = 0.01


def drive(
    runtime: Runtime,
    job: JobRecord,
    *,
    observe: Callable[[Outcome], None],
    on_wait: Callable[[Reason], None],
    sleep: Callable[[float], None] = time.sleep,
    stop: Stop | None = None,
) -> JobRecord:
    """Run a job until it waits for a person, has ended, is blocked, or `stop` is requested; return it as it then is.

    A lease that another process left, or a retry that is due later, is waited for here: this is the foreground
    process of a user. `on_wait` is told each time. A ledger that is out of reach for a moment is come back to; raises
    `LedgerError` where it stays away.
    """
    reads, job_id = runtime.ledger.reads, job.job_id
    while True:
        before, job = ride_out(lambda: (reads.revision(job_id), reads.job_by_id(job_id)))
        if stop is not None and stop.is_requested:
            return job
        _step(runtime, job, observe, stop)
        if ride_out(lambda: reads.revision(job_id)) != before:
            # Whoever moved it, this process or another: what was read of the job is out of date.
            continue
        reason = _reason(runtime, job)
        if reason.code == DEADLINE and job.state not in TERMINAL_JOB_STATES:
            # Whether this expires it, or somebody was first or has moved the deadline: the job is another by now.
            ride_out(lambda: runtime.ledger.deadlines.expire(job_id, actor=runtime.worker))
            continue
        # A publisher's lease is not waited for here: publishing is the caller's, and finds a lost publisher by itself.
        if reason.next_at is None or job.state is JobState.EXECUTING:
            return job
        on_wait(reason)
        pause = (reason.next_at - ride_out(reads.now)) / 1000
        sleep(min(max(pause, _SHORTEST_POLL_S), _POLL_S))


def _reason(runtime: Runtime, job: JobRecord) -> Reason:
    return ride_out(lambda: reason_of(runtime, job))


def _step(runtime: Runtime, job: JobRecord, observe: Callable[[Outcome], None], stop: Stop | None) -> None:
    if job.state in (JobState.GENERATING_RULES, JobState.GENERATING_TESTS):
        generate(runtime, Scope(stages=GENERATING_STAGES, job_ids=(job.job_id,)), observe=observe, stop=stop)
    elif job.state in _DOCUMENT_STAGE_OF:
        prepared = prepare(runtime, job.job_id, _DOCUMENT_STAGE_OF[job.state])
        if not isinstance(prepared, (Reused, NotReady)):
            accept(runtime, prepared)


def generate(
    runtime: Runtime,
    scope: Scope,
    *,
    observe: Callable[[Outcome], None],
    slots: int | None = None,
    stop: Stop | None = None,
) -> None:
    """Drain a scope of generating stages with bounded slots, until `stop` is requested.

    Raises `ProviderConfigError` or `VocabularyError`, before any claim, where this release lacks what a job of the
    scope froze.
    """
    generation = Generation(runtime)
    ride_out(lambda: generation.load(scope.job_ids or ()))
    engine = Engine(runtime, generation.attempt, slots=slots or runtime.settings.slots, observe=observe, stop=stop)
    asyncio.run(engine.drain(scope))
