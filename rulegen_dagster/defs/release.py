"""`validation_report` with its checks, and `ruleset`: all is executed, then published once a person has confirmed."""

from collections.abc import Iterator

import dagster as dg

from rulegen_dagster.defs.partitions import all_of, jobs_partitions
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.resources.accepting_io_manager import StageOutput
from rulegen_dagster.resources.asset_factory import job_asset
from rulegen_dagster.resources.quality_checks import SPECS, check_results
from rulegen_dagster.resources.runtime import RuntimeResource
from rulegen_dagster.resources.stage_outputs import published_ruleset, stage_output


@job_asset(
    partitions_def=jobs_partitions,
    deps=[all_of("rule"), all_of("test_suite")],
    group_name="release",
    kinds={"cel"},
    code_version="1",
    description="Every test executed on both evaluators, every quote and number checked once more.",
)
def validation_report(context: dg.AssetExecutionContext, runtime: RuntimeResource) -> StageOutput:
    """Validate a job's rules and tests."""
    with runtime.open(context.run.run_id, context.run.tags) as opened:
        return stage_output(context, opened, Stage.VALIDATE)


@dg.multi_asset_check(name="validation_checks", specs=SPECS)
def validation_checks(
    context: dg.AssetCheckExecutionContext, runtime: RuntimeResource
) -> Iterator[dg.AssetCheckResult]:
    """Show what the accepted report of a job says."""
    with runtime.open(context.run.run_id, context.run.tags) as opened:
        yield from check_results(context, opened)


@job_asset(
    partitions_def=jobs_partitions,
    deps=[validation_report],
    group_name="release",
    kinds={"json"},
    code_version="1",
    description="The published bundle; written only for an action set that a person confirmed.",
)
def ruleset(context: dg.AssetExecutionContext, runtime: RuntimeResource) -> StageOutput:
    """Publish a job's confirmed ruleset."""
    with runtime.open(context.run.run_id, context.run.tags) as opened:
        return published_ruleset(context, opened)
