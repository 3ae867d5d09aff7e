"""Asset factories: the only way in which this project builds an asset that has an output.

Dagster marks a partition green without asking the IO manager where a function is annotated `-> None`, or returns a
bare `MaterializeResult`. These factories refuse to build such an asset, so a green partition always went through the
completion guard.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import dagster as dg

from rulegen_dagster.domain.states import Stage
from rulegen_dagster.resources.accepting_io_manager import ASSET_OF_STAGE, AcceptingIOManager, StageOutput
from rulegen_dagster.resources.failures import as_failures, events_missing, keys_missing, refused
from rulegen_dagster.resources.launches import is_asked_for_by_a_person
from rulegen_dagster.resources.mirroring import RunEvents
from rulegen_dagster.resources.runtime import RuntimeResource
from rulegen_dagster.settings import Settings
from rulegen_dagster.workflow.partitions import KeyOutcome, drain_keys

IO_MANAGER_KEY = "ledger_io"


def job_asset(
    *, partitions_def: dg.PartitionsDefinition, deps: Sequence[Any] = (), **options: Any
) -> Callable[[Callable[..., StageOutput]], dg.AssetsDefinition]:
    """Build an asset of the `jobs` set from a function that returns a `StageOutput`.

    Raises `DagsterInvalidDefinitionError` for any other annotation: the output would bypass the IO manager.
    """

    def build(body: Callable[..., StageOutput]) -> dg.AssetsDefinition:
        returned = inspect.signature(body).return_annotation
        if returned is not StageOutput:
            raise dg.DagsterInvalidDefinitionError(
                f"{body.__name__} must be annotated '-> StageOutput'; an output of type {returned!r} would bypass the"
                " accepting IO manager"
            )
        asset = dg.asset(partitions_def=partitions_def, deps=list(deps), io_manager_key=IO_MANAGER_KEY, **options)
        definition: dg.AssetsDefinition = asset(body)
        return definition

    return build


def rule_key_assets(
    *, name: str, partitions_def: dg.PartitionsDefinition, specs: Sequence[dg.AssetSpec]
) -> dg.AssetsDefinition:
    """Build the assets of the `rules` set: up to `RULEGEN_RANGE_SIZE` keys in one run, each accepted by itself.

    There is no body to give: the step drains the keys through the engine, hands each draft to the IO manager, logs
    one event for each accepted key while it goes on, and fails at the end when a key has no accepted output.
    """

    @dg.multi_asset(
        name=name,
        specs=[spec.replace_attributes(skippable=True) for spec in specs],
        partitions_def=partitions_def,
        can_subset=True,
        backfill_policy=dg.BackfillPolicy.multi_run(max_partitions_per_run=Settings().range_size),
    )
    def drain(
        context: dg.AssetExecutionContext,
        runtime: RuntimeResource,
        ledger_io: dg.ResourceParam[AcceptingIOManager],
    ) -> Iterator[Any]:
        _drain(context, runtime, ledger_io)
        return
        # Never reached: it makes the body a generator, whose end without an output is no `None` for the IO manager.
        yield

    return drain


def partition_keys(context: dg.AssetExecutionContext) -> tuple[str, ...]:
    """Return the keys of a run. Raises `dg.Failure` where it names none."""
    if not (context.has_partition_key or context.has_partition_key_range):
        raise refused("no_keys", "this job works on partitions; choose at least one partition key and launch it again")
    return tuple(context.partition_keys)


def _drain(context: dg.AssetExecutionContext, runtime: RuntimeResource, ledger_io: AcceptingIOManager) -> None:
    keys = partition_keys(context)
    stages = [
        stage
        for stage in (Stage.GENERATE_RULES, Stage.GENERATE_TESTS)
        if dg.AssetKey(ASSET_OF_STAGE[stage]) in context.selected_asset_keys
    ]
    missed: list[KeyOutcome] = []
    reason = (
        f"re-executed in the Dagster run {context.run.run_id}" if is_asked_for_by_a_person(context.run.tags) else None
    )
    with as_failures(), runtime.open(context.run.run_id, context.run.tags) as opened:
        events = RunEvents(opened, context.log_event)
        try:
            drained = drain_keys(opened, keys, stages, accept=ledger_io.accepting(context), redrive_reason=reason)
            # Closed at once where the run is interrupted: the engine then gives back what is in flight.
            with contextlib.closing(drained) as outcomes:
                for outcome in outcomes:
                    if outcome.is_accepted:
                        events.log(outcome)
                    else:
                        missed.append(outcome)
        finally:
            events.mark()
    if missed:
        raise keys_missing(missed, len(keys) * len(stages))
    if events.error is not None:
        raise events_missing(events.unlogged) from events.error
