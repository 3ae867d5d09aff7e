"""Metadata of materializations: numbers as numbers, everything that a policy or a provider wrote as plain text.

`MetadataValue.md` is never used: the page would render what somebody else wrote.
"""

import json
from collections.abc import Mapping

import dagster as dg

from rulegen_dagster.domain.canonical import sha256_hex
from rulegen_dagster.domain.rule import RuleOutput, SuiteOutput
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.domain.work import Offer
from rulegen_dagster.providers.port import NOT_A_MODEL
from rulegen_dagster.providers.registry import is_language_model
from rulegen_dagster.workflow.documents import Reused
from rulegen_dagster.workflow.partitions import KeyOutcome, KeyState

_QUOTE_LIMIT = 1_000
_MetadataMap = dict[str, dg.MetadataValue]


def stage_metadata(value: object) -> _MetadataMap:
    """Return the metadata of a stage that treats a job as a whole."""
    match value:
        case Offer(output=output, claim=claim):
            return {
                "work_item": _text(f"{claim.key.stage}/{claim.key.item_key}"),
                "attempt": dg.MetadataValue.int(claim.attempt),
                "reused": dg.MetadataValue.bool(False),
                "digest": _text(sha256_hex(output)),
                **_summary(claim.key.stage, output),
            }
        case Reused(item=item):
            return {
                "work_item": _text(f"{item.key.stage}/{item.key.item_key}"),
                "attempt": dg.MetadataValue.int(item.attempts),
                "reused": dg.MetadataValue.bool(True),
                "digest": _text(str(item.output_digest)),
                **_summary(item.key.stage, item.output or "{}"),
            }
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
        "digest": _text(sha256_hex(output)),
        **_maker(outcome),
        **(_rules(output) if outcome.stage is Stage.GENERATE_RULES else _suite(output)),
    }
    return dg.AssetMaterialization(
        asset_key=asset_key,
        partition=outcome.partition_key,
        metadata=metadata,
        tags={"dagster/data_version": sha256_hex(output)},
    )


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
    return shown


def _text(text: str) -> dg.MetadataValue:
    return dg.MetadataValue.text(text if len(text) <= _QUOTE_LIMIT else text[:_QUOTE_LIMIT] + "…")
