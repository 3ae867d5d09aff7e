"""Decisions about jobs that a release cannot go on with: asked for once, carried out once, nothing lost meanwhile."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from rulegen_dagster.domain.behaviour import (
    Choice,
    FrozenBehaviour,
    Incompatibility,
    Pack,
    PackKind,
    Part,
    prompt_label,
)
from rulegen_dagster.domain.errors import LedgerError, StateError
from rulegen_dagster.domain.prompt import Prompt
from rulegen_dagster.domain.states import ActionState, AttemptOutcome, JobState, Stage, WorkState
from rulegen_dagster.domain.work import Claim, Landing, Offer, Usage
from rulegen_dagster.ledger.behaviour_schema import needed_decision, pack, prompt
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.ledger.decisions import Decisions
from rulegen_dagster.ledger.needed_decisions import decisions_of_job, reported_models, retained_jobs
from rulegen_dagster.ledger.schema import behaviour as behaviour_table
from rulegen_dagster.ledger.schema import job as job_table
from rulegen_dagster.ledger.store import Ledger
from tests.ledger.conftest import (
    ALL,
    BOB,
    MakeJob,
    behaviour,
    claim,
    complete,
    parsed_spec,
    stage_scope,
    submission,
    tokens,
)

SCHEMA = Incompatibility(part=Part.OUTPUT_SCHEMA, was="s", now="t")
DRIFT = Incompatibility(part=Part.REPORTED_MODEL, was="m-1", now="m-2")
ON_SQLITE = pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
"""For what does not depend on the database."""

ACTION_SET = json.dumps({"actions": [{"kind": "publish", "target": "default/policy"}]})
RULES = Prompt(task="rules", version="1", text="state the rules")


@pytest.fixture
def decisions(ledger: Ledger) -> Decisions:
    return ledger.decisions


def migrated(**changed: Any) -> FrozenBehaviour:
    """Another behaviour than the jobs of these tests have, with a prompt of its own."""
    other = replace(behaviour(), output_schema="t", prompt_versions={"rules": prompt_label(RULES)}, **changed)
    return FrozenBehaviour(behaviour=other, prompts=(RULES,))


def state(ledger: Ledger, job_id: int) -> JobState:
    return ledger.reads.job_by_id(job_id).state


def job_log(ledger: Ledger, job_id: int) -> list[tuple[str | None, str, str, str]]:
    query = sa.text(
        "SELECT from_state, to_state, cause, actor FROM transition WHERE job_id = :job AND subject = 'job'"
        " ORDER BY transition_id"
    )
    with ledger.database.read() as connection:
        return [tuple(row) for row in connection.execute(query, {"job": job_id})]


def offer(taken: Claim, **values: Any) -> Offer:
    return Offer(claim=taken, output=json.dumps({"item": taken.key.item_key}), **values)


def answered(taken: Claim, model: str) -> Offer:
    return offer(taken, provider="p", provider_called=True, usage=Usage(model_id=model))


def to_validation(ledger: Ledger, job_id: int) -> Claim:
    """Accept every rule and test, and claim the validation."""
    for stage in (Stage.GENERATE_RULES, Stage.GENERATE_TESTS):
        complete(ledger, *(offer(one) for one in claim(ledger, stage_scope(stage, job_id), ALL)))
    (validation,) = claim(ledger, stage_scope(Stage.VALIDATE, job_id))
    return validation


def test_nothing_is_claimed_of_a_job_that_needs_a_decision(
    ledger: Ledger, decisions: Decisions, make_job: MakeJob
) -> None:
    job_id = make_job()

    asked = decisions.ask(job_id, SCHEMA, actor="release 2")
    claims = claim(ledger, stage_scope(Stage.GENERATE_RULES), ALL)

    (needed,) = decisions_of_job(ledger.database, job_id)
    assert asked.is_held
    assert claims == ()
    assert state(ledger, job_id) is JobState.NEEDS_DECISION
    assert (needed.incompatibility, needed.from_state, needed.decision) == (SCHEMA, JobState.GENERATING_RULES, None)
    assert all(item.attempts == 0 for item in ledger.reads.items(job_id, Stage.GENERATE_RULES))
    assert ledger.reads.open_stages() == []


@ON_SQLITE
def test_a_decision_is_asked_for_once_however_many_processes_find_the_reason(
    ledger: Ledger, decisions: Decisions, make_job: MakeJob
) -> None:
    job_id = make_job()

    first = decisions.ask(job_id, SCHEMA, actor="one")
    second = decisions.ask(job_id, replace(SCHEMA, now="u"), actor="other")

    assert (first.is_held, second.is_held) == (True, True)
    assert [needed.asked_by for needed in decisions_of_job(ledger.database, job_id)] == ["one"]


def test_a_job_that_somebody_works_on_is_left_to_them_until_their_lease_ends(
    ledger: Ledger, decisions: Decisions, make_job: MakeJob, clock: ManualClock
) -> None:
    job_id = make_job()
    claim(ledger, stage_scope(Stage.GENERATE_RULES), claimant=BOB)

    during = decisions.ask(job_id, SCHEMA, actor="release 2")
    clock.now_ms += BOB.lease_ms
    after = decisions.ask(job_id, SCHEMA, actor="release 2")

    assert (during.is_held, during.lease_until) == (False, 10_000 + BOB.lease_ms)
    assert after.is_held


@ON_SQLITE
def test_a_retained_job_goes_back_to_where_it_stood(ledger: Ledger, decisions: Decisions, make_job: MakeJob) -> None:
    job_id = make_job()
    decisions.ask(job_id, SCHEMA, actor="release 2")

    retained = decisions.retain(job_id, actor="ann", reason="rolled back", resume=True)

    assert (retained.is_new, retained.is_resumed) == (True, True)
    assert state(ledger, job_id) is JobState.GENERATING_RULES
    assert len(claim(ledger, stage_scope(Stage.GENERATE_RULES), ALL)) == 3
    assert job_log(ledger, job_id)[-2:] == [
        (
            "generating_rules",
            "needs_decision",
            "incompatible: it froze the output schema s, and the release that is to go on has t",
            "release 2",
        ),
        ("needs_decision", "generating_rules", "retained: rolled back", "ann"),
    ]


@ON_SQLITE
def test_a_job_is_retained_for_a_release_that_honours_it(
    ledger: Ledger, decisions: Decisions, make_job: MakeJob
) -> None:
    job_id = make_job()
    decisions.ask(job_id, SCHEMA, actor="release 2")

    undecided = decisions.resume(job_id, actor="release 1")
    first = decisions.retain(job_id, actor="ann", reason="finish it", resume=False)
    again = decisions.retain(job_id, actor="bob", reason="me too", resume=False)
    waiting = (state(ledger, job_id), retained_jobs(ledger.database))
    resumed = decisions.resume(job_id, actor="release 1")
    twice = decisions.resume(job_id, actor="release 1")

    assert (undecided, first.is_new, again.is_new) == (False, True, False)
    assert waiting == (JobState.NEEDS_DECISION, (job_id,))
    assert (resumed, twice) == (True, False)
    assert state(ledger, job_id) is JobState.GENERATING_RULES
    assert retained_jobs(ledger.database) == ()


@ON_SQLITE
def test_what_was_retained_once_stays_retained_when_the_other_release_looks_again(
    ledger: Ledger, decisions: Decisions, make_job: MakeJob
) -> None:
    job_id = make_job()
    decisions.ask(job_id, SCHEMA, actor="release 2")
    decisions.retain(job_id, actor="ann", reason="finish it", resume=False)
    decisions.resume(job_id, actor="release 1")

    decisions.ask(job_id, replace(SCHEMA, now="u"), actor="release 3")

    latest = decisions_of_job(ledger.database, job_id)[-1]
    assert (latest.decision, latest.decided_by, latest.settled_at) == (Choice.RETAIN, "ann", None)
    assert retained_jobs(ledger.database) == (job_id,)


@ON_SQLITE
def test_another_reason_needs_another_decision(ledger: Ledger, decisions: Decisions, make_job: MakeJob) -> None:
    job_id = make_job()
    decisions.ask(job_id, DRIFT, actor="w")
    decisions.retain(job_id, actor="ann", reason=None, resume=True)

    decisions.ask(job_id, replace(DRIFT, now="m-3"), actor="w")

    assert decisions_of_job(ledger.database, job_id)[-1].decision is None


def test_a_migrated_job_has_the_new_behaviour_its_texts_and_a_record_of_the_change(
    ledger: Ledger, decisions: Decisions, make_job: MakeJob
) -> None:
    job_id, frozen = make_job(), migrated()
    (taken,) = claim(ledger, stage_scope(Stage.GENERATE_RULES))
    complete(ledger, offer(taken))
    decisions.ask(job_id, SCHEMA, actor="release 2")

    decisions.migrate(job_id, frozen, actor="ann", reason="the new schema is better")

    job = ledger.reads.job_by_id(job_id)
    (change,) = ledger.behaviours.changes(job_id)
    (needed,) = decisions_of_job(ledger.database, job_id)
    assert (job.state, job.behaviour_digest) == (JobState.GENERATING_RULES, frozen.behaviour.digest)
    assert (change.from_digest, change.to_digest) == (behaviour().digest, frozen.behaviour.digest)
    assert (change.actor, change.reason) == ("ann", "the new schema is better")
    assert (needed.decision, needed.settled_at is not None) == (Choice.MIGRATE, True)
    assert ledger.behaviours.prompts(frozen.behaviour.digest) == {"rules": RULES}
    assert job_log(ledger, job_id)[-1][2:] == ("migrated: the new schema is better", "ann")
    assert [item.state for item in ledger.reads.items(job_id, Stage.GENERATE_RULES)] == [
        WorkState.SUCCEEDED,
        WorkState.PENDING,
        WorkState.PENDING,
    ]


@ON_SQLITE
def test_a_migration_is_refused_where_an_accepted_output_could_not_be_read(
    ledger: Ledger, decisions: Decisions, make_job: MakeJob
) -> None:
    job_id = make_job()
    (taken,) = claim(ledger, stage_scope(Stage.GENERATE_RULES))
    complete(ledger, offer(taken))
    decisions.ask(job_id, SCHEMA, actor="release 2")

    with pytest.raises(StateError, match="cannot read what is accepted of generate_rules") as refused:
        decisions.migrate(job_id, migrated(), actor="ann", reason=None, unreadable=(Stage.GENERATE_RULES,))

    assert refused.value.code == "migration_refused"
    assert state(ledger, job_id) is JobState.NEEDS_DECISION
    assert ledger.behaviours.changes(job_id) == ()


def test_nothing_is_migrated_while_a_call_under_the_old_behaviour_is_in_flight(
    ledger: Ledger, decisions: Decisions, make_job: MakeJob, clock: ManualClock
) -> None:
    job_id = make_job()
    claim(ledger, stage_scope(Stage.GENERATE_RULES))
    decisions.ask(job_id, DRIFT, actor="w", whoever_works=True)

    with pytest.raises(StateError) as refused:
        decisions.migrate(job_id, migrated(), actor="ann", reason=None)
    clock.now_ms += 1_000
    decisions.migrate(job_id, migrated(), actor="ann", reason=None)

    assert refused.value.code == "in_flight"
    assert state(ledger, job_id) is JobState.GENERATING_RULES


@ON_SQLITE
def test_a_migration_that_would_change_nothing_is_refused(
    ledger: Ledger, decisions: Decisions, make_job: MakeJob
) -> None:
    job_id = make_job()
    decisions.ask(job_id, DRIFT, actor="w")

    with pytest.raises(StateError) as refused:
        decisions.migrate(job_id, FrozenBehaviour(behaviour=behaviour()), actor="ann", reason=None)

    assert refused.value.code == "nothing_to_migrate"


def test_a_migrated_job_is_validated_anew(ledger: Ledger, decisions: Decisions, make_job: MakeJob) -> None:
    job_id = make_job()
    validation = to_validation(ledger, job_id)
    complete(ledger, offer(validation, passed=True, action_set=ACTION_SET))
    decisions.ask(job_id, DRIFT, actor="w")

    decisions.migrate(job_id, migrated(), actor="ann", reason=None)

    job = ledger.reads.job_by_id(job_id)
    (again,) = claim(ledger, stage_scope(Stage.VALIDATE, job_id))
    assert (job.state, job.action_set_digest, job.validation_passed) == (JobState.VALIDATING, None, None)
    assert again.key.stage_version == 2
    assert [action.state for action in ledger.reads.actions(job_id)] == [ActionState.FAILED]
    complete(ledger, offer(again, passed=True, action_set=ACTION_SET.replace("policy", "other")))
    assert state(ledger, job_id) is JobState.AWAITING_CONFIRMATION


@ON_SQLITE
def test_a_confirmed_publication_is_not_migrated(ledger: Ledger, decisions: Decisions, make_job: MakeJob) -> None:
    job_id = make_job()
    complete(ledger, offer(to_validation(ledger, job_id), passed=True, action_set=ACTION_SET))
    ledger.actions.confirm(job_id, str(ledger.reads.job_by_id(job_id).action_set_digest), actor="ann")
    decisions.ask(job_id, SCHEMA, actor="release 2")

    with pytest.raises(StateError, match="has confirmed its publication"):
        decisions.migrate(job_id, migrated(), actor="ann", reason=None)

    assert [job.job_id for job in ledger.reads.publishable_jobs()] == []
    decisions.retain(job_id, actor="ann", reason=None, resume=True)
    assert [job.job_id for job in ledger.reads.publishable_jobs()] == [job_id]


def test_a_stopped_job_ends_with_its_reason_and_keeps_what_is_accepted(
    ledger: Ledger, decisions: Decisions, make_job: MakeJob
) -> None:
    job_id = make_job()
    (taken,) = claim(ledger, stage_scope(Stage.GENERATE_RULES))
    complete(ledger, offer(taken))
    decisions.ask(job_id, SCHEMA, actor="release 2")

    decisions.stop(job_id, actor="ann", reason="superseded")

    job = ledger.reads.job_by_id(job_id)
    assert (job.state, job.end_reason) == (JobState.CANCELLED, "superseded")
    assert [item.state for item in ledger.reads.items(job_id, Stage.GENERATE_RULES)] == [
        WorkState.SUCCEEDED,
        WorkState.CANCELLED,
        WorkState.CANCELLED,
    ]
    assert job_log(ledger, job_id)[-1] == ("needs_decision", "cancelled", "stopped", "ann")
    fork = ledger.forks.fork(job_id, "next", deadline_ms=1_000_000, actor="ann")
    assert state(ledger, fork.job_id) is JobState.GENERATING_RULES


@ON_SQLITE
def test_nothing_is_decided_about_a_job_that_needs_no_decision(
    ledger: Ledger, decisions: Decisions, make_job: MakeJob
) -> None:
    job_id = make_job()
    ways: tuple[Callable[[], object], ...] = (
        lambda: decisions.retain(job_id, actor="a", reason=None, resume=True),
        lambda: decisions.migrate(job_id, migrated(), actor="a", reason=None),
        lambda: decisions.stop(job_id, actor="a", reason="r"),
        lambda: decisions.require(job_id),
    )

    for way in ways:
        with pytest.raises(StateError) as refused:
            way()
        assert refused.value.code == "nothing_to_decide"
    assert state(ledger, job_id) is JobState.GENERATING_RULES


def test_of_several_decisions_at_once_one_lands(ledger: Ledger, decisions: Decisions, make_job: MakeJob) -> None:
    job_id = make_job()
    decisions.ask(job_id, SCHEMA, actor="release 2")
    barrier, landed, refused = threading.Barrier(4), [], []

    def play(name: str, decide: Callable[[], object]) -> None:
        barrier.wait()
        try:
            decide()
            landed.append(name)
        except StateError as error:
            refused.append(error.code)

    ways: list[tuple[str, Callable[[], object]]] = [
        ("migrate", lambda: decisions.migrate(job_id, migrated(), actor="a", reason=None)),
        ("migrate", lambda: decisions.migrate(job_id, migrated(), actor="b", reason=None)),
        ("stop", lambda: decisions.stop(job_id, actor="c", reason="r")),
        ("stop", lambda: decisions.stop(job_id, actor="d", reason="r")),
    ]
    threads = [threading.Thread(target=play, args=way) for way in ways]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (len(landed), refused) == (1, ["nothing_to_decide"] * 3)
    assert len(decisions_of_job(ledger.database, job_id)) == 1
    assert state(ledger, job_id) is (JobState.CANCELLED if landed == ["stop"] else JobState.GENERATING_RULES)


def test_a_job_that_needs_a_decision_can_be_cancelled_extended_and_expires(
    ledger: Ledger, decisions: Decisions, make_job: MakeJob, clock: ManualClock
) -> None:
    cancelled, expired = make_job(), _with_deadline(ledger)
    for job_id in (cancelled, expired):
        decisions.ask(job_id, SCHEMA, actor="release 2")

    ledger.cancellations.cancel(cancelled, actor="ann", reason="not needed")
    ledger.deadlines.extend(expired, by_ms=1_000, actor="ann", reason="think")
    clock.now_ms += 100_000
    ledger.deadlines.expire(expired, actor="deadlines")

    assert state(ledger, cancelled) is JobState.CANCELLED
    assert state(ledger, expired) is JobState.EXPIRED
    assert retained_jobs(ledger.database) == ()
    with pytest.raises(StateError, match="nothing is to be decided"):
        decisions.retain(cancelled, actor="ann", reason=None, resume=True)


def _with_deadline(ledger: Ledger) -> int:
    return ledger.submissions.submit(replace(submission("timed"), deadline_ms=50_000), actor="test").job_id


def test_what_lands_while_a_decision_is_awaited_opens_its_stage_when_the_job_goes_back(
    ledger: Ledger, decisions: Decisions, make_job: MakeJob
) -> None:
    job_id = make_job(1)
    (taken,) = claim(ledger, stage_scope(Stage.GENERATE_RULES))
    decisions.ask(job_id, DRIFT, actor="w", whoever_works=True)

    landings = complete(ledger, answered(taken, "m-2"))
    held = state(ledger, job_id)
    decisions.retain(job_id, actor="ann", reason=None, resume=True)

    assert set(landings.values()) == {Landing.ACCEPTED}
    assert held is JobState.NEEDS_DECISION
    assert state(ledger, job_id) is JobState.GENERATING_TESTS
    assert len(claim(ledger, stage_scope(Stage.GENERATE_TESTS), ALL)) == 1


@ON_SQLITE
def test_a_parse_that_lands_meanwhile_is_not_lost(ledger: Ledger, decisions: Decisions) -> None:
    job_id = ledger.submissions.submit(submission(), actor="test").job_id
    (taken,) = claim(ledger, stage_scope(Stage.PARSE))
    decisions.ask(job_id, SCHEMA, actor="w", whoever_works=True)
    summary = json.dumps({"canonical_digest": "c", "format": "text"})

    complete(ledger, Offer(claim=taken, output=summary, parsed=parsed_spec(2)))
    decisions.retain(job_id, actor="ann", reason=None, resume=True)

    job = ledger.reads.job_by_id(job_id)
    assert (job.state, job.canonical_digest, job.spec_format) == (JobState.RETRIEVING, "c", "text")


@ON_SQLITE
def test_a_validation_that_lands_meanwhile_is_not_lost(ledger: Ledger, decisions: Decisions, make_job: MakeJob) -> None:
    job_id = make_job()
    validation = to_validation(ledger, job_id)
    decisions.ask(job_id, SCHEMA, actor="w", whoever_works=True)

    complete(ledger, offer(validation, passed=True, action_set=ACTION_SET))
    decisions.retain(job_id, actor="ann", reason=None, resume=True)

    job = ledger.reads.job_by_id(job_id)
    assert (job.state, job.validation_passed) == (JobState.AWAITING_CONFIRMATION, True)
    assert ledger.actions.confirm(job_id, str(job.action_set_digest), actor="ann")


def test_the_models_that_were_reported_are_read_from_the_attempts_in_their_order(
    ledger: Ledger, decisions: Decisions, make_job: MakeJob, clock: ManualClock
) -> None:
    job_id = make_job()
    first, second, third = claim(ledger, stage_scope(Stage.GENERATE_RULES), ALL)
    complete(ledger, answered(second, "m-2"))
    clock.now_ms += 10
    complete(ledger, answered(first, "m-1"), offer(third))

    before = reported_models(ledger.database, job_id)
    decisions.ask(job_id, DRIFT, actor="w")
    decisions.migrate(job_id, migrated(), actor="ann", reason=None)
    clock.now_ms += 10
    (test, *_) = claim(ledger, stage_scope(Stage.GENERATE_TESTS), ALL)
    complete(ledger, answered(test, "m-9"))

    assert before == ("m-2", "m-1")
    assert reported_models(ledger.database, job_id) == ("m-9",)


def test_the_texts_of_a_behaviour_are_kept_with_the_job_and_never_changed(ledger: Ledger) -> None:
    packed = Pack(kind=PackKind.VOCABULARY, content='{"name":"expense"}')
    frozen = replace(behaviour(), prompt_versions={"rules": prompt_label(RULES)}, vocabulary_digest=packed.digest)
    job_id = ledger.submissions.submit(
        replace(submission(), behaviour=frozen, prompts=(RULES,), packs=(packed,)), actor="test"
    ).job_id

    assert ledger.behaviours.prompts(frozen.digest) == {"rules": RULES}
    assert ledger.behaviours.packs([packed.digest, "none"]) == {packed.digest: packed.content}
    for table in (prompt, pack):
        with pytest.raises(LedgerError), ledger.database.write() as connection:
            connection.execute(sa.update(table).values(content="another"))
        with pytest.raises(LedgerError), ledger.database.write() as connection:
            connection.execute(sa.delete(table))
    with pytest.raises(LedgerError), ledger.database.write() as connection:
        connection.execute(sa.update(prompt).values(content=None))
    assert ledger.behaviours.forget_prompts(ended_before=2**60) == ()

    ledger.cancellations.cancel(job_id, actor="ann", reason="r")

    assert ledger.behaviours.forget_prompts(ended_before=2**60) == (RULES.digest,)
    assert ledger.behaviours.prompts(frozen.digest) == {}
    ledger.submissions.submit(
        replace(submission("again"), behaviour=frozen, prompts=(RULES,), packs=(packed,)), actor="test"
    )
    assert ledger.behaviours.prompts(frozen.digest) == {"rules": RULES}


def test_the_database_refuses_a_change_of_behaviour_that_is_not_on_record(ledger: Ledger, make_job: MakeJob) -> None:
    job_id, other = make_job(), replace(behaviour(), model_id="other")
    with ledger.database.write() as connection:
        row = {"digest": other.digest, "content": other.content, "created_at": 1}
        connection.execute(sa.insert(behaviour_table).values(**row))

    with pytest.raises(LedgerError), ledger.database.write() as connection:
        connection.execute(
            sa.update(job_table).where(job_table.c.job_id == job_id).values(behaviour_digest=other.digest)
        )

    assert ledger.reads.job_by_id(job_id).behaviour_digest == behaviour().digest


def test_a_decision_that_was_carried_out_is_final(ledger: Ledger, decisions: Decisions, make_job: MakeJob) -> None:
    job_id = make_job()
    decisions.ask(job_id, SCHEMA, actor="w")
    decisions.retain(job_id, actor="ann", reason=None, resume=True)

    with pytest.raises(LedgerError), ledger.database.write() as connection:
        connection.execute(sa.update(needed_decision).values(decision="stop"))


@ON_SQLITE
def test_known_behaviours_count_their_jobs_by_state(ledger: Ledger, decisions: Decisions, make_job: MakeJob) -> None:
    job_id = make_job()
    make_job(key="other")
    decisions.ask(job_id, SCHEMA, actor="w")
    decisions.migrate(job_id, migrated(), actor="ann", reason=None)

    known = {one.behaviour_digest: one.jobs for one in ledger.behaviours.all()}

    assert known == {
        behaviour().digest: {JobState.GENERATING_RULES: 1},
        migrated().behaviour.digest: {JobState.GENERATING_RULES: 1},
    }


@ON_SQLITE
def test_an_attempt_is_not_lost_to_a_decision(
    ledger: Ledger, decisions: Decisions, make_job: MakeJob, clock: ManualClock
) -> None:
    job_id = make_job(1)
    claim(ledger, stage_scope(Stage.GENERATE_RULES))
    decisions.ask(job_id, DRIFT, actor="w", whoever_works=True)
    clock.now_ms += 2_000
    decisions.retain(job_id, actor="ann", reason=None, resume=True)

    (again,) = claim(ledger, stage_scope(Stage.GENERATE_RULES))

    outcomes = [one.outcome for one in ledger.reads.attempts(job_id) if one.key.stage is Stage.GENERATE_RULES]
    assert again.attempt == 2
    assert outcomes == [AttemptOutcome.CRASHED, None]


def test_a_publication_that_ends_while_a_decision_is_awaited_completes_its_job_when_that_goes_back(
    ledger: Ledger, decisions: Decisions, make_job: MakeJob
) -> None:
    job_id = make_job()
    complete(ledger, offer(to_validation(ledger, job_id), passed=True, action_set=ACTION_SET))
    ledger.actions.confirm(job_id, str(ledger.reads.job_by_id(job_id).action_set_digest), actor="ann")
    taken = ledger.actions.claim(job_id, token=tokens(1)[0], claimant=BOB)
    assert taken is not None

    left_alone = decisions.ask(job_id, SCHEMA, actor="release 2")
    decisions.ask(job_id, SCHEMA, actor="release 2", whoever_works=True)
    landed = ledger.actions.finish(taken, receipt='{"manifest_sha256": "m"}', actor="bob")
    held = state(ledger, job_id)
    decisions.retain(job_id, actor="ann", reason=None, resume=True)

    assert (left_alone.is_held, left_alone.lease_until) == (False, 11_000)
    assert (landed, held) == (True, JobState.NEEDS_DECISION)
    assert state(ledger, job_id) is JobState.COMPLETED


@ON_SQLITE
def test_nothing_is_published_of_a_job_that_needs_a_decision(
    ledger: Ledger, decisions: Decisions, make_job: MakeJob
) -> None:
    job_id = make_job()
    complete(ledger, offer(to_validation(ledger, job_id), passed=True, action_set=ACTION_SET))
    ledger.actions.confirm(job_id, str(ledger.reads.job_by_id(job_id).action_set_digest), actor="ann")
    decisions.ask(job_id, SCHEMA, actor="release 2")

    assert ledger.actions.claim(job_id, token=tokens(1)[0], claimant=BOB) is None


def test_a_decision_that_is_asked_for_while_the_last_item_lands_loses_no_barrier(
    ledger: Ledger, decisions: Decisions, make_job: MakeJob
) -> None:
    job_id = make_job(1)
    (taken,) = claim(ledger, stage_scope(Stage.GENERATE_RULES))
    barrier = threading.Barrier(2)

    def play(act: Callable[[], object]) -> None:
        barrier.wait()
        act()

    threads = [
        threading.Thread(target=play, args=[lambda: complete(ledger, offer(taken))]),
        threading.Thread(target=play, args=[lambda: decisions.ask(job_id, DRIFT, actor="w", whoever_works=True)]),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    held = state(ledger, job_id)
    decisions.retain(job_id, actor="ann", reason=None, resume=True)

    assert held is JobState.NEEDS_DECISION
    assert state(ledger, job_id) is JobState.GENERATING_TESTS
    assert len(claim(ledger, stage_scope(Stage.GENERATE_TESTS), ALL)) == 1
