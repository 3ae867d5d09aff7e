from collections.abc import Iterator
from dataclasses import replace

import pytest
import sqlalchemy as sa

from rulegen_dagster.domain import failpoints
from rulegen_dagster.domain.deadline import DeadlinePolicy
from rulegen_dagster.domain.errors import LedgerError, StateError
from rulegen_dagster.domain.states import ActionState, AttemptOutcome, JobState, Stage, WorkState
from rulegen_dagster.domain.work import Landing, Offer
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.ledger.events import latest_job_event
from rulegen_dagster.ledger.schema import job as job_table
from rulegen_dagster.ledger.schema import transition
from rulegen_dagster.ledger.store import Ledger, open_ledger
from tests.conftest import POLICY
from tests.ledger.conftest import ALICE, claim, complete, parsed_spec, stage_scope, submission
from tests.ledger.test_cancellations import ACTION_SET, WAIT, fail, offer, outcomes, states

RULES = stage_scope(Stage.GENERATE_RULES)
DEADLINES = DeadlinePolicy(given_ms=60_000, margin_ms=2_000, least_call_ms=1_000)
GIVEN_MS = 60_000


@pytest.fixture
def ledger(ledger_url: str, clock: ManualClock) -> Iterator[Ledger]:
    opened = open_ledger(ledger_url, POLICY, clock, DEADLINES)
    yield opened
    opened.close()


def make(ledger: Ledger, items: int = 3, *, key: str = "policy", deadline_ms: int | None = GIVEN_MS) -> int:
    """Make a job with open rule items and a deadline; return its number."""
    request = replace(submission(key), deadline_ms=deadline_ms)
    job_id = ledger.submissions.submit(request, actor="test").job_id
    (parse,) = claim(ledger, stage_scope(Stage.PARSE, job_id))
    complete(ledger, Offer(claim=parse, output="{}", parsed=parsed_spec(items)))
    (retrieve,) = claim(ledger, stage_scope(Stage.RETRIEVE, job_id))
    complete(ledger, Offer(claim=retrieve, output='{"context":{}}'))
    return job_id


def make_awaiting(ledger: Ledger, key: str = "policy") -> tuple[int, str]:
    """Make a job without items that waits for a confirmation; return its number and its action set."""
    job_id = make(ledger, 0, key=key)
    (claimed,) = claim(ledger, stage_scope(Stage.VALIDATE, job_id))
    complete(ledger, Offer(claim=claimed, output="{}", passed=True, action_set=ACTION_SET))
    return job_id, str(ledger.reads.job_by_id(job_id).action_set_digest)


def state_of(ledger: Ledger, job_id: int) -> JobState:
    return ledger.reads.job_by_id(job_id).state


def expire(ledger: Ledger, job_id: int, *, wait_ms: int = 0) -> bool:
    return ledger.deadlines.expire(job_id, actor="deadlines", wait_ms=wait_ms) is not None


def test_the_deadline_counts_from_the_submission_and_stays_with_the_job(ledger: Ledger, clock: ManualClock) -> None:
    first = ledger.submissions.submit(replace(submission(), deadline_ms=5_000), actor="test")
    clock.now_ms += 1_000

    again = ledger.submissions.submit(replace(submission(), deadline_ms=90_000), actor="test")

    assert again.job_id == first.job_id
    assert ledger.reads.job_by_id(first.job_id).deadline_at == 15_000


def test_nothing_is_claimed_once_too_little_is_left_for_a_call(ledger: Ledger, clock: ManualClock) -> None:
    job_id = make(ledger)
    clock.now_ms += GIVEN_MS - DEADLINES.reserve_ms

    (last,) = claim(ledger, RULES)
    planned = ledger.reads.open_stages()
    clock.now_ms += 1
    late = claim(ledger, RULES, 3)

    assert (last.key.job_id, last.remaining_ms) == (job_id, DEADLINES.least_call_ms)
    assert [stage.job_id for stage in planned] == [job_id]
    assert late == ()
    assert ledger.reads.open_stages() == []


