"""What quotas must be after each call, in plain Python, and what their rows must be by themselves.

A level is in 1/60,000 of a request or token, so that a millisecond adds the limit per minute and nothing is rounded.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rulegen_dagster.domain.quota import Estimate, Remaining
from rulegen_dagster.domain.retry import RetryDecision
from rulegen_dagster.domain.states import AttemptOutcome, Stage, WorkState
from rulegen_dagster.domain.work import FailedAttempt, Offer

GENERATION = frozenset({Stage.GENERATE_RULES, Stage.GENERATE_TESTS})
RATES = {"requests": "requests_per_minute", "tokens": "tokens_per_minute"}
LIMITS = (*RATES.values(), "concurrency", "budget_micros")
MINUTE_MS = 60_000
FIRST_PAUSE_MS, LAST_PAUSE_MS = 60_000, 900_000
SHORTEST_BLOCK_MS = 1_000
OVERTAKEN_MS = 1_000
CALLED = frozenset({None, AttemptOutcome.INVALID_OUTPUT})
COUNTED = frozenset({*CALLED, AttemptOutcome.RATE_LIMITED})
UNKNOWN = frozenset({AttemptOutcome.AMBIGUOUS, AttemptOutcome.CANCELLED})

Row = Mapping[str, Any]
Refusal = tuple[str, int | None]
"""Why nothing is granted, and for how long (ms); None where time alone does not change it."""


@dataclass(kw_only=True)
class Refused:
    """A provider's refusal of the account."""

    code: str
    since: int
    probe_at: int
    times: int = 1
    probe: str | None = None


