"""Quotas: how many requests, tokens and how much money a scope may use, as pure decisions.

A scope's bucket refills evenly and holds one minute's worth at most. An attempt reserves what its call may use before
it is made, and settles with what the call did use afterwards. Levels are integers in 1/60,000 of a request or token:
a millisecond then adds exactly the limit per minute, and nothing is ever rounded. Times are ms on the ledger's clock,
money is micro-USD.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

UNIT = 60_000
"""How many units of a level one request or token is: the milliseconds of a minute."""

FIRST_PROBE_MS = 60_000
"""How long an account is left alone after it was refused, before one attempt tries it again."""

LAST_PROBE_MS = 15 * 60_000
"""The longest pause between two such tries; each failed one doubles it."""

BYTES_PER_TOKEN = 3
"""Fewer bytes than a token has in practice, so that a prompt is never estimated too small."""

LONGER_ANSWER = 2
"""How many times its usual limit of tokens an answer may have that is asked for again because it was cut off."""


@dataclass(frozen=True, kw_only=True)
class Remaining:
    """What an answer said is left of the provider's own limits; None where it said nothing."""

    requests: int | None = None
    tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class CallCost:
    """What one call of a provider may use at most, beside the text that it is asked about.

    `overhead_tokens` is everything else in its prompt, `max_tokens` the longest answer. Prices are micro-USD for a
    million tokens; None means that nobody knows.
    """

    overhead_tokens: int
    max_tokens: int
    price_in: int | None = None
    price_out: int | None = None


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a call may use at most; `cost_micros` is None where no price is known.

    `longer_tokens` and `longer_micros` come on top where its answer may be longer than usual.
    """

    tokens: int = 0
    cost_micros: int | None = 0
    longer_tokens: int = 0
    longer_micros: int = 0

    @property
    def longer(self) -> "Estimate":
        """What the same call may use with a longer answer."""
        micros = None if self.cost_micros is None else self.cost_micros + self.longer_micros
        return Estimate(tokens=self.tokens + self.longer_tokens, cost_micros=micros)


def estimate_call(text_bytes: int, cost: CallCost) -> Estimate:
    """Return the most that a call about a text (its length in UTF-8) may use; more than it will."""
    prompt = -(-text_bytes // BYTES_PER_TOKEN) + cost.overhead_tokens
    longer = cost.max_tokens * (LONGER_ANSWER - 1)
    if cost.price_in is None or cost.price_out is None:
        return Estimate(tokens=prompt + cost.max_tokens, cost_micros=None, longer_tokens=longer)
    return Estimate(
        tokens=prompt + cost.max_tokens,
        cost_micros=-(-(prompt * cost.price_in + cost.max_tokens * cost.price_out) // 1_000_000),
        longer_tokens=longer,
        longer_micros=-(-longer * cost.price_out // 1_000_000),
    )


@dataclass(frozen=True, kw_only=True)
class QuotaLimits:
    """What a scope may use: requests and tokens a minute, calls at once, money in all. None is no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    budget_micros: int | None = None


NO_QUOTA = QuotaLimits()
"""A scope without a limit; its breaker works all the same."""


class QuotaReason(StrEnum):
    """Why a scope grants nothing now: a closed set, also the codes that people see."""

    #: The provider refuses the account; one attempt at a time tries it again.
    ACCOUNT = "account_refused"
    #: The provider asked everybody to wait.
    BLOCKED = "quota_blocked"
    REQUESTS = "quota_requests"
    TOKENS = "quota_tokens"
    CONCURRENCY = "quota_concurrency"
    #: What is left of the money does not cover another call.
    BUDGET = "quota_budget"
    #: One call may need more tokens than a whole minute gives.
    TOO_LARGE = "quota_too_small"
    #: There is a budget, and nobody knows what a call costs.
    NO_PRICE = "quota_price_unknown"
    #: Nobody has said yet what a call may use; whoever loads the job for its next claims does.
    NO_ESTIMATE = "quota_estimate_missing"


@dataclass(frozen=True, kw_only=True)
class QuotaRefusal:
    """Why nothing is granted, and for how long at least (ms); None where time alone does not change it."""

    reason: QuotaReason
    wait_ms: int | None


@dataclass(frozen=True, kw_only=True)
class Breaker:
    """A provider's refusal of the account: since when, and when one attempt may try again.

    `probe` is the token of the last attempt that was let through to try; `failures` counts how often it was refused.
    """

    code: str
    opened_at: int
    probe_at: int
    failures: int = 1
    probe: str | None = None


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """What a scope has left at `refilled_at`; a level may be below nothing, and then delays whoever comes next.

    `charged_micros` is what was paid or is reserved. `in_flight` is counted, not stored: the calls under a live lease.
    """

    limits: QuotaLimits
    request_level: int = 0
    token_level: int = 0
    charged_micros: int = 0
    refilled_at: int = 0
    blocked_until: int | None = None
    breaker: Breaker | None = None
    in_flight: int = 0


