"""States of jobs, work items, attempts and actions: how each is entered and left, and what a crash leaves.

The database repeats each set as a CHECK, and the transitions as a table and as triggers that refuse every other one;
tests compare them all.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Stage(StrEnum):
    """The stages of a job, in order."""

    PARSE = "parse"
    RETRIEVE = "retrieve"
    GENERATE_RULES = "generate_rules"
    GENERATE_TESTS = "generate_tests"
    VALIDATE = "validate"
    PUBLISH = "publish"
    NOTIFY = "notify"


class JobState(StrEnum):
    """The state of a job; `JOB_STATE_DOCS` says what each means."""

    RECEIVED = "received"
    AUTHORIZED = "authorized"
    EXTRACTING = "extracting"
    RETRIEVING = "retrieving"
    GENERATING_RULES = "generating_rules"
    GENERATING_TESTS = "generating_tests"
    VALIDATING = "validating"
    AWAITING_CONFIRMATION = "awaiting_confirmation"
    EXECUTING = "executing"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    NEEDS_DECISION = "needs_decision"


TERMINAL_JOB_STATES = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED})
"""Job states that are written once and never left."""

JOB_STATE_OF_STAGE = {
    Stage.PARSE: JobState.EXTRACTING,
    Stage.RETRIEVE: JobState.RETRIEVING,
    Stage.GENERATE_RULES: JobState.GENERATING_RULES,
    Stage.GENERATE_TESTS: JobState.GENERATING_TESTS,
    Stage.VALIDATE: JobState.VALIDATING,
}
"""The job state in which a stage's items may be claimed: this is the stage barrier."""


class WorkState(StrEnum):
    """The state of a work item; `WORK_STATE_DOCS` says what each means."""

    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class AttemptOutcome(StrEnum):
    """How one attempt ended; one without an outcome is in flight, or its worker is lost (`ATTEMPT_OUTCOME_DOCS`)."""

    ACCEPTED = "accepted"
    INVALID_OUTPUT = "invalid_output"
    RETRYABLE = "retryable"
    RATE_LIMITED = "rate_limited"
    AMBIGUOUS = "ambiguous"
    PERMANENT = "permanent"
    CRASHED = "crashed"
    CANCELLED = "cancelled"
    STALE = "stale"


class ActionState(StrEnum):
    """The state of an external action; `ACTION_STATE_DOCS` says what each means."""

    PROPOSED = "proposed"
    CONFIRMED = "confirmed"
    EXECUTING = "executing"
    DONE = "done"
    UNKNOWN = "unknown"
    FAILED = "failed"


class Subject(StrEnum):
    """What has a state; each is a table of the ledger."""

    JOB = "job"
    WORK_ITEM = "work_item"
    ATTEMPT = "attempt"
    ACTION = "action"


@dataclass(frozen=True, kw_only=True)
class StateDoc:
    """What a state means: how it is entered, how it is left, and what a crash leaves behind."""

    entered: str
    left: str
    crash: str


_FINAL = "Never; it is final."
_NOTHING = "Nothing to mend: nothing is held."
_LEASES = "The leases of the items in flight, which the next workers take over once they pass."

