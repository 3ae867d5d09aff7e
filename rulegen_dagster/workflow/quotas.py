"""Quotas at work: what a job's calls may use, what keeps them from being made, and jobs whose money is spent."""

from collections.abc import Iterable, Mapping
from typing import Any

from rulegen_dagster.domain.clause import Clause, ContextEntry
from rulegen_dagster.domain.errors import InputError, JobNotFoundError, ProviderConfigError
from rulegen_dagster.domain.identity import JobName
from rulegen_dagster.domain.quota import UNIT, Estimate, QuotaReason, estimate_call
from rulegen_dagster.domain.quota_scope import QuotaScope
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.domain.text import instant, moment
from rulegen_dagster.ledger.claims import PROVIDER_STAGES
from rulegen_dagster.ledger.quotas import QuotaHold, QuotaState
from rulegen_dagster.providers.port import ProviderIdentity
from rulegen_dagster.providers.registry import PROVIDER_NAMES
from rulegen_dagster.workflow.runtime import Runtime

MENDED_BY_A_PERSON = frozenset({QuotaReason.ACCOUNT.value})
"""Reasons that end by themselves some day, but that a foreground process does not wait for."""


def tell_estimates(
    runtime: Runtime,
    job_id: int,
    identity: ProviderIdentity,
    clauses: Mapping[int, Clause],
    context: Mapping[int, tuple[ContextEntry, ...]],
) -> None:
    """Store what a call for one of the job's clauses may use at most, where anybody counts that.

    The longest clause with its context stands for all of the job: an answer may be longer than any of them.
    """
    quotas = runtime.ledger.quotas
    if identity.call_cost is None and not quotas.is_on():
        return
    if identity.call_cost is not None:
        longest = max((text_bytes(clause, context.get(clause.ordinal, ())) for clause in clauses.values()), default=0)
        need = estimate_call(longest, identity.call_cost)
    else:
        need = Estimate(cost_micros=None if identity.is_language_model else 0)
    quotas.estimate(job_id, dict.fromkeys(PROVIDER_STAGES, need), add_provider=identity.call_cost is not None)


def text_bytes(clause: Clause, context: Iterable[ContextEntry]) -> int:
    """Return how many bytes of a prompt a clause with its context may take, with a name for each of its parts."""
    return sum(_bytes(one) for one in (clause, *(entry.clause for entry in context)))


def _bytes(clause: Clause) -> int:
    parts = [clause.text, clause.label or "", clause.lead or "", *clause.heading_path, *clause.table_header]
    return sum(len(part.encode()) + _FRAME_BYTES for part in parts)


_FRAME_BYTES = 40
"""What stands around each part of a clause in a prompt, at most."""


def quota_hold(runtime: Runtime, job_id: int, stage: Stage) -> QuotaHold | None:
    """Return the quota that keeps the job's items of a stage from being claimed; None where the stage calls nobody."""
    return runtime.ledger.quotas.hold_of(job_id, stage) if stage in PROVIDER_STAGES else None


def hold_text(what: str, hold: QuotaHold, now: int) -> str:
    """Say that `what` could be claimed, why it is not, and what to do; `now` in ms."""
    scope, limits, bucket = hold.scope, hold.bucket.limits, hold.bucket
    tokens = hold.need.tokens if hold.need else 0
    match hold.refusal.reason:
        case QuotaReason.ACCOUNT:
            code = bucket.breaker.code if bucket.breaker else QuotaReason.ACCOUNT.value
            why = (
                f"{scope} refuses the account ({code}); mend its key or plan, then 'rulegen quota reset {scope}';"
                f" else one attempt tries it again {moment(hold.next_at, now)}"
            )
        case QuotaReason.BLOCKED:
            why = f"{scope} asked everybody to wait; the next call is made {moment(hold.next_at, now)}"
        case QuotaReason.REQUESTS:
            why = (
                f"{scope} allows {limits.requests_per_minute} requests a minute; there is room for the next"
                f" {moment(hold.next_at, now)}"
            )
        case QuotaReason.TOKENS:
            why = (
                f"{scope} allows {limits.tokens_per_minute} tokens a minute, and a call may need {tokens}; there is"
                f" room for the next {moment(hold.next_at, now)}"
            )
        case QuotaReason.CONCURRENCY:
            ends = f"; the first lease ends {moment(hold.next_at, now)}" if hold.next_at is not None else ""
            why = f"{scope} has {bucket.in_flight} of {limits.concurrency} calls in flight{ends}"
        case QuotaReason.TOO_LARGE:
            why = (
                f"one call may need {tokens} tokens, and {scope} allows {limits.tokens_per_minute} a minute; raise that"
                f" with 'rulegen quota set {scope} --tpm N', or lower RULEGEN_MAX_TOKENS"
            )
        case QuotaReason.NO_PRICE:
            why = (
                f"{scope} has a budget, and nobody knows what a call costs; set RULEGEN_PRICE_IN and RULEGEN_PRICE_OUT,"
                f" or take the budget away with 'rulegen quota set {scope} --no-budget'"
            )
        case _:
            cost = hold.need.cost_micros if hold.need else 0
            settles = f"; a call in flight settles {moment(hold.next_at, now)} at the latest" if hold.next_at else ""
            why = (
                f"{scope} has spent {dollars(bucket.charged_micros)} of its budget of"
                f" {dollars(limits.budget_micros or 0)}, and another call may cost {dollars(cost or 0)}{settles};"
                f" 'rulegen quota set {scope} --budget USD' raises it"
            )
    return f"{what} could be claimed, but {why}"


