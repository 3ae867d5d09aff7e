"""The plan: which Dagster runs the ledger's open work needs now. A pure function of what the ledger holds."""

from dataclasses import dataclass

from rulegen_dagster.domain.states import JobState, Stage
from rulegen_dagster.ledger.open_stages import OpenStage
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.workflow.runtime import Runtime

MAX_LAUNCHES = 25
"""Most runs that one look asks for; the next look asks for the rest."""

UP_TO_RETRIEVE, UP_TO_RULES, UP_TO_TESTS = "retrieve", "generate_rules", "generate_tests"
VALIDATE, PUBLISH = "validate", "publish"

_JOB_OF_STAGE = {Stage.PARSE: UP_TO_RETRIEVE, Stage.RETRIEVE: UP_TO_RETRIEVE, Stage.VALIDATE: VALIDATE}


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One run to ask for: a job partition, or a range of rule partitions (both ends included).

    `work` names the same work over all its runs; `revision` changes with every transition of the job, so a run that
    changed nothing is not asked for again. `previous_run_id` is the run that left this work, if there was one.
    """

    work: str
    dagster_job: str
    tenant: str
    job_key: str
    first_key: str | None = None
    last_key: str | None = None
    revision: int
    previous_run_id: str | None = None


def plan_work(runtime: Runtime) -> list[Launch]:
    """Return the runs for every stage with items that can be claimed now, oldest job first.

    A stage in which another worker holds a live lease is left to that worker until the lease ends.
    """
    launches: list[Launch] = []
    for stage in runtime.ledger.reads.open_stages():
        if not stage.live_leases:
            launches += _launches(runtime, stage)
    return launches[:MAX_LAUNCHES]


def plan_publications(runtime: Runtime) -> list[Launch]:
    """Return the runs for confirmed jobs whose ruleset is not published yet."""
    return [
        Launch(
            work=f"{job.partition_key}:{PUBLISH}",
            dagster_job=PUBLISH,
            tenant=job.name.tenant,
            job_key=job.partition_key,
            revision=runtime.ledger.reads.revision(job.job_id),
        )
        for job in runtime.ledger.reads.jobs(states=(JobState.EXECUTING,))
    ][:MAX_LAUNCHES]


def active_jobs(runtime: Runtime) -> list[JobRecord]:
    """Return the jobs whose partition keys Dagster has to know."""
    ended = {JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED}
    return runtime.ledger.reads.jobs(states=tuple(state for state in JobState if state not in ended))


def rule_keys(runtime: Runtime, job_id: int) -> tuple[str, ...]:
    """Return a job's keys of the `rules` partition set, in document order."""
    return tuple(str(item.partition_key) for item in runtime.ledger.reads.items(job_id, Stage.GENERATE_RULES))


def _launches(runtime: Runtime, stage: OpenStage) -> list[Launch]:
    dagster_job = _JOB_OF_STAGE.get(stage.stage)
    if dagster_job is not None:
        return [_launch(stage, dagster_job, work=f"{stage.job_partition_key}:{dagster_job}")]
    keys = rule_keys(runtime, stage.job_id)
    size = runtime.settings.range_size
    # Rules and tests share a run where one range holds the whole job: the barrier then opens inside that run.
    whole = len(keys) <= size
    dagster_job = UP_TO_TESTS if whole or stage.stage is Stage.GENERATE_TESTS else UP_TO_RULES
    open_keys = set(stage.partition_keys)
    launches = []
    for start in range(0, len(keys), size):
        wanted = [key for key in keys[start : start + size] if key in open_keys]
        if wanted:
            work = f"{stage.job_partition_key}:{dagster_job}:{start}"
            launches.append(_launch(stage, dagster_job, work=work, first_key=wanted[0], last_key=wanted[-1]))
    return launches


def _launch(
    stage: OpenStage, dagster_job: str, *, work: str, first_key: str | None = None, last_key: str | None = None
) -> Launch:
    return Launch(
        work=work,
        dagster_job=dagster_job,
        tenant=stage.name.tenant,
        job_key=stage.job_partition_key,
        first_key=first_key,
        last_key=last_key,
        revision=stage.revision,
        previous_run_id=stage.last_run_id,
    )