JOB_STATE_DOCS: Mapping[str, StateDoc] = MappingProxyType(
    {
        JobState.RECEIVED: StateDoc(
            entered="By intake, when the submission is durable, or as the successor of a job that ended.",
            left="In the same transaction, once the tenant is found.",
            crash="No job at all: the transaction is undone, and the same submission makes it again.",
        ),
        JobState.AUTHORIZED: StateDoc(
            entered="The tenant may run this job.",
            left="In the same transaction, with the parse item created.",
            crash="No job at all: the transaction is undone, and the same submission makes it again.",
        ),
        JobState.EXTRACTING: StateDoc(
            entered="The parse item is open.",
            left="When the parse item is accepted; clauses and rule items are created with it.",
            crash="The lease of the parse item; the next worker parses again.",
        ),
        JobState.RETRIEVING: StateDoc(
            entered="Clauses and rule items exist, the retrieve item is open.",
            left="When the retrieve item is accepted.",
            crash="The lease of the retrieve item; the next worker retrieves again.",
        ),
        JobState.GENERATING_RULES: StateDoc(
            entered="The context is stored, the rule items are open.",
            left="In the transaction that accepts the last rule item.",
            crash=_LEASES,
        ),
        JobState.GENERATING_TESTS: StateDoc(
            entered="In the transaction that accepts the last rule item, which also creates the test items.",
            left="In the transaction that accepts the last test item.",
            crash=_LEASES,
        ),
        JobState.VALIDATING: StateDoc(
            entered="In the transaction that accepts the last test item, which also creates the validate item.",
            left="With a passing report. With failures it stays here until a person rejects or cancels it.",
            crash="The lease of the validate item; the next worker validates again.",
        ),
        JobState.AWAITING_CONFIRMATION: StateDoc(
            entered="With a passing report; the action set is fixed.",
            left="By a person, who confirms exactly this action set or rejects it; at the deadline, as expired.",
            crash=_NOTHING,
        ),
        JobState.EXECUTING: StateDoc(
            entered="By the confirmation of the action set.",
            left="When every action is done.",
            crash="An action to be reconciled, never a half-written bundle.",
        ),
        JobState.COMPLETED: StateDoc(entered="The bundle is published.", left=_FINAL, crash=_NOTHING),
        JobState.FAILED: StateDoc(entered="Ended without a result.", left=_FINAL, crash=_NOTHING),
        JobState.CANCELLED: StateDoc(
            entered="By a person, with a reason: cancelled or rejected. Its unfinished items end with it.",
            left=_FINAL,
            crash="Calls in flight, which nobody waits for; what they report later is recorded as stale.",
        ),
        JobState.EXPIRED: StateDoc(
            entered="By whoever finds that the deadline leaves no time for another call. Its unfinished items end with"
            " it.",
            left=_FINAL,
            crash="Calls in flight, which nobody waits for; what they report later is recorded as stale.",
        ),
        JobState.NEEDS_DECISION: StateDoc(
            entered="By a release that finds, before it claims anything, that it cannot honour the frozen behaviour; or"
            " where the provider reports another model than before, and the job stops for that. The reason is kept.",
            left="By a person: retained or migrated, back to where the job stood, or stopped, to its end. A job that"
            " was retained for a release that is not here goes back by itself once one runs that honours it. At the"
            " deadline, as expired.",
            crash="Nothing to mend: nothing is claimed meanwhile, and what was in flight before is accepted as ever.",
        ),
    }
)

WORK_STATE_DOCS: Mapping[str, StateDoc] = MappingProxyType(
    {
        WorkState.PENDING: StateDoc(
            entered="When its stage is created, or by a redrive.",
            left="By a claim.",
            crash=_NOTHING,
        ),
        WorkState.RUNNING: StateDoc(
            entered="By a claim: token, lease and worker are set.",
            left="By completion or failure under its token, by a worker that stops and gives it back, or by"
            " cancellation. A takeover only renews the token.",
            crash="It runs on until the lease passes, and the next claim books the attempt as crashed. Where the worker"
            " is proven dead, that is done at once, and the item waits, due now.",
        ),
        WorkState.WAITING: StateDoc(
            entered="By a failed attempt that may be tried again; the retry is due at `next_attempt_at`.",
            left="By a claim at or after that time, or by cancellation.",
            crash=_NOTHING,
        ),
        WorkState.SUCCEEDED: StateDoc(entered="The accepted output is stored.", left=_FINAL, crash=_NOTHING),
        WorkState.FAILED: StateDoc(
            entered="Out of attempts, a permanent error, or a draft that is refused for good.",
            left="By an explicit redrive with a reason.",
            crash=_NOTHING,
        ),
        WorkState.CANCELLED: StateDoc(
            entered="The job ended before this item succeeded; token and lease are taken from it.",
            left=_FINAL,
            crash=_NOTHING,
        ),
    }
)

