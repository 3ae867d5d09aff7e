"""Quotas at work: jobs wait for room and say so, a refused account stops everybody, money ends or holds a job."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from rulegen_dagster.domain.errors import (
    InputError,
    ProviderAccountError,
    ProviderAmbiguousError,
    ProviderRateLimitedError,
)
from rulegen_dagster.domain.quota import FIRST_PROBE_MS, UNIT, CallCost
from rulegen_dagster.domain.quota_scope import QuotaScope
from rulegen_dagster.domain.states import JobState, Stage, WorkState
from rulegen_dagster.domain.work import Claim, Offer
from rulegen_dagster.ledger.claims import Scope
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.ledger.quota_schema import quota
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.ledger.store import Turn
from rulegen_dagster.providers.port import ProviderIdentity, ProviderReply, ProviderRequest
from rulegen_dagster.workflow.drive import GENERATING_STAGES, drive, generate
from rulegen_dagster.workflow.explain import Reason, status_report
from rulegen_dagster.workflow.forks import fork_job
from rulegen_dagster.workflow.generate import Generation
from rulegen_dagster.workflow.partitions import KeyState, drain_keys
from rulegen_dagster.workflow.plan import plan_work
from rulegen_dagster.workflow.quotas import dollars
from rulegen_dagster.workflow.runtime import Runtime
from rulegen_dagster.workflow.why import why_report
from tests.workflow.conftest import (
    PlayedRuntime,
    Recorder,
    drain,
    make_items,
    offer_of,
    open_rules,
    playing,
    policy,
    submit,
)

RULES = Stage.GENERATE_RULES
PRICED = CallCost(overhead_tokens=100, max_tokens=100, price_in=1_000_000, price_out=2_000_000)


class Metered(Recorder):
    """The pattern extractor with the bills of a model: it counts tokens, has a price, and does what `before` says."""

    cost: CallCost | None = PRICED

    @property
    def identity(self) -> ProviderIdentity:
        return replace(super().identity, call_cost=self.cost)

    async def call(self, request: ProviderRequest) -> ProviderReply:
        reply = await super().call(request)
        return replace(reply, tokens_in=30, tokens_out=20, cost_micros=70)


class Unpriced(Metered):
    cost = replace(PRICED, price_in=None)


@pytest.fixture
def metered(local_runtime: Runtime) -> PlayedRuntime:
    return playing(local_runtime, Metered())


def provider_of(job: JobRecord) -> QuotaScope:
    return QuotaScope.of_provider(job.behaviour["provider"], job.behaviour["model_id"])


def generated(runtime: Runtime, job: JobRecord) -> JobRecord:
    """Generate all of a job, which needs no wait; its validation is another matter."""
    scope = Scope(stages=GENERATING_STAGES, job_ids=(job.job_id,))
    generate(runtime, scope, observe=lambda _outcome: None)
    return runtime.ledger.reads.job_by_id(job.job_id)


def stuck(runtime: Runtime, job: JobRecord) -> JobRecord:
    """Drive a job that this process has to leave to somebody else."""

    def no_wait(reason: Reason) -> None:
        raise AssertionError(f"it waits here: {reason.text}")

    return drive(runtime, job, observe=lambda _outcome: None, on_wait=no_wait)


def test_a_job_waits_for_its_quota_says_so_and_goes_on_as_it_refills(
    metered: PlayedRuntime, clock: ManualClock
) -> None:
    job = open_rules(metered, policy(3))
    metered.ledger.quotas.set(provider_of(job), {"requests_per_minute": 2})
    told: list[Reason] = []

    def sleep(_seconds: float) -> None:
        clock.now_ms += 30_000

    ended = drive(metered, job, observe=lambda _outcome: None, on_wait=told.append, sleep=sleep)

    assert ended.state is JobState.AWAITING_CONFIRMATION
    assert {reason.code for reason in told} == {"quota_requests"}
    assert told[0].text.startswith("1 item of generate_rules could be claimed, but provider:rulegen-pattern/")
    attempts = metered.ledger.reads.attempts(job.job_id)
    assert {attempt.attempt for attempt in attempts} == {1}, "waiting uses no attempt up"
    charges = status_report(metered, ended)["charges"]
    assert charges == {"settled": {"calls": 6, "tokens": 300, "cost_micros": 420}}


def test_an_item_without_room_names_the_scope_and_what_is_left_of_it(metered: PlayedRuntime) -> None:
    job = open_rules(metered, policy(2))
    Generation(metered).load([job.job_id])
    metered.ledger.quotas.set(QuotaScope.of_job(job.name), {"tokens_per_minute": 100})
    metered.ledger.quotas.set(QuotaScope.of_tenant("default"), {"concurrency": 0})

    report = why_report(metered, job, "rule-01")
    metered.ledger.quotas.set(QuotaScope.of_tenant("default"), {"concurrency": None})
    too_small = why_report(metered, job)

    assert (report["reason_code"], report["next_at_ms"]) == ("quota_too_small", None)
    assert too_small["evidence"]["scope"] == f"job:{job.name}"
    assert (too_small["evidence"]["tokens_left"], too_small["evidence"]["items"]) == (100, 2)
    assert too_small["evidence"]["call_tokens"] > 200
    assert "--tpm N" in too_small["reason"]


def test_no_run_is_asked_for_before_there_is_room(metered: PlayedRuntime, clock: ManualClock) -> None:
    job = open_rules(metered, policy(2))
    metered.ledger.quotas.set(provider_of(job), {"requests_per_minute": 1})
    assert len(plan_work(metered)) == 1
    _use_up(metered, provider_of(job))

    assert plan_work(metered) == []

    keys = [item.partition_key for item in metered.ledger.reads.items(job.job_id, RULES)]
    told = list(drain_keys(metered, [str(key) for key in keys], (RULES,), accept=_accept, redrive_reason=None))
    assert {outcome.state for outcome in told} == {KeyState.WAITING}
    assert "allows 1 requests a minute" in str(told[0].reason)
    clock.now_ms += 60_000
    assert len(plan_work(metered)) == 1


def test_a_refused_account_makes_every_job_wait_and_uses_no_attempt_up(
    local_runtime: Runtime, clock: ManualClock
) -> None:
    refused = Metered(before=_raising(ProviderAccountError("the key is not accepted")))
    runtime = playing(local_runtime, refused)
    first, second = open_rules(runtime, policy(9), key="a"), open_rules(runtime, policy(9), key="b")

    assert stuck(runtime, first).state is JobState.GENERATING_RULES
    calls = len(refused.calls)
    assert stuck(runtime, second).state is JobState.GENERATING_RULES

    assert calls == len(refused.calls) <= runtime.settings.slots
    for job in (first, second):
        report = status_report(runtime, job)
        assert (report["reason_code"], report["failed_items"]) == ("account_refused", [])
        assert f"'rulegen quota reset {provider_of(job)}'" in report["reason"]
    mended = playing(local_runtime, Metered())
    assert stuck(mended, first).state is JobState.GENERATING_RULES, "nobody has said that it is mended"

    assert mended.ledger.quotas.reset(provider_of(first))
    assert generated(mended, first).state is JobState.VALIDATING
    assert clock.now_ms < FIRST_PROBE_MS


def test_one_call_tries_a_refused_account_again_after_its_pause(local_runtime: Runtime, clock: ManualClock) -> None:
    refused = Metered(before=_raising(ProviderAccountError("the quota is exhausted")))
    runtime = playing(local_runtime, refused)
    job = open_rules(runtime, policy(9))
    stuck(runtime, job)
    calls = len(refused.calls)

    clock.now_ms += FIRST_PROBE_MS
    stuck(runtime, job)

    assert len(refused.calls) == calls + 1
    clock.now_ms += 2 * FIRST_PROBE_MS
    assert generated(playing(local_runtime, Metered()), job).state is JobState.VALIDATING


def test_a_rate_limit_keeps_the_other_items_from_being_called_for(local_runtime: Runtime, clock: ManualClock) -> None:
    error = ProviderRateLimitedError("slow down", retry_after_ms=20_000)
    limited = Metered(before=_raising(error, attempts=1, item="rule-01"))
    runtime = playing(local_runtime, limited)
    job = open_rules(runtime, policy(9))
    told: list[Reason] = []

    def sleep(_seconds: float) -> None:
        clock.now_ms += 20_000

    ended = drive(runtime, job, observe=lambda _outcome: None, on_wait=told.append, sleep=sleep)

    assert ended.state is JobState.AWAITING_CONFIRMATION
    assert told[0].code == "quota_blocked"
    assert len([call for call in limited.calls if call.endswith("rule-01/2")]) == 1


def test_a_job_whose_budget_is_spent_waits_for_more(metered: PlayedRuntime) -> None:
    job = open_rules(metered, policy(3))
    metered.ledger.quotas.set(QuotaScope.of_job(job.name), {"budget_micros": 600})

    held = stuck(metered, job)

    report = status_report(metered, held)
    assert (held.state, report["reason_code"]) == (JobState.GENERATING_TESTS, "quota_budget")
    assert f"job:{job.name} has spent USD 0.00" in report["reason"]
    assert report["charges"]["settled"]["cost_micros"] <= 600
    metered.ledger.quotas.set(QuotaScope.of_job(job.name), {"budget_micros": 10_000})
    assert generated(metered, job).state is JobState.VALIDATING


def test_a_job_whose_budget_is_spent_ends_where_the_settings_say_so(local_runtime: Runtime) -> None:
    stopping = replace(local_runtime, settings=local_runtime.settings.model_copy(update={"budget_policy": "stop"}))
    runtime = playing(stopping, Metered())
    job = open_rules(runtime, policy(3))
    runtime.ledger.quotas.set(QuotaScope.of_job(job.name), {"budget_micros": 600})

    ended = stuck(runtime, job)

    assert ended.state is JobState.FAILED
    assert ended.end_reason == f"the budget of job:{job.name} is spent: it does not cover another call"
    successor = fork_job(runtime, ended, "policy-b", deadline_ms=None, actor="test").job
    assert generated(runtime, successor).state is JobState.VALIDATING


def test_the_plan_ends_a_job_whose_budget_is_spent_too(local_runtime: Runtime) -> None:
    stopping = replace(local_runtime, settings=local_runtime.settings.model_copy(update={"budget_policy": "stop"}))
    runtime = playing(stopping, Metered())
    job = open_rules(runtime, policy(3))
    Generation(runtime).load([job.job_id])
    runtime.ledger.quotas.set(QuotaScope.of_tenant("default"), {"budget_micros": 1})

    assert plan_work(runtime) == []

    assert runtime.ledger.reads.job_by_id(job.job_id).state is JobState.FAILED


def test_a_submission_that_nobody_can_price_is_refused_where_its_tenant_has_a_budget(local_runtime: Runtime) -> None:
    runtime = playing(local_runtime, Unpriced())
    before = submit(runtime, policy(1), key="before")
    runtime.ledger.quotas.set(QuotaScope.of_tenant("default"), {"budget_micros": 10**9})

    with pytest.raises(InputError) as caught:
        submit(runtime, policy(1), key="after")

    assert caught.value.code == "price_unknown"
    assert submit(runtime, policy(1), key="before").job_id == before.job_id
    held = stuck(runtime, before)
    assert status_report(runtime, held)["reason_code"] == "quota_price_unknown"


def test_a_provider_that_costs_nothing_needs_no_price(local_runtime: Runtime) -> None:
    local_runtime.ledger.quotas.set(QuotaScope.of_tenant("default"), {"budget_micros": 0})

    assert generated(local_runtime, open_rules(local_runtime, policy(1))).state is JobState.VALIDATING


def test_an_engine_with_a_call_in_flight_claims_more_as_soon_as_there_is_room(
    local_runtime: Runtime, clock: ManualClock
) -> None:
    job_id = make_items(local_runtime, 2)
    job = local_runtime.ledger.reads.job_by_id(job_id)
    local_runtime.ledger.quotas.set(provider_of(job), {"requests_per_minute": 600})
    _use_up(local_runtime, provider_of(job), left=1)
    other_began = asyncio.Event()

    async def attempt(claim: Claim) -> Offer:
        # The room comes while this one is under way; without a second claim it would wait for ever.
        clock.now_ms += 100
        if claim.key.item_key == "rule-01":
            await asyncio.wait_for(other_began.wait(), 30)
        else:
            other_began.set()
        return offer_of(claim)

    outcomes = drain(local_runtime, attempt)

    assert len(outcomes) == 2


def test_an_unknown_outcome_stays_charged_and_is_told_by_the_status(local_runtime: Runtime, clock: ManualClock) -> None:
    lost = Metered(before=_raising(ProviderAmbiguousError("the connection was lost"), attempts=1, item="rule-01"))
    runtime = playing(local_runtime, lost)
    job = open_rules(runtime, policy(1))
    Generation(runtime).load([job.job_id])

    def sleep(_seconds: float) -> None:
        clock.now_ms += 1_000

    ended = drive(runtime, job, observe=lambda _outcome: None, on_wait=lambda _reason: None, sleep=sleep)

    report = status_report(runtime, ended)
    assert report["charges"]["kept"]["calls"] == 1
    assert report["charges"]["kept"]["cost_micros"] > 70
    assert report["charges"]["settled"]["calls"] == 2
    assert report["unused_calls_total"] == 1


def test_a_job_of_a_model_is_estimated_before_anything_of_it_is_claimed(metered: PlayedRuntime) -> None:
    job = open_rules(metered, policy(2))

    Generation(metered).load([job.job_id])

    metered.ledger.quotas.set(provider_of(job), {"tokens_per_minute": 10})
    hold = metered.ledger.quotas.hold_of(job.job_id, RULES)
    assert hold is not None
    assert hold.need is not None
    longest = max(len(clause.text) for clause in metered.ledger.reads.clauses(job.job_id))
    assert hold.need.tokens >= longest // 3 + 200
    assert metered.ledger.reads.items(job.job_id, RULES)[0].state is WorkState.PENDING


@pytest.mark.parametrize(
    ("micros", "text"), [(0, "USD 0.00"), (1_250_000, "USD 1.25"), (70, "USD 0.00007"), (-5_000_000, "-USD 5.00")]
)
def test_money_is_shown_with_as_many_places_as_it_needs(micros: int, text: str) -> None:
    assert dollars(micros) == text


def _accept(turn: Turn, offer: Offer) -> None:
    turn.offer(offer)


def _raising(error: Exception, *, attempts: int = 1_000, item: str = "") -> Any:
    def before(request: ProviderRequest) -> None:
        if request.stage is RULES and request.attempt <= attempts and request.item_key.startswith(item):
            raise error

    return before


def _use_up(runtime: Runtime, scope: QuotaScope, *, left: int = 0) -> None:
    with runtime.ledger.database.write() as connection:
        connection.execute(sa.update(quota).where(quota.c.scope == str(scope)).values(request_level=left * UNIT))
