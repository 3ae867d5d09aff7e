"""A job that lacks what its policy asks for: what it says, and how a person's word lets it go on to its publication."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rulegen_dagster.domain.errors import InputError, StateError
from rulegen_dagster.domain.states import AttemptOutcome, JobState, Stage
from rulegen_dagster.ledger.claims import Scope
from rulegen_dagster.ledger.database import ManualClock
from rulegen_dagster.settings import Settings
from rulegen_dagster.workflow.bundle import accepted_report, report_of
from rulegen_dagster.workflow.decide import confirm, waive
from rulegen_dagster.workflow.drive import generate
from rulegen_dagster.workflow.explain import status_report
from rulegen_dagster.workflow.forks import fork_job
from rulegen_dagster.workflow.publish import Published, publish
from rulegen_dagster.workflow.review import review_report
from rulegen_dagster.workflow.runtime import Runtime, open_runtime
from rulegen_dagster.workflow.why import why_report
from tests.workflow.conftest import OTHER, finish, journal, open_rules, policy, scripted, submit

MIXED = b"Meals are limited to $50 per day.\n\nCoffee must stay hot.\n\nTea shall be offered kindly.\n"
FAILS = [{"do": "error", "kind": "permanent"}]
WRONG = [
    {"do": "ok", "draft": {"tests": [{"name": "c", "kind": "boundary", "facts": {}, "expect": "deny"}]}},
]


@pytest.fixture
def strict(ledger_url: str, clock: ManualClock, tmp_path: Path) -> Iterator[Runtime]:
    """A runtime whose jobs need a person's name under every clause without a rule."""
    settings = Settings(home=tmp_path / "home", database_url=ledger_url, slots=4, lease_ms=60_000, policy="strict")
    opened = replace(open_runtime(settings, clock=clock), jitter=lambda: 0.5)
    yield opened
    opened.close()


def _published(runtime: Runtime, job_id: int) -> Path:
    job = runtime.ledger.reads.job_by_id(job_id)
    assert confirm(runtime, job, str(job.action_set_digest), actor="ann")
    published = publish(runtime, runtime.ledger.reads.job_by_id(job_id))
    assert isinstance(published, Published)
    return published.path


def test_a_strict_job_goes_from_below_its_policy_over_waivers_to_its_publication(strict: Runtime) -> None:
    job = finish(strict, submit(strict, MIXED))
    below = status_report(strict, job)
    open_items = review_report(strict, job)["coverage"]["open_items"]

    for item in open_items:
        waive(strict, job, item, actor="ann", reason=f"{item} is guidance")
    job = finish(strict, job)
    path = _published(strict, job.job_id)

    sources = json.loads((path / "sources.json").read_bytes())
    content = json.loads(strict.ledger.reads.action_set(job.job_id, str(job.action_set_digest)))
    report = json.loads((path / "validation_report.json").read_bytes())
    assert (below["state"], below["reason_code"], below["action_set"]) == ("validating", "below_policy", None)
    assert [lack["code"] for lack in below["missing"]] == ["coverage"]
    assert below["failures"] == []
    assert open_items == ["rule-02", "rule-03"]
    assert job.state is JobState.AWAITING_CONFIRMATION
    assert strict.ledger.reads.job_by_id(job.job_id).state is JobState.COMPLETED
    assert [clause.get("waiver") for clause in sources["clauses"]] == [
        None,
        {"actor": "ann", "reason": "rule-02 is guidance"},
        {"actor": "ann", "reason": "rule-03 is guidance"},
    ]
    assert content["waivers"] == [
        {"clause_ordinal": 1, "actor": "ann", "reason": "rule-02 is guidance"},
        {"clause_ordinal": 2, "actor": "ann", "reason": "rule-03 is guidance"},
    ]
    assert content["clauses_without_rule"] == [
        {"clause_ordinal": 1, "reason": "no_pattern"},
        {"clause_ordinal": 2, "reason": "no_pattern"},
    ]
    assert [given["clause_ordinal"] for given in report["waivers"]] == [1, 2]


def test_a_bundle_without_a_waiver_has_the_bytes_it_always_had(runtime: Runtime) -> None:
    job = finish(runtime, submit(runtime, policy(1)))

    path = _published(runtime, job.job_id)

    (clause,) = json.loads((path / "sources.json").read_bytes())["clauses"]
    assert "waiver" not in clause