def full_bucket(limits: QuotaLimits, now: int, *, charged_micros: int = 0) -> Bucket:
    """Return the bucket of a new scope."""
    return Bucket(
        limits=limits,
        request_level=_capacity(limits.requests_per_minute),
        token_level=_capacity(limits.tokens_per_minute),
        charged_micros=charged_micros,
        refilled_at=now,
    )


def with_limits(bucket: Bucket, limits: QuotaLimits, now: int) -> Bucket:
    """Return the bucket under other limits: a new kind of limit begins full, a changed one keeps its level."""
    bucket, old = refilled(bucket, now), bucket.limits
    return replace(
        bucket,
        limits=limits,
        request_level=_level(bucket.request_level, old.requests_per_minute, limits.requests_per_minute),
        token_level=_level(bucket.token_level, old.tokens_per_minute, limits.tokens_per_minute),
    )


def refilled(bucket: Bucket, now: int) -> Bucket:
    """Return the bucket as it is `now`; a clock that went back adds nothing."""
    passed = max(0, now - bucket.refilled_at)
    return replace(
        bucket,
        request_level=_refilled(bucket.request_level, bucket.limits.requests_per_minute, passed),
        token_level=_refilled(bucket.token_level, bucket.limits.tokens_per_minute, passed),
        refilled_at=max(now, bucket.refilled_at),
    )


def refusal_of(bucket: Bucket, need: Estimate, now: int) -> QuotaRefusal | None:
    """Return why a call that may use `need` is not granted at `now`, or None where it is.

    Of several reasons it is the one that lasts longest; one that time does not change comes first. The bucket is one
    that was refilled at `now`.
    """
    found = [refusal for refusal in _refusals(bucket, need, now) if refusal is not None]
    if not found:
        return None
    return max(found, key=lambda refusal: (refusal.wait_ms is None, refusal.wait_ms or 0))


def longest_covered(need: Estimate, buckets: Iterable[Bucket]) -> Estimate:
    """Return the need of a call with a longer answer; with the usual one where a quota does not cover that.

    While calls are in flight of a budget it counts as covered, for they may give something back: the call then waits.
    """
    longer = need.longer
    return longer if all(_can_cover(bucket, longer) for bucket in buckets) else need


def reserved(bucket: Bucket, need: Estimate, now: int, *, by: str) -> Bucket:
    """Return the bucket after a grant to an attempt, named by its token.

    Where the account was refused, this is the attempt that tries it again.
    """
    breaker = bucket.breaker
    if breaker is not None:
        # A probe that is lost reports nothing; the next one then waits no longer than for a refused one.
        breaker = replace(breaker, probe=by, probe_at=now + _pause_ms(breaker.failures))
    return replace(
        bucket,
        request_level=bucket.request_level - _spent(bucket.limits.requests_per_minute, 1),
        token_level=bucket.token_level - _spent(bucket.limits.tokens_per_minute, need.tokens),
        charged_micros=bucket.charged_micros + (need.cost_micros or 0),
        in_flight=bucket.in_flight + 1,
        breaker=breaker,
    )


def settled(bucket: Bucket, need: Estimate, *, requests: int, tokens: int | None, micros: int | None) -> Bucket:
    """Return the bucket after what a call did use is known; None keeps what was reserved for it.

    More than was reserved may drive a level below nothing.
    """
    back = need.tokens - (need.tokens if tokens is None else tokens)
    refund = 0 if micros is None else (need.cost_micros or 0) - micros
    limits = bucket.limits
    return replace(
        bucket,
        request_level=_added(bucket.request_level, limits.requests_per_minute, 1 - requests),
        token_level=_added(bucket.token_level, limits.tokens_per_minute, back),
        charged_micros=max(0, bucket.charged_micros - refund),
    )


def clamped(bucket: Bucket, remaining: Remaining, *, requests_after: int, tokens_after: int) -> Bucket:
    """Return the bucket, lowered to what an answer said is left; a header never raises a level.

    The provider counted when the call arrived, so what was reserved after it is not in its figures yet. What it has
    refilled since is not either; nobody knows how long that was, and leaving it out errs on the safe side.
    """
    limits = bucket.limits
    return replace(
        bucket,
        request_level=_lowered(bucket.request_level, limits.requests_per_minute, remaining.requests, requests_after),
        token_level=_lowered(bucket.token_level, limits.tokens_per_minute, remaining.tokens, tokens_after),
    )


def blocked(bucket: Bucket, until: int) -> Bucket:
    """Return the bucket, which grants nothing until then; an earlier time never shortens a later one."""
    return replace(bucket, blocked_until=max(until, bucket.blocked_until or until))


