import json
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from rulegen_dagster.domain.errors import StateError
from rulegen_dagster.domain.retry import RetryDecision
from rulegen_dagster.domain.states import (
    TERMINAL_JOB_STATES,
    ActionState,
    AttemptOutcome,
    JobState,
    Stage,
    WorkState,
)
from rulegen_dagster.domain.work import Claim, FailedAttempt, Landing, Offer, Usage
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.ledger.schema import job as job_table
from rulegen_dagster.ledger.schema import transition, work_item
from rulegen_dagster.ledger.store import Ledger
from tests.ledger.conftest import ALICE, ALL, BOB, MakeJob, claim, complete, parsed_spec, stage_scope, submission

RULES = stage_scope(Stage.GENERATE_RULES)
WAIT = RetryDecision(state=WorkState.WAITING, delay_ms=500, consumes_budget=True)
GIVE_UP = RetryDecision(state=WorkState.FAILED, delay_ms=None, consumes_budget=True)
ACTION_SET = json.dumps({"actions": [{"kind": "publish"}]})


def offer(claimed: Claim) -> Offer:
    usage = Usage(model_id="m", tokens_in=7, tokens_out=9, cost_micros=42)
    return Offer(claim=claimed, output='{"rule":1}', provider="p", provider_called=True, usage=usage)


def failed(claimed: Claim, outcome: AttemptOutcome = AttemptOutcome.AMBIGUOUS) -> FailedAttempt:
    return FailedAttempt(claim=claimed, outcome=outcome, error_code="lost", message="lost", provider_called=True)


def fail(ledger: Ledger, claimed: Claim, decision: RetryDecision) -> dict[str, Landing]:
    with ledger.turn(ALICE) as turn:
        return turn.settle([(failed(claimed), decision)])


def cancel(ledger: Ledger, job_id: int) -> Any:
    return ledger.cancellations.cancel(job_id, actor="ann", reason="wrong edition")


def states(ledger: Ledger, job_id: int, stage: Stage = Stage.GENERATE_RULES) -> list[WorkState]:
    return [item.state for item in ledger.reads.items(job_id, stage)]


def outcomes(ledger: Ledger, job_id: int) -> list[tuple[AttemptOutcome | None, int | None]]:
    found = [a for a in ledger.reads.attempts(job_id) if a.key.stage is Stage.GENERATE_RULES]
    return [(a.outcome, a.cost_micros) for a in sorted(found, key=lambda a: (a.key.item_key, a.attempt))]


def logged(ledger: Ledger, job_id: int, subject: str, to_state: str) -> list[str | None]:
    with ledger.database.read() as connection:
        return list(
            connection.execute(
                sa.select(transition.c.from_state)
                .where(
                    transition.c.job_id == job_id, transition.c.subject == subject, transition.c.to_state == to_state
                )
                .order_by(transition.c.transition_id)
            ).scalars()
        )


def awaiting(ledger: Ledger, key: str = "policy") -> tuple[int, str]:
    """Make a job without items that waits for a confirmation; return its number and its action set."""
    job_id = ledger.submissions.submit(submission(key), actor="test").job_id
    for stage, more in (
        (Stage.PARSE, {"parsed": parsed_spec(0)}),
        (Stage.RETRIEVE, {}),
        (Stage.VALIDATE, {"passed": True, "action_set": ACTION_SET}),
    ):
        (claimed,) = claim(ledger, stage_scope(stage, job_id))
        complete(ledger, Offer(claim=claimed, output="{}", **more))
    record = ledger.reads.job_by_id(job_id)
    assert record.state is JobState.AWAITING_CONFIRMATION
    return job_id, str(record.action_set_digest)