def test_another_job_is_claimed_beside_an_overdue_one(ledger: Ledger, clock: ManualClock) -> None:
    make(ledger, key="late")
    clock.now_ms += GIVEN_MS
    other, endless = make(ledger, 1, key="b"), make(ledger, 1, key="c", deadline_ms=None)

    claims = claim(ledger, RULES, 5)

    assert [(c.key.job_id, c.remaining_ms) for c in claims] == [
        (other, GIVEN_MS - DEADLINES.margin_ms),
        (endless, None),
    ]


def test_a_claim_tells_what_is_left_and_when_its_worker_asked(ledger: Ledger, clock: ManualClock) -> None:
    make(ledger)
    clock.now_ms += 10_000

    (claimed,) = claim(ledger, RULES, 1, replace(ALICE, monotonic_s=7.5))

    assert (claimed.remaining_ms, claimed.claimed_s) == (GIVEN_MS - 10_000 - DEADLINES.margin_ms, 7.5)


def test_an_expiry_ends_the_job_and_whatever_of_it_is_unfinished(ledger: Ledger, clock: ManualClock) -> None:
    job_id = make(ledger, 4)
    clock.now_ms += GIVEN_MS - 3_500
    done, waiting, _running = claim(ledger, RULES, 3)
    complete(ledger, offer(done))
    fail(ledger, waiting, WAIT)
    clock.now_ms += 501

    ended = ledger.deadlines.expire(job_id, actor="deadlines")

    record = ledger.reads.job_by_id(job_id)
    event = latest_job_event(ledger.database, job_id)
    assert ended is not None
    assert event is not None
    assert (ended.items, ended.in_flight) == (3, 1)
    assert record.state is JobState.EXPIRED
    assert "the deadline, 1970-01-01 00:01:10.000 UTC" in str(record.end_reason)
    assert (event.from_state, event.cause, event.actor) == ("generating_rules", "deadline_passed", "deadlines")
    assert states(ledger, job_id) == [WorkState.SUCCEEDED, *[WorkState.CANCELLED] * 3]
    assert [outcome for outcome, _ in outcomes(ledger, job_id)] == [
        AttemptOutcome.ACCEPTED,
        AttemptOutcome.AMBIGUOUS,
        AttemptOutcome.CANCELLED,
    ]


def test_a_completion_after_the_expiry_is_stale_and_its_cost_is_kept(ledger: Ledger, clock: ManualClock) -> None:
    job_id = make(ledger, 1)
    clock.now_ms += GIVEN_MS - 3_000
    (claimed,) = claim(ledger, RULES)
    clock.now_ms += 500
    assert expire(ledger, job_id)

    landings = complete(ledger, offer(claimed))

    assert landings == {claimed.token: Landing.STALE}
    assert outcomes(ledger, job_id) == [(AttemptOutcome.STALE, 42)]
    assert ledger.cancellations.withdrawn([claimed]) == {claimed.token}


def test_a_job_with_time_left_or_without_a_deadline_does_not_expire(ledger: Ledger, clock: ManualClock) -> None:
    timely, endless = make(ledger, key="a"), make(ledger, key="b", deadline_ms=None)
    clock.now_ms += GIVEN_MS - DEADLINES.reserve_ms

    assert (expire(ledger, timely), expire(ledger, endless)) == (False, False)
    assert ledger.deadlines.overdue() == ()
    clock.now_ms += 10 * GIVEN_MS

    assert (expire(ledger, endless), ledger.deadlines.overdue()) == (False, (timely,))


def test_a_job_expires_before_a_wait_that_would_end_too_late(ledger: Ledger, clock: ManualClock) -> None:
    job_id = make(ledger)
    clock.now_ms += GIVEN_MS - DEADLINES.reserve_ms - 5_000

    in_time = expire(ledger, job_id, wait_ms=5_000)
    too_late = expire(ledger, job_id, wait_ms=5_001)

    assert (in_time, too_late) == (False, True)
    assert "after a wait of 5s" in str(ledger.reads.job_by_id(job_id).end_reason)


@pytest.mark.parametrize("confirmed", [False, True], ids=["proposed", "confirmed"])
def test_a_job_that_waits_for_a_person_or_a_publisher_expires_too(
    ledger: Ledger, clock: ManualClock, confirmed: bool
) -> None:
    job_id, digest = make_awaiting(ledger)
    if confirmed:
        ledger.actions.confirm(job_id, digest, actor="ann")
    clock.now_ms += GIVEN_MS

    assert ledger.deadlines.overdue() == (job_id,)
    assert expire(ledger, job_id)

    (action,) = ledger.reads.actions(job_id)
    assert (action.state, action.error_code) == (ActionState.FAILED, "deadline_passed")
    assert ledger.reads.publishable_jobs() == []


