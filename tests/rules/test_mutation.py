"""Mutants and the mutation score: what a slip in a rule looks like, and whether the tests would see it."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from rulegen_dagster.domain.clause import Clause
from rulegen_dagster.domain.rule import Decision, Rule, TestCase
from rulegen_dagster.domain.vocabulary import Vocabulary
from rulegen_dagster.rules.drafts import read_rules_draft, read_tests_draft
from rulegen_dagster.rules.engine import CompiledRule, Outcome, compile_rule
from rulegen_dagster.rules.formula import formula_of
from rulegen_dagster.rules.mutants import mutants_of
from rulegen_dagster.rules.mutation import mutate

ClauseBuilder = Callable[..., Clause]


def rule_of(vocabulary: Vocabulary, **changes: Any) -> CompiledRule:
    fields: dict[str, Any] = {
        "id": "rule-01",
        "source": {"clause_ordinal": 0, "quote": "x", "start": 0, "end": 1},
        "modality": "must",
        "subject": "meals",
        "decision": "deny",
        "applies_when": "expense.preapproved",
    }
    return compile_rule(Rule.model_validate(fields | changes), vocabulary)


@pytest.fixture
def meals(vocabulary: Vocabulary, make_clause: ClauseBuilder, meal_rule: dict[str, Any]) -> CompiledRule:
    clause = make_clause("Meals are limited to $75 per day.")
    draft = json.dumps({"rules": [meal_rule]})
    output = read_rules_draft(draft, clause=clause, item_key="rule-01", vocabulary=vocabulary)
    return compile_rule(output.rules[0], vocabulary)


@pytest.fixture
def cases(vocabulary: Vocabulary, meal_tests: list[dict[str, Any]]) -> tuple[TestCase, ...]:
    return read_tests_draft(json.dumps({"tests": meal_tests}), vocabulary=vocabulary).tests


def test_tests_around_the_threshold_notice_every_mutant(
    meals: CompiledRule, cases: tuple[TestCase, ...], vocabulary: Vocabulary
) -> None:
    result = mutate([meals], cases, vocabulary)

    assert result.mutants > 10
    assert (result.survivors, result.survived, result.score) == ((), 0, 1.0)


def test_without_the_boundary_the_flipped_comparison_survives_with_a_witness_at_the_threshold(
    meals: CompiledRule, cases: tuple[TestCase, ...], vocabulary: Vocabulary
) -> None:
    result = mutate([meals], [case for case in cases if case.name != "at the limit"], vocabulary)

    flipped = {survivor.change: survivor for survivor in result.survivors}["condition: >= for >"]
    assert flipped.rule_id == "rule-01"
    assert flipped.witness == {"expense.category": "meals", "expense.day_total_minor": 7500}
    assert flipped.expected == Outcome()
    assert flipped.found == Outcome(decision=Decision.REIMBURSE_UP_TO, cap_minor=7500)
    assert result.score < 1.0


def test_a_cap_in_major_units_is_noticed_only_by_a_test_that_names_the_cap(
    meals: CompiledRule, cases: tuple[TestCase, ...], vocabulary: Vocabulary
) -> None:
    told = {change for change, _ in mutants_of(meals, vocabulary)}

    assert "parameter limit: major units for minor units" in told
    assert "cap: one minor unit more" in told
    above = [case for case in cases if case.name == "above"]
    assert "cap: one minor unit more" not in {item.change for item in mutate([meals], above, vocabulary).survivors}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"applies_when": "trip.km > 5 && expense.preapproved"}, "condition: part 2 left out"),
        ({"applies_when": "trip.km > 5 || expense.preapproved"}, "condition: && for ||"),
        ({"applies_when": "!expense.preapproved"}, "condition: negated"),
        ({"applies_when": 'expense.category == "meals"'}, "condition: lodging for meals"),
        ({"applies_when": 'expense.category in ["meals", "other"]'}, "condition: without other"),
        ({"applies_when": "trip.km * 2 > 10"}, "condition: + for *"),
        (
            {
                "unless": [
                    {
                        "condition": "expense.has_receipt",
                        "source": {"clause_ordinal": 0, "quote": "x", "start": 0, "end": 1},
                    }
                ]
            },
            "exception 1: left out",
        ),
        (
            {
                "decision": "reimburse_up_to",
                "applies_when": "trip.km > 0",
                "cap": "expense.amount_minor * 50 / 100",
            },
            "cap: 51 for 50",
        ),
        (
            {
                "decision": "reimburse_up_to",
                "applies_when": "trip.km > 0",
                "cap": "trip.km * p.mile / 10000",
                "params": {"mile": {"type": "rate", "currency": "EUR", "micros": 670_000, "per": "km", "quote": "x"}},
            },
            "parameter mile: one more",
        ),
    ],
)
def test_each_kind_of_slip_is_made(fields: dict[str, Any], expected: str, vocabulary: Vocabulary) -> None:
    rule = rule_of(vocabulary, **fields)

    told = [change for change, _ in mutants_of(rule, vocabulary)]

    assert expected in told


def test_a_rate_is_off_by_one_in_the_last_place_of_its_currency(vocabulary: Vocabulary) -> None:
    rule = rule_of(
        vocabulary,
        decision="reimburse_up_to",
        applies_when="trip.km > 0",
        cap="trip.km * p.mile / 10000",
        params={"mile": {"type": "rate", "currency": "EUR", "micros": 670_000, "per": "km", "quote": "x"}},
    )

    values = {change: mutant.parameters["p.mile"] for change, mutant in mutants_of(rule, vocabulary)}

    assert values["parameter mile: one more"] == 680_000
    assert values["parameter mile: major units for minor units"] == 6_700


def test_no_mutant_is_written_like_the_rule_or_like_another_mutant(meals: CompiledRule, vocabulary: Vocabulary) -> None:
    mutants = [mutant for _, mutant in mutants_of(meals, vocabulary)]

    written = [
        (mutant.condition, mutant.exceptions, mutant.cap, tuple(mutant.parameters.items())) for mutant in mutants
    ]
    right = formula_of(meals)
    assert len(set(written)) == len(written)
    assert (right.condition, right.exceptions, right.cap, tuple(right.parameters.items())) not in written


def test_a_mutant_that_the_type_check_refuses_is_none(vocabulary: Vocabulary) -> None:
    rule = rule_of(
        vocabulary,
        decision="reimburse_up_to",
        applies_when="trip.km > 0",
        cap="trip.km * p.mile / 10000",
        params={"mile": {"type": "rate", "currency": "EUR", "micros": 670_000, "per": "km", "quote": "x"}},
    )

    told = [change for change, _ in mutants_of(rule, vocabulary)]

    assert not any("10000" in change for change in told)


def test_a_mutant_that_decides_alike_counts_for_nothing(vocabulary: Vocabulary) -> None:
    rule = rule_of(vocabulary, applies_when="trip.nights >= 0 && expense.preapproved")
    cases = [
        TestCase(name="yes", kind="normal", facts={"expense.preapproved": True}, expect="deny"),
        TestCase(name="no", kind="negative", facts={}, expect="no_match"),
        TestCase(name="nights", kind="normal", facts={"expense.preapproved": True, "trip.nights": 9}, expect="deny"),
    ]

    result = mutate([rule], cases, vocabulary)

    # Without the first part it is the same rule: nights are never below 0.
    assert result.equivalent == 1
    assert result.score == 1.0


def test_a_slip_that_another_rule_of_the_clause_covers_up_is_still_a_survivor(vocabulary: Vocabulary) -> None:
    denied = rule_of(vocabulary, applies_when="trip.km > 5")
    also = rule_of(vocabulary, id="rule-01-b", applies_when="trip.km > 5 && expense.preapproved")
    cases = [
        TestCase(name="at", kind="boundary", facts={"trip.km": 5}, expect="no_match"),
        TestCase(name="above", kind="boundary", facts={"trip.km": 6}, expect="deny"),
    ]

    result = mutate([denied, also], cases, vocabulary)

    assert any(survivor.rule_id == "rule-01-b" for survivor in result.survivors)


def test_no_tests_notice_nothing(meals: CompiledRule, vocabulary: Vocabulary) -> None:
    result = mutate([meals], [], vocabulary)

    assert result.killed == 0
    assert result.score == 0.0
    assert result.survivors
