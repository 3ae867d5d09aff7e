"""Driving: take one job through its stages in this process, until a person has to decide or nothing can move."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from rulegen_dagster.domain.states import TERMINAL_JOB_STATES, JobState, Stage
from rulegen_dagster.ledger.claims import Scope
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.workflow.behaviours import check, held_up_by
from rulegen_dagster.workflow.documents import NotReady, Reused, accept, prepare
from rulegen_dagster.workflow.engine import Engine, Outcome
from rulegen_dagster.workflow.explain import DEADLINE, Reason, reason_of
from rulegen_dagster.workflow.generate import Generation
from rulegen_dagster.workflow.outages import ride_out
from rulegen_dagster.workflow.quotas import MENDED_BY_A_PERSON, stop_if_spent
from rulegen_dagster.workflow.runtime import Runtime
from rulegen_dagster.workflow.stopping import Stop
from rulegen_dagster.workflow.traces import engine_traced

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

    A lease that another process left, a retry that is due later, or a quota that refills is waited for here: this is
    the foreground process of a user. An account that its provider refuses is a person's to mend, and not waited for.
    `on_wait` is told each time. A ledger that is out of reach for a moment is come back to; raises
    `LedgerError` where it stays away.
    """
    reads, job_id = runtime.ledger.reads, job.job_id
    while True:
        before, job = ride_out(lambda: (reads.revision(job_id), reads.job_by_id(job_id)))
        if stop is not None and stop.is_requested:
            return job
        held_up = _step(runtime, job, observe, stop)
        if ride_out(lambda: reads.revision(job_id)) != before:
            # Whoever moved it, this process or another: what was read of the job is out of date.
            continue
        reason = held_up or _reason(runtime, job)
        if reason.code == DEADLINE and job.state not in TERMINAL_JOB_STATES:
            # Whether this expires it, or somebody was first or has moved the deadline: the job is another by now.
            ride_out(lambda: runtime.ledger.deadlines.expire(job_id, actor=runtime.worker))
            continue
        if _is_stopped(runtime, job_id, reason):
            continue
        # A publisher's lease is not waited for here: publishing is the caller's, and finds a lost publisher by itself.
        if reason.next_at is None or job.state is JobState.EXECUTING or reason.code in MENDED_BY_A_PERSON:
            return job
        on_wait(reason)
        pause = (reason.next_at - ride_out(reads.now)) / 1000
        sleep(min(max(pause, _SHORTEST_POLL_S), _POLL_S))


def _is_stopped(runtime: Runtime, job_id: int, reason: Reason) -> bool:
    hold = reason.hold
    return hold is not None and ride_out(lambda: stop_if_spent(runtime, job_id, hold))


def _reason(runtime: Runtime, job: JobRecord) -> Reason:
    return ride_out(lambda: reason_of(runtime, job))


def _step(runtime: Runtime, job: JobRecord, observe: Callable[[Outcome], None], stop: Stop | None) -> Reason | None:
    """Do what can be done of a job now; return what keeps this release from going on with it, if anything does."""
    checked = ride_out(lambda: check(runtime, job.job_id))
    if not checked.may_go_on:
        held_up = ride_out(lambda: held_up_by(runtime, checked))
        return Reason(code=held_up.code, text=held_up.text, next_at=held_up.next_at)
    if job.state in (JobState.GENERATING_RULES, JobState.GENERATING_TESTS):
        generate(runtime, Scope(stages=GENERATING_STAGES, job_ids=(job.job_id,)), observe=observe, stop=stop)
    elif job.state in _DOCUMENT_STAGE_OF:
        prepared = prepare(runtime, job.job_id, _DOCUMENT_STAGE_OF[job.state])
        if not isinstance(prepared, (Reused, NotReady)):
            accept(runtime, prepared)
    return None


def generate(
    runtime: Runtime,
    scope: Scope,
    *,
    observe: Callable[[Outcome], None],
    slots: int | None = None,
    stop: Stop | None = None,
) -> None:
    """Drain a scope of generating stages with bounded slots, until `stop` is requested.

    A job that froze what this release cannot honour is left out, and needs a decision from then on. Raises
    `ProviderConfigError`, before any claim, where this process is not set up for what a job of the scope froze.
    """
    generation = Generation(runtime)
    checked = ride_out(lambda: generation.load(scope.job_ids or ()))
    if scope.job_ids is not None:
        scope = replace(scope, job_ids=tuple(job_id for job_id in scope.job_ids if checked[job_id].may_go_on))
        if not scope.job_ids:
            return
    with engine_traced(runtime, generation.attempt, generation.watched(observe)) as (attempt, told):
        engine = Engine(runtime, attempt, slots=slots or runtime.settings.slots, observe=told, stop=stop)
        asyncio.run(engine.drain(scope))
