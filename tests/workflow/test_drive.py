import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from rulegen_dagster.domain.errors import SpecError
from rulegen_dagster.domain.rule import RuleOutput, SuiteOutput, TestKind
from rulegen_dagster.domain.states import JobState, Stage, WorkState
from rulegen_dagster.ledger.claims import Scope
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.workflow.documents import NotReady, Reused, prepare
from rulegen_dagster.workflow.drive import GENERATING_STAGES, drive, generate
from rulegen_dagster.workflow.explain import Reason, reason_of, status_report
from rulegen_dagster.workflow.runtime import Runtime
from tests.workflow.conftest import (
    OTHER,
    Recorder,
    claim_items,
    finish,
    journal,
    open_rules,
    playing,
    policy,
    run_stage,
    scripted,
    submit,
)


def _drive_waiting(runtime: Runtime, job: JobRecord, clock: ManualClock) -> tuple[JobRecord, list[Reason]]:
    """Drive on the manual clock: what the driver would sleep passes at once."""
    waits: list[Reason] = []

    def sleep(seconds: float) -> None:
        clock.now_ms += max(1, round(seconds * 1_000))

    ended = drive(runtime, job, observe=lambda _outcome: None, on_wait=waits.append, sleep=sleep)
    return ended, waits


def _drive_to_validation(runtime: Runtime, job: JobRecord) -> None:
    generate(runtime, Scope(stages=GENERATING_STAGES, job_ids=(job.job_id,)), observe=lambda _outcome: None)


def test_the_example_policy_becomes_twenty_rules_with_boundary_tests(runtime: Runtime, example_policy: Path) -> None:
    provider = Recorder()
    played = playing(runtime, provider)

    job = finish(played, submit(played, example_policy.read_bytes(), file_name=example_policy.name))

    rules = [
        RuleOutput.model_validate_json(str(item.output))
        for item in runtime.ledger.reads.items(job.job_id, Stage.GENERATE_RULES)
    ]
    suites = [
        SuiteOutput.model_validate_json(str(item.output))
        for item in runtime.ledger.reads.items(job.job_id, Stage.GENERATE_TESTS)
    ]
    assert job.state is JobState.AWAITING_CONFIRMATION
    assert [len(output.rules) for output in rules] == [1] * 20
    assert min(len(suite.tests) for suite in suites) >= 3
    assert any(case.kind is TestKind.BOUNDARY for suite in suites for case in suite.tests)
    assert len(provider.calls) == runtime.ledger.reads.provider_calls(job.job_id) == 40


def test_driving_a_finished_job_again_calls_nothing(local_runtime: Runtime) -> None:
    provider = Recorder()
    runtime = playing(local_runtime, provider)
    job = finish(runtime, submit(runtime, policy(3)))
    called = list(provider.calls)

    again = finish(runtime, job)

    assert again == job
    assert provider.calls == called
    assert len(called) == 6


def test_a_retry_is_waited_for(local_runtime: Runtime, clock: ManualClock) -> None:
    runtime = scripted(local_runtime, {"generate_rules/rule-02": [{"do": "error", "kind": "retryable"}, "ok"]})

    job, waits = _drive_waiting(runtime, submit(runtime, policy(3)), clock)

    assert job.state is JobState.AWAITING_CONFIRMATION
    assert {reason.code for reason in waits} == {"retry_due"}
    assert len(journal(runtime)) == 7


def test_the_lease_of_a_lost_worker_is_waited_for_and_its_item_taken_over(
    local_runtime: Runtime, clock: ManualClock
) -> None:
    job = open_rules(local_runtime, policy(3))
    claim_items(local_runtime, Stage.GENERATE_RULES, 1)

    ended, waits = _drive_waiting(local_runtime, job, clock)

    first = local_runtime.ledger.reads.items(job.job_id, Stage.GENERATE_RULES)[0]
    assert ended.state is JobState.AWAITING_CONFIRMATION
    assert {reason.code for reason in waits} == {"leased"}
    assert (first.state, first.attempts) == (WorkState.SUCCEEDED, 2)


@pytest.mark.parametrize("stage", [Stage.PARSE, Stage.RETRIEVE, Stage.VALIDATE])
def test_a_document_stage_that_another_worker_holds_is_waited_for(
    local_runtime: Runtime, clock: ManualClock, stage: Stage
) -> None:
    job = submit(local_runtime, policy(1))
    if stage is not Stage.PARSE:
        run_stage(local_runtime, job, Stage.PARSE)
    if stage is Stage.VALIDATE:
        run_stage(local_runtime, job, Stage.RETRIEVE)
        _drive_to_validation(local_runtime, job)
    claim_items(local_runtime, stage, 1)

    ended, waits = _drive_waiting(local_runtime, job, clock)

    assert ended.state is JobState.AWAITING_CONFIRMATION
    assert {reason.code for reason in waits} == {"leased"}


def test_a_job_that_a_publisher_holds_is_left_to_it(local_runtime: Runtime) -> None:
    job = finish(local_runtime, submit(local_runtime, policy(2)))
    actions = local_runtime.ledger.actions
    actions.confirm(job.job_id, str(job.action_set_digest), actor="test")
    actions.claim(job.job_id, token=local_runtime.tokens(), claimant=OTHER)

    left = finish(local_runtime, job)

    assert left.state is JobState.EXECUTING


def test_a_failed_item_blocks_the_job_and_keeps_the_outputs_of_its_siblings(
    local_runtime: Runtime, clock: ManualClock
) -> None:
    runtime = scripted(local_runtime, {"generate_rules/rule-02": [{"do": "error"}]})

    job, waits = _drive_waiting(runtime, submit(runtime, policy(3)), clock)

    states = [item.state for item in runtime.ledger.reads.items(job.job_id, Stage.GENERATE_RULES)]
    assert (job.state, reason_of(runtime, job).code, waits) == (JobState.GENERATING_RULES, "blocked", [])
    assert states == [WorkState.SUCCEEDED, WorkState.FAILED, WorkState.SUCCEEDED]


