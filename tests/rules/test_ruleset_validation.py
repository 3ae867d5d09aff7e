"""The validation report: what passes, and what each kind of fault does to it."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from rulegen_dagster.domain.clause import Clause
from rulegen_dagster.domain.rule import NoRuleDraft, Rule, RuleOutput, SuiteOutput
from rulegen_dagster.domain.vocabulary import Vocabulary
from rulegen_dagster.rules.cel_engine import CelProgram
from rulegen_dagster.rules.clause_entries import ClauseEntry
from rulegen_dagster.rules.drafts import read_rules_draft, read_tests_draft
from rulegen_dagster.rules.engine import compile_rule
from rulegen_dagster.rules.validation import ValidationReport, threshold_parameters, validate_ruleset

ClauseBuilder = Callable[..., Clause]
MEALS = "Meals are limited to $75 per day."


@pytest.fixture
def meals(
    vocabulary: Vocabulary, make_clause: ClauseBuilder, meal_rule: dict[str, Any], meal_tests: list[dict[str, Any]]
) -> ClauseEntry:
    """Return a clause with its rule and the tests that were written from it."""
    clause = make_clause(MEALS)
    rules = json.dumps({"rules": [meal_rule]})
    return ClauseEntry(
        item_key="rule-01",
        clause=clause,
        rules=read_rules_draft(rules, clause=clause, item_key="rule-01", vocabulary=vocabulary),
        suite=read_tests_draft(json.dumps({"tests": meal_tests}), vocabulary=vocabulary),
    )


@pytest.fixture
def abstained(make_clause: ClauseBuilder) -> ClauseEntry:
    reason = NoRuleDraft(reason="undefined_term")
    return ClauseEntry(
        item_key="rule-02",
        clause=make_clause("Be reasonable."),
        rules=RuleOutput(no_rule=reason),
        suite=SuiteOutput(no_tests=reason),
    )


def with_rule(entry: ClauseEntry, **changes: Any) -> ClauseEntry:
    rule = Rule.model_validate(entry.rules.rules[0].model_dump() | changes)
    return ClauseEntry(item_key=entry.item_key, clause=entry.clause, rules=RuleOutput(rules=(rule,)), suite=entry.suite)


def with_tests(entry: ClauseEntry, *tests: Any) -> ClauseEntry:
    suite = SuiteOutput.model_validate({"tests": tests})
    return ClauseEntry(item_key=entry.item_key, clause=entry.clause, rules=entry.rules, suite=suite)


def codes(report: ValidationReport) -> list[tuple[str, str]]:
    return [(failure.code, failure.path) for clause in report.clauses for failure in clause.failures]


def test_a_ruleset_whose_tests_hold_passes(meals: ClauseEntry, abstained: ClauseEntry, vocabulary: Vocabulary) -> None:
    report = validate_ruleset([meals, abstained], vocabulary)

    assert report.passed
    assert (report.rules, report.tests, report.tests_failed, report.evaluator_differences) == (1, 4, 0, 0)
    assert report.abstained == {"undefined_term": 1}
    assert [(clause.item_key, clause.rule_ids, clause.no_rule_reason) for clause in report.clauses] == [
        ("rule-01", ("rule-01",), None),
        ("rule-02", (), "undefined_term"),
    ]


def test_a_report_survives_its_own_json(meals: ClauseEntry, vocabulary: Vocabulary) -> None:
    report = validate_ruleset([with_tests(meals)], vocabulary)

    assert ValidationReport.model_validate_json(report.model_dump_json()) == report


MUTANTS = [
    {"applies_when": 'expense.category == "meals" && expense.day_total_minor >= p.limit'},
    {"applies_when": 'expense.category == "meals" && expense.day_total_minor < p.limit'},
    {"applies_when": 'expense.category == "meals" || expense.day_total_minor > p.limit'},
    {"applies_when": 'expense.category != "meals" && expense.day_total_minor > p.limit'},
    {"applies_when": 'expense.category == "lodging" && expense.day_total_minor > p.limit'},
    {"applies_when": "expense.day_total_minor > p.limit"},
    {"applies_when": 'expense.category == "meals"'},
    {"applies_when": 'expense.category == "meals" && expense.amount_minor > p.limit'},
    {"decision": "flag", "cap": None},
    {"cap": "p.limit - p.limit / 100"},
    {"cap": "expense.day_total_minor"},
]


@pytest.mark.parametrize("mutation", MUTANTS)
def test_the_tests_of_the_clause_catch_a_mutated_rule(
    mutation: dict[str, Any], meals: ClauseEntry, vocabulary: Vocabulary
) -> None:
    report = validate_ruleset([with_rule(meals, **mutation)], vocabulary)

    assert not report.passed
    assert report.tests_failed > 0
    assert {code for code, _ in codes(report)} == {"test_failed"}


def test_a_failed_test_says_what_was_expected_and_what_was_decided(meals: ClauseEntry, vocabulary: Vocabulary) -> None:
    at_limit = with_rule(meals, applies_when="expense.day_total_minor >= p.limit")

    report = validate_ruleset([at_limit], vocabulary)

    messages = [failure.message for failure in report.clauses[0].failures]
    assert messages[0] == "expected no_match, the rules decide reimburse_up_to"
    assert codes(report)[0] == ("test_failed", "$.tests[1]")


def test_a_wrong_cap_fails_its_test(meals: ClauseEntry, vocabulary: Vocabulary) -> None:
    report = validate_ruleset([with_rule(meals, cap="p.limit * 1 - p.limit / 100")], vocabulary)

    (failure,) = report.clauses[0].failures
    assert failure.message == "expected a cap of 7500, the rules give 7425 (minor units)"


def test_the_lowest_cap_of_a_clause_counts(meals: ClauseEntry, vocabulary: Vocabulary) -> None:
    (rule,) = meals.rules.rules
    higher = rule.model_copy(update={"id": "rule-01-b", "cap": "p.limit * 1 + p.limit"})
    both = ClauseEntry(
        item_key="rule-01", clause=meals.clause, rules=RuleOutput(rules=(higher, rule)), suite=meals.suite
    )

    assert validate_ruleset([both], vocabulary).passed


def test_a_runtime_error_fails_the_test_that_meets_it(meals: ClauseEntry, vocabulary: Vocabulary) -> None:
    report = validate_ruleset([with_rule(meals, cap="p.limit - expense.day_total_minor")], vocabulary)

    assert codes(report) == [("cap_out_of_range", "$.tests[2]")]


def test_a_rule_that_does_not_compile_is_the_only_thing_blamed(meals: ClauseEntry, vocabulary: Vocabulary) -> None:
    report = validate_ruleset([with_rule(meals, applies_when="trip.gone > 1")], vocabulary)

    assert codes(report) == [("unknown_fact", "$.rules[0]")]
    assert report.tests_failed == 0


def test_a_quote_that_is_not_verbatim_is_refused(meals: ClauseEntry, vocabulary: Vocabulary) -> None:
    source = meals.rules.rules[0].source
    moved = source.model_copy(update={"start": source.start + 1, "end": source.end + 1})
    elsewhere = source.model_copy(update={"clause_ordinal": 3})

    for wrong in (moved, elsewhere):
        report = validate_ruleset([with_rule(meals, source=wrong)], vocabulary)

        assert codes(report) == [("quote_not_verbatim", "$.rules[0].source")]


def test_the_quote_of_an_exception_is_checked_too(meals: ClauseEntry, vocabulary: Vocabulary) -> None:
    source = meals.rules.rules[0].source.model_copy(update={"start": 0, "end": len(MEALS)})
    unless = [{"condition": "expense.preapproved", "source": source}]

    report = validate_ruleset([with_rule(meals, unless=unless)], vocabulary)

    assert codes(report) == [("quote_not_verbatim", "$.rules[0].unless[0].source")]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"quote": "$99 per day"}, ("quote_not_verbatim", "$.rules[0].params.limit.quote")),
        ({"quote": "per day"}, ("number_not_in_quote", "$.rules[0].params.limit")),
        ({"currency": "EUR"}, ("currency_not_in_quote", "$.rules[0].params.limit.currency")),
    ],
)
def test_a_parameter_without_its_words_fails(
    changes: dict[str, str], expected: tuple[str, str], meals: ClauseEntry, vocabulary: Vocabulary
) -> None:
    limit = meals.rules.rules[0].params["limit"].model_copy(update=changes)

    report = validate_ruleset([with_rule(meals, params={"limit": limit})], vocabulary)

    assert codes(report) == [expected]


def test_a_clause_with_rules_needs_three_tests_and_a_boundary(meals: ClauseEntry, vocabulary: Vocabulary) -> None:
    above = meals.suite.tests[2].model_copy(update={"kind": "normal"})

    report = validate_ruleset([with_tests(meals, above)], vocabulary)

    assert codes(report) == [("too_few_tests", "$.tests"), ("no_boundary_test", "$.tests")]
    assert "rule rule-01 has a threshold (limit)" in report.clauses[0].failures[1].message


def test_a_rule_without_a_threshold_needs_no_boundary_test(meals: ClauseEntry, vocabulary: Vocabulary) -> None:
    rule = meals.rules.rules[0].model_copy(update={"applies_when": "expense.preapproved"})

    assert threshold_parameters(compile_rule(rule, vocabulary)) == ()
    assert threshold_parameters(compile_rule(meals.rules.rules[0], vocabulary)) == ("limit",)


def test_a_test_that_expects_a_decision_of_a_clause_without_rules_fails(
    meals: ClauseEntry, vocabulary: Vocabulary
) -> None:
    reason = NoRuleDraft(reason="undefined_term")
    silent = ClauseEntry(item_key="rule-03", clause=meals.clause, rules=RuleOutput(no_rule=reason), suite=meals.suite)

    report = validate_ruleset([meals, silent], vocabulary)

    assert codes(report) == [("test_failed", "$.tests[2]")]


def test_a_ruleset_of_two_currencies_fails_as_a_whole(
    meals: ClauseEntry, make_clause: ClauseBuilder, vocabulary: Vocabulary
) -> None:
    limit = meals.rules.rules[0].params["limit"].model_copy(update={"currency": "CAD"})
    other = with_rule(meals, id="rule-02", params={"limit": limit})

    report = validate_ruleset([meals, other], vocabulary)

    assert not report.passed
    assert [(failure.code, failure.message) for failure in report.failures] == [
        ("mixed_currencies", "a ruleset has one currency, this one has CAD, USD")
    ]


def test_a_ruleset_without_any_rule_does_not_pass(abstained: ClauseEntry, vocabulary: Vocabulary) -> None:
    for entries in ([], [abstained]):
        report = validate_ruleset(entries, vocabulary)

        assert not report.passed
        assert [failure.code for failure in report.failures] == ["no_rules"]


def test_two_rules_of_one_id_fail_as_a_whole(meals: ClauseEntry, vocabulary: Vocabulary) -> None:
    report = validate_ruleset([meals, meals], vocabulary)

    assert [failure.code for failure in report.failures] == ["duplicate_rule_id"]


def test_an_evaluator_difference_is_counted_and_fails(
    meals: ClauseEntry, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    def inverted(program: CelProgram, facts: Any) -> bool:
        return not program.program.eval(data=facts).value()

    monkeypatch.setattr(CelProgram, "evaluate", inverted)

    report = validate_ruleset([meals], vocabulary)

    assert not report.passed
    assert report.evaluator_differences == report.tests_failed == 4
    assert {code for code, _ in codes(report)} == {"evaluator_difference"}


def test_a_test_with_facts_that_the_vocabulary_lacks_fails(meals: ClauseEntry, vocabulary: Vocabulary) -> None:
    stale = meals.suite.tests[0].model_copy(update={"facts": {"trip.gone": 1}})

    report = validate_ruleset([with_tests(meals, stale, *meals.suite.tests[1:])], vocabulary)

    assert codes(report) == [("unknown_fact", "$.tests[0]")]
