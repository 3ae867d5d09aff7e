"""Asset checks of `validation_report`: what validation found, one verdict for each thing that a policy asks for.

They show a verdict and decide nothing: the report was accepted before, and the ledger alone knows whether a job can be
confirmed. Everything that a policy or a provider wrote is plain text, in tables too.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import dagster as dg

from rulegen_dagster.domain.states import Stage
from rulegen_dagster.domain.text import printable
from rulegen_dagster.ledger.outbox import Acceptance
from rulegen_dagster.resources.accepting_io_manager import ASSET_OF_STAGE
from rulegen_dagster.resources.failures import as_failures, refused
from rulegen_dagster.workflow.bundle import accepted_report, report_of
from rulegen_dagster.workflow.explain import failures_of
from rulegen_dagster.workflow.runtime import Runtime

ASSET: Final = ASSET_OF_STAGE[Stage.VALIDATE]
TESTS, GROUNDING, MUTATION, CONFLICTS, COVERAGE = "tests_pass", "grounding", "mutation_score", "conflicts", "coverage"
_MOST_ROWS = 50
_MOST_CHARACTERS = 500
_OF_GROUNDING = frozenset({"quote_not_verbatim", "number_not_in_quote", "currency_not_in_quote"})

SPECS: Final = tuple(
    dg.AssetCheckSpec(name, asset=ASSET, description=description)
    for name, description in (
        (TESTS, "Every test passes on both evaluators, and the ruleset can be executed as a whole."),
        (GROUNDING, "Every quote stands in its clause, and every number in its quote."),
        (MUTATION, "The tests notice as many wrong copies of the rules as the policy asks for."),
        (CONFLICTS, "No more pairs of rules contradict each other than the policy allows."),
        (COVERAGE, "Each normative clause ends as rules, as an accepted 'no rule', or as a waiver."),
    )
)
"""The checks, in the order in which they are shown."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What one check says of one report."""

    name: str
    passed: bool
    severity: dg.AssetCheckSeverity
    description: str
    metadata: dict[str, dg.MetadataValue]


def check_results(context: dg.AssetCheckExecutionContext, runtime: Runtime) -> Iterator[dg.AssetCheckResult]:
    """Return the results of the run's job. Raises `dg.Failure` where there is no accepted report."""
    with as_failures():
        if not context.has_partition_key:
            raise refused("no_keys", "these checks work on one partition of `jobs`; choose one and launch them again")
        key = context.partition_key
        job = runtime.ledger.reads.job_by_partition(key)
        text = accepted_report(runtime, job.job_id) if job else None
        if job is None or text is None:
            raise refused("no_report", f"the ledger has no accepted report behind the partition '{key[:64]}'")
        found = verdicts(report_of(text), str(job.name))
    for verdict in found:
        yield dg.AssetCheckResult(
            check_name=verdict.name,
            passed=verdict.passed,
            severity=verdict.severity,
            description=verdict.description,
            metadata=verdict.metadata,
        )


def late_checks(acceptance: Acceptance) -> Iterator[dg.AssetCheckEvaluation]:
    """Return the evaluations of a report that no run of Dagster's has checked."""
    for verdict in verdicts(report_of(acceptance.output), str(acceptance.job)):
        yield dg.AssetCheckEvaluation(
            asset_key=dg.AssetKey(ASSET),
            check_name=verdict.name,
            passed=verdict.passed,
            severity=verdict.severity,
            description=verdict.description,
            metadata=verdict.metadata,
        )


def verdicts(report: Mapping[str, Any], job: str) -> list[Verdict]:
    """Return what each check says of a report, in the order of `SPECS`."""
    failures = failures_of(dict(report))
    grounding = [failure for failure in failures if failure["code"] in _OF_GROUNDING]
    others = [failure for failure in failures if failure["code"] not in _OF_GROUNDING]
    made = [
        _verdict(
            TESTS,
            [failure["message"] for failure in others],
            {
                **_numbers(report, "rules", "tests", "tests_failed", "evaluator_differences"),
                "failures": _failures(others),
            },
        ),
        _verdict(
            GROUNDING,
            [failure["message"] for failure in grounding],
            {"ungrounded": dg.MetadataValue.int(len(grounding)), "failures": _failures(grounding)},
        ),
        _mutation(report),
        _conflicts(report),
        _coverage(report),
    ]
    for verdict in made:
        verdict.metadata["job"] = _text(job)
        verdict.metadata["policy"] = _text(str(report.get("policy")))
    return made


