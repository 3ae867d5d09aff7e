"""A reference model of the ledger: what each call must answer and leave behind, in plain Python and without SQL.

It is told what was asked, says what must come of it, and keeps the rows that the database must then hold. Where the
ledger is free to choose (which of several open items a claim takes) it is told the choice, and checks it.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rulegen_dagster.domain.behaviour import Behaviour, Choice, Incompatibility, Part
from rulegen_dagster.domain.canonical import sha256_hex
from rulegen_dagster.domain.deadline import DeadlinePolicy, duration
from rulegen_dagster.domain.identity import JobName, item_key
from rulegen_dagster.domain.quota_scope import QuotaScope
from rulegen_dagster.domain.retry import RetryDecision
from rulegen_dagster.domain.states import (
    JOB_STATE_OF_STAGE,
    TERMINAL_JOB_STATES,
    ActionState,
    AttemptOutcome,
    JobState,
    Stage,
    WorkState,
)
from rulegen_dagster.domain.text import instant
from rulegen_dagster.domain.work import DOCUMENT_ITEM, STAGE_VERSION, Claim, FailedAttempt, Landing, Offer, WorkKey
from rulegen_dagster.ledger.actions import ActionClaim
from rulegen_dagster.ledger.cancellations import Cancellation
from rulegen_dagster.ledger.claims import Claimant, Scope
from rulegen_dagster.ledger.decisions import Asked, Retained
from rulegen_dagster.ledger.recoveries import Freed
from tests.ledger.ledger_quota_model import GENERATION, Hold, Quota, Quotas, Refusal

OPEN = frozenset({WorkState.PENDING, WorkState.RUNNING, WorkState.WAITING})
BEGUN = frozenset({ActionState.EXECUTING, ActionState.UNKNOWN, ActionState.DONE})
REPLACEABLE = frozenset({None, AttemptOutcome.CRASHED, AttemptOutcome.CANCELLED})
NEXT_STAGE = {
    JobState.RETRIEVING: (Stage.RETRIEVE, JobState.GENERATING_RULES),
    JobState.GENERATING_RULES: (Stage.GENERATE_RULES, JobState.GENERATING_TESTS),
    JobState.GENERATING_TESTS: (Stage.GENERATE_TESTS, JobState.VALIDATING),
}

Move = tuple[Any, ...]
"""A row of the transition log: job, subject, stage, key, from, to, cause, actor, time."""


@dataclass(kw_only=True)
class Try:
    """One attempt."""

    token: str
    worker: str
    started_at: int
    outcome: AttemptOutcome | None = None
    ended_at: int | None = None
    output_digest: str | None = None
    error_code: str | None = None
    cost: int = 0

    def end(
        self, outcome: AttemptOutcome, now: int, error_code: str | None, digest: str | None = None, cost: int | None = 0
    ) -> None:
        given_back_late = self.outcome is AttemptOutcome.CRASHED and outcome is AttemptOutcome.CANCELLED
        if self.outcome in REPLACEABLE and not given_back_late:
            self.outcome, self.ended_at, self.error_code, self.output_digest = outcome, now, error_code, digest
            self.cost = cost or 0

    def lose(self, outcome: AttemptOutcome, now: int, error_code: str) -> None:
        if self.outcome is None:
            self.outcome, self.ended_at, self.error_code = outcome, now, error_code


@dataclass(kw_only=True)
class Item:
    """One work item with its attempts."""

    key: WorkKey
    limit: int
    state: WorkState = WorkState.PENDING
    tries: list[Try] = field(default_factory=list)
    token: str | None = None
    worker: str | None = None
    lease_until: int | None = None
    due: int | None = None
    output: str | None = None
    error_code: str | None = None

    def free(self, state: WorkState, error_code: str | None = None) -> None:
        self.state, self.error_code = state, error_code
        self.token = self.worker = self.lease_until = self.due = None

    def holds(self, token: str, now: int) -> bool:
        return self.state is WorkState.RUNNING and self.token == token and (self.lease_until or 0) > now

    def attempt_of(self, token: str) -> Try | None:
        return next((one for one in self.tries if one.token == token), None)


@dataclass(kw_only=True)
class Action:
    """One action of an action set."""

    key: str
    kind: str
    digest: str
    state: ActionState = ActionState.PROPOSED
    token: str | None = None
    worker: str | None = None
    lease_until: int | None = None
    receipt: str | None = None

    def free(self) -> None:
        self.token = self.worker = self.lease_until = None


@dataclass(kw_only=True)
class Needed:
    """One time that a job could not go on without a decision."""

    reason: Incompatibility
    from_state: JobState
    asked_by: str
    choice: Choice | None = None
    by: str | None = None
    settled: bool = False


@dataclass(kw_only=True)
class Job:
    """One job; `content` is the input that its key belongs to, `sets` are the action sets that landed."""

    job_id: int
    tenant: str
    key: str
    content: str
    behaviour: Behaviour
    deadline_at: int | None = None
    predecessor: int | None = None
    is_fork: bool = False
    state: JobState = JobState.EXTRACTING
    items: dict[tuple[Stage, str, int], Item] = field(default_factory=dict)
    passed: bool | None = None
    parsed: str | None = None
    sets: list[str] = field(default_factory=list)
    action_set: str | None = None
    needed: list[Needed] = field(default_factory=list)
    behaviours: list[tuple[str, str]] = field(default_factory=list)
    decision: str | None = None
    actions: dict[str, Action] = field(default_factory=dict)
    end_reason: str | None = None

    @property
    def ended(self) -> bool:
        return self.state in TERMINAL_JOB_STATES

    @property
    def begun(self) -> bool:
        return any(action.state in BEGUN for action in self.actions.values())

    @property
    def digest(self) -> str | None:
        return None if self.action_set is None else sha256_hex(self.action_set)

    @property
    def needs_decision(self) -> bool:
        return self.state is JobState.NEEDS_DECISION

    @property
    def is_retained(self) -> bool:
        return self.needs_decision and self.needed[-1].choice is Choice.RETAIN

    @property
    def scopes(self) -> dict[str, str]:
        """The scopes of a call, by their kind."""
        return {
            "provider": str(QuotaScope.of_provider(self.behaviour.provider, self.behaviour.model_id)),
            "tenant": str(QuotaScope.of_tenant(self.tenant)),
            "job": str(QuotaScope.of_job(JobName(tenant=self.tenant, submission_key=self.key))),
        }

    def of_stage(self, stage: Stage) -> list[Item]:
        return [item for (its_stage, _, _), item in sorted(self.items.items()) if its_stage is stage]

    def newest(self, stage: Stage) -> Item:
        return self.of_stage(stage)[-1]


@dataclass(kw_only=True)
class Model:
    """Every job, and the transitions that were made since they were last taken."""

    attempt_limit: int
    deadlines: DeadlinePolicy
    claim_limits: dict[str, int | None] = field(default_factory=dict)
    jobs: dict[int, Job] = field(default_factory=dict)
    quotas: Quotas = field(default_factory=Quotas)
    moves: list[Move] = field(default_factory=list)

    def taken_moves(self) -> list[Move]:
        moves, self.moves = self.moves, []
        return moves

    # Submissions

    def find(self, tenant: str, key: str) -> Job | None:
        return next((job for job in self.jobs.values() if (job.tenant, job.key) == (tenant, key)), None)

    def submitted(
        self,
        job_id: int,
        name: JobName,
        content: str,
        behaviour: Behaviour,
        *,
        deadline_ms: int | None,
        actor: str,
        now: int,
        cause: str = "submitted",
    ) -> Job:
        assert job_id not in self.jobs
        job = Job(job_id=job_id, tenant=name.tenant, key=name.submission_key, content=content, behaviour=behaviour)
        job.deadline_at = None if deadline_ms is None else now + deadline_ms
        # Every input here has the same file name, so that each new key is the next version of the last one.
        job.predecessor = max((it.job_id for it in self.jobs.values() if it.tenant == name.tenant), default=None)
        self.jobs[job_id] = job
        self._open(job, Stage.PARSE, [DOCUMENT_ITEM])
        steps = [None, JobState.RECEIVED, JobState.AUTHORIZED, JobState.EXTRACTING]
        for before, after, why in zip(steps, steps[1:], (cause, "tenant_known", "parse_opened"), strict=False):
            self._log_job(job, before, after, why, actor, now)
        return job

    def forked(self, old: Job, job_id: int, key: str, *, deadline_ms: int, actor: str, now: int) -> None:
        """Open the successor, with everything accepted that the predecessor got accepted."""
        name = JobName(tenant=old.tenant, submission_key=key)
        job = self.submitted(
            job_id, name, old.content, old.behaviour, deadline_ms=deadline_ms, actor=actor, now=now, cause="forked"
        )
        job.predecessor, job.is_fork = old.job_id, True
        limited = self.quotas.of.get(old.scopes["job"])
        if limited is not None:
            # The same limits, with nothing of them used.
            self.quotas.of[job.scopes["job"]] = fresh = Quota(at=now)
            fresh.limit(limited.limits, now)
        if not self._inherit(old, job, (Stage.PARSE,), actor, now):
            return
        for stage in (Stage.RETRIEVE, Stage.GENERATE_RULES):
            self._open(job, stage, [item.key.item_key for item in old.of_stage(stage)])
        job.parsed = old.parsed
        self._move(job, JobState.RETRIEVING, "inherited", actor, now)
        self._inherit(old, job, (Stage.RETRIEVE, Stage.GENERATE_RULES), actor, now)
        self._advance(job, actor, now)
        self._inherit(old, job, (Stage.GENERATE_TESTS,), actor, now)
        self._advance(job, actor, now)

    def _inherit(self, old: Job, job: Job, stages: Sequence[Stage], actor: str, now: int) -> bool:
        given = False
        for (stage, key, version), item in job.items.items():
            source = old.items.get((stage, key, version))
            if stage not in stages or source is None or source.state is not WorkState.SUCCEEDED:
                continue
            given = True
            made = Try(token=f"inherited:{job.job_id}:{stage}:{key}:1", worker=actor, started_at=now)
            made.end(AttemptOutcome.ACCEPTED, now, None, sha256_hex(str(source.output)))
            item.tries.append(made)
            item.free(WorkState.RUNNING)
            self._log_item(item, WorkState.PENDING, "inherited", actor, now)
            item.free(WorkState.SUCCEEDED)
            item.output = source.output
            self._log_item(item, WorkState.RUNNING, "inherited", actor, now)
        return given

    # Claims

    def claimable(self, scope: Scope, now: int) -> list[Item]:
        """The items that a claim of this scope may look at, spent ones among them, oldest job first."""
        return [
            item
            for job in self.jobs.values()
            if scope.job_ids is None or job.job_id in scope.job_ids
            for stage in scope.stages
            if job.state is JOB_STATE_OF_STAGE[stage] and self.in_time(job, now)
            for item in job.of_stage(stage)
            if scope.items is None or _name(item.key) in map(_name, scope.items)
            if can_be_claimed(item, now)
        ]

    def claimed(
        self,
        scope: Scope,
        tokens: Sequence[str],
        claims: Sequence[Claim],
        spent: set[WorkKey],
        by: Claimant,
        now: int,
        *,
        wait_ms: int | None,
    ) -> None:
        """Check what a claim took, and the items that it gave up for want of attempts; then book both."""
        allowed = {item.key: item for item in self.claimable(scope, now)}
        lost = {key for key, item in allowed.items() if is_spent(item)}
        taken = [claim.key for claim in claims]
        assert spent <= lost, f"given up, with attempts left: {spent - lost}"
        assert len(set(taken)) == len(taken), f"claimed twice: {taken}"
        assert set(taken) <= allowed.keys() - lost, f"not to be claimed: {set(taken) - (allowed.keys() - lost)}"
        assert [claim.token for claim in claims] == list(tokens[: len(claims)])
        for key in taken:
            passed_over = [
                other
                for other in allowed.keys() - lost - set(taken)
                if (other.job_id, other.stage) == (key.job_id, key.stage) and other.item_key < key.item_key
            ]
            assert not passed_over, f"{key} was claimed before {passed_over}"
        for key in sorted(spent, key=str):
            item = allowed[key]
            self._lose(item, AttemptOutcome.CRASHED, now, "lease_expired")
            item.free(WorkState.FAILED, "attempts_exhausted")
            self._log_item(item, WorkState.RUNNING, "attempts_exhausted", "ledger", now)
        for claim in claims:
            item, job = allowed[claim.key], self.jobs[claim.key.job_id]
            assert not self._is_full(item, now), f"{claim.key} was claimed over its tenant's limit"
            refusals = self._refusals(item, now)
            assert not refusals, f"{claim.key} was claimed, and {refusals}"
            before = item.state
            if before is WorkState.RUNNING:
                self._lose(item, AttemptOutcome.CRASHED, now, "lease_expired")
            item.tries.append(Try(token=claim.token, worker=by.worker, started_at=now))
            item.free(WorkState.RUNNING)
            item.token, item.worker, item.lease_until = claim.token, by.worker, now + by.lease_ms
            cause = "lease_expired" if before is WorkState.RUNNING else "claimed"
            self._log_item(item, before, cause, by.worker, now)
            if claim.key.stage in GENERATION:
                self.quotas.reserve(job.job_id, claim.key.stage, job.scopes, claim.token, now)
            assert (claim.attempt, claim.attempt_limit, claim.lease_until, claim.job) == (
                len(item.tries),
                item.limit,
                item.lease_until,
                f"{job.tenant}/{job.key}",
            )

        if len(claims) < len(tokens):
            left = [item for key, item in allowed.items() if key not in lost and key not in taken]
            self._check_left(left, wait_ms, by_claims=any(claim.key.stage in GENERATION for claim in claims), now=now)
            # Whom a limit or a quota stops, nobody looks at, and so nobody finds one of its items that is spent.
            for key in lost - spent:
                assert self._is_full(allowed[key], now) or self._refusals(allowed[key], now), f"not given up: {key}"

    def _check_left(self, left: Sequence[Item], wait_ms: int | None, *, by_claims: bool, now: int) -> None:
        """There were slots for more: something has to stop every item, and the turn tells when a quota no longer does.

        What a quota refuses is refused for what was claimed before it, too.
        """
        refused = [(item, self._refusals(item, now)) for item in left if not self._is_full(item, now)]
        assert all(refusals for _, refusals in refused), f"not claimed, with slots left: {refused}"
        waits = [[wait for _, wait in refusals.values()] for _, refusals in refused]
        known = [max(wait for wait in found if wait is not None) for found in waits if None not in found]
        if by_claims:
            assert not known or (wait_ms is not None and wait_ms <= min(known)), f"wakes after {wait_ms}, not {known}"
        else:
            assert wait_ms == min(known, default=None), f"wakes after {wait_ms}, not {known}"

    def _is_full(self, item: Item, now: int) -> bool:
        """Whether the limit of an item's tenant leaves no room for it."""
        limit = self.claim_limits.get(self.tenant(item))
        return item.key.stage in GENERATION and limit is not None and self.in_flight(self.tenant(item), now) >= limit

    def _refusals(self, item: Item, now: int) -> dict[str, Refusal]:
        """Why quotas refuse an item, by their scopes."""
        if item.key.stage not in GENERATION:
            return {}
        job, leases = self.jobs[item.key.job_id], self.leases(now)
        return self.quotas.refusals(job.job_id, item.key.stage, job.scopes.values(), leases, now, lenient=False)

    def leases(self, now: int) -> dict[str, int]:
        """When the live leases end, by their tokens."""
        return {
            item.token: item.lease_until
            for item in self.items()
            if item.token is not None and item.lease_until is not None and item.lease_until > now
        }

    def hold(self, job: Job, stage: Stage, now: int) -> Hold | None:
        return self.quotas.hold(job.job_id, stage, job.scopes.values(), self.leases(now), now)

    def _provider(self, claim: Claim) -> str:
        """The provider of which the end of an attempt tells something."""
        reserved = self.quotas.reserved.get(claim.token)
        called = reserved.scopes.get("provider") if reserved is not None else None
        return called or self.jobs[claim.key.job_id].scopes["provider"]

    def _lose(self, item: Item, outcome: AttemptOutcome, now: int, error_code: str) -> None:
        item.tries[-1].lose(outcome, now, error_code)
        self.quotas.keep(item.tries[-1].token)

    def in_flight(self, tenant: str, now: int) -> int:
        """How many live leases a tenant has where its limit counts."""
        return sum(
            item.key.stage in GENERATION and self.tenant(item) == tenant and (item.lease_until or 0) > now
            for item in self.items()
        )

    def renewed(self, claims: Sequence[Claim], lease_ms: int, now: int) -> frozenset[str]:
        held = [claim for claim in claims if self.item(claim.key).holds(claim.token, now)]
        for claim in held:
            self.item(claim.key).lease_until = now + lease_ms
        return frozenset(claim.token for claim in held)

    def withdrawn(self, claims: Iterable[Claim]) -> frozenset[str]:
        return frozenset(claim.token for claim in claims if self.item(claim.key).token != claim.token)

    # Completions

    def lands(self, claim: Claim, now: int) -> bool:
        return self.item(claim.key).holds(claim.token, now) and not self.jobs[claim.key.job_id].ended

    def settled(
        self,
        offers: Sequence[Offer],
        failures: Sequence[tuple[FailedAttempt, RetryDecision]],
        *,
        worker: str,
        now: int,
    ) -> dict[str, Landing]:
        """Book offers, then failures, then what the accepted ones open; return each token's landing."""
        landings: dict[str, Landing] = {}
        accepted: list[Offer] = []
        for offer in offers:
            claim, item = offer.claim, self.item(offer.claim.key)
            attempt = item.attempt_of(claim.token)
            landed = self.lands(claim, now)
            before = attempt is not None and attempt.outcome is AttemptOutcome.ACCEPTED
            landings[claim.token] = Landing.ACCEPTED if landed or before else Landing.STALE
            digest = sha256_hex(offer.output)
            if landed:
                item.free(WorkState.SUCCEEDED)
                item.output = offer.output
                self._log_item(item, WorkState.RUNNING, "accepted", worker, now)
                accepted.append(offer)
            if attempt is not None and not before:
                outcome = AttemptOutcome.ACCEPTED if landed else AttemptOutcome.STALE
                attempt.end(outcome, now, None if landed else "stale_claim", digest, offer.usage.cost_micros)
        for failed, decision in failures:
            landings[failed.claim.token] = self._failed(failed, decision, worker, now)
        told: list[tuple[Offer | FailedAttempt, RetryDecision | None]] = [
            *((offer, None) for offer in offers),
            *failures,
        ]
        self.quotas.ended(told, {one.claim.token: self._provider(one.claim) for one, _ in told}, now)
        for offer in accepted:
            self._landed(offer, worker, now)
        for job_id in sorted({offer.claim.key.job_id for offer in accepted}):
            self._advance(self.jobs[job_id], worker, now)
        return landings

    def _failed(self, failed: FailedAttempt, decision: RetryDecision, worker: str, now: int) -> Landing:
        claim, item = failed.claim, self.item(failed.claim.key)
        landed = self.lands(claim, now)
        if landed:
            item.free(decision.state, failed.error_code)
            item.due = None if decision.delay_ms is None else now + decision.delay_ms
            item.limit += 0 if decision.consumes_budget else 1
            self._log_item(item, WorkState.RUNNING, failed.error_code, worker, now)
        attempt = item.attempt_of(claim.token)
        if attempt is not None:
            attempt.end(failed.outcome, now, failed.error_code, cost=failed.usage.cost_micros)
        return Landing.ACCEPTED if landed else Landing.STALE

    def _landed(self, offer: Offer, worker: str, now: int) -> None:
        job = self.jobs[offer.claim.key.job_id]
        if offer.claim.key.stage is Stage.PARSE and offer.parsed is not None:
            count = len(offer.parsed.normative)
            self._open(job, Stage.RETRIEVE, [DOCUMENT_ITEM])
            self._open(job, Stage.GENERATE_RULES, [item_key(number, count) for number in range(1, count + 1)])
            job.parsed = sha256_hex(offer.parsed.canonical_text)
            if job.state is JobState.EXTRACTING:
                self._move(job, JobState.RETRIEVING, "parsed", worker, now)
        elif offer.claim.key.stage is Stage.VALIDATE:
            if not offer.passed or offer.action_set is None:
                job.passed = False
                return
            job.sets.append(offer.action_set)
            for proposed in json.loads(offer.action_set)["actions"]:
                kind, digest = proposed["kind"], sha256_hex(offer.action_set)
                key = f"{kind}:{job.job_id}:{digest}"
                job.actions[key] = Action(key=key, kind=kind, digest=digest)
            if job.state is JobState.VALIDATING:
                self._show_action_set(job, worker, now)

    def _show_action_set(self, job: Job, actor: str, now: int) -> None:
        job.passed, job.action_set = True, job.sets[-1]
        self._move(job, JobState.AWAITING_CONFIRMATION, "validated", actor, now)

    def _advance(self, job: Job, worker: str, now: int) -> None:
        while job.state in NEXT_STAGE:
            stage, after = NEXT_STAGE[job.state]
            if any(item.state is not WorkState.SUCCEEDED for item in job.of_stage(stage)):
                return
            self._move(job, after, f"{stage}_complete", worker, now)
            if after is JobState.GENERATING_TESTS:
                self._open(job, Stage.GENERATE_TESTS, [i.key.item_key for i in job.of_stage(Stage.GENERATE_RULES)])
            elif after is JobState.VALIDATING:
                self._open(job, Stage.VALIDATE, [DOCUMENT_ITEM])

    # People

    def redriven(
        self, job_id: int, stage: Stage, keys: Sequence[str] | None, *, actor: str, reason: str, now: int
    ) -> tuple[str, ...]:
        job = self.jobs[job_id]
        failed = [
            item
            for item in job.of_stage(stage)
            if item.state is WorkState.FAILED and (keys is None or item.key.item_key in keys) and not job.ended
        ]
        for item in failed:
            item.free(WorkState.PENDING)
            item.limit = len(item.tries) + self.attempt_limit
            self._log_item(item, WorkState.FAILED, f"redriven: {reason}", actor, now)
        return tuple(item.key.item_key for item in failed)

    def cancelled(self, job_id: int, *, actor: str, reason: str, now: int) -> Cancellation | None:
        """Return what a cancellation ends; None where it must be refused."""
        job = self.jobs[job_id]
        if job.ended or job.begun:
            return None
        ended = self._end_unfinished(job, "job_cancelled", actor, now)
        job.end_reason = reason
        self._move(job, JobState.CANCELLED, "cancelled", actor, now)
        return ended

    def in_time(self, job: Job, now: int) -> bool:
        return job.deadline_at is None or job.deadline_at >= now + self.deadlines.reserve_ms

    def overdue(self, now: int) -> tuple[int, ...]:
        return tuple(
            it.job_id for it in self.jobs.values() if not it.ended and not it.begun and not self.in_time(it, now)
        )

    def expired(self, job_id: int, *, wait_ms: int, actor: str, now: int) -> Cancellation | None:
        """Return what an expiry ends; None where there is time left, or nothing to end."""
        job = self.jobs[job_id]
        if job.ended or job.begun or job.deadline_at is None or self.in_time(job, now + wait_ms):
            return None
        waiting = f" after a wait of {duration(wait_ms)}" if self.in_time(job, now) else ""
        job.end_reason = f"the deadline, {instant(job.deadline_at)}, left no time for another call{waiting}"
        ended = self._end_unfinished(job, "deadline_passed", actor, now)
        self._move(job, JobState.EXPIRED, "deadline_passed", actor, now)
        return ended

    def extended(self, job_id: int, *, by_ms: int, actor: str, reason: str, now: int) -> int | None:
        """Return the new deadline; None where it cannot be moved."""
        job = self.jobs[job_id]
        if job.ended or job.deadline_at is None:
            return None
        job.deadline_at = max(job.deadline_at, now) + by_ms
        self._log_job(job, job.state, job.state, f"extended by {duration(by_ms)}: {reason}", actor, now)
        return job.deadline_at

    def _end_unfinished(self, job: Job, cause: str, actor: str, now: int) -> Cancellation:
        for action in job.actions.values():
            if action.state in (ActionState.PROPOSED, ActionState.CONFIRMED):
                self._move_action(job, action, ActionState.FAILED, cause, actor, now)
        unfinished = [item for item in job.items.values() if item.state in OPEN]
        in_flight = 0
        for item in unfinished:
            before, lease = item.state, item.lease_until
            if before is WorkState.RUNNING and lease is not None:
                in_flight += int(lease > now and item.tries[-1].outcome is None)
                if lease > now:
                    self._lose(item, AttemptOutcome.CANCELLED, now, cause)
                else:
                    # A lease that passed unnoticed is still a crash.
                    self._lose(item, AttemptOutcome.CRASHED, now, "lease_expired")
            item.free(WorkState.CANCELLED, item.error_code)
            self._log_item(item, before, cause, actor, now)
        return Cancellation(items=len(unfinished), in_flight=in_flight)

    def confirmed(self, job_id: int, digest: str, *, actor: str, now: int) -> bool | None:
        """Return what a confirmation answers; None where it must be refused."""
        job = self.jobs[job_id]
        if job.digest != digest:
            return None
        if job.state in (JobState.EXECUTING, JobState.COMPLETED) and job.decision == "confirmed":
            return False
        if job.state is not JobState.AWAITING_CONFIRMATION:
            return None
        job.decision = "confirmed"
        for action in self._shown(job):
            self._move_action(job, action, ActionState.CONFIRMED, "confirmed", actor, now)
        self._move(job, JobState.EXECUTING, "confirmed", actor, now)
        return True

    def rejected(self, job_id: int, *, actor: str, reason: str, now: int) -> bool:
        """Tell whether a rejection is possible, and book it if so."""
        job = self.jobs[job_id]
        stuck = job.state is JobState.VALIDATING and job.passed is False
        if job.state is not JobState.AWAITING_CONFIRMATION and not stuck:
            return False
        if job.action_set is not None:
            job.decision = "rejected"
            for action in self._shown(job):
                self._move_action(job, action, ActionState.FAILED, "failed", actor, now)
        job.end_reason = reason
        self._move(job, JobState.CANCELLED, "rejected", actor, now)
        return True

    def ended_by_hand(self, job_id: int, *, reason: str, actor: str, now: int) -> None:
        job = self.jobs[job_id]
        job.end_reason = reason
        self._move(job, JobState.FAILED, reason, actor, now)

    # Publishing

    def action_claimed(self, job_id: int, token: str, by: Claimant, now: int) -> str | None:
        """Book the claim on the job's next action; return its key, or None where there is none to do."""
        job = self.jobs[job_id]
        for _, action in sorted(job.actions.items() if job.state is JobState.EXECUTING else ()):
            lost = action.state is ActionState.EXECUTING and (action.lease_until or 0) <= now
            if action.state in (ActionState.CONFIRMED, ActionState.UNKNOWN) or lost:
                self._move_action(job, action, ActionState.EXECUTING, "claimed", by.worker, now)
                action.token, action.worker, action.lease_until = token, by.worker, now + by.lease_ms
                return action.key
        return None

    def action_finished(self, claim: ActionClaim, *, receipt: str, actor: str, now: int) -> bool:
        job = self.jobs[claim.job_id]
        action = job.actions[claim.action_key]
        if action.token != claim.token or (action.lease_until or 0) <= now:
            # The answer to its commit was lost, and the publisher comes again with the same receipt.
            return action.receipt == receipt
        self._move_action(job, action, ActionState.DONE, "published", actor, now)
        action.free()
        action.receipt = receipt
        if job.state is JobState.EXECUTING:
            self._complete_published(job, actor, now)
        return True

    def _complete_published(self, job: Job, actor: str, now: int) -> None:
        if all(action.state is ActionState.DONE for action in self._shown(job)):
            job.end_reason = "published"
            self._move(job, JobState.COMPLETED, "published", actor, now)

    def _shown(self, job: Job) -> list[Action]:
        """The actions of the set that the job shows."""
        return [action for action in job.actions.values() if action.digest == job.digest]

    def action_released(self, claim: ActionClaim, *, error_code: str, actor: str, now: int) -> bool:
        job = self.jobs[claim.job_id]
        action = job.actions[claim.action_key]
        if action.token != claim.token:
            return False
        self._move_action(job, action, ActionState.UNKNOWN, error_code, actor, now)
        action.free()
        return True

    # Lost workers

    def freed(self, workers: Collection[str], *, actor: str, now: int) -> Freed:
        """Book what workers held that are proven dead."""
        held = [
            item
            for item in self.items()
            if item.state is WorkState.RUNNING and item.worker in workers and (item.lease_until or 0) > now
            if not self.jobs[item.key.job_id].ended
        ]
        spent = [item for item in held if is_spent(item)]
        for item in held:
            self._lose(item, AttemptOutcome.CRASHED, now, "worker_lost")
            cause = "attempts_exhausted" if item in spent else "worker_lost"
            item.free(WorkState.FAILED if item in spent else WorkState.WAITING, cause)
            item.due = None if item in spent else now
            self._log_item(item, WorkState.RUNNING, cause, actor, now)
        actions = 0
        for job in self.jobs.values():
            for action in job.actions.values():
                if action.state is ActionState.EXECUTING and action.worker in workers:
                    self._move_action(job, action, ActionState.UNKNOWN, "worker_lost", actor, now)
                    action.free()
                    actions += 1
        return Freed(waiting=len(held) - len(spent), failed=len(spent), actions=actions)

    # Decisions

    def asked(self, job_id: int, found: Incompatibility, *, whoever_works: bool, actor: str, now: int) -> Asked:
        job = self.jobs[job_id]
        if job.ended or job.needs_decision:
            return Asked(is_held=job.needs_decision)
        last = self._last_lease(job, now)
        if last is not None and not whoever_works:
            return Asked(is_held=False, lease_until=last)
        needed = Needed(reason=found, from_state=job.state, asked_by=actor)
        before = job.needed[-1] if job.needed else None
        # A provider's word is new each time.
        is_new = found.part is Part.REPORTED_MODEL
        if before is not None and before.choice is Choice.RETAIN and not is_new and _is_same(before.reason, found):
            needed.choice, needed.by = before.choice, before.by
        job.needed.append(needed)
        self._move(job, JobState.NEEDS_DECISION, f"incompatible: {found.text}"[:200], actor, now)
        return Asked(is_held=True)

    def retained(self, job_id: int, *, resume: bool, actor: str, reason: str, now: int) -> Retained | None:
        """Return what a retention answers; None where nothing is to be decided."""
        job = self.jobs[job_id]
        if not job.needs_decision:
            return None
        is_new = job.needed[-1].choice is None
        if is_new:
            job.needed[-1].choice, job.needed[-1].by = Choice.RETAIN, actor
        if resume:
            job.needed[-1].settled = True
            self._go_back(job, job.needed[-1].from_state, f"retained: {reason}", actor, now)
        elif is_new:
            self._log_job(job, job.state, job.state, f"retained: {reason}", actor, now)
        return Retained(is_new=is_new, is_resumed=resume)

    def resumed(self, job_id: int, *, actor: str, now: int) -> bool:
        job = self.jobs[job_id]
        if not job.is_retained:
            return False
        job.needed[-1].settled = True
        self._go_back(job, job.needed[-1].from_state, "honoured_again", actor, now)
        return True

    def migrated(
        self, job_id: int, other: Behaviour, *, unreadable: Collection[Stage], actor: str, reason: str, now: int
    ) -> str | None:
        """Return the code of the refusal of a migration; None where it landed."""
        job = self.jobs[job_id]
        if not job.needs_decision:
            return "nothing_to_decide"
        needed = job.needed[-1]
        if needed.from_state is JobState.EXECUTING:
            return "migration_refused"
        if self._last_lease(job, now) is not None:
            return "in_flight"
        accepted = {item.key.stage for item in job.items.values() if item.state is WorkState.SUCCEEDED}
        if accepted & set(unreadable):
            return "migration_refused"
        if job.behaviour == other:
            return "nothing_to_migrate"
        job.behaviours.append((job.behaviour.digest, other.digest))
        job.behaviour = other
        needed.choice, needed.by, needed.settled = Choice.MIGRATE, actor, True
        state = needed.from_state
        if state in (JobState.AWAITING_CONFIRMATION, JobState.VALIDATING):
            state = JobState.VALIDATING
            validation = job.newest(Stage.VALIDATE)
            if validation.output is not None:
                # What an earlier validation found, and asked to be confirmed, holds no more.
                for action in job.actions.values():
                    if action.state is ActionState.PROPOSED:
                        self._move_action(job, action, ActionState.FAILED, "job_migrated", actor, now)
                job.action_set = job.passed = None
                self._open(job, Stage.VALIDATE, [DOCUMENT_ITEM], validation.key.stage_version + 1)
        self._go_back(job, state, f"migrated: {reason}", actor, now)
        return None

    def stopped(self, job_id: int, *, actor: str, reason: str, now: int) -> bool:
        """Tell whether a job can be stopped, and book it if so."""
        job = self.jobs[job_id]
        if not job.needs_decision or job.begun:
            return False
        needed = job.needed[-1]
        needed.choice, needed.by, needed.settled = Choice.STOP, actor, True
        self._end_unfinished(job, "job_stopped", actor, now)
        job.end_reason = reason
        self._move(job, JobState.CANCELLED, "stopped", actor, now)
        return True

    def _go_back(self, job: Job, state: JobState, cause: str, actor: str, now: int) -> None:
        """Send a job back, and open what outputs have opened that were accepted meanwhile."""
        self._move(job, state, cause, actor, now)
        if state is JobState.EXTRACTING and (output := job.newest(Stage.PARSE).output) is not None:
            job.parsed = json.loads(output)["canonical_digest"]
            self._move(job, JobState.RETRIEVING, "parsed", actor, now)
        elif state is JobState.VALIDATING and any(it.state is ActionState.PROPOSED for it in job.actions.values()):
            self._show_action_set(job, actor, now)
        elif state is JobState.EXECUTING:
            self._complete_published(job, actor, now)
        self._advance(job, actor, now)

    def _last_lease(self, job: Job, now: int) -> int | None:
        items = [item.lease_until for item in job.items.values() if item.state is WorkState.RUNNING]
        actions = [it.lease_until for it in job.actions.values() if it.state is ActionState.EXECUTING]
        return max((at for at in (*items, *actions) if at is not None and at > now), default=None)

    # Quotas

    def limited(self, scope: str, owned: Collection[Job], changes: Mapping[str, int | None], now: int) -> None:
        """Book other limits of a scope; a new one is charged with what its own jobs' calls have cost."""
        if scope not in self.quotas.of:
            spent = sum(one.cost for job in owned for item in job.items.values() for one in item.tries)
            self.quotas.of[scope] = Quota(at=now, charged=spent)
        self.quotas.of[scope].limit(changes, now)

    def budget_spent(self, job_id: int, *, actor: str, now: int) -> bool:
        """Tell whether a job ends because no budget covers its calls any more, and book it if so."""
        job = self.jobs[job_id]
        stage = next((it for it in GENERATION if JOB_STATE_OF_STAGE[it] is job.state), None)
        hold = self.hold(job, stage, now) if stage is not None else None
        if hold is None or hold.reason != "quota_budget" or hold.next_at is not None:
            return False
        self._end_unfinished(job, "budget_spent", actor, now)
        job.end_reason = f"the budget of {hold.scope} is spent: it does not cover another call"
        self._move(job, JobState.FAILED, "budget_spent", actor, now)
        return True

    # The parts

    def item(self, key: WorkKey) -> Item:
        return self.jobs[key.job_id].items[key.stage, key.item_key, key.stage_version]

    def newest(self, key: WorkKey) -> WorkKey:
        """The key of an item's newest version; older ones are never touched again."""
        found = [it for it in self.jobs[key.job_id].items.values() if _name(it.key) == _name(key)]
        return max((it.key for it in found), key=lambda one: one.stage_version)

    def tenant(self, item: Item) -> str:
        return self.jobs[item.key.job_id].tenant

    def items(self) -> Iterator[Item]:
        for job in self.jobs.values():
            yield from job.items.values()

    def _open(self, job: Job, stage: Stage, keys: Sequence[str], version: int = STAGE_VERSION) -> None:
        for key in keys:
            assert (stage, key, version) not in job.items
            name = WorkKey(job_id=job.job_id, stage=stage, item_key=key, stage_version=version)
            job.items[stage, key, version] = Item(key=name, limit=self.attempt_limit)

    def _move(self, job: Job, after: JobState, cause: str, actor: str, now: int) -> None:
        assert not job.ended, f"{job.state} is final"
        self._log_job(job, job.state, after, cause, actor, now)
        job.state = after

    def _move_action(self, job: Job, action: Action, after: ActionState, cause: str, actor: str, now: int) -> None:
        self.moves.append((job.job_id, "action", action.kind, action.key, action.state, after, cause, actor, now))
        action.state = after

    def _log_job(
        self, job: Job, before: JobState | None, after: JobState | None, cause: str, actor: str, now: int
    ) -> None:
        self.moves.append((job.job_id, "job", None, None, before, after, cause, actor, now))

    def _log_item(self, item: Item, before: WorkState, cause: str, actor: str, now: int) -> None:
        key = item.key
        self.moves.append((key.job_id, "work_item", key.stage, key.item_key, before, item.state, cause, actor, now))


def can_be_claimed(item: Item, now: int) -> bool:
    """Pending, a retry that is due, or a lease that has passed."""
    return (
        item.state is WorkState.PENDING
        or (item.state is WorkState.WAITING and (item.due or 0) <= now)
        or (item.state is WorkState.RUNNING and (item.lease_until or 0) <= now)
    )


def is_spent(item: Item) -> bool:
    return item.state is WorkState.RUNNING and len(item.tries) >= item.limit


def _is_same(one: Incompatibility, other: Incompatibility) -> bool:
    return (one.part, one.was) == (other.part, other.was)


def _name(key: WorkKey) -> tuple[int, Stage, str]:
    return key.job_id, key.stage, key.item_key
