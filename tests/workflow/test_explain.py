import json
from pathlib import Path

import pytest
import sqlalchemy as sa

from rulegen_dagster.domain.states import JobState, Stage
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.ledger.schema import job as job_table
from rulegen_dagster.workflow.explain import Reason, reason_of, status_report
from rulegen_dagster.workflow.generate import Generation
from rulegen_dagster.workflow.publish import publish
from rulegen_dagster.workflow.review import review_report
from rulegen_dagster.workflow.runtime import Runtime
from tests.workflow.conftest import RULES, claim_items, drain, finish, open_rules, policy, scripted, submit


def _reason(runtime: Runtime, job: JobRecord) -> Reason:
    return reason_of(runtime, runtime.ledger.reads.job_by_id(job.job_id))


def _drain_rules(runtime: Runtime) -> None:
    drain(runtime, Generation(runtime).attempt, stages=RULES)


def test_a_new_job_can_be_claimed_now(local_runtime: Runtime, clock: ManualClock) -> None:
    job = submit(local_runtime, policy(1))

    reason = _reason(local_runtime, job)

    assert (reason.code, reason.next_at) == ("ready", clock.now_ms)
    assert "1 item of parse" in reason.text
    assert "'rulegen run FILE --tenant default --key policy' with the same file" in reason.text
    assert "'rulegen dev'" in reason.text


def test_an_item_in_flight_is_named_with_its_worker_and_lease(local_runtime: Runtime, clock: ManualClock) -> None:
    job = open_rules(local_runtime, policy(2))
    claim_items(local_runtime, Stage.GENERATE_RULES, 2)

    reason = _reason(local_runtime, job)

    assert (reason.code, reason.next_at) == ("leased", clock.now_ms + 1_000)
    assert "rule-01 is held by other, whose lease ends in 1 s (00:00:11 UTC)" in reason.text


def test_a_lease_that_passed_can_be_claimed_now(local_runtime: Runtime, clock: ManualClock) -> None:
    job = open_rules(local_runtime, policy(2))
    claim_items(local_runtime, Stage.GENERATE_RULES, 2)
    clock.now_ms += 1_000

    assert _reason(local_runtime, job).code == "ready"


def test_a_retry_is_named_with_its_time_and_its_cause(local_runtime: Runtime, clock: ManualClock) -> None:
    runtime = scripted(local_runtime, {"rule-02": [{"do": "error", "kind": "retryable"}]})
    job = open_rules(runtime, policy(2))
    _drain_rules(runtime)

    reason = _reason(runtime, job)

    assert (reason.code, reason.next_at) == ("retry_due", clock.now_ms + 500)
    assert "rule-02 is due in 0 s (00:00:10 UTC) after provider_unavailable" in reason.text


def test_a_blocked_job_names_the_items_that_failed_and_what_to_do(local_runtime: Runtime) -> None:
    runtime = scripted(local_runtime, {"rule-0[1-6]": [{"do": "error"}]})
    job = open_rules(runtime, policy(7))
    _drain_rules(runtime)

    reason = _reason(runtime, job)

    assert (reason.code, reason.next_at) == ("blocked", None)
    assert "6 items of generate_rules failed: rule-01 (provider_rejected)" in reason.text
    assert "and 1 more" in reason.text
    assert "rulegen redrive" in reason.text


def test_work_in_flight_goes_before_what_has_failed_already(local_runtime: Runtime) -> None:
    runtime = scripted(local_runtime, {"rule-03": [{"do": "error"}]})
    job = open_rules(runtime, policy(3))
    claim_items(runtime, Stage.GENERATE_RULES, 2)
    _drain_rules(runtime)

    reason = _reason(runtime, job)

    assert reason.code == "leased"


def test_a_job_that_awaits_a_person_says_how_to_confirm(local_runtime: Runtime) -> None:
    job = finish(local_runtime, submit(local_runtime, policy(1)))

    reason = _reason(local_runtime, job)

    assert reason.code == "awaiting_confirmation"
    assert f"rulegen confirm default/policy --action-set {job.action_set_digest}" in reason.text