def _mutation(report: Mapping[str, Any]) -> Verdict:
    measured = report.get("mutation")
    if measured is None:
        return _unmeasured(MUTATION)
    survivors = [
        {
            "rule": survivor["rule_id"],
            "change": survivor["change"],
            "facts": _facts(survivor["witness"]),
            "expected": survivor["expected"],
            "found": survivor["found"],
        }
        for survivor in measured["survivors"]
    ]
    numbers = _numbers(measured, "percent", "mutants", "killed", "equivalent", "survived")
    return _verdict(
        MUTATION,
        _lacks(report, "mutation_score"),
        {**numbers, "survivors": _table(("rule", "change", "facts", "expected", "found"), survivors)},
    )


def _conflicts(report: Mapping[str, Any]) -> Verdict:
    findings = report.get("findings")
    if findings is None:
        return _unmeasured(CONFLICTS)
    rows = [
        {
            "kind": finding["kind"],
            "is_conflict": "yes" if finding["is_conflict"] else "no",
            "rules": ", ".join(finding["rule_ids"]),
            "quotes": " | ".join(finding["quotes"]),
            "facts": _facts(finding["witness"]),
            "decided": ", ".join(finding["decided"]),
        }
        for finding in findings
    ]
    columns = ("kind", "is_conflict", "rules", "quotes", "facts", "decided")
    return _verdict(
        CONFLICTS,
        _lacks(report, "conflicts"),
        {
            "conflicts": dg.MetadataValue.int(sum(finding["is_conflict"] for finding in findings)),
            "findings": dg.MetadataValue.int(len(findings)),
            "found": _table(columns, rows),
            **_numbers(report, "pairs"),
            **_proof(report.get("proof")),
        },
    )


def _proof(proof: Mapping[str, Any] | None) -> dict[str, dg.MetadataValue]:
    """Return by what the findings were decided for all facts, where the policy asked for that."""
    if proof is None:
        return {}
    return {"proved_by": _text(proof["engine"]), **_numbers(proof, "questions", "open_questions")}


def _coverage(report: Mapping[str, Any]) -> Verdict:
    covered = report.get("coverage")
    if covered is None:
        return _unmeasured(COVERAGE)
    numbers = _numbers(covered, "percent", "normative", "with_rules", "without_rule", "waived")
    return _verdict(
        COVERAGE,
        _lacks(report, "coverage", "abstentions"),
        {**numbers, "open": dg.MetadataValue.int(len(covered["open_items"]))},
    )


def _verdict(name: str, reasons: Sequence[str], metadata: dict[str, dg.MetadataValue]) -> Verdict:
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return Verdict(
        name=name,
        passed=not reasons,
        severity=dg.AssetCheckSeverity.ERROR,
        description=printable(reasons[0])[:_MOST_CHARACTERS] + more if reasons else "nothing is missing",
        metadata=metadata,
    )


def _unmeasured(name: str) -> Verdict:
    # No claim in either direction: the release that validated the job did not look.
    return Verdict(
        name=name,
        passed=False,
        severity=dg.AssetCheckSeverity.WARN,
        description="the release that validated this job did not measure it",
        metadata={},
    )


def _lacks(report: Mapping[str, Any], *codes: str) -> list[str]:
    return [lack["message"] for lack in report.get("missing", []) if lack["code"] in codes]


def _numbers(found: Mapping[str, Any], *names: str) -> dict[str, dg.MetadataValue]:
    return {name: dg.MetadataValue.int(found[name]) for name in names if isinstance(found.get(name), int)}


def _failures(failures: Sequence[Mapping[str, Any]]) -> dg.MetadataValue:
    rows = [
        {
            "item": failure.get("item_key", ""),
            "code": failure["code"],
            "path": failure["path"],
            "message": failure["message"],
        }
        for failure in failures
    ]
    return _table(("item", "code", "path", "message"), rows)


def _table(columns: Sequence[str], rows: Sequence[Mapping[str, str]]) -> dg.MetadataValue:
    return dg.MetadataValue.table(
        records=[
            dg.TableRecord({name: printable(text)[:_MOST_CHARACTERS] for name, text in row.items()})
            for row in rows[:_MOST_ROWS]
        ],
        schema=dg.TableSchema(columns=[dg.TableColumn(name, "string") for name in columns]),
    )


def _facts(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in facts.items())


def _text(text: str) -> dg.MetadataValue:
    return dg.MetadataValue.text(printable(text)[:_MOST_CHARACTERS])