@dataclass(kw_only=True)
class Quota:
    """What one scope has left at a time."""

    at: int
    limits: dict[str, int | None] = field(default_factory=lambda: dict.fromkeys(LIMITS))
    levels: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RATES, 0))
    charged: int = 0
    blocked_until: int | None = None
    refused: Refused | None = None

    def refill(self, now: int) -> None:
        for rate, name in RATES.items():
            limit = self.limits[name]
            if limit is not None:
                self.levels[rate] = min(limit * MINUTE_MS, self.levels[rate] + (now - self.at) * limit)
        self.at = now

    def limit(self, changes: Mapping[str, int | None], now: int) -> None:
        """A new kind of limit begins full; a changed one keeps its level, as far as it fits."""
        self.refill(now)
        for rate, name in RATES.items():
            old, new = self.limits[name], changes.get(name, self.limits[name])
            full = (new or 0) * MINUTE_MS
            self.levels[rate] = full if old is None else min(self.levels[rate], full) if new is not None else 0
        self.limits |= changes

    def add(self, rate: str, amount: int) -> None:
        limit = self.limits[RATES[rate]]
        if limit is not None:
            self.levels[rate] = min(limit * MINUTE_MS, self.levels[rate] + amount * MINUTE_MS)

    def refusals(self, need: Estimate, in_flight: int, now: int) -> Iterator[Refusal]:
        """Every reason, in the order in which the first of two that last alike is told."""
        if self.refused is not None and self.refused.probe_at > now:
            yield "account_refused", self.refused.probe_at - now
        if self.blocked_until is not None and self.blocked_until > now:
            yield "quota_blocked", self.blocked_until - now
        for (rate, name), wanted in zip(RATES.items(), (1, need.tokens), strict=True):
            limit, missing = self.limits[name], wanted * MINUTE_MS - self.levels[rate]
            if limit is not None and wanted > limit:
                yield "quota_too_small", None
            elif limit is not None and missing > 0:
                yield f"quota_{rate}", -(-missing // limit)
        if self.limits["concurrency"] is not None and in_flight >= self.limits["concurrency"]:
            yield "quota_concurrency", None
        budget = self.limits["budget_micros"]
        if budget is not None and need.cost_micros is None:
            yield "quota_price_unknown", None
        elif budget is not None and need.cost_micros and self.charged + need.cost_micros > budget:
            yield "quota_budget", None

    def reserve(self, need: Estimate, token: str, now: int) -> None:
        self.add("requests", -1)
        self.add("tokens", -need.tokens)
        self.charged += need.cost_micros or 0
        if self.refused is not None:
            # The one that tries the account again.
            self.refused.probe, self.refused.probe_at = token, now + _pause(self.refused.times)

    def refuse(self, code: str, token: str, now: int) -> None:
        if self.refused is None:
            self.refused = Refused(code=code, since=now, probe_at=now + FIRST_PAUSE_MS)
        elif self.refused.probe == token:
            self.refused.times += 1
            self.refused.code, self.refused.probe = code, None
            self.refused.probe_at = now + _pause(self.refused.times)


@dataclass(kw_only=True)
class Reserved:
    """What one attempt has reserved of its scopes."""

    token: str
    job_id: int
    scopes: dict[str, str]
    need: Estimate
    made_at: int
    state: str = "reserved"
    used: tuple[int, int | None, int | None] | None = None
    closed_at: int | None = None

    @property
    def is_open(self) -> bool:
        return self.state in ("reserved", "kept")


@dataclass(kw_only=True)
class Hold:
    """What holds a job: the scope, why, and when it may let a call through (ms)."""

    scope: str
    reason: str
    next_at: int | None


@dataclass(kw_only=True)
class Quotas:
    """The quotas of every scope, and what was reserved of them. `leases` are when live leases end, by their tokens."""

    of: dict[str, Quota] = field(default_factory=dict)
    reserved: dict[str, Reserved] = field(default_factory=dict)
    estimates: dict[tuple[int, Stage], Estimate] = field(default_factory=dict)

    def in_flight(self, scope: str, leases: Mapping[str, int]) -> list[int]:
        """When the leases of a scope's calls end."""
        return [
            leases[it.token]
            for it in self.reserved.values()
            if it.state == "reserved" and it.token in leases and scope in it.scopes.values()
        ]

    def refusals(
        self, job_id: int, stage: Stage, scopes: Collection[str], leases: Mapping[str, int], now: int, *, lenient: bool
    ) -> dict[str, Refusal]:
        """The hardest refusal of each scope. What nobody has estimated is refused too, unless one is `lenient`."""
        known = {name: self.of[name] for name in scopes if name in self.of}
        need = self.estimates.get((job_id, stage))
        by_need = ("tokens_per_minute", "budget_micros")
        counted = any(quota.limits[name] is not None for quota in known.values() for name in by_need)
        if need is None and counted and not lenient:
            return dict.fromkeys(known, ("quota_estimate_missing", None))
        found: dict[str, Refusal] = {}
        for name, quota in sorted(known.items()):
            quota.refill(now)
            reasons = list(quota.refusals(need or Estimate(), len(self.in_flight(name, leases)), now))
            if reasons:
                found[name] = max(reasons, key=_hardness)
        return found

    def hold(
        self, job_id: int, stage: Stage, scopes: Collection[str], leases: Mapping[str, int], now: int
    ) -> Hold | None:
        found = self.refusals(job_id, stage, scopes, leases, now, lenient=True)
        if not found:
            return None
        scope = max(found, key=lambda name: _hardness(found[name]))
        reason, wait = found[scope]
        next_at = None if wait is None else now + wait
        if reason in ("quota_concurrency", "quota_budget"):
            next_at = min(self.in_flight(scope, leases), default=None)
        return Hold(scope=scope, reason=reason, next_at=next_at)

    def reserve(self, job_id: int, stage: Stage, scopes: Mapping[str, str], token: str, now: int) -> None:
        known = {kind: name for kind, name in scopes.items() if name in self.of}
        need = self.estimates.get((job_id, stage), Estimate())
        if known:
            self.reserved[token] = Reserved(token=token, job_id=job_id, scopes=known, need=need, made_at=now)
        for name in known.values():
            self.of[name].refill(now)
            self.of[name].reserve(need, token, now)

    def keep(self, token: str) -> None:
        """The attempt was lost or taken away: its call may be paid for."""
        held = self.reserved.get(token)
        if held is not None and held.state == "reserved":
            held.state = "kept"

    def ended(
        self,
        told: Iterable[tuple[Offer | FailedAttempt, RetryDecision | None]],
        providers: Mapping[str, str],
        now: int,
    ) -> None:
        """Settle what ended, then hear what it says of its provider (by tokens)."""
        told = list(told)
        for quota in self.of.values():
            quota.refill(now)
        closed = [one for ended, _ in told if (one := self._close(ended, now)) is not None]
        newest: dict[str, tuple[Reserved, Remaining]] = {}
        for held, ended in sorted(closed, key=lambda one: one[0].made_at):
            left = ended.usage.remaining
            if left is not None and "provider" in held.scopes and _outcome(ended) in COUNTED:
                newest[held.scopes["provider"]] = held, left
        for scope, (held, left) in newest.items():
            self._clamp(scope, held, left)
        for ended, decision in told:
            self._hear(ended, decision, providers[ended.claim.token], now)

    def _close(self, ended: Offer | FailedAttempt, now: int) -> tuple[Reserved, Offer | FailedAttempt] | None:
        held, outcome = self.reserved.get(ended.claim.token), _outcome(ended)
        if held is None or not held.is_open:
            return None
        if ended.provider_called and outcome in UNKNOWN:
            held.state = "kept"
            return None
        requests, tokens, micros = _used(ended)
        held.state, held.used, held.closed_at = "settled" if requests else "released", (requests, tokens, micros), now
        for name in held.scopes.values():
            quota = self.of[name]
            quota.add("requests", 1 - requests)
            quota.add("tokens", 0 if tokens is None else held.need.tokens - tokens)
            quota.charged += 0 if micros is None else micros - (held.need.cost_micros or 0)
        return held, ended

    def _clamp(self, scope: str, held: Reserved, left: Remaining) -> None:
        later = [
            it
            for it in self.reserved.values()
            if it.scopes.get("provider") == scope and it is not held and it.state != "released"
            if it.made_at >= held.made_at or (it.state == "reserved" and it.made_at >= held.made_at - OVERTAKEN_MS)
        ]
        said = {"requests": (left.requests, len(later)), "tokens": (left.tokens, sum(it.need.tokens for it in later))}
        quota = self.of[scope]
        for rate, (count, after) in said.items():
            if quota.limits[RATES[rate]] is not None and count is not None:
                quota.levels[rate] = min(quota.levels[rate], (count - after) * MINUTE_MS)

    def _hear(self, ended: Offer | FailedAttempt, decision: RetryDecision | None, provider: str, now: int) -> None:
        outcome, token = _outcome(ended), ended.claim.token
        if not ended.provider_called:
            return
        if isinstance(ended, FailedAttempt) and ended.account_refused:
            self.of.setdefault(provider, Quota(at=now)).refuse(ended.error_code, token, now)
            return
        quota = self.of.get(provider)
        if quota is None:
            return
        answered = outcome in COUNTED or outcome is AttemptOutcome.PERMANENT
        if answered and quota.refused is not None and quota.refused.probe == token:
            quota.refused = None
        if isinstance(ended, FailedAttempt) and outcome is AttemptOutcome.RATE_LIMITED:
            own = decision.delay_ms if decision is not None else None
            wait = max(own or 0, SHORTEST_BLOCK_MS) if ended.retry_after_ms is None else ended.retry_after_ms
            if wait:
                quota.blocked_until = max(now + wait, quota.blocked_until or 0)


def _outcome(ended: Offer | FailedAttempt) -> AttemptOutcome | None:
    return ended.outcome if isinstance(ended, FailedAttempt) else None


def _used(ended: Offer | FailedAttempt) -> tuple[int, int | None, int | None]:
    """The requests, tokens and money of a call; None is as estimated."""
    outcome = _outcome(ended)
    refused = isinstance(ended, FailedAttempt) and ended.account_refused
    if not ended.provider_called or (outcome is AttemptOutcome.RETRYABLE and not refused):
        return 0, 0, 0
    if outcome in CALLED:
        counts = [count for count in (ended.usage.tokens_in, ended.usage.tokens_out) if count is not None]
        return 1, sum(counts) if counts else None, ended.usage.cost_micros
    return 1, 0, 0


def _pause(times: int) -> int:
    return int(min(LAST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** (times - 1)))


def _hardness(refusal: Refusal) -> tuple[bool, int]:
    return refusal[1] is None, refusal[1] or 0


# What the rows must be

_REFUSED = ("refused_code", "refused_at", "probe_at", "probe_token")
_ENDS = ("tokens", "cost_micros", "state", "used_requests", "used_tokens", "used_micros", "created_at", "settled_at")


def quotas_held(rows: Iterable[Row], now: int) -> dict[str, tuple[Any, ...]]:
    """The quotas of the database as they are now, in the words of `quotas_expected`."""
    found = {}
    for row in rows:
        refused = row["refused_code"] and tuple(row[it] for it in _REFUSED)
        quota = Quota(
            at=row["refilled_at"],
            limits={name: row[name] for name in LIMITS},
            levels={"requests": row["request_level"], "tokens": row["token_level"]},
        )
        quota.refill(now)
        left = tuple(quota.levels.values())
        found[row["scope"]] = (
            *quota.limits.values(), *left, row["charged_micros"], row["blocked_until"], refused, row["refusals"],
        )  # fmt: skip
    return found


def quotas_expected(quotas: Quotas, now: int) -> dict[str, tuple[Any, ...]]:
    found = {}
    for scope, quota in quotas.of.items():
        quota.refill(now)
        its = quota.refused
        refused = its and (its.code, its.since, its.probe_at, its.probe)
        found[scope] = (
            *quota.limits.values(), *quota.levels.values(), quota.charged, quota.blocked_until, refused,
            its.times if its else 0,
        )  # fmt: skip
    return found


def reservations_held(rows: Iterable[Row]) -> dict[str, tuple[Any, ...]]:
    return {row["token"]: (*_scopes(row), *(row[name] for name in _ENDS)) for row in rows}


def reservations_expected(quotas: Quotas) -> dict[str, tuple[Any, ...]]:
    return {
        it.token: (
            *(it.scopes.get(kind) for kind in ("provider", "tenant", "job")),
            it.need.tokens,
            it.need.cost_micros,
            it.state,
            *(it.used or (None, None, None)),
            it.made_at,
            it.closed_at,
        )
        for it in quotas.reserved.values()
    }


def broken_reservations(reservations: Iterable[Row], attempts: Iterable[Row]) -> Iterator[str]:
    """What an attempt has reserved is open as long as nobody knows what its call used."""
    outcomes = {row["token"]: row["outcome"] for row in attempts}
    kept = {AttemptOutcome.CRASHED, AttemptOutcome.CANCELLED, AttemptOutcome.AMBIGUOUS}
    for row in reservations:
        outcome = outcomes[row["token"]]
        if (row["state"] == "reserved") != (outcome is None):
            yield f"the attempt {row['token']} ended as {outcome}, and its reservation is {row['state']}"
        if row["state"] == "kept" and outcome not in kept:
            yield f"the reservation {row['token']} is kept after {outcome}"


def changed_quotas(before: Mapping[str, list[Row]], after: Mapping[str, list[Row]]) -> Iterator[str]:
    """Money is charged for what is reserved and used, and for nothing else; what was settled stays."""
    now = {row["token"]: row for row in after["quota_reservation"]}
    for row in before["quota_reservation"]:
        same = now.get(row["token"])
        final = row if row["state"] in ("settled", "released") else {it: row[it] for it in row if it in _FIXED}
        if same is None or any(same[it] != final[it] for it in final):
            yield f"the reservation {row['token']} has changed from {row} to {same}"
    was, had = {row["scope"]: row for row in before["quota"]}, _charges(before["quota_reservation"])
    has = _charges(after["quota_reservation"])
    for row in after["quota"]:
        scope = row["scope"]
        old = was[scope]["charged_micros"] - had[scope] if scope in was else _spent(row, after)
        if row["charged_micros"] - has[scope] != old:
            yield f"{scope} is charged {row['charged_micros']}: {has[scope]} by its reservations, {old} before them"


_FIXED = ("token", "provider_scope", "tenant_scope", "job_scope", "tokens", "cost_micros", "created_at")


def _charges(reservations: Iterable[Row]) -> Counter[str]:
    charges: Counter[str] = Counter()
    for row in reservations:
        micros = row["cost_micros"] if row["used_micros"] is None else row["used_micros"]
        charges.update({scope: micros or 0 for scope in _scopes(row) if scope is not None})
    return charges


def _spent(row: Row, rows: Mapping[str, list[Row]]) -> int:
    """What the calls of a new scope have cost so far."""
    jobs = {it["job_id"] for it in rows["job"] if row["job_id"] == it["job_id"] or row["tenant"] == it["tenant"]}
    own = [it for it in rows["attempt"] if it["job_id"] in jobs and it["inherited_from"] is None]
    return sum(it["cost_micros"] or 0 for it in own)


QUOTA_TABLES = ("quota", "quota_reservation", "work_item")
"""What it takes to see whether a quota is kept."""


def overspent(rows: Mapping[str, list[Row]], granted: Collection[str], now: int) -> Iterator[str]:
    """Say which scope had no room for the claims that were granted at this moment."""
    quotas = {row["scope"]: row for row in rows["quota"]}
    leased = {
        row["token"]
        for row in rows["work_item"]
        if row["state"] == WorkState.RUNNING and row["token"] and row["lease_until"] > now
    }
    in_flight: Counter[str] = Counter()
    for row in rows["quota_reservation"]:
        if row["state"] == "reserved" and row["token"] in leased:
            in_flight.update(scope for scope in _scopes(row) if scope is not None)
    for row in rows["quota_reservation"]:
        if row["token"] not in granted:
            continue
        for quota in (quotas[scope] for scope in _scopes(row) if scope is not None):
            scope, budget, most = quota["scope"], quota["budget_micros"], quota["concurrency"]
            if budget is not None and row["cost_micros"] and quota["charged_micros"] > budget:
                yield f"{scope} is charged {quota['charged_micros']} of {budget}"
            if most is not None and in_flight[scope] > most:
                yield f"{scope} has {in_flight[scope]} of {most} calls in flight"
            if quota["request_level"] < 0 or quota["token_level"] < 0:
                yield f"{scope} gave more than it had: {quota['request_level']}, {quota['token_level']}"
            if quota["blocked_until"] is not None and quota["blocked_until"] > now:
                yield f"{scope} is blocked until {quota['blocked_until']}"
            if quota["refused_code"] is not None and quota["probe_token"] != row["token"]:
                yield f"the account of {scope} is refused, and {row['token']} does not try it again"


def _scopes(row: Row) -> tuple[str | None, ...]:
    return row["provider_scope"], row["tenant_scope"], row["job_scope"]
