from dataclasses import replace

from rulegen_dagster.domain.states import AttemptOutcome, Stage
from rulegen_dagster.domain.work import Claim, FailedAttempt, Offer
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.workflow.generate import Generation
from rulegen_dagster.workflow.plan import (
    MAX_LAUNCHES,
    Launch,
    jobs_to_register,
    plan_publications,
    plan_work,
)
from rulegen_dagster.workflow.publish import publish
from rulegen_dagster.workflow.runtime import Runtime
from tests.workflow.conftest import (
    BOTH,
    OTHER,
    RULES,
    claim_items,
    drain,
    finish,
    make_items,
    offer_of,
    open_rules,
    policy,
    run_stage,
    submit,
)


def _ranges(launches: list[Launch]) -> list[tuple[str, str | None, str | None]]:
    return [
        (launch.dagster_job, launch.first_key and launch.first_key[-3:], launch.last_key and launch.last_key[-3:])
        for launch in launches
    ]


def _ranged(runtime: Runtime, size: int) -> Runtime:
    return replace(runtime, settings=runtime.settings.model_copy(update={"range_size": size}))


async def _succeed(claim: Claim) -> Offer:
    return offer_of(claim)


async def _fail(claim: Claim) -> FailedAttempt:
    return FailedAttempt(claim=claim, outcome=AttemptOutcome.RETRYABLE, error_code="x", message="not now")


def test_a_new_job_is_planned_up_to_the_retrieval(runtime: Runtime) -> None:
    job = submit(runtime, policy(1))

    (launch,) = plan_work(runtime)

    assert (launch.dagster_job, launch.job_key, launch.first_key) == ("retrieve", job.partition_key, None)
    assert launch.work == f"{job.partition_key}:retrieve"
    assert launch.tenant == "default"


def test_the_document_stages_of_one_job_are_one_work(local_runtime: Runtime) -> None:
    job = submit(local_runtime, policy(1))
    (first,) = plan_work(local_runtime)
    run_stage(local_runtime, job, Stage.PARSE)

    (second,) = plan_work(local_runtime)

    assert first.work == second.work
    assert int(first.revision) < int(second.revision)


def test_a_job_that_fits_into_one_range_gets_one_run_for_rules_and_tests(runtime: Runtime) -> None:
    make_items(runtime, 20)

    launches = plan_work(runtime)

    assert _ranges(launches) == [("generate_tests", "-01", "-20")]


def test_a_larger_job_is_cut_into_ranges_of_bounded_size(local_runtime: Runtime) -> None:
    job_id = make_items(local_runtime, 23)

    launches = plan_work(_ranged(local_runtime, 10))

    keys = local_runtime.ledger.reads.rule_partition_keys(job_id)
    assert _ranges(launches) == [
        ("generate_rules", "-01", "-10"),
        ("generate_rules", "-11", "-20"),
        ("generate_rules", "-21", "-23"),
    ]
    assert len({launch.work for launch in launches}) == 3
    assert [launch.first_key for launch in launches] == [keys[0], keys[10], keys[20]]


def test_the_tests_of_a_larger_job_are_ranges_of_their_own(local_runtime: Runtime) -> None:
    make_items(local_runtime, 23)
    drain(local_runtime, _succeed, stages=RULES)

    launches = plan_work(_ranged(local_runtime, 10))

    assert [launch.dagster_job for launch in launches] == ["generate_tests"] * 3


def test_a_range_reaches_from_the_first_open_key_to_the_last(local_runtime: Runtime, clock: ManualClock) -> None:
    make_items(local_runtime, 9)
    claim_items(local_runtime, Stage.GENERATE_RULES, 3)
    clock.now_ms += 999
    claim_items(local_runtime, Stage.GENERATE_RULES, 6)
    clock.now_ms += 1

    in_other_hands = plan_work(local_runtime)
    clock.now_ms += 999
    free = plan_work(local_runtime)

    assert in_other_hands == []
    assert _ranges(free) == [("generate_tests", "-01", "-09")]