def test_a_job_below_its_policy_says_so_everywhere_and_cannot_be_confirmed(strict: Runtime) -> None:
    job = finish(strict, submit(strict, MIXED))

    why, review = why_report(strict, job), review_report(strict, job)
    with pytest.raises(StateError) as caught:
        confirm(strict, job, "0" * 64, actor="ann")

    assert (why["reason_code"], why["evidence"]["policy"]) == ("below_policy", "strict@1")
    assert why["evidence"]["missing"] == review["missing"]
    assert why["evidence"]["failures"] == []
    assert (review["passed"], review["action_set"], review["actions"]) == (False, None, [])
    assert "33 % of the clauses have an end" in caught.value.message
    assert caught.value.code == "wrong_state"


def test_one_waiver_too_few_leaves_the_job_below_its_policy(strict: Runtime) -> None:
    job = finish(strict, submit(strict, MIXED))

    waived = waive(strict, job, "rule-02", actor="ann", reason="r")
    between = review_report(strict, job)
    job = finish(strict, job)

    report = report_of(str(accepted_report(strict, job.job_id)))
    assert (waived["validates_again"], waived["reason_code"], waived["missing"]) == (True, "ready", [])
    assert (between["passed"], between["mutation"], between["clauses"][1]["waiver"]["actor"]) == (None, None, "ann")
    assert job.state is JobState.VALIDATING
    assert report["coverage"]["open_items"] == ["rule-03"]
    assert status_report(strict, job)["stages"]["validate"]["succeeded"] == 1


def test_a_clause_whose_rule_fails_is_waived_and_the_job_goes_on(runtime: Runtime) -> None:
    runtime = scripted(runtime, {"generate_rules/rule-02": FAILS})
    job = finish(runtime, submit(runtime, policy(3)))
    blocked = status_report(runtime, job)

    waived = waive(runtime, job, "rule-02", actor="ann", reason="the provider cannot read it")
    job = finish(runtime, job)
    path = _published(runtime, job.job_id)

    rules = json.loads((path / "rules.json").read_bytes())["rules"]
    assert (blocked["reason_code"], waived["ended"]) == ("blocked", ["generate_rules"])
    assert "'rulegen waive'" in blocked["reason"]
    assert [rule["id"] for rule in rules] == ["rule-01", "rule-03"]
    assert not [call for call in journal(runtime) if call.startswith("generate_tests/rule-02")]
    assert status_report(runtime, job)["abstained"] == {"waived": 1}


def test_a_clause_whose_tests_fail_for_good_is_left_out_with_its_rule(runtime: Runtime) -> None:
    runtime = scripted(runtime, {"generate_tests/rule-01": FAILS})
    job = finish(runtime, submit(runtime, policy(2)))

    waived = waive(runtime, job, "rule-01", actor="ann", reason="r")
    job = finish(runtime, job)
    review = review_report(runtime, job)
    path = _published(runtime, job.job_id)

    first = review["clauses"][0]
    assert waived["ended"] == ["generate_tests"]
    assert (first["rules"], first["tests"], first["no_rule"]["reason"]) == ([], [], "waived")
    assert [rule["id"] for rule in first["left_out"]] == ["rule-01"]
    assert [rule["id"] for rule in json.loads((path / "rules.json").read_bytes())["rules"]] == ["rule-02"]
    assert (review["rules"], status_report(runtime, job)["rules"]) == (1, 1)


def test_a_clause_whose_rule_fails_its_tests_can_be_waived_too(runtime: Runtime) -> None:
    runtime = scripted(runtime, {"generate_tests/rule-01": WRONG})
    job = finish(runtime, submit(runtime, policy(2)))
    failed = status_report(runtime, job)

    waive(runtime, job, "rule-01", actor="ann", reason="r")
    job = finish(runtime, job)

    assert failed["reason_code"] == "validation_failed"
    assert failed["failures"][0]["item_key"] == "rule-01"
    assert failed["failure_count"] == len(failed["failures"])
    assert job.state is JobState.AWAITING_CONFIRMATION


def test_a_clause_waived_before_its_tests_are_made_is_not_called_for(runtime: Runtime) -> None:
    runtime = scripted(runtime, {"generate_rules/rule-02": FAILS})
    job = finish(runtime, submit(runtime, policy(2)))
    waive(runtime, job, "rule-01", actor="ann", reason="accepted, and not wanted")
    waive(runtime, job, "rule-02", actor="ann", reason="r")

    finish(runtime, job)

    assert {call.split("/")[0] for call in journal(runtime)} == {"generate_rules"}


