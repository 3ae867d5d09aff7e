import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest

from rulegen_dagster.domain.errors import LedgerError
from rulegen_dagster.domain.states import AttemptOutcome, JobState, Stage, WorkState
from rulegen_dagster.domain.work import Claim, FailedAttempt, Landing, Offer
from rulegen_dagster.ledger.claims import Claimant, Scope
from rulegen_dagster.ledger.database import DatabaseClock, ManualClock
from rulegen_dagster.ledger.store import Ledger, Turn
from rulegen_dagster.settings import Settings
from rulegen_dagster.workflow.engine import Engine, Outcome
from rulegen_dagster.workflow.runtime import Runtime, open_runtime
from tests.workflow.conftest import RULES, accepted, claim_items, drain, make_items, offer_of

SCOPE = Scope(stages=RULES)


class FailingLedger(Ledger):
    """The same ledger, whose next turns fail: before they commit, or with the answer lost after they did."""

    fail_before = 0
    lose_after = 0

    @contextmanager
    def turn(self, claimant: Claimant) -> Iterator[Turn]:
        with super().turn(claimant) as turn:
            yield turn
            if self.fail_before:
                self.fail_before -= 1
                raise LedgerError("the connection is gone")
        if self.lose_after:
            self.lose_after -= 1
            raise LedgerError("the answer is lost")


def _failing(runtime: Runtime) -> tuple[Runtime, FailingLedger]:
    ledger = FailingLedger(runtime.ledger.database, runtime.ledger.policy)
    return replace(runtime, ledger=ledger), ledger


async def _succeed(claim: Claim) -> Offer:
    await asyncio.sleep(0)
    return offer_of(claim)


def _states(runtime: Runtime, job_id: int, stage: Stage = Stage.GENERATE_RULES) -> set[WorkState]:
    return {item.state for item in runtime.ledger.reads.items(job_id, stage)}


def test_every_item_is_accepted_with_one_call_each(runtime: Runtime) -> None:
    job_id = make_items(runtime, 20)

    outcomes = drain(runtime, _succeed)

    assert len(outcomes) == 20
    assert _states(runtime, job_id) == {WorkState.SUCCEEDED}
    assert runtime.ledger.reads.provider_calls(job_id) == 20
    assert runtime.ledger.reads.job_by_id(job_id).state is JobState.GENERATING_TESTS


@pytest.mark.parametrize("slots", [1, 3, 64])
def test_no_more_attempts_run_at_once_than_there_are_slots(local_runtime: Runtime, slots: int) -> None:
    make_items(local_runtime, 20)
    running, most = 0, 0

    async def attempt(claim: Claim) -> Offer:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(5):
            await asyncio.sleep(0)
        running -= 1
        return offer_of(claim)

    outcomes = drain(local_runtime, attempt, slots=slots)

    assert len(outcomes) == 20
    assert most == min(slots, 20)


def test_more_items_are_never_claimed_than_there_are_slots(local_runtime: Runtime) -> None:
    job_id = make_items(local_runtime, 20)
    held: list[int] = []

    async def attempt(claim: Claim) -> Offer:
        items = await asyncio.to_thread(local_runtime.ledger.reads.items, job_id, Stage.GENERATE_RULES)
        held.append(sum(item.state is WorkState.RUNNING for item in items))
        return offer_of(claim)

    drain(local_runtime, attempt, slots=3)

    assert max(held) <= 3


def test_an_outcome_is_told_only_after_its_commit(local_runtime: Runtime) -> None:
    job_id = make_items(local_runtime, 5)
    seen: list[WorkState] = []

    def observe(outcome: Outcome) -> None:
        items = local_runtime.ledger.reads.items(job_id, Stage.GENERATE_RULES)
        seen.append(next(item.state for item in items if item.key == outcome.claim.key))

    engine = Engine(local_runtime, _succeed, slots=2, observe=observe)
    asyncio.run(engine.drain(SCOPE))

    assert seen == [WorkState.SUCCEEDED] * 5


