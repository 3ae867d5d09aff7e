import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from rulegen_dagster.domain.errors import LedgerError
from rulegen_dagster.domain.retry import RetryDecision
from rulegen_dagster.domain.states import AttemptOutcome, JobState, Stage, WorkState
from rulegen_dagster.domain.work import Claim, FailedAttempt, Landing, Offer, Usage
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.ledger.schema import attempt, job, transition, work_item
from rulegen_dagster.ledger.store import Ledger
from tests.ledger.conftest import ALICE, ALL, BOB, MakeJob, claim, complete, stage_scope, tokens

RULES = stage_scope(Stage.GENERATE_RULES)


def output(text: str = "rule") -> str:
    return json.dumps({"rules": [], "no_rule": {"reason": text, "detail": ""}})


def states(ledger: Ledger, job_id: int, stage: Stage = Stage.GENERATE_RULES) -> list[WorkState]:
    return [item.state for item in ledger.reads.items(job_id, stage)]


def fail(ledger: Ledger, claimed: Claim, outcome: AttemptOutcome, decision: RetryDecision) -> dict[str, Landing]:
    failed = FailedAttempt(claim=claimed, outcome=outcome, error_code="no_luck", message="no luck")
    with ledger.turn(ALICE) as turn:
        return turn.settle([(failed, decision)])


def test_a_claim_gives_each_item_to_one_worker_in_document_order(ledger: Ledger, make_job: MakeJob) -> None:
    make_job(3)

    alices = claim(ledger, RULES, 2, ALICE)
    bobs = claim(ledger, RULES, 2, BOB)

    assert [c.key.item_key for c in alices] == ["rule-01", "rule-02"]
    assert [c.key.item_key for c in bobs] == ["rule-03"]
    assert claim(ledger, RULES, ALL) == ()


