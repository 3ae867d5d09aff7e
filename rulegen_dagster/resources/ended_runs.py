"""Runs of ended jobs: what Dagster still queues or runs for a job that the ledger has ended."""

from dataclasses import dataclass

import dagster as dg

from rulegen_dagster.resources.launches import JOB_TAG
from rulegen_dagster.workflow.partitions import RETIRED_STATES
from rulegen_dagster.workflow.runtime import Runtime

# A run that is being cancelled already is left to Dagster's run monitoring.
_UNENDED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
]


@dataclass(frozen=True, kw_only=True)
class EndedRuns:
    """The runs that were told to end, and those that Dagster could not reach."""

    told: tuple[str, ...]
    unreached: tuple[str, ...]


def end_runs_of_ended_jobs(instance: dg.DagsterInstance, runtime: Runtime) -> EndedRuns:
    """Tell every queued or running run of a job that failed, was cancelled or has expired to end.

    A run's engine stops by itself within half a second once the job's claims are gone, and the run then fails with the
    reason: this is for runs that wait in the queue, and for those whose step hangs elsewhere. Correctness does not
    depend on it, for such a run finds nothing to claim.
    """
    told: list[str] = []
    unreached: list[str] = []
    for run in instance.get_runs(dg.RunsFilter(statuses=_UNENDED)):
        key = run.tags.get(JOB_TAG)
        job = runtime.ledger.reads.job_by_partition(key) if key else None
        if job is None or job.state not in RETIRED_STATES:
            continue
        try:
            (told if instance.run_coordinator.cancel_run(run.run_id) else unreached).append(run.run_id)
        except Exception:
            # Each launcher has its own errors for a worker that is out of reach; run monitoring ends such a run.
            unreached.append(run.run_id)
    return EndedRuns(told=tuple(told), unreached=tuple(unreached))
