"""The outputs of the assets that treat a job as a whole."""

import dagster as dg

from rulegen_dagster.domain.states import Stage
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.resources.accepting_io_manager import StageOutput, StoredUpload
from rulegen_dagster.resources.asset_factory import partition_keys
from rulegen_dagster.resources.failures import as_failures, not_ready, refused
from rulegen_dagster.resources.partition_sets import register_job
from rulegen_dagster.workflow.content import upload_of
from rulegen_dagster.workflow.documents import NotReady, prepare
from rulegen_dagster.workflow.partitions import RETIRED_STATES
from rulegen_dagster.workflow.publish import NothingToPublish, publish
from rulegen_dagster.workflow.runtime import Runtime


def stage_output(context: dg.AssetExecutionContext, runtime: Runtime, stage: Stage) -> StageOutput:
    """Make one stage's output for the run's job, or show the one that was accepted before."""
    with as_failures():
        job = _job(context, runtime)
        prepared = prepare(runtime, job.job_id, stage)
        if isinstance(prepared, NotReady):
            raise not_ready(prepared)
        if stage is not Stage.PARSE:
            register_job(context.instance, runtime, job.job_id)
        return StageOutput(value=prepared)


def stored_upload(context: dg.AssetExecutionContext, runtime: Runtime) -> StageOutput:
    """Show the job's upload, after reading it back and checking its digest."""
    with as_failures():
        job = _job(context, runtime)
        data = upload_of(runtime, job)
        return StageOutput(value=StoredUpload(file_name=job.file_name, size_bytes=len(data), digest=job.spec_digest))


def published_ruleset(context: dg.AssetExecutionContext, runtime: Runtime) -> StageOutput:
    """Publish the job's confirmed action set, or show the bundle that is there already."""
    with as_failures():
        published = publish(runtime, _job(context, runtime))
        if isinstance(published, NothingToPublish):
            raise not_ready(published)
        return StageOutput(value=published)


def _job(context: dg.AssetExecutionContext, runtime: Runtime) -> JobRecord:
    (key, *more) = partition_keys(context)
    if more:
        raise refused("one_job", "this asset takes one job in each run; a backfill makes one run for each job")
    job = runtime.ledger.reads.job_by_partition(key)
    if job is None:
        raise refused("unknown_key", f"the ledger has no job behind the partition '{key[:64]}'")
    if job.state in RETIRED_STATES:
        raise refused(
            "retired_key", f"the job {job.name} is {job.state}; 'rulegen fork {job.name} --key …' opens its successor"
        )
    return job
