from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import sqlalchemy as sa

from rulegen_dagster.domain import failpoints
from rulegen_dagster.domain.behaviour import FrozenBehaviour, Incompatibility, Part
from rulegen_dagster.domain.errors import LedgerError, StateError, SubmissionConflictError
from rulegen_dagster.domain.quota import UNIT
from rulegen_dagster.domain.quota_scope import QuotaScope
from rulegen_dagster.domain.states import AttemptOutcome, JobState, Stage, WorkState
from rulegen_dagster.domain.work import Offer
from rulegen_dagster.ledger.audit import audit_job
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.ledger.schema import attempt as attempt_table
from rulegen_dagster.ledger.schema import outbox
from rulegen_dagster.ledger.store import Ledger
from rulegen_dagster.ledger.submissions import Accepted
from tests.ledger.conftest import ALL, MakeJob, behaviour, claim, complete, parsed_spec, stage_scope, submission
from tests.ledger.test_cancellations import ACTION_SET, GIVE_UP, cancel, fail, offer, states

RULES, TESTS = Stage.GENERATE_RULES, Stage.GENERATE_TESTS


def fork(ledger: Ledger, job_id: int, key: str = "next") -> Accepted:
    return ledger.forks.fork(job_id, key, deadline_ms=60_000, actor="ann")


def half_done(ledger: Ledger, make_job: MakeJob, key: str = "policy") -> int:
    """Make a cancelled job of four rules: two accepted, one failed, one never begun."""
    job_id = make_job(4, key=key)
    first, second, third = claim(ledger, stage_scope(RULES, job_id), 3)
    complete(ledger, offer(first), offer(second))
    fail(ledger, third, GIVE_UP)
    cancel(ledger, job_id)
    return job_id


def outputs(ledger: Ledger, job_id: int, stage: Stage) -> list[tuple[str, str | None, str | None]]:
    return [(i.key.item_key, i.output, i.output_digest) for i in ledger.reads.items(job_id, stage)]


def test_a_successor_keeps_what_was_accepted_and_begins_the_rest_anew(
    ledger: Ledger, make_job: MakeJob, clock: ManualClock
) -> None:
    old_id = half_done(ledger, make_job)
    before = audit_job(ledger.database, old_id)
    clock.now_ms += 5_000

    forked = fork(ledger, old_id)

    old, new = ledger.reads.job_by_id(old_id), ledger.reads.job_by_id(forked.job_id)
    items = ledger.reads.items(new.job_id, RULES)
    assert (forked.existing, new.state, new.predecessor) == (False, JobState.GENERATING_RULES, old.name)
    assert (new.spec_digest, new.behaviour, new.ruleset) == (old.spec_digest, old.behaviour, old.ruleset)
    assert (new.canonical_digest, new.spec_format) == (old.canonical_digest, old.spec_format)
    assert new.deadline_at == clock.now_ms + 60_000
    assert ledger.reads.clauses(new.job_id) == ledger.reads.clauses(old_id)
    assert states(ledger, new.job_id) == [WorkState.SUCCEEDED] * 2 + [WorkState.PENDING] * 2
    assert outputs(ledger, new.job_id, RULES)[:2] == outputs(ledger, old_id, RULES)[:2]
    assert [(i.attempts, i.attempt_limit, i.error_code) for i in items] == [(1, 3, None)] * 2 + [(0, 3, None)] * 2
    assert [i.partition_key for i in items] == [f"{new.partition_key}-{i.key.item_key}" for i in items]
    # The predecessor is what it was.
    assert audit_job(ledger.database, old_id) == before


def test_an_inherited_output_has_an_attempt_that_called_nobody_and_names_its_source(
    ledger: Ledger, make_job: MakeJob
) -> None:
    old_id = half_done(ledger, make_job)

    new_id = fork(ledger, old_id).job_id

    found = ledger.reads.attempts(new_id)
    with ledger.database.read() as connection:
        mirrored = connection.execute(sa.select(outbox.c.stage, outbox.c.item_key).where(outbox.c.job_id == new_id))
        rows = sorted(map(tuple, mirrored))
    assert {(a.outcome, a.provider_called, a.cost_micros, a.inherited_from) for a in found} == {
        (AttemptOutcome.ACCEPTED, False, 0, old_id)
    }
    assert {a.provider for a in found if a.key.stage is RULES} == {"p"}
    assert ledger.reads.provider_calls(new_id) == 0
    assert rows == sorted((a.key.stage.value, a.key.item_key) for a in found)


