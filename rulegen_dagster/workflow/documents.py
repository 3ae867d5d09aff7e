"""The stages that treat a job as a whole: parse, retrieve, validate. Each is one item, claimed like any other."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rulegen_dagster.domain.errors import InputError, LedgerError, RulegenError
from rulegen_dagster.domain.failpoints import Failpoint, reach
from rulegen_dagster.domain.states import JOB_STATE_OF_STAGE, AttemptOutcome, JobState, Stage, WorkState
from rulegen_dagster.domain.text import moment
from rulegen_dagster.domain.work import Claim, FailedAttempt, Landing, Offer
from rulegen_dagster.ledger.claims import Scope
from rulegen_dagster.ledger.reads import ItemRecord
from rulegen_dagster.workflow.engine import Accept, decide, offer_directly
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

    The lease is renewed while the output is made. An error of the project is booked on the attempt under its own code
    and raised: permanent where the input is at fault, else to be tried again.
    """
    with runtime.ledger.turn(runtime.claimant) as turn:
        claims = turn.claim(Scope(stages=(stage,), job_ids=(job_id,)), [runtime.tokens()])
    if not claims:
        return _why_not(runtime, job_id, stage)
    (claim,) = claims
    try:
        with _renewed(runtime, claim):
            made = _HANDLERS[stage](runtime, claim)
            reach(Failpoint.DOCUMENT_MADE)
            return made
    except RulegenError as error:
        outcome = AttemptOutcome.PERMANENT if isinstance(error, InputError) else AttemptOutcome.RETRYABLE
        failed = FailedAttempt(claim=claim, outcome=outcome, error_code=error.code, message=error.message)
        with contextlib.suppress(LedgerError):
            _book(runtime, failed)
        raise


def accept(runtime: Runtime, offer: Offer, how: Accept = offer_directly) -> Landing:
    """Put one offer through the completion guard in a transaction of its own."""
    with runtime.ledger.turn(runtime.claimant) as turn:
        how(turn, offer)
        landings = turn.settle()
    return landings[offer.claim.token]


@contextlib.contextmanager
def _renewed(runtime: Runtime, claim: Claim) -> Iterator[None]:
    """Renew a claim's lease from a thread of its own until the block ends."""
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(runtime.settings.lease_ms / 3000):
            # An outage of the ledger is found by whoever completes; the lease may outlast it.
            with contextlib.suppress(LedgerError), runtime.ledger.turn(runtime.claimant) as turn:
                turn.renew([claim])

    thread = threading.Thread(target=renew, name="lease-renewal", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _book(runtime: Runtime, failed: FailedAttempt) -> None:
    with runtime.ledger.turn(runtime.claimant) as turn:
        turn.settle([(failed, decide(runtime, failed))])


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
            ends = moment(item.lease_until, runtime.ledger.reads.now())
            return NotReady(code="leased", reason=f"{item.worker} works on it; its lease ends {ends}")
        case WorkState.FAILED:
            return NotReady(code=str(item.error_code), reason=str(item.error_message))
        case _ if job.state is not JobState(JOB_STATE_OF_STAGE[stage]):
            return NotReady(code="barrier", reason=f"the job is {job.state}; {stage} has not been reached")
        case _:
            due = moment(item.next_attempt_at, runtime.ledger.reads.now())
            return NotReady(code="waiting", reason=f"the retry is due {due} after {item.error_code}")