@pytest.mark.parametrize("stage", [Stage.GENERATE_RULES, Stage.GENERATE_TESTS])
def test_a_clause_waived_while_its_call_is_in_flight_is_not_called_for_again_when_the_worker_is_lost(
    runtime: Runtime, clock: ManualClock, stage: Stage
) -> None:
    runtime = scripted(runtime, {})
    job = open_rules(runtime, policy(2))
    if stage is Stage.GENERATE_TESTS:
        generate(runtime, Scope(stages=(Stage.GENERATE_RULES,), job_ids=(job.job_id,)), observe=lambda _outcome: None)
    with runtime.ledger.turn(OTHER) as turn:
        (held,) = turn.claim(Scope(stages=(stage,), job_ids=(job.job_id,)), ["lost"])
    waive(runtime, job, "rule-01", actor="ann", reason="guidance")
    clock.now_ms += OTHER.lease_ms

    job = finish(runtime, runtime.ledger.reads.job_by_id(job.job_id))
    path = _published(runtime, job.job_id)

    first = runtime.ledger.reads.items(job.job_id, stage)[0]
    output = json.loads(str(first.output))
    attempts = runtime.ledger.reads.attempts(job.job_id, first.key)
    assert held.key == first.key
    assert not [call for call in journal(runtime) if call.startswith(f"{stage}/rule-01/")]
    assert (output.get("no_rule") or output["no_tests"]) == {"reason": "waived", "detail": "guidance"}
    assert [(one.outcome, one.provider_called) for one in attempts] == [
        (AttemptOutcome.CRASHED, True),
        (AttemptOutcome.ACCEPTED, False),
    ]
    assert [rule["id"] for rule in json.loads((path / "rules.json").read_bytes())["rules"]] == ["rule-02"]


def test_a_successor_does_not_call_for_a_clause_waived_while_its_call_was_in_flight(runtime: Runtime) -> None:
    runtime = scripted(runtime, {})
    job = open_rules(runtime, policy(2))
    with runtime.ledger.turn(OTHER) as turn:
        turn.claim(Scope(stages=(Stage.GENERATE_RULES,), job_ids=(job.job_id,)), ["lost"])
    waive(runtime, job, "rule-01", actor="ann", reason="guidance")
    runtime.ledger.cancellations.cancel(job.job_id, actor="ann", reason="r")

    successor = fork_job(runtime, job, "next", deadline_ms=None, actor="ann").job
    successor = finish(runtime, successor)

    assert successor.state is JobState.AWAITING_CONFIRMATION
    assert [call.split("/")[1] for call in journal(runtime)] == ["rule-02", "rule-02"]


@pytest.mark.parametrize("clause", ["rule-02", "1"])
def test_a_clause_is_named_by_its_item_or_its_ordinal(strict: Runtime, clause: str) -> None:
    job = finish(strict, submit(strict, MIXED))

    waived = waive(strict, job, clause, actor="ann", reason="r")

    assert (waived["item"], waived["clause_ordinal"], waived["waived_now"]) == ("rule-02", 1, True)


@pytest.mark.parametrize("clause", ["rule-99", "17", "", "parse", "\x1b[31m"])
def test_a_clause_that_is_not_there_is_refused(strict: Runtime, clause: str) -> None:
    job = finish(strict, submit(strict, MIXED))

    with pytest.raises(InputError) as caught:
        waive(strict, job, clause, actor="ann", reason="r")

    assert caught.value.code == "clause_not_found"
    assert "\x1b" not in caught.value.message


def test_a_reason_that_is_too_long_is_refused(strict: Runtime) -> None:
    job = finish(strict, submit(strict, MIXED))

    with pytest.raises(InputError) as caught:
        waive(strict, job, "rule-02", actor="ann", reason="x" * 501)

    assert caught.value.code == "reason_too_long"
    assert strict.ledger.waivers.of(job.job_id) == ()


def test_the_attempts_of_each_validation_stay_apart(strict: Runtime) -> None:
    job = finish(strict, submit(strict, MIXED))
    waive(strict, job, "rule-02", actor="ann", reason="r")
    finish(strict, job)

    report = why_report(strict, job, "validate")

    (item,) = strict.ledger.reads.items(job.job_id, Stage.VALIDATE)
    assert (item.key.stage_version, item.attempts) == (2, 1)
    assert report["evidence"]["attempts"] == 1
    assert report["evidence"]["accepted"]["attempt"] == 1