def test_an_offer_after_its_lease_is_stale_and_the_item_is_tried_again(runtime: Runtime, clock: ManualClock) -> None:
    job_id = make_items(runtime, 2)

    async def attempt(claim: Claim) -> Offer:
        if claim.key.item_key == "rule-01" and claim.attempt == 1:
            clock.now_ms += 1_000
        return offer_of(claim)

    outcomes = drain(runtime, attempt, slots=1)

    told = [(o.claim.key.item_key, o.claim.attempt, o.landing) for o in outcomes]
    booked = [a.outcome for a in runtime.ledger.reads.attempts(job_id) if a.key.item_key == "rule-01"]
    assert told == [
        ("rule-01", 1, Landing.STALE),
        ("rule-01", 2, Landing.ACCEPTED),
        ("rule-02", 1, Landing.ACCEPTED),
    ]
    assert booked == [AttemptOutcome.STALE, AttemptOutcome.ACCEPTED]


def test_the_lease_of_another_worker_is_left_alone_and_not_waited_for(runtime: Runtime) -> None:
    job_id = make_items(runtime, 3)
    (held,) = claim_items(runtime, Stage.GENERATE_RULES, 1)

    outcomes = drain(runtime, _succeed)

    assert accepted(outcomes) == ["rule-02", "rule-03"]
    assert runtime.ledger.reads.items(job_id, Stage.GENERATE_RULES)[0].worker == "other"
    assert held.key.item_key == "rule-01"


def test_a_failed_attempt_waits_for_its_time_and_the_engine_does_not(runtime: Runtime, clock: ManualClock) -> None:
    job_id = make_items(runtime, 2)

    async def attempt(claim: Claim) -> Offer | FailedAttempt:
        if claim.key.item_key == "rule-01" and claim.attempt == 1:
            return FailedAttempt(claim=claim, outcome=AttemptOutcome.RETRYABLE, error_code="x", message="not now")
        return offer_of(claim)

    first = drain(runtime, attempt)
    early = drain(runtime, attempt)
    clock.now_ms += 500
    due = drain(runtime, attempt)

    told = [(o.landing, o.decision.state, o.decision.delay_ms) for o in first if o.decision is not None]
    assert told == [(Landing.ACCEPTED, WorkState.WAITING, 500)]
    assert early == []
    assert [(o.claim.key.item_key, o.claim.attempt) for o in due] == [("rule-01", 2)]
    assert _states(runtime, job_id) == {WorkState.SUCCEEDED}


def test_an_item_fails_for_good_when_its_attempts_are_used_up(local_runtime: Runtime, clock: ManualClock) -> None:
    job_id = make_items(local_runtime, 1)

    async def attempt(claim: Claim) -> FailedAttempt:
        return FailedAttempt(claim=claim, outcome=AttemptOutcome.AMBIGUOUS, error_code="lost", message="lost")

    for _ in range(4):
        drain(local_runtime, attempt)
        clock.now_ms += 60_000

    (item,) = local_runtime.ledger.reads.items(job_id, Stage.GENERATE_RULES)
    assert (item.state, item.attempts, item.error_code) == (WorkState.FAILED, 3, "lost")
    assert local_runtime.ledger.reads.job_by_id(job_id).state is JobState.GENERATING_RULES


def test_a_commit_that_fails_is_tried_again_and_the_outputs_are_not_made_again(local_runtime: Runtime) -> None:
    job_id = make_items(local_runtime, 4)
    runtime, ledger = _failing(local_runtime)
    calls: list[str] = []

    async def attempt(claim: Claim) -> Offer:
        if not calls:
            ledger.fail_before = 2
        calls.append(claim.key.item_key)
        return offer_of(claim)

    outcomes = drain(runtime, attempt)

    attempts = [a for a in runtime.ledger.reads.attempts(job_id) if a.key.stage is Stage.GENERATE_RULES]
    assert len(outcomes) == len(calls) == 4
    assert {a.outcome for a in attempts} == {AttemptOutcome.ACCEPTED}
    assert ledger.fail_before == 0


