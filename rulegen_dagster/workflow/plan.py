"""The plan: which Dagster runs the ledger's open work needs now, by what the ledger holds and nothing else."""

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from rulegen_dagster.domain.errors import ProviderConfigError
from rulegen_dagster.domain.limits import GROUP_OF_STAGE, Group
from rulegen_dagster.domain.states import TERMINAL_JOB_STATES, JobState, Stage
from rulegen_dagster.ledger.open_stages import OpenItem, OpenStage
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.ledger.traces import Traces
from rulegen_dagster.workflow.behaviours import check, resume_retained
from rulegen_dagster.workflow.quotas import quota_hold, stop_if_spent
from rulegen_dagster.workflow.recover import free_lost_work
from rulegen_dagster.workflow.runtime import Runtime

MAX_LAUNCHES = 25
"""Most runs that one look asks for; the next look asks for the rest."""

UP_TO_RETRIEVE, UP_TO_RULES, UP_TO_TESTS = "retrieve", "generate_rules", "generate_tests"
VALIDATE, PUBLISH = "validate", "publish"

_JOB_OF_STAGE = {Stage.PARSE: UP_TO_RETRIEVE, Stage.RETRIEVE: UP_TO_RETRIEVE, Stage.VALIDATE: VALIDATE}


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One run to ask for: a job partition, or a range of rule partitions (both ends included).

    `work` names the same work over all its runs. `revision` changes with every transition that could let a new run do
    more than the last. `previous_run_id` is the run that left this work, if there was one, and `traceparent` the place
    of the job's submission in a trace.
    """

    work: str
    dagster_job: str
    tenant: str
    job_key: str
    first_key: str | None = None
    last_key: str | None = None
    revision: str
    previous_run_id: str | None = None
    traceparent: str | None = None


def plan_work(runtime: Runtime) -> list[Launch]:
    """Return the runs for every stage with items that can be claimed now, oldest job first.

    Where another worker holds a live lease, its range is left to that worker until the lease ends; what workers of this
    host held that are proven dead is freed first. Work that a limit or a quota holds back is left out until there is
    room. A job that this release cannot go on with gets no run, and needs a decision from then on; one that was
    retained for this release goes on.
    """
    free_lost_work(runtime)
    resume_retained(runtime)
    launches: list[Launch] = []
    held_back: dict[tuple[str, Group], bool] = {}
    for stage in runtime.ledger.reads.open_stages():
        # A run that finds no room would end without having done anything; the look after there is room asks for it.
        limited = stage.name.tenant, GROUP_OF_STAGE[stage.stage]
        if limited not in held_back:
            held_back[limited] = runtime.ledger.limits.reached(stage.job_id, stage.stage) is not None
        if not held_back[limited] and _has_room(runtime, stage) and _may_go_on(runtime, stage.job_id):
            launches += _launches(runtime, stage)
    return _in_their_traces(runtime, launches[:MAX_LAUNCHES])


def plan_publications(runtime: Runtime) -> list[Launch]:
    """Return the runs for confirmed jobs whose action a publisher can claim now.

    What publishers of this host held that are proven dead is freed first. There are none while the limit of actions
    leaves no room, nor for a job that this release cannot go on with.
    """
    free_lost_work(runtime)
    resume_retained(runtime)
    jobs = [job for job in runtime.ledger.reads.publishable_jobs() if _may_go_on(runtime, job.job_id)]
    if jobs and runtime.ledger.limits.reached(jobs[0].job_id, Stage.PUBLISH) is not None:
        return []
    launches = [
        Launch(
            work=f"{job.partition_key}:{PUBLISH}",
            dagster_job=PUBLISH,
            tenant=job.name.tenant,
            job_key=job.partition_key,
            # Every failed try is a transition; the same action set is the same work.
            revision=str(job.action_set_digest)[:16],
        )
        for job in jobs[:MAX_LAUNCHES]
    ]
    return _in_their_traces(runtime, launches)


def _has_room(runtime: Runtime, stage: OpenStage) -> bool:
    """Tell whether the quotas of a job have room for a call of its stage now; a job whose money is spent may end."""
    hold = quota_hold(runtime, stage.job_id, stage.stage)
    if hold is not None:
        stop_if_spent(runtime, stage.job_id, hold)
    return hold is None


def _may_go_on(runtime: Runtime, job_id: int) -> bool:
    try:
        return check(runtime, job_id).may_go_on
    except ProviderConfigError:
        # The run that finds it so fails with what is to be mended.
        return True


def jobs_to_register(runtime: Runtime, known: Container[str]) -> list[JobRecord]:
    """Return the jobs whose keys Dagster may lack: those still at work, and finished ones that it does not know."""
    return [
        job
        for job in runtime.ledger.reads.jobs()
        if job.state not in TERMINAL_JOB_STATES or (job.state is JobState.COMPLETED and job.partition_key not in known)
    ]


def _in_their_traces(runtime: Runtime, launches: list[Launch]) -> list[Launch]:
    if not launches:
        return []
    known = Traces(runtime.ledger.database).of_partitions({launch.job_key for launch in launches})
    return [replace(launch, traceparent=known.get(launch.job_key)) for launch in launches]


def _launches(runtime: Runtime, stage: OpenStage) -> list[Launch]:
    dagster_job = _JOB_OF_STAGE.get(stage.stage)
    if dagster_job is not None:
        return _launch(stage, stage.items, dagster_job, work=f"{stage.job_partition_key}:{dagster_job}")
    keys = runtime.ledger.reads.rule_partition_keys(stage.job_id)
    size = runtime.settings.range_size
    # Rules and tests share a run where one range holds the whole job: the barrier then opens inside that run.
    whole = len(keys) <= size
    dagster_job = UP_TO_TESTS if whole or stage.stage is Stage.GENERATE_TESTS else UP_TO_RULES
    launches: list[Launch] = []
    for start in range(0, len(keys), size):
        part = set(keys[start : start + size])
        items = [item for item in stage.items if item.partition_key in part]
        launches += _launch(stage, items, dagster_job, work=f"{stage.job_partition_key}:{dagster_job}:{start}")
    return launches


def _launch(stage: OpenStage, items: Sequence[OpenItem], dagster_job: str, *, work: str) -> list[Launch]:
    claimable = [item for item in items if item.can_be_claimed]
    if not claimable or any(item.is_leased for item in items):
        return []
    latest = max(claimable, key=lambda item: item.last_started_at)
    return [
        Launch(
            work=work,
            dagster_job=dagster_job,
            tenant=stage.name.tenant,
            job_key=stage.job_partition_key,
            first_key=claimable[0].partition_key,
            last_key=claimable[-1].partition_key,
            revision=str(stage.revision),
            previous_run_id=latest.last_run_id,
        )
    ]
