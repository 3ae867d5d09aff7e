"""`specification`, `parsed_spec`, `clause_context`: from the stored upload to clauses with their context."""

import dagster as dg

from rulegen_dagster.defs.partitions import jobs_partitions
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.resources.accepting_io_manager import StageOutput
from rulegen_dagster.resources.asset_factory import job_asset
from rulegen_dagster.resources.runtime import RuntimeResource
from rulegen_dagster.resources.stage_outputs import stage_output, stored_upload


@job_asset(
    partitions_def=jobs_partitions,
    group_name="extraction",
    kinds={"markdown"},
    code_version="1",
    description="The immutable upload of a job, as intake stored it under the digest of its bytes.",
)
def specification(context: dg.AssetExecutionContext, runtime: RuntimeResource) -> StageOutput:
    """Show the stored upload."""
    with runtime.open(context.run.run_id, context.run.tags) as opened:
        return stored_upload(context, opened)


@job_asset(
    partitions_def=jobs_partitions,
    deps=[specification],
    group_name="extraction",
    kinds={"python"},
    code_version="1",
    description="Canonical text and clauses; accepting it creates the rule items of every normative clause.",
)
def parsed_spec(context: dg.AssetExecutionContext, runtime: RuntimeResource) -> StageOutput:
    """Parse the upload."""
    with runtime.open(context.run.run_id, context.run.tags) as opened:
        return stage_output(context, opened, Stage.PARSE)


@job_asset(
    partitions_def=jobs_partitions,
    deps=[parsed_spec],
    group_name="extraction",
    kinds={"python"},
    code_version="1",
    description="For each clause, the definitions it uses and the clauses it refers to.",
)
def clause_context(context: dg.AssetExecutionContext, runtime: RuntimeResource) -> StageOutput:
    """Retrieve the context of each clause, and tell Dagster the rule keys."""
    with runtime.open(context.run.run_id, context.run.tags) as opened:
        return stage_output(context, opened, Stage.RETRIEVE)
