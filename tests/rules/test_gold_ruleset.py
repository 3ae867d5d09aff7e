"""A ruleset that was written by hand from a German regulation runs on both evaluators, test by test."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rulegen_dagster.domain.rule import Rule, TestCase
from rulegen_dagster.domain.vocabulary import Vocabulary
from rulegen_dagster.rules.conflicts import find_conflicts
from rulegen_dagster.rules.engine import CompiledRule, Outcome, compile_rule
from rulegen_dagster.rules.facts import complete_facts
from rulegen_dagster.rules.mutation import mutate
from rulegen_dagster.rules.policies import prover_is_installed
from rulegen_dagster.rules.proof import prove

GOLD = Path(__file__).parents[3] / "shared" / "gold" / "brkg.gold.json"
pytestmark = pytest.mark.skipif(not GOLD.is_file(), reason="the hand-written ruleset is not part of this checkout")


@pytest.fixture(scope="module")
def gold() -> dict[str, Any]:
    return dict(json.loads(GOLD.read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def regulation(gold: dict[str, Any]) -> Vocabulary:
    """Return the ruleset's facts as a vocabulary."""
    facts = {}
    for name, fact in gold["facts"].items():
        facts[name] = dict(fact)
        if fact["type"] == "enum":
            facts[name] |= {"values": dict.fromkeys(fact["values"], ()), "default": fact["values"][0]}
    subjects = sorted({rule["subject"] for rule in gold["rules"]})
    return Vocabulary.model_validate(
        {"name": "brkg", "version": 1, "description": "travel", "subjects": subjects, "facts": facts}
    )


@pytest.fixture(scope="module")
def compiled(gold: dict[str, Any], regulation: Vocabulary) -> dict[str, CompiledRule]:
    """Return each rule of the ruleset, compiled for both evaluators."""

    def source(span: dict[str, Any]) -> dict[str, Any]:
        return {"clause_ordinal": 0, **{key: span[key] for key in ("quote", "start", "end")}}

    rules = {}
    for raw in gold["rules"]:
        fields = {key: raw[key] for key in ("modality", "subject", "decision", "applies_when", "priority")}
        params = {name: param | {"quote": raw["source"]["quote"]} for name, param in raw["params"].items()}
        unless = [{"condition": item["condition"], "source": source(item["source"])} for item in raw["unless"]]
        placed = {"id": raw["id"].lower(), "source": source(raw["source"]), "cap": raw.get("cap")}
        rule = Rule.model_validate({**fields, **placed, "params": params, "unless": unless})
        rules[raw["id"]] = compile_rule(rule, regulation)
    return rules


def test_every_hand_written_test_holds_on_both_evaluators(
    gold: dict[str, Any], regulation: Vocabulary, compiled: dict[str, CompiledRule]
) -> None:
    ran = 0
    for raw in gold["rules"]:
        for case in raw["tests"]:
            outcome = compiled[raw["id"]].decide(complete_facts(regulation, case["facts"]))

            expected = None if case["expect"] == "no_match" else case["expect"]
            assert outcome == Outcome(decision=expected, cap_minor=case.get("expect_cap_minor")), case["name"]
            ran += 1

    assert len(compiled) == 18
    assert ran == 75


def test_the_tests_notice_every_mutant_of_every_rule(
    gold: dict[str, Any], regulation: Vocabulary, compiled: dict[str, CompiledRule]
) -> None:
    for raw in gold["rules"]:
        cases = [TestCase.model_validate(case) for case in raw["tests"]]

        result = mutate([compiled[raw["id"]]], cases, regulation)

        assert result.mutants > result.equivalent
        assert (result.survivors, result.score) == ((), 1.0), raw["id"]


def test_the_conflict_of_the_two_meal_caps_is_found_with_a_witness(
    regulation: Vocabulary, compiled: dict[str, CompiledRule]
) -> None:
    report = find_conflicts(list(compiled.values()), regulation)

    conflicts = [finding for finding in report.findings if finding.kind.is_conflict]
    assert [finding.rule_ids for finding in conflicts] == [("br-16", "br-18")]
    facts = complete_facts(regulation, conflicts[0].witness)
    caps = [compiled[rule_id].decide(facts).cap_minor for rule_id in ("BR-16", "BR-18")]
    assert None not in caps
    assert caps[0] != caps[1]


@pytest.mark.skipif(not prover_is_installed(), reason="the optional prover (z3) is not installed")
def test_the_prover_finds_what_the_grid_finds(regulation: Vocabulary, compiled: dict[str, CompiledRule]) -> None:
    rules = list(compiled.values())
    grid = find_conflicts(rules, regulation)

    proof = prove(rules, regulation, replace(grid, findings=()))

    assert proof.open_questions == 0
    assert {(finding.kind, frozenset(finding.rule_ids)) for finding in proof.report.findings} == {
        (finding.kind, frozenset(finding.rule_ids)) for finding in grid.findings
    }
    for finding in proof.report.findings:
        asked = {rule.rule.id: rule for rule in rules}
        facts = complete_facts(regulation, finding.witness)
        assert finding.outcomes == tuple(asked[rule_id].decide(facts) for rule_id in finding.rule_ids)
