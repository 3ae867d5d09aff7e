"""Review: everything that a person needs to see before a confirmation, in one report."""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from rulegen_dagster.domain.clause import Clause
from rulegen_dagster.domain.money import format_minor
from rulegen_dagster.domain.rule import Decision, MoneyParam, Param, RateParam, Rule, RuleOutput, SuiteOutput
from rulegen_dagster.domain.source_map import PlaceUnit
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.ledger.reads import ItemRecord, JobRecord
from rulegen_dagster.ledger.waivers import GivenWaiver
from rulegen_dagster.providers.registry import label_of
from rulegen_dagster.workflow.bundle import accepted_report, in_force, report_of, waivers_of
from rulegen_dagster.workflow.content import TEXT_REMOVED, canonical_text
from rulegen_dagster.workflow.explain import reason_of
from rulegen_dagster.workflow.extract import load_context, load_missing_context, load_source_map
from rulegen_dagster.workflow.publish import published_path
from rulegen_dagster.workflow.runtime import Runtime

_IN_WORDS = {
    Decision.ALLOW: "allowed",
    Decision.DENY: "not allowed",
    Decision.REQUIRE_APPROVAL: "needs approval",
    Decision.REQUIRE_RECEIPT: "needs a receipt",
    Decision.FLAG: "flagged for a person",
    Decision.REIMBURSE_UP_TO: "reimbursed up to a cap",
}
_OF_QUALITY: dict[str, Any] = {
    "policy": None,
    "mutation": None,
    "findings": [],
    "pairs": None,
    "thinned": [],
    "coverage": None,
    "proof": None,
}
"""Parts of a validation report, with what stands for them before there is one; earlier releases wrote none of them."""


def review_report(runtime: Runtime, job: JobRecord) -> dict[str, Any]:
    """Return each normative clause with its place, rules, tests and findings; the quality, and the action set.

    `failures` are those of the ruleset as a whole (a clause's stand with it), `missing` is what the policy asks for
    beside them, and `passed` is None until there is a report.
    """
    job = runtime.ledger.reads.job_by_id(job.job_id)
    report = report_of(accepted_report(runtime, job.job_id) or "{}")
    waivers = waivers_of(runtime, job.job_id)
    shown = _clauses(runtime, job, report, waivers)
    published = published_path(runtime, job)
    return {
        "job": str(job.name),
        "state": job.state.value,
        "reason": reason_of(runtime, job).text,
        "file": job.file_name,
        "provider": job.behaviour["provider"],
        "provider_label": label_of(job.behaviour["provider"]),
        "behaviour": job.behaviour,
        "action_set": job.action_set_digest,
        "actions": _actions(runtime, job),
        "published": str(published) if published else None,
        "rules": sum(len(clause["rules"]) for clause in shown),
        "tests": sum(len(clause["tests"]) for clause in shown),
        # Counted as rules and tests are: a validation report may be of an earlier state, or not there.
        "abstained": dict(
            sorted(Counter(clause["no_rule"]["reason"] for clause in shown if clause["no_rule"]).items())
        ),
        "passed": report.get("passed"),
        "failures": report.get("failures", []),
        "missing": report.get("missing", []),
        **{name: report.get(name, otherwise) for name, otherwise in _OF_QUALITY.items()},
        "waivers": [
            {
                "clause_ordinal": given.clause_ordinal,
                "actor": given.actor,
                "reason": given.reason,
                "at_ms": given.created_at,
            }
            for given in waivers.values()
        ],
        "clauses": shown,
    }


def coverage_line(coverage: Mapping[str, Any]) -> str:
    """Return in words what a validation report's `coverage` says: a clause that gives no rule can be covered too."""
    normative, waiting = coverage["normative"], len(coverage["open_items"])
    return (
        f"{'not every' if waiting else 'every'} clause has an accepted end: {normative - waiting} of {normative}"
        f" ({coverage['with_rules']} with rules, {coverage['without_rule']} without,"
        f" {coverage['waived']} of them waived)"
    )