def test_every_step_of_an_inherited_item_is_in_the_log(ledger: Ledger, make_job: MakeJob) -> None:
    new_id = fork(ledger, half_done(ledger, make_job)).job_id

    rows = audit_job(ledger.database, new_id)["transition"]

    jobs = [(r["from_state"], r["to_state"], r["cause"]) for r in rows if r["subject"] == "job"]
    rule = [(r["from_state"], r["to_state"], r["cause"]) for r in rows if r["subject_key"] == "rule-01"]
    assert jobs == [
        (None, "received", "forked"),
        ("received", "authorized", "tenant_known"),
        ("authorized", "extracting", "parse_opened"),
        ("extracting", "retrieving", "inherited"),
        ("retrieving", "generating_rules", "retrieve_complete"),
    ]
    assert rule == [("pending", "running", "inherited"), ("running", "succeeded", "inherited")]
    assert {r["actor"] for r in rows} == {"ann"}


def test_the_rest_is_done_like_any_other_work_and_opens_the_next_stage(ledger: Ledger, make_job: MakeJob) -> None:
    new_id = fork(ledger, half_done(ledger, make_job)).job_id

    claims = claim(ledger, stage_scope(RULES, new_id), ALL)
    complete(ledger, *map(offer, claims))

    assert [c.key.item_key for c in claims] == ["rule-03", "rule-04"]
    assert ledger.reads.job_by_id(new_id).state is JobState.GENERATING_TESTS
    assert states(ledger, new_id, TESTS) == [WorkState.PENDING] * 4


def test_tests_are_inherited_too_and_validation_is_made_again(ledger: Ledger, make_job: MakeJob) -> None:
    partly, wholly = make_job(2, key="a"), make_job(2, key="b")
    for job_id, count in ((partly, 1), (wholly, 2)):
        complete(ledger, *map(offer, claim(ledger, stage_scope(RULES, job_id), ALL)))
        complete(ledger, *map(offer, claim(ledger, stage_scope(TESTS, job_id), count)))
    (validate,) = claim(ledger, stage_scope(Stage.VALIDATE, wholly))
    complete(ledger, Offer(claim=validate, output="{}", passed=True, action_set=ACTION_SET))
    for job_id in (partly, wholly):
        cancel(ledger, job_id)

    first, second = fork(ledger, partly, "a2").job_id, fork(ledger, wholly, "b2").job_id

    assert states(ledger, first, TESTS) == [WorkState.SUCCEEDED, WorkState.PENDING]
    assert ledger.reads.job_by_id(first).state is JobState.GENERATING_TESTS
    assert ledger.reads.job_by_id(second).state is JobState.VALIDATING
    assert states(ledger, second, Stage.VALIDATE) == [WorkState.PENDING]
    assert ledger.reads.actions(second) == []


def test_a_job_that_was_never_parsed_has_a_successor_that_is_parsed(ledger: Ledger) -> None:
    old_id = ledger.submissions.submit(submission(), actor="test").job_id
    cancel(ledger, old_id)

    new_id = fork(ledger, old_id).job_id
    (parse,) = claim(ledger, stage_scope(Stage.PARSE, new_id))
    complete(ledger, Offer(claim=parse, output="{}", parsed=parsed_spec(2)))

    assert ledger.reads.job_by_id(new_id).state is JobState.RETRIEVING
    assert ledger.reads.clauses(old_id) == []


def test_a_policy_without_a_rule_has_a_successor_that_is_validated_again(ledger: Ledger, make_job: MakeJob) -> None:
    old_id = make_job(0)
    cancel(ledger, old_id)

    new_id = fork(ledger, old_id).job_id

    assert ledger.reads.job_by_id(new_id).state is JobState.VALIDATING


def test_a_successor_has_the_limits_of_its_predecessor_and_has_used_nothing_of_them(
    ledger: Ledger, make_job: MakeJob
) -> None:
    old_id = half_done(ledger, make_job)
    ledger.quotas.set(
        QuotaScope.of_job(ledger.reads.job_by_id(old_id).name),
        {"requests_per_minute": 60, "tokens_per_minute": 9_000, "concurrency": 2, "budget_micros": 1_500_000},
    )

    new = ledger.reads.job_by_id(fork(ledger, old_id).job_id)

    old_quota, new_quota = sorted(ledger.quotas.list(), key=lambda state: state.scope == f"job:{new.name}")
    assert new_quota.scope == f"job:{new.name}"
    assert new_quota.bucket.limits == old_quota.bucket.limits
    assert (new_quota.bucket.charged_micros, new_quota.bucket.token_level) == (0, 9_000 * UNIT)


def test_the_successor_of_a_job_without_limits_has_none(ledger: Ledger, make_job: MakeJob) -> None:
    fork(ledger, half_done(ledger, make_job))

    assert ledger.quotas.list() == ()


