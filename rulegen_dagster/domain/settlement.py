"""Settlement: what the end of an attempt means for what it had reserved of its scopes' quotas."""

from dataclasses import dataclass
from enum import StrEnum

from rulegen_dagster.domain.quota import Remaining
from rulegen_dagster.domain.retry import MAX_WAIT_MS, RetryDecision
from rulegen_dagster.domain.states import AttemptOutcome
from rulegen_dagster.domain.work import FailedAttempt, Offer

SHORTEST_BLOCK_MS = 1_000
"""How long a scope is left alone at least after a rate limit for which the provider named no time."""


class ReservationState(StrEnum):
    """What became of a reservation: a closed set; the database refuses every other change."""

    #: The attempt is in flight.
    RESERVED = "reserved"
    #: Nobody knows whether the call was made: the estimate stays charged, and a late result may settle it.
    KEPT = "kept"
    #: What the call used is known, and charged.
    SETTLED = "settled"
    #: Nothing was called; all of it went back.
    RELEASED = "released"


OPEN_RESERVATIONS = (ReservationState.RESERVED, ReservationState.KEPT)
"""The states that a reservation may still leave."""


@dataclass(frozen=True, kw_only=True)
class Settlement:
    """What one ended attempt tells its scopes.

    `tokens` and `micros` are None where the call is charged as estimated. `has_answered` tells that the provider took
    the account, `refused_code` that it does not, `blocked_ms` for how long it wants to be left alone.
    """

    token: str
    job_id: int
    state: ReservationState
    requests: int = 1
    tokens: int | None = None
    micros: int | None = None
    remaining: Remaining | None = None
    blocked_ms: int | None = None
    refused_code: str | None = None
    has_answered: bool = False


def settlement_of(ended: Offer | FailedAttempt, decision: RetryDecision | None = None) -> Settlement:
    """Return what an attempt's end means for its reservation; `decision` is what becomes of a failed one's item."""
    token, job_id, usage = ended.claim.token, ended.claim.key.job_id, ended.usage
    if not ended.provider_called:
        return _nothing_used(token, job_id, requests=0)
    outcome = AttemptOutcome.ACCEPTED if isinstance(ended, Offer) else ended.outcome
    match outcome:
        case AttemptOutcome.ACCEPTED | AttemptOutcome.INVALID_OUTPUT:
            counted = [count for count in (usage.tokens_in, usage.tokens_out) if count is not None]
            return Settlement(
                token=token,
                job_id=job_id,
                state=ReservationState.SETTLED,
                tokens=sum(counted) if counted else None,
                micros=usage.cost_micros,
                remaining=usage.remaining,
                has_answered=True,
            )
        case AttemptOutcome.RETRYABLE if isinstance(ended, FailedAttempt) and ended.account_refused:
            return _nothing_used(token, job_id, refused_code=ended.error_code)
        case AttemptOutcome.RETRYABLE:
            return _nothing_used(token, job_id, requests=0)
        case AttemptOutcome.RATE_LIMITED if isinstance(ended, FailedAttempt):
            asked = ended.retry_after_ms
            delay = asked if asked is not None else (decision.delay_ms if decision else None) or 0
            return _nothing_used(
                token,
                job_id,
                remaining=usage.remaining,
                # Without a word of the provider's own, what the item itself would wait.
                blocked_ms=min(MAX_WAIT_MS, delay if asked is not None else max(delay, SHORTEST_BLOCK_MS)),
                has_answered=True,
            )
        case AttemptOutcome.PERMANENT:
            return _nothing_used(token, job_id, has_answered=True)
        case _:
            return Settlement(token=token, job_id=job_id, state=ReservationState.KEPT)


def _nothing_used(
    token: str,
    job_id: int,
    *,
    requests: int = 1,
    remaining: Remaining | None = None,
    blocked_ms: int | None = None,
    refused_code: str | None = None,
    has_answered: bool = False,
) -> Settlement:
    return Settlement(
        token=token,
        job_id=job_id,
        state=ReservationState.SETTLED if requests else ReservationState.RELEASED,
        requests=requests,
        tokens=0,
        micros=0,
        remaining=remaining,
        blocked_ms=blocked_ms,
        refused_code=refused_code,
        has_answered=has_answered,
    )
