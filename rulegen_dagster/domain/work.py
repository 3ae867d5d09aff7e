"""Work: a claim on an item, the offer of an output, and what became of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from rulegen_dagster.domain.clause import ParsedSpec
from rulegen_dagster.domain.quota import Remaining
from rulegen_dagster.domain.refusal import Refusal
from rulegen_dagster.domain.states import AttemptOutcome, Stage

DOCUMENT_ITEM = "document"
"""Item key of the stages that treat a job as a whole."""

STAGE_VERSION = 1
"""Version of every stage's items; a stage that is redone in another way gets the next one."""


class AttemptKind(StrEnum):
    """What an attempt is for: a closed set."""

    FIRST = "first"
    #: After one that failed, was lost or was given back; it is asked for the same again.
    RETRY = "retry"
    #: After a refused draft; it is told the codes and places of what was wrong.
    REPAIR = "repair"


@dataclass(frozen=True, kw_only=True)
class WorkKey:
    """The identity of a work item; `job_id` is the ledger's number."""

    job_id: int
    stage: Stage
    item_key: str
    stage_version: int = STAGE_VERSION


def item_name(stage: Stage, item_key: str) -> str:
    """Return an item's name for people: `generate_rules/rule-03`, and the stage alone where it has one item."""
    return stage.value if item_key == DOCUMENT_ITEM else f"{stage}/{item_key}"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The right to complete one item: token and lease.

    It ends at `lease_until` (ms on the ledger's clock) unless renewed. `operation_key` is the provider's idempotency
    key, stable over attempts; `attempt` counts from 1. `remaining_ms` is what the job's deadline and margin left for
    calls when the item was claimed (None: no deadline), which was at `claimed_s` of the worker's own monotonic clock.
    `repair` is what the attempt shall mend; empty unless it is a repair. `longer_answer` allows its answer more tokens
    than usual: that much is reserved for it. `waived` is what a person said who waived the item's clause: nobody is to
    be called for it any more.
    """

    key: WorkKey
    job: str
    partition_key: str | None
    clause_ordinal: int | None
    token: str
    attempt: int
    attempt_limit: int
    operation_key: str
    lease_until: int
    remaining_ms: int | None = None
    claimed_s: float = 0.0
    repair: tuple[Refusal, ...] = ()
    longer_answer: bool = False
    waived: str | None = None


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What one provider call said of itself; None where it said nothing.

    `remaining` is what it said is left of the provider's limits; it lowers the scope's quota and is not kept. `report`
    is what else it said: names and numbers, no content.
    """

    model_id: str | None = None
    request_id: str | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    cost_micros: int | None = None
    remaining: Remaining | None = None
    report: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)


NO_USAGE = Usage()
"""The usage of an attempt that called nobody."""


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A validated output together with the claim that may complete it.

    `output` is canonical JSON. `parsed` is set for the parse stage alone: its clauses are stored, and the rule items
    created, in the completing transaction. `passed` is the verdict of the validate stage.
    """

    claim: Claim
    output: str
    provider: str | None = None
    provider_called: bool = False
    usage: Usage = NO_USAGE
    parsed: ParsedSpec | None = None
    passed: bool | None = None
    action_set: str | None = None


@dataclass(frozen=True, kw_only=True)
class FailedAttempt:
    """An attempt that ended without an output; the message holds no content.

    `refusals` say why a draft was refused, and `may_repair` whether one more call may mend that. `account_refused`
    tells that the provider refuses the account, whatever is asked of it.
    """

    claim: Claim
    outcome: AttemptOutcome
    error_code: str
    message: str
    provider: str | None = None
    provider_called: bool = False
    usage: Usage = NO_USAGE
    retry_after_ms: int | None = None
    refusals: tuple[Refusal, ...] = ()
    may_repair: bool = False
    account_refused: bool = False


class Landing(StrEnum):
    """What the completion guard said."""

    ACCEPTED = "accepted"
    STALE = "stale"
