import asyncio
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from rulegen_dagster.domain.errors import StateError
from rulegen_dagster.domain.states import AttemptOutcome, JobState, Stage, WorkState
from rulegen_dagster.domain.work import Claim, FailedAttempt, Landing, Offer
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.providers.port import ProviderRequest
from rulegen_dagster.settings import Settings
from rulegen_dagster.workflow import documents
from rulegen_dagster.workflow.deadlines import NO_TIME_LEFT, budget_of, expire_overdue
from rulegen_dagster.workflow.documents import prepare
from rulegen_dagster.workflow.drive import drive
from rulegen_dagster.workflow.engine import offer_directly
from rulegen_dagster.workflow.explain import status_report
from rulegen_dagster.workflow.forks import extend_job, fork_job
from rulegen_dagster.workflow.generate import Generation
from rulegen_dagster.workflow.intake import submit_upload
from rulegen_dagster.workflow.partitions import KeyState, drain_keys
from rulegen_dagster.workflow.runtime import Runtime, open_runtime
from rulegen_dagster.workflow.why import why_report
from tests.workflow.conftest import (
    RULES,
    Recorder,
    claim_items,
    drain,
    finish,
    journal,
    offer_of,
    open_rules,
    playing,
    policy,
    scripted,
    submit,
)

GIVEN_MS, MARGIN_MS, LEAST_MS = 60_000, 2_000, 1_000
# The fixtures' jitter (one half) of the first delay of the settings.
DELAY_MS = 500


