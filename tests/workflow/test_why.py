import json
from typing import Any

import pytest
import sqlalchemy as sa

from rulegen_dagster.domain.errors import InputError, PublishError
from rulegen_dagster.domain.states import JobState, Stage
from rulegen_dagster.ledger.claims import Claimant
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.ledger.schema import job as job_table
from rulegen_dagster.workflow.generate import Generation
from rulegen_dagster.workflow.publish import bundle_path, publish
from rulegen_dagster.workflow.runtime import Runtime
from rulegen_dagster.workflow.why import why_report
from tests.workflow.conftest import (
    OTHER,
    RULES,
    claim_items,
    drain,
    finish,
    open_rules,
    policy,
    run_stage,
    scripted,
    submit,
)

KEYS = ["job", "item", "state", "reason_code", "reason", "evidence", "next_at_ms", "recovery"]
REJECTED = [{"do": "error", "kind": "permanent"}]
UNAVAILABLE = [{"do": "error", "kind": "retryable"}]
IN_A_RUN = Claimant(worker="host:7", lease_ms=1_000, run_id="run-1")


def _drain_rules(runtime: Runtime) -> None:
    drain(runtime, Generation(runtime).attempt, stages=RULES)


def _why(runtime: Runtime, job: JobRecord, item: str | None = None) -> dict[str, Any]:
    report = why_report(runtime, job, item)
    assert list(report) == KEYS
    assert json.loads(json.dumps(report)) == report
    return report


def _confirmed(runtime: Runtime) -> JobRecord:
    job = finish(runtime, submit(runtime, policy(1)))
    runtime.ledger.actions.confirm(job.job_id, str(job.action_set_digest), actor="ann")
    return runtime.ledger.reads.job_by_id(job.job_id)


def test_a_new_job_is_ready_since_it_was_submitted(runtime: Runtime, clock: ManualClock) -> None:
    job = submit(runtime, policy(1))
    since = clock.now_ms
    clock.now_ms += 5_000

    report = _why(runtime, job)

    assert (report["item"], report["state"], report["reason_code"]) == (None, "extracting", "ready")
    assert (report["next_at_ms"], report["evidence"]["since_ms"]) == (clock.now_ms, since)
    assert report["evidence"]["item"] == "parse"
    assert any("due_work" in who for who in report["evidence"]["claimed_by"])
    assert report["recovery"]["question"] == "Can the file be replaced?"


def test_a_held_item_is_told_with_worker_run_and_lease(runtime: Runtime, clock: ManualClock) -> None:
    job = open_rules(runtime, policy(2))
    claim_items(runtime, Stage.GENERATE_RULES, 1, IN_A_RUN)

    of_item, of_job = _why(runtime, job, "rule-01"), _why(runtime, job)

    assert (of_item["item"], of_item["state"], of_item["reason_code"]) == (
        "generate_rules/rule-01",
        "running",
        "leased",
    )
    assert of_item["next_at_ms"] == clock.now_ms + 1_000
    assert of_item["evidence"] == {
        "worker": "host:7",
        "dagster_run": "run-1",
        "lease_until_ms": clock.now_ms + 1_000,
        "attempt_began_ms": clock.now_ms,
        "attempts": 1,
        "attempt_limit": 3,
    }
    assert (of_job["reason_code"], of_job["evidence"]["item"]) == ("ready", "generate_rules/rule-02")


def test_a_lease_that_has_passed_is_ready_since_then(runtime: Runtime, clock: ManualClock) -> None:
    job = open_rules(runtime, policy(1))
    claim_items(runtime, Stage.GENERATE_RULES, 1)
    clock.now_ms += 3_000

    report = _why(runtime, job, "rule-01")

    assert report["reason_code"] == "ready"
    assert report["evidence"]["since_ms"] == clock.now_ms - 2_000
    assert report["evidence"]["lost_worker"] == OTHER.worker


def test_a_retry_is_told_with_due_time_error_and_budget(runtime: Runtime, clock: ManualClock) -> None:
    runtime = scripted(runtime, {"rule-02": UNAVAILABLE})
    job = open_rules(runtime, policy(2))
    _drain_rules(runtime)

    of_item, of_job = _why(runtime, job, "rule-02"), _why(runtime, job)

    due = clock.now_ms + 500
    budget = {"due_ms": due, "last_error": "provider_unavailable", "attempts": 1, "attempt_limit": 3}
    assert (of_item["state"], of_item["reason_code"], of_item["next_at_ms"]) == ("waiting", "retry_due", due)
    assert of_item["evidence"] == budget
    assert of_job["evidence"] == {"items": 1, "item": "generate_rules/rule-02", **budget}


def test_a_retry_that_fell_due_is_ready_since_then(local_runtime: Runtime, clock: ManualClock) -> None:
    runtime = scripted(local_runtime, {"rule-01": UNAVAILABLE})
    job = open_rules(runtime, policy(1))
    _drain_rules(runtime)
    due = clock.now_ms + 500
    clock.now_ms += 9_000

    report = _why(runtime, job, "rule-01")

    assert (report["state"], report["reason_code"], report["evidence"]["since_ms"]) == ("waiting", "ready", due)