def test_a_cancellation_ends_the_job_and_whatever_of_it_is_unfinished(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = make_job(5)
    done, broken, waiting, _running = claim(ledger, RULES, 4)
    complete(ledger, offer(done))
    fail(ledger, broken, GIVE_UP)
    fail(ledger, waiting, WAIT)

    ended = cancel(ledger, job_id)

    record = ledger.reads.job_by_id(job_id)
    items = ledger.reads.items(job_id, Stage.GENERATE_RULES)
    assert (record.state, record.end_reason) == (JobState.CANCELLED, "wrong edition")
    assert (ended.items, ended.in_flight) == (3, 1)
    assert [item.state for item in items] == [
        WorkState.SUCCEEDED,
        WorkState.FAILED,
        WorkState.CANCELLED,
        WorkState.CANCELLED,
        WorkState.CANCELLED,
    ]
    assert items[0].output == '{"rule":1}'
    assert {(item.worker, item.lease_until, item.next_attempt_at) for item in items[2:]} == {(None, None, None)}
    assert logged(ledger, job_id, "work_item", "cancelled") == ["waiting", "running", "pending"]
    assert logged(ledger, job_id, "job", "cancelled") == ["generating_rules"]


def test_an_attempt_in_flight_ends_as_cancelled_and_one_whose_lease_had_passed_as_crashed(
    ledger: Ledger, clock: ManualClock, make_job: MakeJob
) -> None:
    job_id = make_job(2)
    claim(ledger, RULES)
    clock.now_ms += 1_000
    claim(ledger, stage_scope(Stage.GENERATE_RULES), 1, BOB)
    claim(ledger, RULES)
    clock.now_ms += 999

    ended = cancel(ledger, job_id)

    assert [outcome for outcome, _ in outcomes(ledger, job_id)] == [
        AttemptOutcome.CRASHED,
        AttemptOutcome.CANCELLED,
        AttemptOutcome.CANCELLED,
    ]
    assert ended.in_flight == 2


def test_a_lease_that_passed_unnoticed_is_booked_as_a_crash(
    ledger: Ledger, clock: ManualClock, make_job: MakeJob
) -> None:
    job_id = make_job(1)
    claim(ledger, RULES)
    clock.now_ms += 1_000

    ended = cancel(ledger, job_id)

    assert (ended.items, ended.in_flight) == (1, 0)
    assert outcomes(ledger, job_id) == [(AttemptOutcome.CRASHED, None)]


def test_a_completion_after_the_cancellation_is_stale_and_its_cost_is_kept(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = make_job(1)
    (claimed,) = claim(ledger, RULES)
    cancel(ledger, job_id)

    landings = complete(ledger, offer(claimed))

    assert landings == {claimed.token: Landing.STALE}
    assert states(ledger, job_id) == [WorkState.CANCELLED]
    assert outcomes(ledger, job_id) == [(AttemptOutcome.STALE, 42)]


def test_a_failure_after_the_cancellation_is_told_and_changes_no_item(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = make_job(1)
    (claimed,) = claim(ledger, RULES)
    cancel(ledger, job_id)

    landings = fail(ledger, claimed, WAIT)

    assert landings == {claimed.token: Landing.STALE}
    assert states(ledger, job_id) == [WorkState.CANCELLED]
    assert outcomes(ledger, job_id) == [(AttemptOutcome.AMBIGUOUS, None)]


def test_nothing_of_a_cancelled_job_is_claimed_renewed_or_redriven(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = make_job(3)
    held, broken = claim(ledger, RULES, 2)
    fail(ledger, broken, GIVE_UP)
    cancel(ledger, job_id)

    with ledger.turn(ALICE) as turn:
        renewed = turn.renew([held])
        claimed = turn.claim(RULES, ["x-1", "x-2", "x-3"])
    redriven = ledger.redrives.redrive(job_id, Stage.GENERATE_RULES, None, actor="ann", reason="again")

    assert (renewed, claimed, redriven) == (frozenset(), (), ())


def test_a_worker_learns_by_a_look_what_was_taken_from_it(
    ledger: Ledger, clock: ManualClock, make_job: MakeJob
) -> None:
    cancelled, kept = make_job(1, key="a"), make_job(2, key="b")
    mine, lost, held = claim(ledger, RULES, 3)
    clock.now_ms += 900
    with ledger.turn(ALICE) as turn:
        turn.renew([mine, held])
    clock.now_ms += 100
    claim(ledger, RULES, 1, BOB)
    before = ledger.cancellations.withdrawn([mine, lost, held])
    cancel(ledger, cancelled)

    after = ledger.cancellations.withdrawn([mine, lost, held])

    assert before == {lost.token}
    assert after == {mine.token, lost.token}
    assert mine.key.job_id == cancelled
    assert held.key.job_id == kept


def test_another_job_is_left_alone(ledger: Ledger, make_job: MakeJob) -> None:
    cancelled, other = make_job(2, key="a"), make_job(2, key="b")
    claim(ledger, stage_scope(Stage.GENERATE_RULES, other))

    cancel(ledger, cancelled)

    assert states(ledger, other) == [WorkState.RUNNING, WorkState.PENDING]
    assert ledger.reads.job_by_id(other).state is JobState.GENERATING_RULES


@pytest.mark.parametrize("end", ["cancelled", "rejected"])
def test_a_job_that_has_ended_cannot_be_cancelled(ledger: Ledger, end: str) -> None:
    job_id, _ = awaiting(ledger)
    if end == "cancelled":
        cancel(ledger, job_id)
    else:
        ledger.actions.reject(job_id, actor="ann", reason="no")

    with pytest.raises(StateError):
        cancel(ledger, job_id)

    assert logged(ledger, job_id, "job", "cancelled") == ["awaiting_confirmation"]


@pytest.mark.parametrize("confirmed", [False, True], ids=["proposed", "confirmed"])
def test_actions_that_nobody_has_begun_are_given_up_with_the_job(ledger: Ledger, confirmed: bool) -> None:
    job_id, digest = awaiting(ledger)
    if confirmed:
        ledger.actions.confirm(job_id, digest, actor="ann")

    cancel(ledger, job_id)

    (action,) = ledger.reads.actions(job_id)
    assert (action.state, action.error_code) == (ActionState.FAILED, "job_cancelled")
    assert logged(ledger, job_id, "action", "failed") == ["confirmed" if confirmed else "proposed"]
    assert ledger.actions.claim(job_id, token="x", claimant=ALICE) is None  # noqa: S106
    assert ledger.reads.publishable_jobs() == []


@pytest.mark.parametrize("released", [False, True], ids=["executing", "unknown"])
def test_a_publication_that_was_begun_is_reconciled_and_not_cancelled(ledger: Ledger, released: bool) -> None:
    job_id, digest = awaiting(ledger)
    ledger.actions.confirm(job_id, digest, actor="ann")
    begun = ledger.actions.claim(job_id, token="x", claimant=ALICE)  # noqa: S106
    assert begun is not None
    if released:
        ledger.actions.release(begun, error_code="publish_failed", actor="alice")

    with pytest.raises(StateError, match="begun"):
        cancel(ledger, job_id)

    assert ledger.reads.job_by_id(job_id).state is JobState.EXECUTING


def _race(*sides: Callable[[], Any]) -> list[Any]:
    """Run all sides at once; an error of the state machine is a result like any other."""
    start = threading.Barrier(len(sides))

    def run(side: Callable[[], Any]) -> Any:
        start.wait()
        try:
            return side()
        except StateError as error:
            return error

    with ThreadPoolExecutor(len(sides)) as pool:
        return list(pool.map(run, sides))


def _complete_in_two_turns(ledger: Ledger, claims: tuple[Claim, ...]) -> dict[str, Landing]:
    first, second = claims[:3], claims[3:]
    return complete(ledger, *map(offer, first)) | complete(ledger, *map(offer, second), claimant=BOB)


def _renew_backwards(ledger: Ledger, claims: tuple[Claim, ...]) -> None:
    for _ in range(5):
        with ledger.turn(ALICE) as turn:
            turn.renew(claims[::-1])


def _claim_more(ledger: Ledger, job_id: int) -> None:
    for _ in range(5):
        claim(ledger, stage_scope(Stage.GENERATE_RULES, job_id), 2, BOB)


def _publish(ledger: Ledger, job_id: int, digest: str) -> bool:
    ledger.actions.confirm(job_id, digest, actor="ann")
    begun = ledger.actions.claim(job_id, token=f"x-{job_id}", claimant=ALICE)
    return begun is not None and ledger.actions.finish(begun, receipt="{}", actor="alice")


def _redrive(ledger: Ledger, job_id: int) -> tuple[str, ...]:
    return ledger.redrives.redrive(job_id, Stage.GENERATE_RULES, None, actor="ann", reason="again")


def _ends(ledger: Ledger, job_id: int) -> list[str]:
    return [state for state in sorted(TERMINAL_JOB_STATES) for _ in logged(ledger, job_id, "job", state)]


def test_cancellation_and_completions_at_once_tell_one_story(ledger: Ledger, make_job: MakeJob) -> None:
    for round_ in range(6):
        job_id = make_job(6, key=f"race-{round_}")
        claims = claim(ledger, stage_scope(Stage.GENERATE_RULES, job_id), 6)

        landings, _ = _race(partial(_complete_in_two_turns, ledger, claims), partial(cancel, ledger, job_id))

        items = {item.key.item_key: item.state for item in ledger.reads.items(job_id, Stage.GENERATE_RULES)}
        told = {c.key.item_key: landings[c.token] is Landing.ACCEPTED for c in claims}
        stored = {a.key.item_key: a.outcome for a in ledger.reads.attempts(job_id) if a.key.item_key in told}
        assert {key: state is WorkState.SUCCEEDED for key, state in items.items()} == told
        assert {key: outcome is AttemptOutcome.ACCEPTED for key, outcome in stored.items()} == told
        assert set(items.values()) <= {WorkState.SUCCEEDED, WorkState.CANCELLED}
        assert set(states(ledger, job_id, Stage.GENERATE_TESTS)) <= {WorkState.CANCELLED}
        assert _ends(ledger, job_id) == ["cancelled"]


def test_cancellation_claims_and_renewals_at_once_leave_nothing_held(ledger: Ledger, make_job: MakeJob) -> None:
    for round_ in range(4):
        job_id = make_job(40, key=f"race-{round_}")
        held = claim(ledger, stage_scope(Stage.GENERATE_RULES, job_id), 30)

        _race(
            partial(_renew_backwards, ledger, held),
            partial(_claim_more, ledger, job_id),
            partial(cancel, ledger, job_id),
        )

        assert set(states(ledger, job_id)) == {WorkState.CANCELLED}
        assert {outcome for outcome, _ in outcomes(ledger, job_id)} == {AttemptOutcome.CANCELLED}


def test_of_two_cancellations_at_once_one_is_told_that_the_job_has_ended(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = make_job(3)

    results = _race(partial(cancel, ledger, job_id), partial(cancel, ledger, job_id))

    assert sum(isinstance(result, StateError) for result in results) == 1
    assert logged(ledger, job_id, "job", "cancelled") == ["generating_rules"]


def test_cancellation_and_publication_at_once_end_in_one_state(ledger: Ledger) -> None:
    for round_ in range(6):
        job_id, digest = awaiting(ledger, f"race-{round_}")

        published, cancelled = _race(partial(_publish, ledger, job_id, digest), partial(cancel, ledger, job_id))

        (action,) = ledger.reads.actions(job_id)
        if published is True:
            assert isinstance(cancelled, StateError)
            assert (action.state, _ends(ledger, job_id)) == (ActionState.DONE, ["completed"])
        else:
            assert (action.state, _ends(ledger, job_id)) == (ActionState.FAILED, ["cancelled"])


def test_cancellation_and_redrive_at_once_leave_nothing_to_claim(ledger: Ledger, make_job: MakeJob) -> None:
    for round_ in range(6):
        job_id = make_job(2, key=f"race-{round_}")
        for claimed in claim(ledger, stage_scope(Stage.GENERATE_RULES, job_id), ALL):
            fail(ledger, claimed, GIVE_UP)

        _race(partial(_redrive, ledger, job_id), partial(cancel, ledger, job_id))

        with ledger.database.read() as connection:
            left = connection.execute(
                sa.select(sa.func.count()).where(work_item.c.job_id == job_id, work_item.c.state == "pending")
            ).scalar_one()
        assert left == 0


def test_a_redrive_waits_for_a_cancellation_that_is_about_to_commit(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = make_job(2)
    for claimed in claim(ledger, RULES, ALL):
        fail(ledger, claimed, GIVE_UP)

    with ThreadPoolExecutor(1) as pool:
        with ledger.database.write() as connection:
            connection.execute(sa.update(job_table).where(job_table.c.job_id == job_id).values(state="cancelled"))
            redriven = pool.submit(_redrive, ledger, job_id)
            _until_it_waits_or_ends(ledger, redriven)

        assert redriven.result() == ()

    assert states(ledger, job_id) == [WorkState.FAILED] * 2


def _until_it_waits_or_ends(ledger: Ledger, work: Future[Any]) -> None:
    # SQLite has one writer at a time: whoever comes second waits, seen or not.
    waiting = sa.text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    while ledger.database.dialect == "postgresql" and not work.done():
        with ledger.database.read() as connection:
            if connection.execute(waiting).scalar_one():
                return
