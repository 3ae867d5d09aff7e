"""The accepting IO manager: the one path by which an output of a Dagster run gets into the ledger."""

from dataclasses import dataclass

import dagster as dg

from rulegen_dagster.domain.states import Stage
from rulegen_dagster.domain.work import Landing, Offer
from rulegen_dagster.ledger.store import Turn
from rulegen_dagster.resources.failures import as_failures, refused
from rulegen_dagster.resources.metadata import stage_metadata
from rulegen_dagster.resources.runtime import environment_runtime
from rulegen_dagster.workflow.documents import Reused, accept
from rulegen_dagster.workflow.engine import Accept
from rulegen_dagster.workflow.publish import Published

STAGE_OF_ASSET = {
    "parsed_spec": Stage.PARSE,
    "clause_context": Stage.RETRIEVE,
    "rule": Stage.GENERATE_RULES,
    "test_suite": Stage.GENERATE_TESTS,
    "validation_report": Stage.VALIDATE,
}
ASSET_OF_STAGE = {stage: asset for asset, stage in STAGE_OF_ASSET.items()}


@dataclass(frozen=True, kw_only=True)
class StoredUpload:
    """The immutable upload of a job; intake stored it."""

    file_name: str
    size_bytes: int
    digest: str


@dataclass(frozen=True, kw_only=True)
class StageOutput:
    """What an asset of the `jobs` set returns: an offer to be accepted, or what was accepted already."""

    value: Offer | Reused | StoredUpload | Published


@dataclass(frozen=True, kw_only=True)
class TurnOffer:
    """An offer of one rule key inside an open turn; the turn decides it together with the others."""

    turn: Turn
    offer: Offer


class AcceptingIOManager(dg.ConfigurableIOManager):
    """Puts each output through the completion guard; a stale or foreign output fails the step.

    An asset that returns nothing, or a bare `MaterializeResult`, would never come here: the asset factories refuse to
    build it.
    """

    def handle_output(self, context: dg.OutputContext, obj: object) -> None:
        """Accept one output. Raises `dg.Failure` where it is no offer, or where the guard refuses it."""
        match obj:
            case TurnOffer(turn=turn, offer=offer):
                self._check_key(context, offer)
                turn.offer(offer)
            case StageOutput(value=Offer() as offer):
                with as_failures(), environment_runtime(context.run_id) as opened:
                    landing = accept(opened, offer)
                if landing is Landing.STALE:
                    raise refused(
                        "stale_claim", f"the claim on {offer.claim.key.stage} had gone; its new owner finishes it"
                    )
                context.add_output_metadata(stage_metadata(offer))
            case StageOutput(value=value):
                context.add_output_metadata(stage_metadata(value))
            case _:
                raise refused("not_an_offer", f"an output of type {type(obj).__name__} has no claim behind it")

    def load_input(self, context: dg.InputContext) -> dict[str, str]:
        """Return the accepted outputs (JSON) behind the upstream partitions, by partition key."""
        stage = STAGE_OF_ASSET[context.asset_key.path[-1]]
        with as_failures(), environment_runtime() as opened:
            if stage in (Stage.GENERATE_RULES, Stage.GENERATE_TESTS):
                found = opened.ledger.reads.items_by_partition(stage, tuple(context.asset_partition_keys))
                return {key: item.output for key, item in found.items() if item.output is not None}
            outputs = {}
            for key in context.asset_partition_keys:
                job = opened.ledger.reads.job_by_partition(key)
                for item in opened.ledger.reads.items(job.job_id, stage) if job else ():
                    if item.output is not None:
                        outputs[key] = item.output
            return outputs

    def accepting(self, context: dg.AssetExecutionContext) -> Accept:
        """Return the function that hands one rule key's offer to `handle_output`, under a context of its own."""
        # Without them, each context would build a Dagster instance of its own (0.1 s a key).
        resources = context.resources

        def accept_key(turn: Turn, offer: Offer) -> None:
            output = dg.build_output_context(
                asset_key=dg.AssetKey(ASSET_OF_STAGE[offer.claim.key.stage]),
                partition_key=offer.claim.partition_key,
                resources=resources,
            )
            self.handle_output(output, TurnOffer(turn=turn, offer=offer))

        return accept_key

    @staticmethod
    def _check_key(context: dg.OutputContext, offer: Offer) -> None:
        if context.partition_key != offer.claim.partition_key:
            raise refused("foreign_claim", f"the claim is on another key than {context.partition_key}")
