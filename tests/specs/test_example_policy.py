"""The example policy, from its bytes to a validated ruleset, with the pattern provider."""

import asyncio
from importlib.resources import files

import pytest

from rulegen_dagster.domain.clause import Clause, ClauseRole, ParsedSpec
from rulegen_dagster.domain.rule import Decision, TestKind
from rulegen_dagster.domain.states import Stage
from rulegen_dagster.domain.vocabulary import Vocabulary
from rulegen_dagster.providers.pattern import PatternProvider
from rulegen_dagster.providers.port import ProviderRequest
from rulegen_dagster.rules.clause_entries import ClauseEntry
from rulegen_dagster.rules.drafts import read_rules_draft, read_tests_draft
from rulegen_dagster.rules.packs import load_vocabulary
from rulegen_dagster.rules.validation import validate_ruleset
from rulegen_dagster.specs.document import read_document


@pytest.fixture(scope="module")
def example() -> ParsedSpec:
    data = (files("rulegen_dagster") / "examples" / "expense-policy.md").read_bytes()
    return read_document(data, "expense-policy.md", max_bytes=1_000_000)


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return load_vocabulary("expense")


@pytest.fixture(scope="module")
def entries(example: ParsedSpec, vocabulary: Vocabulary) -> list[ClauseEntry]:
    return [_entry(clause, f"rule-{number:02}", vocabulary) for number, clause in enumerate(example.normative, start=1)]


def _entry(clause: Clause, item_key: str, vocabulary: Vocabulary) -> ClauseEntry:
    rules_draft = _draft(Stage.GENERATE_RULES, clause, item_key, vocabulary)
    tests_draft = _draft(Stage.GENERATE_TESTS, clause, item_key, vocabulary)
    return ClauseEntry(
        item_key=item_key,
        clause=clause,
        rules=read_rules_draft(rules_draft, clause=clause, item_key=item_key, vocabulary=vocabulary),
        suite=read_tests_draft(tests_draft, vocabulary=vocabulary),
    )


def _draft(stage: Stage, clause: Clause, item_key: str, vocabulary: Vocabulary) -> str:
    request = ProviderRequest(
        stage=stage,
        job="example",
        item_key=item_key,
        attempt=1,
        operation_key=f"{stage.value}-{item_key}",
        timeout_ms=1000,
        clause=clause,
        context=(),
        vocabulary=vocabulary,
    )
    return asyncio.run(PatternProvider().call(request)).draft


def test_the_example_has_exactly_twenty_normative_clauses(example: ParsedSpec) -> None:
    assert len(example.normative) == 20


def test_the_definitions_of_the_example_are_no_work_items(example: ParsedSpec) -> None:
    definitions = [clause for clause in example.clauses if clause.role is ClauseRole.DEFINITION]

    assert len(definitions) == 3


def test_the_hidden_comment_of_the_example_is_in_no_clause(example: ParsedSpec) -> None:
    assert "$9,999" in example.canonical_text
    assert not any("9,999" in clause.text for clause in example.clauses)


def test_history_in_the_example_makes_no_work_item(example: ParsedSpec) -> None:
    assert not any("412 claims" in clause.text or "$60" in clause.text for clause in example.normative)


def test_each_clause_of_the_example_gives_a_rule(entries: list[ClauseEntry]) -> None:
    assert [entry.item_key for entry in entries if not entry.rules.rules] == []


def test_each_clause_of_the_example_gives_three_tests_with_a_boundary_or_negative(entries: list[ClauseEntry]) -> None:
    for entry in entries:
        kinds = {case.kind for case in entry.suite.tests}

        assert len(entry.suite.tests) >= 3, entry.clause.text
        assert kinds & {TestKind.BOUNDARY, TestKind.NEGATIVE}, entry.clause.text


def test_the_example_shows_every_decision_but_a_flag_and_an_allowance(entries: list[ClauseEntry]) -> None:
    decisions = {rule.decision for entry in entries for rule in entry.rules.rules}

    assert decisions == set(Decision) - {Decision.FLAG, Decision.ALLOW}


def test_the_example_passes_validation(entries: list[ClauseEntry], vocabulary: Vocabulary) -> None:
    report = validate_ruleset(entries, vocabulary)

    assert report.failures == ()
    assert report.passed
    assert (report.rules, report.tests_failed, report.evaluator_differences) == (20, 0, 0)


def test_no_rule_of_the_example_fires_on_the_defaults(entries: list[ClauseEntry], vocabulary: Vocabulary) -> None:
    from rulegen_dagster.rules.engine import compile_rule

    defaults = dict(vocabulary.defaults())

    for entry in entries:
        for rule in entry.rules.rules:
            assert compile_rule(rule, vocabulary).decide(defaults).decision is None, rule.applies_when
