"""Sensors: each asks for what the ledger needs. With a cursor set back, or a tick repeated, nothing runs twice."""

import time

import dagster as dg

from rulegen_dagster.defs.jobs import generate_rules, generate_tests, publish, retrieve, validate
from rulegen_dagster.domain.text import printable
from rulegen_dagster.resources.ended_runs import end_runs_of_ended_jobs
from rulegen_dagster.resources.launches import run_requests
from rulegen_dagster.resources.mirroring import EVENTS_PER_TICK, DagsterEventLog
from rulegen_dagster.resources.partition_sets import register_job, register_jobs
from rulegen_dagster.resources.runtime import RuntimeResource
from rulegen_dagster.workflow.deadlines import expire_overdue
from rulegen_dagster.workflow.mirror import mirror
from rulegen_dagster.workflow.plan import plan_publications, plan_work
from rulegen_dagster.workflow.uploads import look

_INTERVAL_S = 5
_MIRROR_INTERVAL_S = 15


@dg.sensor(
    description="Submits files that appear in $RULEGEN_HOME/uploads/<tenant>/ once their size stands still.",
    minimum_interval_seconds=_INTERVAL_S,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def new_uploads(context: dg.SensorEvaluationContext, runtime: RuntimeResource) -> dg.SensorResult:
    """Turn new uploads into jobs; `due_work` launches their runs."""
    with runtime.open() as opened:
        seen = look(opened, context.cursor)
        for intake in seen.accepted:
            register_job(context.instance, opened, intake.job.job_id)
    for refusal in seen.refused:
        context.log.warning(
            f"{refusal.tenant}/{printable(refusal.file_name)} is refused [{refusal.code}]: {refusal.message}"
        )
    counted = f"{len(seen.accepted)} accepted, {len(seen.refused)} refused, {len(seen.settling)} still changing"
    return dg.SensorResult(skip_reason=dg.SkipReason(counted), cursor=seen.cursor)


@dg.sensor(
    jobs=[retrieve, generate_rules, generate_tests, validate],
    description="Launches runs for work that can be claimed now: new items, due retries, leases that have passed.",
    minimum_interval_seconds=_INTERVAL_S,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def due_work(context: dg.SensorEvaluationContext, runtime: RuntimeResource) -> dg.SensorResult:
    """Ask for the runs that the ledger's open work needs."""
    with runtime.open() as opened:
        register_jobs(context.instance, opened)
        launches = plan_work(opened)
    return dg.SensorResult(run_requests=run_requests(context.instance, launches, now_s=time.time()))


@dg.sensor(
    jobs=[publish],
    description="Publishes jobs that a person has confirmed.",
    minimum_interval_seconds=_INTERVAL_S,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def confirmed_jobs(context: dg.SensorEvaluationContext, runtime: RuntimeResource) -> dg.SensorResult:
    """Ask for a run for each confirmed job."""
    with runtime.open() as opened:
        launches = plan_publications(opened)
    return dg.SensorResult(run_requests=run_requests(context.instance, launches, now_s=time.time()))


@dg.sensor(
    description="Writes the events of accepted outputs that no run has written, and none twice.",
    minimum_interval_seconds=_MIRROR_INTERVAL_S,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def mirror_events(context: dg.SensorEvaluationContext, runtime: RuntimeResource) -> dg.SkipReason:
    """Mirror a bounded part of the outbox; the next tick goes on."""
    with runtime.open() as opened:
        done = mirror(opened, DagsterEventLog(context.instance, opened), limit=EVENTS_PER_TICK)
        waiting = opened.ledger.outbox.unmirrored()
    return dg.SkipReason(
        f"{done.written} events written, {done.found} found in the log;"
        f" {waiting} outputs left, with those of runs in progress, which write their own"
    )


@dg.sensor(
    description="Expires jobs whose deadline leaves no time for another call, and ends the runs of jobs that ended.",
    minimum_interval_seconds=_INTERVAL_S,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def deadlines(context: dg.SensorEvaluationContext, runtime: RuntimeResource) -> dg.SkipReason:
    """Expire what is overdue, then tell the runs of ended jobs to end."""
    with runtime.open() as opened:
        expired = expire_overdue(opened, actor="deadlines")
        ended = end_runs_of_ended_jobs(context.instance, opened)
    for job in expired:
        context.log.info(f"{job.name} is expired: {job.end_reason}")
    return dg.SkipReason(
        f"{len(expired)} jobs expired, {len(ended.told)} runs told to end, {len(ended.unreached)} not reached"
    )