def hold_evidence(hold: QuotaHold) -> dict[str, Any]:
    """Return the scope, what it allows, what is left of it, and what a call may need."""
    return {
        "scope": hold.scope,
        "quota_reason": hold.refusal.reason.value,
        **bucket_report(QuotaState(scope=hold.scope, bucket=hold.bucket, now=hold.bucket.refilled_at)),
        "call_tokens": hold.need.tokens if hold.need else None,
        "call_micros": hold.need.cost_micros if hold.need else None,
    }


def bucket_report(state: QuotaState) -> dict[str, Any]:
    """Return a scope's quota as plain data, with what is left of it (below zero: used in advance)."""
    bucket, limits = state.bucket, state.bucket.limits
    breaker = bucket.breaker
    is_blocked = bucket.blocked_until is not None and bucket.blocked_until > state.now
    return {
        "scope": state.scope,
        "requests_per_minute": limits.requests_per_minute,
        "requests_left": None if limits.requests_per_minute is None else bucket.request_level // UNIT,
        "tokens_per_minute": limits.tokens_per_minute,
        "tokens_left": None if limits.tokens_per_minute is None else bucket.token_level // UNIT,
        "concurrency": limits.concurrency,
        "in_flight": bucket.in_flight,
        "budget_micros": limits.budget_micros,
        "charged_micros": bucket.charged_micros,
        "blocked_until_ms": bucket.blocked_until if is_blocked else None,
        "breaker": "closed" if breaker is None else "half_open" if breaker.probe_at <= state.now else "open",
        "refused_code": breaker.code if breaker else None,
        "refused_since_ms": breaker.opened_at if breaker else None,
        "next_probe_ms": breaker.probe_at if breaker else None,
    }


def charges_report(runtime: Runtime, job_id: int) -> dict[str, Any] | None:
    """Return what a job's calls are charged with, by what is known of them; None where nothing was ever reserved."""
    charges = runtime.ledger.quotas.charges_of(job_id)
    if not charges:
        return None
    return {
        state: {"calls": one.calls, "tokens": one.tokens, "cost_micros": one.cost_micros}
        for state, one in sorted(charges.items())
    }


def check_provider(scope: QuotaScope) -> None:
    """Refuse the scope of a provider that no job can name: its quota would limit nothing. Raises `ProviderConfigError`.

    Which models a provider has, nobody but itself knows.
    """
    if scope.provider is not None and scope.provider not in PROVIDER_NAMES:
        raise ProviderConfigError(
            f"there is no provider '{scope.provider[:64]}', so its quota would limit nothing; this release has"
            f" {', '.join(PROVIDER_NAMES)}"
        )


def check_price(runtime: Runtime, name: JobName) -> None:
    """Refuse a new job whose calls nobody can price, where its tenant has a budget. Raises `InputError`."""
    tenant = name.tenant
    if not runtime.ledger.quotas.budgeted(tenant) or _exists(runtime, name):
        return
    identity = runtime.provider(runtime.settings.provider).identity
    cost = identity.call_cost
    is_priced = cost.price_in is not None and cost.price_out is not None if cost else not identity.is_language_model
    if not is_priced:
        raise InputError(
            f"the tenant {tenant} has a budget, and nobody knows what a call of {identity.name}/{identity.model_id}"
            " costs; set RULEGEN_PRICE_IN and RULEGEN_PRICE_OUT (micro-USD for a million tokens), or take the budget"
            f" away with 'rulegen quota set tenant:{tenant} --no-budget'",
            code="price_unknown",
        )


def _exists(runtime: Runtime, name: JobName) -> bool:
    try:
        runtime.ledger.reads.job(name)
    except JobNotFoundError:
        return False
    return True


def refused_accounts(states: Iterable[QuotaState]) -> list[str]:
    """Return in words which accounts are refused by their provider, since when, and how that ends."""
    return [
        f"{state.scope} refuses the account ({state.bucket.breaker.code}) since"
        f" {instant(state.bucket.breaker.opened_at)}; mend its key or plan, then 'rulegen quota reset {state.scope}'"
        for state in states
        if state.bucket.breaker is not None
    ]


def dollars(micros: int) -> str:
    """Return an amount for people: `USD 1.25`, with as many places as it needs."""
    whole, part = divmod(abs(micros), 1_000_000)
    places = f"{part:06d}".rstrip("0").ljust(2, "0")
    return f"{'-' if micros < 0 else ''}USD {whole}.{places}"


def stop_if_spent(runtime: Runtime, job_id: int, hold: QuotaHold) -> bool:
    """End a job whose budget, or its tenant's, is spent for good, where the settings say so; tell whether it ended."""
    if not hold.is_for_good or hold.refusal.reason is not QuotaReason.BUDGET or not runtime.settings.stops_when_spent:
        return False
    return runtime.ledger.quotas.stop(job_id, actor=runtime.worker)