def test_a_failed_item_is_told_with_each_of_its_tries(runtime: Runtime, clock: ManualClock) -> None:
    runtime = scripted(runtime, {"rule-01": [*UNAVAILABLE, *REJECTED]})
    job = open_rules(runtime, policy(1))
    _drain_rules(runtime)
    clock.now_ms += 500
    _drain_rules(runtime)

    of_item, of_job = _why(runtime, job, "rule-01"), _why(runtime, job)

    tries = [(made["attempt"], made["outcome"], made["error_code"]) for made in of_item["evidence"]["tries"]]
    assert (of_item["state"], of_item["reason_code"], of_item["next_at_ms"]) == ("failed", "item_failed", None)
    assert tries == [(1, "retryable", "provider_unavailable"), (2, "permanent", "provider_rejected")]
    assert of_job["reason_code"] == "blocked"
    assert of_job["evidence"]["items"] == [
        {"item": "generate_rules/rule-01", "error_code": "provider_rejected", "attempts": 2, "attempt_limit": 3}
    ]


def test_an_item_that_was_redriven_is_ready_since_then(local_runtime: Runtime, clock: ManualClock) -> None:
    runtime = scripted(local_runtime, {"rule-01": REJECTED})
    job = open_rules(runtime, policy(1))
    _drain_rules(runtime)
    clock.now_ms += 7_000
    runtime.ledger.redrives.redrive(job.job_id, Stage.GENERATE_RULES, None, actor="ann", reason="mended")

    report = _why(runtime, job, "rule-01")

    assert (report["reason_code"], report["evidence"]["since_ms"]) == ("ready", clock.now_ms)


def test_an_accepted_item_is_told_with_what_made_it(runtime: Runtime) -> None:
    job = finish(runtime, submit(runtime, policy(1)))

    reports = {name: _why(runtime, job, name) for name in ("rule-01", "generate_rules/rule-01", "parse", "validate")}

    assert {report["reason_code"] for report in reports.values()} == {"accepted"}
    assert reports["rule-01"]["item"] == "generate_tests/rule-01"
    assert reports["rule-01"]["evidence"]["accepted"]["outcome"] == "accepted"


def test_a_barrier_names_what_is_missing_and_why(runtime: Runtime) -> None:
    runtime = scripted(runtime, {"rule-01": REJECTED, "rule-02": UNAVAILABLE})
    job = open_rules(runtime, policy(4))
    _drain_rules(runtime)

    reports = [_why(runtime, job, name) for name in ("generate_tests/rule-03", "rule-03", "validate", "publish")]

    for report in reports:
        missing = [(entry["item"], entry["reason_code"]) for entry in report["evidence"]["missing"]]
        assert (report["state"], report["reason_code"]) == (None, "barrier")
        assert missing == [("generate_rules/rule-01", "item_failed"), ("generate_rules/rule-02", "retry_due")]
    assert [report["item"] for report in reports] == [
        "generate_tests/rule-03",
        "generate_tests/rule-03",
        "validate",
        "publish",
    ]


def test_a_barrier_names_twenty_items_and_counts_all(local_runtime: Runtime) -> None:
    job = open_rules(local_runtime, policy(23))

    evidence = _why(local_runtime, job, "validate")["evidence"]

    assert (len(evidence["missing"]), evidence["missing_count"]) == (20, 23)


def test_a_rule_that_waits_for_the_context_is_behind_a_barrier(local_runtime: Runtime) -> None:
    job = submit(local_runtime, policy(1))
    run_stage(local_runtime, job, Stage.PARSE)

    report = _why(local_runtime, job, "rule-01")

    assert (report["state"], report["reason_code"]) == ("pending", "barrier")
    assert [entry["item"] for entry in report["evidence"]["missing"]] == ["retrieve"]
    assert report["recovery"]["question"] == "Is an answer without context allowed?"


def test_a_job_that_awaits_a_person_tells_the_hash_and_since_when(runtime: Runtime, clock: ManualClock) -> None:
    job = finish(runtime, submit(runtime, policy(1)))
    since = clock.now_ms
    clock.now_ms += 60_000

    of_job, of_publish = _why(runtime, job), _why(runtime, job, "publish")

    assert of_job["reason_code"] == of_publish["reason_code"] == "awaiting_confirmation"
    assert (of_job["evidence"]["action_set"], of_job["evidence"]["since_ms"]) == (job.action_set_digest, since)
    assert (of_publish["item"], of_publish["state"]) == ("publish", "proposed")
    assert of_job["recovery"]["question"] == "How long does the proposal stay valid?"


def test_a_failed_validation_tells_its_first_failures(runtime: Runtime) -> None:
    wrong = {"tests": [{"name": "c", "kind": "boundary", "facts": {}, "expect": "deny"}]}
    runtime = scripted(runtime, {"generate_tests/rule-01": [{"do": "ok", "draft": wrong}]})
    job = finish(runtime, submit(runtime, policy(2)))

    report = _why(runtime, job)

    assert report["reason_code"] == "validation_failed"
    assert report["evidence"]["failure_count"] == len(report["evidence"]["failures"]) >= 1
    assert set(report["evidence"]["failures"][0]) >= {"code", "path", "message"}


