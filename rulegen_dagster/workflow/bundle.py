"""The bundle: exactly the files that publishing writes, made from accepted outputs alone."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rulegen_dagster.domain.canonical import canonical_json, sha256_hex
from rulegen_dagster.domain.rule import Rule, RuleOutput, SuiteOutput
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.domain.waiver import waived_rules, waived_suite
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.ledger.waivers import GivenWaiver
from rulegen_dagster.providers.registry import label_of
from rulegen_dagster.rules.clause_entries import ClauseEntry
from rulegen_dagster.workflow.runtime import Runtime

BUNDLE_FORMAT = "rulegen-bundle/1"
ACTION_SET_FORMAT = "rulegen-action-set/1"


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """File names and bytes; the confirmation and the manifest join when it is published."""

    files: dict[str, bytes]

    @property
    def digests(self) -> dict[str, str]:
        """The SHA-256 of each file."""
        return {name: sha256_hex(data) for name, data in sorted(self.files.items())}


def clause_entries(runtime: Runtime, job_id: int) -> list[ClauseEntry]:
    """Return each normative clause with its accepted rules and tests, in document order.

    A waived clause has none, whatever was generated for it.
    """
    reads, waivers = runtime.ledger.reads, waivers_of(runtime, job_id)
    clauses = {clause.ordinal: clause for clause in reads.clauses(job_id)}
    suites = {item.key.item_key: item for item in reads.items(job_id, Stage.GENERATE_TESTS)}
    entries = []
    for item in reads.items(job_id, Stage.GENERATE_RULES):
        suite = suites.get(item.key.item_key)
        if item.output is None or suite is None or suite.output is None or item.clause_ordinal is None:
            raise ValueError(f"{item.key.item_key} has no accepted rules and tests yet")
        rules, tests = in_force(
            RuleOutput.model_validate_json(item.output),
            SuiteOutput.model_validate_json(suite.output),
            waivers.get(item.clause_ordinal),
        )
        cited = sorted(frozenset[int]().union(*(rule.cited for rule in rules.rules)))
        entries.append(
            ClauseEntry(
                item_key=item.key.item_key,
                clause=clauses[item.clause_ordinal],
                rules=rules,
                suite=tests,
                cited=tuple(clauses[ordinal] for ordinal in cited if ordinal in clauses),
            )
        )
    return entries


def waivers_of(runtime: Runtime, job_id: int) -> dict[int, GivenWaiver]:
    """Return a job's waivers by the ordinal of their clause."""
    return {given.clause_ordinal: given for given in runtime.ledger.waivers.of(job_id)}


def in_force(rules: RuleOutput, tests: SuiteOutput, waiver: GivenWaiver | None) -> tuple[RuleOutput, SuiteOutput]:
    """Return what of a clause's outputs the ruleset holds: a waiver leaves its rules and tests out.

    A provider's own reason for "no rule" stays beside a waiver.
    """
    if waiver is None:
        return rules, tests
    return (waived_rules(waiver.reason) if rules.rules else rules), waived_suite(waiver.reason)


def build_bundle(runtime: Runtime, job: JobRecord, entries: list[ClauseEntry], report: str) -> Bundle:
    """Return the job's bundle; the same accepted outputs always give the same bytes. `report` is canonical JSON."""
    text, waivers = runtime.blobs.get(str(job.canonical_digest)), waivers_of(runtime, job.job_id)
    rules = [_rule_content(rule) for entry in entries for rule in entry.rules.rules]
    tests = [
        {
            "clause_ordinal": entry.clause.ordinal,
            "rule_ids": [rule.id for rule in entry.rules.rules],
            "tests": [case.model_dump(mode="json") for case in entry.suite.tests],
        }
        for entry in entries
        if entry.rules.rules
    ]
    sources = {
        "file_name": job.file_name,
        "spec_sha256": job.spec_digest,
        "canonical_text_sha256": job.canonical_digest,
        "offset_unit": "unicode code points",
        "clauses": [
            {
                "ordinal": entry.clause.ordinal,
                "start": entry.clause.start,
                "end": entry.clause.end,
                "heading_path": list(entry.clause.heading_path),
                "text": entry.clause.text,
                "rule_ids": [rule.id for rule in entry.rules.rules],
                "no_rule": entry.rules.no_rule.model_dump(mode="json") if entry.rules.no_rule else None,
                # Only where there is one: what an earlier release let a person confirm keeps its bytes.
                **_waiver_part(waivers.get(entry.clause.ordinal)),
            }
            for entry in entries
        ],
        **_context_part(runtime, job, entries),
    }
    return Bundle(
        files={
            "behaviour.json": canonical_json(job.behaviour).encode(),
            "rules.json": canonical_json({"generated_by": _maker(job), "rules": rules}).encode(),
            "sources.json": canonical_json(sources).encode(),
            "specification.txt": text,
            "tests.json": canonical_json({"suites": tests}).encode(),
            "validation_report.json": report.encode(),
            **_changes_part(runtime, job),
        }
    )


