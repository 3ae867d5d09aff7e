"""Proofs: the prover agrees with the grid where the grid sees all, finds what it cannot see, and stays away unasked."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from itertools import combinations
from typing import Any

import pytest

from rulegen_dagster.domain.clause import Clause
from rulegen_dagster.domain.errors import PolicyError, RuleExecutionError
from rulegen_dagster.domain.vocabulary import Vocabulary
from rulegen_dagster.providers.pattern_model import Abstention
from rulegen_dagster.providers.pattern_readings import read_clause
from rulegen_dagster.providers.pattern_rules import rule_of
from rulegen_dagster.rules import policies, sandbox
from rulegen_dagster.rules.clause_entries import ClauseEntry
from rulegen_dagster.rules.conflicts import ConflictReport, Finding, FindingKind, find_conflicts
from rulegen_dagster.rules.drafts import read_rules_draft, read_tests_draft
from rulegen_dagster.rules.engine import CompiledRule, compile_rule
from rulegen_dagster.rules.facts import complete_facts
from rulegen_dagster.rules.packs import load_vocabulary
from rulegen_dagster.rules.policies import load_policy, parse_policy, prover_is_installed
from rulegen_dagster.rules.proof import Proof, prove
from rulegen_dagster.rules.sandbox import assess_in_sandbox
from rulegen_dagster.specs.document import read_document
from tests.rules.test_conflicts import compiled
from tests.rules.test_quality import policy

needs_prover = pytest.mark.skipif(not prover_is_installed(), reason="the optional prover (z3) is not installed")

Keys = set[tuple[FindingKind, frozenset[str]]]


def keys(findings: Sequence[Finding]) -> Keys:
    return {(finding.kind, frozenset(finding.rule_ids)) for finding in findings}


def proved(rules: Sequence[CompiledRule], vocabulary: Vocabulary, **limits: int) -> Proof:
    return prove(rules, vocabulary, find_conflicts(rules, vocabulary), **limits)


def confirm(findings: Sequence[Finding], rules: Sequence[CompiledRule], vocabulary: Vocabulary) -> None:
    """Ask the rules themselves, on both evaluators, at each witness."""
    asked = {rule.rule.id: rule for rule in rules}
    for finding in findings:
        if finding.outcomes:
            facts = complete_facts(vocabulary, finding.witness)
            assert finding.outcomes == tuple(asked[rule_id].decide(facts) for rule_id in finding.rule_ids)


CONDITIONS = (
    "trip.km > 10",
    "trip.km < 10",
    "trip.km * 2 >= 41",
    "(trip.km - 50) / 7 < -2",
    "trip.nights in [2, 3]",
    'expense.category != "lodging"',
    'expense.category in ["meals", "other"] || trip.km == 7',
    "expense.preapproved ? trip.km > 5 : trip.nights > 2",
    "!(expense.preapproved && trip.km > 10)",
    "trip.km > 5 && trip.km < 5",
)


@needs_prover
def test_the_prover_and_the_grid_find_the_same(vocabulary: Vocabulary) -> None:
    compared = 0
    for (one, first), (other, second) in list(combinations(enumerate(CONDITIONS), 2))[::2]:
        decisions = (("allow", "deny"), ("require_approval", "deny"), ("flag", "flag"))[(one + other) % 3]
        rules = [
            compiled(vocabulary, "rule-01", decisions[0], first),
            compiled(vocabulary, "rule-02", decisions[1], second),
        ]
        grid = find_conflicts(rules, vocabulary)

        proof = prove(rules, vocabulary, grid)
        alone = prove(rules, vocabulary, replace(grid, findings=()))

        assert keys(proof.report.findings) == keys(alone.report.findings) == keys(grid.findings), (first, second)
        assert (proof.added, proof.withdrawn, proof.open_questions) == (0, 0, 0)
        # Where both know a witness, the grid's is kept: it stands beside a threshold.
        assert all(finding in grid.findings for finding in proof.report.findings)
        confirm(alone.report.findings, rules, vocabulary)
        compared += len(grid.findings)
    assert compared > 8


def example_rules(vocabulary: Vocabulary) -> list[CompiledRule]:
    """Return what the pattern extractor makes of the policy that is shipped as an example."""
    text = files("rulegen_dagster") / "examples" / "expense-policy.md"
    rules: list[CompiledRule] = []
    for clause in read_document(text.read_bytes(), "policy.md", max_bytes=10**6).normative:
        reading = read_clause(clause, vocabulary)
        if isinstance(reading, Abstention):
            continue
        raw = json.dumps({"rules": [rule_of(clause, reading, vocabulary).model_dump(mode="json")]})
        item_key = f"rule-{len(rules):02d}"
        output = read_rules_draft(raw, clause=clause, item_key=item_key, vocabulary=vocabulary)
        rules.append(compile_rule(output.rules[0], vocabulary))
    return rules


@needs_prover
def test_they_find_the_same_in_the_example_ruleset() -> None:
    expense = load_vocabulary("expense")
    rules = example_rules(expense)
    grid = find_conflicts(rules, expense)

    proof = prove(rules, expense, replace(grid, findings=()))

    assert keys(proof.report.findings) == keys(grid.findings)
    assert len(rules) > 10
    assert (proof.open_questions, proof.questions > len(rules)) == (0, True)
    confirm(proof.report.findings, rules, expense)


@needs_prover
def test_two_caps_that_depend_on_a_number_differ_or_are_the_same(vocabulary: Vocabulary) -> None:
    def cap(rule_id: str, text: str) -> CompiledRule:
        return compiled(vocabulary, rule_id, "reimburse_up_to", "trip.km > 3", cap=text, amounts={"price": 30})

    nothing = ConflictReport(findings=(), pairs=0, evaluations=0, thinned=())
    for text, kind in (("p.price * trip.km", FindingKind.DUPLICATE), ("p.price * 9", FindingKind.TWO_CAPS)):
        rules = [cap("rule-01", "trip.km * p.price"), cap("rule-02", text)]

        # By itself, so that each witness is the prover's own.
        proof = prove(rules, vocabulary, nothing)

        assert [finding.kind for finding in proof.report.findings] == [kind]
        confirm(proof.report.findings, rules, vocabulary)


@needs_prover
def test_the_prover_finds_the_one_point_that_no_grid_holds(vocabulary: Vocabulary) -> None:
    rules = [
        compiled(vocabulary, "rule-01", "allow", "trip.km + trip.nights * 10 == 777"),
        compiled(vocabulary, "rule-02", "deny", "trip.km - trip.nights * 7 == 97"),
    ]

    proof = proved(rules, vocabulary)

    assert find_conflicts(rules, vocabulary).findings == ()
    (finding,) = proof.report.findings
    assert (finding.kind, proof.added) == (FindingKind.ALLOW_AND_DENY, 1)
    assert finding.witness == {"trip.km": 377, "trip.nights": 40}
    confirm([finding], rules, vocabulary)


@needs_prover
def test_a_remainder_is_decided_as_the_evaluators_decide_it(vocabulary: Vocabulary) -> None:
    rules = [
        compiled(vocabulary, "rule-01", "allow", "trip.km > 10"),
        compiled(vocabulary, "rule-02", "deny", "(trip.km - 50) % 7 == -3"),
    ]

    proof = proved(rules, vocabulary)

    # The grid meets no such number, and does not say that there is none.
    assert find_conflicts(rules, vocabulary).findings == ()
    (finding,) = proof.report.findings
    assert finding.kind is FindingKind.ALLOW_AND_DENY
    confirm([finding], rules, vocabulary)


@needs_prover
def test_what_the_grid_could_not_refute_is_withdrawn(vocabulary: Vocabulary) -> None:
    # They differ at one sum of two facts, away from every threshold of either.
    rules = [
        compiled(vocabulary, "rule-01", "flag", "trip.km > 10"),
        compiled(vocabulary, "rule-02", "flag", "trip.km > 10 && trip.km * 3 + trip.nights * 50 != 1997"),
    ]
    grid = find_conflicts(rules, vocabulary)

    proof = proved(rules, vocabulary)

    assert [finding.kind for finding in grid.findings] == [FindingKind.DUPLICATE]
    assert (proof.report.findings, proof.withdrawn) == ((), 1)


@needs_prover
def test_a_question_that_takes_too_many_steps_stays_open_and_the_grid_s_answer_stands(vocabulary: Vocabulary) -> None:
    rules = [
        compiled(vocabulary, "rule-01", "allow", "trip.km > 10"),
        compiled(vocabulary, "rule-02", "deny", "trip.km > 20"),
    ]
    grid = find_conflicts(rules, vocabulary)

    proof = proved(rules, vocabulary, steps_in_all=0)

    assert proof.report.findings == grid.findings
    assert proof.open_questions == proof.questions > 0
    again = proved(rules, vocabulary, steps_per_question=1)
    assert keys(again.report.findings) == keys(grid.findings)


@needs_prover
def test_a_policy_that_asks_for_proofs_gets_them_from_the_sandbox_and_the_report_says_so(
    meals: ClauseEntry, vocabulary: Vocabulary
) -> None:
    report = assess_in_sandbox([meals], vocabulary, load_policy("proved"))

    assert report.policy == "proved@1"
    assert report.proof is not None
    assert report.proof.engine.startswith("z3 ")
    assert (report.proof.questions > 0, report.proof.open_questions) == (True, 0)
    assert report.passed


@pytest.fixture
def meals(
    vocabulary: Vocabulary, make_clause: Any, meal_rule: dict[str, Any], meal_tests: list[dict[str, Any]]
) -> ClauseEntry:
    clause: Clause = make_clause("Meals are limited to $75 per day.")
    rules = read_rules_draft(
        json.dumps({"rules": [meal_rule]}), clause=clause, item_key="rule-01", vocabulary=vocabulary
    )
    suite = read_tests_draft(json.dumps({"tests": meal_tests}), vocabulary=vocabulary)
    return ClauseEntry(item_key="rule-01", clause=clause, rules=rules, suite=suite)


def test_without_the_prover_such_a_policy_is_refused_with_what_to_install(
    meals: ClauseEntry, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = policy(proofs=True)
    monkeypatch.setattr(policies, "prover_is_installed", lambda: False)
    monkeypatch.setattr(sandbox, "prover_is_installed", lambda: False)

    with pytest.raises(PolicyError, match=r"pip install -e '\.\[prove\]'"):
        load_policy("proved")
    with pytest.raises(RuleExecutionError, match=r"pip install -e '\.\[prove\]'"):
        assess_in_sandbox([meals], vocabulary, asked)


def test_no_process_that_was_not_asked_for_a_proof_imports_the_prover() -> None:
    program = (
        "import sys; from rulegen_dagster.rules.quality import assess_ruleset;"
        "from rulegen_dagster.rules.policies import load_policy;"
        "from rulegen_dagster.rules.packs import load_vocabulary;"
        "report = assess_ruleset([], load_vocabulary('expense'), load_policy('default'));"
        "print('z3' in sys.modules, report.proof)"
    )

    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert ended.stdout.split() == ["False", "None"]


def test_a_policy_without_proofs_is_written_as_before_they_existed() -> None:
    default = load_policy("default")

    assert "proofs" not in default.model_dump(mode="json")
    assert parse_policy(json.dumps(default.model_dump(mode="json")), name="default") == default
    assert policy(proofs=True).model_dump(mode="json")["proofs"] is True
