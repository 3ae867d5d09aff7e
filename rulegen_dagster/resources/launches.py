"""Launches: the plan's runs as Dagster run requests, with the tags that tie them to the runs before."""

from collections.abc import Mapping, Sequence

import dagster as dg

from rulegen_dagster.workflow.plan import Launch

WORK_TAG = "rulegen/work"
JOB_TAG = "rulegen/job"
TENANT_TAG = "rulegen/tenant"
CONTINUES_TAG = "rulegen/continues"
PARENT_RUN_TAG = "dagster/parent_run_id"
ROOT_RUN_TAG = "dagster/root_run_id"
_RETRY_NUMBER_TAG = "dagster/retry_number"
_RANGE_START_TAG = "dagster/asset_partition_range_start"
_RANGE_END_TAG = "dagster/asset_partition_range_end"
_FIRST = "none"

_UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


def is_asked_for_by_a_person(tags: Mapping[str, str]) -> bool:
    """Tell whether somebody launched or re-executed this run, as against a sensor or Dagster's own run retry.

    A re-execution in the UI inherits every tag of the run before it, so a sensor's run is known by two tags that
    agree: the run that it continues, and its parent. Dagster's own retry carries a retry number.
    """
    if _RETRY_NUMBER_TAG in tags:
        return False
    return tags.get(CONTINUES_TAG) != tags.get(PARENT_RUN_TAG, _FIRST)


def run_requests(instance: dg.DagsterInstance, launches: Sequence[Launch]) -> list[dg.RunRequest]:
    """Return a request for each launch that no unfinished run works on.

    Correctness never depends on this look: a run too many finds nothing to claim, and calls nobody.
    """
    return [_request(instance, launch) for launch in launches if not _is_running(instance, launch)]


def _is_running(instance: dg.DagsterInstance, launch: Launch) -> bool:
    working = dg.RunsFilter(tags={WORK_TAG: launch.work}, statuses=_UNFINISHED)
    return bool(instance.get_runs(working, limit=1))


def _request(instance: dg.DagsterInstance, launch: Launch) -> dg.RunRequest:
    tags = {
        WORK_TAG: launch.work,
        JOB_TAG: launch.job_key,
        TENANT_TAG: launch.tenant,
        CONTINUES_TAG: _FIRST,
    }
    previous = instance.get_run_by_id(launch.previous_run_id) if launch.previous_run_id else None
    if previous is not None:
        tags[CONTINUES_TAG] = previous.run_id
        tags[PARENT_RUN_TAG] = previous.run_id
        tags[ROOT_RUN_TAG] = previous.tags.get(ROOT_RUN_TAG, previous.run_id)
    run_key = f"{launch.work}:{launch.revision}"
    if launch.first_key is None or launch.last_key is None:
        return dg.RunRequest(job_name=launch.dagster_job, partition_key=launch.job_key, run_key=run_key, tags=tags)
    if launch.first_key == launch.last_key:
        return dg.RunRequest(job_name=launch.dagster_job, partition_key=launch.first_key, run_key=run_key, tags=tags)
    tags |= {_RANGE_START_TAG: launch.first_key, _RANGE_END_TAG: launch.last_key}
    return dg.RunRequest(job_name=launch.dagster_job, run_key=run_key, tags=tags)