def action_set_content(
    job: JobRecord, entries: list[ClauseEntry], bundle: Bundle, waivers: Iterable[GivenWaiver]
) -> dict[str, Any]:
    """Return what a person confirms: the one action, its target, and the digest of every file that it writes."""
    return {
        "format": ACTION_SET_FORMAT,
        "job": str(job.name),
        "behaviour": job.behaviour_digest,
        "actions": [{"kind": "publish", "target": f"{job.name.tenant}/{job.ruleset}"}],
        "files": bundle.digests,
        "rules": sum(len(entry.rules.rules) for entry in entries),
        "tests": sum(len(entry.suite.tests) for entry in entries),
        "clauses_without_rule": [
            {"clause_ordinal": entry.clause.ordinal, "reason": entry.rules.no_rule.reason}
            for entry in entries
            if entry.rules.no_rule is not None
        ],
        "waivers": [
            {"clause_ordinal": given.clause_ordinal, "actor": given.actor, "reason": given.reason} for given in waivers
        ],
    }


def _rule_content(rule: Rule) -> dict[str, Any]:
    content: dict[str, Any] = rule.model_dump(mode="json")
    if not rule.depends_on:
        # What an earlier release let a person confirm keeps its bytes.
        del content["depends_on"]
    for param in content["params"].values():
        if param["clause_ordinal"] is None:
            del param["clause_ordinal"]
    return content


def _context_part(runtime: Runtime, job: JobRecord, entries: list[ClauseEntry]) -> dict[str, Any]:
    """Return the clauses that rules depend on and that are not among the normative ones."""
    shown = {entry.clause.ordinal for entry in entries}
    wanted = {ordinal for entry in entries for rule in entry.rules.rules for ordinal in rule.depends_on} - shown
    if not wanted:
        return {}
    return {
        "context": [
            {"ordinal": clause.ordinal, "start": clause.start, "end": clause.end, "text": clause.text}
            for clause in runtime.ledger.reads.clauses(job.job_id)
            if clause.ordinal in wanted
        ]
    }


def _changes_part(runtime: Runtime, job: JobRecord) -> dict[str, bytes]:
    """Return how the job came to its behaviour, where that is another than it began with."""
    changed = [vars(change) for change in runtime.ledger.behaviours.changes(job.job_id)]
    return {"behaviour_changes.json": canonical_json(changed).encode()} if changed else {}


def accepted_report(runtime: Runtime, job_id: int) -> str | None:
    """Return the accepted validation report as canonical JSON, or None where there is none yet."""
    items = runtime.ledger.reads.items(job_id, Stage.VALIDATE)
    return items[0].output if items else None


def _waiver_part(waiver: GivenWaiver | None) -> dict[str, Any]:
    return {} if waiver is None else {"waiver": {"actor": waiver.actor, "reason": waiver.reason}}


def report_of(text: str) -> dict[str, Any]:
    """Return a validation report as plain data."""
    content: dict[str, Any] = json.loads(text)
    return content


def _maker(job: JobRecord) -> dict[str, Any]:
    provider = job.behaviour["provider"]
    return {"provider": provider, "model_id": job.behaviour["model_id"], "label": label_of(provider)}
