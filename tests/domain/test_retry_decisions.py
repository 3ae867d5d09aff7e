import pytest
from hypothesis import given
from hypothesis import strategies as st

from rulegen_dagster.domain.retry import MAX_WAIT_MS, RETRYABLE_OUTCOMES, RetryPolicy, decide_retry
from rulegen_dagster.domain.states import AttemptOutcome, WorkState

POLICY = RetryPolicy(max_attempts=3, first_delay_ms=1_000, max_delay_ms=5_000)
OUTCOMES = st.sampled_from(list(AttemptOutcome))
JITTERS = st.floats(0, 1, exclude_max=True)


@pytest.mark.parametrize(
    ("outcome", "attempt", "expected"),
    [
        (AttemptOutcome.RETRYABLE, 1, (WorkState.WAITING, 500, True)),
        (AttemptOutcome.RETRYABLE, 2, (WorkState.WAITING, 1_000, True)),
        (AttemptOutcome.RETRYABLE, 3, (WorkState.FAILED, None, True)),
        (AttemptOutcome.AMBIGUOUS, 1, (WorkState.WAITING, 500, True)),
        (AttemptOutcome.AMBIGUOUS, 3, (WorkState.FAILED, None, True)),
        (AttemptOutcome.INVALID_OUTPUT, 1, (WorkState.WAITING, 500, True)),
        (AttemptOutcome.RATE_LIMITED, 1, (WorkState.WAITING, 500, False)),
        (AttemptOutcome.RATE_LIMITED, 3, (WorkState.WAITING, 2_000, False)),
        (AttemptOutcome.PERMANENT, 1, (WorkState.FAILED, None, True)),
        (AttemptOutcome.CRASHED, 1, (WorkState.FAILED, None, True)),
        (AttemptOutcome.CANCELLED, 1, (WorkState.WAITING, 0, False)),
        (AttemptOutcome.CANCELLED, 9, (WorkState.WAITING, 0, False)),
        (AttemptOutcome.STALE, 1, (WorkState.FAILED, None, True)),
    ],
)
def test_the_outcome_and_the_attempt_decide(
    outcome: AttemptOutcome, attempt: int, expected: tuple[WorkState, int | None, bool]
) -> None:
    decision = decide_retry(outcome, attempt=attempt, attempt_limit=3, policy=POLICY, jitter=0.5)

    assert (decision.state, decision.delay_ms, decision.consumes_budget) == expected


@given(OUTCOMES, st.integers(1, 2_000), st.integers(1, 2_000), JITTERS, st.none() | st.integers(0, 10**7))
def test_a_decision_waits_with_a_bounded_delay_or_fails_with_none(
    outcome: AttemptOutcome, attempt: int, limit: int, jitter: float, retry_after: int | None
) -> None:
    decision = decide_retry(
        outcome, attempt=attempt, attempt_limit=limit, policy=POLICY, jitter=jitter, retry_after_ms=retry_after
    )

    assert (decision.state is WorkState.WAITING) == (decision.delay_ms is not None)
    assert decision.state in {WorkState.WAITING, WorkState.FAILED}
    if decision.delay_ms is not None and outcome is not AttemptOutcome.CANCELLED:
        assert (retry_after or 0) <= decision.delay_ms <= max(POLICY.max_delay_ms, retry_after or 0)


@given(OUTCOMES, st.integers(1, 50), JITTERS)
def test_nothing_is_tried_again_without_a_word_that_it_may_help(
    outcome: AttemptOutcome, attempt: int, jitter: float
) -> None:
    decision = decide_retry(outcome, attempt=attempt, attempt_limit=100, policy=POLICY, jitter=jitter)

    given_back = outcome is AttemptOutcome.CANCELLED
    assert (decision.state is WorkState.WAITING) == (outcome in RETRYABLE_OUTCOMES or given_back)


@given(st.integers(1, 20), JITTERS)
def test_a_longer_history_never_makes_the_delay_shorter(attempt: int, jitter: float) -> None:
    first, second = (
        decide_retry(AttemptOutcome.RETRYABLE, attempt=n, attempt_limit=100, policy=POLICY, jitter=jitter).delay_ms
        for n in (attempt, attempt + 1)
    )

    assert first is not None
    assert second is not None
    assert first <= second


def test_the_providers_own_wait_is_kept_even_where_it_is_longer_than_the_cap() -> None:
    decision = decide_retry(
        AttemptOutcome.RATE_LIMITED, attempt=1, attempt_limit=3, policy=POLICY, jitter=0.0, retry_after_ms=90_000
    )

    assert decision.delay_ms == 90_000


def test_no_word_of_a_provider_makes_an_item_wait_longer_than_a_day() -> None:
    decision = decide_retry(
        AttemptOutcome.RATE_LIMITED, attempt=1, attempt_limit=3, policy=POLICY, jitter=0.0, retry_after_ms=10**15
    )

    assert decision.delay_ms == MAX_WAIT_MS == 86_400_000


@pytest.mark.parametrize("attempt", [1, 2, 3])
def test_a_draft_that_is_refused_for_good_ends_the_item_whatever_is_left(attempt: int) -> None:
    decision = decide_retry(
        AttemptOutcome.INVALID_OUTPUT,
        attempt=attempt,
        attempt_limit=3,
        policy=POLICY,
        jitter=0.5,
        refused_for_good=True,
    )

    assert (decision.state, decision.delay_ms, decision.consumes_budget) == (WorkState.FAILED, None, True)


@pytest.mark.parametrize("attempt", [1, 9])
def test_a_refused_account_is_no_items_fault(attempt: int) -> None:
    decision = decide_retry(
        AttemptOutcome.RETRYABLE, attempt=attempt, attempt_limit=3, policy=POLICY, jitter=0.5, account_refused=True
    )

    assert (decision.state, decision.delay_ms, decision.consumes_budget) == (WorkState.WAITING, 0, False)
