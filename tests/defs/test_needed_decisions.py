"""Dagster and jobs that need a decision: no run is launched for them, and a run that a person launches says why."""

import pytest

from rulegen_dagster.domain.behaviour import Choice
from rulegen_dagster.domain.states import JobState
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.workflow import decide
from rulegen_dagster.workflow.plan import plan_work
from rulegen_dagster.workflow.runtime import Runtime
from tests.defs.conftest import Execute, calls, failure_text


@pytest.fixture
def other_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("frozen", "behaviours"):
        monkeypatch.setattr(f"rulegen_dagster.workflow.{module}.OUTPUT_SCHEMA_VERSION", "rules-and-tests-v9")


def test_a_run_of_keys_fails_with_the_decision_that_is_needed(
    execute: Execute, opened: Runtime, job: JobRecord, keys: tuple[str, ...], other_schema: None
) -> None:
    result = execute("generate_rules", key_range=keys)

    assert not result.success
    assert "the job needs a decision" in failure_text(result)
    assert f"rulegen decide {job.name} retain|migrate|stop" in failure_text(result)
    assert opened.ledger.reads.job_by_id(job.job_id).state is JobState.NEEDS_DECISION
    assert calls(opened.settings.home_path) == []


def test_a_run_of_a_whole_document_fails_with_it_too(
    execute: Execute, opened: Runtime, job: JobRecord, other_schema: None
) -> None:
    plan_work(opened)

    result = execute("validate", key=job.partition_key)
    shown = execute("parse", key=job.partition_key)

    assert shown.success
    assert not result.success
    assert "the job needs a decision" in failure_text(result)
    assert "[needs_decision]" in failure_text(result)


def test_no_run_is_planned_until_it_is_decided(
    opened: Runtime, job: JobRecord, other_schema: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = plan_work(opened)
    decided = decide.decide(opened, job, Choice.RETAIN, actor="ann", reason=None)
    retained = plan_work(opened)
    monkeypatch.undo()

    (launch,) = plan_work(opened)

    assert planned == retained == []
    assert decided["resumed"] is False
    assert launch.job_key == job.partition_key
