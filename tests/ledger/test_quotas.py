"""Quotas in the ledger: reserved in the claim's transaction, settled in the completion's, enforced by the database."""

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from rulegen_dagster.domain.errors import JobNotFoundError, LedgerError, TenantNotFoundError
from rulegen_dagster.domain.identity import JobName
from rulegen_dagster.domain.quota import FIRST_PROBE_MS, UNIT, Bucket, Estimate, QuotaReason, Remaining
from rulegen_dagster.domain.quota_scope import QuotaScope
from rulegen_dagster.domain.refusal import Refusal
from rulegen_dagster.domain.retry import RetryDecision, RetryPolicy, decide_retry
from rulegen_dagster.domain.states import AttemptOutcome, Stage, WorkState
from rulegen_dagster.domain.work import Claim, FailedAttempt, Landing, Offer, Usage
from rulegen_dagster.ledger.claims import Claimant, Scope
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.ledger.quota_schema import quota, quota_reservation
from rulegen_dagster.ledger.store import Ledger, open_ledger
from tests.conftest import POLICY
from tests.ledger.conftest import ALICE, BOB, MakeJob, complete, tokens
from tests.ledger.conftest import claim as claim_items

RULES = Stage.GENERATE_RULES
PROVIDER = QuotaScope.of_provider("rulegen-pattern", "m")
JOB = QuotaScope.of_job(JobName(tenant="default", submission_key="policy"))
TENANT = QuotaScope.of_tenant("default")
NEED = Estimate(tokens=100, cost_micros=50)
CUT_OFF = Refusal(code="answer_truncated", path="$")
RETRY_NOW = RetryPolicy(max_attempts=3, first_delay_ms=0)


def claim(ledger: Ledger, job_id: int | None, count: int = 1, claimant: Claimant = ALICE) -> tuple[Claim, ...]:
    scope = Scope(stages=(RULES,), job_ids=None if job_id is None else (job_id,))
    return claim_items(ledger, scope, count, claimant)


def answer(one: Claim, *, tokens_out: int | None = 60, micros: int | None = 20, left: Remaining | None = None) -> Offer:
    tokens_in = None if tokens_out is None else 0
    usage = Usage(model_id="m", tokens_in=tokens_in, tokens_out=tokens_out, cost_micros=micros, remaining=left)
    return Offer(claim=one, output="{}", provider="p", provider_called=True, usage=usage)


def fail(ledger: Ledger, one: Claim, outcome: AttemptOutcome, **more: object) -> RetryDecision:
    failed = FailedAttempt(claim=one, outcome=outcome, error_code="c", message="m", provider="p", provider_called=True)
    failed = replace(failed, **more)  # type: ignore[arg-type]
    decision = decide_retry(
        outcome,
        attempt=one.attempt,
        attempt_limit=one.attempt_limit,
        policy=RETRY_NOW,
        jitter=0.0,
        account_refused=failed.account_refused,
    )
    with ledger.turn(ALICE) as turn:
        turn.settle([(failed, decision)])
    return decision


def cut_off(ledger: Ledger, one: Claim, *, used: int = 60) -> None:
    usage = answer(one, tokens_out=used).usage
    fail(ledger, one, AttemptOutcome.INVALID_OUTPUT, usage=usage, refusals=(CUT_OFF,), may_repair=True)


def bucket(ledger: Ledger, scope: QuotaScope = PROVIDER) -> Bucket:
    return {state.scope: state.bucket for state in ledger.quotas.list()}[str(scope)]


def left(ledger: Ledger, scope: QuotaScope = PROVIDER) -> tuple[int, int, int]:
    """Return the requests and tokens that are left, and the money that is charged."""
    found = bucket(ledger, scope)
    return found.request_level // UNIT, found.token_level // UNIT, found.charged_micros


def reservations(ledger: Ledger) -> dict[str, str]:
    with ledger.database.read() as connection:
        rows = connection.execute(sa.select(quota_reservation.c.token, quota_reservation.c.state))
        return {row.token: row.state for row in rows}


@pytest.fixture
def job_id(ledger: Ledger, make_job: MakeJob) -> int:
    made = make_job(5)
    ledger.quotas.estimate(made, {RULES: NEED, Stage.GENERATE_TESTS: NEED})
    return made


