"""Metadata of materializations: numbers as numbers, everything that a policy or a provider wrote as plain text.

`MetadataValue.md` is never used: the page would render what somebody else wrote.
"""

import json
from collections.abc import Mapping
from typing import Any

import dagster as dg
from pydantic import ValidationError

from rulegen_dagster.domain.canonical import sha256_hex
from rulegen_dagster.domain.rule import RuleOutput, SuiteOutput
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.domain.work import Offer, WorkKey
from rulegen_dagster.ledger.outbox import Acceptance
from rulegen_dagster.providers.port import NOT_A_MODEL
from rulegen_dagster.providers.registry import is_language_model
from rulegen_dagster.workflow.documents import Reused
from rulegen_dagster.workflow.partitions import KeyOutcome, KeyState

DIGEST = "digest"
MANIFEST_DIGEST = "manifest_digest"
DATA_VERSION_TAG = "dagster/data_version"
_QUOTE_LIMIT = 1_000
_MetadataMap = dict[str, dg.MetadataValue]


def stage_metadata(value: object) -> _MetadataMap:
    """Return the metadata of a stage that treats a job as a whole."""
    match value:
        case Offer(output=output, claim=claim):
            return _document(claim.key, output, attempt=claim.attempt, reused=False)
        case Reused(item=item):
            return _document(item.key, item.output or "{}", attempt=item.attempts, reused=True)
        case _:
            return {name: _text(str(found)) for name, found in vars(value).items()}


def key_event(outcome: KeyOutcome, asset_key: dg.AssetKey) -> dg.AssetMaterialization:
    """Return the one materialization event of an accepted key."""
    output = outcome.output or "{}"
    metadata = {
        "work_item": _text(f"{outcome.job}/{outcome.stage}/{outcome.item_key}"),
        "attempt": dg.MetadataValue.int(outcome.attempt),
        "reused": dg.MetadataValue.bool(outcome.state is KeyState.REUSED),
        "provider_called": dg.MetadataValue.bool(outcome.provider_called),
        DIGEST: _text(sha256_hex(output)),
        **_maker(outcome),
        **_content(outcome.stage, output),
    }
    return dg.AssetMaterialization(
        asset_key=asset_key,
        partition=outcome.partition_key,
        metadata=metadata,
        tags={DATA_VERSION_TAG: sha256_hex(output)},
    )


def late_event(acceptance: Acceptance, asset_key: dg.AssetKey) -> dg.AssetMaterialization:
    """Return the event of an output whose run did not write it: the same as the run's, and marked as mirrored."""
    if acceptance.key.stage in (Stage.GENERATE_RULES, Stage.GENERATE_TESTS):
        of_run = key_event(_outcome(acceptance), asset_key)
        metadata, tags = dict(of_run.metadata), dict(of_run.tags or {})
    elif acceptance.key.stage is Stage.PUBLISH:
        metadata = {
            "path": _text(str(json.loads(acceptance.output)["path"])),
            MANIFEST_DIGEST: _text(acceptance.digest),
            "reused": _text(str(False)),
        }
        tags = {DATA_VERSION_TAG: acceptance.digest}
    else:
        metadata = _document(acceptance.key, acceptance.output, attempt=acceptance.attempt, reused=False)
        tags = {DATA_VERSION_TAG: acceptance.digest}
    metadata |= {
        "mirrored": dg.MetadataValue.bool(True),
        "accepted_at": dg.MetadataValue.timestamp(acceptance.accepted_at / 1000),
    }
    if acceptance.run_id is not None:
        metadata["accepted_in_run"] = dg.MetadataValue.dagster_run(acceptance.run_id)
    return dg.AssetMaterialization(
        asset_key=asset_key, partition=acceptance.partition_key, metadata=metadata, tags=tags
    )


def digest_of(event: dg.AssetMaterialization) -> str | None:
    """Return the digest of the output that an event tells of; None for an event that is not of this project."""
    found = event.metadata.get(DIGEST) or event.metadata.get(MANIFEST_DIGEST)
    return str(found.value) if found is not None else None


def _outcome(acceptance: Acceptance) -> KeyOutcome:
    return KeyOutcome(
        partition_key=acceptance.partition_key,
        stage=acceptance.key.stage,
        state=KeyState.ACCEPTED,
        job_id=acceptance.key.job_id,
        item_key=acceptance.key.item_key,
        job=str(acceptance.job),
        attempt=acceptance.attempt,
        output=acceptance.output,
        provider=acceptance.provider,
        provider_called=acceptance.provider_called,
        usage=acceptance.usage,
    )


