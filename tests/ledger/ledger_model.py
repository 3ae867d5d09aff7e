"""A reference model of the ledger: what each call must answer and leave behind, in plain Python and without SQL.

It is told what was asked, says what must come of it, and keeps the rows that the database must then hold. Where the
ledger is free to choose (which of several open items a claim takes) it is told the choice, and checks it.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rulegen_dagster.domain.canonical import sha256_hex
from rulegen_dagster.domain.deadline import DeadlinePolicy, duration
from rulegen_dagster.domain.identity import JobName, item_key
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
from rulegen_dagster.domain.work import DOCUMENT_ITEM, Claim, FailedAttempt, Landing, Offer, WorkKey
from rulegen_dagster.ledger.actions import ActionClaim
from rulegen_dagster.ledger.cancellations import Cancellation
from rulegen_dagster.ledger.claims import Claimant, Scope
from rulegen_dagster.ledger.recoveries import Freed

OPEN = frozenset({WorkState.PENDING, WorkState.RUNNING, WorkState.WAITING})
GENERATION = frozenset({Stage.GENERATE_RULES, Stage.GENERATE_TESTS})
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

    def end(self, outcome: AttemptOutcome, now: int, error_code: str | None, digest: str | None = None) -> None:
        given_back_late = self.outcome is AttemptOutcome.CRASHED and outcome is AttemptOutcome.CANCELLED
        if self.outcome in REPLACEABLE and not given_back_late:
            self.outcome, self.ended_at, self.error_code, self.output_digest = outcome, now, error_code, digest

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
    state: ActionState = ActionState.PROPOSED
    token: str | None = None
    worker: str | None = None
    lease_until: int | None = None
    receipt: str | None = None

    def free(self) -> None:
        self.token = self.worker = self.lease_until = None


@dataclass(kw_only=True)
class Job:
    """One job; `content` is the input that its key belongs to."""

    job_id: int
    tenant: str
    key: str
    content: str
    deadline_at: int | None = None
    predecessor: int | None = None
    is_fork: bool = False
    state: JobState = JobState.EXTRACTING
    items: dict[tuple[Stage, str], Item] = field(default_factory=dict)
    passed: bool | None = None
    action_set: str | None = None
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

    def of_stage(self, stage: Stage) -> list[Item]:
        return [item for (its_stage, _), item in sorted(self.items.items()) if its_stage is stage]


@dataclass(kw_only=True)
class Model:
    """Every job, and the transitions that were made since they were last taken."""

    attempt_limit: int
    deadlines: DeadlinePolicy
    claim_limits: dict[str, int | None] = field(default_factory=dict)
    jobs: dict[int, Job] = field(default_factory=dict)
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
        *,
        deadline_ms: int | None,
        actor: str,
        now: int,
        cause: str = "submitted",
    ) -> Job:
        assert job_id not in self.jobs
        job = Job(job_id=job_id, tenant=name.tenant, key=name.submission_key, content=content)
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
        job = self.submitted(job_id, name, old.content, deadline_ms=deadline_ms, actor=actor, now=now, cause="forked")
        job.predecessor, job.is_fork = old.job_id, True
        if not self._inherit(old, job, (Stage.PARSE,), actor, now):
            return
        for stage in (Stage.RETRIEVE, Stage.GENERATE_RULES):
            self._open(job, stage, [item.key.item_key for item in old.of_stage(stage)])
        self._move(job, JobState.RETRIEVING, "inherited", actor, now)
        self._inherit(old, job, (Stage.RETRIEVE, Stage.GENERATE_RULES), actor, now)
        self._advance(job, actor, now)
        self._inherit(old, job, (Stage.GENERATE_TESTS,), actor, now)
        self._advance(job, actor, now)

    def _inherit(self, old: Job, job: Job, stages: Sequence[Stage], actor: str, now: int) -> bool:
        given = False
        for (stage, key), item in job.items.items():
            source = old.items.get((stage, key))
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
            if scope.items is None or item.key in scope.items
            if can_be_claimed(item, now)
        ]

    def claimed(
        self, scope: Scope, tokens: Sequence[str], claims: Sequence[Claim], spent: set[WorkKey], by: Claimant, now: int
    ) -> None:
        """Check what a claim took, and the items that it gave up for want of attempts; then book both."""
        allowed = {item.key: item for item in self.claimable(scope, now)}
        lost = {key for key, item in allowed.items() if is_spent(item)}
        taken = [claim.key for claim in claims]
        assert spent <= lost, f"given up, with attempts left: {spent - lost}"
        assert len(set(taken)) == len(taken), f"claimed twice: {taken}"
        assert set(taken) <= allowed.keys() - lost, f"not to be claimed: {set(taken) - (allowed.keys() - lost)}"
        assert [claim.token for claim in claims] == list(tokens[: len(claims)])
        free = self._room([item for key, item in allowed.items() if key not in lost], now)
        assert len(claims) == min(len(tokens), free), f"{len(claims)} claims for {len(tokens)} slots and {free} items"
        # Where a tenant's limit is reached, nobody looks at its items, and so nobody finds one that is spent.
        if len(claims) < len(tokens) and not any(limit is not None for limit in self.claim_limits.values()):
            assert spent == lost, f"not given up: {lost - spent}"
        for key in taken:
            passed_over = [
                other
                for other in allowed.keys() - lost - set(taken)
                if (other.job_id, other.stage) == (key.job_id, key.stage) and other.item_key < key.item_key
            ]
            assert not passed_over, f"{key} was claimed before {passed_over}"
        for key in sorted(spent, key=str):
            item = allowed[key]
            item.tries[-1].lose(AttemptOutcome.CRASHED, now, "lease_expired")
            item.free(WorkState.FAILED, "attempts_exhausted")
            self._log_item(item, WorkState.RUNNING, "attempts_exhausted", "ledger", now)
        for claim in claims:
            item = allowed[claim.key]
            before = item.state
            if before is WorkState.RUNNING:
                item.tries[-1].lose(AttemptOutcome.CRASHED, now, "lease_expired")
            item.tries.append(Try(token=claim.token, worker=by.worker, started_at=now))
            item.free(WorkState.RUNNING)
            item.token, item.worker, item.lease_until = claim.token, by.worker, now + by.lease_ms
            cause = "lease_expired" if before is WorkState.RUNNING else "claimed"
            self._log_item(item, before, cause, by.worker, now)
            job = self.jobs[claim.key.job_id]
            assert (claim.attempt, claim.attempt_limit, claim.lease_until, claim.job) == (
                len(item.tries),
                item.limit,
                item.lease_until,
                f"{job.tenant}/{job.key}",
            )

    def _room(self, items: Sequence[Item], now: int) -> int:
        """How many of these items the tenants' limits let through."""
        room = sum(item.key.stage not in GENERATION for item in items)
        for tenant in {job.tenant for job in self.jobs.values()}:
            generating = [item for item in items if item.key.stage in GENERATION and self.tenant(item) == tenant]
            limit = self.claim_limits.get(tenant)
            room += (
                len(generating) if limit is None else max(0, min(len(generating), limit - self.in_flight(tenant, now)))
            )
        return room

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
                attempt.end(outcome, now, None if landed else "stale_claim", digest)
        for failed, decision in failures:
            landings[failed.claim.token] = self._failed(failed, decision, worker, now)
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
            attempt.end(failed.outcome, now, failed.error_code)
        return Landing.ACCEPTED if landed else Landing.STALE

    def _landed(self, offer: Offer, worker: str, now: int) -> None:
        job = self.jobs[offer.claim.key.job_id]
        if offer.claim.key.stage is Stage.PARSE and offer.parsed is not None:
            count = len(offer.parsed.normative)
            self._open(job, Stage.RETRIEVE, [DOCUMENT_ITEM])
            self._open(job, Stage.GENERATE_RULES, [item_key(number, count) for number in range(1, count + 1)])
            self._move(job, JobState.RETRIEVING, "parsed", worker, now)
        elif offer.claim.key.stage is Stage.VALIDATE:
            job.passed = bool(offer.passed)
            if offer.passed and offer.action_set is not None:
                job.action_set = offer.action_set
                for proposed in json.loads(offer.action_set)["actions"]:
                    kind = proposed["kind"]
                    key = f"{kind}:{job.job_id}:{job.digest}"
                    job.actions[key] = Action(key=key, kind=kind)
                self._move(job, JobState.AWAITING_CONFIRMATION, "validated", worker, now)

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
                last = item.tries[-1]
                in_flight += int(lease > now and last.outcome is None)
                if lease > now:
                    last.lose(AttemptOutcome.CANCELLED, now, cause)
                else:
                    # A lease that passed unnoticed is still a crash.
                    last.lose(AttemptOutcome.CRASHED, now, "lease_expired")
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
        for action in job.actions.values():
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
            for action in job.actions.values():
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
        for _, action in sorted(job.actions.items()):
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
        if all(other.state is ActionState.DONE for other in job.actions.values()):
            job.end_reason = "published"
            self._move(job, JobState.COMPLETED, "published", actor, now)
        return True

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
            item.tries[-1].lose(AttemptOutcome.CRASHED, now, "worker_lost")
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

    # The parts

    def item(self, key: WorkKey) -> Item:
        return self.jobs[key.job_id].items[key.stage, key.item_key]

    def tenant(self, item: Item) -> str:
        return self.jobs[item.key.job_id].tenant

    def items(self) -> Iterator[Item]:
        for job in self.jobs.values():
            yield from job.items.values()

    def _open(self, job: Job, stage: Stage, keys: Sequence[str]) -> None:
        for key in keys:
            assert (stage, key) not in job.items
            name = WorkKey(job_id=job.job_id, stage=stage, item_key=key)
            job.items[stage, key] = Item(key=name, limit=self.attempt_limit)

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
