"""The checks of `validation_report`: numbers that plot, tables of plain text, and no say in what is accepted."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from rulegen_dagster.domain.states import JobState
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.resources.mirroring import DagsterEventLog
from rulegen_dagster.resources.partition_sets import register_job
from rulegen_dagster.resources.quality_checks import SPECS, verdicts
from rulegen_dagster.settings import Settings
from rulegen_dagster.workflow.bundle import accepted_report, report_of
from rulegen_dagster.workflow.decide import waive
from rulegen_dagster.workflow.drive import drive
from rulegen_dagster.workflow.intake import submit_file
from rulegen_dagster.workflow.mirror import mirror
from rulegen_dagster.workflow.plan import plan_work
from rulegen_dagster.workflow.runtime import Runtime, open_runtime
from tests.defs.conftest import Execute, failure_text, materialized

NAMES = ["tests_pass", "grounding", "mutation_score", "conflicts", "coverage"]


def _evaluations(result: dg.ExecuteInProcessResult) -> dict[str, dg.AssetCheckEvaluation]:
    return {evaluation.check_name: evaluation for evaluation in result.get_asset_check_evaluations()}


@pytest.fixture
def validated(execute: Execute, job: JobRecord, keys: tuple[str, ...]) -> dg.ExecuteInProcessResult:
    execute("generate_tests", key_range=keys)
    return execute("validate", key=job.partition_key)


def test_a_validation_run_evaluates_every_check_with_its_numbers(
    validated: dg.ExecuteInProcessResult, opened: Runtime, job: JobRecord, instance: dg.DagsterInstance
) -> None:
    found = _evaluations(validated)
    report = report_of(str(accepted_report(opened, job.job_id)))

    assert validated.success
    assert list(found) == NAMES == [spec.name for spec in SPECS]
    assert found["tests_pass"].metadata["tests"].value == report["tests"]
    assert found["mutation_score"].metadata["percent"].value == report["mutation"]["percent"]
    assert found["conflicts"].metadata["conflicts"].value == sum(one["is_conflict"] for one in report["findings"])
    assert found["coverage"].metadata["normative"].value == 20
    assert {one.metadata["job"].value for one in found.values()} == {str(job.name)}
    assert materialized(instance, "validation_report") == [job.partition_key]
    target = found["tests_pass"].target_materialization_data
    assert target is not None
    assert target.run_id == validated.run_id


def test_the_materialization_has_the_same_numbers(
    validated: dg.ExecuteInProcessResult, opened: Runtime, job: JobRecord
) -> None:
    report = report_of(str(accepted_report(opened, job.job_id)))
    (event,) = validated.asset_materializations_for_node("validation_report")

    assert event.metadata["mutation_percent"].value == report["mutation"]["percent"]
    assert event.metadata["coverage_percent"].value == 100
    assert event.metadata["waivers"].value == 0


def test_the_checks_can_be_run_again_alone_and_accept_nothing(
    validated: dg.ExecuteInProcessResult,
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    opened: Runtime,
    job: JobRecord,
) -> None:
    assert validated.success
    before = opened.ledger.reads.revision(job.job_id)
    checks = dg.define_asset_job(
        "checks", selection=dg.AssetSelection.checks_for_assets(dg.AssetKey("validation_report"))
    )
    with_job = dg.Definitions.merge(definitions, dg.Definitions(jobs=[checks]))

    again = with_job.resolve_job_def("checks").execute_in_process(
        instance=instance, tags={"dagster/partition": job.partition_key}
    )

    assert list(_evaluations(again)) == NAMES
    assert opened.ledger.reads.revision(job.job_id) == before


def test_a_check_without_a_report_fails_and_says_so(
    definitions: dg.Definitions, instance: dg.DagsterInstance, job: JobRecord
) -> None:
    checks = dg.define_asset_job(
        "checks", selection=dg.AssetSelection.checks_for_assets(dg.AssetKey("validation_report"))
    )
    with_job = dg.Definitions.merge(definitions, dg.Definitions(jobs=[checks]))

    early = with_job.resolve_job_def("checks").execute_in_process(
        instance=instance, tags={"dagster/partition": job.partition_key}, raise_on_error=False
    )

    assert not early.success
    assert "[no_report]" in failure_text(early)


def test_a_report_that_no_run_made_is_checked_by_the_mirror(
    opened: Runtime, instance: dg.DagsterInstance, job: JobRecord
) -> None:
    drive(opened, job, observe=lambda _: None, on_wait=lambda _: None)

    mirror(opened, DagsterEventLog(instance, opened), limit=1_000)

    keys = [dg.AssetCheckKey(dg.AssetKey("validation_report"), name) for name in NAMES]
    for key in keys:
        (record,) = instance.event_log_storage.get_asset_check_execution_history(key, limit=5)
        event = record.event
        assert event is not None
        assert event.dagster_event is not None
        assert event.dagster_event.asset_check_evaluation_data.check_name == key.name


def _report(**parts: Any) -> dict[str, Any]:
    mutation = {"percent": 50, "mutants": 4, "killed": 2, "equivalent": 0, "survived": 2, "survivors": []}
    coverage = {"percent": 100, "normative": 1, "with_rules": 1, "without_rule": 0, "waived": 0, "open_items": []}
    whole = {"policy": "p@1", "tests": 3, "failures": [], "clauses": [], "missing": [], "findings": [], "pairs": 1}
    return {**whole, "mutation": mutation, "coverage": coverage, **parts}


def test_tables_of_conflicts_and_survivors_hold_plain_text(home: Path) -> None:
    assert home.is_dir()
    survivor = {
        "item_key": "rule-01",
        "rule_id": "rule-01",
        "change": "<b>\x1b[31m",
        "witness": {"a.b": 1},
        "expected": "deny",
        "found": "no_match",
    }
    finding = {
        "kind": "two_caps",
        "is_conflict": True,
        "rule_ids": ["rule-01", "rule-02"],
        "quotes": ["[one](http://x)", "two"],
        "message": "m",
        "witness": {"a.b": True},
        "decided": ["allow", "deny"],
    }
    report = _report(findings=[finding], missing=[{"code": "conflicts", "path": "$", "message": "1 pair"}])
    report["mutation"]["survivors"] = [survivor]

    by_name = {verdict.name: verdict for verdict in verdicts(report, "t/k")}

    survivors, found = by_name["mutation_score"].metadata["survivors"], by_name["conflicts"].metadata["found"]
    assert isinstance(survivors, dg.TableMetadataValue)
    assert isinstance(found, dg.TableMetadataValue)
    assert survivors.records[0].data["change"] == "<b>\\x1b[31m"
    assert found.records[0].data["quotes"] == "[one](http://x) | two"
    assert {column.type for column in found.schema.columns} == {"string"}
    assert (by_name["conflicts"].passed, by_name["conflicts"].description) == (False, "1 pair")
    assert by_name["mutation_score"].passed
    every = [value for verdict in by_name.values() for value in verdict.metadata.values()]
    assert not any(isinstance(value, dg.MarkdownMetadataValue) for value in every)


def test_failures_of_quotes_and_of_tests_belong_to_their_own_check() -> None:
    failure = {"path": "$", "message": "m"}
    clauses = [
        {"item_key": "rule-01", "failures": [{"code": "quote_not_verbatim", **failure}]},
        {"item_key": "rule-02", "failures": [{"code": "test_failed", **failure}, {"code": "too_few_tests", **failure}]},
    ]

    by_name = {verdict.name: verdict for verdict in verdicts(_report(clauses=clauses), "t/k")}

    assert (by_name["grounding"].passed, by_name["tests_pass"].passed) == (False, False)
    assert by_name["grounding"].metadata["ungrounded"].value == 1
    assert by_name["tests_pass"].description == "m (and 1 more)"
    table = by_name["tests_pass"].metadata["failures"]
    assert isinstance(table, dg.TableMetadataValue)
    assert [record.data["item"] for record in table.records] == ["rule-02", "rule-02"]


def test_what_an_earlier_release_did_not_measure_is_a_warning_and_no_verdict() -> None:
    old = {"tests": 3, "failures": [], "clauses": []}

    by_name = {verdict.name: verdict for verdict in verdicts(old, "t/k")}

    assert [name for name, verdict in by_name.items() if verdict.passed] == ["tests_pass", "grounding"]
    assert by_name["coverage"].severity is dg.AssetCheckSeverity.WARN


def test_a_report_below_its_policy_fails_its_check_until_the_waived_job_is_validated_again(
    home: Path, monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance, execute: Execute
) -> None:
    monkeypatch.setenv("RULEGEN_POLICY", "strict")
    monkeypatch.setenv("RULEGEN_PROVIDER", "rulegen-pattern")
    policy = home / "policy.md"
    policy.write_text("Meals are limited to $50 per day.\n\nCoffee must stay hot.\n", encoding="utf-8")
    opened = open_runtime(Settings())
    job = submit_file(opened, policy, key="strict", actor="test").job
    drive(opened, job, observe=lambda _: None, on_wait=lambda _: None)
    register_job(instance, opened, job.job_id)

    below = execute("validate", key=job.partition_key)
    waive(opened, job, "rule-02", actor="ann", reason="no rule of ours")
    (launch,) = plan_work(opened)
    passed = execute("validate", key=job.partition_key)

    stands = opened.ledger.reads.job_by_id(job.job_id)
    opened.close()
    before, after = _evaluations(below), _evaluations(passed)
    assert below.success
    assert passed.success
    assert [name for name in NAMES if not before[name].passed] == ["coverage"]
    assert all(evaluation.passed for evaluation in after.values())
    assert after["coverage"].metadata["waived"].value == 1
    assert (launch.dagster_job, launch.job_key) == ("validate", job.partition_key)
    assert stands.state is JobState.AWAITING_CONFIRMATION
    assert materialized(instance, "validation_report") == [job.partition_key] * 2