def tripped(bucket: Bucket, now: int, *, by: str, code: str) -> Bucket:
    """Return the bucket after the provider refused the account of an attempt.

    Calls that were under way when the first of them was refused say nothing new: only the probe opens it for longer.
    """
    breaker = bucket.breaker
    if breaker is None:
        return replace(bucket, breaker=Breaker(code=code, opened_at=now, probe_at=now + FIRST_PROBE_MS))
    if breaker.probe != by:
        return bucket
    failures = breaker.failures + 1
    again = replace(breaker, code=code, failures=failures, probe=None, probe_at=now + _pause_ms(failures))
    return replace(bucket, breaker=again)


def answered(bucket: Bucket, *, by: str) -> Bucket:
    """Return the bucket after the provider took a call: where that was the probe, the account is as good as ever."""
    if bucket.breaker is not None and bucket.breaker.probe == by:
        return replace(bucket, breaker=None)
    return bucket


def lifted(bucket: Bucket) -> Bucket:
    """Return the bucket after a person has mended the account: nothing is blocked, and anybody may call."""
    return replace(bucket, breaker=None, blocked_until=None)


def hardest(refusals: Mapping[str, QuotaRefusal]) -> str | None:
    """Return the name of the scope whose refusal lasts longest, or None where there is none."""
    if not refusals:
        return None
    return max(sorted(refusals), key=lambda name: (refusals[name].wait_ms is None, refusals[name].wait_ms or 0))


def _refusals(bucket: Bucket, need: Estimate, now: int) -> list[QuotaRefusal | None]:
    limits = bucket.limits
    return [
        _until(QuotaReason.ACCOUNT, bucket.breaker.probe_at if bucket.breaker else None, now),
        _until(QuotaReason.BLOCKED, bucket.blocked_until, now),
        _rate_refusal(QuotaReason.REQUESTS, bucket.request_level, limits.requests_per_minute, 1),
        _rate_refusal(QuotaReason.TOKENS, bucket.token_level, limits.tokens_per_minute, need.tokens),
        _concurrency_refusal(bucket),
        _budget_refusal(bucket, need),
    ]


def _until(reason: QuotaReason, until: int | None, now: int) -> QuotaRefusal | None:
    return QuotaRefusal(reason=reason, wait_ms=until - now) if until is not None and until > now else None


def _rate_refusal(reason: QuotaReason, level: int, per_minute: int | None, wanted: int) -> QuotaRefusal | None:
    if per_minute is None:
        return None
    if wanted > per_minute:
        return QuotaRefusal(reason=QuotaReason.TOO_LARGE, wait_ms=None)
    # What costs nothing by estimate still waits while the level is below nothing: somebody has used too much.
    missing = wanted * UNIT - level
    return QuotaRefusal(reason=reason, wait_ms=-(-missing // per_minute)) if missing > 0 else None


def _can_cover(bucket: Bucket, need: Estimate) -> bool:
    per_minute = bucket.limits.tokens_per_minute
    may_be_given_back = bucket.in_flight > 0
    is_in_budget = may_be_given_back or _budget_refusal(bucket, need) is None
    return (per_minute is None or need.tokens <= per_minute) and is_in_budget


def _concurrency_refusal(bucket: Bucket) -> QuotaRefusal | None:
    limit = bucket.limits.concurrency
    return QuotaRefusal(reason=QuotaReason.CONCURRENCY, wait_ms=None) if _is_reached(bucket.in_flight, limit) else None


def _budget_refusal(bucket: Bucket, need: Estimate) -> QuotaRefusal | None:
    budget = bucket.limits.budget_micros
    if budget is None:
        return None
    if need.cost_micros is None:
        return QuotaRefusal(reason=QuotaReason.NO_PRICE, wait_ms=None)
    # A call that costs nothing is made with an empty purse too.
    is_covered = need.cost_micros == 0 or bucket.charged_micros + need.cost_micros <= budget
    return None if is_covered else QuotaRefusal(reason=QuotaReason.BUDGET, wait_ms=None)


def _is_reached(in_flight: int, limit: int | None) -> bool:
    return limit is not None and in_flight >= limit


def _capacity(per_minute: int | None) -> int:
    return 0 if per_minute is None else per_minute * UNIT


def _spent(per_minute: int | None, amount: int) -> int:
    return 0 if per_minute is None else amount * UNIT


def _refilled(level: int, per_minute: int | None, passed_ms: int) -> int:
    return 0 if per_minute is None else min(per_minute * UNIT, level + passed_ms * per_minute)


def _added(level: int, per_minute: int | None, amount: int) -> int:
    return 0 if per_minute is None else min(per_minute * UNIT, level + amount * UNIT)


def _lowered(level: int, per_minute: int | None, remaining: int | None, after: int) -> int:
    if per_minute is None or remaining is None:
        return level
    return min(level, (remaining - after) * UNIT)


def _level(level: int, before: int | None, after: int | None) -> int:
    if before is None:
        return _capacity(after)
    return 0 if after is None else min(level, after * UNIT)


def _pause_ms(failures: int) -> int:
    return int(min(LAST_PROBE_MS, FIRST_PROBE_MS * 2 ** min(failures - 1, 10)))
