"""Retry policy: what becomes of a work item whose attempt failed."""

from dataclasses import dataclass

from rulegen_dagster.domain.states import AttemptOutcome, WorkState

RETRYABLE_OUTCOMES = frozenset(
    {
        AttemptOutcome.RETRYABLE,
        AttemptOutcome.RATE_LIMITED,
        AttemptOutcome.AMBIGUOUS,
        AttemptOutcome.INVALID_OUTPUT,
    }
)


MAX_WAIT_MS = 24 * 3_600_000
"""Longest wait between two attempts, whatever a provider asks for: one day."""


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Attempts per work item, and the delay between them: exponential, full jitter, a cap (all in ms)."""

    max_attempts: int = 3
    first_delay_ms: int = 1_000
    max_delay_ms: int = 60_000


@dataclass(frozen=True, kw_only=True)
class RetryDecision:
    """Where a failed attempt leaves its item; `delay_ms` counts from the ledger's clock."""

    state: WorkState
    delay_ms: int | None
    consumes_budget: bool


def decide_retry(
    outcome: AttemptOutcome,
    *,
    attempt: int,
    attempt_limit: int,
    policy: RetryPolicy,
    jitter: float,
    retry_after_ms: int | None = None,
    refused_for_good: bool = False,
    account_refused: bool = False,
) -> RetryDecision:
    """Decide between waiting and failed.

    `jitter` is a random number in [0, 1). A provider's own `retry_after_ms` is respected as a lower bound, up to
    `MAX_WAIT_MS`; a rate limit does not consume the budget. An attempt that its own worker gave up, because it was told
    to stop or had no time left for the call, is no fault of the item: it may be claimed again at once, and consumes
    nothing. A draft that is `refused_for_good` (what is wrong must not be mended by asking again, or was asked to be
    mended already) ends the item, however many attempts it has left. Where the provider refuses the account
    (`account_refused`), no item is to blame: it waits with all others of the account, until that is mended.
    """
    if outcome is AttemptOutcome.CANCELLED or account_refused:
        return RetryDecision(state=WorkState.WAITING, delay_ms=0, consumes_budget=False)
    consumes = outcome is not AttemptOutcome.RATE_LIMITED
    limit = attempt_limit if consumes else attempt_limit + 1
    if outcome not in RETRYABLE_OUTCOMES or attempt >= limit or refused_for_good:
        return RetryDecision(state=WorkState.FAILED, delay_ms=None, consumes_budget=consumes)
    ceiling = min(policy.max_delay_ms, policy.first_delay_ms * 2 ** (attempt - 1))
    delay = min(max(int(ceiling * jitter), retry_after_ms or 0), MAX_WAIT_MS)
    return RetryDecision(state=WorkState.WAITING, delay_ms=delay, consumes_budget=consumes)
