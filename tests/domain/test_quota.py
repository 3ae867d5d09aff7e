"""The bucket of a scope: nothing is overspent, waits are true, refunds are exact, the breaker lets one try through."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rulegen_dagster.domain.errors import InputError
from rulegen_dagster.domain.quota import (
    FIRST_PROBE_MS,
    LAST_PROBE_MS,
    NO_QUOTA,
    UNIT,
    Bucket,
    CallCost,
    Estimate,
    QuotaLimits,
    QuotaReason,
    QuotaRefusal,
    Remaining,
    answered,
    blocked,
    clamped,
    estimate_call,
    full_bucket,
    hardest,
    lifted,
    longest_covered,
    refilled,
    refusal_of,
    reserved,
    settled,
    tripped,
    with_limits,
)
from rulegen_dagster.domain.quota_scope import QuotaScope

RPM, TPM = 7, 900
RATES = QuotaLimits(requests_per_minute=RPM, tokens_per_minute=TPM)
CALLS = st.lists(
    st.tuples(
        st.integers(0, 40_000),  # ms since the call before
        st.integers(0, TPM),  # estimated tokens
        st.integers(0, TPM),  # used tokens, of the estimate or more
    ),
    max_size=40,
)


@given(CALLS)
def test_no_window_of_time_is_granted_more_than_a_full_bucket_and_its_refill(calls: list[tuple[int, int, int]]) -> None:
    bucket, now = full_bucket(RATES, 0), 0
    granted: list[tuple[int, int]] = []
    for pause, tokens, _ in calls:
        now += pause
        bucket, need = refilled(bucket, now), Estimate(tokens=tokens)
        if refusal_of(bucket, need, now) is None:
            bucket = reserved(bucket, need, now, by="t")
            granted.append((now, tokens))

    for start in range(len(granted)):
        for end in range(start, len(granted)):
            window = granted[start : end + 1]
            length = window[-1][0] - window[0][0]
            assert len(window) * UNIT <= RPM * UNIT + RPM * length
            assert sum(tokens for _, tokens in window) * UNIT <= TPM * UNIT + TPM * length


@given(CALLS, st.integers(1, TPM))
def test_a_wait_is_as_long_as_it_has_to_be_and_no_longer(calls: list[tuple[int, int, int]], wanted: int) -> None:
    bucket, now = full_bucket(RATES, 0), 0
    for pause, tokens, used in calls:
        now += pause
        bucket = reserved(refilled(bucket, now), Estimate(tokens=tokens), now, by="t")
        bucket = settled(bucket, Estimate(tokens=tokens), requests=1, tokens=used, micros=0)
    need = Estimate(tokens=wanted)
    refusal = refusal_of(bucket, need, now)

    if refusal is not None:
        assert refusal.wait_ms is not None
        assert refusal.wait_ms > 0
        later, before = now + refusal.wait_ms, now + refusal.wait_ms - 1
        assert refusal_of(refilled(bucket, later), need, later) is None
        assert refusal_of(refilled(bucket, before), need, before) is not None


@given(CALLS)
def test_a_call_that_was_settled_weighs_what_it_used_whatever_was_reserved_for_it(
    calls: list[tuple[int, int, int]],
) -> None:
    limits = replace(RATES, budget_micros=10**9)
    estimated = known = full_bucket(limits, 0)
    for _, tokens, used in calls:
        need = Estimate(tokens=tokens, cost_micros=tokens)
        estimated = reserved(estimated, need, 0, by="t")
        estimated = settled(estimated, need, requests=1, tokens=used, micros=used)
        known = reserved(known, Estimate(tokens=used, cost_micros=used), 0, by="t")

    assert estimated.token_level == known.token_level
    assert estimated.request_level == known.request_level
    assert estimated.charged_micros == known.charged_micros


@given(CALLS, st.integers(0, 5_000))
def test_reserved_money_never_exceeds_the_budget(calls: list[tuple[int, int, int]], budget: int) -> None:
    bucket = full_bucket(QuotaLimits(budget_micros=budget), 0)
    for _, cost, used in calls:
        need = Estimate(cost_micros=cost)
        if refusal_of(bucket, need, 0) is None:
            bucket = reserved(bucket, need, 0, by="t")
            assert bucket.charged_micros <= budget
            bucket = settled(bucket, need, requests=1, tokens=None, micros=min(used, cost))

    assert 0 <= bucket.charged_micros <= budget


@given(st.integers(0, 10**7), st.integers(0, 10**7), st.integers(0, 10**6))
def test_a_header_lowers_a_level_and_never_raises_it(level: int, left: int, after: int) -> None:
    bucket = replace(full_bucket(RATES, 0), token_level=min(level, TPM * UNIT))
    lowered = clamped(bucket, Remaining(tokens=left), requests_after=0, tokens_after=after)

    assert lowered.token_level <= bucket.token_level
    assert lowered.token_level <= (left - after) * UNIT
    assert lowered.request_level == bucket.request_level


def test_more_use_than_was_reserved_delays_whoever_comes_next() -> None:
    need = Estimate(tokens=100)
    bucket = reserved(full_bucket(RATES, 0), need, 0, by="t")
    bucket = settled(bucket, need, requests=1, tokens=TPM + 90, micros=None)

    refusal = refusal_of(bucket, Estimate(), 0)

    assert bucket.token_level == -90 * UNIT
    assert refusal == QuotaRefusal(reason=QuotaReason.TOKENS, wait_ms=6_000)


def test_a_call_that_one_minute_can_never_cover_is_refused_for_good() -> None:
    refusal = refusal_of(full_bucket(RATES, 0), Estimate(tokens=TPM + 1), 0)

    assert refusal == QuotaRefusal(reason=QuotaReason.TOO_LARGE, wait_ms=None)


def test_calls_at_once_are_bounded() -> None:
    bucket = full_bucket(QuotaLimits(concurrency=1), 0)
    busy = reserved(bucket, Estimate(), 0, by="t")

    assert refusal_of(bucket, Estimate(), 0) is None
    assert refusal_of(busy, Estimate(), 0) == QuotaRefusal(reason=QuotaReason.CONCURRENCY, wait_ms=None)


def test_a_budget_refuses_what_it_does_not_cover_and_what_nobody_can_price() -> None:
    bucket = full_bucket(QuotaLimits(budget_micros=100), 0, charged_micros=60)

    assert refusal_of(bucket, Estimate(cost_micros=40), 0) is None
    assert refusal_of(bucket, Estimate(cost_micros=41), 0) == QuotaRefusal(reason=QuotaReason.BUDGET, wait_ms=None)
    assert refusal_of(bucket, Estimate(cost_micros=None), 0) == QuotaRefusal(reason=QuotaReason.NO_PRICE, wait_ms=None)


def test_a_call_that_costs_nothing_is_made_with_a_budget_that_is_spent() -> None:
    bucket = full_bucket(QuotaLimits(budget_micros=100), 0, charged_micros=200)

    assert refusal_of(bucket, Estimate(cost_micros=0), 0) is None


def test_a_scope_is_left_alone_for_as_long_as_the_provider_asked() -> None:
    bucket = blocked(blocked(full_bucket(NO_QUOTA, 0), 5_000), 2_000)

    assert refusal_of(bucket, Estimate(), 1_000) == QuotaRefusal(reason=QuotaReason.BLOCKED, wait_ms=4_000)
    assert refusal_of(bucket, Estimate(), 5_000) is None


def test_the_longest_of_several_waits_is_told() -> None:
    bucket = blocked(replace(full_bucket(RATES, 0), request_level=0), 100_000)

    assert refusal_of(bucket, Estimate(), 0) == QuotaRefusal(reason=QuotaReason.BLOCKED, wait_ms=100_000)
    assert hardest({"a": QuotaRefusal(reason=QuotaReason.BUDGET, wait_ms=None), "b": _waits(9)}) == "a"
    assert hardest({"a": _waits(8), "b": _waits(9)}) == "b"
    assert hardest({}) is None


def test_a_refused_account_is_tried_by_one_attempt_after_each_pause() -> None:
    bucket = tripped(full_bucket(NO_QUOTA, 0), 0, by="first", code="provider_account")
    assert refusal_of(bucket, Estimate(), 0) == QuotaRefusal(reason=QuotaReason.ACCOUNT, wait_ms=FIRST_PROBE_MS)

    assert refusal_of(bucket, Estimate(), FIRST_PROBE_MS) is None
    bucket = reserved(bucket, Estimate(), FIRST_PROBE_MS, by="probe")
    assert refusal_of(bucket, Estimate(), FIRST_PROBE_MS) is not None, "one probe at a time"

    bucket = tripped(bucket, FIRST_PROBE_MS + 5, by="probe", code="provider_account")
    assert refusal_of(bucket, Estimate(), FIRST_PROBE_MS + 5) == QuotaRefusal(
        reason=QuotaReason.ACCOUNT, wait_ms=2 * FIRST_PROBE_MS
    )


def test_calls_that_were_under_way_when_the_account_was_refused_open_the_breaker_no_wider() -> None:
    bucket = tripped(full_bucket(NO_QUOTA, 0), 0, by="first", code="provider_account")

    assert tripped(bucket, 500, by="second", code="provider_account") == bucket
    assert answered(bucket, by="third") == bucket


def test_a_probe_that_is_answered_closes_the_breaker() -> None:
    bucket = tripped(full_bucket(NO_QUOTA, 0), 0, by="first", code="provider_account")
    bucket = reserved(bucket, Estimate(), FIRST_PROBE_MS, by="probe")

    assert answered(bucket, by="probe").breaker is None


def test_a_probe_that_is_lost_is_followed_by_another() -> None:
    bucket = tripped(full_bucket(NO_QUOTA, 0), 0, by="first", code="provider_account")
    bucket = reserved(bucket, Estimate(), FIRST_PROBE_MS, by="lost")

    assert refusal_of(bucket, Estimate(), 2 * FIRST_PROBE_MS) is None


def test_the_pause_between_probes_has_a_longest() -> None:
    bucket, now = full_bucket(NO_QUOTA, 0), 0
    bucket = tripped(bucket, now, by="probe", code="provider_account")
    for _ in range(20):
        assert bucket.breaker is not None
        now = bucket.breaker.probe_at
        bucket = tripped(reserved(bucket, Estimate(), now, by="probe"), now, by="probe", code="provider_account")

    assert bucket.breaker is not None
    assert bucket.breaker.probe_at - now == LAST_PROBE_MS


def test_a_person_lifts_breaker_and_block_at_once() -> None:
    bucket = lifted(blocked(tripped(full_bucket(RATES, 0), 0, by="t", code="provider_account"), 9_000))

    assert refusal_of(bucket, Estimate(), 0) is None


def test_a_limit_that_is_changed_keeps_what_was_used_of_it() -> None:
    used = Bucket(limits=RATES, request_level=2 * UNIT, token_level=-5 * UNIT)

    narrower = with_limits(used, QuotaLimits(requests_per_minute=1, tokens_per_minute=TPM, concurrency=3), 0)
    without = with_limits(narrower, NO_QUOTA, 0)

    assert (narrower.request_level, narrower.token_level) == (UNIT, -5 * UNIT)
    assert with_limits(without, RATES, 0) == full_bucket(RATES, 0)


def test_an_estimate_counts_more_tokens_than_a_text_can_have_and_the_longest_answer() -> None:
    cost = CallCost(overhead_tokens=500, max_tokens=1_000, price_in=250_000, price_out=2_000_000)

    need = estimate_call(301, cost)
    unpriced = estimate_call(0, replace(cost, price_out=None))

    assert (need.tokens, need.cost_micros) == (101 + 500 + 1_000, 151 + 2_000)
    assert need.longer == Estimate(tokens=101 + 500 + 2 * 1_000, cost_micros=151 + 2 * 2_000)
    assert (unpriced.tokens, unpriced.cost_micros) == (1_500, None)
    assert unpriced.longer == Estimate(tokens=2_500, cost_micros=None)


@pytest.mark.parametrize(
    ("limits", "is_longer"),
    [
        (NO_QUOTA, True),
        (QuotaLimits(tokens_per_minute=150), True),
        (QuotaLimits(tokens_per_minute=149), False),
        (QuotaLimits(budget_micros=35), True),
        (QuotaLimits(budget_micros=34), False),
    ],
)
def test_a_longer_answer_needs_quotas_that_can_cover_it_some_day(limits: QuotaLimits, is_longer: bool) -> None:
    need = Estimate(tokens=100, cost_micros=20, longer_tokens=50, longer_micros=15)
    empty = Bucket(limits=limits)

    assert longest_covered(need, [Bucket(limits=NO_QUOTA), empty]) == (need.longer if is_longer else need)


def test_a_longer_answer_waits_for_what_calls_in_flight_may_give_back_of_a_budget() -> None:
    need = Estimate(tokens=100, cost_micros=20, longer_tokens=50, longer_micros=15)
    charged = Bucket(limits=QuotaLimits(budget_micros=100), charged_micros=80)

    assert longest_covered(need, [replace(charged, in_flight=1)]) == need.longer
    assert longest_covered(need, [charged]) == need


@pytest.mark.parametrize("name", ["provider:openai/meta-llama/Llama-3.1:8b", "tenant:acme", "job:acme/travel-2027"])
def test_a_scope_is_read_from_its_name(name: str) -> None:
    assert str(QuotaScope.parse(name)) == name


@pytest.mark.parametrize("name", ["", "acme", "provider:openai", "provider:/m", "user:x", "provider:a/b c", "tenant:A"])
def test_what_names_no_scope_is_refused(name: str) -> None:
    with pytest.raises(InputError):
        QuotaScope.parse(name)


def _waits(wait_ms: int) -> QuotaRefusal:
    return QuotaRefusal(reason=QuotaReason.TOKENS, wait_ms=wait_ms)
