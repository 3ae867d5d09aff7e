"""Launches: the plan's runs as Dagster run requests, with the tags that tie them to the runs before."""

from collections.abc import Mapping, Sequence

import dagster as dg

from rulegen_dagster.workflow.plan import Launch

WORK_TAG = "rulegen/work"
JOB_TAG = "rulegen/job"
TENANT_TAG = "rulegen/tenant"
REVISION_TAG = "rulegen/revision"
CONTINUES_TAG = "rulegen/continues"
TRACEPARENT_TAG = "rulegen/traceparent"
PARENT_RUN_TAG = "dagster/parent_run_id"
ROOT_RUN_TAG = "dagster/root_run_id"
_RETRY_NUMBER_TAG = "dagster/retry_number"
_RANGE_START_TAG = "dagster/asset_partition_range_start"
_RANGE_END_TAG = "dagster/asset_partition_range_end"
_FIRST = "none"

FIRST_PAUSE_S = 10
MAX_PAUSE_S = 600
_LOOK_BACK = 10


def is_asked_for_by_a_person(tags: Mapping[str, str]) -> bool:
    """Tell whether somebody launched or re-executed this run, as against a sensor or Dagster's own run retry.

    A re-execution in the UI inherits every tag of the run before it, so a sensor's run is known by two tags that
    agree: the run that it continues, and its parent. Dagster's own retry carries a retry number.
    """
    if _RETRY_NUMBER_TAG in tags:
        return False
    return tags.get(CONTINUES_TAG) != tags.get(PARENT_RUN_TAG, _FIRST)


def run_requests(instance: dg.DagsterInstance, launches: Sequence[Launch], *, now_s: float) -> list[dg.RunRequest]:
    """Return a request for each launch that no unfinished run works on, and whose pause is over.

    A run that ended without changing the ledger (its host lost the database, the disk was full) is asked for again
    after a pause that doubles, up to `MAX_PAUSE_S`. Correctness never depends on this look: a run too many finds
    nothing to claim, and calls nobody. `now_s` is in seconds since 1970 (UTC).
    """
    requests = []
    for launch in launches:
        records = instance.get_run_records(dg.RunsFilter(tags={WORK_TAG: launch.work}), limit=_LOOK_BACK)
        if any(not record.dagster_run.is_finished for record in records):
            continue
        fruitless = _fruitless(records, launch.revision)
        if fruitless and now_s < (fruitless[0].end_time or 0) + pause_s(len(fruitless)):
            continue
        requests.append(_request(instance, launch, after=fruitless[0].dagster_run.run_id if fruitless else _FIRST))
    return requests


def pause_s(fruitless: int) -> float:
    """Return how long to wait after so many runs in a row that changed nothing, in seconds."""
    return float(min(FIRST_PAUSE_S * 2 ** (fruitless - 1), MAX_PAUSE_S))


def _fruitless(records: Sequence[dg.RunRecord], revision: str) -> list[dg.RunRecord]:
    """Return the latest runs, in a row, that found the ledger as it still is."""
    found = []
    for record in records:
        if record.dagster_run.tags.get(REVISION_TAG) != revision:
            break
        found.append(record)
    return found


def _request(instance: dg.DagsterInstance, launch: Launch, *, after: str) -> dg.RunRequest:
    tags = {
        WORK_TAG: launch.work,
        JOB_TAG: launch.job_key,
        TENANT_TAG: launch.tenant,
        REVISION_TAG: launch.revision,
        CONTINUES_TAG: _FIRST,
    }
    if launch.traceparent is not None:
        tags[TRACEPARENT_TAG] = launch.traceparent
    previous = instance.get_run_by_id(launch.previous_run_id) if launch.previous_run_id else None
    if previous is not None:
        tags[CONTINUES_TAG] = previous.run_id
        tags[PARENT_RUN_TAG] = previous.run_id
        tags[ROOT_RUN_TAG] = previous.tags.get(ROOT_RUN_TAG, previous.run_id)
    # Dagster never runs a key twice, whatever became of the first run: the last fruitless run makes the next key new.
    run_key = f"{launch.work}:{launch.revision}:{after}"
    if launch.first_key is None or launch.last_key is None:
        return dg.RunRequest(job_name=launch.dagster_job, partition_key=launch.job_key, run_key=run_key, tags=tags)
    if launch.first_key == launch.last_key:
        return dg.RunRequest(job_name=launch.dagster_job, partition_key=launch.first_key, run_key=run_key, tags=tags)
    tags |= {_RANGE_START_TAG: launch.first_key, _RANGE_END_TAG: launch.last_key}
    return dg.RunRequest(job_name=launch.dagster_job, run_key=run_key, tags=tags)