def test_a_confirmed_job_waits_for_its_publisher_and_a_published_one_for_nothing(local_runtime: Runtime) -> None:
    job = finish(local_runtime, submit(local_runtime, policy(1)))
    local_runtime.ledger.actions.confirm(job.job_id, str(job.action_set_digest), actor="ann")
    confirmed = _reason(local_runtime, job)
    publish(local_runtime, job)

    published = _reason(local_runtime, job)

    assert (confirmed.code, confirmed.next_at) == ("confirmed", None)
    assert (published.code, published.next_at) == ("published", None)


def test_a_rejected_job_tells_the_reason_that_was_given(local_runtime: Runtime) -> None:
    job = finish(local_runtime, submit(local_runtime, policy(1)))
    local_runtime.ledger.actions.reject(job.job_id, actor="ann", reason="superseded")

    reason = _reason(local_runtime, job)

    assert reason.code == "cancelled"
    assert "superseded" in reason.text


@pytest.mark.parametrize("state", [JobState.NEEDS_DECISION, JobState.FAILED, JobState.CANCELLED])
def test_every_other_state_has_a_reason_too(local_runtime: Runtime, state: JobState) -> None:
    job = submit(local_runtime, policy(1))
    with local_runtime.ledger.database.write() as connection:
        connection.execute(sa.update(job_table).values(state=state.value))

    reason = _reason(local_runtime, job)

    assert (reason.code, reason.next_at) == (state.value, None)


def test_a_ruleset_whose_tests_fail_says_where(local_runtime: Runtime) -> None:
    wrong = {"tests": [{"name": "c", "kind": "boundary", "facts": {}, "expect": "deny"}]}
    runtime = scripted(local_runtime, {"generate_tests/rule-01": [{"do": "ok", "draft": wrong}]})

    job = finish(runtime, submit(runtime, policy(2)))

    reason = _reason(runtime, job)
    report = review_report(runtime, job)
    assert (job.state, reason.code, reason.next_at) == (JobState.VALIDATING, "validation_failed", None)
    assert report["passed"] is False
    assert report["clauses"][0]["failures"]
    assert report["clauses"][1]["failures"] == []
    assert status_report(runtime, job)["action_set"] is None


def test_a_policy_without_a_rule_says_how_each_clause_was_answered(local_runtime: Runtime) -> None:
    job = finish(local_runtime, submit(local_runtime, b"The committee must act with due care.\n"))

    reason = _reason(local_runtime, job)

    abstained = status_report(local_runtime, job)["abstained"]
    assert reason.code == "nothing_to_publish"
    assert sum(abstained.values()) == 1
    assert all(cause in reason.text for cause in abstained)
    assert "another provider (RULEGEN_PROVIDER) under a new --key" in reason.text


def test_a_status_has_every_stage_with_every_state(runtime: Runtime) -> None:
    job = finish(runtime, submit(runtime, policy(2)))

    report = status_report(runtime, job)

    assert list(report["stages"]) == [stage.value for stage in Stage]
    assert {tuple(counts) for counts in report["stages"].values()} == {
        ("pending", "running", "waiting", "succeeded", "failed")
    }
    assert {stage: counts["succeeded"] for stage, counts in report["stages"].items()} == {
        "parse": 1,
        "retrieve": 1,
        "generate_rules": 2,
        "generate_tests": 2,
        "validate": 1,
        "publish": 0,
        "notify": 0,
    }


def test_a_status_and_a_review_are_plain_json(local_runtime: Runtime, example_policy: Path) -> None:
    job = finish(local_runtime, submit(local_runtime, example_policy.read_bytes()))

    status, review = status_report(local_runtime, job), review_report(local_runtime, job)

    assert json.loads(json.dumps(status)) == status
    assert json.loads(json.dumps(review)) == review
    assert (status["rules"], review["rules"], len(review["clauses"])) == (20, 20, 20)


def test_a_review_of_a_job_that_has_just_begun_shows_what_there_is(local_runtime: Runtime) -> None:
    begun = submit(local_runtime, policy(1), key="begun")
    opened = open_rules(local_runtime, policy(2), key="opened")

    first, second = review_report(local_runtime, begun), review_report(local_runtime, opened)

    assert (first["clauses"], first["action_set"], first["passed"]) == ([], None, None)
    assert [clause["state"] for clause in second["clauses"]] == ["pending", "pending"]
