"""Review: everything that a person needs to see before a confirmation, in one report."""

import json
from typing import Any

from rulegen_dagster.domain.money import format_minor
from rulegen_dagster.domain.rule import Decision, MoneyParam, Param, RateParam, Rule, RuleOutput, SuiteOutput
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.providers.registry import label_of
from rulegen_dagster.workflow.bundle import accepted_report, report_of
from rulegen_dagster.workflow.explain import reason_of
from rulegen_dagster.workflow.runtime import Runtime

_IN_WORDS = {
    Decision.ALLOW: "allowed",
    Decision.DENY: "not allowed",
    Decision.REQUIRE_APPROVAL: "needs approval",
    Decision.REQUIRE_RECEIPT: "needs a receipt",
    Decision.FLAG: "flagged for a person",
    Decision.REIMBURSE_UP_TO: "reimbursed up to a cap",
}


def review_report(runtime: Runtime, job: JobRecord) -> dict[str, Any]:
    """Return each normative clause with its rules, tests and findings, and the action set."""
    job = runtime.ledger.reads.job_by_id(job.job_id)
    clauses = {clause.ordinal: clause for clause in runtime.ledger.reads.clauses(job.job_id)}
    suites = {item.key.item_key: item for item in runtime.ledger.reads.items(job.job_id, Stage.GENERATE_TESTS)}
    report = report_of(accepted_report(runtime, job.job_id) or "{}")
    findings = {result["item_key"]: result["failures"] for result in report.get("clauses", [])}
    shown = []
    for item in runtime.ledger.reads.items(job.job_id, Stage.GENERATE_RULES):
        clause = clauses[item.clause_ordinal or 0]
        rules = RuleOutput.model_validate_json(item.output) if item.output else RuleOutput()
        suite_item = suites.get(item.key.item_key)
        suite = (
            SuiteOutput.model_validate_json(suite_item.output) if suite_item and suite_item.output else SuiteOutput()
        )
        shown.append(
            {
                "item": item.key.item_key,
                "state": item.state.value,
                "heading_path": list(clause.heading_path),
                "lead": clause.lead,
                "text": clause.text,
                "start": clause.start,
                "end": clause.end,
                "rules": [_rule(rule) for rule in rules.rules],
                "no_rule": rules.no_rule.model_dump(mode="json") if rules.no_rule else None,
                "tests": [case.model_dump(mode="json") for case in suite.tests],
                "failures": findings.get(item.key.item_key, []),
            }
        )
    actions = _actions(runtime, job)
    return {
        "job": str(job.name),
        "state": job.state.value,
        "reason": reason_of(runtime, job).text,
        "provider": job.behaviour["provider"],
        "provider_label": label_of(job.behaviour["provider"]),
        "behaviour": job.behaviour,
        "action_set": job.action_set_digest,
        "actions": actions,
        "rules": sum(len(clause["rules"]) for clause in shown),
        "tests": sum(len(clause["tests"]) for clause in shown),
        "abstained": report.get("abstained", {}),
        "passed": report.get("passed"),
        "failures": report.get("failures", []),
        "clauses": shown,
    }


def _actions(runtime: Runtime, job: JobRecord) -> list[dict[str, str]]:
    if job.action_set_digest is None:
        return []
    content = runtime.ledger.reads.action_set(job.job_id, job.action_set_digest)
    actions: list[dict[str, str]] = json.loads(content)["actions"]
    return actions


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "in_words": f"{rule.subject}: {_IN_WORDS[rule.decision]}"
        + (f" by {rule.approver}" if rule.approver else "")
        + f" ({rule.modality})",
        "decision": rule.decision.value,
        "applies_when": rule.applies_when,
        "unless": [exception.condition for exception in rule.unless],
        "cap": rule.cap,
        "params": {name: _param(param) for name, param in rule.params.items()},
        "quote": rule.source.quote,
    }


def _param(param: Param) -> str:
    if isinstance(param, MoneyParam):
        return format_minor(param.minor, param.currency)
    if isinstance(param, RateParam):
        whole, part = divmod(param.micros, 1_000_000)
        return f"{param.currency} {whole}.{part:06d} per {param.per}"
    return f"{param.value} {param.unit or ''}".strip()