def test_what_no_quota_has_room_for_is_not_claimed_and_costs_no_attempt(ledger: Ledger, job_id: int) -> None:
    ledger.quotas.set(PROVIDER, {"requests_per_minute": 2})

    claimed = claim(ledger, job_id, 5)

    assert len(claimed) == 2
    items = ledger.reads.items(job_id, RULES)
    assert [item.attempts for item in items] == [1, 1, 0, 0, 0]
    assert [item.state for item in items[2:]] == [WorkState.PENDING] * 3
    assert left(ledger)[0] == 0


def test_a_turn_tells_when_a_refused_claim_may_be_granted_and_then_it_is(
    ledger: Ledger, job_id: int, clock: ManualClock
) -> None:
    ledger.quotas.set(PROVIDER, {"tokens_per_minute": 200, "requests_per_minute": 100})
    with ledger.turn(ALICE) as turn:
        claimed = turn.claim(Scope(stages=(RULES,), job_ids=(job_id,)), tokens(5))
    assert (len(claimed), turn.quota_wait_ms) == (2, 30_000)
    hold = ledger.quotas.hold_of(job_id, RULES)
    assert hold is not None
    assert (hold.scope, hold.refusal.reason, hold.next_at) == (str(PROVIDER), QuotaReason.TOKENS, clock.now_ms + 30_000)

    clock.now_ms += 29_999
    assert not claim(ledger, job_id)
    clock.now_ms += 1
    assert len(claim(ledger, job_id)) == 1


def test_an_accepted_call_is_charged_with_what_it_used(ledger: Ledger, job_id: int) -> None:
    ledger.quotas.set(PROVIDER, {"requests_per_minute": 10, "tokens_per_minute": 1_000, "budget_micros": 1_000})
    (one,) = claim(ledger, job_id)
    assert left(ledger) == (9, 900, 50)

    complete(ledger, answer(one))

    assert left(ledger) == (9, 940, 20)
    assert reservations(ledger) == {one.token: "settled"}


def test_an_answer_that_tells_no_use_is_charged_as_estimated(ledger: Ledger, job_id: int) -> None:
    ledger.quotas.set(PROVIDER, {"requests_per_minute": 10, "tokens_per_minute": 1_000, "budget_micros": 1_000})
    (one,) = claim(ledger, job_id)

    complete(ledger, answer(one, tokens_out=None, micros=None))

    assert left(ledger) == (9, 900, 50)


def test_an_output_that_is_offered_twice_is_settled_once(ledger: Ledger, job_id: int) -> None:
    ledger.quotas.set(PROVIDER, {"tokens_per_minute": 1_000, "budget_micros": 1_000})
    (one,) = claim(ledger, job_id)

    complete(ledger, answer(one))
    complete(ledger, answer(one))

    assert left(ledger)[1:] == (940, 20)


def test_a_failed_call_is_charged_by_what_is_known_of_it(ledger: Ledger, make_job: MakeJob) -> None:
    expected = {
        AttemptOutcome.INVALID_OUTPUT: (-1, -60, 20, "settled"),
        AttemptOutcome.RETRYABLE: (0, 0, 0, "released"),
        AttemptOutcome.RATE_LIMITED: (-1, 0, 0, "settled"),
        AttemptOutcome.PERMANENT: (-1, 0, 0, "settled"),
        AttemptOutcome.AMBIGUOUS: (-1, -100, 50, "kept"),
        AttemptOutcome.CANCELLED: (-1, -100, 50, "kept"),
    }
    made = make_job(len(expected))
    ledger.quotas.estimate(made, {RULES: NEED})
    ledger.quotas.set(PROVIDER, {"requests_per_minute": 10, "tokens_per_minute": 1_000, "budget_micros": 1_000})
    found = {}
    for one, outcome in zip(claim(ledger, made, len(expected)), expected, strict=True):
        # What is reserved for this one counts as not taken yet.
        requests, taken, micros = left(ledger)
        fail(ledger, one, outcome, usage=answer(one).usage)
        after = left(ledger)
        told = (after[0] - requests - 1, after[1] - taken - 100, after[2] - micros + 50)
        found[outcome] = (*told, reservations(ledger)[one.token])

    assert found == expected


