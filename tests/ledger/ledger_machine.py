"""A state machine over the real ledger: workers, tenants, people and a clock do anything in any order.

Each rule asks the ledger for one thing, asks the model what must come of it, and compares the answers. After every rule
the whole database is compared with the model, and judged by the invariants.
"""

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rulegen_dagster.domain.behaviour import FrozenBehaviour, Incompatibility, Part
from rulegen_dagster.domain.canonical import sha256_hex
from rulegen_dagster.domain.errors import (
    ActionSetMismatchError,
    JobNotFoundError,
    StateError,
    SubmissionConflictError,
    TenantNotFoundError,
)
from rulegen_dagster.domain.quota import Estimate, Remaining
from rulegen_dagster.domain.quota_scope import QuotaScope
from rulegen_dagster.domain.retry import RetryDecision, decide_retry
from rulegen_dagster.domain.states import JOB_STATE_OF_STAGE, AttemptOutcome, JobState, Stage, WorkState
from rulegen_dagster.domain.work import Claim, FailedAttempt, Landing, Offer, Usage, WorkKey
from rulegen_dagster.ledger.actions import ActionClaim
from rulegen_dagster.ledger.claims import Claimant, Scope
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.ledger.needed_decisions import retained_jobs
from rulegen_dagster.ledger.schema import job as job_table
from rulegen_dagster.ledger.schema import tenant as tenant_table
from rulegen_dagster.ledger.stages import log_job
from rulegen_dagster.ledger.store import Ledger
from rulegen_dagster.ledger.submissions import Submission
from tests.ledger import ledger_rows
from tests.ledger.conftest import behaviour, parsed_spec, submission
from tests.ledger.ledger_model import Item, Job, Model, is_spent
from tests.ledger.ledger_quota_model import GENERATION, LIMITS, QUOTA_TABLES, overspent

START_MS = 10_000
LEASE_MS = 1_000
DAY_MS = 86_400_000
TENANTS = ("acme", "bolt")
KEYS = ("policy", "travel")
WORKERS = ("ann", "ben", "cleo")
STAGES = tuple(JOB_STATE_OF_STAGE)
STAGE_OF = {state: stage for stage, state in JOB_STATE_OF_STAGE.items()}
OUTCOMES = (
    AttemptOutcome.INVALID_OUTPUT,
    AttemptOutcome.RETRYABLE,
    AttemptOutcome.RATE_LIMITED,
    AttemptOutcome.AMBIGUOUS,
    AttemptOutcome.PERMANENT,
    # Given back by a worker that was told to stop.
    AttemptOutcome.CANCELLED,
)

REASONS = (
    Incompatibility(part=Part.OUTPUT_SCHEMA, was="s", now="t"),
    Incompatibility(part=Part.OUTPUT_SCHEMA, was="s", now=None),
    Incompatibility(part=Part.REPORTED_MODEL, was="m-1", now="m-2"),
)
# In the orders of what the calls here may use: one or two calls, some, more than any.
SOME_LIMITS: dict[str, tuple[int | None, ...]] = {
    "requests_per_minute": (2, 1, 5, 600, None),
    "tokens_per_minute": (90, 50, 20, 200, 60_000, None),
    "concurrency": (1, 2, 5, 0, None),
    "budget_micros": (100, 45, 300, 1_000_000, 0, None),
}
NEEDS = (
    Estimate(tokens=40, cost_micros=20),
    Estimate(tokens=40, cost_micros=20),
    Estimate(tokens=90, cost_micros=45),
    Estimate(tokens=10, cost_micros=0),
    Estimate(tokens=10, cost_micros=None),
)
NO_ROOM = ("quota_too_small", "quota_price_unknown", "quota_budget", "quota_concurrency")

T = TypeVar("T")

# A number names one of whatever there is to choose from at that moment.
pick = st.integers(min_value=0, max_value=63)
small = st.integers(min_value=0, max_value=3)
picks = st.lists(pick, min_size=1, max_size=4)
workers = st.sampled_from(range(len(WORKERS)))
some_limits = st.sampled_from(LIMITS).flatmap(
    lambda name: st.fixed_dictionaries({name: st.sampled_from(SOME_LIMITS[name])})
)
scopes = st.sampled_from(("provider", "provider", "tenant", "tenant", "job", "job", "other provider", "nobody"))


@dataclass(kw_only=True)
class Tally:
    """What the examples of a run did: steps, how often each rule ran, and what came of it."""

    examples: int = 0
    steps: int = 0
    rules: Counter[str] = field(default_factory=Counter)
    results: Counter[str] = field(default_factory=Counter)


@dataclass(kw_only=True)
class Held:
    """A claim that was made at some time, and who had it; `crashed` once that worker was lost."""

    claim: Claim
    worker: Claimant
    crashed: bool = False


@dataclass(frozen=True, kw_only=True)
class Happening:
    """Something that may happen: how often beside the others, when it can, and with what arguments."""

    name: str
    weight: int
    when: Callable[["LedgerMachine"], object]
    arguments: dict[str, st.SearchStrategy[Any]]


HAPPENINGS: list[Happening] = []
Method = TypeVar("Method", bound=Callable[..., None])


def happens(
    weight: int,
    when: Callable[["LedgerMachine"], object] = lambda _: True,
    **arguments: st.SearchStrategy[Any],
) -> Callable[[Method], Method]:
    """Like hypothesis' own `rule`, with a weight.

    Rules would all be as frequent, and half of them switched off in an average example: no work would be done in it.
    """

    def note(method: Method) -> Method:
        HAPPENINGS.append(Happening(name=method.__name__, weight=weight, when=when, arguments=arguments))
        return method

    return note


def _needs_a_decision(machine: "LedgerMachine") -> bool:
    return any(job.needs_decision for job in machine.model.jobs.values())


def _possible(machine: "LedgerMachine") -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    possible = [one for one in HAPPENINGS if one.when(machine)]
    chosen = st.sampled_from([one for one in possible for _ in range(one.weight)])
    return chosen.flatmap(lambda one: st.tuples(st.just(one.name), st.fixed_dictionaries(one.arguments)))