def test_a_commit_whose_answer_was_lost_still_counts(local_runtime: Runtime) -> None:
    job_id = make_items(local_runtime, 1)
    runtime, ledger = _failing(local_runtime)

    async def attempt(claim: Claim) -> Offer:
        ledger.lose_after = 1
        return offer_of(claim)

    outcomes = drain(runtime, attempt)

    assert [o.landing for o in outcomes] == [Landing.ACCEPTED]
    assert _states(runtime, job_id) == {WorkState.SUCCEEDED}
    assert runtime.ledger.reads.provider_calls(job_id) == 1


def test_a_claim_whose_answer_was_lost_is_left_to_its_lease(local_runtime: Runtime, clock: ManualClock) -> None:
    job_id = make_items(local_runtime, 3)
    runtime, ledger = _failing(local_runtime)
    ledger.lose_after = 1

    first = drain(runtime, _succeed, slots=3)
    clock.now_ms += 1_000
    second = drain(runtime, _succeed, slots=3)

    assert first == []
    assert [o.claim.attempt for o in second] == [2, 2, 2]
    assert _states(runtime, job_id) == {WorkState.SUCCEEDED}


def test_a_ledger_that_stays_away_ends_the_engine_and_is_never_booked_as_a_providers_failure(
    local_runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rulegen_dagster.workflow.engine.LEAST_PATIENCE_S", 0.0)
    job_id = make_items(local_runtime, 2)
    runtime, ledger = _failing(local_runtime)

    async def attempt(claim: Claim) -> Offer:
        ledger.fail_before = 1_000
        return offer_of(claim)

    with pytest.raises(LedgerError, match="2 finished outputs could not be saved in 1 s"):
        drain(runtime, attempt)

    attempts = [a for a in local_runtime.ledger.reads.attempts(job_id) if a.key.stage is Stage.GENERATE_RULES]
    assert {(a.outcome, a.error_code) for a in attempts} == {(None, None)}
    assert _states(local_runtime, job_id) == {WorkState.RUNNING}


def test_a_defect_of_ours_ends_the_engine_and_keeps_what_is_accepted(local_runtime: Runtime) -> None:
    job_id = make_items(local_runtime, 3)

    async def attempt(claim: Claim) -> Offer:
        if claim.key.item_key == "rule-02":
            raise ZeroDivisionError
        return offer_of(claim)

    with pytest.raises(ZeroDivisionError):
        drain(local_runtime, attempt, slots=1)

    items = local_runtime.ledger.reads.items(job_id, Stage.GENERATE_RULES)
    assert [item.state for item in items] == [WorkState.SUCCEEDED, WorkState.RUNNING, WorkState.PENDING]
    assert {item.error_code for item in items} == {None}


def test_after_a_defect_nothing_more_is_claimed_and_what_is_in_flight_is_committed(local_runtime: Runtime) -> None:
    job_id = make_items(local_runtime, 4)
    broken = asyncio.Event()

    async def attempt(claim: Claim) -> Offer:
        if claim.key.item_key == "rule-02":
            broken.set()
            raise ZeroDivisionError
        await broken.wait()
        await asyncio.sleep(0.01)
        return offer_of(claim)

    with pytest.raises(ZeroDivisionError):
        drain(local_runtime, attempt, slots=2)

    items = local_runtime.ledger.reads.items(job_id, Stage.GENERATE_RULES)
    assert [item.state for item in items] == [
        WorkState.SUCCEEDED,
        WorkState.RUNNING,
        WorkState.PENDING,
        WorkState.PENDING,
    ]


def test_a_call_whose_lease_is_lost_is_ended_and_its_item_tried_again(
    local_runtime: Runtime, clock: ManualClock
) -> None:
    make_items(local_runtime, 1)
    ended: list[int] = []

    async def attempt(claim: Claim) -> Offer:
        if claim.attempt == 1:
            clock.now_ms += 1_000
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(claim.attempt)
        return offer_of(claim)

    outcomes = drain(local_runtime, attempt)

    assert ended == [1]
    assert [(o.claim.attempt, o.landing) for o in outcomes] == [(2, Landing.ACCEPTED)]


def test_a_lease_is_renewed_while_its_call_takes_longer(
    ledger_url: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    settings = Settings(home=tmp_path_factory.mktemp("home"), database_url=ledger_url, lease_ms=500)
    runtime = open_runtime(settings, clock=DatabaseClock())
    make_items(runtime, 1)

    async def attempt(claim: Claim) -> Offer:
        while await asyncio.to_thread(runtime.ledger.reads.now) <= claim.lease_until:
            await asyncio.sleep(0.02)
        return offer_of(claim)

    outcomes = drain(runtime, attempt)
    runtime.close()

    assert [(o.claim.attempt, o.landing) for o in outcomes] == [(1, Landing.ACCEPTED)]


def test_two_engines_over_one_ledger_make_one_call_for_each_item(runtime: Runtime) -> None:
    job_id = make_items(runtime, 40)
    calls: list[str] = []
    start = threading.Barrier(2)

    async def attempt(claim: Claim) -> Offer:
        await asyncio.sleep(0.001)
        calls.append(claim.key.item_key)
        return offer_of(claim)

    def work(worker: str) -> list[Outcome]:
        start.wait()
        return drain(replace(runtime, worker=worker), attempt)

    with ThreadPoolExecutor(2) as pool:
        outcomes = [o for part in pool.map(work, ("alice", "bob")) for o in part]

    assert len(calls) == len(set(calls)) == 40
    assert {o.landing for o in outcomes} == {Landing.ACCEPTED}
    assert _states(runtime, job_id) == {WorkState.SUCCEEDED}
    assert runtime.ledger.reads.provider_calls(job_id) == 40


def test_an_engine_that_is_cancelled_leaves_its_claims_to_their_leases(
    local_runtime: Runtime, clock: ManualClock
) -> None:
    job_id = make_items(local_runtime, 2)

    async def scenario() -> None:
        started = asyncio.Event()

        async def attempt(claim: Claim) -> Offer:
            started.set()
            await asyncio.Event().wait()
            return offer_of(claim)

        engine = Engine(local_runtime, attempt, slots=2, observe=lambda _outcome: None)
        work = asyncio.create_task(engine.drain(SCOPE))
        await started.wait()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

    asyncio.run(scenario())
    after = _states(local_runtime, job_id)
    clock.now_ms += 1_000
    outcomes = drain(local_runtime, _succeed)

    assert after == {WorkState.RUNNING}
    assert [o.claim.attempt for o in outcomes] == [2, 2]


def test_every_output_passes_through_the_given_acceptance_inside_the_transaction(local_runtime: Runtime) -> None:
    job_id = make_items(local_runtime, 3)
    offered: list[str] = []

    def accept(turn: Turn, offer: Offer) -> None:
        offered.append(offer.claim.key.item_key)
        turn.offer(offer)

    engine = Engine(local_runtime, _succeed, slots=2, observe=lambda _outcome: None, accept=accept)
    asyncio.run(engine.drain(SCOPE))

    assert sorted(offered) == ["rule-01", "rule-02", "rule-03"]
    assert _states(local_runtime, job_id) == {WorkState.SUCCEEDED}


def test_an_idle_writer_commits_calls_that_ended_together_in_parts_and_loses_none(local_runtime: Runtime) -> None:
    make_items(local_runtime, 30)
    turns: list[Turn] = []
    waiting: list[asyncio.Event] = []

    async def attempt(claim: Claim) -> Offer:
        if not waiting:
            waiting.append(asyncio.Event())
            asyncio.get_running_loop().call_later(0.05, waiting[0].set)
        await waiting[0].wait()
        return offer_of(claim)

    def accept(turn: Turn, offer: Offer) -> None:
        turns.append(turn)
        turn.offer(offer)

    outcomes: list[Outcome] = []
    engine = Engine(local_runtime, attempt, slots=30, observe=outcomes.append, accept=accept)
    asyncio.run(engine.drain(Scope(stages=RULES)))

    assert turns.count(turns[0]) == 10
    assert len(accepted(outcomes)) == 30