def test_an_attempt_that_called_nobody_gives_all_of_it_back(ledger: Ledger, job_id: int) -> None:
    ledger.quotas.set(PROVIDER, {"requests_per_minute": 10, "tokens_per_minute": 1_000, "budget_micros": 1_000})
    (one,) = claim(ledger, job_id)

    fail(ledger, one, AttemptOutcome.CANCELLED, provider_called=False)

    assert left(ledger) == (10, 1_000, 0)


def test_a_lost_attempt_stays_charged_until_its_late_result_settles_it(
    ledger: Ledger, job_id: int, clock: ManualClock
) -> None:
    ledger.quotas.set(PROVIDER, {"budget_micros": 1_000})
    (lost,) = claim(ledger, job_id)
    clock.now_ms += ALICE.lease_ms
    (second,) = claim(ledger, job_id, claimant=BOB)
    assert second.operation_key == lost.operation_key
    assert reservations(ledger) == {lost.token: "kept", second.token: "reserved"}
    complete(ledger, answer(second), claimant=BOB)
    assert left(ledger)[2] == 50 + 20

    assert complete(ledger, answer(lost)) == {lost.token: Landing.STALE}

    assert reservations(ledger) == {lost.token: "settled", second.token: "settled"}
    assert left(ledger)[2] == 20 + 20
    assert ledger.reads.unused_calls(job_id, limit=5).total == 1


def test_what_a_worker_that_is_proven_dead_held_stays_charged(ledger: Ledger, job_id: int) -> None:
    ledger.quotas.set(PROVIDER, {"concurrency": 1, "budget_micros": 1_000})
    (one,) = claim(ledger, job_id)

    ledger.recoveries.free({ALICE.worker}, actor="test")

    assert reservations(ledger) == {one.token: "kept"}
    assert left(ledger)[2] == 50
    assert len(claim(ledger, job_id, claimant=BOB)) == 1


def test_what_a_cancelled_job_had_in_flight_stays_charged(ledger: Ledger, job_id: int) -> None:
    ledger.quotas.set(TENANT, {"budget_micros": 1_000})
    (one,) = claim(ledger, job_id)

    ledger.cancellations.cancel(job_id, actor="test", reason="no need")

    assert reservations(ledger) == {one.token: "kept"}
    assert ledger.quotas.charges_of(job_id)["kept"].cost_micros == 50
    assert left(ledger, TENANT)[2] == 50


def test_calls_at_once_are_bounded_over_all_workers_and_a_lost_one_makes_room(
    ledger: Ledger, job_id: int, clock: ManualClock
) -> None:
    ledger.quotas.set(PROVIDER, {"concurrency": 2})
    first, _ = claim(ledger, job_id, 4)
    assert not claim(ledger, job_id, claimant=BOB)
    hold = ledger.quotas.hold_of(job_id, RULES)
    assert hold is not None
    assert (hold.refusal.reason, hold.next_at) == (QuotaReason.CONCURRENCY, clock.now_ms + ALICE.lease_ms)

    complete(ledger, answer(first))
    assert len(claim(ledger, job_id, 4, claimant=BOB)) == 1
    clock.now_ms += ALICE.lease_ms
    assert len(claim(ledger, job_id, 4, claimant=BOB)) == 2


def test_a_claim_needs_room_in_every_scope_and_takes_from_none_where_one_lacks_it(ledger: Ledger, job_id: int) -> None:
    ledger.quotas.set(PROVIDER, {"requests_per_minute": 10})
    ledger.quotas.set(TENANT, {"requests_per_minute": 10})
    ledger.quotas.set(JOB, {"requests_per_minute": 1})

    assert len(claim(ledger, job_id, 5)) == 1

    assert [left(ledger, scope)[0] for scope in (PROVIDER, TENANT, JOB)] == [9, 9, 0]
    hold = ledger.quotas.hold_of(job_id, RULES)
    assert hold is not None
    assert hold.scope == str(JOB)


