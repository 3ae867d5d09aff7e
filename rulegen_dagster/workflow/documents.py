"""The stages that treat a job as a whole: parse, retrieve, validate. Each is one item, claimed like any other."""

from collections.abc import Callable
from dataclasses import dataclass

from rulegen_dagster.domain.errors import InputError
from rulegen_dagster.domain.retry import decide_retry
from rulegen_dagster.domain.states import JOB_STATE_OF_STAGE, AttemptOutcome, JobState, Stage, WorkState
from rulegen_dagster.domain.work import Claim, FailedAttempt, Landing, Offer
from rulegen_dagster.ledger.claims import Scope
from rulegen_dagster.ledger.reads import ItemRecord
from rulegen_dagster.workflow.engine import Accept, offer_directly
from rulegen_dagster.workflow.extract import parse, retrieve
from rulegen_dagster.workflow.runtime import Runtime
from rulegen_dagster.workflow.validate import validate

DOCUMENT_STAGES = (Stage.PARSE, Stage.RETRIEVE, Stage.VALIDATE)

_HANDLERS: dict[Stage, Callable[[Runtime, Claim], Offer]] = {
    Stage.PARSE: parse,
    Stage.RETRIEVE: retrieve,
    Stage.VALIDATE: validate,
}


@dataclass(frozen=True, kw_only=True)
class Reused:
    """The stage's output was accepted before; nothing was done again."""

    item: ItemRecord


@dataclass(frozen=True, kw_only=True)
class NotReady:
    """The stage cannot be run now; `reason` says why in one sentence, `code` for machines."""

    code: str
    reason: str


def prepare(runtime: Runtime, job_id: int, stage: Stage) -> Offer | Reused | NotReady:
    """Claim a stage's item and make its output, ready to be accepted; or say why there is nothing to do.

    Raises `SpecError` (booked as a permanent failure of the attempt) for an upload that cannot be parsed.
    """
    with runtime.ledger.turn(runtime.claimant) as turn:
        claims = turn.claim(Scope(stages=(stage,), job_ids=(job_id,)), [runtime.tokens()])
    if not claims:
        return _why_not(runtime, job_id, stage)
    (claim,) = claims
    try:
        return _HANDLERS[stage](runtime, claim)
    except InputError as error:
        failed = FailedAttempt(
            claim=claim, outcome=AttemptOutcome.PERMANENT, error_code=error.code, message=error.message
        )
        _book(runtime, failed)
        raise


def accept(runtime: Runtime, offer: Offer, how: Accept = offer_directly) -> Landing:
    """Put one offer through the completion guard in a transaction of its own."""
    with runtime.ledger.turn(runtime.claimant) as turn:
        how(turn, offer)
        landings = turn.settle()
    return landings[offer.claim.token]


def _book(runtime: Runtime, failed: FailedAttempt) -> None:
    decision = decide_retry(
        failed.outcome,
        attempt=failed.claim.attempt,
        attempt_limit=failed.claim.attempt_limit,
        policy=runtime.settings.retry_policy,
        jitter=runtime.jitter(),
    )
    with runtime.ledger.turn(runtime.claimant) as turn:
        turn.settle([(failed, decision)])


def _why_not(runtime: Runtime, job_id: int, stage: Stage) -> Reused | NotReady:
    items = runtime.ledger.reads.items(job_id, stage)
    job = runtime.ledger.reads.job_by_id(job_id)
    if not items:
        return NotReady(code="barrier", reason=f"the job is {job.state}; {stage} has not been reached")
    (item,) = items
    match item.state:
        case WorkState.SUCCEEDED:
            return Reused(item=item)
        case WorkState.RUNNING:
            return NotReady(
                code="leased", reason=f"{item.worker} works on it until {item.lease_until} ms on the ledger's clock"
            )
        case WorkState.FAILED:
            return NotReady(code=str(item.error_code), reason=str(item.error_message))
        case _ if job.state is not JobState(JOB_STATE_OF_STAGE[stage]):
            return NotReady(code="barrier", reason=f"the job is {job.state}; {stage} has not been reached")
        case _:
            return NotReady(code="waiting", reason=f"the retry is due at {item.next_attempt_at} ms")