class LedgerMachine(RuleBasedStateMachine):
    """The rules. One ledger serves every example; each has tenants of its own."""

    def __init__(self, ledger: Ledger, clock: ManualClock, tally: Tally) -> None:
        super().__init__()
        self.ledger, self.clock, self.tally = ledger, clock, tally
        clock.now_ms = START_MS
        self.earlier_jobs = ledger_rows.end_every_job(ledger.database)
        self.number = tally.examples
        self.tenants = {name: f"{name}-{self.number}" for name in TENANTS}
        first = replace(behaviour(), model_id=f"m-{self.number}")
        self.behaviours = (first, replace(first, model_id=f"n-{self.number}", output_schema="t"))
        tally.examples += 1
        for tenant in self.tenants.values():
            ledger.submissions.add_tenant(tenant)
        self.model = Model(attempt_limit=ledger.policy.max_attempts, deadlines=ledger.deadlines.policy)
        self.retired: list[str] = []
        names = [f"{name}-{tally.examples}" for name in WORKERS]
        self.workers = [Claimant(worker=name, lease_ms=LEASE_MS, run_id=f"run-{name}") for name in names]
        self.held: list[Held] = []
        self.published: list[ActionClaim] = []
        self.serial = 0
        self.last_move = self.last_given_up = 0
        self.rows = self._read()

    @rule(what=st.runner().flatmap(_possible))
    def something_happens(self, what: tuple[str, dict[str, Any]]) -> None:
        name, arguments = what
        self.tally.steps += 1
        self.tally.rules[name] += 1
        getattr(self, name)(**arguments)

    @initialize(
        # More often to where providers are called.
        levels=st.lists(st.sampled_from((2, 2, 2, 3, 0, 1, 4, 5, 6)), min_size=1, max_size=3),
        clauses=st.sampled_from((2, 3, 3, 1, 0)),
        deadline_ms=st.sampled_from((None, 9_000, DAY_MS)),
        limited=st.lists(st.tuples(scopes, pick, some_limits), min_size=1, max_size=3),
    )
    def begin_with_some_jobs(
        self,
        levels: list[int],
        clauses: int,
        deadline_ms: int | None,
        limited: Sequence[tuple[str, int, dict[str, int | None]]] = (),
    ) -> None:
        """Jobs that have come some way: the rules alone would seldom bring one to its publication."""
        for level in levels:
            job = self._begun(level, clauses, deadline_ms)
            if level > len(STAGES) and job.digest:
                self.model.confirmed(job.job_id, job.digest, actor="person", now=self.now)
                self.ledger.actions.confirm(job.job_id, job.digest, actor="person")
        for kind, number, changes in limited:
            self.set_a_quota(kind, number, changes)

    def _begun(self, level: int, clauses: int, deadline_ms: int | None) -> Job:
        number = len(self.model.jobs)
        tenant = self.tenants[TENANTS[number % len(TENANTS)]]
        request = self._submission(tenant=tenant, key=f"begun-{number}", deadline_ms=deadline_ms)
        job = self._submitted(self.ledger.submissions.submit(request, actor="client").job_id, request, "text")
        self._estimate(job, NEEDS[0], add_provider=False)
        scope = Scope(stages=STAGES, job_ids=(job.job_id,))
        while not job.action_set and STAGES.index(STAGE_OF[job.state]) < level:
            self._turn(self.workers[0], scope=scope, slots=9)
            own = [held for held in self._working() if held.claim.key.job_id == job.job_id]
            self._turn(self.workers[0], offers=[self._offer(held, passes=True, clauses=clauses) for held in own])
        return job

    # What is seldom possible comes first, for choices lean towards the first: quotas that hold jobs, decisions

    @happens(6, when=lambda self: any(self.model.hold(*one, self.now) for one in self._generating()), number=pick)
    def wait_until_a_quota_opens(self, number: int) -> None:
        """Nothing is stuck where time helps: each wait ends where the ledger said, and then one more call is made."""
        held = [one for one in self._generating() if self.model.hold(*one, self.now)]
        job, stage = _chosen(held, number)
        scope = Scope(stages=(stage,), job_ids=(job.job_id,))
        # A lease for each call in flight, and a wait for each reason in each scope.
        for _ in range(len(self.model.leases(self.now)) + 20):
            next_at = self._hold(job, stage)
            if next_at is None:
                break
            self.clock.now_ms = next_at - 1
            self._turn(self.workers[number % len(self.workers)], scope=scope, slots=1)
            self.clock.now_ms = next_at
        hold = self.model.hold(job, stage, self.now)
        assert hold is None or hold.reason in NO_ROOM, f"still held by {hold}"
        self._turn(self.workers[number % len(self.workers)], scope=scope, slots=1)
        self._came("a quota opens" if hold is None else "a quota never opens")

    def _hold(self, job: Job, stage: Stage) -> int | None:
        """Ask what holds a job, and return when it may be let go."""
        found, expected = self.ledger.quotas.hold_of(job.job_id, stage), self.model.hold(job, stage, self.now)
        told = found and (found.scope, found.refusal.reason.value, found.next_at)
        assert told == (expected and (expected.scope, expected.reason, expected.next_at))
        return expected.next_at if expected is not None else None

    @happens(
        9,
        when=lambda self: self._calling(),
        number=pick,
        used=st.sampled_from(("nothing told", "nothing", "as estimated", "more", "much more")),
        left=st.sampled_from(
            (None, None, Remaining(requests=0), Remaining(requests=3, tokens=60), Remaining(tokens=1))
        ),
    )
    def complete_with_usage(self, number: int, used: str, left: Remaining | None) -> None:
        held = _chosen(self._calling(), number)
        reserved = self.model.quotas.reserved.get(held.claim.token)
        need = reserved.need if reserved else Estimate()
        tokens, micros = need.tokens, need.cost_micros or 0
        usage = {
            "nothing told": Usage(model_id="m"),
            "nothing": Usage(model_id="m", tokens_in=0, cost_micros=0),
            "as estimated": Usage(model_id="m", tokens_in=0, tokens_out=tokens, cost_micros=micros),
            "more": Usage(model_id="m", tokens_in=tokens, tokens_out=1, cost_micros=micros + 1),
            "much more": Usage(model_id="m", tokens_out=tokens + 300, cost_micros=micros + 200),
        }[used]
        landed = self._turn(
            held.worker, offers=[self._offer(held, passes=True, clauses=0, usage=replace(usage, remaining=left))]
        )
        assert landed[held.claim.token] is Landing.ACCEPTED

    @happens(4, when=_needs_a_decision, number=pick, resume=st.booleans())
    def retain(self, number: int, resume: bool) -> None:
        job = self._needing(number)
        expected = self.model.retained(job.job_id, resume=resume, actor="person", reason="keep it", now=self.now)
        if expected is None:
            self._refused("nothing_to_decide", lambda: self.ledger.decisions.require(job.job_id))
            self._refused(
                "nothing_to_decide",
                lambda: self.ledger.decisions.retain(job.job_id, actor="person", reason="keep it", resume=resume),
            )
            return
        found = self.ledger.decisions.retain(job.job_id, actor="person", reason="keep it", resume=resume)
        assert found == expected
        self._came("retain: resumed" if resume else "retain: waits")

    @happens(
        5,
        when=_needs_a_decision,
        number=pick,
        other=st.sampled_from((0, 1, 1)),
        unreadable=st.sampled_from(((), (), (Stage.GENERATE_RULES,))),
    )
    def migrate(self, number: int, other: int, unreadable: tuple[Stage, ...]) -> None:
        job, frozen = self._needing(number), FrozenBehaviour(behaviour=self.behaviours[other])
        code = self.model.migrated(
            job.job_id, frozen.behaviour, unreadable=unreadable, actor="person", reason="better", now=self.now
        )

        def migrate() -> None:
            self.ledger.decisions.migrate(job.job_id, frozen, actor="person", reason="better", unreadable=unreadable)

        if code is None:
            migrate()
        else:
            self._refused(code, migrate)
        self._came(f"migrate: {code or 'done'}")

    @happens(3, when=_needs_a_decision, number=pick)
    def resume(self, number: int) -> None:
        job = self._needing(number)
        expected = self.model.resumed(job.job_id, actor="release", now=self.now)
        assert self.ledger.decisions.resume(job.job_id, actor="release") is expected
        self._came("resume: done" if expected else "resume: refused")

    @happens(2, when=_needs_a_decision, number=pick)
    def stop(self, number: int) -> None:
        job = self._needing(number)
        if self.model.stopped(job.job_id, actor="person", reason="no more", now=self.now):
            self.ledger.decisions.stop(job.job_id, actor="person", reason="no more")
            self._came("stop: done")
        else:
            with pytest.raises(StateError):
                self.ledger.decisions.stop(job.job_id, actor="person", reason="no more")
            self._came("stop: refused")

    def _refused(self, code: str, act: Callable[[], object]) -> None:
        with pytest.raises(StateError) as refused:
            act()
        assert refused.value.code == code

    # Workers

    @happens(
        14,
        when=lambda self: self._claimable(),
        worker=workers,
        stages=st.one_of(st.just(STAGES), st.just(STAGES), st.lists(st.sampled_from(STAGES), min_size=1, unique=True)),
        slots=st.integers(min_value=1, max_value=5),
        within=st.sampled_from(("any", "any", "jobs", "items")),
        number=pick,
    )
    def claim(self, worker: int, stages: Sequence[Stage], slots: int, within: str, number: int) -> None:
        scope = self._scope(tuple(stages), within, number)
        self._turn(self.workers[worker], scope=scope, slots=slots)

    @happens(10, when=lambda self: self._working(), number=pick, passes=st.booleans(), clauses=small)
    def complete_what_is_held(self, number: int, passes: bool, clauses: int) -> None:
        held = _chosen(self._working(), number)
        landed = self._turn(held.worker, offers=[self._offer(held, passes=passes, clauses=clauses)])
        assert landed[held.claim.token] is Landing.ACCEPTED

    @happens(8, when=lambda self: self._working(), number=pick)
    def finish_the_stage(self, number: int) -> None:
        """One worker does all that is left of a job's stage, and so passes its barrier where nothing has failed."""
        held = _chosen(self._working(), number)
        job = self.model.jobs[held.claim.key.job_id]
        scope = Scope(stages=(held.claim.key.stage,), job_ids=(job.job_id,))
        self._turn(held.worker, scope=scope, slots=9)
        own = [one for one in self._working() if one.claim.key.job_id == job.job_id]
        self._turn(held.worker, offers=[self._offer(one, passes=True, clauses=2) for one in own])

    @happens(3, when=lambda self: not self._working() and not self._claimable(), clauses=small)
    def another_job_comes_to_its_rules(self, clauses: int) -> None:
        self._begun(STAGES.index(Stage.GENERATE_RULES), clauses + 1, None)

    @happens(4, when=lambda self: self.held, numbers=picks, worker=workers, passes=st.booleans())
    def complete_anything(self, numbers: list[int], worker: int, passes: bool) -> None:
        """Several claims, live and long lost, accepted already and of jobs that have ended, in one turn."""
        self._turn(
            self.workers[worker],
            offers=[self._offer(held, passes=passes, clauses=1) for held in self._several(numbers)],
        )

    @happens(3, when=lambda self: self._accepted(), number=pick, passes=st.booleans())
    def complete_twice(self, number: int, passes: bool) -> None:
        """The answer to a commit was lost, and its worker offers again, or something else."""
        held = _chosen(self._accepted(), number)
        landed = self._turn(held.worker, offers=[self._offer(held, passes=passes, clauses=2)])
        assert landed[held.claim.token] is Landing.ACCEPTED

    @happens(
        4,
        when=lambda self: any(held.crashed for held in self.held),
        number=pick,
        fails=st.booleans(),
        outcome=st.sampled_from(OUTCOMES),
    )
    def a_crashed_worker_reports_late(self, number: int, fails: bool, outcome: AttemptOutcome) -> None:
        held = _chosen([held for held in self.held if held.crashed], number)
        if fails:
            self._turn(held.worker, failures=[self._failure(held, outcome, 0.5, None)])
        else:
            self._turn(held.worker, offers=[self._offer(held, passes=True, clauses=1)])

    @happens(2, when=lambda self: self.held, number=pick, fails=st.booleans())
    def complete_under_a_token_that_nobody_gave_out(self, number: int, fails: bool) -> None:
        held = _chosen(self.held, number)
        forged = Held(claim=replace(held.claim, token=f"forged-{held.claim.token}"), worker=held.worker)
        if fails:
            self._turn(held.worker, failures=[self._failure(forged, AttemptOutcome.PERMANENT, 0, None)])
        else:
            self._turn(held.worker, offers=[self._offer(forged, passes=True, clauses=2)])

    @happens(
        9,
        when=lambda self: self._working(),
        number=pick,
        outcome=st.sampled_from(OUTCOMES),
        jitter=st.sampled_from((0.0, 0.5, 0.99)),
        retry_after_ms=st.sampled_from((None, 0, 700, 9_000)),
    )
    def fail(self, number: int, outcome: AttemptOutcome, jitter: float, retry_after_ms: int | None) -> None:
        held = _chosen(self._working(), number)
        self._turn(held.worker, failures=[self._failure(held, outcome, jitter, retry_after_ms)])

    @happens(3, when=lambda self: self.held, numbers=picks, worker=workers, outcome=st.sampled_from(OUTCOMES))
    def fail_anything(self, numbers: list[int], worker: int, outcome: AttemptOutcome) -> None:
        failures = [self._failure(held, outcome, 0.5, None) for held in self._several(numbers)]
        self._turn(self.workers[worker], failures=failures)

    @happens(4, when=lambda self: self.held, numbers=picks, worker=workers)
    def renew(self, numbers: list[int], worker: int) -> None:
        self._turn(self.workers[worker], renewals=self._several(numbers))

    @happens(
        5,
        when=lambda self: self.held,
        worker=workers,
        numbers=st.lists(pick, min_size=3, max_size=6),
        slots=st.integers(min_value=0, max_value=3),
    )
    def do_all_in_one_turn(self, worker: int, numbers: list[int], slots: int) -> None:
        """What an engine commits together: completions, failures, renewals and claims."""
        several = self._several(numbers)
        offered, failed, renewed = several[::3], several[1::3], several[2::3]
        self._turn(
            self.workers[worker],
            offers=[self._offer(held, passes=True, clauses=2) for held in offered],
            failures=[self._failure(held, AttemptOutcome.RETRYABLE, 0.5, None) for held in failed],
            renewals=renewed,
            scope=Scope(stages=STAGES),
            slots=slots,
        )

    @happens(2, when=lambda self: self.held, worker=workers, numbers=picks)
    def a_turn_is_broken_off(self, worker: int, numbers: list[int]) -> None:
        """Nothing of a turn happened whose process died before the commit."""
        several = self._several(numbers)
        with contextlib.suppress(_Died), self.ledger.turn(self.workers[worker]) as turn:
            for held in several:
                turn.offer(self._offer(held, passes=True, clauses=2))
            turn.settle()
            turn.claim(Scope(stages=STAGES), self._tokens(2))
            raise _Died

    @happens(
        4, when=lambda self: any(not held.crashed for held in self.held), number=pick, keeps_its_name=st.booleans()
    )
    def crash(self, number: int, keeps_its_name: bool) -> None:
        """The worker forgets its claims; one that is started under its name takes nothing for its own."""
        slot = number % len(self.workers)
        lost = self.workers[slot]
        for held in self.held:
            held.crashed = held.crashed or held.worker is lost
        name = lost.worker if keeps_its_name else f"{lost.worker}'"
        self.workers[slot] = replace(lost, worker=name)
        if not keeps_its_name:
            self.retired.append(lost.worker)

    @happens(4, when=lambda self: self.retired, number=pick)
    def find_a_worker_dead(self, number: int) -> None:
        """A lock that it held proves it, and nobody has its name any more: what it holds is free at once."""
        dead = {_chosen(self.retired[-2:], number)}
        freed = self.ledger.recoveries.free(dead, actor="recovery")
        assert freed == self.model.freed(dead, actor="recovery", now=self.now)
        self._came("a dead worker held something" if freed.waiting or freed.failed or freed.actions else "it held none")

    @happens(1, when=lambda self: self.held, numbers=picks)
    def ask_what_was_withdrawn(self, numbers: list[int]) -> None:
        claims = [held.claim for held in self._several(numbers)]
        assert self.ledger.cancellations.withdrawn(claims) == self.model.withdrawn(claims)

    @happens(3)
    def plan_the_next_runs(self) -> None:
        """What can be claimed is what the planner of the next runs finds, and nothing else."""
        planned = {
            (stage.job_id, stage.stage, item.item_key)
            for stage in self.ledger.reads.open_stages()
            if stage.job_id > self.earlier_jobs
            for item in stage.items
            if item.can_be_claimed
        }
        claimable = {(item.key.job_id, item.key.stage, item.key.item_key) for item in self._claimable()}
        assert planned == claimable

    # Time

    @happens(6, ms=st.sampled_from((1, 250, 999, LEASE_MS, LEASE_MS + 1, 5_000, DAY_MS)))
    def time_passes(self, ms: int) -> None:
        self.clock.now_ms += ms

    @happens(8, when=lambda self: self._moments(), number=pick, off_ms=st.sampled_from((-1, 0, 0, 1)))
    def time_passes_until_something_is_due(self, number: int, off_ms: int) -> None:
        """To the very millisecond at which a lease or a pause ends, or beside it."""
        self.clock.now_ms = max(self.now, _chosen(self._moments(), number) + off_ms)

    # People

    @happens(
        3,
        tenant=st.sampled_from((*TENANTS, "nobody")),
        key=st.sampled_from(KEYS),
        content=st.sampled_from(("text", "text", "other")),
        deadline_ms=st.sampled_from((None, 4_000, 9_000, DAY_MS)),
    )
    def submit(self, tenant: str, key: str, content: str, deadline_ms: int | None) -> None:
        request = self._submission(
            key=key, content=content, tenant=self.tenants.get(tenant, tenant), deadline_ms=deadline_ms
        )
        tenant = request.name.tenant
        if tenant == "nobody":
            with pytest.raises(TenantNotFoundError):
                self.ledger.submissions.submit(request, actor="client")
            return
        known = self.model.find(tenant, key)
        if known is not None and known.content != content:
            with pytest.raises(SubmissionConflictError):
                self.ledger.submissions.submit(request, actor="client")
            self._came("submit: conflict")
            return
        accepted = self.ledger.submissions.submit(request, actor="client")
        assert accepted.existing is (known is not None)
        if known is None:
            self._submitted(accepted.job_id, request, content)
        else:
            assert accepted.job_id == known.job_id
        self._came("submit: existing" if known else "submit: new")

    @happens(2, when=lambda self: self.model.jobs, number=pick, meant=st.integers(min_value=0, max_value=2))
    def cancel(self, number: int, meant: int) -> None:
        job = self._job(number)
        # Most of the time somebody thinks better of it: a machine that cancels everything shows nothing else.
        if meant and not job.ended:
            return
        expected = self.model.cancelled(job.job_id, actor="person", reason="not needed", now=self.now)
        if expected is None:
            with pytest.raises(StateError):
                self.ledger.cancellations.cancel(job.job_id, actor="person", reason="not needed")
            self._came("cancel: refused")
            return
        assert self.ledger.cancellations.cancel(job.job_id, actor="person", reason="not needed") == expected
        self._came("cancel: done, in flight" if expected.in_flight else "cancel: done")

    @happens(
        8,
        when=lambda self: self._failed_items(),
        number=pick,
        stage=st.sampled_from((Stage.GENERATE_RULES, Stage.GENERATE_TESTS, Stage.PARSE)),
    )
    def redrive(self, number: int, stage: Stage) -> None:
        self._redrive(self._job(number), stage, None)

    @happens(8, when=lambda self: self._failed_items(), number=pick)
    def redrive_an_item_that_failed(self, number: int) -> None:
        key = _chosen(self._failed_items(), number).key
        self._redrive(self.model.jobs[key.job_id], key.stage, [key.item_key, "no-such-item"])

    def _redrive(self, job: Job, stage: Stage, keys: list[str] | None) -> None:
        expected = self.model.redriven(job.job_id, stage, keys, actor="person", reason="again", now=self.now)
        assert self.ledger.redrives.redrive(job.job_id, stage, keys, actor="person", reason="again") == expected
        self._came("redrive: some" if expected else "redrive: none")

    @happens(
        5, when=lambda self: self._with_actions() or self._waiting_for_a_person(), number=pick, right=st.booleans()
    )
    def confirm(self, number: int, right: bool) -> None:
        job = self._deciding(number)
        digest = job.digest if right and job.digest else sha256_hex("another action set")
        expected = self.model.confirmed(job.job_id, digest, actor="person", now=self.now)
        if expected is None:
            error = ActionSetMismatchError if job.digest not in (None, digest) else StateError
            with pytest.raises(error):
                self.ledger.actions.confirm(job.job_id, digest, actor="person")
            self._came("confirm: refused")
            return
        assert self.ledger.actions.confirm(job.job_id, digest, actor="person") is expected
        self._came("confirm: new" if expected else "confirm: again")

    @happens(
        2, when=lambda self: self._with_actions() or self._waiting_for_a_person(), number=pick, meant=st.booleans()
    )
    def reject(self, number: int, meant: bool) -> None:
        job = self._deciding(number)
        if not meant and job.state is JobState.AWAITING_CONFIRMATION:
            return
        if self.model.rejected(job.job_id, actor="person", reason="wrong", now=self.now):
            self.ledger.actions.reject(job.job_id, actor="person", reason="wrong")
            self._came("reject: done")
        else:
            with pytest.raises(StateError):
                self.ledger.actions.reject(job.job_id, actor="person", reason="wrong")
            self._came("reject: refused")

    @happens(3, when=lambda self: self._half_done() and not self._ended_by_hand(), number=pick)
    def a_job_ends_and_its_items_stay(self, number: int) -> None:
        """Nothing in the ledger does this, but a hand in the database might; the guard looks at the job by itself."""
        at_work = [held for held in self._working() if not self.model.jobs[held.claim.key.job_id].actions]
        late = [_chosen(at_work, number)] if at_work else []
        job = self.model.jobs[late[0].claim.key.job_id] if late else _chosen(self._half_done(), number)
        database = self.ledger.database
        with database.write() as connection:
            connection.execute(
                sa.update(job_table)
                .where(job_table.c.job_id == job.job_id)
                .values(state=JobState.FAILED, end_reason="by hand")
            )
            log_job(connection, database.now, job.job_id, job.state, JobState.FAILED, cause="by hand", actor="hand")
        self.model.ended_by_hand(job.job_id, reason="by hand", actor="hand", now=self.now)
        self._turn(self.workers[0], offers=[self._offer(held, passes=True, clauses=1) for held in late])
        self._came("a job ended by hand")

    @happens(3, when=lambda self: self.model.jobs, number=pick, wait_ms=st.sampled_from((0, 0, 5_000)))
    def expire(self, number: int, wait_ms: int) -> None:
        overdue = self.ledger.deadlines.overdue()
        mine = tuple(job_id for job_id in overdue if job_id > self.earlier_jobs)
        assert mine == self.model.overdue(self.now)
        job = self.model.jobs[_chosen(mine, number)] if mine and number % 4 else self._job(number)
        expected = self.model.expired(job.job_id, wait_ms=wait_ms, actor="clerk", now=self.now)
        expired = self.ledger.deadlines.expire(job.job_id, actor="clerk", wait_ms=wait_ms)
        assert (expired and (expired.items, expired.in_flight)) == (expected and (expected.items, expected.in_flight))
        self._came("expire: done" if expected else "expire: refused")

    @happens(2, when=lambda self: self.model.jobs, number=pick, by_ms=st.sampled_from((1_000, 60_000)))
    def extend(self, number: int, by_ms: int) -> None:
        job = self._job(number)
        expected = self.model.extended(job.job_id, by_ms=by_ms, actor="person", reason="late", now=self.now)
        if expected is None:
            with pytest.raises(StateError):
                self.ledger.deadlines.extend(job.job_id, by_ms=by_ms, actor="person", reason="late")
        else:
            moved = self.ledger.deadlines.extend(job.job_id, by_ms=by_ms, actor="person", reason="late")
            assert moved == expected
        self._came("extend: done" if expected else "extend: refused")

    @happens(
        3,
        when=lambda self: any(job.ended for job in self.model.jobs.values()),
        number=pick,
        key=st.sampled_from((*KEYS, "successor", "successor-2")),
    )
    def fork(self, number: int, key: str) -> None:
        old = _chosen([job for job in self.model.jobs.values() if job.ended], number)
        known = self.model.find(old.tenant, key)
        error: type[Exception] | None = None
        if old.state is JobState.COMPLETED:
            error = StateError
        elif known is not None and (known.predecessor != old.job_id or not known.is_fork):
            error = SubmissionConflictError
        if error is not None:
            with pytest.raises(error):
                self.ledger.forks.fork(old.job_id, key, deadline_ms=DAY_MS, actor="person")
            self._came("fork: refused")
            return
        opened = self.ledger.forks.fork(old.job_id, key, deadline_ms=DAY_MS, actor="person")
        assert opened.existing is (known is not None)
        if known is None:
            self.model.forked(old, opened.job_id, key, deadline_ms=DAY_MS, actor="person", now=self.now)
        self._came("fork: existing" if known else "fork: new")

    @happens(
        2, name=st.sampled_from(TENANTS), limit=st.sampled_from((None, None, 0, 1, 3)), share=st.sampled_from((1, 5))
    )
    def limit_a_tenant(self, name: str, limit: int | None, share: int) -> None:
        with self.ledger.database.write() as connection:
            connection.execute(
                sa.update(tenant_table)
                .where(tenant_table.c.tenant == self.tenants[name])
                .values(claim_limit=limit, weight=share)
            )
        self.model.claim_limits[self.tenants[name]] = limit

    # Quotas and decisions

    @happens(4, kind=scopes, number=pick, changes=some_limits)
    def set_a_quota(self, kind: str, number: int, changes: dict[str, int | None]) -> None:
        if kind == "nobody":
            with pytest.raises(TenantNotFoundError):
                self.ledger.quotas.set(QuotaScope.of_tenant("nobody"), changes)
            with pytest.raises(JobNotFoundError):
                self.ledger.quotas.set(QuotaScope.parse(f"job:{self.tenants['acme']}/none"), changes)
            return
        scope, owned = self._quota_scope(kind, number)
        self.ledger.quotas.set(scope, changes)
        self.model.limited(str(scope), owned, changes, self.now)
        self._came("a quota is set")

    @happens(3, when=lambda self: self.model.jobs, number=pick, need=st.sampled_from(NEEDS), add_provider=st.booleans())
    def estimate(self, number: int, need: Estimate, add_provider: bool) -> None:
        self._estimate(self._job(number), need, add_provider=add_provider)

    @happens(1, when=lambda self: self.model.quotas.of, kind=scopes, number=pick)
    def reset_a_quota(self, kind: str, number: int) -> None:
        scope, _ = self._quota_scope(kind, number)
        quota = self.model.quotas.of.get(str(scope))
        assert self.ledger.quotas.reset(scope) is (quota is not None)
        if quota is not None:
            quota.blocked_until = quota.refused = None

    @happens(5, when=lambda self: self._calling(), number=pick, late=st.booleans())
    def the_provider_refuses_the_account(self, number: int, late: bool) -> None:
        calling = [held for held in self.held if held.claim.key.stage in GENERATION] if late else self._calling()
        held = _chosen(calling, number)
        self._turn(
            held.worker, failures=[self._failure(held, AttemptOutcome.RETRYABLE, 0.5, None, account_refused=True)]
        )

    @happens(5, when=lambda self: self._calling(), number=pick, late=st.booleans())
    def give_back_without_a_call(self, number: int, late: bool) -> None:
        calling = [held for held in self.held if held.claim.key.stage in GENERATION] if late else self._calling()
        held = _chosen(calling, number)
        self._turn(held.worker, failures=[self._failure(held, AttemptOutcome.CANCELLED, 0.5, None, called=False)])

    @happens(2, when=lambda self: self._generating(), number=pick)
    def ask_what_holds_a_job(self, number: int) -> None:
        self._hold(*_chosen(self._generating(), number))

    @happens(3, when=lambda self: self._generating(), number=pick)
    def stop_where_a_budget_is_spent(self, number: int) -> None:
        generating = self._generating()
        spent = [
            one for one in generating if (hold := self.model.hold(*one, self.now)) and hold.reason == "quota_budget"
        ]
        job, _ = _chosen(spent or generating, number)
        expected = self.model.budget_spent(job.job_id, actor="engine", now=self.now)
        assert self.ledger.quotas.stop(job.job_id, actor="engine") is expected
        self._came("a budget is spent" if expected else "a budget is not spent")

    @happens(
        4, when=lambda self: self.model.jobs, number=pick, reason=st.sampled_from(REASONS), whoever_works=st.booleans()
    )
    def ask_for_a_decision(self, number: int, reason: Incompatibility, whoever_works: bool) -> None:
        job = self._job(number)
        expected = self.model.asked(job.job_id, reason, whoever_works=whoever_works, actor="release", now=self.now)
        found = self.ledger.decisions.ask(job.job_id, reason, actor="release", whoever_works=whoever_works)
        assert found == expected
        assert set(retained_jobs(self.ledger.database)) == {
            job.job_id for job in self.model.jobs.values() if job.is_retained
        }
        self._came("a decision is needed" if expected.is_held else "a decision is not asked for")

    # Publishing

    @happens(6, when=lambda self: self._with_actions(), number=pick, worker=workers)
    def claim_an_action(self, number: int, worker: int) -> None:
        job = _chosen(self._with_actions(), number)
        (token,) = self._tokens(1)
        claimant = self.workers[worker]
        claimed = self.ledger.actions.claim(job.job_id, token=token, claimant=claimant)
        expected = self.model.action_claimed(job.job_id, token, claimant, self.now)
        assert (claimed and claimed.action_key) == expected
        if claimed is not None:
            assert (claimed.content, claimed.action_set_digest) == (job.action_set, job.digest)
            self.published.append(claimed)

    @happens(8, when=lambda self: self.published, number=pick, newest=st.booleans())
    def publish(self, number: int, newest: bool) -> None:
        claim = self.published[-1] if newest else _chosen(self.published, number)
        receipt = json.dumps({"by": claim.token})
        expected = self.model.action_finished(claim, receipt=receipt, actor="publisher", now=self.now)
        assert self.ledger.actions.finish(claim, receipt=receipt, actor="publisher") is expected
        self._came("publish: done" if expected else "publish: stale")

    @happens(3, when=lambda self: self.published, number=pick)
    def publish_with_an_unknown_outcome(self, number: int) -> None:
        claim = _chosen(self.published, number)
        expected = self.model.action_released(claim, error_code="lost", actor="publisher", now=self.now)
        assert self.ledger.actions.release(claim, error_code="lost", actor="publisher") is expected
        self._came("publish: unknown" if expected else "publish: stale")

    # What is compared after every rule

    @invariant()
    def the_ledger_is_as_the_model_says(self) -> None:
        before, self.rows = self.rows, self._read()
        moves, self.last_move = ledger_rows.new_moves(self.rows, self.last_move)
        expected = self.model.taken_moves()
        assert Counter(moves) == Counter(expected), f"the log has {moves}, the model {expected}"
        found = [
            *ledger_rows.differences(self.rows, self.model, self.now),
            *ledger_rows.broken(self.rows),
            *ledger_rows.changed(before, self.rows),
        ]
        assert not found, "\n".join(found)

    def teardown(self) -> None:
        for job in self.model.jobs.values():
            self.tally.results[f"job: {job.state}"] += 1

    # The parts

    @property
    def now(self) -> int:
        return self.clock.now_ms

    def _read(self, *tables: Collection[str]) -> ledger_rows.Rows:
        return ledger_rows.read(self.ledger.database, self.earlier_jobs, self.number, *tables)

    def _given_up(self) -> set[WorkKey]:
        database = self.ledger.database
        keys, self.last_given_up = ledger_rows.given_up(database, self.earlier_jobs, self.last_given_up)
        return {self.model.newest(key) for key in keys}

    def _came(self, result: str) -> None:
        self.tally.results[result] += 1

    def _tokens(self, count: int) -> list[str]:
        self.serial += count
        return [f"t-{self.tally.examples}-{self.serial - number:05d}" for number in range(count)]

    def _turn(
        self,
        worker: Claimant,
        *,
        offers: Sequence[Offer] = (),
        failures: Sequence[tuple[FailedAttempt, RetryDecision]] = (),
        renewals: Sequence[Held] = (),
        scope: Scope | None = None,
        slots: int = 0,
    ) -> dict[str, Landing]:
        renewed = [held.claim for held in renewals]
        tokens = self._tokens(slots)
        claims: tuple[Claim, ...] = ()
        wait_ms: int | None = None
        with self.ledger.turn(worker) as turn:
            for offer in offers:
                turn.offer(offer)
            landings = turn.settle(failures)
            kept = turn.renew(renewed)
            if scope is not None:
                claims = turn.claim(scope, tokens)
                wait_ms = turn.quota_wait_ms
        expected = self.model.settled(offers, failures, worker=worker.worker, now=self.now)
        assert landings == expected, f"the ledger says {landings}, the model {expected}"
        assert kept == self.model.renewed(renewed, worker.lease_ms, self.now)
        for landing in landings.values():
            self._came(f"completion: {landing}")
        if scope is not None:
            spent = self._given_up() if any(map(is_spent, self.model.claimable(scope, self.now))) else set()
            self.model.claimed(scope, tokens, claims, spent, worker, self.now, wait_ms=wait_ms)
            granted = {claim.token for claim in claims}
            if self.model.quotas.reserved.keys() & granted:
                found = list(overspent(self._read(QUOTA_TABLES), granted, self.now))
                assert not found, "\n".join(found)
                self._came("claim: within a quota")
            self._came("claim: a quota opens later" if wait_ms is not None else "claim: no quota opens later")
            self.held += [Held(claim=claim, worker=worker) for claim in claims]
            self._came(f"claim: {'some' if claims else 'none'}")
            self.tally.results["claim: lease taken over"] += sum(claim.attempt > 1 for claim in claims)
            self.tally.results["claim: attempts exhausted"] += len(spent)
        return landings

    def _offer(self, held: Held, *, passes: bool, clauses: int, usage: Usage | None = None) -> Offer:
        claim = held.claim
        self.serial += 1
        output = {"by": claim.token, "n": self.serial}
        if claim.key.stage is Stage.PARSE:
            parsed = parsed_spec(clauses)
            output |= {"canonical_digest": sha256_hex(parsed.canonical_text), "format": parsed.format}
            return Offer(claim=claim, output=json.dumps(output), parsed=parsed)
        offer = Offer(claim=claim, output=json.dumps(output))
        if claim.key.stage in GENERATION:
            # Not more than was reserved: what several calls of a turn give back and take is booked in any order.
            held_back = self.model.quotas.reserved.get(claim.token)
            most = held_back.need.tokens if held_back else 3
            used = usage or Usage(
                model_id="m", tokens_in=min(1, most), tokens_out=max(0, min(2, most - 1)), cost_micros=3
            )
            return replace(offer, provider="rulegen-scripted", provider_called=True, usage=used)
        if claim.key.stage is Stage.VALIDATE:
            kinds = ["publish", "notify"][: 1 + self.serial % 2]
            content = json.dumps({"actions": [{"kind": kind} for kind in kinds], "n": self.serial})
            return replace(offer, passed=passes, action_set=content if passes else None)
        return offer

    def _failure(
        self,
        held: Held,
        outcome: AttemptOutcome,
        jitter: float,
        retry_after_ms: int | None,
        *,
        called: bool = True,
        account_refused: bool = False,
    ) -> tuple[FailedAttempt, RetryDecision]:
        claim = held.claim
        calls = called and claim.key.stage in GENERATION
        failed = FailedAttempt(
            claim=claim,
            outcome=outcome,
            error_code=f"said_{outcome}",
            message="no luck",
            provider_called=calls,
            retry_after_ms=retry_after_ms,
            account_refused=account_refused and calls,
        )
        decision = decide_retry(
            outcome,
            attempt=claim.attempt,
            attempt_limit=claim.attempt_limit,
            policy=self.ledger.policy,
            jitter=jitter,
            retry_after_ms=retry_after_ms,
            account_refused=failed.account_refused,
        )
        return failed, decision

    def _submission(self, *, key: str, tenant: str, deadline_ms: int | None, content: str = "text") -> Submission:
        request = submission(key, content=content, tenant=tenant)
        return replace(request, deadline_ms=deadline_ms, behaviour=self.behaviours[0])

    def _submitted(self, job_id: int, request: Submission, content: str) -> Job:
        return self.model.submitted(
            job_id,
            request.name,
            content,
            request.behaviour,
            deadline_ms=request.deadline_ms,
            actor="client",
            now=self.now,
        )

    def _estimate(self, job: Job, need: Estimate, *, add_provider: bool) -> None:
        stages = (Stage.GENERATE_RULES, Stage.GENERATE_TESTS)
        self.ledger.quotas.estimate(job.job_id, dict.fromkeys(stages, need), add_provider=add_provider)
        self.model.quotas.estimates |= {(job.job_id, stage): need for stage in stages}
        if add_provider and job.scopes["provider"] not in self.model.quotas.of:
            self.model.limited(job.scopes["provider"], (), {}, self.now)

    def _quota_scope(self, kind: str, number: int) -> tuple[QuotaScope, list[Job]]:
        """A scope and the jobs that it is charged for from the start."""
        jobs = list(self.model.jobs.values())
        if kind == "tenant":
            tenant = self.tenants[TENANTS[number % len(TENANTS)]]
            return QuotaScope.of_tenant(tenant), [job for job in jobs if job.tenant == tenant]
        if kind == "job" and jobs:
            job = self._job(number)
            return QuotaScope.parse(job.scopes["job"]), [job]
        frozen = self.behaviours[kind == "other provider"]
        return QuotaScope.of_provider(frozen.provider, frozen.model_id), []

    def _needing(self, number: int) -> Job:
        """A job that needs a decision, most of the time where there is one."""
        needing = [job for job in self.model.jobs.values() if job.needs_decision]
        return _chosen(needing, number) if needing and number % 8 else self._job(number)

    def _claimable(self) -> list[Item]:
        return self.model.claimable(Scope(stages=STAGES), self.now)

    def _generating(self) -> list[tuple[Job, Stage]]:
        return [
            (job, STAGE_OF[job.state])
            for job in self.model.jobs.values()
            if job.state in STAGE_OF and STAGE_OF[job.state] in GENERATION
        ]

    def _calling(self) -> list[Held]:
        return [held for held in self._working() if held.claim.key.stage in GENERATION]

    def _scope(self, stages: tuple[Stage, ...], within: str, number: int) -> Scope:
        jobs = list(self.model.jobs)
        if within == "jobs":
            return Scope(stages=stages, job_ids=tuple(jobs[number % (len(jobs) + 1) :]))
        if within == "items":
            items = [item.key for item in self.model.items()]
            return Scope(stages=stages, items=tuple(items[number % 3 :: 2]))
        return Scope(stages=stages)

    def _working(self) -> list[Held]:
        """The claims that hold, of workers that live."""
        return [held for held in self.held if not held.crashed and self.model.lands(held.claim, self.now)]

    def _accepted(self) -> list[Held]:
        return [
            held
            for held in self.held
            if (item := self.model.item(held.claim.key)).state is WorkState.SUCCEEDED
            and item.tries[-1].token == held.claim.token
        ]

    def _several(self, numbers: Sequence[int]) -> list[Held]:
        """Distinct claims, the newest more often than the oldest."""
        return list({id(held): held for held in (self.held[-1 - n % len(self.held)] for n in numbers)}.values())

    def _job(self, number: int) -> Job:
        return _chosen(list(self.model.jobs.values()), number)

    def _deciding(self, number: int) -> Job:
        """A job that waits for a person, where there is one; else any."""
        waiting = self._waiting_for_a_person()
        return _chosen(waiting, number) if waiting and number % 4 else self._job(number)

    def _waiting_for_a_person(self) -> list[Job]:
        return [
            job
            for job in self.model.jobs.values()
            if job.state is JobState.AWAITING_CONFIRMATION or (job.state is JobState.VALIDATING and job.passed is False)
        ]

    def _with_actions(self) -> list[Job]:
        return [job for job in self.model.jobs.values() if job.actions]

    def _half_done(self) -> list[Job]:
        return [job for job in self.model.jobs.values() if not job.ended and not job.actions]

    def _ended_by_hand(self) -> bool:
        return any(job.state is JobState.FAILED for job in self.model.jobs.values())

    def _failed_items(self) -> list[Item]:
        return [item for item in self.model.items() if item.state is WorkState.FAILED]

    def _moments(self) -> list[int]:
        """The times to come at which a lease or a pause ends."""
        leases = [item.lease_until for item in self.model.items()]
        pauses = [item.due for item in self.model.items()]
        quotas = self.model.quotas.of.values()
        blocks = [quota.blocked_until for quota in quotas]
        probes = [quota.refused.probe_at for quota in quotas if quota.refused is not None]
        actions = [action.lease_until for job in self.model.jobs.values() for action in job.actions.values()]
        return sorted({at for at in (*leases, *pauses, *blocks, *probes, *actions) if at is not None and at > self.now})


class _Died(Exception):  # noqa: N818 (it is no error)
    """A process that died inside a transaction."""


def _chosen(candidates: Sequence[T], number: int) -> T:
    return candidates[number % len(candidates)]