def test_an_accepted_output_is_stored_with_its_attempt_and_transition(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = make_job(2)
    (claimed,) = claim(ledger, RULES)
    usage = Usage(model_id="m", request_id="r-1", tokens_in=5, tokens_out=7, cost_micros=11)

    landings = complete(ledger, Offer(claim=claimed, output=output(), provider="p", provider_called=True, usage=usage))

    (made,) = [a for a in ledger.reads.attempts(job_id) if a.key.stage is Stage.GENERATE_RULES]
    assert landings == {claimed.token: Landing.ACCEPTED}
    assert states(ledger, job_id) == [WorkState.SUCCEEDED, WorkState.PENDING]
    assert (made.outcome, made.request_id, made.tokens_in, made.cost_micros) == (AttemptOutcome.ACCEPTED, "r-1", 5, 11)
    assert ledger.reads.provider_calls(job_id) == 1


def test_a_completion_after_the_lease_is_stale_and_changes_nothing(
    ledger: Ledger, clock: ManualClock, make_job: MakeJob
) -> None:
    job_id = make_job(1)
    (claimed,) = claim(ledger, RULES)
    clock.now_ms += 1_000

    landings = complete(ledger, Offer(claim=claimed, output=output()))

    assert landings == {claimed.token: Landing.STALE}
    assert states(ledger, job_id) == [WorkState.RUNNING]


def test_a_completion_one_millisecond_before_the_lease_ends_lands(
    ledger: Ledger, clock: ManualClock, make_job: MakeJob
) -> None:
    make_job(1)
    (claimed,) = claim(ledger, RULES)
    clock.now_ms += 999

    landings = complete(ledger, Offer(claim=claimed, output=output()))

    assert landings == {claimed.token: Landing.ACCEPTED}


def test_a_replaced_worker_cannot_overwrite_its_successor(
    ledger: Ledger, clock: ManualClock, make_job: MakeJob
) -> None:
    job_id = make_job(1)
    (old,) = claim(ledger, RULES, 1, ALICE)
    clock.now_ms += 1_000
    (new,) = claim(ledger, RULES, 1, BOB)

    late = complete(ledger, Offer(claim=old, output=output("old"), usage=Usage(cost_micros=9)), claimant=ALICE)
    accepted = complete(ledger, Offer(claim=new, output=output("new")), claimant=BOB)

    attempts = [a for a in ledger.reads.attempts(job_id) if a.key.stage is Stage.GENERATE_RULES]
    assert (late[old.token], accepted[new.token]) == (Landing.STALE, Landing.ACCEPTED)
    assert [(a.attempt, a.outcome, a.cost_micros) for a in attempts] == [
        (1, AttemptOutcome.STALE, 9),
        (2, AttemptOutcome.ACCEPTED, None),
    ]
    assert '"new"' in str(ledger.reads.items(job_id, Stage.GENERATE_RULES)[0].output)


def test_an_expired_lease_is_taken_over_and_the_lost_attempt_is_booked_as_crashed(
    ledger: Ledger, clock: ManualClock, make_job: MakeJob
) -> None:
    job_id = make_job(1)
    claim(ledger, RULES, 1, ALICE)
    clock.now_ms += 1_000

    (second,) = claim(ledger, RULES, 1, BOB)

    lost = next(a for a in ledger.reads.attempts(job_id) if a.key.stage is Stage.GENERATE_RULES and a.attempt == 1)
    assert second.attempt == 2
    assert lost.outcome is AttemptOutcome.CRASHED


def test_a_worker_that_is_lost_again_and_again_uses_up_the_attempts(
    ledger: Ledger, clock: ManualClock, make_job: MakeJob
) -> None:
    job_id = make_job(2)
    for _ in range(3):
        claim(ledger, RULES)
        clock.now_ms += 1_000

    (other,) = claim(ledger, RULES, ALL)

    first = ledger.reads.items(job_id, Stage.GENERATE_RULES)[0]
    assert (first.state, first.error_code) == (WorkState.FAILED, "attempts_exhausted")
    assert other.key.item_key == "rule-02"


def test_the_operation_key_is_stable_over_attempts_while_the_token_is_fresh(
    ledger: Ledger, clock: ManualClock, make_job: MakeJob
) -> None:
    make_job(1)
    (first,) = claim(ledger, RULES)
    clock.now_ms += 1_000

    (second,) = claim(ledger, RULES)

    assert first.operation_key == second.operation_key
    assert first.token != second.token


def test_a_renewed_lease_outlives_its_first_end(ledger: Ledger, clock: ManualClock, make_job: MakeJob) -> None:
    make_job(1)
    (claimed,) = claim(ledger, RULES)
    clock.now_ms += 900
    with ledger.turn(ALICE) as turn:
        held = turn.renew([claimed])
    clock.now_ms += 900

    landings = complete(ledger, Offer(claim=claimed, output=output()))

    assert held == {claimed.token}
    assert landings == {claimed.token: Landing.ACCEPTED}


def test_an_expired_lease_cannot_be_renewed(ledger: Ledger, clock: ManualClock, make_job: MakeJob) -> None:
    make_job(1)
    (claimed,) = claim(ledger, RULES)
    clock.now_ms += 1_000

    with ledger.turn(ALICE) as turn:
        held = turn.renew([claimed])

    assert held == frozenset()


def test_one_stale_offer_does_not_spoil_the_others_of_its_transaction(
    ledger: Ledger, clock: ManualClock, make_job: MakeJob
) -> None:
    job_id = make_job(3)
    (stale,) = claim(ledger, RULES)
    clock.now_ms += 600
    fresh = claim(ledger, RULES, 2)
    clock.now_ms += 600

    landings = complete(ledger, *(Offer(claim=c, output=output()) for c in (stale, *fresh)))

    assert [landings[c.token] for c in (stale, *fresh)] == [Landing.STALE, Landing.ACCEPTED, Landing.ACCEPTED]
    assert states(ledger, job_id) == [WorkState.RUNNING, WorkState.SUCCEEDED, WorkState.SUCCEEDED]


def test_a_waiting_item_is_claimed_when_its_retry_is_due_and_not_before(
    ledger: Ledger, clock: ManualClock, make_job: MakeJob
) -> None:
    job_id = make_job(1)
    (claimed,) = claim(ledger, RULES)
    wait = RetryDecision(state=WorkState.WAITING, delay_ms=500, consumes_budget=True)
    fail(ledger, claimed, AttemptOutcome.RETRYABLE, wait)

    before = claim(ledger, RULES)
    clock.now_ms += 500
    due = claim(ledger, RULES)

    assert (before, len(due)) == ((), 1)
    assert due[0].attempt == 2
    assert states(ledger, job_id) == [WorkState.RUNNING]


def test_a_rate_limit_gives_its_attempt_back(ledger: Ledger, clock: ManualClock, make_job: MakeJob) -> None:
    make_job(1)
    (claimed,) = claim(ledger, RULES)
    limited = RetryDecision(state=WorkState.WAITING, delay_ms=0, consumes_budget=False)
    fail(ledger, claimed, AttemptOutcome.RATE_LIMITED, limited)

    (again,) = claim(ledger, RULES)

    assert (again.attempt, again.attempt_limit) == (2, 4)


def test_a_failure_that_the_guard_lets_through_lands_and_is_logged(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = make_job(1)
    (claimed,) = claim(ledger, RULES)
    before = ledger.reads.revision(job_id)
    wait = RetryDecision(state=WorkState.WAITING, delay_ms=500, consumes_budget=True)

    landings = fail(ledger, claimed, AttemptOutcome.RETRYABLE, wait)

    assert landings == {claimed.token: Landing.ACCEPTED}
    assert ledger.reads.revision(job_id) > before


def test_a_failure_after_the_lease_is_stale_and_leaves_the_item_alone(
    ledger: Ledger, clock: ManualClock, make_job: MakeJob
) -> None:
    job_id = make_job(1)
    (claimed,) = claim(ledger, RULES)
    clock.now_ms += 1_000
    give_up = RetryDecision(state=WorkState.FAILED, delay_ms=None, consumes_budget=True)

    landings = fail(ledger, claimed, AttemptOutcome.PERMANENT, give_up)

    assert landings == {claimed.token: Landing.STALE}
    assert states(ledger, job_id) == [WorkState.RUNNING]


def test_a_failed_item_keeps_its_siblings_and_is_redriven_only_on_request(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = make_job(2)
    first, second = claim(ledger, RULES, 2)
    complete(ledger, Offer(claim=first, output=output()))
    fail(
        ledger,
        second,
        AttemptOutcome.PERMANENT,
        RetryDecision(state=WorkState.FAILED, delay_ms=None, consumes_budget=True),
    )

    untouched = claim(ledger, RULES, ALL)
    redriven = ledger.redrives.redrive(job_id, Stage.GENERATE_RULES, None, actor="test", reason="mended")
    again = claim(ledger, RULES, ALL)

    assert untouched == ()
    assert redriven == ("rule-02",)
    assert [c.key.item_key for c in again] == ["rule-02"]


def test_the_barrier_opens_with_the_last_item_and_creates_each_test_item_once(
    ledger: Ledger, make_job: MakeJob
) -> None:
    job_id = make_job(3)
    first, second, third = claim(ledger, RULES, 3)
    complete(ledger, Offer(claim=first, output=output()), Offer(claim=second, output=output()))
    before = states(ledger, job_id, Stage.GENERATE_TESTS)

    complete(ledger, Offer(claim=third, output=output()))

    assert before == []
    assert states(ledger, job_id, Stage.GENERATE_TESTS) == [WorkState.PENDING] * 3
    assert ledger.reads.job_by_id(job_id).state is JobState.GENERATING_TESTS


def test_a_failed_item_holds_the_barrier(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = make_job(2)
    first, second = claim(ledger, RULES, 2)
    fail(
        ledger,
        second,
        AttemptOutcome.PERMANENT,
        RetryDecision(state=WorkState.FAILED, delay_ms=None, consumes_budget=True),
    )

    complete(ledger, Offer(claim=first, output=output()))

    assert ledger.reads.job_by_id(job_id).state is JobState.GENERATING_RULES


def test_workers_that_complete_the_last_items_at_once_open_the_next_stage_exactly_once(
    ledger: Ledger, make_job: MakeJob
) -> None:
    job_id = make_job(24)
    claimed = claim(ledger, RULES, 24)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda c: complete(ledger, Offer(claim=c, output=output())), claimed))

    assert states(ledger, job_id, Stage.GENERATE_TESTS) == [WorkState.PENDING] * 24
    moves = _transitions(ledger, job_id, JobState.GENERATING_TESTS)
    assert len(moves) == 1


def test_workers_that_claim_at_once_never_share_an_item(ledger: Ledger, make_job: MakeJob) -> None:
    make_job(60)

    with ThreadPoolExecutor(8) as pool:
        claimed = [c for batch in pool.map(lambda _: claim(ledger, RULES, 5), range(16)) for c in batch]

    assert len(claimed) == 60
    assert len({c.key for c in claimed}) == 60


def test_a_parse_completion_stores_clauses_and_items_or_nothing(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = make_job(5)

    items = ledger.reads.items(job_id, Stage.GENERATE_RULES)

    assert [item.key.item_key for item in items] == [f"rule-0{n}" for n in range(1, 6)]
    assert [clause.ordinal for clause in ledger.reads.clauses(job_id)] == [0, 1, 2, 3, 4]


def test_an_error_inside_a_turn_undoes_all_of_it(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = make_job(2)
    first, _ = claim(ledger, RULES, 2)

    def lose_the_process() -> None:
        with ledger.turn(ALICE) as turn:
            turn.offer(Offer(claim=first, output=output()))
            turn.settle()
            raise RuntimeError("the process is lost here")

    with pytest.raises(RuntimeError):
        lose_the_process()

    assert states(ledger, job_id) == [WorkState.RUNNING, WorkState.RUNNING]


def test_a_commit_whose_answer_was_lost_is_recognized_when_it_is_offered_again(
    ledger: Ledger, make_job: MakeJob
) -> None:
    make_job(2)
    (claimed,) = claim(ledger, RULES)
    offer = Offer(claim=claimed, output=output())
    complete(ledger, offer)

    again = complete(ledger, offer)

    assert again == {claimed.token: Landing.ACCEPTED}


@pytest.mark.parametrize(
    "change",
    [
        {"output": '{"other":1}', "output_digest": "x"},
        {"state": "running", "token": "x", "lease_until": 1, "worker": "w", "output": None, "output_digest": None},
        {"state": "failed", "error_code": "x", "output": None, "output_digest": None},
    ],
    ids=["another output", "running again", "failed"],
)
def test_the_database_refuses_any_change_of_an_accepted_output(
    ledger: Ledger, make_job: MakeJob, change: dict[str, Any]
) -> None:
    job_id = make_job(2)
    (claimed,) = claim(ledger, RULES)
    complete(ledger, Offer(claim=claimed, output=output()))

    with pytest.raises(LedgerError, match="accepted output is final"), ledger.database.write() as connection:
        connection.execute(
            sa.update(work_item).where(work_item.c.job_id == job_id, work_item.c.item_key == "rule-01").values(change)
        )

    assert states(ledger, job_id)[0] is WorkState.SUCCEEDED


@pytest.mark.parametrize(
    "change",
    [
        {"state": "running"},
        {"state": "succeeded"},
        {"state": "waiting"},
        {"state": "failed"},
        {"state": "lost"},
        {"token": "x"},
    ],
    ids=["no token", "no output", "no due time", "no reason", "no such state", "token while pending"],
)
def test_the_database_refuses_a_work_item_that_contradicts_itself(
    ledger: Ledger, make_job: MakeJob, change: dict[str, Any]
) -> None:
    job_id = make_job(1)

    with pytest.raises(LedgerError), ledger.database.write() as connection:
        connection.execute(sa.update(work_item).where(work_item.c.job_id == job_id).values(change))

    assert states(ledger, job_id) == [WorkState.PENDING]


def test_two_attempts_of_one_item_in_one_turn_are_told_apart(
    ledger: Ledger, clock: ManualClock, make_job: MakeJob
) -> None:
    job_id = make_job(2)
    (old,) = claim(ledger, RULES)
    clock.now_ms += 1_000
    (new,) = claim(ledger, RULES)

    landings = complete(ledger, Offer(claim=old, output=output("old")), Offer(claim=new, output=output("new")))

    outcomes = [a.outcome for a in ledger.reads.attempts(job_id) if a.key.item_key == "rule-01"]
    assert (landings[old.token], landings[new.token]) == (Landing.STALE, Landing.ACCEPTED)
    assert outcomes == [AttemptOutcome.STALE, AttemptOutcome.ACCEPTED]


def test_the_database_refuses_a_second_accepted_attempt(ledger: Ledger, clock: ManualClock, make_job: MakeJob) -> None:
    make_job(2)
    claim(ledger, RULES)
    clock.now_ms += 1_000
    (second,) = claim(ledger, RULES)
    complete(ledger, Offer(claim=second, output=output()))

    with pytest.raises(LedgerError), ledger.database.write() as connection:
        connection.execute(sa.update(attempt).values(outcome="accepted", ended_at=1))


def test_the_log_of_transitions_cannot_be_rewritten(ledger: Ledger, make_job: MakeJob) -> None:
    make_job(1)

    with pytest.raises(LedgerError, match="append-only"), ledger.database.write() as connection:
        connection.execute(sa.delete(transition))


def test_an_ended_job_accepts_no_completion(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = make_job(1)
    (claimed,) = claim(ledger, RULES)
    with ledger.database.write() as connection:
        connection.execute(sa.update(job).where(job.c.job_id == job_id).values(state="cancelled"))

    landings = complete(ledger, Offer(claim=claimed, output=output()))

    assert landings == {claimed.token: Landing.STALE}
    assert states(ledger, job_id) == [WorkState.RUNNING]


def test_a_job_that_ended_never_changes_again(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = make_job(1)
    with ledger.database.write() as connection:
        connection.execute(sa.update(job).where(job.c.job_id == job_id).values(state="failed"))

    with pytest.raises(LedgerError, match="is final"), ledger.database.write() as connection:
        connection.execute(sa.update(job).where(job.c.job_id == job_id).values(state="generating_rules"))


def test_a_claim_is_limited_to_the_named_items(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = make_job(5)
    keys = tuple(item.key for item in ledger.reads.items(job_id, Stage.GENERATE_RULES) if item.ordinal in (2, 4))

    claimed = claim(ledger, replace(RULES, items=keys), ALL)

    assert [c.key.item_key for c in claimed] == ["rule-02", "rule-04"]


def test_fresh_tokens_are_never_repeated_by_the_test_helper() -> None:
    made = [*tokens(3), *tokens(3)]

    assert len(set(made)) == 6


def _transitions(ledger: Ledger, job_id: int, state: JobState) -> list[Any]:
    with ledger.database.read() as connection:
        return list(
            connection.execute(
                sa.select(transition).where(
                    transition.c.job_id == job_id, transition.c.subject == "job", transition.c.to_state == state.value
                )
            )
        )