_LATE = "By a late report of a worker that was taken for lost: stale, or the failure that it tells."

ATTEMPT_OUTCOME_DOCS: Mapping[str, StateDoc] = MappingProxyType(
    {
        AttemptOutcome.ACCEPTED: StateDoc(
            entered="Its draft became the accepted output, or it stands for one that was inherited from a predecessor.",
            left=_FINAL,
            crash="The output, durable with it.",
        ),
        AttemptOutcome.INVALID_OUTPUT: StateDoc(entered="The draft failed validation.", left=_FINAL, crash=_NOTHING),
        AttemptOutcome.RETRYABLE: StateDoc(
            entered="The call did no work and may be tried again.", left=_FINAL, crash=_NOTHING
        ),
        AttemptOutcome.RATE_LIMITED: StateDoc(entered="The provider asked to wait.", left=_FINAL, crash=_NOTHING),
        AttemptOutcome.AMBIGUOUS: StateDoc(
            entered="The call may have done its work; it may be billed.",
            left=_FINAL,
            crash="A call that may be billed; it is shown as not used.",
        ),
        AttemptOutcome.PERMANENT: StateDoc(entered="Trying again cannot help.", left=_FINAL, crash=_NOTHING),
        AttemptOutcome.CRASHED: StateDoc(
            entered="The lease passed without a word from the worker, or the worker was proven dead.",
            left=_LATE,
            crash="This outcome is what a crash leaves; a call may be billed, and is shown as not used.",
        ),
        AttemptOutcome.CANCELLED: StateDoc(
            entered="Its job was cancelled or expired while it was in flight, or its worker gave it back: told to stop,"
            " or without the time for a call.",
            left=_LATE,
            crash="A call that may be billed; it is shown as not used.",
        ),
        AttemptOutcome.STALE: StateDoc(
            entered="Completed after its token or lease had gone; recorded, never applied.",
            left=_FINAL,
            crash="A call that is billed; it is shown as not used.",
        ),
    }
)

ACTION_STATE_DOCS: Mapping[str, StateDoc] = MappingProxyType(
    {
        ActionState.PROPOSED: StateDoc(
            entered="With the action set that a passing validation fixes. Never executed.",
            left="By a person's decision on the action set, or with the job's end.",
            crash=_NOTHING,
        ),
        ActionState.CONFIRMED: StateDoc(
            entered="A person confirmed exactly this action set.",
            left="By the next publisher's claim, or with the job's end.",
            crash=_NOTHING,
        ),
        ActionState.EXECUTING: StateDoc(
            entered="By a claim: token and lease are set.",
            left="With its receipt, as unknown, or as failed where it had no effect.",
            crash="It stays here until the lease passes, or becomes unknown where the publisher is proven dead; the"
            " next claim looks for the effect before it makes it.",
        ),
        ActionState.DONE: StateDoc(
            entered="Its effect is verified and its receipt stored.", left=_FINAL, crash=_NOTHING
        ),
        ActionState.UNKNOWN: StateDoc(
            entered="The effect may or may not have happened.",
            left="By reconciliation alone, which looks for the effect first.",
            crash=_NOTHING,
        ),
        ActionState.FAILED: StateDoc(entered="It had no effect and was given up.", left=_FINAL, crash=_NOTHING),
    }
)

STATE_DOCS: Mapping[Subject, Mapping[str, StateDoc]] = MappingProxyType(
    {
        Subject.JOB: JOB_STATE_DOCS,
        Subject.WORK_ITEM: WORK_STATE_DOCS,
        Subject.ATTEMPT: ATTEMPT_OUTCOME_DOCS,
        Subject.ACTION: ACTION_STATE_DOCS,
    }
)
"""The documentation of every state, by what has it. Keyed twice, because two subjects may share a state's name."""
