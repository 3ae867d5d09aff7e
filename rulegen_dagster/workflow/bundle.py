"""The bundle: exactly the files that publishing writes, made from accepted outputs alone."""

import json
from dataclasses import dataclass
from typing import Any

from rulegen_dagster.domain.canonical import canonical_json, sha256_hex
from rulegen_dagster.domain.rule import RuleOutput, SuiteOutput
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.ledger.reads import JobRecord
from rulegen_dagster.providers.registry import label_of
from rulegen_dagster.rules.validation import ClauseEntry
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
    """Return each normative clause with its accepted rules and tests, in document order."""
    reads = runtime.ledger.reads
    clauses = {clause.ordinal: clause for clause in reads.clauses(job_id)}
    suites = {item.key.item_key: item for item in reads.items(job_id, Stage.GENERATE_TESTS)}
    entries = []
    for item in reads.items(job_id, Stage.GENERATE_RULES):
        suite = suites.get(item.key.item_key)
        if item.output is None or suite is None or suite.output is None or item.clause_ordinal is None:
            raise ValueError(f"{item.key.item_key} has no accepted rules and tests yet")
        entries.append(
            ClauseEntry(
                item_key=item.key.item_key,
                clause=clauses[item.clause_ordinal],
                rules=RuleOutput.model_validate_json(item.output),
                suite=SuiteOutput.model_validate_json(suite.output),
            )
        )
    return entries


def build_bundle(runtime: Runtime, job: JobRecord, entries: list[ClauseEntry], report: str) -> Bundle:
    """Return the job's bundle; the same accepted outputs always give the same bytes. `report` is canonical JSON."""
    text = runtime.blobs.get(str(job.canonical_digest))
    rules = [rule.model_dump(mode="json") for entry in entries for rule in entry.rules.rules]
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
            }
            for entry in entries
        ],
    }
    return Bundle(
        files={
            "behaviour.json": canonical_json(job.behaviour).encode(),
            "rules.json": canonical_json({"generated_by": _maker(job), "rules": rules}).encode(),
            "sources.json": canonical_json(sources).encode(),
            "specification.txt": text,
            "tests.json": canonical_json({"suites": tests}).encode(),
            "validation_report.json": report.encode(),
        }
    )


def action_set_content(job: JobRecord, entries: list[ClauseEntry], bundle: Bundle) -> dict[str, Any]:
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
    }


def accepted_report(runtime: Runtime, job_id: int) -> str | None:
    """Return the accepted validation report as canonical JSON, or None where there is none yet."""
    items = runtime.ledger.reads.items(job_id, Stage.VALIDATE)
    return items[0].output if items else None


def report_of(text: str) -> dict[str, Any]:
    """Return a validation report as plain data."""
    content: dict[str, Any] = json.loads(text)
    return content


def _maker(job: JobRecord) -> dict[str, Any]:
    provider = job.behaviour["provider"]
    return {"provider": provider, "model_id": job.behaviour["model_id"], "label": label_of(provider)}
