"""States of jobs, work items, attempts and actions: how each is entered and left, and what a crash leaves.

The database repeats each set as a CHECK; a test compares the two.
"""

from enum import StrEnum


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
    """The state of a job."""

    #: The submission is durable. Entered by intake; left in the same transaction once the tenant is authorized.
    RECEIVED = "received"
    #: The tenant may run this job. Left in the same transaction, with the parse item created.
    AUTHORIZED = "authorized"
    #: The parse item is open. A crash leaves its lease, and the next worker parses again.
    EXTRACTING = "extracting"
    #: Clauses and rule items exist, the retrieve item is open. A crash leaves its lease.
    RETRIEVING = "retrieving"
    #: Rule items are open. A crash leaves the leases of the items in flight, nothing else.
    GENERATING_RULES = "generating_rules"
    #: Entered in the transaction that accepts the last rule item, which also creates the test items.
    GENERATING_TESTS = "generating_tests"
    #: Entered in the transaction that accepts the last test item. A report with failures stays here.
    VALIDATING = "validating"
    #: Entered with a passing report; the action set is fixed. Waits for a person; nothing is held meanwhile.
    AWAITING_CONFIRMATION = "awaiting_confirmation"
    #: The action set is confirmed. A crash leaves an action to be reconciled, never a half-written bundle.
    EXECUTING = "executing"
    #: The bundle is published. Terminal.
    COMPLETED = "completed"
    #: Ended without a result. Terminal.
    FAILED = "failed"
    #: Ended by a person. Terminal.
    CANCELLED = "cancelled"
    #: The deadline passed. Terminal.
    EXPIRED = "expired"
    #: The running release cannot honour the frozen behaviour; a person decides how to go on.
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
    """The state of a work item."""

    #: Never tried, or given back by a redrive. Entered when its stage is created. A crash leaves it as it is.
    PENDING = "pending"
    #: Claimed: token, lease and worker are set. Left by completion, failure or takeover after the lease.
    #: A crash leaves it running until the lease expires; the next claim books the attempt as crashed.
    RUNNING = "running"
    #: A retry is due at `next_attempt_at`. Nothing is held meanwhile.
    WAITING = "waiting"
    #: The accepted output is stored. Final: a trigger refuses any change.
    SUCCEEDED = "succeeded"
    #: Out of attempts, or a permanent error. Left only by an explicit redrive.
    FAILED = "failed"
    #: The job was cancelled before this item succeeded. Final.
    CANCELLED = "cancelled"


class AttemptOutcome(StrEnum):
    """How one attempt ended; an attempt without an outcome is in flight, or its worker is lost."""

    #: Its draft became the accepted output.
    ACCEPTED = "accepted"
    #: The draft failed validation.
    INVALID_OUTPUT = "invalid_output"
    #: The call did no work and may be tried again.
    RETRYABLE = "retryable"
    #: The provider asked to wait.
    RATE_LIMITED = "rate_limited"
    #: The call may have done its work; it may be billed.
    AMBIGUOUS = "ambiguous"
    #: Trying again cannot help.
    PERMANENT = "permanent"
    #: The lease expired without a word from the worker.
    CRASHED = "crashed"
    #: Ended by a cancellation.
    CANCELLED = "cancelled"
    #: Completed after its token or lease had gone; recorded, never applied.
    STALE = "stale"


class ActionState(StrEnum):
    """The state of an external action."""

    #: Part of an action set that nobody has confirmed. Never executed.
    PROPOSED = "proposed"
    #: A person confirmed exactly this action set. The next publisher claims it.
    CONFIRMED = "confirmed"
    #: Claimed: token and lease are set. A crash leaves it here until the lease expires.
    EXECUTING = "executing"
    #: Its effect is verified and its receipt stored. Final.
    DONE = "done"
    #: The effect may or may not have happened; left only by reconciliation.
    UNKNOWN = "unknown"
    #: It had no effect and was given up. Final.
    FAILED = "failed"