def test_after_a_redrive_only_the_failed_item_is_called_again(local_runtime: Runtime) -> None:
    broken = scripted(local_runtime, {"generate_rules/rule-02": [{"do": "error"}]})
    job = finish(broken, submit(broken, policy(3)))
    before = journal(broken)
    mended = scripted(local_runtime, {})

    redriven = mended.ledger.redrives.redrive(job.job_id, Stage.GENERATE_RULES, None, actor="test", reason="mended")
    ended = finish(mended, job)

    assert redriven == ("rule-02",)
    assert ended.state is JobState.AWAITING_CONFIRMATION
    assert [call for call in journal(mended)[len(before) :] if call.startswith("generate_rules")] == [
        "generate_rules/rule-02/2"
    ]


def test_two_drivers_of_one_job_share_the_calls(runtime: Runtime) -> None:
    provider = Recorder()
    played = playing(runtime, provider)
    job = submit(played, policy(12))
    start = threading.Barrier(2)

    def work(worker: str) -> JobRecord:
        start.wait()
        return drive(replace(played, worker=worker), job, observe=lambda _outcome: None, on_wait=lambda _reason: None)

    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(work, ("alice", "bob")))

    assert {one.state for one in ended} == {JobState.AWAITING_CONFIRMATION}
    assert len(provider.calls) == len(set(provider.calls)) == 24


def test_each_process_reports_the_calls_that_it_made_itself(local_runtime: Runtime) -> None:
    job = open_rules(local_runtime, policy(4))
    alice, bob = replace(local_runtime, worker="alice"), replace(local_runtime, worker="bob")
    claim_items(local_runtime, Stage.GENERATE_RULES, 1, replace(alice.claimant))

    report = status_report(bob, job)

    assert (report["provider_calls"], report["calls_this_run"]) == (1, 0)
    assert status_report(alice, job)["calls_this_run"] == 1


def test_an_upload_that_this_release_no_longer_takes_fails_its_parse_with_the_reason(local_runtime: Runtime) -> None:
    job = submit(local_runtime, policy(3))
    settings = local_runtime.settings.model_copy(update={"max_upload_bytes": 10})
    strict = replace(local_runtime, settings=settings)

    with pytest.raises(SpecError):
        finish(strict, job)
    again = finish(strict, job)

    reason = reason_of(strict, again)
    assert (again.state, reason.code) == (JobState.EXTRACTING, "blocked")
    assert "too_large" in reason.text


def test_a_document_stage_is_run_once_and_then_reused(local_runtime: Runtime) -> None:
    job = submit(local_runtime, policy(1))
    run_stage(local_runtime, job, Stage.PARSE)

    again = prepare(local_runtime, job.job_id, Stage.PARSE)
    early = prepare(local_runtime, job.job_id, Stage.VALIDATE)

    assert isinstance(again, Reused)
    assert isinstance(early, NotReady)
    assert early.code == "barrier"


def test_a_document_stage_in_other_hands_says_whose(local_runtime: Runtime) -> None:
    job = submit(local_runtime, policy(1))
    claim_items(local_runtime, Stage.PARSE, 1)

    prepared = prepare(local_runtime, job.job_id, Stage.PARSE)

    assert isinstance(prepared, NotReady)
    assert prepared.code == "leased"
    assert "other" in prepared.reason


def test_a_policy_of_which_nothing_can_be_read_ends_with_a_truthful_report(local_runtime: Runtime) -> None:
    job = finish(local_runtime, submit(local_runtime, b"The committee must act with due care.\n"))

    reason = reason_of(local_runtime, job)
    assert (job.state, job.validation_passed) == (JobState.VALIDATING, False)
    assert reason.code == "nothing_to_publish"


def test_a_text_without_a_normative_clause_ends_with_a_truthful_report(local_runtime: Runtime) -> None:
    job = finish(local_runtime, submit(local_runtime, b"Good records keep life simple.\n"))

    reason = reason_of(local_runtime, job)
    assert (job.state, reason.code) == (JobState.VALIDATING, "nothing_to_publish")
    assert "no normative clause" in reason.text
    assert local_runtime.ledger.reads.provider_calls(job.job_id) == 0


@pytest.mark.parametrize(
    "name",
    ["18f_leave.en.md", "openjs_community_fund_policy.en.md", "de_brkg_2005.de.md", "us_ftr_301-11_mie.en.md"],
)
def test_a_public_policy_is_taken_to_its_end_and_every_clause_is_answered(
    local_runtime: Runtime, shared_specs: Path, name: str
) -> None:
    job = finish(local_runtime, submit(local_runtime, (shared_specs / name).read_bytes(), file_name=name))

    report = status_report(local_runtime, job)
    outputs = [
        RuleOutput.model_validate_json(str(item.output))
        for item in local_runtime.ledger.reads.items(job.job_id, Stage.GENERATE_RULES)
    ]
    assert job.state in {JobState.AWAITING_CONFIRMATION, JobState.VALIDATING}
    assert job.state is JobState.AWAITING_CONFIRMATION or report["reason_code"] == "nothing_to_publish"
    assert report["normative_clauses"] == len(outputs) > 0
    assert all(bool(output.rules) != (output.no_rule is not None) for output in outputs)
    assert sum(report["abstained"].values()) == sum(output.no_rule is not None for output in outputs)
    assert report["failed_items"] == []