def _document(key: WorkKey, output: str, *, attempt: int, reused: bool) -> _MetadataMap:
    return {
        "work_item": _text(f"{key.stage}/{key.item_key}"),
        "attempt": dg.MetadataValue.int(attempt),
        "reused": dg.MetadataValue.bool(reused),
        DIGEST: _text(sha256_hex(output)),
        **_summary(key.stage, output),
    }


def _content(stage: Stage, output: str) -> _MetadataMap:
    try:
        return _rules(output) if stage is Stage.GENERATE_RULES else _suite(output)
    except ValidationError:
        # Accepted by a release that wrote another form: the event is due all the same.
        return {"content": _text("this release cannot show it; 'rulegen review' names the job's release")}


def _maker(outcome: KeyOutcome) -> _MetadataMap:
    if outcome.provider is None:
        return {}
    usage = outcome.usage
    known: Mapping[str, object | None] = {
        "model_id": usage.model_id,
        "provider_request_id": usage.request_id,
        "tokens_in": usage.tokens_in,
        "tokens_out": usage.tokens_out,
        "cost_micros": usage.cost_micros,
    }
    made: _MetadataMap = {"provider": _text(outcome.provider)}
    if not is_language_model(outcome.provider):
        made["label"] = _text(NOT_A_MODEL)
    for name, found in known.items():
        if isinstance(found, int):
            made[name] = dg.MetadataValue.int(found)
        elif found is not None:
            made[name] = _text(str(found))
    return made


def _rules(output: str) -> _MetadataMap:
    accepted = RuleOutput.model_validate_json(output)
    if accepted.no_rule is not None:
        return {"rules": dg.MetadataValue.int(0), "no_rule_reason": _text(accepted.no_rule.reason)}
    return {
        "rules": dg.MetadataValue.int(len(accepted.rules)),
        "decision": _text(", ".join(rule.decision.value for rule in accepted.rules)),
        "condition": _text("; ".join(rule.applies_when for rule in accepted.rules)),
        "quote": _text(" | ".join(rule.source.quote for rule in accepted.rules)),
    }


def _suite(output: str) -> _MetadataMap:
    accepted = SuiteOutput.model_validate_json(output)
    kinds: dict[str, int] = {}
    for case in accepted.tests:
        kinds[case.kind.value] = kinds.get(case.kind.value, 0) + 1
    return {
        "tests": dg.MetadataValue.int(len(accepted.tests)),
        "kinds": _text(", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))),
    }


def _summary(stage: Stage, output: str) -> _MetadataMap:
    content = json.loads(output)
    shown: _MetadataMap = {}
    names = {
        Stage.PARSE: ("format", "clauses", "normative"),
        Stage.VALIDATE: ("passed", "rules", "tests", "tests_failed", "evaluator_differences"),
    }.get(stage, ())
    for name in names:
        found = content.get(name)
        if isinstance(found, bool):
            shown[name] = dg.MetadataValue.bool(found)
        elif isinstance(found, int):
            shown[name] = dg.MetadataValue.int(found)
        elif found is not None:
            shown[name] = _text(str(found))
    if stage is Stage.VALIDATE:
        shown["abstained"] = dg.MetadataValue.int(sum(content.get("abstained", {}).values()))
        shown |= _quality(content)
    return shown


def _quality(report: Mapping[str, Any]) -> _MetadataMap:
    """Return the numbers that a policy asks for, under one name each: Dagster plots them over time."""
    # Earlier releases measured none of them.
    if report.get("mutation") is None:
        return {}
    mutation, coverage, findings = report["mutation"], report["coverage"], report["findings"]
    numbers = {
        "mutation_percent": mutation["percent"],
        "mutants": mutation["mutants"],
        "survivors": mutation["survived"],
        "conflicts": sum(finding["is_conflict"] for finding in findings),
        "findings": len(findings),
        "coverage_percent": coverage["percent"],
        "waivers": len(report["waivers"]),
        "missing": len(report["missing"]),
    }
    return {
        "policy": _text(report["policy"]),
        **{name: dg.MetadataValue.int(number) for name, number in numbers.items()},
    }


def _text(text: str) -> dg.MetadataValue:
    return dg.MetadataValue.text(text if len(text) <= _QUOTE_LIMIT else text[:_QUOTE_LIMIT] + "…")