class Ticks:
    """A monotonic clock that the test sets, in seconds."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def ticks() -> Ticks:
    return Ticks()


@pytest.fixture
def timed(ledger_url: str, clock: ManualClock, ticks: Ticks, tmp_path: Path) -> Iterator[Runtime]:
    """A runtime whose jobs have a minute, and two clocks that stand still."""
    settings = Settings(
        home=tmp_path / "home",
        database_url=ledger_url,
        slots=4,
        lease_ms=10_000,
        call_timeout_ms=30_000,
        deadline_ms=GIVEN_MS,
        completion_margin_ms=MARGIN_MS,
        least_call_ms=LEAST_MS,
    )
    with closing(open_runtime(settings, clock=clock)) as opened:
        yield replace(opened, jitter=lambda: 0.5, monotonic=ticks)


def until_left(clock: ManualClock, left_ms: int) -> None:
    """Set the clock so that so much is left for calls of a job that was submitted at its start."""
    clock.now_ms = 10_000 + GIVEN_MS - MARGIN_MS - left_ms


def take(runtime: Runtime, count: int = 1) -> tuple[Claim, ...]:
    return claim_items(runtime, Stage.GENERATE_RULES, count, runtime.claimant)


def limited(claim: Claim, *, wait_ms: int) -> FailedAttempt:
    return FailedAttempt(
        claim=claim,
        outcome=AttemptOutcome.RATE_LIMITED,
        error_code="provider_rate_limited",
        message="wait",
        provider_called=True,
        retry_after_ms=wait_ms,
    )


def state_of(runtime: Runtime, job_id: int) -> JobState:
    return runtime.ledger.reads.job_by_id(job_id).state


def test_a_job_has_what_the_settings_say_or_what_it_was_given_and_keeps_it(timed: Runtime, clock: ManualClock) -> None:
    usual = submit(timed, policy(1))
    hurried = submit_upload(timed, policy(1), "b.md", tenant="default", key="b", actor="t", deadline_ms=5_000).job
    clock.now_ms += 1_000

    again = submit_upload(timed, policy(1), "b.md", tenant="default", key="b", actor="t", deadline_ms=99_000)

    assert (usual.deadline_at, hurried.deadline_at) == (10_000 + GIVEN_MS, 15_000)
    assert (again.existing, again.job.deadline_at) == (True, 15_000)


def test_a_call_gets_less_the_later_it_begins(timed: Runtime, clock: ManualClock, ticks: Ticks) -> None:
    requests: list[ProviderRequest] = []
    runtime = playing(timed, Recorder(before=requests.append))
    open_rules(runtime, policy(3))
    until_left(clock, 40_000)
    claims = take(runtime, 3)
    generation = Generation(runtime)

    for claim, elapsed_s in zip(claims, (0.0, 10.0, 38.5), strict=True):
        ticks.now_s = 1_000.0 + elapsed_s
        asyncio.run(generation.attempt(claim))

    assert [request.timeout_ms for request in requests] == [30_000, 30_000, 1_500]


def test_no_call_is_made_for_which_no_useful_time_is_left(timed: Runtime, clock: ManualClock, ticks: Ticks) -> None:
    recorder = Recorder()
    runtime = playing(timed, recorder)
    job = open_rules(runtime, policy(2))
    until_left(clock, 5_000)
    (claim,) = take(runtime)
    ticks.now_s += 4.001

    result = asyncio.run(Generation(runtime).attempt(claim))

    assert budget_of(runtime, claim) is None
    assert isinstance(result, FailedAttempt)
    assert (result.error_code, result.provider_called, recorder.calls) == (NO_TIME_LEFT, False, [])
    assert state_of(runtime, job.job_id) is JobState.GENERATING_RULES


def test_a_job_whose_claims_waited_too_long_for_their_calls_expires(
    timed: Runtime, clock: ManualClock, ticks: Ticks
) -> None:
    recorder = Recorder()
    runtime = playing(timed, recorder)
    job = open_rules(runtime, policy(3))
    until_left(clock, 5_000)
    generation = Generation(runtime)

    async def attempt(claim: Claim) -> Offer | FailedAttempt:
        ticks.now_s += 4.5
        clock.now_ms += 4_500
        return await generation.attempt(claim)

    outcomes = drain(runtime, attempt, slots=1)

    (first,) = [a for a in runtime.ledger.reads.attempts(job.job_id) if a.key.stage is Stage.GENERATE_RULES]
    assert (recorder.calls, [o.landing for o in outcomes]) == ([], [Landing.STALE])
    assert state_of(runtime, job.job_id) is JobState.EXPIRED
    assert (first.outcome, first.provider_called, first.error_code) == (AttemptOutcome.CANCELLED, False, NO_TIME_LEFT)


@pytest.mark.parametrize(("wait_ms", "end"), [(6_000, JobState.GENERATING_RULES), (6_001, JobState.EXPIRED)])
def test_no_retry_is_scheduled_past_the_deadline(
    timed: Runtime, clock: ManualClock, wait_ms: int, end: JobState
) -> None:
    job = open_rules(timed, policy(1))
    until_left(clock, 6_000 + LEAST_MS)

    async def attempt(claim: Claim) -> FailedAttempt:
        return limited(claim, wait_ms=wait_ms)

    drain(timed, attempt)

    (item,) = timed.ledger.reads.items(job.job_id, Stage.GENERATE_RULES)
    (tried,) = [a for a in timed.ledger.reads.attempts(job.job_id) if a.key.stage is Stage.GENERATE_RULES]
    assert state_of(timed, job.job_id) is end
    # What the provider said of it is kept in either case.
    assert (tried.outcome, tried.provider_called) == (AttemptOutcome.RATE_LIMITED, True)
    if end is JobState.EXPIRED:
        assert (item.state, item.next_attempt_at) == (WorkState.CANCELLED, None)
    else:
        assert (item.state, item.next_attempt_at) == (WorkState.WAITING, clock.now_ms + wait_ms)


def test_what_is_paid_for_is_accepted_before_the_job_expires_in_the_same_turn(
    timed: Runtime, clock: ManualClock
) -> None:
    job = open_rules(timed, policy(3))
    until_left(clock, 5_000)

    async def attempt(claim: Claim) -> Offer | FailedAttempt:
        return limited(claim, wait_ms=60_000) if claim.key.item_key == "rule-02" else offer_of(claim)

    outcomes = drain(timed, attempt, slots=3)

    items = timed.ledger.reads.items(job.job_id, Stage.GENERATE_RULES)
    assert state_of(timed, job.job_id) is JobState.EXPIRED
    assert [item.state for item in items] == [WorkState.SUCCEEDED, WorkState.CANCELLED, WorkState.SUCCEEDED]
    assert [o.landing for o in outcomes] == [Landing.ACCEPTED, Landing.STALE, Landing.ACCEPTED]


def test_a_deadline_that_was_moved_since_the_claim_counts(timed: Runtime, clock: ManualClock) -> None:
    job = open_rules(timed, policy(1))
    until_left(clock, 5_000)

    async def attempt(claim: Claim) -> FailedAttempt:
        await asyncio.to_thread(
            timed.ledger.deadlines.extend, job.job_id, by_ms=100_000, actor="ann", reason="not so fast"
        )
        return limited(claim, wait_ms=60_000)

    drain(timed, attempt)

    (item,) = timed.ledger.reads.items(job.job_id, Stage.GENERATE_RULES)
    assert (item.state, item.next_attempt_at) == (WorkState.WAITING, clock.now_ms + 60_000)


def test_a_call_is_ended_when_its_time_is_over_and_the_job_with_it(timed: Runtime, clock: ManualClock) -> None:
    # The call's own clock is the event loop's, so that little has to be left.
    settings = timed.settings.model_copy(update={"least_call_ms": 20})
    runtime = scripted(
        replace(open_runtime(settings, clock=clock), jitter=lambda: 0.5), {"*": [{"do": "ok", "delay_ms": 3_600_000}]}
    )
    job = open_rules(runtime, policy(1))
    until_left(clock, 500)

    ended = drive(runtime, job, observe=lambda _outcome: None, on_wait=lambda _reason: None)

    (tried,) = [a for a in runtime.ledger.reads.attempts(job.job_id) if a.key.stage is Stage.GENERATE_RULES]
    runtime.close()
    assert (ended.state, len(journal(runtime))) == (JobState.EXPIRED, 1)
    assert (tried.outcome, tried.error_code) == (AttemptOutcome.AMBIGUOUS, "provider_timeout")


def test_a_document_that_would_be_tried_again_too_late_expires_its_job(
    timed: Runtime, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(runtime: Runtime, claim: Claim) -> Offer:
        raise StateError(f"the output of {claim.key.stage} cannot be made for {runtime.worker}")

    monkeypatch.setitem(documents._HANDLERS, Stage.PARSE, broken)
    job = submit(timed, policy(1))
    until_left(clock, LEAST_MS + DELAY_MS - 1)

    with pytest.raises(StateError):
        prepare(timed, job.job_id, Stage.PARSE)

    assert state_of(timed, job.job_id) is JobState.EXPIRED


def test_the_drive_of_an_overdue_job_ends_with_its_expiry(timed: Runtime, clock: ManualClock) -> None:
    job = open_rules(timed, policy(2))
    until_left(clock, LEAST_MS - 1)

    ended = finish(timed, job)

    assert ended.state is JobState.EXPIRED
    assert timed.ledger.reads.provider_calls(job.job_id) == 0


def test_a_job_that_waits_for_a_person_expires_when_somebody_looks(timed: Runtime, clock: ManualClock) -> None:
    late, timely = finish(timed, submit(timed, policy(1))), submit(timed, policy(1), key="b")
    timed.ledger.deadlines.extend(timely.job_id, by_ms=1, actor="ann", reason="r")
    until_left(clock, LEAST_MS - 1)
    status_report(timed, late)

    before = state_of(timed, late.job_id)
    expired = expire_overdue(timed, actor="deadlines")

    # A read stays a read.
    assert before is JobState.AWAITING_CONFIRMATION
    assert [(job.job_id, job.state) for job in expired] == [(late.job_id, JobState.EXPIRED)]
    assert expire_overdue(timed, actor="deadlines") == []


def test_a_run_over_the_keys_of_an_overdue_job_expires_it_and_says_so(timed: Runtime, clock: ManualClock) -> None:
    job = open_rules(timed, policy(2))
    keys = timed.ledger.reads.rule_partition_keys(job.job_id)
    until_left(clock, LEAST_MS - 1)

    outcomes = list(drain_keys(timed, keys, RULES, accept=offer_directly, redrive_reason=None))

    assert state_of(timed, job.job_id) is JobState.EXPIRED
    assert [outcome.state for outcome in outcomes] == [KeyState.BLOCKED] * 2
    assert "the job is expired: the deadline, 1970-01-01 00:01:10.000 UTC" in str(outcomes[0].reason)


def test_the_reason_is_the_deadline_with_its_figures_and_the_way_on(timed: Runtime, clock: ManualClock) -> None:
    job = open_rules(timed, policy(2))
    in_time = why_report(timed, job)
    until_left(clock, LEAST_MS - 1)

    overdue, item = why_report(timed, job), why_report(timed, job, "rule-02")
    expire_overdue(timed, actor="deadlines")
    clock.now_ms += 3_600_000
    expired = why_report(timed, job)

    assert in_time["reason_code"] == "ready"
    for report in (overdue, item, expired):
        assert report["reason_code"] == "deadline"
        assert report["next_at_ms"] is None
        assert "rulegen extend default/policy --reason" in report["reason"]
        figures = {name: report["evidence"][name] for name in ("deadline_ms", "margin", "least_call", "left")}
        assert figures == {"deadline_ms": 70_000, "margin": "2s", "least_call": "1s", "left": "0s"}
    assert (overdue["state"], item["state"], expired["state"]) == ("generating_rules", "pending", "expired")
    assert expired["evidence"]["actor"] == "deadlines"
    assert "rulegen fork" in expired["recovery"]["answer"]
    assert status_report(timed, job)["deadline_ms"] == 70_000


def test_an_extension_before_the_end_moves_the_deadline_and_after_it_opens_a_successor(
    timed: Runtime, clock: ManualClock
) -> None:
    job = open_rules(timed, policy(2))
    (claim,) = take(timed)
    with timed.ledger.turn(timed.claimant) as turn:
        turn.offer(offer_of(claim))
        turn.settle()

    moved = extend_job(timed, job, by_ms=None, actor="ann", reason="r")
    clock.now_ms += 3 * GIVEN_MS
    expire_overdue(timed, actor="deadlines")
    first = extend_job(timed, job, by_ms=7_000, actor="ann", reason="r")
    again = extend_job(timed, job, by_ms=7_000, actor="ann", reason="r")
    clock.now_ms += 7_000
    expire_overdue(timed, actor="deadlines")
    second = extend_job(timed, first.job, by_ms=8_000, actor="ann", reason="r")

    assert (moved.is_successor, moved.job.deadline_at) == (False, 10_000 + 2 * GIVEN_MS)
    assert (first.is_successor, str(first.job.name)) == (True, "default/policy~2")
    assert again.job.job_id == first.job.job_id
    assert str(second.job.name) == "default/policy~3"
    assert second.job.deadline_at == clock.now_ms + 8_000
    items = timed.ledger.reads.items(second.job.job_id, Stage.GENERATE_RULES)
    assert [item.state for item in items] == [WorkState.SUCCEEDED, WorkState.PENDING]


def test_a_cancelled_job_is_not_extended_but_may_have_a_successor(timed: Runtime) -> None:
    job = submit(timed, policy(1))
    timed.ledger.cancellations.cancel(job.job_id, actor="ann", reason="r")

    with pytest.raises(StateError, match="cancelled"):
        extend_job(timed, job, by_ms=None, actor="ann", reason="r")
    forked = fork_job(timed, job, "next", deadline_ms=None, actor="ann")

    assert finish(timed, forked.job).state is JobState.AWAITING_CONFIRMATION


def test_a_generated_key_that_somebody_has_is_passed_over(timed: Runtime, clock: ManualClock) -> None:
    job = submit(timed, policy(1))
    submit(timed, policy(3), key="policy~2", file_name="other.md")
    clock.now_ms += GIVEN_MS
    expire_overdue(timed, [job.job_id], actor="deadlines")

    extension = extend_job(timed, job, by_ms=None, actor="ann", reason="r")

    assert str(extension.job.name) == "default/policy~3"