def test_a_stage_with_a_live_lease_is_left_to_its_worker(runtime: Runtime, clock: ManualClock) -> None:
    make_items(runtime, 5)
    claim_items(runtime, Stage.GENERATE_RULES, 1)

    during = plan_work(runtime)
    clock.now_ms += 1_000
    after = plan_work(runtime)

    assert during == []
    assert _ranges(after) == [("generate_tests", "-01", "-05")]


def test_a_live_lease_of_one_job_does_not_hold_up_another(local_runtime: Runtime) -> None:
    open_rules(local_runtime, policy(2), key="one")
    claim_items(local_runtime, Stage.GENERATE_RULES, 1)
    other = open_rules(local_runtime, policy(2), key="other")

    launches = plan_work(local_runtime)

    assert [launch.job_key for launch in launches] == [other.partition_key]


def test_nothing_changed_means_the_same_plan_and_any_change_another_revision(
    runtime: Runtime, clock: ManualClock
) -> None:
    make_items(runtime, 3)
    first = plan_work(runtime)

    again = plan_work(runtime)
    claim_items(runtime, Stage.GENERATE_RULES, 1)
    clock.now_ms += 1_000
    changed = plan_work(runtime)

    assert again == first
    assert changed[0].work == first[0].work
    assert int(changed[0].revision) > int(first[0].revision)


def test_the_run_that_left_the_work_is_named(runtime: Runtime, clock: ManualClock) -> None:
    make_items(runtime, 3)
    claim_items(runtime, Stage.GENERATE_RULES, 1, replace(OTHER, run_id="run-1"))
    clock.now_ms += 500
    claim_items(runtime, Stage.GENERATE_RULES, 1, replace(OTHER, run_id="run-2"))
    clock.now_ms += 1_000

    (launch,) = plan_work(runtime)

    assert launch.previous_run_id == "run-2"


def test_a_retry_that_is_not_due_is_not_planned(local_runtime: Runtime, clock: ManualClock) -> None:
    make_items(local_runtime, 1)

    drain(local_runtime, _fail)
    early = plan_work(local_runtime)
    clock.now_ms += 500

    due = plan_work(local_runtime)

    assert early == []
    assert _ranges(due) == [("generate_tests", "-01", "-01")]


def test_a_validation_is_planned_and_a_job_that_waits_for_a_person_is_not(local_runtime: Runtime) -> None:
    job = open_rules(local_runtime, policy(1))
    drain(local_runtime, Generation(local_runtime).attempt, stages=BOTH)
    validating = plan_work(local_runtime)
    finish(local_runtime, job)

    waiting = plan_work(local_runtime)

    assert [launch.dagster_job for launch in validating] == ["validate"]
    assert waiting == []


def test_one_look_plans_a_bounded_number_of_runs_the_oldest_job_first(local_runtime: Runtime) -> None:
    jobs = [submit(local_runtime, policy(1), key=f"k{number}") for number in range(MAX_LAUNCHES + 3)]

    launches = plan_work(local_runtime)

    assert [launch.job_key for launch in launches] == [job.partition_key for job in jobs[:MAX_LAUNCHES]]


def test_a_confirmed_job_is_planned_for_publishing_until_it_is_published(runtime: Runtime) -> None:
    job = finish(runtime, submit(runtime, policy(1)))
    before = plan_publications(runtime)
    runtime.ledger.actions.confirm(job.job_id, str(job.action_set_digest), actor="ann")

    (launch,) = plan_publications(runtime)

    assert before == []
    assert (launch.dagster_job, launch.job_key) == ("publish", job.partition_key)


def test_the_keys_of_a_job_are_registered_until_it_has_ended(local_runtime: Runtime) -> None:
    kept = submit(local_runtime, policy(1), key="kept")
    gone = finish(local_runtime, submit(local_runtime, policy(1), key="gone"))
    done = finish(local_runtime, submit(local_runtime, policy(1), key="done"))
    local_runtime.ledger.actions.reject(gone.job_id, actor="ann", reason="no")
    local_runtime.ledger.actions.confirm(done.job_id, str(done.action_set_digest), actor="ann")
    publish(local_runtime, done)

    unknown = jobs_to_register(local_runtime, set())
    known = jobs_to_register(local_runtime, {kept.partition_key, done.partition_key})

    assert [job.name for job in unknown] == [kept.name, done.name]
    assert [job.name for job in known] == [kept.name]
