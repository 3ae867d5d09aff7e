"""The stages that treat a job as a whole: parse, retrieve, validate. Each is one item, claimed like any other."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from rulegen_dagster.domain.errors import InputError, LedgerError, RulegenError
from rulegen_dagster.domain.failpoints import Failpoint, reach
from rulegen_dagster.domain.states import JOB_STATE_OF_STAGE, AttemptOutcome, JobState, Stage, WorkState
from rulegen_dagster.domain.text import moment
from rulegen_dagster.domain.work import Claim, FailedAttempt, Landing, Offer
from rulegen_dagster.ledger.blobs import OUT_OF_REACH
from rulegen_dagster.ledger.claims import Scope
from rulegen_dagster.ledger.reads import ItemRecord
from rulegen_dagster.workflow.behaviours import check, held_up_by
from rulegen_dagster.workflow.deadlines import expire_instead, too_long_waits
from rulegen_dagster.workflow.engine import Accept, decide, offer_directly
from rulegen_dagster.workflow.extract import parse, retrieve
from rulegen_dagster.workflow.limits import LIMIT, limit_text
from rulegen_dagster.workflow.outages import pause_s, ride_out
from rulegen_dagster.workflow.recover import free_lost_work
from rulegen_dagster.workflow.runtime import Runtime
from rulegen_dagster.workflow.stopping import given_back
from rulegen_dagster.workflow.traces import document_begins, document_ends
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
    and raised: permanent where the input is at fault, else to be tried again. The ledger's own faults are never booked:
    the output is made again while the lease may hold (it calls nobody), then `LedgerError` leaves the item to it. Where
    the blobs are out of this host's reach, or the process is interrupted, the item is given back.
    """
    held_up = ride_out(lambda: _held_up(runtime, job_id, stage))
    if held_up is not None:
        return held_up
    # A claim whose answer was lost is left to its lease, and the next one finds the item taken.
    claims = ride_out(lambda: _claim(runtime, job_id, stage))
    if not claims and ride_out(lambda: free_lost_work(runtime)).waiting:
        claims = ride_out(lambda: _claim(runtime, job_id, stage))
    if not claims:
        return ride_out(lambda: _why_not(runtime, job_id, stage))
    (claim,) = claims
    document_begins(runtime, claim)
    try:
        with _renewed(runtime, claim):
            made = ride_out(lambda: _HANDLERS[stage](runtime, claim), patience_s=runtime.settings.lease_ms / 1000)
            reach(Failpoint.DOCUMENT_MADE)
            return made
    except RulegenError as error:
        if isinstance(error, LedgerError) and error.fault is not None:
            raise
        outcome = AttemptOutcome.PERMANENT if isinstance(error, InputError) else AttemptOutcome.RETRYABLE
        if isinstance(error, LedgerError) and error.code in OUT_OF_REACH:
            # This host's fault, which another one need not have: the item is given back, and no attempt is used up.
            # The pause is what its lease would have been; without one, this host would have it again at once.
            outcome = AttemptOutcome.CANCELLED
        failed = FailedAttempt(claim=claim, outcome=outcome, error_code=error.code, message=error.message)
        with contextlib.suppress(LedgerError):
            _book(runtime, failed, pause_ms=runtime.settings.lease_ms if outcome is AttemptOutcome.CANCELLED else 0)
        raise
    except BaseException as interruption:
        # Dagster interrupts a run by an exception. A defect of ours is left to the lease instead.
        if not isinstance(interruption, Exception):
            with contextlib.suppress(LedgerError):
                _book(runtime, given_back(claim))
        raise


def accept(runtime: Runtime, offer: Offer, how: Accept = offer_directly) -> Landing:
    """Put one offer through the completion guard in a transaction of its own.

    It is offered again through an outage while its lease may hold; an offer that had landed is told as accepted.
    """

    def settle() -> Landing:
        with runtime.ledger.turn(runtime.claimant) as turn:
            how(turn, offer)
            landings = turn.settle()
        return landings[offer.claim.token]

    landing = ride_out(settle, patience_s=runtime.settings.lease_ms / 1000)
    document_ends(runtime, offer, landing)
    return landing


def _held_up(runtime: Runtime, job_id: int, stage: Stage) -> NotReady | None:
    """Return why this release may not claim a stage's item, where there may be one to claim."""
    state = runtime.ledger.reads.job_by_id(job_id).state
    if state not in (JOB_STATE_OF_STAGE[stage], JobState.NEEDS_DECISION):
        return None
    if any(item.state is WorkState.SUCCEEDED for item in runtime.ledger.reads.items(job_id, stage)):
        return None
    checked = check(runtime, job_id)
    if checked.may_go_on:
        return None
    held_up = held_up_by(runtime, checked)
    return NotReady(code=held_up.code, reason=held_up.text)


def _claim(runtime: Runtime, job_id: int, stage: Stage) -> tuple[Claim, ...]:
    with runtime.ledger.turn(runtime.claimant) as turn:
        return turn.claim(Scope(stages=(stage,), job_ids=(job_id,)), [runtime.tokens()])


@contextlib.contextmanager
def _renewed(runtime: Runtime, claim: Claim) -> Iterator[None]:
    """Renew a claim's lease from a thread of its own until the block ends."""
    ended = threading.Event()

    def renew() -> None:
        every_s, failures = runtime.settings.lease_ms / 3000, 0
        while not ended.wait(min(every_s, pause_s(failures)) if failures else every_s):
            # Whoever completes tells of an outage; the lease may outlast it.
            try:
                with runtime.ledger.turn(runtime.claimant) as turn:
                    turn.renew([claim])
                failures = 0
            except LedgerError:
                failures += 1

    thread = threading.Thread(target=renew, name="lease-renewal", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _book(runtime: Runtime, failed: FailedAttempt, *, pause_ms: int = 0) -> None:
    decision = decide(runtime, failed)
    failures = [(failed, replace(decision, delay_ms=pause_ms) if pause_ms else decision)]
    expire_instead(runtime, too_long_waits(runtime, failures))
    with runtime.ledger.turn(runtime.claimant) as turn:
        landings = turn.settle(failures)
    document_ends(runtime, failed, landings[failed.claim.token])


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
        case WorkState.PENDING:
            now = runtime.ledger.reads.now()
            reached = runtime.ledger.limits.reached(job_id, stage)
            reason = limit_text("it", reached, now) if reached else "it can be claimed now"
            return NotReady(code=LIMIT if reached else "ready", reason=reason)
        case _:
            due = moment(item.next_attempt_at, runtime.ledger.reads.now())
            return NotReady(code="waiting", reason=f"the retry is due {due} after {item.error_code}")
