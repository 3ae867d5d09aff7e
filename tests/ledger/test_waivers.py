"""Waivers: a person's word that a clause needs no rule, kept for ever, and what it lets go on."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest
import sqlalchemy as sa

from rulegen_dagster.domain import failpoints
from rulegen_dagster.domain.errors import InputError, LedgerError, StateError
from rulegen_dagster.domain.quota_scope import QuotaScope
from rulegen_dagster.domain.retry import RetryDecision
from rulegen_dagster.domain.states import AttemptOutcome, JobState, Stage, WorkState
from rulegen_dagster.domain.work import Claim, FailedAttempt, Landing, Offer
from rulegen_dagster.ledger.audit import audit_job
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.ledger.schema import attempt as attempt_table
from rulegen_dagster.ledger.schema import outbox, waiver
from rulegen_dagster.ledger.store import Ledger, open_ledger
from rulegen_dagster.ledger.waivers import Waived
from tests.conftest import POLICY
from tests.ledger.conftest import ALICE, ALL, BOB, MakeJob, claim, complete, stage_scope

RULES, TESTS, VALIDATE = Stage.GENERATE_RULES, Stage.GENERATE_TESTS, Stage.VALIDATE
GIVE_UP = RetryDecision(state=WorkState.FAILED, delay_ms=0, consumes_budget=True)
ACTION_SET = json.dumps({"actions": [{"kind": "publish", "target": "t/r"}]})
SOON_S = 10


def waive(ledger: Ledger, job_id: int, clause: int, *, actor: str = "ann", reason: str = "guidance") -> Waived:
    return ledger.waivers.waive(job_id, clause, actor=actor, reason=reason)


def offer(held: Claim, output: str = '{"by":"alice"}') -> Offer:
    return Offer(claim=held, output=output, provider="p", provider_called=True)


def fail(ledger: Ledger, held: Claim, decision: RetryDecision = GIVE_UP) -> None:
    failed = FailedAttempt(claim=held, outcome=AttemptOutcome.PERMANENT, error_code="e", message="m")
    with ledger.turn(ALICE) as turn:
        turn.settle([(failed, decision)])


def states(ledger: Ledger, job_id: int, stage: Stage) -> list[WorkState]:
    return [item.state for item in ledger.reads.items(job_id, stage)]


def blocked(ledger: Ledger, make_job: MakeJob, *, key: str = "policy", items: int = 2) -> int:
    """A job whose first rule failed for good, and whose others are accepted."""
    job_id = make_job(items, key=key)
    first, *others = claim(ledger, stage_scope(RULES, job_id), ALL)
    fail(ledger, first)
    complete(ledger, *map(offer, others))
    return job_id


def validated(ledger: Ledger, make_job: MakeJob, *, items: int = 2, key: str = "policy") -> int:
    """A job whose validation found that something is missing."""
    job_id = make_job(items, key=key)
    for stage in (RULES, TESTS):
        complete(ledger, *map(offer, claim(ledger, stage_scope(stage, job_id), ALL)))
    (held,) = claim(ledger, stage_scope(VALIDATE, job_id))
    complete(ledger, Offer(claim=held, output='{"report":1}', passed=False))
    return job_id


@pytest.fixture
def other(ledger_url: str, clock: ManualClock) -> Iterator[Ledger]:
    """The same ledger as another process sees it: with connections of its own."""
    opened = open_ledger(ledger_url, POLICY, clock)
    yield opened
    opened.close()


def test_a_waiver_is_kept_with_the_name_the_reason_and_the_time(
    ledger: Ledger, make_job: MakeJob, clock: ManualClock
) -> None:
    job_id = make_job(2)
    clock.now_ms += 5

    waived = waive(ledger, job_id, 1, reason="not a rule")

    (given,) = ledger.waivers.of(job_id)
    assert waived.is_new
    assert (given.clause_ordinal, given.actor, given.reason, given.created_at) == (1, "ann", "not a rule", clock.now_ms)


def test_the_first_waiver_of_a_clause_stays(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = make_job(2)
    waive(ledger, job_id, 0)

    again = waive(ledger, job_id, 0, actor="bob", reason="another")

    assert again == Waived(is_new=False, ended=(), validates_again=False)
    assert [(given.actor, given.reason) for given in ledger.waivers.of(job_id)] == [("ann", "guidance")]


@pytest.mark.parametrize("change", ["UPDATE waiver SET reason = 'x'", "DELETE FROM waiver"])
def test_the_database_keeps_waivers_as_they_were_given(ledger: Ledger, make_job: MakeJob, change: str) -> None:
    job_id = make_job(1)
    waive(ledger, job_id, 0)

    with pytest.raises(LedgerError, match="never changed or deleted"), ledger.database.write() as connection:
        connection.execute(sa.text(change))

    assert len(ledger.waivers.of(job_id)) == 1


@pytest.mark.parametrize("blank", ["actor", "reason"])
def test_the_database_knows_no_waiver_without_a_name_or_a_reason(ledger: Ledger, make_job: MakeJob, blank: str) -> None:
    row = {"job_id": make_job(1), "clause_ordinal": 0, "actor": "ann", "reason": "r", "created_at": 1, blank: ""}

    with pytest.raises(LedgerError, match="somebody_says_why"), ledger.database.write() as connection:
        connection.execute(sa.insert(waiver).values(**row))


def test_a_failed_rule_ends_with_the_persons_word_and_the_job_goes_on(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = blocked(ledger, make_job)

    waived = waive(ledger, job_id, 0)

    first, second = ledger.reads.items(job_id, RULES)
    assert waived == Waived(is_new=True, ended=(RULES,), validates_again=False)
    assert (first.state, second.output) == (WorkState.SUCCEEDED, '{"by":"alice"}')
    assert json.loads(str(first.output))["no_rule"] == {"reason": "waived", "detail": "guidance"}
    assert first.error_code is None
    assert ledger.reads.job_by_id(job_id).state is JobState.GENERATING_TESTS
    assert states(ledger, job_id, TESTS) == [WorkState.PENDING] * 2


def test_a_failed_test_ends_too_and_the_job_is_validated(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = make_job(2)
    complete(ledger, *map(offer, claim(ledger, stage_scope(RULES, job_id), ALL)))
    first, second = claim(ledger, stage_scope(TESTS, job_id), ALL)
    fail(ledger, second)
    complete(ledger, offer(first))

    waived = waive(ledger, job_id, 1)

    assert waived.ended == (TESTS,)
    assert json.loads(str(ledger.reads.items(job_id, TESTS)[1].output))["no_tests"]["reason"] == "waived"
    assert ledger.reads.job_by_id(job_id).state is JobState.VALIDATING
    assert states(ledger, job_id, VALIDATE) == [WorkState.PENDING]


@pytest.mark.parametrize("delay_ms", [None, 60_000], ids=["pending", "waiting"])
def test_what_nobody_holds_is_not_called_for_any_more(ledger: Ledger, make_job: MakeJob, delay_ms: int | None) -> None:
    job_id = make_job(2)
    if delay_ms is not None:
        (held,) = claim(ledger, stage_scope(RULES, job_id))
        fail(ledger, held, RetryDecision(state=WorkState.WAITING, delay_ms=delay_ms, consumes_budget=True))

    waived = waive(ledger, job_id, 0)

    assert waived.ended == (RULES,)
    assert [c.clause_ordinal for c in claim(ledger, stage_scope(RULES, job_id), ALL)] == [1]


def test_the_ended_item_has_an_accepted_attempt_that_called_nobody(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = blocked(ledger, make_job)

    waive(ledger, job_id, 0)

    item = ledger.reads.items(job_id, RULES)[0]
    failed, accepted = ledger.reads.attempts(job_id, item.key)
    with ledger.database.read() as connection:
        boxed = connection.execute(
            sa.select(sa.func.count())
            .select_from(outbox)
            .where(outbox.c.job_id == job_id, outbox.c.stage == RULES.value, outbox.c.item_key == item.key.item_key)
        ).scalar_one()
    assert (failed.outcome, failed.attempt) == (AttemptOutcome.PERMANENT, 1)
    assert (accepted.outcome, accepted.attempt, item.attempts) == (AttemptOutcome.ACCEPTED, 2, 2)
    assert (accepted.provider_called, accepted.cost_micros, accepted.worker) == (False, 0, "ann")
    assert accepted.operation_key == failed.operation_key
    assert boxed == 1


def test_every_step_of_the_ended_item_is_in_the_log(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = blocked(ledger, make_job)

    waive(ledger, job_id, 0)

    rows = [row for row in audit_job(ledger.database, job_id)["transition"] if row["actor"] == "ann"]
    moves = [(row["stage"], row["from_state"], row["to_state"], row["cause"]) for row in rows]
    assert moves == [
        ("generate_rules", "failed", "pending", "waived: guidance"),
        ("generate_rules", "pending", "running", "waived: guidance"),
        ("generate_rules", "running", "succeeded", "waived: guidance"),
        (None, "generating_rules", "generating_tests", "generate_rules_complete"),
    ]


def test_what_a_worker_holds_is_left_to_it(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = make_job(1)
    (held,) = claim(ledger, stage_scope(RULES, job_id))

    waived = waive(ledger, job_id, 0)
    landings = complete(ledger, offer(held))

    assert waived == Waived(is_new=True, ended=(), validates_again=False)
    assert landings == {held.token: Landing.ACCEPTED}


def test_a_second_waiver_ends_what_has_failed_since_under_the_first_ones_name(
    ledger: Ledger, make_job: MakeJob
) -> None:
    job_id = make_job(1)
    (held,) = claim(ledger, stage_scope(RULES, job_id))
    waive(ledger, job_id, 0)
    fail(ledger, held)

    again = waive(ledger, job_id, 0, actor="bob", reason="another")

    item = ledger.reads.items(job_id, RULES)[0]
    assert again == Waived(is_new=False, ended=(RULES,), validates_again=False)
    assert json.loads(str(item.output))["no_rule"]["detail"] == "guidance"
    assert ledger.reads.attempts(job_id, item.key)[-1].worker == "ann"


def test_a_job_below_its_policy_is_validated_again_as_the_next_version(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = validated(ledger, make_job)

    waived = waive(ledger, job_id, 1)

    (item,) = ledger.reads.items(job_id, VALIDATE)
    kept = [row for row in audit_job(ledger.database, job_id)["work_item"] if row["stage"] == "validate"]
    assert waived == Waived(is_new=True, ended=(), validates_again=True)
    assert (item.key.stage_version, item.state, item.output) == (2, WorkState.PENDING, None)
    assert [(row["stage_version"], row["state"], row["output"]) for row in kept] == [
        (1, "succeeded", '{"report":1}'),
        (2, "pending", None),
    ]
    assert ledger.reads.job_by_id(job_id).validation_passed is None
    assert sum(ledger.reads.stage_counts(job_id)[VALIDATE].values()) == 1
    (stage,) = ledger.reads.open_stages()
    assert (stage.stage, [opened.last_run_id for opened in stage.items]) == (VALIDATE, [None])


def test_the_second_validation_that_passes_fixes_the_action_set(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = validated(ledger, make_job)
    waive(ledger, job_id, 1)

    (held,) = claim(ledger, stage_scope(VALIDATE, job_id))
    landings = complete(ledger, Offer(claim=held, output='{"report":2}', passed=True, action_set=ACTION_SET))

    job = ledger.reads.job_by_id(job_id)
    (item,) = ledger.reads.items(job_id, VALIDATE)
    attempts = ledger.reads.attempts(job_id, item.key)
    assert landings == {held.token: Landing.ACCEPTED}
    assert held.operation_key.endswith("/validate/document/v2")
    assert (job.state, job.validation_passed) == (JobState.AWAITING_CONFIRMATION, True)
    assert (item.output, [a.attempt for a in attempts]) == ('{"report":2}', [1])
    assert ledger.actions.confirm(job_id, str(job.action_set_digest), actor="ann")


def test_waivers_in_a_row_share_one_further_validation_until_it_begins(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = validated(ledger, make_job, items=3)
    waive(ledger, job_id, 0)

    second = waive(ledger, job_id, 1)
    (held,) = claim(ledger, stage_scope(VALIDATE, job_id))
    with pytest.raises(StateError, match="is being validated"):
        waive(ledger, job_id, 2)
    complete(ledger, Offer(claim=held, output='{"report":2}', passed=False))
    third = waive(ledger, job_id, 2)

    assert (second.is_new, second.validates_again) == (True, False)
    assert third.validates_again
    assert [item.key.stage_version for item in ledger.reads.items(job_id, VALIDATE)] == [3]
    assert len(ledger.waivers.of(job_id)) == 3


def test_a_refused_waiver_leaves_nothing(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = validated(ledger, make_job)
    waive(ledger, job_id, 0)
    claim(ledger, stage_scope(VALIDATE, job_id))

    with pytest.raises(StateError):
        waive(ledger, job_id, 1)

    assert [given.clause_ordinal for given in ledger.waivers.of(job_id)] == [0]


def test_a_clause_that_the_job_does_not_have_is_refused(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = make_job(1)

    with pytest.raises(InputError) as caught:
        waive(ledger, job_id, 7)

    assert caught.value.code == "clause_not_found"


def _confirmed(ledger: Ledger, make_job: MakeJob) -> int:
    job_id = make_job(1)
    for stage in (RULES, TESTS):
        complete(ledger, *map(offer, claim(ledger, stage_scope(stage, job_id), ALL)))
    (held,) = claim(ledger, stage_scope(VALIDATE, job_id))
    complete(ledger, Offer(claim=held, output="{}", passed=True, action_set=ACTION_SET))
    return job_id


def _cancelled(ledger: Ledger, make_job: MakeJob) -> int:
    job_id = blocked(ledger, make_job)
    ledger.cancellations.cancel(job_id, actor="ann", reason="r")
    return job_id


@pytest.mark.parametrize("make", [_confirmed, _cancelled])
def test_a_job_that_waits_for_a_confirmation_or_has_ended_takes_no_waiver(
    ledger: Ledger, make_job: MakeJob, make: Callable[[Ledger, MakeJob], int]
) -> None:
    job_id = make(ledger, make_job)

    with pytest.raises(StateError, match="can be waived while"):
        waive(ledger, job_id, 0)

    assert ledger.waivers.of(job_id) == ()


def test_a_successor_keeps_the_waivers_and_what_they_ended(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = blocked(ledger, make_job)
    waive(ledger, job_id, 0)
    ledger.cancellations.cancel(job_id, actor="ann", reason="r")

    new_id = ledger.forks.fork(job_id, "next", deadline_ms=60_000, actor="bob").job_id

    assert ledger.waivers.of(new_id) == ledger.waivers.of(job_id)
    assert ledger.reads.items(new_id, RULES)[0].output == ledger.reads.items(job_id, RULES)[0].output
    assert ledger.reads.job_by_id(new_id).state is JobState.GENERATING_TESTS


def test_a_successor_of_a_job_validated_twice_begins_with_the_first_version(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = validated(ledger, make_job)
    waive(ledger, job_id, 0)
    ledger.cancellations.cancel(job_id, actor="ann", reason="r")

    new_id = ledger.forks.fork(job_id, "next", deadline_ms=60_000, actor="bob").job_id

    assert [(i.key.stage_version, i.state) for i in ledger.reads.items(new_id, VALIDATE)] == [(1, WorkState.PENDING)]


def test_what_was_in_flight_of_a_waived_clause_ends_in_the_successor_as_the_waiver_would_have_ended_it(
    ledger: Ledger, make_job: MakeJob
) -> None:
    job_id = make_job(2)
    claim(ledger, stage_scope(RULES, job_id))
    waive(ledger, job_id, 0)
    ledger.cancellations.cancel(job_id, actor="ann", reason="r")

    new_id = ledger.forks.fork(job_id, "next", deadline_ms=60_000, actor="bob").job_id

    first, second = ledger.reads.items(new_id, RULES)
    (attempt,) = ledger.reads.attempts(new_id, first.key)
    moves = [
        (row["from_state"], row["to_state"], row["cause"], row["actor"])
        for row in audit_job(ledger.database, new_id)["transition"]
        if row["subject_key"] == first.key.item_key
    ]
    assert (first.state, second.state) == (WorkState.SUCCEEDED, WorkState.PENDING)
    assert json.loads(str(first.output))["no_rule"] == {"reason": "waived", "detail": "guidance"}
    assert (attempt.outcome, attempt.worker, attempt.provider_called) == (AttemptOutcome.ACCEPTED, "ann", False)
    assert attempt.inherited_from is None
    assert moves == [
        ("pending", "running", "waived: guidance", "ann"),
        ("running", "succeeded", "waived: guidance", "ann"),
    ]


def test_the_tests_of_a_waived_clause_end_in_the_successor_too_and_open_what_is_next(
    ledger: Ledger, make_job: MakeJob
) -> None:
    job_id = make_job(2)
    complete(ledger, *map(offer, claim(ledger, stage_scope(RULES, job_id), ALL)))
    _, second = claim(ledger, stage_scope(TESTS, job_id), ALL)
    waive(ledger, job_id, 0)
    complete(ledger, offer(second))
    ledger.cancellations.cancel(job_id, actor="ann", reason="r")

    new_id = ledger.forks.fork(job_id, "next", deadline_ms=60_000, actor="bob").job_id

    assert states(ledger, new_id, TESTS) == [WorkState.SUCCEEDED] * 2
    assert json.loads(str(ledger.reads.items(new_id, TESTS)[0].output))["no_tests"]["reason"] == "waived"
    assert ledger.reads.job_by_id(new_id).state is JobState.VALIDATING
    _sound(ledger, new_id)


def _lease_expired(ledger: Ledger, held: Claim, clock: ManualClock) -> None:
    clock.now_ms += held.lease_until


def _worker_lost(ledger: Ledger, held: Claim, clock: ManualClock) -> None:
    assert held.token
    clock.now_ms += 1
    ledger.recoveries.free([ALICE.worker], actor="bob")


def _retry_due(ledger: Ledger, held: Claim, clock: ManualClock) -> None:
    fail(ledger, held, RetryDecision(state=WorkState.WAITING, delay_ms=5, consumes_budget=True))
    clock.now_ms += 5


FREED = pytest.mark.parametrize("free", [_lease_expired, _worker_lost, _retry_due])


@FREED
def test_a_claim_of_what_is_free_again_says_that_its_clause_was_waived(
    ledger: Ledger, make_job: MakeJob, clock: ManualClock, free: Callable[[Ledger, Claim, ManualClock], None]
) -> None:
    job_id = make_job(2)
    (held,) = claim(ledger, stage_scope(RULES, job_id))
    waive(ledger, job_id, 0)
    free(ledger, held, clock)

    claims = claim(ledger, stage_scope(RULES, job_id), ALL, claimant=BOB)
    with_others = claim(ledger, stage_scope(RULES), ALL, claimant=BOB)

    assert [(one.clause_ordinal, one.attempt, one.waived) for one in claims] == [(0, 2, "guidance"), (1, 1, None)]
    assert with_others == ()


def test_a_claim_from_several_jobs_knows_the_waivers_of_each(
    ledger: Ledger, make_job: MakeJob, clock: ManualClock
) -> None:
    waived_job, other_job = make_job(1, key="a"), make_job(1, key="b")
    (held,) = claim(ledger, stage_scope(RULES, waived_job))
    waive(ledger, waived_job, 0)
    clock.now_ms += held.lease_until

    claims = claim(ledger, stage_scope(RULES), ALL, claimant=BOB)

    assert {one.key.job_id: one.waived for one in claims} == {waived_job: "guidance", other_job: None}


@pytest.mark.parametrize("free", [_lease_expired, _worker_lost])
def test_a_waived_item_whose_last_attempt_was_lost_can_still_be_ended(
    ledger: Ledger, make_job: MakeJob, clock: ManualClock, free: Callable[[Ledger, Claim, ManualClock], None]
) -> None:
    job_id = make_job(1)
    held = claim(ledger, stage_scope(RULES, job_id))[0]
    for _ in range(held.attempt_limit - 1):
        clock.now_ms += held.lease_until
        (held,) = claim(ledger, stage_scope(RULES, job_id))
    waive(ledger, job_id, 0)
    free(ledger, held, clock)

    (last,) = claim(ledger, stage_scope(RULES, job_id), claimant=BOB)
    complete(ledger, offer(last), claimant=BOB)

    assert (held.attempt, last.attempt, last.waived) == (held.attempt_limit, held.attempt_limit + 1, "guidance")
    assert states(ledger, job_id, RULES) == [WorkState.SUCCEEDED]
    _sound(ledger, job_id)


def test_what_is_waived_needs_no_quota(ledger: Ledger, make_job: MakeJob, clock: ManualClock) -> None:
    job_id = make_job(2)
    (held,) = claim(ledger, stage_scope(RULES, job_id))
    waive(ledger, job_id, 0)
    clock.now_ms += held.lease_until
    ledger.quotas.set(QuotaScope.of_job(ledger.reads.job_by_id(job_id).name), {"concurrency": 0})

    claims = claim(ledger, stage_scope(RULES, job_id), ALL, claimant=BOB)
    landings = complete(ledger, *map(offer, claims), claimant=BOB)

    assert [one.clause_ordinal for one in claims] == [0]
    assert set(landings.values()) == {Landing.ACCEPTED}


def test_a_waiver_is_a_commit_that_a_process_can_die_at(ledger: Ledger, make_job: MakeJob) -> None:
    job_id = blocked(ledger, make_job)
    counts = failpoints.record()
    try:
        waive(ledger, job_id, 0)
    finally:
        failpoints.disarm()

    assert counts == dict.fromkeys(failpoints.WAIVER, 1)


def _sound(ledger: Ledger, job_id: int) -> dict[str, list[dict[str, Any]]]:
    """Check what must hold whoever was first: one accepted attempt for each accepted item, and no count that lies."""
    rows = audit_job(ledger.database, job_id)
    for item in rows["work_item"]:
        same = [a for a in rows["attempt"] if (a["stage"], a["item_key"]) == (item["stage"], item["item_key"])]
        assert len(same) == item["attempts"]
        assert [a["outcome"] for a in same].count("accepted") == int(item["state"] == "succeeded")
    return rows


def _together(*acts: Callable[[], Any]) -> list[Any]:
    """Let every act begin at once; return what each returned or raised."""
    barrier = threading.Barrier(len(acts))

    def begin(act: Callable[[], Any]) -> Any:
        barrier.wait(SOON_S)
        try:
            return act()
        except StateError as error:
            return error

    with ThreadPoolExecutor(len(acts)) as pool:
        return [future.result(SOON_S) for future in [pool.submit(begin, act) for act in acts]]


@pytest.mark.parametrize("round_", range(4))
def test_a_waiver_and_a_cancellation_at_once_leave_one_story(
    ledger: Ledger, other: Ledger, make_job: MakeJob, round_: int
) -> None:
    job_id = blocked(ledger, make_job, key=f"k{round_}")

    waived, _ = _together(
        lambda: waive(ledger, job_id, 0), lambda: other.cancellations.cancel(job_id, actor="bob", reason="r")
    )

    rows = _sound(ledger, job_id)
    assert ledger.reads.job_by_id(job_id).state is JobState.CANCELLED
    assert len(rows["waiver"]) == int(isinstance(waived, Waived))
    first = "succeeded" if isinstance(waived, Waived) else "failed"
    assert next(row["state"] for row in rows["work_item"] if row["item_key"] == "rule-01") == first


@pytest.mark.parametrize("round_", range(4))
def test_a_waiver_and_a_redrive_at_once_end_the_item_once(
    ledger: Ledger, other: Ledger, make_job: MakeJob, round_: int
) -> None:
    job_id = blocked(ledger, make_job, key=f"k{round_}")

    waived, redriven = _together(
        lambda: waive(ledger, job_id, 0), lambda: other.redrives.redrive(job_id, RULES, None, actor="bob", reason="r")
    )

    _sound(ledger, job_id)
    assert isinstance(waived, Waived)
    assert redriven in ((), ("rule-01",))
    assert ledger.reads.job_by_id(job_id).state is JobState.GENERATING_TESTS


@pytest.mark.parametrize("round_", range(4))
def test_a_waiver_of_one_clause_and_the_completion_of_the_last_other_open_the_next_stage_once(
    ledger: Ledger, other: Ledger, make_job: MakeJob, round_: int
) -> None:
    job_id = make_job(2, key=f"k{round_}")
    first, second = claim(ledger, stage_scope(RULES, job_id), ALL)
    fail(ledger, first)

    _, landings = _together(lambda: waive(ledger, job_id, 0), lambda: complete(other, offer(second), claimant=BOB))

    _sound(ledger, job_id)
    assert landings == {second.token: Landing.ACCEPTED}
    assert ledger.reads.job_by_id(job_id).state is JobState.GENERATING_TESTS
    assert states(ledger, job_id, TESTS) == [WorkState.PENDING] * 2


def test_a_waiver_waits_for_the_completion_that_is_underway_and_opens_what_that_could_not(
    ledger: Ledger, other: Ledger, make_job: MakeJob
) -> None:
    job_id = make_job(2)
    first, second = claim(ledger, stage_scope(RULES, job_id), ALL)
    fail(ledger, first)

    with ThreadPoolExecutor(1) as pool:
        with ledger.turn(ALICE) as turn:
            turn.offer(offer(second))
            turn.settle()
            # It has looked for the last missing item, and has not committed: the waiver may not look before that.
            waived = pool.submit(waive, other, job_id, 0)
            done, _ = wait([waived], timeout=0.5)
        waived.result(SOON_S)

    assert not done
    assert ledger.reads.job_by_id(job_id).state is JobState.GENERATING_TESTS


@pytest.mark.parametrize("round_", range(4))
def test_a_waiver_and_a_claim_of_its_item_at_once_leave_it_to_one_of_them(
    ledger: Ledger, other: Ledger, make_job: MakeJob, round_: int
) -> None:
    job_id = make_job(1, key=f"k{round_}")

    waived, claimed = _together(
        lambda: waive(ledger, job_id, 0), lambda: claim(other, stage_scope(RULES, job_id), claimant=BOB)
    )

    _sound(ledger, job_id)
    assert isinstance(waived, Waived)
    assert len(claimed) + len(waived.ended) == 1


@pytest.mark.parametrize("round_", range(4))
def test_a_waiver_and_the_claim_of_the_validation_at_once_never_miss_each_other(
    ledger: Ledger, other: Ledger, make_job: MakeJob, round_: int
) -> None:
    job_id = validated(ledger, make_job, key=f"k{round_}")
    waive(ledger, job_id, 0)

    waived, claimed = _together(
        lambda: waive(ledger, job_id, 1), lambda: claim(other, stage_scope(VALIDATE, job_id), claimant=BOB)
    )

    # Kept before the claim, so that the report knows it, or refused because the item was held by then.
    held = claimed or claim(ledger, stage_scope(VALIDATE, job_id))
    assert isinstance(waived, (Waived, StateError))
    assert len(ledger.waivers.of(job_id)) == 1 + isinstance(waived, Waived)
    assert [c.key.stage_version for c in held] == [2]


@pytest.mark.parametrize("round_", range(4))
def test_two_waivers_at_once_open_one_further_validation(
    ledger: Ledger, other: Ledger, make_job: MakeJob, round_: int
) -> None:
    job_id = validated(ledger, make_job, key=f"k{round_}")

    both = _together(lambda: waive(ledger, job_id, 0), lambda: waive(other, job_id, 1, actor="bob"))

    assert sorted(waived.validates_again for waived in both) == [False, True]
    assert [item.key.stage_version for item in ledger.reads.items(job_id, VALIDATE)] == [2]
    with ledger.database.read() as connection:
        open_ = connection.execute(
            sa.select(sa.func.count()).select_from(attempt_table).where(attempt_table.c.outcome.is_(None))
        ).scalar_one()
    assert open_ == 0