def _clauses(
    runtime: Runtime, job: JobRecord, report: Mapping[str, Any], waivers: Mapping[int, GivenWaiver]
) -> list[dict[str, Any]]:
    reads = runtime.ledger.reads
    clauses = {clause.ordinal: clause for clause in reads.clauses(job.job_id)}
    suites = {item.key.item_key: item for item in reads.items(job.job_id, Stage.GENERATE_TESTS)}
    failures = {result["item_key"]: result["failures"] for result in report.get("clauses", [])}
    text = canonical_text(runtime, job)
    places = load_source_map(runtime, job.job_id)
    context, no_context = load_context(runtime, job.job_id), load_missing_context(runtime, job.job_id)
    shown = []
    for item in reads.items(job.job_id, Stage.GENERATE_RULES):
        clause = clauses[item.clause_ordinal or 0]
        shown.append(
            {
                "item": item.key.item_key,
                "ordinal": clause.ordinal,
                "state": item.state.value,
                "location": (
                    TEXT_REMOVED
                    if text is None and places.unit is PlaceUnit.LINE
                    else places.location_of(text or "", clause.start)
                ),
                **_clause(clause, item, suites.get(item.key.item_key), waivers.get(clause.ordinal)),
                "context": [
                    {"ordinal": entry.ordinal, "relation": entry.relation, "text": entry.text}
                    for entry in context.get(clause.ordinal, ())
                ],
                "no_context": no_context.get(clause.ordinal),
                "failures": failures.get(item.key.item_key, []),
                "survivors": [
                    survivor
                    for survivor in (report.get("mutation") or {}).get("survivors", [])
                    if survivor["item_key"] == item.key.item_key
                ],
            }
        )
    return shown


def _clause(
    clause: Clause, item: ItemRecord, suite_item: ItemRecord | None, waiver: GivenWaiver | None
) -> dict[str, Any]:
    generated = RuleOutput.model_validate_json(item.output) if item.output else RuleOutput()
    suite = SuiteOutput.model_validate_json(suite_item.output) if suite_item and suite_item.output else SuiteOutput()
    rules, tests = in_force(generated, suite, waiver)
    return {
        "heading_path": list(clause.heading_path),
        "lead": clause.lead,
        "text": clause.text,
        "start": clause.start,
        "end": clause.end,
        "rules": [_rule(rule) for rule in rules.rules],
        "no_rule": rules.no_rule.model_dump(mode="json") if rules.no_rule else None,
        "proposed_facts": [fact.model_dump(mode="json") for fact in generated.proposed_facts],
        "tests": [case.model_dump(mode="json") for case in tests.tests],
        "waiver": {"actor": waiver.actor, "reason": waiver.reason, "at_ms": waiver.created_at} if waiver else None,
        # What was generated for a waived clause: the ruleset does not hold it.
        "left_out": [_rule(rule) for rule in generated.rules] if waiver else [],
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
        # What the rule takes from other clauses, for a person to look at.
        "quotes_elsewhere": [
            {"clause_ordinal": ordinal, "for": what, "quote": quote}
            for ordinal, what, quote in (
                *((item.source.clause_ordinal, item.condition, item.source.quote) for item in rule.unless),
                *((param.clause_ordinal, f"p.{name}", param.quote) for name, param in rule.params.items()),
            )
            if ordinal is not None and ordinal != rule.source.clause_ordinal
        ],
        "cap": rule.cap,
        "params": {name: _param(param) for name, param in rule.params.items()},
        "quote": rule.source.quote,
        "depends_on": list(rule.depends_on),
    }


def _param(param: Param) -> str:
    if isinstance(param, MoneyParam):
        return format_minor(param.minor, param.currency)
    if isinstance(param, RateParam):
        whole, part = divmod(param.micros, 1_000_000)
        return f"{param.currency} {whole}.{part:06d} per {param.per}"
    return f"{param.value} {param.unit or ''}".strip()
