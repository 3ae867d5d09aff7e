"""What lost workers held is freed at once, booked as a crash, within the same budget; and nothing else is touched."""

import pytest

from rulegen_dagster.domain.states import AttemptOutcome, Stage, WorkState
from rulegen_dagster.domain.work import Landing, Offer
from rulegen_dagster.ledger.attempts import AttemptRecord
from rulegen_dagster.ledger.claims import Claimant
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.ledger.recoveries import Freed
from rulegen_dagster.ledger.store import Ledger
from tests.ledger.conftest import ALL, BOB, MakeJob, claim, complete, parsed_spec, stage_scope, submission

RULES = stage_scope(Stage.GENERATE_RULES)
LOST = Claimant(worker="lost", lease_ms=600_000)
LIVING = Claimant(worker="living", lease_ms=600_000)


def _attempts(ledger: Ledger, job_id: int) -> list[AttemptRecord]:
    return [a for a in ledger.reads.attempts(job_id) if a.key.stage is Stage.GENERATE_RULES]


def _states(ledger: Ledger, job_id: int) -> list[WorkState]:
    return [item.state for item in ledger.reads.items(job_id, Stage.GENERATE_RULES)]


def test_the_items_of_a_lost_worker_can_be_claimed_at_once(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = make_job(3)
    claim(ledger, RULES, 2, LOST)
    claim(ledger, RULES, 1, LIVING)

    freed = ledger.recoveries.free({"lost"}, actor="bob")
    taken = claim(ledger, RULES, ALL, BOB)

    attempts = _attempts(ledger, job_id)
    assert freed == Freed(waiting=2)
    assert [(c.key.item_key, c.attempt, c.attempt_limit) for c in taken] == [("rule-01", 2, 3), ("rule-02", 2, 3)]
    assert [(a.worker, a.outcome, a.error_code) for a in attempts if a.worker != "bob"] == [
        ("lost", AttemptOutcome.CRASHED, "worker_lost"),
        ("lost", AttemptOutcome.CRASHED, "worker_lost"),
        ("living", None, None),
    ]
    assert ledger.reads.provider_calls(job_id) == 5
    assert ledger.reads.unused_calls(job_id, limit=9).total == 2


def test_only_the_named_workers_lose_anything_and_a_second_look_finds_nothing(
    ledger: Ledger, make_job: MakeJob
) -> None:
    job_id = make_job(2)
    claim(ledger, RULES, 1, LOST)
    claim(ledger, RULES, 1, LIVING)

    freed = [ledger.recoveries.free(names, actor="bob") for names in (set(), {"nobody"}, {"lost"}, {"lost"})]

    assert freed == [Freed(), Freed(), Freed(waiting=1), Freed()]
    assert _states(ledger, job_id) == [WorkState.WAITING, WorkState.RUNNING]
    assert ledger.recoveries.holders() == {"living"}


def test_a_worker_that_is_lost_again_and_again_uses_up_the_attempts(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = make_job(1)
    freed = []
    for _ in range(3):
        claim(ledger, RULES, 1, LOST)
        freed.append(ledger.recoveries.free({"lost"}, actor="bob"))

    (item,) = ledger.reads.items(job_id, Stage.GENERATE_RULES)
    assert freed == [Freed(waiting=1), Freed(waiting=1), Freed(failed=1)]
    assert (item.state, item.error_code, item.attempts) == (WorkState.FAILED, "attempts_exhausted", 3)
    assert {a.error_code for a in _attempts(ledger, job_id)} == {"worker_lost"}
    assert claim(ledger, RULES, ALL, BOB) == ()


def test_a_lease_that_has_passed_is_left_to_the_next_claim(
    ledger: Ledger, clock: ManualClock, make_job: MakeJob
) -> None:
    job_id = make_job(1)
    claim(ledger, RULES, 1, LOST)
    clock.now_ms += LOST.lease_ms

    freed = ledger.recoveries.free({"lost"}, actor="bob")
    claim(ledger, RULES, 1, BOB)

    assert freed == Freed()
    assert _attempts(ledger, job_id)[0].error_code == "lease_expired"


def test_a_completion_of_a_worker_that_was_taken_for_lost_is_stale(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = make_job(1)
    (old,) = claim(ledger, RULES, 1, LOST)
    ledger.recoveries.free({"lost"}, actor="bob")

    early = complete(ledger, Offer(claim=old, output='{"old":1}'), claimant=LOST)
    (new,) = claim(ledger, RULES, 1, BOB)
    landed = complete(ledger, Offer(claim=new, output='{"new":1}'), claimant=BOB)

    assert (early[old.token], landed[new.token]) == (Landing.STALE, Landing.ACCEPTED)
    assert [a.outcome for a in _attempts(ledger, job_id)] == [AttemptOutcome.STALE, AttemptOutcome.ACCEPTED]


def test_a_completion_that_landed_between_the_look_and_the_freeing_stays(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = make_job(1)
    (held,) = claim(ledger, RULES, 1, LOST)
    seen = ledger.recoveries.holders()
    complete(ledger, Offer(claim=held, output="{}"), claimant=LOST)

    freed = ledger.recoveries.free(seen, actor="bob")

    assert freed == Freed()
    assert _states(ledger, job_id) == [WorkState.SUCCEEDED]


def test_a_restarted_worker_of_the_same_name_takes_nothing_for_its_own(
    ledger: Ledger, clock: ManualClock, make_job: MakeJob
) -> None:
    job_id = make_job(2)
    claim(ledger, RULES, ALL, LOST)

    before = claim(ledger, RULES, ALL, LOST)
    clock.now_ms += LOST.lease_ms
    after = claim(ledger, RULES, ALL, LOST)

    assert before == ()
    assert [c.attempt for c in after] == [2, 2]
    assert [(a.attempt, a.outcome) for a in _attempts(ledger, job_id)] == [
        (1, AttemptOutcome.CRASHED),
        (1, AttemptOutcome.CRASHED),
        (2, None),
        (2, None),
    ]


@pytest.mark.parametrize("stage", [Stage.PARSE, Stage.RETRIEVE])
def test_the_item_of_a_whole_document_is_freed_too(ledger: Ledger, stage: Stage) -> None:
    job_id = ledger.submissions.submit(submission("other"), actor="test").job_id
    if stage is Stage.RETRIEVE:
        (parse,) = claim(ledger, stage_scope(Stage.PARSE), 1, BOB)
        complete(ledger, Offer(claim=parse, output="{}", parsed=parsed_spec(1)), claimant=BOB)
    claim(ledger, stage_scope(stage), 1, LOST)

    freed = ledger.recoveries.free({"lost"}, actor="bob")
    (again,) = claim(ledger, stage_scope(stage), 1, BOB)

    assert freed == Freed(waiting=1)
    assert (again.key.job_id, again.attempt) == (job_id, 2)
    assert ledger.reads.provider_calls(job_id) == 0


def test_each_freeing_is_logged_with_who_did_it(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = make_job(1)
    claim(ledger, RULES, 1, LOST)
    before = ledger.reads.revision(job_id)

    ledger.recoveries.free({"lost"}, actor="bob")

    assert ledger.reads.revision(job_id) == before + 1