@pytest.mark.parametrize("released", [False, True], ids=["executing", "unknown"])
def test_a_publication_that_was_begun_is_finished_however_late(
    ledger: Ledger, clock: ManualClock, released: bool
) -> None:
    job_id, digest = make_awaiting(ledger)
    ledger.actions.confirm(job_id, digest, actor="ann")
    begun = ledger.actions.claim(job_id, token="x", claimant=ALICE)  # noqa: S106
    assert begun is not None
    if released:
        ledger.actions.release(begun, error_code="publish_failed", actor="alice")
    clock.now_ms += GIVEN_MS

    assert (ledger.deadlines.overdue(), expire(ledger, job_id)) == ((), False)
    assert state_of(ledger, job_id) is JobState.EXECUTING


def test_an_expired_job_is_immutable(ledger: Ledger, clock: ManualClock) -> None:
    job_id = make(ledger)
    clock.now_ms += GIVEN_MS
    assert expire(ledger, job_id)

    again = expire(ledger, job_id)
    for change in ({"state": "generating_rules"}, {"deadline_at": 10**9}):
        with pytest.raises(LedgerError, match="final"), ledger.database.write() as connection:
            connection.execute(sa.update(job_table).where(job_table.c.job_id == job_id).values(**change))
    with pytest.raises(StateError, match="ended"):
        ledger.deadlines.extend(job_id, by_ms=1_000, actor="ann", reason="again")
    with pytest.raises(StateError, match="expired"):
        ledger.cancellations.cancel(job_id, actor="ann", reason="late")

    assert again is False
    assert ledger.reads.job_by_id(job_id).deadline_at == 10_000 + GIVEN_MS


def test_an_extension_moves_the_deadline_and_says_who_and_why(ledger: Ledger, clock: ManualClock) -> None:
    job_id = make(ledger)
    before = latest_job_event(ledger.database, job_id)
    clock.now_ms += GIVEN_MS - 10_000

    extended = ledger.deadlines.extend(job_id, by_ms=90_000, actor="ann", reason="the provider was down")

    with ledger.database.read() as connection:
        row = connection.execute(sa.select(transition).order_by(transition.c.transition_id.desc()).limit(1)).one()
    assert extended == ledger.reads.job_by_id(job_id).deadline_at == 10_000 + GIVEN_MS + 90_000
    assert (row.subject, row.from_state, row.to_state) == ("job", "generating_rules", "generating_rules")
    assert (row.cause, row.actor) == ("extended by 1m30s: the provider was down", "ann")
    # How the job came into its state is another question.
    assert latest_job_event(ledger.database, job_id) == before


def test_an_extension_counts_from_now_where_the_deadline_has_passed(ledger: Ledger, clock: ManualClock) -> None:
    job_id = make(ledger)
    clock.now_ms += GIVEN_MS + 5_000

    extended = ledger.deadlines.extend(job_id, by_ms=20_000, actor="ann", reason="again")

    assert extended == clock.now_ms + 20_000
    assert expire(ledger, job_id) is False
    assert len(claim(ledger, RULES, 3)) == 3


def test_a_job_without_a_deadline_needs_no_extension(ledger: Ledger) -> None:
    job_id = make(ledger, deadline_ms=None)

    with pytest.raises(StateError) as caught:
        ledger.deadlines.extend(job_id, by_ms=1_000, actor="ann", reason="again")

    assert caught.value.code == "no_deadline"


def test_expiry_and_extension_are_commits_that_a_process_can_die_at(ledger: Ledger, clock: ManualClock) -> None:
    job_id = make(ledger)
    counts = failpoints.record()
    try:
        expire(ledger, job_id)
        ledger.deadlines.extend(job_id, by_ms=1_000, actor="ann", reason="again")
        clock.now_ms += 2 * GIVEN_MS
        expire(ledger, job_id)
    finally:
        failpoints.disarm()

    assert counts == {point: 1 for commit in (failpoints.EXTENSION, failpoints.EXPIRY) for point in commit}