def test_one_tenants_quota_does_not_hold_another(ledger: Ledger, make_job: MakeJob) -> None:
    ledger.submissions.add_tenant("acme")
    ours, theirs = make_job(2), make_job(2, tenant="acme")
    ledger.quotas.set(TENANT, {"requests_per_minute": 1})

    assert len(claim(ledger, ours, 2)) == 1
    assert len(claim(ledger, theirs, 2)) == 2


def test_jobs_that_share_a_quota_take_turns(ledger: Ledger, make_job: MakeJob, clock: ManualClock) -> None:
    jobs = [make_job(4, key=key) for key in ("a", "b")]
    ledger.quotas.set(PROVIDER, {"requests_per_minute": 1})
    served = []
    for _ in range(4):
        (one,) = claim(ledger, None, 4)
        complete(ledger, answer(one))
        served.append(one.key.job_id)
        clock.now_ms += 60_000

    assert sorted(served) == sorted(jobs * 2)
    assert served[0] != served[1]


def test_money_is_refused_before_the_call_that_would_exceed_it(ledger: Ledger, job_id: int) -> None:
    ledger.quotas.set(JOB, {"budget_micros": 120})

    claimed = claim(ledger, job_id, 5)
    assert len(claimed) == 2
    hold = ledger.quotas.hold_of(job_id, RULES)
    assert hold is not None
    assert hold.refusal.reason is QuotaReason.BUDGET
    assert not hold.is_for_good, "what is in flight may give something back"

    complete(ledger, *(answer(one) for one in claimed))
    assert left(ledger, JOB)[2] == 40
    (last,) = claim(ledger, job_id, 5)
    complete(ledger, answer(last, micros=50))
    hold = ledger.quotas.hold_of(job_id, RULES)
    assert hold is not None
    assert hold.is_for_good


def test_a_repair_of_an_answer_that_was_cut_off_waits_for_room_for_a_longer_one(
    ledger: Ledger, make_job: MakeJob, clock: ManualClock
) -> None:
    job_id = make_job(1)
    ledger.quotas.estimate(job_id, {RULES: replace(NEED, longer_tokens=60, longer_micros=30)})
    ledger.quotas.set(PROVIDER, {"tokens_per_minute": 160})
    ledger.quotas.set(JOB, {"budget_micros": 1_000})
    (first,) = claim(ledger, job_id)
    assert not first.longer_answer

    cut_off(ledger, first)
    assert (left(ledger)[1], left(ledger, JOB)[2]) == (100, 20)

    assert not claim(ledger, job_id), "what is left is enough for the usual answer alone"
    hold = ledger.quotas.hold_of(job_id, RULES)
    assert hold is not None
    assert (hold.scope, hold.refusal.reason, hold.next_at) == (str(PROVIDER), QuotaReason.TOKENS, clock.now_ms + 22_500)
    clock.now_ms += 22_500
    assert ledger.quotas.hold_of(job_id, RULES) is None
    (repair,) = claim(ledger, job_id)
    assert repair.longer_answer
    assert (left(ledger)[1], left(ledger, JOB)[2]) == (0, 20 + 50 + 30)