def test_a_policy_without_a_rule_tells_how_its_clauses_were_answered(local_runtime: Runtime) -> None:
    job = finish(local_runtime, submit(local_runtime, b"The committee must act with due care.\n"))

    report = _why(local_runtime, job)

    assert report["reason_code"] == "nothing_to_publish"
    assert sum(report["evidence"]["abstained"].values()) == 1


def test_an_ended_job_tells_who_ended_it_when_and_why(runtime: Runtime, clock: ManualClock) -> None:
    job = finish(runtime, submit(runtime, policy(1)))
    clock.now_ms += 1_000
    runtime.ledger.actions.reject(job.job_id, actor="ann", reason="superseded")

    report = _why(runtime, job)

    evidence = report["evidence"]
    assert (report["state"], report["reason_code"], report["next_at_ms"]) == ("cancelled", "cancelled", None)
    assert (evidence["actor"], evidence["since_ms"], evidence["reason"]) == ("ann", clock.now_ms, "superseded")
    assert report["recovery"]["possible"] is False


def test_an_open_item_of_an_ended_job_is_not_moving_because_the_job_has_ended(local_runtime: Runtime) -> None:
    job = open_rules(local_runtime, policy(1))
    with local_runtime.ledger.database.write() as connection:
        connection.execute(sa.update(job_table).values(state=JobState.EXPIRED.value, end_reason="too late"))

    rule, tests = _why(local_runtime, job, "rule-01"), _why(local_runtime, job, "generate_tests/rule-01")

    assert (rule["item"], rule["state"], rule["reason_code"]) == ("generate_rules/rule-01", "pending", "deadline")
    assert (tests["item"], tests["state"], tests["reason_code"]) == ("generate_tests/rule-01", None, "deadline")


def test_a_confirmed_job_tells_who_confirmed_and_a_published_one_where_it_is(runtime: Runtime) -> None:
    job = _confirmed(runtime)

    confirmed = _why(runtime, job)
    publish(runtime, job)
    published = _why(runtime, job, "publish")

    assert (confirmed["reason_code"], confirmed["evidence"]["actor"]) == ("confirmed", "ann")
    assert (published["reason_code"], published["state"]) == ("published", "done")
    assert published["evidence"]["published"] == str(bundle_path(runtime, job, str(job.action_set_digest)))


def test_a_publication_in_flight_tells_who_holds_it(runtime: Runtime, clock: ManualClock) -> None:
    job = _confirmed(runtime)
    runtime.ledger.actions.claim(job.job_id, token=runtime.tokens(), claimant=OTHER)

    held = _why(runtime, job)
    clock.now_ms += 1_000
    passed = _why(runtime, job)

    assert (held["reason_code"], held["evidence"]["worker"]) == ("publishing", OTHER.worker)
    assert held["next_at_ms"] == held["evidence"]["lease_until_ms"] == clock.now_ms
    assert (held["evidence"]["lease_passed"], passed["evidence"]["lease_passed"]) == (False, True)


def test_a_publication_of_unknown_outcome_tells_its_error(runtime: Runtime) -> None:
    job = _confirmed(runtime)
    bundle_path(runtime, job, str(job.action_set_digest)).mkdir(parents=True)
    with pytest.raises(PublishError):
        publish(runtime, job)

    report = _why(runtime, job)

    assert (report["reason_code"], report["evidence"]["error_code"]) == ("publish_unknown", "publish_failed")
    assert report["recovery"]["question"] == "Can an unknown outcome be reconciled?"


@pytest.mark.parametrize(
    "name",
    [
        "rule-99",
        "generate_rules",
        "generate_tests/rule-99",
        "parse/rule-01",
        "notify",
        "nonesuch",
        "",
        "/",
        "a\x1b[2Jb",
    ],
)
def test_an_item_that_is_not_there_is_refused_with_names_that_are(local_runtime: Runtime, name: str) -> None:
    job = open_rules(local_runtime, policy(1))

    with pytest.raises(InputError) as caught:
        why_report(local_runtime, job, name)

    assert caught.value.code == "item_not_found"
    assert "rule-01" in caught.value.message
    assert "\x1b" not in caught.value.message


@pytest.mark.parametrize("state", [JobState.NEEDS_DECISION, JobState.FAILED, JobState.EXPIRED, JobState.CANCELLED])
def test_every_other_state_is_told_with_how_it_was_reached(local_runtime: Runtime, state: JobState) -> None:
    job = open_rules(local_runtime, policy(1))
    with local_runtime.ledger.database.write() as connection:
        connection.execute(sa.update(job_table).values(state=state.value))

    of_job, of_item = _why(local_runtime, job), _why(local_runtime, job, "rule-01")

    code = "deadline" if state is JobState.EXPIRED else state.value
    assert of_job["reason_code"] == of_item["reason_code"] == code
    assert set(of_job["evidence"]) >= {"since_ms", "actor", "cause"}