def migrate(ledger: Ledger, job_id: int, release: str) -> None:
    ledger.decisions.ask(job_id, Incompatibility(part=Part.OUTPUT_SCHEMA, was="s", now="t"), actor="release 2")
    frozen = FrozenBehaviour(behaviour=replace(behaviour(), application_release=release))
    ledger.decisions.migrate(job_id, frozen, actor="boss", reason=f"to {release}")


def test_a_successor_says_how_its_predecessor_came_to_the_behaviour_that_both_have(
    ledger: Ledger, make_job: MakeJob, clock: ManualClock
) -> None:
    old_id = make_job(2)
    complete(ledger, offer(claim(ledger, stage_scope(RULES, old_id))[0]))
    for release in ("1", "2"):
        clock.now_ms += 5_000
        migrate(ledger, old_id, release)
    cancel(ledger, old_id)
    clock.now_ms += 5_000

    new_id = fork(ledger, old_id).job_id

    changes = ledger.behaviours.changes(new_id)
    assert changes == ledger.behaviours.changes(old_id)
    assert [(change.actor, change.reason) for change in changes] == [("boss", "to 1"), ("boss", "to 2")]
    assert changes[-1].to_digest == ledger.reads.job_by_id(new_id).behaviour_digest


def test_a_successor_of_a_successor_says_every_change_and_a_further_one_of_its_own(
    ledger: Ledger, make_job: MakeJob
) -> None:
    first = make_job(2)
    migrate(ledger, first, "1")
    cancel(ledger, first)
    second = fork(ledger, first, "second").job_id
    migrate(ledger, second, "2")
    cancel(ledger, second)

    third = fork(ledger, second, "third").job_id
    migrate(ledger, third, "3")

    assert [len(ledger.behaviours.changes(job_id)) for job_id in (first, second, third)] == [1, 2, 3]
    assert [change.reason for change in ledger.behaviours.changes(third)] == ["to 1", "to 2", "to 3"]


def test_the_same_fork_again_is_the_same_successor_also_at_once(ledger: Ledger, make_job: MakeJob) -> None:
    old_id = half_done(ledger, make_job)

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: fork(ledger, old_id), range(8)))

    assert len({answer.job_id for answer in answers}) == 1
    assert sum(not answer.existing for answer in answers) == 1


def test_a_successor_may_have_one_of_its_own(ledger: Ledger, make_job: MakeJob) -> None:
    first = half_done(ledger, make_job)
    second = fork(ledger, first, "second").job_id
    cancel(ledger, second)

    third = fork(ledger, second, "third").job_id

    assert outputs(ledger, third, RULES)[:2] == outputs(ledger, first, RULES)[:2]
    assert {a.inherited_from for a in ledger.reads.attempts(third)} == {second}


def test_a_key_that_belongs_to_something_else_is_refused(ledger: Ledger, make_job: MakeJob) -> None:
    old_id, other = half_done(ledger, make_job), half_done(ledger, make_job, "other")
    fork(ledger, other, "taken")

    for key in ("policy", "other", "taken"):
        with pytest.raises(SubmissionConflictError):
            fork(ledger, old_id, key)

    assert len(ledger.reads.jobs()) == 3


def _running(ledger: Ledger, make_job: MakeJob) -> int:
    return make_job(1)


def _blocked(ledger: Ledger, make_job: MakeJob) -> int:
    job_id = make_job(1)
    fail(ledger, claim(ledger, stage_scope(RULES, job_id))[0], GIVE_UP)
    return job_id


@pytest.mark.parametrize("make", [_running, _blocked])
def test_a_job_that_has_not_ended_has_no_successor(
    ledger: Ledger, make_job: MakeJob, make: Callable[[Ledger, MakeJob], int]
) -> None:
    job_id = make(ledger, make_job)

    with pytest.raises(StateError, match="only a job that ended"):
        fork(ledger, job_id)

    assert len(ledger.reads.jobs()) == 1


def test_the_database_knows_no_inherited_attempt_that_called_or_failed(ledger: Ledger, make_job: MakeJob) -> None:
    old_id = half_done(ledger, make_job)
    new_id = fork(ledger, old_id).job_id
    claim(ledger, stage_scope(RULES, new_id))
    of_new = attempt_table.c.job_id == new_id

    for change in ({"provider_called": True}, {"inherited_from": old_id, "provider_called": False}):
        with pytest.raises(LedgerError, match="inherited"), ledger.database.write() as connection:
            connection.execute(sa.update(attempt_table).where(of_new).values(**change))


def test_a_fork_is_a_commit_that_a_process_can_die_at(ledger: Ledger, make_job: MakeJob) -> None:
    old_id = half_done(ledger, make_job)
    counts = failpoints.record()
    try:
        fork(ledger, old_id)
    finally:
        failpoints.disarm()

    assert counts == dict.fromkeys(failpoints.FORK, 1)