def test_a_repair_has_the_usual_room_where_a_quota_can_never_cover_more(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = make_job(1)
    ledger.quotas.estimate(job_id, {RULES: replace(NEED, longer_tokens=60, longer_micros=30)})
    ledger.quotas.set(PROVIDER, {"tokens_per_minute": 159})
    (first,) = claim(ledger, job_id)
    cut_off(ledger, first, used=0)
    assert left(ledger)[1] == 159

    (repair,) = claim(ledger, job_id)

    assert (repair.repair, repair.longer_answer) == ((CUT_OFF,), False)
    assert left(ledger)[1] == 59


def test_a_repair_waits_for_what_a_call_in_flight_may_give_back_of_a_budget(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = make_job(2)
    ledger.quotas.estimate(job_id, {RULES: replace(NEED, longer_tokens=60, longer_micros=30)})
    ledger.quotas.set(JOB, {"budget_micros": 140})
    first, second = claim(ledger, job_id, 2)
    cut_off(ledger, first)

    assert not claim(ledger, job_id), "70 of 140 are charged, and a longer answer may take 80"
    cut_off(ledger, second)

    (repair, *_) = claim(ledger, job_id, 2)
    assert repair.longer_answer


def test_a_repair_has_the_longer_room_where_nothing_is_limited(ledger: Ledger, make_job: MakeJob) -> None:
    (first,) = claim(ledger, make_job(1))
    cut_off(ledger, first)

    (repair,) = claim(ledger, first.key.job_id)

    assert repair.longer_answer


def test_what_else_can_be_claimed_does_not_wait_for_the_room_of_a_repair(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = make_job(2)
    ledger.quotas.estimate(job_id, {RULES: replace(NEED, longer_tokens=60)})
    ledger.quotas.set(PROVIDER, {"tokens_per_minute": 160})
    (first,) = claim(ledger, job_id)
    cut_off(ledger, first)

    assert ledger.quotas.hold_of(job_id, RULES) is None
    (other,) = claim(ledger, job_id, 2)

    assert (other.key.item_key != first.key.item_key, other.longer_answer) == (True, False)


def test_a_budget_refuses_calls_that_nobody_can_price(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = make_job(1)
    ledger.quotas.estimate(job_id, {RULES: Estimate(tokens=10, cost_micros=None)})
    ledger.quotas.set(TENANT, {"budget_micros": 10**9})

    assert not claim(ledger, job_id)
    hold = ledger.quotas.hold_of(job_id, RULES)
    assert hold is not None
    assert hold.refusal.reason is QuotaReason.NO_PRICE


def test_a_budget_counts_what_was_spent_before_it_was_set(ledger: Ledger, job_id: int) -> None:
    (one,) = claim(ledger, job_id)
    complete(ledger, answer(one, micros=70))

    ledger.quotas.set(JOB, {"budget_micros": 100})

    assert left(ledger, JOB)[2] == 70
    assert not claim(ledger, job_id)


def test_a_call_that_nobody_has_estimated_is_not_made_where_tokens_are_counted(
    ledger: Ledger, make_job: MakeJob
) -> None:
    job_id = make_job(1)
    ledger.quotas.set(PROVIDER, {"tokens_per_minute": 100, "requests_per_minute": 10})
    assert not claim(ledger, job_id)
    assert ledger.quotas.hold_of(job_id, RULES) is None, "whoever loads the job may claim"

    ledger.quotas.estimate(job_id, {RULES: NEED})

    assert len(claim(ledger, job_id)) == 1


def test_a_rate_limit_keeps_everybody_away_from_the_scope(ledger: Ledger, job_id: int, clock: ManualClock) -> None:
    ledger.quotas.set(PROVIDER, {"requests_per_minute": 100})
    (one,) = claim(ledger, job_id)

    fail(ledger, one, AttemptOutcome.RATE_LIMITED, retry_after_ms=7_000)

    assert not claim(ledger, job_id, claimant=BOB)
    hold = ledger.quotas.hold_of(job_id, RULES)
    assert hold is not None
    assert (hold.refusal.reason, hold.next_at) == (QuotaReason.BLOCKED, clock.now_ms + 7_000)
    clock.now_ms += 7_000
    assert len(claim(ledger, job_id, 2, claimant=BOB)) == 2


def test_a_refused_account_stops_its_scope_without_a_quota_and_uses_no_attempt_up(
    ledger: Ledger, make_job: MakeJob, clock: ManualClock
) -> None:
    job_id = make_job(4)
    first, second = claim(ledger, job_id, 2)
    for one in (first, second):
        decision = fail(ledger, one, AttemptOutcome.RETRYABLE, account_refused=True)
        assert (decision.state, decision.consumes_budget) == (WorkState.WAITING, False)

    assert not claim(ledger, job_id, 4)
    hold = ledger.quotas.hold_of(job_id, RULES)
    assert hold is not None
    assert (hold.refusal.reason, hold.next_at) == (QuotaReason.ACCOUNT, clock.now_ms + FIRST_PROBE_MS)
    clock.now_ms += FIRST_PROBE_MS
    (probe,) = claim(ledger, job_id, 4)
    assert probe.attempt_limit == POLICY.max_attempts + 1
    complete(ledger, answer(probe))
    assert bucket(ledger).breaker is None
    assert len(claim(ledger, job_id, 4)) == 3


def test_a_person_who_has_mended_the_account_ends_the_wait(ledger: Ledger, job_id: int) -> None:
    (one,) = claim(ledger, job_id)
    fail(ledger, one, AttemptOutcome.RETRYABLE, account_refused=True)
    assert not claim(ledger, job_id)

    assert ledger.quotas.reset(PROVIDER)

    assert len(claim(ledger, job_id)) == 1
    assert not ledger.quotas.reset(TENANT), "it has no quota"


def test_an_answers_headers_lower_what_is_left_but_not_what_was_reserved_after_it(
    ledger: Ledger, job_id: int, clock: ManualClock
) -> None:
    ledger.quotas.set(PROVIDER, {"requests_per_minute": 100, "tokens_per_minute": 10_000})
    claim(ledger, job_id)
    clock.now_ms += 1_001
    (first,) = claim(ledger, job_id)
    clock.now_ms += 1
    claim(ledger, job_id, 2)

    complete(ledger, answer(first, left=Remaining(requests=40, tokens=5_000)))

    assert left(ledger)[:2] == (38, 4_800), "the provider has counted the one that came long before"
    (again,) = claim(ledger, job_id)
    complete(ledger, answer(again, left=Remaining(requests=90, tokens=9_000)))
    assert left(ledger)[:2] == (37, 4_740), "a header never raises a level"


def test_a_call_that_was_claimed_a_moment_before_another_may_reach_the_provider_after_it(
    ledger: Ledger, job_id: int, clock: ManualClock
) -> None:
    ledger.quotas.set(PROVIDER, {"tokens_per_minute": 10_000})
    claim(ledger, job_id)
    clock.now_ms += 999
    (first,) = claim(ledger, job_id)

    complete(ledger, answer(first, left=Remaining(tokens=5_000)))

    assert left(ledger)[1] == 4_900


def test_without_a_quota_no_turn_asks_for_one(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = make_job(3)
    (first,) = claim(ledger, job_id)
    asked = _listen(ledger)

    (second,) = claim(ledger, job_id)
    fail(ledger, second, AttemptOutcome.RETRYABLE)
    complete(ledger, answer(first))

    assert not [statement for statement in asked if "quota" in statement]


def test_a_quota_that_another_process_sets_holds_from_the_next_look(
    ledger: Ledger, ledger_url: str, make_job: MakeJob, clock: ManualClock
) -> None:
    job_id = make_job(3)
    claim(ledger, job_id)
    other = open_ledger(ledger_url, POLICY, clock)
    other.quotas.set(PROVIDER, {"concurrency": 0})
    other.close()

    ledger.quotas.refresh()

    assert not claim(ledger, job_id)


def test_limits_are_changed_one_by_one_and_taken_away(ledger: Ledger) -> None:
    ledger.quotas.set(PROVIDER, {"requests_per_minute": 10, "concurrency": 2})
    ledger.quotas.set(PROVIDER, {"requests_per_minute": None, "tokens_per_minute": 50})

    limits = bucket(ledger).limits

    assert (limits.requests_per_minute, limits.tokens_per_minute, limits.concurrency) == (None, 50, 2)


def test_a_quota_is_set_for_a_tenant_and_a_job_that_exist(ledger: Ledger) -> None:
    with pytest.raises(JobNotFoundError):
        ledger.quotas.set(JOB, {"budget_micros": 1})
    with pytest.raises(TenantNotFoundError):
        ledger.quotas.set(QuotaScope.of_tenant("nobody"), {"budget_micros": 1})


def test_the_database_refuses_what_no_quota_can_be(ledger: Ledger, job_id: int) -> None:
    ledger.quotas.set(PROVIDER, {"requests_per_minute": 10})
    claim(ledger, job_id)
    changes = [
        sa.update(quota).values(request_level=10**15),
        sa.update(quota).values(charged_micros=-1),
        sa.update(quota).values(refused_code="provider_account"),
        sa.update(quota).values(tenant="default"),
        sa.update(quota_reservation).values(state="lost"),
        sa.update(quota_reservation).values(tokens=1),
        sa.update(quota_reservation).values(state="settled"),
        sa.update(quota_reservation).values(provider_scope=None),
        sa.delete(quota_reservation),
        sa.delete(quota),
    ]

    for change in changes:
        with pytest.raises(LedgerError) as caught, ledger.database.write() as connection:
            connection.execute(change)
        assert caught.value.code == "ledger_refused", change


def test_the_database_lets_no_settled_reservation_change(ledger: Ledger, job_id: int) -> None:
    ledger.quotas.set(PROVIDER, {"requests_per_minute": 10})
    (one,) = claim(ledger, job_id)
    complete(ledger, answer(one))

    with pytest.raises(LedgerError), ledger.database.write() as connection:
        connection.execute(sa.update(quota_reservation).values(used_tokens=0))


def test_many_workers_over_overlapping_scopes_neither_wait_in_a_circle_nor_overspend(
    ledger: Ledger, make_job: MakeJob
) -> None:
    ledger.submissions.add_tenant("acme")
    jobs = [make_job(6, key=f"k{number}", tenant=("default", "acme")[number % 2]) for number in range(4)]
    for number, job_id in enumerate(jobs):
        ledger.quotas.estimate(job_id, {RULES: NEED})
        scope = QuotaScope.of_job(JobName(tenant=("default", "acme")[number % 2], submission_key=f"k{number}"))
        ledger.quotas.set(scope, {"budget_micros": 10**6})
    ledger.quotas.set(PROVIDER, {"concurrency": 3, "tokens_per_minute": 10**6})
    ledger.quotas.set(TENANT, {"concurrency": 2})
    most, errors = [], list[BaseException]()
    lock = threading.Lock()
    busy = set[str]()

    def work(number: int) -> None:
        held: list[Claim] = []
        try:
            for step in range(9):
                scope = Scope(stages=(RULES,), job_ids=None if step % 3 == 0 else tuple(jobs[number % 2 :: 2]))
                with lock:
                    busy.difference_update(one.token for one in held)
                with ledger.turn(Claimant(worker=f"w{number}", lease_ms=60_000)) as turn:
                    for one in held:
                        turn.offer(answer(one))
                    turn.settle()
                    held = list(turn.claim(scope, [f"{number}-{step}-{slot}" for slot in range(2)]))
                with lock:
                    busy.update(one.token for one in held)
                    most.append(len(busy))
            with lock:
                busy.difference_update(one.token for one in held)
            with ledger.turn(Claimant(worker=f"w{number}", lease_ms=60_000)) as turn:
                for one in held:
                    turn.offer(answer(one))
                turn.settle()
        except BaseException as error:
            errors.append(error)

    _in_threads(work, 4)

    assert errors == []
    done = [item for job_id in jobs for item in ledger.reads.items(job_id, RULES) if item.state is WorkState.SUCCEEDED]
    assert max(most) <= 3
    assert done
    assert bucket(ledger).in_flight == 0
    per_job = [ledger.quotas.charges_of(job_id).get("settled") for job_id in jobs]
    assert sum(charges.calls for charges in per_job if charges) == len(done)
    assert set(reservations(ledger).values()) == {"settled"}


@pytest.mark.parametrize("ledger_url", ["postgresql"], indirect=True)
def test_a_claim_counts_what_another_one_is_about_to_commit(ledger: Ledger, job_id: int) -> None:
    ledger.quotas.set(PROVIDER, {"concurrency": 1})
    claimed: list[Claim] = []
    late = threading.Thread(target=lambda: claimed.extend(claim(ledger, job_id, claimant=BOB)))

    with ledger.turn(ALICE) as turn:
        assert len(turn.claim(Scope(stages=(RULES,), job_ids=(job_id,)), tokens(1))) == 1
        late.start()
        while late.is_alive() and not _somebody_waits(ledger):
            late.join(0.01)
    late.join(60)

    assert claimed == []


def _somebody_waits(ledger: Ledger) -> bool:
    with ledger.database.read() as connection:
        waiting = sa.text(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return bool(connection.execute(waiting).scalar_one())


def _in_threads(work: Callable[[int], None], count: int) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "somebody waits for ever"


def _listen(ledger: Ledger) -> list[str]:
    asked: list[str] = []

    def remember(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        asked.append(statement)

    event.listen(ledger.database.engine, "before_cursor_execute", remember)
    return asked
